"""The admin client of this project: confluent-kafka's, closed in a thread of its own."""

from __future__ import annotations

import _thread
import contextlib

import confluent_kafka.admin


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
