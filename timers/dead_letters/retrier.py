"""Publishes the requests of dead letters again, each with a mark in the same transaction."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaException

from timers.config.settings import Settings
from timers.dead_letters.letters import Letter
from timers.errors import AccessError, NameTakenError, PublishError, TimersError
from timers.kafka import connection, topic_admin
from timers.kafka.clients import admin_client, max_message_bytes
from timers.kafka.error_codes import FENCED, NOT_ALLOWED, code_of
from timers.kafka.transactions import Record, TransactionalWriter
from timers.request_formats import REQUEST_FORMATS
from timers.wire import dead_letter, topics
from timers.wire.dead_letter import OVERHEAD_BYTES, Mark
from timers.wire.formats import RequestRecord


class Retrier:
    """Writes to the request topics and to the topic of marks.

    Opening it stops any other retrier of the same app and aborts its open transaction. The requests that
    the other one has committed are marked, so that none is published twice.

    Raises:
        TimersError: no broker answers or accepts the login, or there is no request topic; so does :meth:`publish`.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._reports = connection.ErrorReports(settings)
        self._admin = admin_client(settings, self._reports)
        try:
            self._partitions = {settings.request_topic: self._partitions_of(settings.request_topic)}
            if not topic_admin.exists(settings, settings.retried_topic):
                topic_admin.create_if_missing(settings, settings.retried_topic, partitions=1, cleanup_policy="compact")
            self._writer = TransactionalWriter(
                {**connection.librdkafka(settings), "error_cb": self._reports},
                topics.retrier_id(settings.app_id),
                max_message_bytes(settings) + OVERHEAD_BYTES,  # a mark has two sources and a long key
            )
        except KafkaException as error:
            raise self._user_error(error) from error

    def _partitions_of(self, topic: str) -> int:
        count = connection.partitions_of(self._admin, self._reports, topic)
        if not count:
            raise PublishError(
                f"topic {topic!r} does not exist at {self._settings.brokers}: start a worker (or the engine on Spark), "
                "which creates it"
            )
        return count

    def publish(self, letters: Sequence[tuple[Letter, RequestRecord]]) -> list[str]:
        """Publish requests to the partitions that they came from, all or none."""
        try:
            requests = [
                Record(*self._source_partition(letter), request.key, request.value, request.headers or ())
                for letter, request in letters
            ]
            with self._writer.transaction() as send:
                sources = send(requests)
                marks = [
                    dead_letter.encode_mark(Mark(letter.position, letter.decoded.source, source))
                    for (letter, _), source in zip(letters, sources, strict=True)
                ]
                send([Record(self._settings.retried_topic, 0, *mark) for mark in marks])
        except KafkaException as error:
            raise self._user_error(error) from error
        return sources

    def _source_partition(self, letter: Letter) -> tuple[str, int]:
        """The topic and partition that a request came from, so that its order in the partition is kept.

        A receiver's request was in no topic before; it goes to the topic of requests.
        """
        place = topics.parse_source(letter.decoded.source)
        if letter.is_of_receiver:
            place = (self._settings.request_topic, *(place or ("", 0, 0))[1:])
        assert place is not None and letter.request_format is not None, "decide() returns only such letters"
        topic, partition, _ = place
        if topic not in self._partitions:
            self._partitions[topic] = self._partitions_of(topic)
        return topic, partition % self._partitions[topic]

    def _user_error(self, error: KafkaException) -> TimersError:
        settings = self._settings
        if code_of(error) in FENCED:
            return NameTakenError(
                f"another `timers dead-letters retry` of TIMERS_APP_ID={settings.app_id!r} has begun since: this one "
                "stops"
            )
        if code_of(error) in NOT_ALLOWED:
            request_topics = ", ".join(repr(topic) for entry in REQUEST_FORMATS for topic in entry.topics(settings))
            return AccessError(
                f"{connection.principal(settings)} may not do that at {settings.brokers} ({error.args[0].str()}): it "
                f"takes Write on topics {request_topics} and {settings.retried_topic!r} and on transactional id "
                f"{topics.retrier_id(settings.app_id)!r}"
            )
        return self._reports.user_error(error, f"the brokers at {settings.brokers} refuse the requests", PublishError)
