"""The tables of the history of timers: what the topics of an app said, and what became of each timer.

Two Delta tables in one directory::

    events   a row for each record of the topics, and where the job has read to: only appended to
    timers   a row for each timer that is over. What comes later of a timer changes its row

``timers`` is a function of ``events``. Nothing here uses Kafka: transforms take and return DataFrames.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date
from functools import partial, reduce
from typing import Any, NamedTuple, TypeAlias, TypeVar

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from timers.errors import SettingsError, SparkError
from timers.process.clock import Clock
from timers.process.counted import counted
from timers.spark import jvm
from timers.spark.audit import chains, outcomes
from timers.spark.audit.evidence import Evidence, Facts, RequestTopics
from timers.spark.audit.outcomes import Moment
from timers.spark.columns import schema
from timers.spark.requests import DEFINITION, REJECTED, REQUEST_SCHEMA, TIMER, WAYPOINT
from timers.spark.session import having
from timers.spark.storage import KNOWN_LAYOUT, LAYOUT_PROPERTY, Cut, Kept, properties_of, retried, table_at
from timers.wire.topics import SOURCE_PATTERN

T = TypeVar("T")

REQUEST, CALLBACK, LETTER, VERDICT, MISSED, COPY = "request", "callback", "letter", "verdict", "missed", "copy"
POSITION, GAP, ACCEPTED, MADE, OUTPUT = "position", "gap", "accepted", "made", "output"

EVENT = schema(
    "event string, batch bigint, due_day date, due_s bigint, topic string, partition int, offset bigint, log int, "
    "timestamp_ms bigint, timestamp_type int, request string, timer_id string, kind string, code string, "
    "callback_topic string, wait_s bigint, attempt int, fired_ms bigint, bytes bigint, content bigint, parts bigint, "
    "conditional boolean, nominal_s bigint, decided_s bigint, follows bigint, version string, is_last boolean, "
    "missed bigint, missed_last_s bigint, caller string, end bigint, topic_id string, run string, rule binary, "
    "record_key binary, callback_key binary"
)
"""A row of ``events``. ``batch`` is the number of the commit that added it.

=============  ========================================================================================================
``request``    a record of a request topic (:data:`timers.spark.requests.REQUEST_SCHEMA`), without its value
``copy``       a promoted copy; ``request`` is the cold request
``callback``   a fired message (:func:`timers.spark.audit.outcomes.firing_records`)
``letter``     a dead letter: ``request``, ``code``
``verdict``    ``request`` (of which record), ``code`` (the verdict), ``timer_id``, ``due_s``
``missed``     occurrences that are not sent (:func:`timers.spark.audit.chains.missed_records`)
``position``   where the job has read to, as ``kind``, ``request`` or ``output``: ``offset`` is the next one, ``end``
               where the topic ended at ``timestamp_ms``, with the records of open transactions. ``run`` is the process
``gap``        records from ``offset`` to ``end`` that the job could not read, and that have a time before
               ``timestamp_ms``; ``code`` says why; ``kind`` as in ``position``, null from an earlier version
``accepted``   the same columns, of a gap that an operator has accepted; without ``batch``
``made``       ``timers`` was made of all batches up to ``offset``; ``end`` is 1 if this batch has records. All records
               of before ``timestamp_ms`` are read, but those that positions show to be missing. By ``due_s`` the
               process commits again; null: it ends, or is of an earlier version
=============  ========================================================================================================

``log`` counts the logs of a partition: a topic that was made anew has the same offsets again. Of a topic of requests
it is part of the names (:mod:`timers.spark.audit.anew`)."""

TIMERS = schema(
    "due_day date, due timestamp, due_s bigint, outcome string, way string, request string, timer_id string, "
    "callback_topic string, asked timestamp, fired timestamp, appended timestamp, lag_ms bigint, firings bigint, "
    "letters bigint, code string, topic string, partition int, offset bigint, version string, nominal_s bigint, "
    "caller string, bytes bigint, content bigint, faults string, key binary"
)
"""A row of ``timers``: see docs/spark.md. ``faults`` are names with commas between them; null without any."""

NATIVE, WITH_ID, RETRIED, COLD, REPEATED = "native", "with-id", "retried", "cold", "repeated"
"""Ways of a timer. Of several, the first one counts of retried, cold, repeated and with-id."""

RECORDS_DELETED, LOG_CUT, TOPIC_MADE_ANEW = "records-deleted", "log-cut", "topic-made-anew"
"""Why records could not be read."""

_KINDS = (TIMER, DEFINITION, WAYPOINT, REJECTED)
"""Kinds of records of requests that have a row of their own."""

_TXN = "timers-history"
_CHANGES = "timers-history-changes"
"""As :data:`_TXN`, for rows that change: a batch adds timers and changes others in two commits."""
_KEEPS_KEYS_PROPERTY = "timers.history.keys"
"""Property of the table: whether it keeps keys."""

_IS_TAKEN = "ConcurrentTransaction"
"""In Delta's error if another process has written under this name since."""

