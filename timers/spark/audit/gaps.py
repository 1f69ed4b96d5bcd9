"""Which requests an audit judges, what of them it cannot see, and which outputs belong to none of them.

A request that is not visible (its topic does not exist, or it was deleted, or is behind an open transaction) makes the
whole audit undecided (:class:`Reason`). If a callback or a dead letter may be among the records that are not visible,
its timer is undecided instead of lost. Only the partition counts to which this record goes, and only if it could have
been written when records are missing there.

A callback is *unasked* if the log of its request topic shows that no request asked for it: the record that it names is
not there, is no timer, or asks the same topic for another second. The end of a log is where the topic ended for a
committed reader when the audit began, not the end of ``--to`` or ``--range``: no engine can have read a request at or
after it, because the ends of callback topics were asked for before.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import or_
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from timers.core.progress import Progress
from timers.core.timer import TopicPartition
from timers.errors import SettingsError
from timers.kafka.topic_offsets import Offsets, TopicOffsets
from timers.spark.audit.outcomes import LOST, NO_VERDICT, PENDING, UNASKED, UNDECIDED, names_no_request
from timers.spark.columns import batchwise
from timers.spark.requests import TIMER
from timers.wire.key_partition import partitions_for
from timers.wire.topics import SOURCE_PATTERN, partition_name

OUTPUT_MARGIN_MS = 60_000
"""Outputs are read from this long before the first request on, because their times may come from another clock."""

Ranges: TypeAlias = Mapping[str, Mapping[int, range]]
"""Topic -> partition -> range of offsets."""


def inside(ranges: Ranges, topic: Column, partition: Column, offset: Column) -> Column:
    """Condition: a record is inside the ranges. ``partition`` may be a number or its digits.

    The expression has one term for each topic, however many partitions a topic has.
    """
    number = partition.try_cast("int")
    is_number = partition.cast("string") == number.cast("string")

    def is_in(name: str, of: Mapping[int, range]) -> Column:
        bounds = [((f"{of[p].start}L", f"{of[p].stop}L") if p in of else ("null", "null")) for p in range(max(of) + 1)]
        first, end = (
            F.get(F.expr(f"cast(array({', '.join(each)}) as array<bigint>)"), number)
            for each in zip(*bounds, strict=True)
        )
        return F.coalesce((topic == name) & is_number & (offset >= first) & (offset < end), F.lit(False))

    return reduce(or_, (is_in(name, of) for name, of in ranges.items() if of), F.lit(False))


def ranges_between(starts: Offsets, ends: Offsets) -> Ranges:
    """The ranges from ``starts`` to ``ends``, for the partitions of ``starts``."""
    return {
        topic: {partition: range(offset, ends[topic][partition]) for partition, offset in partitions.items()}
        for topic, partitions in starts.items()
    }


def before(ends: Offsets) -> Ranges:
    """The ranges of all offsets below ``ends``."""
    return {topic: {partition: range(end) for partition, end in of.items()} for topic, of in ends.items()}


@dataclass(frozen=True)
class Span:
    """Offsets of request topics: which records are read, and which are in scope."""

    starts: Offsets
    ends: Offsets
    scope_ends: Offsets
    """Requests at or after these offsets are not in scope. They are read because they may replace or cancel earlier
    ones."""


@dataclass(frozen=True)
class Scope:
    """Bounds for the requests of an audit. Without bounds, all requests are in scope."""

    from_ms: int | None = None
    """Accepted at this time or later."""
    to_ms: int | None = None
    """Accepted before this time."""
    ranges: Ranges = field(default_factory=dict)
    """The only requests in scope of the topics named here. Other topics are in scope as a whole."""

    def span(
        self, topics: TopicOffsets, request_topics: Collection[str], ends: Offsets, whole: Collection[str]
    ) -> Span:
        """The offsets to read: those of ``whole`` topics to their ends, also if the scope ends earlier."""
        starts = topics.starts(request_topics) if self.from_ms is None else topics.at_time(request_topics, self.from_ms)
        scope_ends = dict(ends) if self.to_ms is None else topics.at_time(request_topics, self.to_ms)
        for topic, partitions in self.ranges.items():
            if topic not in starts or not partitions.keys() <= starts[topic].keys():
                raise SettingsError(
                    f"--range names {topic!r} with partitions {sorted(partitions)}: this request topic does not exist, "
                    f"or it has fewer partitions (existing: {', '.join(request_topics) or 'none'})"
                )
            starts[topic] = {p: max(starts[topic][p], part.start) for p, part in partitions.items()}
            scope_ends[topic] = {p: min(scope_ends[topic][p], part.stop) for p, part in partitions.items()}
        read_ends = {
            topic: {p: ends[topic][p] if topic in whole else max(scope_ends[topic][p], of[p]) for p in of}
            for topic, of in starts.items()
        }
        return Span(starts, read_ends, scope_ends)


NO_TOPIC, RECORDS_DELETED, OPEN_TRANSACTION, NO_LETTERS, MOVED, HELD = (
    "no-such-topic",
    "records-deleted",
    "open-transaction",
    "dead-letters-not-visible",
    "moved",
    "held",
)
MEANING = {
    NO_TOPIC: "neither fired nor dead-lettered, and the callback topic does not exist or may not be described",
    RECORDS_DELETED: (
        "not found, and the partition of the callback has lost records of that time to retention or deletion"
    ),
    OPEN_TRANSACTION: (
        "not found, and the partition of the callback, or the retry topic, has records of an open transaction"
    ),
    NO_LETTERS: "not found, and dead letters of that time are deleted or behind an open transaction",
    MOVED: "not found, and what was pending of its partition was moved to another app (`timers export --move`)",
    HELD: "moved to the retry topic, where timers of its callback topic are held: perhaps this one too",
    NO_VERDICT: "not found, and the verdict on its condition is deleted or not written yet",
}


class Reason(NamedTuple):
    """Why requests that the audit was to judge are not visible."""

    code: str
    text: str


class Gap(NamedTuple):
    """Missing records of a partition."""

    until_ms: int
    """All records with this time or a later one are visible."""
    why: str


@dataclass(frozen=True)
class Gaps:
    """Where callbacks and dead letters of lost timers may be invisible."""

    topics: Mapping[str, tuple[int, Mapping[int, Gap]]]
    """Topic that exists -> number of its partitions, and the gaps of those that have one."""
    letter_topic: str
    retries: Gap | None
    """That of the retry topic."""
    as_of_ms: int
    """Until when a topic that does not exist has no records."""
    moved: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Partition -> what was pending of the requests below this offset was moved to another app."""
    progress: Mapping[TopicPartition, Progress] = field(default_factory=dict)
    """Partition -> progress of its machine, if it has holds."""
    retry_topic: str = ""
    knows_keys: bool = True
    """Whether timers have their keys. Without them, each partition of a topic may be that of a record."""

    def is_held(self, timer: Timer) -> bool:
        """Whether the callback topic is paused or noisy, and the engine holds the timer [I33]."""
        target, progress = timer.callback_topic, self.progress.get((timer.topic, timer.partition))
        if target is None or progress is None or timer.due_s is None or timer.moved:
            return False
        # The offset of a promoted copy is not known here.
        key = timer.due_s, progress.next_offset - 1 if timer.cold else timer.offset
        return progress.is_past(key) and progress.hold_of(key, target) is not None

    def why(self, timer: Timer) -> str | None:
        """Why the outcome of a lost timer is not known; None if the timer is lost."""
        if timer.offset < self.moved.get((timer.topic, timer.partition), 0):
            return MOVED
        holds = (each.holds.by_target for tp, each in self.progress.items() if tp[0] == self.retry_topic)
        if timer.moved and any(timer.callback_topic in each for each in holds):
            return HELD
        could_be_ms = max((timer.due_s or 0) * 1000, timer.accepted_ms)
        letters = self._gap(self.letter_topic, timer.record_key, timer.partition, timer.moved)
        possible = (
            self._gap(timer.callback_topic, timer.callback_key, timer.offset, timer.moved),
            self.retries,
            letters and letters._replace(why=NO_LETTERS),
        )
        return next((gap.why for gap in possible if gap is not None and gap.until_ms > could_be_ms), None)

    def _gap(self, topic: str | None, key: bytes | None, number: int, moved: bool) -> Gap | None:
        """The gap of the partition to which a record goes.

        A record without a key goes to the partition that follows from its number. After the retry topic, this number is
        not known.
        """
        if topic is None:
            return None
        if topic not in self.topics:
            return Gap(self.as_of_ms, NO_TOPIC)
        count, gaps = self.topics[topic]
        if key is None and (moved or not self.knows_keys):
            return max(gaps.values(), default=None)
        return gaps.get(partitions_for([key], [number], count)[0]) if gaps else None


