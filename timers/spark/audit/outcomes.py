"""The requested timers, one row for each version, and their outcomes: requests beside firings and dead letters.

A timer is identified by the record that requested it, its *request*. Ids can be used again, so for timers with an id
each record that sets a timer is a *version*. The next record of the id in the partition closes the version: an update
or a cancel. The verdict on that record says whether it was in time. Without a verdict (its topic was deleted or is
newer), the append time decides: before the start of the due second it was in time; after that, the version may have
fired or not.

A record with a dead letter that rejects it on arrival counts as one that cannot be decoded, even if the audit can
decode it: its partition may have had another limit or another feature level.

A record with a condition counts only if its verdict does not refuse it. Without its verdict, its version may have fired
or not, and so may the version before it.

In a topic of schedules (:mod:`timers.wire.formats.schedule`) any next record of the id closes a version, also one that
cannot be decoded, and also a tombstone of the engine. A tombstone that names the version says that the version fired or
became a dead letter. A tombstone that names another version was written at the same time as this one; the engine then
appends this version again, and only the copy counts. Compaction may have deleted any record except the newest of an id,
so the outcome of a version depends only on the records after it.

A definition of a timer that repeats, a waypoint and an occurrence are versions too. A follower closes the one that it
follows, which must have been sent, or be among those that a record says are missed (:mod:`timers.spark.audit.chains`).
So only what a user sent replaces or cancels an occurrence.

A firing belongs to the version that it names, if due second and topic are those of the version too. Receivers copy
headers, so a firing that names a version on another topic is a copy."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from timers.core import operation
from timers.spark import columns
from timers.spark.audit import chains
from timers.spark.audit.chains import CHAIN, ZONE
from timers.spark.columns import schema
from timers.spark.requests import CANCEL, COPY, DEFINITION, ENDED, REJECTED, TIMER, WAYPOINT
from timers.wire import headers as h
from timers.wire.checks import PRODUCER_CLOCK_ERROR_MS
from timers.wire.dead_letter import ACCEPTED_CODES, BATCH_UNREADABLE, CODES, REPEAT_LOST
from timers.wire.formats import LOG_APPEND_TIME
from timers.wire.topics import SOURCE_PATTERN

MUST, MAY, NEVER = "must", "may", "never"
"""Whether a version fires: it must fire once its second has begun; it may fire or not; it must not fire."""

CANCELLED, REPLACED, REFUSED = operation.CANCELLED, operation.REPLACED, "refused"
NO_VERDICT = "verdict-not-visible"
UNCHANGED, FOLLOWED, MISSED = operation.UNCHANGED, "followed", "missed"
"""How a version ends: ``refused`` if its condition was not true; ``verdict-not-visible`` if it is not known; and of
timers that repeat: ``followed`` if it sends nothing, and an occurrence follows; ``missed`` if a record says so."""

_CODES_ON_ARRIVAL = sorted({*CODES} - ACCEPTED_CODES)

VERSION_COLUMNS = (
    *("request", "topic", "partition", "offset", "accepted_ms", "timestamp_type", "bytes", "record_key"),
    *("timer_id", "due_s", "callback_topic", "callback_key", "content", "parts", "code", "expected", "closed_as"),
    "chain",
)
"""Columns of a version. ``accepted_ms``: when the broker appended the request, or the time of its producer
(``timestamp_type``, as in :data:`timers.spark.columns.RECORD_SCHEMA`). ``code``: why it cannot be decoded, or null; a
request with a code has no timer. ``expected``: must, may or never. ``closed_as``: the outcome of a version that has not
fired
and need not: ``cancelled``, ``replaced``, ``refused``, ``unchanged``, ``followed``, ``missed`` or
``verdict-not-visible``. ``chain``: what is wrong with what follows it, or null."""


def without_ids(requests: DataFrame) -> DataFrame:
    """Versions of topics whose timers have no ids: each request is a version."""
    return _versions(requests.where(F.col("kind") != COPY), F.lit(MUST), F.lit(None).cast("string"))


def with_ids(
    requests: DataFrame, verdicts: DataFrame, letters: DataFrame, missed: DataFrame | None = None
) -> DataFrame:
    """Versions of topics whose timers have ids.

    Args:
        requests: in the shape of :data:`timers.spark.requests.REQUEST_SCHEMA`, with the complete history of each id.
        verdicts, letters: results of these functions.
        missed: result of :func:`timers.spark.audit.chains.missed`; None: no timer repeats.
    """
    on_arrival = letters.where(F.col("letter_code").isin(*_CODES_ON_ARRIVAL)).select(
        "request", F.lit(REJECTED).alias("as")
    )
    known = requests.where(F.col("kind") != COPY).join(on_arrival, "request", "left")
    requests = known.withColumn("kind", F.coalesce("as", "kind")).drop("as")
    rejected = _versions(requests.where(F.col("kind") == REJECTED), F.lit(MUST), F.lit(None).cast("string"))
    history = Window.partitionBy("topic", "partition", "timer_id").orderBy("offset")
    told = verdicts.select(F.col("asked_by").alias("request"), F.col("verdict").alias("own_verdict"))
    is_refused = F.coalesce(F.col("own_verdict").isin(*operation.REFUSED, UNCHANGED), F.lit(False))
    judged = requests.where(F.col("kind") != REJECTED).join(told, "request", "left")
    judged = judged.withColumn("is_refused", is_refused)
    if missed is not None:
        lost = letters.where(F.col("letter_code") == REPEAT_LOST).withColumnRenamed("request", "version")
        lost = lost.select("version", F.lit(True).alias("is_lost"))
        judged = chains.linked(judged.join(lost, "version", "left"), missed)
    else:
        nothing = {"is_followed": F.lit(False), "is_stale": F.lit(False), "sends": F.lit(True)}
        none = {"fault": F.lit(None).cast("string"), "sent_due_s": F.lit(None), "is_lost": F.lit(False)}
        judged = judged.withColumns(nothing | none)
    refused_as = F.when(F.col("own_verdict") == UNCHANGED, UNCHANGED).otherwise(REFUSED)
    refused = _versions(judged.where(F.col("is_refused") & (F.col("kind") != CANCEL)), F.lit(NEVER), refused_as)
    stale = judged.where("is_stale").withColumn("chain", F.col("fault"))
    not_alive = refused.unionByName(_versions(stale, F.lit(NEVER), F.lit(REPLACED)))
    is_undecided = F.col("own_verdict").isNull() & (F.col("conditional") | (F.col("kind") == DEFINITION))
    closed = (
        judged.where(~F.col("is_refused") & ~F.col("is_stale"))
        .withColumn("undecided", is_undecided & ~F.col("is_followed"))
        .withColumn("closed_by", F.lead("kind").over(history))
        .withColumn("closed_ms", F.lead("timestamp_ms").over(history))
        .withColumn("verdict", F.lead("own_verdict").over(history))
        .withColumn("closed_undecided", F.lead("undecided").over(history))
        .where(F.col("kind") != CANCEL)
    )
    # The last one of a chain has no follower.
    is_last_missed = F.col("is_last") & (F.col("missed") > 0) if missed is not None else F.lit(False)
    is_over = F.col("is_followed") | F.coalesce((F.col("kind") == WAYPOINT) & F.col("is_last"), F.lit(False))
    is_over |= F.coalesce(is_last_missed, F.lit(False))
    sends = (F.col("kind") == TIMER) & F.coalesce("sends", ~is_last_missed, F.lit(True))
    in_time = F.col("closed_ms") < F.col("due_s") * 1000
    expected = (
        F.when(is_over, F.when(sends, MUST).otherwise(NEVER))
        .when(F.col("undecided") | F.coalesce(F.col("closed_undecided"), F.lit(False)), MAY)
        .when(F.col("closed_by").isNull(), MUST)
        .when(F.col("is_lost") & (F.col("closed_by") == CANCEL), MAY)  # the engine ends it when it has been sent
        .when(F.col("verdict").isin(operation.CANCELLED, operation.REPLACED), NEVER)
        .when(F.col("verdict").isin(operation.ALREADY_FIRED, operation.UNKNOWN, operation.SET), MUST)
        .when(in_time, NEVER)
        .otherwise(MAY)
    )
    closed_as = (
        F.when(is_over & ~sends, F.when(F.col("kind") == TIMER, MISSED).otherwise(FOLLOWED))
        .when(F.col("undecided") | F.coalesce(F.col("closed_undecided"), F.lit(False)), NO_VERDICT)
        .when(F.col("closed_by") == CANCEL, CANCELLED)
        .when(F.col("closed_by").isNotNull(), REPLACED)
    )
    # What was sent and has no follower is a fault; before it was sent, the chain is whole.
    has_end = F.col("is_followed") | F.coalesce("is_last", F.lit(False)) | F.col("closed_by").isNotNull()
    unfollowed = F.col("follows").isNotNull() & ~has_end
    chain = F.coalesce("fault", F.when(unfollowed, CHAIN))
    closed = closed.withColumns({"chain": chain, "due_s": F.coalesce("sent_due_s", "due_s")})
    return _versions(closed, expected, closed_as).unionByName(not_alive).unionByName(rejected)


def of_schedules(requests: DataFrame) -> DataFrame:
    """Versions of topics of schedules.

    Args:
        requests: in the shape of :data:`timers.spark.requests.REQUEST_SCHEMA`, with the remaining history of each id.
    """
    id = ("topic", "partition", "timer_id")
    history = Window.partitionBy(*id).orderBy("offset")
    alike = Window.partitionBy(*id, "due_s", "callback_topic", "bytes")
    left = requests.where(F.col("kind") == ENDED).select("request", F.lit(True).alias("left")).distinct()
    history_of_timers = (
        requests.where(F.col("timer_id").isNotNull())
        .withColumn("closed_by", F.lead("kind").over(history))
        .withColumn("closed_ms", F.lead("timestamp_ms").over(history))
        .where(F.col("kind") == TIMER)
        .withColumn("last_alike", F.max("offset").over(alike))
        .join(left, "request", "left")
        .fillna(False, ["left"])
    )
    superseded = F.coalesce(F.col("closed_by") == ENDED, F.lit(False)) & ~F.col("left")
    by_users = F.col("closed_by").isin(CANCEL, TIMER, REJECTED)
    in_time = F.col("closed_ms") + PRODUCER_CLOCK_ERROR_MS < F.col("due_s") * 1000
    expected = F.when(by_users & in_time, NEVER).when(by_users & ~F.col("left"), MAY).otherwise(MUST)
    closed_as = F.when(F.col("closed_by") == CANCEL, CANCELLED).when(by_users, REPLACED)
    alive = history_of_timers.where(~(superseded & (F.col("last_alike") > F.col("offset"))))
    rejected = _versions(requests.where(F.col("kind") == REJECTED), F.lit(MUST), F.lit(None).cast("string"))
    return _versions(alive, expected, closed_as).unionByName(rejected)


def _versions(requests: DataFrame, expected: Column, closed_as: Column) -> DataFrame:
    named = {"accepted_ms": F.col("timestamp_ms"), "expected": expected, "closed_as": closed_as}
    if "chain" not in requests.columns:
        named["chain"] = F.lit(None).cast("string")
    return requests.withColumns(named).select(*VERSION_COLUMNS)


FIRED, DEAD_LETTERED, PENDING, COLD, LOST = "fired", "dead-lettered", "pending", "cold", "lost"
UNDECIDED = "undecided"
"""Statuses, besides ``cancelled``, ``replaced`` and ``refused``. ``cold``: pending in the cold tier.
``undecided``: what would show its outcome is not visible; ``why`` says why (:mod:`timers.spark.audit.gaps`)."""

STATUSES = (
    *(FIRED, DEAD_LETTERED, CANCELLED, REPLACED, REFUSED, UNCHANGED, FOLLOWED, MISSED),
    *(PENDING, COLD, UNDECIDED, LOST),
)

DUPLICATE, EARLY, REVOKED, UNASKED = "duplicate", "early", "revoked", "unasked"
ALTERED, SLOW, TOO_OLD = "altered", "slow", "older-than-request"
FAULTS = {
    LOST: "overdue, but neither fired nor dead-lettered, cancelled or replaced",
    DUPLICATE: "fired more than once, or fired and dead-lettered",
    EARLY: "fired before the start of the due second",
    REVOKED: "fired although a verdict says that it was cancelled, replaced or refused",
    UNASKED: "fired, but a committed reader sees no request for it",
    ALTERED: "fired with another key, value or header than was requested, or without the time of its tick",
    SLOW: "fired later than --max-lag allows",
    TOO_OLD: "the callback was appended before its request",
    CHAIN: "of a timer that repeats: what follows is missing or doubled, or leaves out an occurrence",
    ZONE: "of a timer that repeats: the zone data of this audit name other seconds than those of the worker did",
}
"""Fault -> what it means."""

PLACE_COLUMNS = ["request", "due_s", "callback_topic"]
"""Columns that requests and firings share."""

OUTCOME_COLUMNS = (
    *("request", "topic", "partition", "offset", "accepted_ms", "bytes", "timer_id", "due_s", "callback_topic"),
    *("code", "status", "why", "faults", "firings", "letters", "letter_code", "moved", "fired_ms", "append_ms"),
    *("lag_ms", "cold", "record_key", "callback_key", "altered"),
)
"""``firings`` and ``letters``: numbers of them. ``fired_ms`` and ``append_ms``: the earliest. ``lag_ms``: from the
start of the due second, or from acceptance if that was later, to ``append_ms`` (``fired_ms`` if the callback topic has
the producer's time); null for timers that were on the retry topic (``moved``). ``cold``: the timer is in the cold tier.
``record_key`` and ``callback_key``: keys of the request and of its callback, for lost timers only. ``altered``: what is
not as requested, and both hashes. A row without
``status`` is a firing that belongs to no request that was read; its ``request`` is the one that it names."""


@dataclass(frozen=True)
class Moment:
    """The time that an audit refers to, and what counts as a fault."""

    as_of_ms: int
    """The audit reads all records up to this time, and perhaps newer ones."""
    grace_s: int
    """A timer that is overdue by at most this many seconds counts as pending."""
    max_lag_s: int | None = None
    """A larger lag is a fault; None: no lag is."""
    clocks_ms: int = 0
    """How much the clocks of two brokers may differ."""
    doubt: str = ""
    """Why the time is not known, and ``as_of_ms`` is the earliest that it may be; empty if it is known."""


def outcomes(
    versions: DataFrame,
    letters: DataFrame,
    moved: DataFrame,
    firings: DataFrame,
    moment: Moment,
    waiting: DataFrame | None = None,
) -> DataFrame:
    """The outcome of each version (:data:`VERSION_COLUMNS`), and the firings (:data:`FIRING`) that belong to none.

    Args:
        letters, moved: results of these functions.
        waiting: requests that are in the cold tier: ``request``; None without a cold tier.

    Returns:
        In the shape of :data:`OUTCOME_COLUMNS`.
    """
    known = versions.withColumn("known", F.lit(True))
    known = known.join(letters, "request", "left").join(moved, "request", "left").fillna(0, ["letters"])
    if waiting is None:
        known = known.withColumn("cold", F.lit(False))
    else:
        known = known.join(waiting.withColumn("cold", F.lit(True)), "request", "left").fillna(False, ["cold"])
    fired = firings.groupBy(*PLACE_COLUMNS).agg(
        F.count(F.lit(1)).alias("found"),
        F.min("fired_ms").alias("fired_ms"),
        F.min("append_ms").alias("append_ms"),
        F.min("content").alias("least_content"),
        F.max("content").alias("largest_content"),
        F.min_by("parts", "content").alias("least_parts"),
        F.max_by("parts", "content").alias("largest_parts"),
        F.max(F.col("fired_ms").isNull()).alias("is_untimed"),
        F.min("timer_id").alias("fired_id"),
    )
    joined = known.join(fired, PLACE_COLUMNS, "full").withColumn("timer_id", F.coalesce("timer_id", "fired_id"))
    return (
        joined.withColumn("firings", F.coalesce("found", F.lit(0)))
        .withColumn("moved", F.col("wait_s").isNotNull())
        .withColumn("status", _status(moment))
        .withColumn("lag_ms", F.when(F.col("status") == FIRED, _seen_ms() - _start_ms()))
        .withColumn("faults", _faults(moment))
        .withColumn("altered", F.when(F.array_contains("faults", ALTERED), _what_differs()))
        .withColumn("lag_ms", F.when(~F.col("moved"), F.col("lag_ms")))
        .withColumns({name: F.when(F.col("status") == LOST, F.col(name)) for name in ("record_key", "callback_key")})
        .withColumn("why", F.when(F.col("status") == UNDECIDED, F.col("closed_as")))
        .select(*OUTCOME_COLUMNS)
    )


def _status(moment: Moment) -> Column:
    accepted_s = F.ceil(F.col("accepted_ms") / 1000)
    expected_s = F.greatest("due_s", accepted_s, "wait_s")  # ignores nulls
    return (
        F.when(F.col("known").isNull(), F.lit(None))
        .when(F.col("firings") > 0, FIRED)
        .when(F.col("letters") > 0, DEAD_LETTERED)
        .when((F.col("expected") != MUST) & (F.col("closed_as") == NO_VERDICT), UNDECIDED)
        .when(F.col("expected") != MUST, F.col("closed_as"))
        .when((expected_s + moment.grace_s) * 1000 > moment.as_of_ms, F.when(F.col("cold"), COLD).otherwise(PENDING))
        .otherwise(LOST)
    )


def _faults(moment: Moment) -> Column:
    start_ms = F.col("due_s") * 1000
    # The tick and the callback may have been appended by two brokers.
    early = (F.col("fired_ms") < start_ms) | (F.col("append_ms") + moment.clocks_ms < start_ms)
    altered = (F.col("least_content") != F.col("content")) | (F.col("largest_content") != F.col("content"))
    # The tick of an untimed callback cannot be compared with the due second.
    altered |= F.coalesce("is_untimed", F.lit(False))
    slow = F.lit(False) if moment.max_lag_s is None else F.col("lag_ms") > moment.max_lag_s * 1000
    matched = F.col("status").isNotNull()  # the request of an unmatched firing may be out of scope
    fired = F.col("status") == FIRED
    return F.array_compact(
        F.array(
            F.when(F.col("status") == LOST, LOST),
            F.when(matched & (F.col("firings") + F.col("letters") > 1), DUPLICATE),
            F.when(fired & early, EARLY),
            F.when(fired & (F.col("expected") == NEVER), REVOKED),
            F.when(fired & altered, ALTERED),
            F.when(fired & slow, SLOW),
            F.when(fired & _is_older_than_request(moment), TOO_OLD),
            F.when(~F.col("status").isin(PENDING, LOST), F.col("chain")),
        )
    )


def _what_differs() -> Column:
    """What a callback has that its request does not have, and both hashes."""
    is_least = F.col("least_content") != F.col("content")
    found, seen = (
        F.when(is_least, F.col(f"least_{name}")).otherwise(F.col(f"largest_{name}")) for name in ("parts", "content")
    )
    names = {"key": 2, "value": 1, "header": 0}
    differs = [
        F.when(columns.part(found, place) != columns.part(F.col("parts"), place), name) for name, place in names.items()
    ]
    hashes = [F.lower(F.hex(each)) for each in (F.col("content"), seen)]
    which = F.coalesce(F.nullif(F.concat_ws(", ", *differs), F.lit("")), F.lit("a part that is not known"))
    what = F.concat(which, F.lit(": "), hashes[0], F.lit(" in the request, "), hashes[1])
    is_other = seen != F.col("content")
    return F.concat_ws("; ", F.when(is_other, what), F.when(F.col("is_untimed"), "the time of its tick"))


def _is_older_than_request(moment: Moment) -> Column:
    """Condition: the callback was appended before its request, even if the clocks differ."""
    by_brokers = F.col("append_ms").isNotNull() & (F.col("timestamp_type") == LOG_APPEND_TIME)
    tolerance_ms = F.when(by_brokers, moment.clocks_ms).otherwise(PRODUCER_CLOCK_ERROR_MS)
    return _seen_ms() + tolerance_ms < F.col("accepted_ms")


def _seen_ms() -> Column:
    return F.coalesce("append_ms", "fired_ms")


def _start_ms() -> Column:
    """Start of the second at which the timer was to fire."""
    return F.greatest(F.col("due_s") * 1000, F.col("accepted_ms"), F.col("wait_s") * 1000)


FIRING = schema(
    "request string, timer_id string, due_s bigint, callback_topic string, fired_ms bigint, append_ms bigint, "
    "position string, content bigint, parts bigint"
)
"""A fired message. ``request`` is the header ``timer-source``, or else ``timer-id``. ``due_s`` is null if ``timer-id``
or a valid ``timer-due`` is missing: such a message belongs to no request. ``fired_ms`` is the time of the tick,
``append_ms`` is null if the topic has the producer's time, ``position`` is the name of the record, ``content``
and ``parts`` its hashes (as in :data:`timers.spark.requests.REQUEST_SCHEMA`)."""


_LETTER_HEADERS = (h.TIMER_ERROR, h.TIMER_ERROR_MESSAGE, h.TIMER_SOURCE)
"""The last headers of a dead letter."""


_RECORD = ("topic", "partition", "offset", "timestamp_ms", "timestamp_type")
"""Columns of a record of an output that are kept."""


def firings(records: DataFrame, request_topic: str) -> DataFrame:
    """The fired messages among the records of callback topics, which may have other records too: :data:`FIRING`."""
    return firings_of(firing_records(records, request_topic))


def firing_records(records: DataFrame, request_topic: str) -> DataFrame:
    """The fired messages among the records of callback topics: of each its place, ``request``, ``timer_id``, ``due_s``,
    ``fired_ms``, ``content`` and ``parts``, as in :data:`FIRING`."""
    sent = F.col("topic"), F.col("key"), F.col("value"), request_topic
    return records.select(
        *_RECORD,
        F.coalesce(columns.header_text(h.TIMER_SOURCE), columns.timer_id()).alias("request"),
        columns.timer_id().alias("timer_id"),
        F.when(columns.header(h.TIMER_ID).isNotNull(), columns.timer_due()).alias("due_s"),
        columns.timer_fired().alias("fired_ms"),
        columns.content(*sent).alias("content"),
        columns.parts(*sent).alias("parts"),
    ).where("timer_id is not null or fired_ms is not null")


def firings_of(records: DataFrame) -> DataFrame:
    """Results of :func:`firing_records`, as :data:`FIRING`."""
    append_ms = F.when(F.col("timestamp_type") == LOG_APPEND_TIME, F.col("timestamp_ms")).alias("append_ms")
    place = columns.source().alias("position")
    found = F.col("topic").alias("callback_topic")
    return records.select("request", "timer_id", "due_s", found, "fired_ms", append_ms, place, "content", "parts")


def letters(records: DataFrame) -> DataFrame:
    """Dead letters by request: ``request``, ``letters`` (number of them), ``letter_code`` (of one of them).

    ``request`` is null for all records that are no dead letters, as :func:`timers.wire.dead_letter.decode` sees them.
    Those of batches that cannot be read are left out: no request is known of them.
    """
    return letters_of(letter_records(records))


def letter_records(records: DataFrame) -> DataFrame:
    """Of each record of the dead letter topic its place, ``request`` and ``code``, which are null if it is no dead
    letter; without those of batches that cannot be read."""
    last = F.transform(F.slice("headers", -len(_LETTER_HEADERS), len(_LETTER_HEADERS)), lambda each: each["key"])
    is_letter = (F.size("headers") >= len(_LETTER_HEADERS)) & (last == F.array(*map(F.lit, _LETTER_HEADERS)))
    named = records.select(
        *_RECORD,
        F.when(is_letter, columns.header_text(h.TIMER_SOURCE)).alias("request"),
        F.when(is_letter, columns.header_text(h.TIMER_ERROR)).alias("code"),
    )
    return named.where(F.col("code").isNull() | (F.col("code") != BATCH_UNREADABLE))


def letters_of(records: DataFrame) -> DataFrame:
    """Results of :func:`letter_records`, by request."""
    return records.groupBy("request").agg(F.count(F.lit(1)).alias("letters"), F.min("code").alias("letter_code"))


def verdicts(records: DataFrame) -> DataFrame:
    """Verdicts on cancels and updates: ``asked_by`` (the record of the cancel or update), ``verdict``."""
    return verdicts_of(verdict_records(records))


def verdict_records(records: DataFrame) -> DataFrame:
    """Of each verdict its place, ``request`` (the record that it is about), ``code`` (the verdict), ``timer_id``, and
    ``due_s`` of the timer that had this id before."""
    text = F.col("value").cast("string")
    return records.select(
        *_RECORD,
        columns.header_text(h.TIMER_SOURCE).alias("request"),
        F.get_json_object(text, "$.verdict").alias("code"),
        F.get_json_object(text, "$.id").alias("timer_id"),
        F.get_json_object(text, "$.due").try_cast("bigint").alias("due_s"),
    ).where("request is not null")


def verdicts_of(records: DataFrame) -> DataFrame:
    """Results of :func:`verdict_records`, as :func:`verdicts` returns them."""
    return records.groupBy(F.col("request").alias("asked_by")).agg(F.min("code").alias("verdict"))


def moved(requests: DataFrame) -> DataFrame:
    """Timers that the engine moved to the retry topic, whose requests are given: ``request`` (the original request),
    ``wait_s`` (the last second to which it was postponed)."""
    return requests.where(F.col("kind") == TIMER).groupBy("request").agg(F.max("wait_s").alias("wait_s"))


SLOT = ["timer_id", "due_s", "callback_topic"]


def names_no_request() -> Column:
    """Condition: a firing (:data:`FIRING`) has only an id."""
    return (F.col("request") == F.col("timer_id")) & ~F.col("timer_id").rlike(rf"^{SOURCE_PATTERN}\z")


def with_requests(firings: DataFrame, versions: DataFrame, letters: DataFrame) -> DataFrame:
    """The firings, each with the request that it is assigned to, if there is one.

    Other engines may write only ``timer-id``. Such a firing belongs to a version with its ``timer-id``, ``timer-due``
    and topic: its *slot*. If an id was set several times for one slot, the firings are assigned in their order: first
    to versions that must fire, in the order of the log, last to versions that must not.

    Args:
        versions: of timers with ids.
    """
    timers = versions.where(F.col("timer_id").isNotNull()).join(letters, "request", "left")
    order = (
        F.when((F.col("expected") == MUST) & F.col("letters").isNull(), 0)
        .when(F.col("expected") == MAY, 1)
        .when(F.col("expected") == MUST, 2)
        .otherwise(3)
    )
    slot = Window.partitionBy(*SLOT)
    ranked = timers.select(
        *SLOT,
        F.col("request").alias("version"),
        F.row_number().over(slot.orderBy(order, "offset")).alias("rank"),
        F.count(F.lit(1)).over(slot).alias("versions_in_slot"),
    )
    named = firings.where(~names_no_request())
    at = F.coalesce("append_ms", "fired_ms")
    numbered = firings.where(names_no_request()).withColumn("number", F.row_number().over(slot.orderBy(at, "position")))
    # Surplus firings belong to the first version.
    mine = F.when(F.col("number") <= F.col("versions_in_slot"), F.col("number")).otherwise(1)
    found = numbered.join(ranked, SLOT, "left").where(F.col("rank").isNull() | (F.col("rank") == mine))
    assigned = found.withColumn("request", F.coalesce("version", "request")).select(firings.columns)
    return named.unionByName(assigned)


def without_compacted(firings: DataFrame, schedules: DataFrame) -> DataFrame:
    """Firings without those of schedules that compaction deleted and that were set again for the same slot.

    Such a schedule fired before its present version was written, within the accuracy of a producer's clock.
    """
    since = schedules.groupBy(*SLOT).agg((F.min("accepted_ms") - PRODUCER_CLOCK_ERROR_MS).alias("since_ms"))
    is_compacted = names_no_request() & (F.col("fired_ms") < F.col("since_ms"))
    known = firings.join(since, SLOT, "left").where(~F.coalesce(is_compacted, F.lit(False)))
    return known.select(firings.columns)
