"""The admin client of this project: confluent-kafka's, closed in a thread of its own, and made anew if it may be of no
use any more."""

from __future__ import annotations

import _thread
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, cast

import confluent_kafka.admin
from confluent_kafka import KafkaException

from timers.kafka.error_codes import code_of
from timers.process.renewed_tls import ChangedFiles

logger = logging.getLogger(__name__)

FORMER_S = 60.0
"""Seconds for which a client that was replaced is kept: its last requests are answered meanwhile."""

UNANSWERED_S = 60.0
"""Longer than the longest request of a client that is answered."""


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
    """Has the methods of an admin client, and makes a new client when the former one may be of no use any more: its
    files have changed, or it had no answer for :data:`UNANSWERED_S`. Any thread.

    librdkafka reads certificates, keys and authorities once. Files that cannot be used, such as a new certificate whose
    key is not written yet, change nothing.

    A client that has no answer may have lost the addresses of all brokers: :mod:`timers.kafka.lost_brokers`. If the
    brokers are merely away, a new one does no harm.

    Args:
        make: returns a client that has read the files.
        files: looked at before each call.
    """

    def __init__(self, make: Callable[[], AdminClient], files: Sequence[Path] = ()) -> None:
        self._files, self._make, self._lock = ChangedFiles(files), make, threading.Lock()
        self._client = make()
        self._former: AdminClient | None = None
        self._renewed_at = 0.0
        self._silent_since: float | None = None

    def __getattr__(self, method: str) -> Any:
        with self._lock:
            if self._former is not None and monotonic() - self._renewed_at > FORMER_S:
                self._former = None
            try:
                self._renew()
            except Exception as error:
                self._files.log_failure("an admin client is kept as it was: %s", error)
            if method == "poll":
                return self._client.poll
            return partial(self._ask, getattr(self._client, method))

    def _renew(self) -> None:
        if (versions := self._files.found()) is not None:
            self._replace()
            self._files.read(versions)
            logger.info("an admin client has read certificates again: %s", self._files)
        elif self._silent_since is not None and monotonic() - self._silent_since > UNANSWERED_S:
            self._silent_since = None  # if a new client cannot be made, the next attempt is after the same time
            self._replace()
            logger.warning("an admin client had no answer for %g s: it is made anew", UNANSWERED_S)

    def _replace(self) -> None:
        former, self._client = self._client, self._make()
        self._former, self._renewed_at = former, monotonic()

    def _ask(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call a method, and note whether brokers answer."""
        try:
            result = method(*arguments, **named)
        except KafkaException as error:
            self._note(error)
            raise
        for each in result.values() if isinstance(result, dict) else [result]:
            if isinstance(each, Future):
                each.add_done_callback(self._note_answer)
            else:
                self._silent_since = None
        return result

    def _note_answer(self, answer: Future[Any]) -> None:
        if not answer.cancelled():
            self._note(answer.exception())

    def _note(self, error: BaseException | None) -> None:
        """Note an answer. What librdkafka says by itself, such as that no leader is known, is none."""
        if not (isinstance(error, KafkaException) and code_of(error) < 0):
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = monotonic()


def lasting(config: Mapping[str, Any], log: logging.Logger | None = None, files: Sequence[Path] = ()) -> AdminClient:
    """An admin client that may live as long as the process: see :class:`RenewedAdmin`.

    Args:
        log: for librdkafka's own log, which would otherwise go to stderr.
    """
    more = {} if log is None else {"logger": log}
    return cast("AdminClient", RenewedAdmin(partial(AdminClient, dict(config), **more), files))