class Timer(NamedTuple):
    """A lost timer, with columns of :data:`timers.spark.audit.outcomes.OUTCOME_COLUMNS`."""

    topic: str
    callback_topic: str | None
    callback_key: bytes | None
    offset: int
    moved: bool
    record_key: bytes | None
    partition: int
    due_s: int | None
    accepted_ms: int
    cold: bool


def find(
    topics: TopicOffsets,
    callback_topics: Iterable[str],
    letter_topic: str,
    retry_topic: str,
    *,
    ends: Offsets,
    high_watermarks: Offsets,
    as_of_ms: int,
    moved: Mapping[TopicPartition, int] = MappingProxyType({}),
    progress: Mapping[TopicPartition, Progress] = MappingProxyType({}),
) -> Gaps:
    """Ask the brokers where callbacks and dead letters of lost timers may be invisible.

    Args:
        ends: offsets up to which the topics were read.
        high_watermarks: offsets up to which they had records.
        moved, progress: as those of :class:`Gaps`.
    """
    existing = topics.existing([*callback_topics, letter_topic])
    since = topics.whole_since_ms(existing, as_of_ms)

    def gaps_of(topic: str) -> dict[int, Gap]:
        open_ = _behind(topic, ends, high_watermarks)
        deleted = {p: Gap(since_ms, RECORDS_DELETED) for p, since_ms in since.get(topic, {}).items() if since_ms}
        return deleted | {p: Gap(as_of_ms, OPEN_TRANSACTION) for p in open_}

    return Gaps(
        topics={topic: (len(topics.partitions(topic)), gaps_of(topic)) for topic in existing},
        letter_topic=letter_topic,
        retries=Gap(as_of_ms, OPEN_TRANSACTION) if _behind(retry_topic, ends, high_watermarks) else None,
        as_of_ms=as_of_ms,
        moved=moved,
        progress=progress,
        retry_topic=retry_topic,
    )


