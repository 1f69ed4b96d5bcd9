"""Creates missing callback topics in a thread of its own, so that no machine waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from timers.kafka.error_codes import code_of
from timers.kafka.topic_admin import create_all

logger = logging.getLogger(__name__)

MAX_TOPICS = 500
"""Topics in one request: a controller does not take other requests while it handles a large one."""

MAX_WANTED = 10_000
"""Maximum number of topics that wait. Further ones are requested again by the next attempt of their timers."""


class TopicCreator:
    """Creates topics with the brokers' defaults, many in one request.

    Args:
        admin: asks the brokers.
        timeout_s: for one request.
        on_created: called in the creator's thread after each request, with topic -> reason for topics not created.
    """

    def __init__(self, admin: AdminClient, timeout_s: float, on_created: Callable[[Mapping[str, str]], None]) -> None:
        self._admin = admin
        self._timeout_s = timeout_s
        self._on_created = on_created
        self._lock = threading.Lock()
        self._wanted: dict[str, None] = {}
        self._running = False

    def request(self, topic: str) -> None:
        """Create a topic soon. Returns at once."""
        with self._lock:
            if len(self._wanted) < MAX_WANTED:
                self._wanted[topic] = None
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="topic creator", daemon=True).start()

    def _run(self) -> None:
        try:
            while names := self._next():
                self._create(names)
        except BaseException:
            with self._lock:
                self._running = False
            raise

    def _create(self, names: list[str]) -> None:
        refused = {}
        try:
            failures = create_all(self._admin, [NewTopic(name, -1, -1) for name in names], self._timeout_s)
        except (KafkaException, TimeoutError) as error:
            logger.warning("%d callback topics were not created, as no broker answered: %s", len(names), error)
        else:
            refused = {
                name: failure.args[0].str()
                for name, failure in failures.items()
                if code_of(failure) != KafkaError.TOPIC_ALREADY_EXISTS
            }
            for name, why in list(refused.items())[:1]:
                logger.warning("%d callback topics were not created, such as %r: %s", len(refused), name, why)
        self._on_created(refused)

    def _next(self) -> list[str]:
        """The topics of the next request; none if the thread must end."""
        with self._lock:
            names = list(self._wanted)[:MAX_TOPICS]
            for name in names:
                del self._wanted[name]
            self._running = bool(names)
            return names
