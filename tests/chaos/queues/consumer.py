"""A consumer of a round. It logs what it does before it does it, so that the log is complete whenever it is killed.

Lines of the log: ``D <ms> <number>.<attempt> ...`` for messages that were received after a time, ``R <id> <ms>`` for a
call of ``retry`` after a time, with the id as its error. Times are epoch milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import BinaryIO

from tests.chaos.queues.messages import RETRY_AFTER_S, SLOW_S, fails, has_output, has_row, is_rejected, is_slow
from timers.queue import LeaseLostError, Message, Queue, SqlInbox

OPENED, WORKING, DRAINED = "opened", "working", "drained"
"""What a consumer prints: it handles signals, it has had messages, and it ends as it should."""

BATCH = 200
DATABASE = "rows.db"
_BUSY_S = 300.0


def open_database(directory: Path) -> sqlite3.Connection:
    """Open the database of rows. A process that is stopped while it writes holds back all others."""
    connection = sqlite3.connect(directory / DATABASE, timeout=_BUSY_S)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=OFF")  # the machine does not fail here
    return connection


class Consumer:
    """Handles messages in batches.

    Args:
        results: topic of outputs.
    """

    def __init__(self, queue: Queue, name: str, results: str, directory: Path, log: BinaryIO) -> None:
        self._queue = queue
        self._name = name
        self._results = results
        self._log = log
        self._connection = open_database(directory)
        self._inbox = SqlInbox(self._connection)
        self._retries = time.time_ns()
        self._is_working = False

    def handle_some(self) -> None:
        since_ms = time.time_ns() // 1_000_000
        messages = self._queue.receive(BATCH, wait_s=0.5)
        if not messages:
            return
        if not self._is_working:
            self._is_working = True
            print(WORKING, flush=True)
        numbered = [(int(message.value or b""), message) for message in messages]
        self._log.write(
            b"D %d %b\n" % (since_ms, b" ".join(b"%d.%d" % (number, each.attempt) for number, each in numbered))
        )
        with self._connection:
            for number, message in numbered:
                if has_row(number) and self._inbox.accept(message):
                    self._connection.execute("INSERT INTO rows_of_messages (number) VALUES (?)", (number,))
        for number, message in numbered:
            if is_slow(number):
                time.sleep(SLOW_S)
            with contextlib.suppress(LeaseLostError):
                self._settle(number, message)

    def _settle(self, number: int, message: Message) -> None:
        if is_rejected(number):
            message.reject("as its number says")
        elif fails(number) and message.attempt == 1:
            self._retries += 1
            id = f"{self._name}-{self._retries}"
            self._log.write(b"R %b %d\n" % (id.encode(), time.time_ns() // 1_000_000))
            message.retry(after=RETRY_AFTER_S, error=id)
        else:
            if has_output(number):
                message.output(self._results, message.value)
            message.ack()


def main(topic: str, results: str, name: str, directory: Path, arguments: str) -> None:
    """Handle messages until SIGTERM."""
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    with (
        (directory / f"{name}.events").open("ab", buffering=0) as log,
        Queue(topic, member=name, **json.loads(arguments)) as queue,
    ):
        consumer = Consumer(queue, name, results, directory, log)
        print(OPENED, flush=True)
        while not stopping:
            consumer.handle_some()
    print(DRAINED, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]), sys.argv[5])