def _behind(topic: str, ends: Offsets, high_watermarks: Offsets) -> list[int]:
    """Partitions of a topic that have records of open transactions."""
    of = ends.get(topic, {})
    return [partition for partition, end in of.items() if end < high_watermarks[topic][partition]]


def decide(outcomes: DataFrame, gaps: Gaps) -> DataFrame:
    """Outcomes in which a lost timer is pending if it is held, and undecided if its callback or dead letter may be
    invisible. Only lost timers go to Python."""
    is_lost = F.col("status").eqNullSafe(LOST)
    decided = outcomes.where(is_lost).mapInArrow(batchwise(partial(_decided, gaps=gaps)), outcomes.schema)
    return outcomes.where(~is_lost).unionByName(decided)


def _decided(batch: pa.RecordBatch, gaps: Gaps) -> pa.RecordBatch:
    columns: dict[str, Any] = dict(zip(batch.schema.names, batch.columns, strict=True))
    timers = list(map(Timer._make, zip(*(columns[name].to_pylist() for name in Timer._fields), strict=True)))
    held = [gaps.is_held(timer) for timer in timers]
    reasons = [None if is_held else gaps.why(timer) for timer, is_held in zip(timers, held, strict=True)]
    statuses = [
        PENDING if is_held else LOST if why is None else UNDECIDED for is_held, why in zip(held, reasons, strict=True)
    ]
    columns["why"], columns["status"] = reasons, statuses
    columns["faults"] = [[LOST] if status == LOST else [] for status in statuses]
    arrays = [pa.array(columns[field.name], field.type) for field in batch.schema]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


