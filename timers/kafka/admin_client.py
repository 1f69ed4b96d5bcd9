"""The admin client of this project: confluent-kafka's, closed in a thread of its own, and made anew with new files."""

from __future__ import annotations

import _thread
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import confluent_kafka.admin

from timers.process.renewed_tls import ChangedFiles

logger = logging.getLogger(__name__)

FORMER_S = 60.0
"""Seconds for which a client that was replaced is kept: its last requests are answered meanwhile."""


class AdminClient(confluent_kafka.admin.AdminClient):  # noqa: TID251
    """An admin client that any thread may free.

    librdkafka ends the process if a client is destroyed in that client's own thread. There it makes the results of
    requests, and Python's garbage collector may run in it, and free the client: one whose last request failed is in a
    reference cycle, by the frames of the exception.
    """

    def __del__(self) -> None:
        # Not threading.Thread: it takes locks, which the code that the collector interrupts may hold.
        with contextlib.suppress(RuntimeError):  # the interpreter ends
            _thread.start_new_thread(self.__exit__, (None, None, None))


class RenewedAdmin:
    """Has the methods of an admin client, and makes a new client when its files have changed.

    librdkafka reads certificates, keys and authorities once. Files that cannot be used, such as a new certificate whose
    key is not written yet, change nothing. Any thread.

    Args:
        files: looked at before each call.
        make: returns a client that has read the files.
    """

    def __init__(self, files: Sequence[Path], make: Callable[[], AdminClient]) -> None:
        self._files, self._make, self._lock = ChangedFiles(files), make, threading.Lock()
        self._client = make()
        self._former: AdminClient | None = None
        self._renewed_at = 0.0

    def __getattr__(self, method: str) -> Any:
        with self._lock:
            if self._former is not None and monotonic() - self._renewed_at > FORMER_S:
                self._former = None
            try:
                if (versions := self._files.found()) is not None:
                    former, self._client = self._client, self._make()
                    self._former, self._renewed_at = former, monotonic()
                    self._files.read(versions)
                    logger.info("an admin client has read certificates again: %s", self._files)
            except Exception as error:
                self._files.log_failure("an admin client keeps its certificates as they were: %s", error)
            return getattr(self._client, method)
