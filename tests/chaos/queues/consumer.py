"""A consumer of a round. It logs what it does before it does it, so that the log is complete whenever it is killed.

Lines of the log: ``D <ms> <number>.<attempt> ...`` for messages that were received after a time, ``R <id> <ms>`` for a
call of ``retry`` after a time, with the id as its error. Times are epoch milliseconds.
"""

import asyncio
import itertools
import json
import logging
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos.queues.messages import (
    BAD_ATTEMPTS,
    LEASE_S,
    RETRY_AFTER_S,
    SLOW_S,
    ends_badly,
    fails,
    has_output,
    has_row,
    is_rejected,
    is_slow,
)
from tests.harness.queue_handlers import RAISED
from timers.queue import AsyncMessage, AsyncQueue, Backoff, Queue, SqlInbox
from timers.queue.driver import RUN_LEASES
from timers.queue.running import handle

OPENED, WORKING, DRAINED = "opened", "working", "drained"
"""What a consumer prints: it handles signals, it has had messages, and it ends as it should."""

BATCH = 200
DATABASE = "rows.db"
_BUSY_S = 300.0
_RECEIVED_MS = int(LEASE_S * 1000)
"""A message that is handled alone was received less than this before: else its lease is over."""


def open_database(directory: Path) -> sqlite3.Connection:
    """Open the database of rows. A process that is stopped while it writes holds back all others."""
    connection = sqlite3.connect(directory / DATABASE, timeout=_BUSY_S)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=OFF")  # the machine does not fail here
    return connection


class Consumer:
    """Handles messages: a batch in this thread, or one at a time for ``Queue.run``.

    Args:
        results: topic of outputs.
    """

    def __init__(self, name: str, results: str, directory: Path) -> None:
        self._name = name
        self._results = results
        self._directory = directory
        self._log = (directory / f"{name}.events").open("ab", buffering=0)
        self._retries = itertools.count(time.time_ns())
        self._is_working = False
        self._of_thread = threading.local()

    def handle_some(self, queue: Queue) -> None:
        since_ms = _now_ms()
        messages = queue.receive(BATCH, wait_s=0.5)
        if not messages:
            return
        numbered = self._begin(since_ms, messages)
        for number, message in numbered:
            handle(message, partial(self._settle, number))

    def handle_one(self, message: Any) -> None:
        """Handle a message, or its copy in a child process. A time before it was received is not known here."""
        ((number, _),) = self._begin(_now_ms() - _RECEIVED_MS, [message])
        self._settle(number, message)

    async def handle_in_task(self, message: AsyncMessage) -> None:
        ((number, _),) = self._begin(_now_ms() - _RECEIVED_MS, [message])
        if number % 2:
            await asyncio.sleep(0)
            self._settle(number, message)
        else:
            await asyncio.gather(self._settle_in_task(number, message))

    async def _settle_in_task(self, number: int, message: AsyncMessage) -> None:
        self._settle(number, message)

    def _begin(self, since_ms: int, messages: Sequence[Any]) -> list[tuple[int, Any]]:
        """Log messages, and insert their rows."""
        if not self._is_working:
            self._is_working = True
            print(WORKING, flush=True)
        numbered = [(int(message.value or b""), message) for message in messages]
        self._log.write(
            b"D %d %b\n" % (since_ms, b" ".join(b"%d.%d" % (number, each.attempt) for number, each in numbered))
        )
        with_rows = [(number, message) for number, message in numbered if has_row(number)]
        if with_rows:
            connection, inbox = self._database()
            with connection:
                for number, message in with_rows:
                    if inbox.accept(message):
                        connection.execute("INSERT INTO rows_of_messages (number) VALUES (?)", (number,))
        return numbered

    def _database(self) -> tuple[sqlite3.Connection, SqlInbox]:
        """The connection of this thread."""
        if not hasattr(self._of_thread, "connection"):
            self._of_thread.connection = open_database(self._directory)
        return self._of_thread.connection, SqlInbox(self._of_thread.connection)

    def _settle(self, number: int, message: Any) -> None:
        if is_slow(number):
            time.sleep(SLOW_S)
        if is_rejected(number):
            message.reject("as its number says")
        elif ends_badly(number) and message.attempt <= BAD_ATTEMPTS:
            names = list(RAISED)
            raise RAISED[names[number // 100 % len(names)]]()
        elif fails(number) and message.attempt == 1:
            id = f"{self._name}-{next(self._retries)}"
            self._log.write(b"R %b %d\n" % (id.encode(), _now_ms()))
            message.retry(after=RETRY_AFTER_S, error=id)
        else:
            if has_output(number):
                message.output(self._results, message.value)
            message.ack()


_consumers: dict[str, Consumer] = {}


def handle_in_child(name: str, results: str, directory: Path, message: Any) -> None:
    """Handle a message in a child process, which has a log of its own."""
    if name not in _consumers:
        _consumers[name] = Consumer(f"{name}-{os.getpid()}", results, directory)
    _consumers[name].handle_one(message)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def main(topic: str, results: str, name: str, directory: Path, arguments: str) -> None:
    """Handle messages until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    backoff = Backoff(first_s=RETRY_AFTER_S, factor=1, retries=50, jitter=0)
    kind, given = int(name.rsplit("-", 1)[1]) % 4, json.loads(arguments)
    if kind:  # a run extends its leases to those of the others
        given["lease_s"] /= RUN_LEASES
    with Queue(topic, member=name, backoff=backoff, **given) as queue:
        signal.signal(signal.SIGTERM, lambda *_: queue.stop())
        consumer = Consumer(name, results, directory)
        print(OPENED, flush=True)
        match kind:
            case 0:
                while not queue.stopping:
                    consumer.handle_some(queue)
            case 1:
                queue.run(consumer.handle_one, concurrency=8)
            case 2:
                asyncio.run(AsyncQueue(queue).run(consumer.handle_in_task, concurrency=50))
            case _:
                queue.run(partial(handle_in_child, name, results, directory), processes=2)
    print(DRAINED, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]), sys.argv[5])