_JUMP = 1_000_000_000
"""Added to the number of a batch if the table was restored."""

MOST_FILES = 256
"""A table with more files has them merged."""

_UPKEPT = "timers.history.upkept"
"""Property of a table: when it was last maintained, in epoch seconds, a slash, its bytes when it was last sorted."""

_FILE_BYTES = 128 << 20
"""Target size of merged files. Those of half the size are not rewritten."""

_UNSORTED_BYTES = 2 * _FILE_BYTES
"""A table of this size is not sorted: a reader of a day opens few files in any case."""

_HAS_ID, _OF_IDS = "old.timer_id = new.id", ("timer_id", "request")
"""The callback of another engine has its id in place of the name of its request, too."""

ERASED = "erased-"
"""Begins the name that stands for an id that was erased."""

_SMALL = 100_000
"""Rows below this number are one file."""

_OWNER = "timers.history"
"""Property of the table: the app, and the id of its cluster."""

_EARLIER_MS = 86_400_000
"""A change of an id may concern its version before, and all versions that were due in the day before it, or later."""


class Position(NamedTuple):
    """Where the job has read to in a partition."""

    offset: int
    """The next one."""
    end: int
    """Where the partition ended when the job asked, with the records of open transactions."""
    log: int
    topic_id: str
    as_of_ms: int
    """When the job asked."""


class Gap(NamedTuple):
    """Records of a partition that could not be read."""

    topic: str
    partition: int
    start: int
    end: int
    until_ms: int
    """Records with this time or a later one could be read."""
    code: str
    role: str | None = None
    """What its topic was read as, :data:`REQUEST` or :data:`OUTPUT`; None: an earlier version has found it."""
    batch: int = 0
    """Number of the commit that noted it."""
    is_accepted: bool = False
    """An operator has accepted it."""

    @property
    def offsets(self) -> str:
        """Its offsets in words. Where a topic ended that was made anew is not known."""
        return f"from {self.start:,} on" if self.code == TOPIC_MADE_ANEW else f"{self.start:,} to {self.end:,}"


Place: TypeAlias = tuple[str, str, int]
"""What a partition is read as, :data:`REQUEST` or :data:`OUTPUT`, its topic and its number. A topic may be both."""


class Known(NamedTuple):
    """What the last commits say."""

    batch: int
    """Number of the last commit; 0: there is none."""
    positions: Mapping[Place, Position]
    through: int
    """``timers`` was made of all batches up to this one."""
    as_of_ms: int
    """All records of before this time are read, but those that positions show to be missing."""
    again_s: int = 0
    """The epoch second by which the process of the last commit commits again; 0: it has ended."""