# ---- requests -------------------------------------------------------------------------------------------------------


def missing_topics(topics: TopicOffsets, request_topics: Iterable[str]) -> Iterator[Reason]:
    for topic in sorted({*request_topics} - {*topics.existing(request_topics)}):
        yield Reason(
            NO_TOPIC,
            f"the request topic {topic!r} does not exist, or this user may not describe it: check the name "
            "(`timers formats` shows the setting of each topic)",
        )


def unused_patterns(patterns: Iterable[str], requests: DataFrame) -> Iterator[Reason]:
    """Reasons for patterns that match the ``callback_topic`` of no request: an audit of them judges nothing."""
    for pattern in patterns:
        if requests.where(matches([pattern])).isEmpty():
            yield Reason(
                NO_TOPIC,
                f"--callback-topic {pattern!r} matches the callback topic of no request that was read: check the name, "
                "and --from",
            )


def deleted_requests(
    scope: Scope,
    span: Span,
    starts: Offsets,
    topics: Iterable[str],
    begins: Container[TopicPartition] = (),
    unknown: Mapping[TopicPartition, str] = MappingProxyType({}),
) -> Iterator[Reason]:
    """Reasons for partitions that have lost requests of the scope, in topics in which a deleted request is missing.

    Args:
        starts: first offsets that the request topics still contain.
        begins: partitions with an opening balance; ``unknown`` says why others have none.
    """
    for topic in topics:
        for partition, start in starts.get(topic, {}).items():
            asked = scope.ranges.get(topic, {}).get(partition)
            first = span.starts.get(topic, {}).get(partition)
            if (topic, partition) in begins:
                continue
            if start > 0 and first is not None and first <= start and (asked is None or asked.start < start):
                why = f", and {unknown[topic, partition]}" if (topic, partition) in unknown else ""
                yield Reason(
                    RECORDS_DELETED,
                    f"the requests of {partition_name(topic, partition)} before offset {start:,} are deleted{why}: "
                    "audit those after it with --from",
                )


def matches(patterns: Iterable[str]) -> Column:
    """Condition: the whole name of the callback topic matches one of the patterns."""
    return F.col("callback_topic").rlike(rf"^({expression_of(patterns)})\z")


def expression_of(patterns: Iterable[str]) -> str:
    """Regular expression of patterns of callback topics, for Java and Python; of none, that of all topics."""
    return "|".join(pattern.replace(".", "[.]").replace("*", ".*") for pattern in patterns) or ".*"


def open_requests(scope: Scope, span: Span, high_watermarks: Offsets) -> Iterator[Reason]:
    """Reasons for partitions that have records of the scope behind an open transaction."""
    for topic, ends in span.scope_ends.items():
        for partition in _behind(topic, span.ends, high_watermarks):
            end, high = span.ends[topic][partition], high_watermarks[topic][partition]
            asked = scope.ranges.get(topic, {}).get(partition)
            if partition in ends and ends[partition] >= end and (asked is None or asked.stop > end):
                yield Reason(
                    OPEN_TRANSACTION,
                    f"{partition_name(topic, partition)} has {high - end:,} records from offset {end:,} on that are "
                    "behind an open transaction: audit again when it has ended",
                )


COPY, OTHER_TOPIC, NOT_IN_SCOPE = "copy", "other-topic", "not-in-scope"
NO_SOURCE, INCOMPLETE, NO_REQUEST, GONE = "no-source", "incomplete", "no-request", "canary-gone"

CALLBACKS, LETTERS, RETRIES, CANARIES = "callbacks", "dead letters", "timers on the retry topic", "canaries"
"""What is looked at."""

UNPLACED = {
    COPY: "name a request that asks for another callback topic (a receiver has copied the callback)",
    OTHER_TOPIC: "name a record of a topic that this audit does not read as a request topic",
    NOT_IN_SCOPE: "name a request that this audit does not judge, or that retention or compaction has deleted",
    NO_SOURCE: "have only an id that no request in scope has, or name no record",
    INCOMPLETE: "lack headers that the engine writes, or have them with another form",
    NO_REQUEST: "name a record of a request topic that is not there",
    GONE: "cannot be judged, because their topic keeps callbacks for an hour",
}


