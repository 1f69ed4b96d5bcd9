"""Kills a process in the moment after a request was written, or after the worker's verdict on it was."""

import re
import threading
from collections.abc import Callable
from contextlib import closing

from confluent_kafka import Consumer, Message, TopicPartition

from tests.chaos.console.ledger import Ledger
from tests.harness.cluster import client_settings
from timers.process.config.settings import Settings

REQUEST, VERDICT = "request", "verdict"
"""After which record a kill comes."""

_NUMBER = re.compile(rb"n=(\d+);")


class Killer:
    """Reads the topics of requests and of verdicts, also what is not committed, until :meth:`end`."""

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        self._settings = settings
        self._ledger = ledger
        self._ids: dict[bytes, int] = {}
        self._armed: tuple[str, Callable[[int], None]] | None = None
        self._left = 0
        self._is_done = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()

    def kill_after(self, record: str, others: int, kill: Callable[[int], None], deadline_s: float) -> bool:
        """Let so many records of this kind pass, and call ``kill`` with the number of the console of the next one.

        Returns:
            False if no such record came.
        """
        self._is_done.clear()
        self._left = others
        self._armed = record, kill
        is_done = self._is_done.wait(deadline_s)
        self._armed = None
        return is_done

    def _run(self) -> None:
        topics = (self._settings.id_topic, self._settings.verdict_topic)
        settings = client_settings(
            self._settings.brokers,
            group_id="killer",
            isolation_level="read_uncommitted",
            enable_auto_commit=False,
            fetch_wait_max_ms=20,
            reconnect_backoff_max_ms=200,
        )
        with closing(Consumer(settings)) as consumer:
            partitions = range(self._settings.partitions)
            consumer.assign([TopicPartition(topic, each, 0) for topic in topics for each in partitions])
            while not self._is_over.is_set():
                message = consumer.poll(0.1)
                if message is not None and message.error() is None:
                    self._look(message)

    def _look(self, message: Message) -> None:
        key = message.key() or b""
        if message.topic() == self._settings.verdict_topic:
            console, record = self._ledger.console_of_written(self._ids.get(key, -1)), VERDICT
        else:
            found = _NUMBER.search(message.value() or b"")
            if found is None:
                return
            number = self._ids[key] = int(found[1])
            console, record = self._ledger.see_written(number, message.timestamp()[1]), REQUEST
        if console is None or self._armed is None or self._armed[0] != record:
            return
        if self._left:
            self._left -= 1
            return
        _, kill = self._armed
        self._armed = None
        kill(console)
        self._is_done.set()