class History:
    """The tables.

    Args:
        root: their directory, a path or a URI that all executors can read and write.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._spark = spark
        self.root = root
        self.events, self.timers = (table_at(root, name) for name in ("events", "timers"))
        self._is_made_anew, self._owner = False, ""
        self._loaded: DataFrame | None = None

    def open(self, owner: str, *, keys: bool) -> bool:
        """Create ``events`` if it does not exist, and return whether the tables keep keys. A caller that needs
        ``timers`` calls :meth:`create_timers`.

        Args:
            owner: the app, and the id of its cluster.
            keys: whether new tables keep keys.

        Raises:
            SettingsError: they belong to another owner, one of them is lost, or a newer version has made them.
        """
        is_there, has_timers = (DeltaTable.isDeltaTable(self._spark, path) for path in (self.events, self.timers))
        if has_timers and not is_there:
            raise SettingsError(
                f"{self.events!r} is lost, and {self.timers!r} is not, which may have timers that the topics have "
                "forgotten: restore the first one, or move the second one to another directory"
            )
        if not is_there:
            _create(self._spark, self.events, EVENT, owner, by_event=True, keys=keys)
        properties = properties_of(self._spark, self.events)
        found = properties.get(_OWNER)
        if found != owner:
            raise SettingsError(f"the history in {self.root!r} is of {found}, and not of {owner}: name another --table")
        self._is_made_anew, self._owner = not has_timers, owner
        if has_timers:
            properties_of(self._spark, self.timers)
        return properties.get(_KEEPS_KEYS_PROPERTY) == "true"

    def create_timers(self) -> None:
        """Create ``timers`` if it did not exist when the tables were opened. The last commit must say that it is made
        of no batch: a process that is killed before the table is whole leaves nothing else that says so."""
        if self._is_made_anew:
            _create(self._spark, self.timers, TIMERS, self._owner, by_event=False)
            self._is_made_anew = False

    def exists(self) -> bool:
        """Whether there are tables."""
        return DeltaTable.isDeltaTable(self._spark, self.events)

    def read(self, *events: str) -> DataFrame:
        """The rows of some kinds, as :data:`EVENT`."""
        if self._loaded is None:  # each look at a table reads its log
            self._loaded = _whole(self._spark.read.format("delta").load(self.events))
        return self._loaded.where(F.col("event").isin(*events))

    def pin(self) -> None:
        """Read the events as they are now from here on: each look would see what others commit meanwhile."""
        (newest,) = DeltaTable.forPath(self._spark, self.events).history(1).select("version").collect()
        self._loaded = _whole(self._spark.read.format("delta").option("versionAsOf", newest.version).load(self.events))

    def known(self) -> Known:
        """What the last commit says."""
        rows = self.read(POSITION, MADE)
        last, as_of_ms = rows.agg(
            F.max("batch"), F.max(F.when(F.col("event") == MADE, F.col("timestamp_ms")))
        ).collect()[0]
        if last is None:
            return Known(0, {}, 0, 0)
        positions, through, again_s = {}, 0, 0
        for row in rows.where(F.col("batch") == last).collect():
            if row.event == MADE:
                # A commit that only notes how far all is read has nothing to be made of.
                through = last if row.offset == last - 1 and not row.end else row.offset
                again_s = row.due_s or 0
            else:
                about = row.offset, row.end, row.log, row.topic_id, row.timestamp_ms
                positions[row.kind, row.topic, row.partition] = Position(*about)
        return Known(last, positions, 0 if self._is_made_anew else through, as_of_ms or 0, again_s)

    def commit(
        self, batch: int, run: str, rows: DataFrame | None, more: Iterable[Mapping[str, Any]]
    ) -> tuple[int, dict[str, int]]:
        """Append rows in one commit. Returns its number; and the callback topics that its requests name, each with the
        time of the first of these, in ms.

        Args:
            batch: number of the commit, one more than that of the last one.
            run: this process.
            rows: with columns of :data:`EVENT`; None: no others than ``more``.
            more: rows with the names of their columns, among them all positions.

        Raises:
            SparkError: another process has appended a batch of this number.
        """
        for number in (batch, batch + _JUMP):
            said = [tuple({**row, "batch": number, "run": run}.get(name) for name in EVENT.names) for row in more]
            added = self._spark.createDataFrame(said, EVENT).coalesce(1)
            if rows is not None:
                rows = rows.withColumn("batch", F.lit(number).cast("long"))
                added = rows.unionByName(added, allowMissingColumns=True).select(EVENT.names)
            # In the order of the due seconds: a reader of a day leaves most of each file out.
            self._append(added.sortWithinPartitions("event", "due_s"), self.events, number)
            self._loaded = None
            groups = self.read(MADE, REQUEST).where(F.col("batch") >= batch).groupBy("event", "run", "callback_topic")
            found = groups.agg(F.min("timestamp_ms").alias("since_ms")).collect()
            runs = [row.run for row in found if row.event == MADE]
            if runs == [run]:
                return number, {row.callback_topic: row.since_ms for row in found if row.callback_topic is not None}
            if runs:
                break
            # Delta leaves out a batch whose number it knows: an operator has restored an older version of the table.
        raise _taken(self.root)

    def gaps(self) -> list[Gap]:
        """What could not be read, in the order in which it was found; of a log before the one that followed it."""
        columns = "topic", "partition", "offset", "end", "timestamp_ms", "code"
        rows = self.read(GAP, ACCEPTED).select(*columns, "kind", "batch", "event").collect()
        accepted = {row[: len(columns)] for row in rows if row.event == ACCEPTED}
        gaps = (Gap(*row[:-1]) for row in rows if row.event == GAP)
        found = [gap._replace(is_accepted=gap[: len(columns)] in accepted) for gap in gaps]
        return sorted(found, key=lambda gap: (gap.batch, gap.code != TOPIC_MADE_ANEW))

    def accept_gaps(self) -> list[Gap]:
        """Note that the gaps are accepted, beside a job that runs, and return those that were not accepted before."""
        new = [gap for gap in self.gaps() if not gap.is_accepted]
        said = [{**gap_row(gap), "event": ACCEPTED} for gap in new]
        if said:
            rows = self._spark.createDataFrame([tuple(map(row.get, EVENT.names)) for row in said], EVENT)
            retried(partial(rows.coalesce(1).write.format("delta").mode("append").save, self.events))
            self._loaded = None
        return new

    def named(self) -> dict[str, int]:
        """Callback topic -> time of the first request that names it, in ms."""
        asked = self.read(REQUEST).where("callback_topic is not null").groupBy("callback_topic")
        return {row[0]: row[1] for row in asked.agg(F.min("timestamp_ms")).collect()}

    def _append(self, rows: DataFrame, path: str, batch: int, transaction: str = _TXN) -> None:
        writer = rows.write.format("delta").mode("append").option("txnAppId", transaction).option("txnVersion", batch)
        writer = writer.option("mergeSchema", "true")  # a table of an earlier version gets the columns that it lacks
        retried(partial(self._committed, partial(writer.save, path)))

    def _committed(self, commit: Callable[[], T]) -> T:
        """Commit once. Raises SparkError if another process has committed under the same name since."""
        try:
            return commit()
        except jvm.ERRORS as error:
            raise _taken(self.root) if _IS_TAKEN in str(error) else error from error

    def fence(self, batch: int) -> None:
        """No process adds or changes timers of a batch up to this one any more."""
        for transaction in (_TXN, _CHANGES):
            self._append(self._spark.createDataFrame([], TIMERS), self.timers, batch, transaction)

    # ---- a row for each timer ---------------------------------------------------------------------------------------

    def make(self, since: int, through: int, topics: RequestTopics, moment: Moment) -> int:
        """Add the timers that are over by the events of some batches, and change those of which these say more. Returns
        how many rows were added or changed. To do it again has no effect.

        Args:
            since: the batch before the first one.
            moment: with a time at which nothing is overdue: what is lost is for an audit to say.
        """
        with Cut() as kept:
            new = self.read(REQUEST, CALLBACK, LETTER, VERDICT, MISSED).where(F.col("batch") > since)
            touched = kept.on_disk(self._touched(new, since, topics, kept))
            own = touched.where("is_own")
            evidence = self._evidence(touched, own, topics, moment, kept)
            rows = kept.on_disk(self._rows(evidence, own, topics))
            is_over = F.col("outcome").isNotNull()
            number, low, high, dated, count = rows.agg(
                F.count(F.lit(1)), F.min("due_s"), F.max("due_s"), F.count("due_s"), F.count_if(is_over)
            ).collect()[0]
            if not number:
                return 0
            here = self._spark.read.format("delta").load(self.timers)
            is_near = "false" if low is None else f"due_s between {low} and {high}"
            is_near += " or due_s is null" if dated < number else ""
            there = here.where(is_near).join(rows.select("request"), "request", "left_semi").select(here.columns)
            there = kept.on_disk(there)
            added, changed = rows.where(is_over), 0
            if not there.isEmpty():
                added = added.join(there.select("request"), "request", "left_anti")
                count, changed = added.count(), self._change(rows, there, is_near, through)
            if count:
                files = added.select(TIMERS.names).coalesce(1 if count < _SMALL else self._tasks)
                self._append(files.sortWithinPartitions("due_s"), self.timers, through)
            return int(count + changed)

    def _change(self, rows: DataFrame, there: DataFrame, is_near: str, through: int) -> int:
        """Change the rows that exist, and are others now; and delete those of timers that are not over any more.

        Args:
            is_near: condition on all of them, so that Delta opens only files that may have some.
            through: number of the batch.
        """
        different = F.xxhash64(*TIMERS.names)
        found = there.select("request", different.alias("hash_there"))
        others = rows.withColumn("hash_here", different).join(found, "request").where("hash_here != hash_there")
        count = others.count()
        if count:
            columns: dict[str, str | Column] = {name: F.col(f"new.{name}") for name in TIMERS.names}
            table = DeltaTable.forPath(self._spark, self.timers).alias("old")
            is_it = f"old.request = new.request and ({is_near.replace('due_s', 'old.due_s')})"
            merge = table.merge(others.select(TIMERS.names).alias("new"), is_it).whenMatchedDelete(
                "new.outcome is null"
            )
            write = "spark.databricks.delta.write"
            # In the same commit: an old process that wakes after a new one has begun changes nothing.
            with having(self._spark, {f"{write}.txnAppId": _CHANGES, f"{write}.txnVersion": through}):
                self._committed(merge.whenMatchedUpdate(set=columns).execute)
        return count

    @property
    def _tasks(self) -> int:
        return self._spark.sparkContext.defaultParallelism

    def _touched(self, new: DataFrame, since: int, topics: RequestTopics, kept: Kept) -> DataFrame:
        """The requests that new events are about, as :data:`EVENT`; of ids all of them. ``is_own``: what became of it
        may have changed."""
        plain = self._asked(topics).where(~has_id(topics))
        about = new.where(F.col("event").isin(CALLBACK, LETTER) & F.col("request").isNotNull())
        about = kept.on_disk(about.select("event", "request", "due_s", "timer_id").distinct())
        is_letter, offset = F.col("event") == LETTER, F.regexp_extract("request", SOURCE_PATTERN, 3)
        low, high, first, last = about.agg(
            *(each(F.when(~is_letter, F.col("due_s"))) for each in (F.min, F.max)),
            *(each(F.when(is_letter, offset.try_cast("bigint"))) for each in (F.min, F.max)),
        ).collect()[0]
        parts = [] if not _named(topics) else [self._with_ids(new, since, topics)]
        fired = about.where(~is_letter).select("request", "due_s")
        is_fired = F.lit(False) if low is None else F.col("due_s").between(low, high)
        mine = plain.where(is_fired).join(fired, ["request", "due_s"], "left_semi")
        parts.append(mine.withColumn("is_own", F.lit(True)))
        if first is not None:
            named = plain.where(F.col("offset").between(first, last))
            named = named.join(about.where(is_letter).select("request"), "request", "left_semi")
            named = named.join(fired, ["request", "due_s"], "left_anti")
            parts.append(named.withColumn("is_own", F.lit(True)))
        return reduce(DataFrame.unionByName, (part.select(*EVENT.names, "is_own") for part in parts))

    def _asked(self, topics: RequestTopics) -> DataFrame:
        """The requests, without those of the retry topic, which are of timers that have a request."""
        return self.read(REQUEST).where(F.col("topic") != topics.retry)

    def _with_ids(self, new: DataFrame, since: int, topics: RequestTopics) -> DataFrame:
        """All requests of the ids that new events are about. ``is_own``: what became of it may have changed."""
        asked = self._asked(topics).where(has_id(topics))
        is_fired = (F.col("event") == CALLBACK) & (
            (F.col("request") != F.col("timer_id")) | ~F.col("timer_id").rlike(rf"^{SOURCE_PATTERN}\z")
        )
        is_asked = (F.col("event") == REQUEST) & has_id(topics)
        about = F.col("event").isin(VERDICT, MISSED) | is_asked | is_fired
        letters = new.where((F.col("event") == LETTER) & F.col("request").isNotNull()).select("request", "timestamp_ms")
        dead = asked.select("request", "timer_id").join(letters, "request").select("timer_id", "timestamp_ms")
        ids = new.where(about & F.col("timer_id").isNotNull()).select("timer_id", "timestamp_ms").unionByName(dead)
        ids = ids.groupBy("timer_id").agg(F.min("timestamp_ms").alias("since_ms"))
        named = new.where(F.col("event").isin(CALLBACK, LETTER, VERDICT)).select(
            "request", F.lit(True).alias("is_named")
        )
        gone = new.where(F.col("event") == MISSED).select("version", "nominal_s", F.lit(True).alias("is_missed"))
        found = asked.join(ids, "timer_id").join(named.distinct(), "request", "left")
        found = found.join(gone.distinct(), ["version", "nominal_s"], "left")
        is_new = (F.col("batch") > since) | F.coalesce("is_named", "is_missed", F.lit(False))
        by_offset = Window.partitionBy("topic", "partition", "timer_id").orderBy("offset")
        is_before = F.coalesce(F.lead(is_new).over(by_offset), F.lit(False))
        is_near = F.coalesce(F.col("due_s") * 1000 >= F.col("since_ms") - _EARLIER_MS, F.lit(False))
        return found.withColumn("is_own", is_new | is_before | is_near)

    def _rows(self, evidence: Evidence, own: DataFrame, topics: RequestTopics) -> DataFrame:
        """A row for each request, as :data:`TIMERS`; of those that are not over, without an outcome."""
        mine = own.where(F.col("kind").isin(*_KINDS))
        copies = self.read(COPY).select("request", F.lit(True).alias("was_cold")).join(mine, "request", "left_semi")
        told = mine.select(
            *("request", "due_day", "version", "nominal_s", "content", "caller"),
            F.col("callback_key").alias("key"),
            F.col("rule").isNotNull().alias("repeats"),
        ).join(copies.distinct(), "request", "left")
        found = evidence.outcomes().where("status is not null").drop("cold")
        rows = found.join(told, "request")
        way = (
            F.when(F.col("moved"), RETRIED)
            .when(F.col("was_cold"), COLD)
            .when(F.col("repeats"), REPEATED)
            .when(F.col("topic").isin(_named(topics)), WITH_ID)
            .otherwise(NATIVE)
        )
        times = {"asked": "accepted_ms", "fired": "fired_ms", "appended": "append_ms"}
        # Of a request that was deleted before the job began, the time is not known: it is 0.
        named = {name: F.timestamp_millis(F.nullif(F.col(column), F.lit(0))) for name, column in times.items()}
        more = {
            "due": F.timestamp_seconds("due_s"),
            "outcome": F.when(~F.col("status").isin(outcomes.PENDING, outcomes.UNDECIDED), F.col("status")),
            "way": way,
            "code": F.coalesce("letter_code", "code"),
            "faults": F.nullif(F.concat_ws(",", "faults"), F.lit("")),
        }
        return rows.withColumns({**named, **more}).select(
            *(F.col(field.name).cast(field.dataType).alias(field.name) for field in TIMERS.fields)
        )

    # ---- maintenance ------------------------------------------------------------------------------------------------

    def upkept_s(self) -> int:
        """When the tables were last maintained, or made, in epoch seconds; 0: before a version that notes it."""
        return min(self._upkept(path)[0] for path in (self.events, self.timers))

    def _upkept(self, path: str) -> tuple[int, int]:
        """When a table was last maintained, in epoch seconds, and how many bytes it had when it was last sorted."""
        at_s, _, sorted_bytes = properties_of(self._spark, path).get(_UPKEPT, "0/0").partition("/")
        return int(at_s), int(sorted_bytes)

    def merge(self, say: Callable[[str], None]) -> None:
        """Merge the small files of a table that has many files."""
        for path in (self.events, self.timers):
            (about,) = DeltaTable.forPath(self._spark, path).detail().select("numFiles").collect()
            if about.numFiles > MOST_FILES:
                self._optimize(path, say, is_sorted=False)

    def keep_up(self, say: Callable[[str], None], now_s: int) -> None:
        """Merge small files, sort all rows if the table has grown by half since it was sorted, and delete positions of
        earlier batches, and files that were replaced seven days ago. The table notes when this was done."""
        for path in (self.events, self.timers):
            table, (_, sorted_bytes) = DeltaTable.forPath(self._spark, path), self._upkept(path)
            if path == self.events:
                table.delete(F.col("event").isin(POSITION, MADE) & (F.col("batch") < self.known().batch))
            (about,) = table.detail().select("sizeInBytes").collect()
            has_grown = about.sizeInBytes > max(_UNSORTED_BYTES, sorted_bytes * 3 // 2)
            self._optimize(path, say, is_sorted=has_grown)
            table.vacuum()
            noted = f"{now_s}/{about.sizeInBytes if has_grown else sorted_bytes}"
            self._spark.sql(
                f"ALTER TABLE delta.`{path.replace('`', '``')}` SET TBLPROPERTIES ('{_UPKEPT}' = '{noted}')"
            )

    def _optimize(self, path: str, say: Callable[[str], None], *, is_sorted: bool) -> None:
        optimize = "spark.databricks.delta.optimize"
        with having(self._spark, {f"{optimize}.minFileSize": _FILE_BYTES // 2, f"{optimize}.maxFileSize": _FILE_BYTES}):
            merging = DeltaTable.forPath(self._spark, path).optimize()
            # In the order of their due seconds, a reader of a day opens few files. This writes all files anew.
            (row,) = (merging.executeZOrderBy("due_s") if is_sorted else merging.executeCompaction()).collect()
        say(f"history: {counted(row.metrics.numFilesRemoved, 'file')} of {path} merged")
        self._loaded = None

    def erase(self, batch: int, id: str | None, key: bytes | None) -> int:
        """Remove an id or a key, and the hashes of what was sent with it. Returns how many rows of ``timers`` had it.
        The rows stay, so that numbers stay true; the id is replaced with a name that nothing else has.

        Args:
            batch: number of the last commit. A job that has begun before it adds no timers any more.
        """
        self.fence(batch)
        with Cut() as kept:
            has_key = (F.col("callback_key") == F.lit(key)) | (F.col("record_key") == F.lit(key))
            names = self.read(REQUEST).where(has_key if key is not None else F.lit(False)).select("request").distinct()
            names = kept.on_disk(names)
            # In a condition of a join, since Delta notes conditions on values in the log of the table.
            said = [(id, None if key is None else bytearray(key), f"{ERASED}{uuid.uuid4().hex}")]
            erased = self._spark.createDataFrame(said, "id string, key binary, name string")
            here = self._spark.read.format("delta").load(self.timers).alias("old")
            count = here.join(erased.alias("new"), F.expr(f"{_HAS_ID} or old.key = new.key"), "left_semi").count()
            empty = {each: f"case when old.{each} = new.id then new.name else old.{each} end" for each in _OF_IDS}
            empty |= dict.fromkeys(("content", "caller"), "null")
            fired = (
                DeltaTable.forPath(self._spark, self.events)
                .alias("old")
                .merge(names.alias("new"), f"old.event = '{CALLBACK}' and old.request = new.request")
            )
            fired.whenMatchedUpdate(set={"content": "null", "parts": "null"}).execute()
            for path, keys in ((self.events, ("callback_key", "record_key")), (self.timers, ("key",))):
                is_it = " or ".join([_HAS_ID, *(f"old.{each} = new.key" for each in keys)])
                if path == self.events:
                    # Of a request that was refused, the id is in `record_key`.
                    is_it += " or old.record_key = encode(new.id, 'UTF-8')"
                merge = DeltaTable.forPath(self._spark, path).alias("old").merge(erased.alias("new"), is_it)
                columns: dict[str, str | Column] = {**empty, **dict.fromkeys(keys, "null")}
                if path == self.events:
                    columns["parts"] = "null"
                merge.whenMatchedUpdate(set=columns).execute()
        self._loaded = None
        return count

    # ---- evidence ---------------------------------------------------------------------------------------------------

    def of_day(
        self, day: date, topics: RequestTopics, moment: Moment, kept: Kept, rest: DataFrame
    ) -> tuple[Evidence, DataFrame]:
        """What is known of the timers that are due on a day, and of all of their ids and of those that callbacks of the
        day name; and their own requests (:data:`EVENT`), for the others are only there to explain these.

        Args:
            rest: requests that are not in the table (:func:`timers.spark.audit.event_rows.request_rows`).
        """
        asked = self._asked(topics).unionByName(rest.where(F.col("topic") != topics.retry), allowMissingColumns=True)
        is_that = F.col("due_day") == F.lit(day)
        own = asked.where(is_that)
        if _named(topics):
            seen = self.read(CALLBACK).where(is_that).where("request != timer_id").select("timer_id")
            names = own.where(has_id(topics)).select("timer_id").unionByName(seen).distinct()
            of_ids = asked.where(has_id(topics)).join(names, "timer_id", "left_semi").select(EVENT.names)
            requests = own.where(~has_id(topics)).unionByName(of_ids)
        else:
            requests = own
        return self._evidence(kept.on_disk(requests), own, topics, moment, kept, is_that), own

    def requests_of(self, names: DataFrame) -> DataFrame:
        """The requests of some names (``request``), as :data:`timers.spark.requests.REQUEST_SCHEMA`."""
        offset = F.regexp_extract("request", SOURCE_PATTERN, 3).try_cast("bigint")
        first, last = names.agg(F.min(offset), F.max(offset)).collect()[0]
        is_near = F.lit(False) if first is None else F.col("offset").between(first, last)
        asked = self.read(REQUEST).where(is_near).join(names.distinct(), "request", "left_semi")
        return asked.select(REQUEST_SCHEMA.names)

    def _evidence(
        self,
        requests: DataFrame,
        own: DataFrame,
        topics: RequestTopics,
        moment: Moment,
        kept: Kept,
        is_seen: Column | None = None,
    ) -> Evidence:
        """The outcomes of requests, of which those of an id must be complete. Those of others than ``own`` may lack
        callbacks. ``is_seen``: callbacks that count also if they name none of these requests."""
        is_repeating = (F.col("kind") == DEFINITION) | F.col("follows").isNotNull()
        is_own = F.col("is_own") if "is_own" in requests.columns else F.lit(True)
        due_s = F.when(is_own, F.col("due_s"))
        repeats, low, high = requests.agg(F.count_if(is_repeating), F.min(due_s), F.max(due_s)).collect()[0]
        named = requests.select("request").distinct()
        letters = outcomes.letters_of(self.read(LETTER).join(named, "request", "left_semi"))
        verdicts = kept.on_disk(outcomes.verdicts_of(self.read(VERDICT).join(named, "request", "left_semi")))
        missed = kept.on_disk(chains.missed_of(self.read(MISSED))) if repeats else None
        asked = requests.select(REQUEST_SCHEMA.names)
        if topics.retry:
            moved = self.read(REQUEST).where(F.col("topic") == topics.retry).join(named, "request", "left_semi")
            asked = asked.unionByName(kept.on_disk(moved.select(REQUEST_SCHEMA.names)))
        evidence = Evidence(Facts(asked, letters, verdicts, missed), topics, F.lit(True), F.lit(True), moment, kept)
        if repeats:  # the last one of those that were missed may be sent at another second than its record is for
            versions = evidence.versions().join(own.select("request"), "request", "left_semi")
            low, high = versions.agg(F.min("due_s"), F.max("due_s")).collect()[0]
        is_seen = F.lit(False) if is_seen is None else is_seen
        is_near = F.col("due_s").between(low or 0, -1 if high is None else high)
        callbacks = self.read(CALLBACK).where(is_near | is_seen)
        if _named(topics):
            named = named.unionByName(requests.select(F.col("timer_id").alias("request"))).distinct()
        callbacks = callbacks.join(named.withColumn("is_named", F.lit(True)), "request", "left")
        callbacks = callbacks.where(F.coalesce("is_named", is_seen)).drop("is_named")
        evidence.add_firings(outcomes.firings_of(callbacks), counted=False)
        return evidence


def _whole(events: DataFrame) -> DataFrame:
    """The events, also of a table that lacks a column, until the next commit adds it."""
    missing = {field.name: F.lit(None).cast(field.dataType) for field in EVENT if field.name not in events.columns}
    return events.withColumns(missing) if missing else events


def has_id(topics: RequestTopics) -> Column:
    """Condition on a request: other requests of its id may close it."""
    return F.col("topic").isin(_named(topics)) & F.col("timer_id").isNotNull()


def _named(topics: RequestTopics) -> list[str]:
    return [*topics.with_ids, *topics.schedules]


def position_row(place: Place, position: Position) -> dict[str, Any]:
    """A position as a row of :data:`EVENT`."""
    kind, topic, partition = place
    said = {"kind": kind, "topic": topic, "partition": partition, "offset": position.offset, "end": position.end}
    told = {"log": position.log, "topic_id": position.topic_id, "timestamp_ms": position.as_of_ms}
    return {"event": POSITION, **said, **told}


def gap_row(gap: Gap) -> dict[str, Any]:
    """A gap as a row of :data:`EVENT`."""
    place = {"topic": gap.topic, "partition": gap.partition, "offset": gap.start, "end": gap.end}
    return {"event": GAP, **place, "timestamp_ms": gap.until_ms, "code": gap.code, "kind": gap.role}


def made_anew(lacks: Iterable[Gap], topics: Collection[str]) -> dict[str, dict[int, int]]:
    """When some topics of requests were made anew: topic -> number of the commit that noted it -> time, in ms. Of gaps
    in the order of :meth:`History.gaps`. After those times that an earlier version found, the requests have the names
    that they had before: these do not count."""
    found = defaultdict[str, dict[int, int]](dict)
    for gap in lacks:
        if gap.code == TOPIC_MADE_ANEW and gap.role == REQUEST and gap.topic in topics:
            found[gap.topic][gap.batch] = gap.until_ms
    return dict(found)


def _create(
    spark: SparkSession, path: str, columns: StructType, owner: str, *, by_event: bool, keys: bool = False
) -> None:
    table = DeltaTable.createIfNotExists(spark).location(path).addColumns(columns)
    table = table.partitionedBy("event") if by_event else table
    # Not of ids and keys: they would stay in the log of the table when their rows are erased.
    indexed = "due_day,due_s,topic,partition,offset"
    table = table.property("delta.dataSkippingStatsColumns", f"{indexed},batch,timestamp_ms" if by_event else indexed)
    # Readers that do not know them would see rows that are deleted.
    table = table.property("delta.enableDeletionVectors", "false")
    table = table.property(LAYOUT_PROPERTY, str(KNOWN_LAYOUT)).property(_UPKEPT, f"{Clock().now_s():.0f}/0")
    table = table.property(_OWNER, owner)
    table.property(_KEEPS_KEYS_PROPERTY, str(keys).lower()).execute()


def _taken(root: str) -> SparkError:
    return SparkError(f"another `timers spark history` writes to {root!r}: this one ends")