class Unplaced(NamedTuple):
    """A number of outputs that are not judged, the reason, and the request or timer that one of them names."""

    what: str
    reason: str
    records: int
    example: str | None


class Log(NamedTuple):
    """The request topics of an audit."""

    ends: Ranges
    """All offsets before the end of each log."""
    read: Ranges
    """The offsets that were read, of the topics that brokers do not compact."""


def unplaced_callbacks(outcomes: DataFrame, requests: DataFrame, log: Log) -> DataFrame:
    """The callbacks that belong to no version, each with its ``reason``, which is :data:`UNASKED` if it is a fault.
    ``requests``: all that were read, without the retry topic."""
    asked = requests.where(F.col("kind") == TIMER).select(
        "request", F.col("callback_topic").alias("asked_topic"), F.col("due_s").alias("asked_s")
    )
    reason = (
        F.when(F.col("due_s").isNull(), INCOMPLETE)
        .when(F.col("asked_topic") != F.col("callback_topic"), COPY)
        .when(F.col("asked_s") == F.col("due_s"), NOT_IN_SCOPE)
        .when(F.col("asked_topic").isNotNull(), UNASKED)
        .when(names_no_request(), NO_SOURCE)
        .otherwise(_reason(log, UNASKED))
    )
    unmatched = outcomes.where(F.col("status").isNull()).join(asked, "request", "left")
    return unmatched.withColumn("reason", reason).select(*outcomes.columns, "reason")


def unplaced_others(outputs: DataFrame, requests: DataFrame, log: Log) -> DataFrame:
    """Outputs that are no callbacks and name no request that was read, each with its ``reason``.

    Args:
        outputs: ``what``, ``request`` (null if they lack a header), ``records`` (number of them).
    """
    unmatched = outputs.join(requests.select("request"), "request", "left_anti")
    return unmatched.withColumn(
        "reason", F.when(F.col("request").isNull(), INCOMPLETE).otherwise(_reason(log, NO_REQUEST))
    )


def count_unplaced_callbacks(callbacks: DataFrame) -> list[Unplaced]:
    """The callbacks that are not judged (results of :func:`unplaced_callbacks`), by reason."""
    named = {"what": F.lit(CALLBACKS), "records": F.col("firings"), "example": F.col("request")}
    return count_unplaced(callbacks.withColumns(named))


def count_unplaced(outputs: DataFrame) -> list[Unplaced]:
    """The outputs (``what``, ``reason``, ``records``, ``example``) that are not judged, by reason."""
    numbers = F.sum("records"), F.min("example")
    rows = outputs.where(F.col("reason") != UNASKED).groupBy("what", "reason").agg(*numbers)
    return [Unplaced(*row) for row in rows.orderBy("what", "reason").collect()]


def _reason(log: Log, missing: str) -> Column:
    """Why an output is not judged whose request was not read; ``missing`` if the log shows that there is none."""
    topic, name = F.substring_index("request", "/", 1), F.split(F.substring_index("request", "~", 1), "/")
    # That of a log of the history may have a number (timers.spark.audit.anew).
    is_known = F.coalesce(topic.isin(list(log.ends)), F.lit(False))
    plain = F.when(is_known, F.regexp_replace("request", "^([^@/]*)@[0-9]+/", "$1/")).otherwise(F.col("request"))
    # The engine writes numbers without leading zeros.
    is_name = plain.rlike(rf"^{SOURCE_PATTERN}\z") & ~plain.rlike("/0[0-9]")
    offset = F.when(is_name, F.get(name, F.lit(2)).try_cast("bigint"))
    place = topic, F.get(name, F.lit(1)), offset
    was_not_read = inside(log.ends, *place) & ~inside(log.read, *place)
    return (
        F.when(is_known, F.when(was_not_read, NOT_IN_SCOPE).otherwise(missing))
        .when(F.coalesce(is_name, F.lit(False)), OTHER_TOPIC)
        .otherwise(NO_SOURCE)
    )
