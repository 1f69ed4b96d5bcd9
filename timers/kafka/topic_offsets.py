"""First and last offsets of topics as committed readers see them, by offset and by time."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing, suppress
from time import monotonic, sleep
from typing import Any, NamedTuple

from confluent_kafka import (
    OFFSET_INVALID,
    TIMESTAMP_CREATE_TIME,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from timers.errors import TimersError
from timers.kafka import connection
from timers.kafka.clients import admin_client, span_reader
from timers.kafka.error_codes import MOVING, NO_TOPIC, UNREACHABLE, code_of
from timers.kafka.records import read
from timers.kafka.topic_admin import configs, identity
from timers.process.config.settings import Settings
from timers.wire.checks import PRODUCER_CLOCK_ERROR_MS
from timers.wire.topics import partition_name

OFFSETS_TIMEOUT_S = 30.0
"""How long a leader that moves, or does not answer, is waited for."""

Offsets = dict[str, dict[int, int]]
"""Topic -> partition -> offset."""

_POLL_S = 0.5

_SKIP_S = 3.0

_MOST_NAMED = 5

_MOVING = MOVING | NO_TOPIC
"""A topic that has just been made is not known to all brokers at once. One that is deleted meanwhile is left out."""

_AWAY = _MOVING | UNREACHABLE


class NewestRecord(NamedTuple):
    """The newest record of a partition."""

    broker: int
    """Id of the broker that leads the partition."""
    append_ms: int


class RemainingOffsets(NamedTuple):
    """The part of a range of offsets that topics still have."""

    starts: Offsets
    """Without topics and partitions that do not exist any more. At most the end."""
    ends: Offsets
    deleted: int
    """Number of offsets of the range that are deleted."""


logger = logging.getLogger(__name__)

_NO_LIST = "the list of topics cannot be read"


class TopicOffsets:
    """The topics that exist, and their offsets. Joins no group and commits nothing.

    A topic that is deleted while a method asks is missing in its result, and does not exist from then on.

    Args:
        timeout_s: how long each method may wait for leaders.
        skips_leaderless: return what is known: the offsets of partitions whose leaders do not answer within ``skip_s``
            are left out, if other leaders answer.
        skip_s: by default 3 s, in which a leader moves if its broker was stopped in order.

    Attributes:
        unknown: (topic, partition) -> why its offsets were left out. They are not asked for again.

    Raises:
        TimersError: no broker answers or accepts the login. The methods raise it too.
    """

    def __init__(
        self,
        settings: Settings,
        timeout_s: float = OFFSETS_TIMEOUT_S,
        *,
        skips_leaderless: bool = False,
        skip_s: float | None = None,
    ) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._skips_leaderless = skips_leaderless
        self._skip_s = _SKIP_S if skip_s is None else skip_s
        self._has_listed = False
        self.unknown: dict[tuple[str, int], str] = {}
        self._reports = connection.ErrorReports(settings)
        self._admin = admin_client(settings, self._reports)
        with self._reports.explained(_NO_LIST):
            found = connection.metadata(self._admin, self._reports, timeout_s)
        self._partitions = _partitions_of(found)
        self._leaders = {name: topic.partitions for name, topic in found.topics.items()}
        self.brokers = len(found.brokers)

    def existing(self, topics: Iterable[str]) -> list[str]:
        """Those of ``topics`` that exist, sorted."""
        return sorted({topic for topic in topics if topic in self._partitions})

    def all(self) -> list[str]:
        """Every topic that this user may describe, without Kafka's own."""
        return sorted(topic for topic in self._partitions if not topic.startswith("__"))

    def partitions(self, topic: str) -> list[int]:
        """Partitions of a topic that exists, sorted."""
        return self._partitions[topic]

    def by_leader(self, topics: Iterable[str]) -> dict[int, list[tuple[str, int]]]:
        """Id of a broker -> the partitions of these topics that it leads; -1: those without a leader."""
        found: dict[int, list[tuple[str, int]]] = {}
        for topic in self.existing(topics):
            for number, partition in sorted(self._leaders[topic].items()):
                found.setdefault(partition.leader, []).append((topic, number))
        return found

    def id_of(self, topic: str) -> bytes:
        """The id that the cluster gave a topic; empty if it does not exist."""
        with self._reports.explained(_NO_LIST):
            found = identity(self._admin, topic, connection.CALL_TIMEOUT_S)
        return b"" if found is None else found.id

    def starts(self, topics: Iterable[str]) -> Offsets:
        """First offset of each partition that retention has not deleted."""
        return self._offsets_at(topics, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def ends(self, topics: Iterable[str]) -> Offsets:
        """Last stable offset of each partition: committed readers stop before the oldest open transaction."""
        return self._offsets_at(topics, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def high_watermarks(self, topics: Iterable[str]) -> Offsets:
        """End of each partition with the records of open transactions."""
        return self._offsets_at(topics, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)  # type: ignore[no-untyped-call]

    def settled(self, high_watermarks: Offsets, timeout_s: float) -> Offsets:
        """Ends up to ``high_watermarks`` for committed readers, when the transactions that were open then have ended.

        A partition whose end is still smaller after ``timeout_s`` has records of a transaction that is still open.
        """
        deadline = monotonic() + timeout_s
        while True:
            stable = self.ends(high_watermarks)
            ends = {
                topic: {p: min(stable[topic][p], high) for p, high in of.items()}
                for topic, of in high_watermarks.items()
                if topic in stable
            }
            if ends == high_watermarks or monotonic() > deadline:
                return ends
            sleep(_POLL_S)

    def remaining(self, starts: Offsets) -> RemainingOffsets:
        """What committed readers can read from ``starts`` on."""
        first, ends = self.starts(starts), self.ends(starts)
        kept = {
            topic: {p: min(max(start, first[topic][p]), ends[topic][p]) for p, start in of.items() if p in ends[topic]}
            for topic, of in starts.items()
            if topic in ends
        }
        deleted = sum(max(0, first[topic][p] - starts[topic][p]) for topic, of in kept.items() for p in of)
        return RemainingOffsets(kept, {topic: {p: ends[topic][p] for p in of} for topic, of in kept.items()}, deleted)

    def newest_append_ms(self, topic: str) -> dict[int, NewestRecord]:
        """Partition -> the newest record of a topic.

        Without partitions that have no record or no leader. Empty if producers set the times of the topic, if it does
        not exist, or if this user may not read its configuration.
        """
        with self._reports.explained(_NO_LIST):
            config = configs(self._admin, self.existing([topic]), OFFSETS_TIMEOUT_S, skip_denied=True).get(topic, {})
            if config.get("message.timestamp.type") != "LogAppendTime":
                return {}
            found = connection.metadata(self._admin, self._reports, self._timeout_s).topics[topic].partitions
        newest = self._listed([topic], OffsetSpec.max_timestamp(), IsolationLevel.READ_UNCOMMITTED)  # type: ignore[no-untyped-call]
        return {
            partition: NewestRecord(found[partition].leader, int(each.timestamp))
            for (_, partition), each in newest.items()
            if each.offset >= 0 and partition in found and found[partition].leader >= 0
        }

    def at_time(self, topics: Iterable[str], time_ms: int) -> Offsets:
        """Offset of the first record with this time or a later one; the end if there is none."""
        names = list(topics)
        ends = self.ends(names)
        found = self._offsets_at(names, OffsetSpec.for_timestamp(time_ms))
        return {
            topic: {p: min(offset, ends[topic][p]) if offset >= 0 else ends[topic][p] for p, offset in offsets.items()}
            for topic, offsets in found.items()
        }

    def _offsets_at(
        self, topics: Iterable[str], spec: OffsetSpec, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> Offsets:
        names = self.existing(topics)
        listed = self._listed(names, spec, isolation)
        offsets: Offsets = {topic: {} for topic in self.existing(names)}
        for (topic, partition), found in listed.items():
            if topic in offsets:
                offsets[topic][partition] = found.offset
        return offsets

    def _listed(
        self, topics: Iterable[str], spec: OffsetSpec, isolation: IsolationLevel
    ) -> Mapping[tuple[str, int], Any]:
        """(topic, partition) -> the offset and the timestamp that a broker lists for each existing partition."""
        wanted = {TopicPartition(topic, p): spec for topic in self.existing(topics) for p in self._partitions[topic]}
        wanted = {place: spec for place in wanted if (place.topic, place.partition) not in self.unknown}
        listed: dict[tuple[str, int], Any] = {}
        begun = monotonic()
        while wanted:
            waited_s = monotonic() - begun
            until_s = self._skip_s if self._skips_leaderless and waited_s < self._skip_s else self._timeout_s
            # A question stays with the leader to which it was sent, also if another one is elected. Later questions
            # wait longer, because a leader may be slow.
            left_s = max(_POLL_S, min(until_s - waited_s, max(_SKIP_S, waited_s / 2)))
            futures = self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=left_s)
            failed, give_up = {}, connection.give_up_at(left_s)
            for where, future in futures.items():
                try:
                    found = connection.answer(future, give_up)
                    if found.offset == OFFSET_INVALID:  # librdkafka 2.16 gives this offset if the leader did not answer
                        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
                    listed[where.topic, where.partition] = found
                except KafkaException as error:
                    if code_of(error) not in _AWAY:
                        raise self._user_error(error, where.topic) from error
                    failed[where] = error
            waited_s = monotonic() - begun
            if failed and (waited_s > self._timeout_s or (waited_s > self._skip_s and self._may_skip(listed, failed))):
                self._give_up(failed, is_answered=bool(listed))
                break
            if failed:
                sleep(_POLL_S)
                # The client asks the old leader until its metadata is refreshed.
                with suppress(KafkaException):
                    self._forget_deleted(connection.metadata(self._admin, self._reports, min(left_s, _SKIP_S)))
            wanted = {place: spec for place in failed if place.partition in self._partitions.get(place.topic, ())}
        self._has_listed = self._has_listed or bool(listed)
        return listed

    def _forget_deleted(self, metadata: Any) -> None:
        found = _partitions_of(metadata)
        self._partitions = {
            name: [p for p in known if p in found[name]] for name, known in self._partitions.items() if name in found
        }

    def _may_skip(self, listed: Mapping[tuple[str, int], Any], failed: Mapping[TopicPartition, KafkaException]) -> bool:
        """Whether the brokers can be reached, so that only some leaders are away. If all are away, a broker may be
        starting again, which is waited for."""
        is_moving = any(code_of(error) in _MOVING for error in failed.values())
        return self._skips_leaderless and (bool(listed) or (self._has_listed and is_moving))

    def _give_up(self, failed: Mapping[TopicPartition, KafkaException], *, is_answered: bool) -> None:
        """Note the partitions without an answer.

        Args:
            is_answered: whether other partitions have answered, so that the brokers can be reached.

        Raises:
            TimersError: all partitions are needed, or no broker answers.
        """
        away = [where for where, error in failed.items() if code_of(error) in _MOVING or is_answered]
        if not away:
            where, error = next(iter(failed.items()))
            raise self._user_error(error, where.topic) from error
        self.unknown |= {(where.topic, where.partition): "its leader does not answer" for where in failed}
        if not self._skips_leaderless:
            self.check_known({where.topic for where in away})

    def check_known(self, topics: Collection[str]) -> None:
        """Check that no offsets of some topics were left out.

        Raises:
            TimersError: some were.
        """
        missing = [partition_name(*place) for place in sorted(self.unknown) if place[0] in topics]
        if missing:
            raise TimersError(f"the leader of {', '.join(missing[:_MOST_NAMED])} does not answer")

    def whole_since_ms(
        self, topics: Iterable[str], as_of_ms: int, within: Collection[int] | None = None
    ) -> dict[str, dict[int, int]]:
        """Time since which each partition has all records; 0 if its offsets show no deletion.

        It is the time of the first record if records before it were deleted, and a minute more if producers set the
        time. In a compacted topic any record may be missing that is older than ``min.compaction.lag.ms``. A topic
        whose configuration this user may not read counts as not compacted.

        Args:
            as_of_ms: time of a partition that has lost all records.
            within: only these partitions. Those of them whose first record cannot be read are left out.
        """
        starts = self.starts(topics)
        ends = self.ends(starts)
        names = list(ends)
        since = {topic: dict.fromkeys(starts[topic].keys() & ends[topic].keys(), 0) for topic in names}
        if within is not None:
            since = {topic: {partition: 0 for partition in of if partition in within} for topic, of in since.items()}
        with self._reports.explained(_NO_LIST):
            found = configs(self._admin, names, OFFSETS_TIMEOUT_S, skip_denied=True)
        for topic, config in found.items():
            if "compact" in config["cleanup.policy"]:
                from_ms = max(0, as_of_ms - int(config["min.compaction.lag.ms"]))
                since[topic] = dict.fromkeys(since[topic], from_ms)
        for topic in names:
            for partition, since_ms in [*since[topic].items()]:
                if (start := starts[topic][partition]) == 0:
                    continue
                try:
                    first_ms = self.first_ms(topic, partition, start, ends[topic][partition])
                except TimersError as error:
                    if within is None:
                        raise
                    logger.warning("what partition %d of %s has lost is not known: %s", partition, topic, error)
                    del since[topic][partition]
                else:
                    since[topic][partition] = max(since_ms, as_of_ms if first_ms is None else first_ms)
        return since

    def first_ms(
        self, topic: str, partition: int, start: int, end: int, clocks_ms: int = PRODUCER_CLOCK_ERROR_MS
    ) -> int | None:
        """Timestamp of the first committed record between two offsets, in epoch milliseconds; None without one.

        Args:
            clocks_ms: added if producers set the time.
        """
        failed = f"topic {topic!r} cannot be read"
        with closing(span_reader(self._settings, self._reports)) as consumer, self._reports.explained(failed):
            first = next(read(consumer, topic, partition, start, end, timeout_s=OFFSETS_TIMEOUT_S), None)
        if first is None:
            return None
        kind, time_ms = first.timestamp()
        return int(time_ms) + (clocks_ms if kind == TIMESTAMP_CREATE_TIME else 0)

    def _user_error(self, error: KafkaException, topic: str) -> TimersError:
        return self._reports.user_error(error, f"topic {topic!r} cannot be read")


def _partitions_of(metadata: Any) -> dict[str, list[int]]:
    return {name: sorted(topic.partitions) for name, topic in metadata.topics.items()}
