"""Publishing requests of dead letters again: each together with a mark that it was, in one transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Self, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Producer

from timers.config.settings import Settings
from timers.dead_letters.letters import Letter
from timers.errors import AccessError, PublishError, TimersError
from timers.kafka import connection, topic_admin
from timers.kafka.clients import LIBRDKAFKA_LOG, TRANSACTION_TIMEOUT_MS, max_message_bytes
from timers.kafka.connection import TIMEOUT_S
from timers.kafka.error_codes import FENCED, NOT_ALLOWED, code_of
from timers.request_formats import REQUEST_FORMATS
from timers.wire import dead_letter, topics
from timers.wire.dead_letter import OVERHEAD_BYTES, Mark
from timers.wire.formats import RequestRecord

_POLL_S = 0.1
_Record: TypeAlias = tuple[str, int, bytes | None, bytes | None, Sequence[tuple[str, str | bytes | None]]]
"""(topic, partition, key, value, headers)"""


class Retrier:
    """A transactional producer of topics of requests and of marks.

    Opening it fences whoever else retries dead letters of this app, and rolls back what that left open: what it had
    committed is marked, so nothing is published twice.

    Raises:
        TimersError: no broker answers or lets us in, or there is no request topic; so does :meth:`publish`.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._reports = connection.Reports(settings)
        self._open = False
        config: dict[str, Any] = {
            **connection.librdkafka(settings),
            "error_cb": self._reports,
            "allow.auto.create.topics": False,
            "transactional.id": topics.retrier_id(settings.app_id),
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            # What stands in our topics fits, and the marks of as much.
            "message.max.bytes": max_message_bytes(settings) + OVERHEAD_BYTES,
            "linger.ms": 5,
        }
        self._producer = Producer(config, logger=LIBRDKAFKA_LOG)
        try:
            self._partitions = {settings.request_topic: self._partitions_of(settings.request_topic)}
            if not topic_admin.exists(settings, settings.retried_topic):
                topic_admin.create_if_missing(settings, settings.retried_topic, partitions=1, cleanup_policy="compact")
            self._producer.init_transactions(3 * TIMEOUT_S)
        except KafkaException as error:
            raise self._explained(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open:
            with contextlib.suppress(KafkaException):  # else the brokers roll it back when its time is over
                self._producer.abort_transaction(TIMEOUT_S)

    def _partitions_of(self, topic: str) -> int:
        count = connection.partitions_of(self._producer, self._reports, topic)
        if not count:
            raise PublishError(
                f"topic {topic!r} does not exist at {self._settings.brokers}: start a worker, which creates it"
            )
        return count

    def publish(self, chosen: Sequence[tuple[Letter, RequestRecord]]) -> list[str]:
        """Publish requests to the partitions that they came from, all or none.

        Returns:
            Where each stands now.
        """
        try:
            requests = [
                (*self._home(letter), request.key, request.value, request.headers or ()) for letter, request in chosen
            ]
            self._producer.begin_transaction()
            self._open = True
            sources = self._send(requests)
            marks = [
                dead_letter.encode_mark(Mark(letter.position, letter.opened.source, source))
                for (letter, _), source in zip(chosen, sources, strict=True)
            ]
            self._send([(self._settings.retried_topic, 0, *mark) for mark in marks])
            self._commit()
        except KafkaException as error:
            raise self._explained(error) from error
        self._open = False
        return sources

    def _home(self, letter: Letter) -> tuple[str, int]:
        """The topic and partition that a request came from: what is ordered by its partition stays so."""
        where = topics.parse_source(letter.opened.source)
        assert where is not None and letter.request_format is not None, "judged before"
        topic, partition, _ = where
        if topic not in self._partitions:
            self._partitions[topic] = self._partitions_of(topic)
        return topic, partition % self._partitions[topic]

    def _send(self, records: Sequence[_Record]) -> list[str]:
        """Send all, wait until the brokers have them, and say where they stand."""
        found: dict[int, str] = {}
        failures: list[KafkaError] = []

        def note(index: int, error: KafkaError | None, message: Any) -> None:
            if error is not None:
                failures.append(error)
            else:
                found[index] = topics.source(message.topic(), message.partition(), message.offset())

        for index, (topic, partition, key, value, headers) in enumerate(records):
            self._producer.produce(
                topic, value, key, partition, headers=list(headers), on_delivery=partial(note, index)
            )
        give_up = monotonic() + TRANSACTION_TIMEOUT_MS / 1000
        # Not flush(): that goes on calling back while the exception of a fatal error is pending.
        while len(found) + len(failures) < len(records):
            self._producer.poll(_POLL_S)
            if monotonic() > give_up:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        if failures:
            raise KafkaException(failures[0])
        return [found[index] for index in range(len(records))]

    def _commit(self) -> None:
        """Commit. While the outcome is not known the same call is made again: it is then the same commit."""
        for last in (False, False, True):
            try:
                self._producer.commit_transaction(TIMEOUT_S)
                return
            except KafkaException as error:
                if last or not error.args[0].retriable():
                    raise

    def _topics(self) -> str:
        return ", ".join(repr(topic) for kind in REQUEST_FORMATS for topic in kind.topics(self._settings))

    def _explained(self, error: KafkaException) -> TimersError:
        settings = self._settings
        if code_of(error) in FENCED:
            return PublishError("another `timers dead-letters retry` has begun since: this one stops")
        if code_of(error) in NOT_ALLOWED:
            return AccessError(
                f"{connection.principal(settings)} may not do that at {settings.brokers} ({error.args[0].str()}): it "
                f"takes Write on topics {self._topics()} and {settings.retried_topic!r} and on transactional id "
                f"{topics.retrier_id(settings.app_id)!r}"
            )
        return self._reports.explained(error, f"the brokers at {settings.brokers} refuse the requests", PublishError)
