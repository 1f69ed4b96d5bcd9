"""Deletes records that no pending timer needs any more, and looks for readers that may need them.

``DeleteRecords`` is not fenced: a worker that was taken over can still send it. So a deletion follows a commit of its
machine within two seconds (:data:`WITHIN_S`), by a clock that also counts the time in which the computer sleeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress

from confluent_kafka import IsolationLevel, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, OffsetSpec

from timers.config.settings import Settings
from timers.core.timer import TopicPartition
from timers.kafka.clients import asking_admin, librdkafka, max_message_bytes, reader
from timers.kafka.error_codes import NO_GROUP, NOT_ALLOWED, code_of
from timers.kafka.own_topics import SEGMENT_MS
from timers.kafka.topic_admin import configs
from timers.kafka.topics import ids_of
from timers.kafka.transactions import Record, TransactionalWriter
from timers.wire import topics

WITHIN_S = 2.0
"""Longest time between the commit of a machine and a deletion by what it has committed."""

TIMEOUT_S = 10.0

UNSEEN = NOT_ALLOWED | NO_GROUP | {KafkaError.GROUP_AUTHORIZATION_FAILED}
"""Answers about a group that has gone, or that this worker may not see."""


class _Unwanted(Exception):
    """Ends a transaction without effect."""


class LogTrimmer:
    """Asks about logs, and deletes from them. Blocks. All methods raise KafkaException if the brokers do not answer.

    Args:
        settings: of the app.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._admin: AdminClient = asking_admin(settings)

    def ends(self, tp: TopicPartition) -> tuple[int, int]:
        """First offset of a log, and its end for committed readers."""
        return self._offset(tp, OffsetSpec.earliest()), self._offset(tp, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def first_since(self, tp: TopicPartition, append_ms: int) -> int | None:
        """The first offset of a log with a record that is not older than a time; None if all are older."""
        found = self._offset(tp, OffsetSpec.for_timestamp(append_ms))
        return None if found < 0 else found

    def _offset(self, tp: TopicPartition, what: OffsetSpec) -> int:
        place, level = Place(*tp), IsolationLevel.READ_COMMITTED
        asked = self._admin.list_offsets({place: what}, isolation_level=level, request_timeout=TIMEOUT_S)
        return int(asked[place].result().offset)

    def topic_ids(self, names: Iterable[str]) -> dict[str, bytes]:
        """The ids of those topics that exist."""
        return ids_of(self._admin, [*names], WITHIN_S)

    def delete_below(self, bounds: Mapping[TopicPartition, int], timeout_s: float) -> None:
        """Delete the records of each partition below an offset."""
        wanted = [Place(*tp, offset) for tp, offset in bounds.items()]
        options = {"request_timeout": timeout_s, "operation_timeout": timeout_s}
        for deleted in self._admin.delete_records(wanted, **options).values():
            deleted.result()

    def other_readers(self, topic: str, partitions: int, check: Callable[[], None]) -> Iterator[str]:
        """Yields what else reads a topic, as far as this worker may see it: groups, and other apps.

        Args:
            check: called before each group is asked; may raise to stop.
        """
        own, suffix = topics.snapshots(self._settings.app_id, topic), topics.snapshots("", topic)
        for name in self._admin.list_topics(timeout=TIMEOUT_S).topics:
            if name.endswith(suffix) and name != own:
                yield f"app {name.removesuffix(suffix)!r}"
        listed = self._admin.list_consumer_groups(request_timeout=TIMEOUT_S).result()
        for error in listed.errors:  # a group of this broker may read the topic, too
            raise error
        places = [Place(topic, partition) for partition in range(partitions)]
        for name in [group.group_id for group in listed.valid if group.group_id != self._settings.app_id]:
            check()
            # A consumer asks: an admin client ends the process if the coordinator moves (librdkafka's issue 5040).
            with closing(reader(librdkafka(self._settings), group_id=name)) as consumer:
                try:
                    found = consumer.committed(places, timeout=TIMEOUT_S)
                except KafkaException as error:
                    if code_of(error) in UNSEEN:
                        continue
                    raise
                if any(each.error is None and each.offset >= 0 for each in found):
                    yield f"group {name!r}"

    def segment_s(self, topic: str) -> float:
        """After how many seconds the brokers begin a new segment of a topic, when a record comes."""
        return int(configs(self._admin, [topic], TIMEOUT_S)[topic][SEGMENT_MS]) / 1000

    def roll(self, tp: TopicPartition) -> None:
        """Let the brokers begin a new segment, so that they delete the one before: write a record, and take it back.

        Brokers delete whole segments, and never the one to which they append.
        """
        transactional_id = f"{topics.transactional_id(self._settings.app_id, *tp)}-roll"
        writer = TransactionalWriter(librdkafka(self._settings), transactional_id, max_message_bytes(self._settings))
        with suppress(_Unwanted), writer.transaction() as send:
            send([Record(*tp, b"", b"", [])])
            raise _Unwanted
