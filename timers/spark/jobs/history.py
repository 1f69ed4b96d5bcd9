"""``timers spark history``: keeps what became of each timer in a table, longer than the topics do.

A *round* reads what is new of all topics, in commits of at most :data:`MAX_RECORDS` records. Each commit has the
records and where they end, so there is no checkpoint: a process that is killed goes on from the last commit. Ends of
outputs are asked for before those of requests, and requests are committed first. So a callback in the table has its
request there, or there is none.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from threading import Event
from time import monotonic

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaPlace
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from timers.core.printable import utc_text
from timers.core.progress import Progress
from timers.core.timer import TopicPartition
from timers.errors import SettingsError, SparkError
from timers.kafka import connection
from timers.kafka.clients import admin_client, librdkafka, note_offsets
from timers.kafka.progress_log import read_all
from timers.kafka.request_formats import enabled_formats
from timers.kafka.topic_offsets import Offsets, TopicOffsets
from timers.kafka.topics import Cluster, existing_topics
from timers.process.clock import Clock
from timers.process.config.settings import Settings
from timers.process.counted import counted, per_second
from timers.spark import jvm, kafka, requests
from timers.spark.audit import anew, chains, event_rows, history, outcomes
from timers.spark.audit.anew import Anew, told_apart
from timers.spark.audit.evidence import RequestTopics
from timers.spark.audit.gaps import OUTPUT_MARGIN_MS
from timers.spark.audit.history import LOG_CUT, RECORDS_DELETED, TOPIC_MADE_ANEW, Gap, History, Known, Place, Position
from timers.spark.audit.outcomes import Moment
from timers.spark.audit.reading import NO_LIMIT, read_opening
from timers.spark.columns import header_text
from timers.spark.jobs.audit import BROKERS_CLOCKS_MS, brokers_now
from timers.spark.monitoring import MAX_WORK_S, Monitor
from timers.spark.session import described, sentence_of
from timers.spark.storage import retried
from timers.wire.checks import PRODUCER_CLOCK_ERROR_MS
from timers.wire.formats.countdown import CALLER
from timers.wire.topics import history_group, partition_name

MAX_RECORDS = 1_000_000
"""Records of one commit: limits what is repeated after a crash."""

IDLE_S = 600
"""So often a round without new records notes that there were none: an audit knows the outcome of timers up to then."""

UPKEEP_S, LOOK_S = 86_400, 300
"""So often the tables are maintained, and so often the job looks whether they must be, and for small files; nothing is
read meanwhile."""

RETRY_UPKEEP_S = 3600
"""Time after which it is tried again if it failed."""

FRESH_S = 60
"""A job that runs notes after :data:`IDLE_S` and at most this time that it has read all."""

_WHY = {
    RECORDS_DELETED: "they were deleted before they were read",
    LOG_CUT: "the log has lost its end, and what was appended in its place has their offsets",
    TOPIC_MADE_ANEW: "the topic was made anew",
}
"""Why records could not be read -> the same in words."""


@dataclass(frozen=True)
class Params:
    """Parameters of the job."""

    table: str
    """Directory of the tables."""
    keys: bool = False
    """Keep the keys of callbacks and requests."""
    max_records: int = MAX_RECORDS


class Total:
    """What was added since the start of the job."""

    records = 0
    """Offsets of the topics."""
    timers = 0
    """Rows of timers that were added or changed."""


@dataclass
class _Plan:
    """What to read of some topics."""

    role: str
    """:data:`timers.spark.history.REQUEST` or :data:`timers.spark.history.OUTPUT`."""
    starts: Offsets
    ends: Offsets
    positions: dict[Place, Position]
    """Where reading begins, with the end of each partition as it was asked for."""
    gaps: list[Gap] = field(default_factory=list)
    opening: DataFrame | None = None
    """Requests that the logs do not have any more, of timers that were pending in a snapshot."""

    @property
    def size(self) -> int:
        """Number of offsets."""
        return sum(self.ends[topic][p] - start for topic, of in self.starts.items() for p, start in of.items())

    def after(self) -> dict[Place, Position]:
        """The positions after the plan."""
        return {place: each._replace(offset=self.ends[place[1]][place[2]]) for place, each in self.positions.items()}

    def split(self, most: int) -> Iterator[_Plan]:
        """Parts of at most ``most`` offsets, each with a part of each partition."""
        number = max(1, -(-self.size // most))
        low = self.starts
        for part in range(1, number + 1):
            high = {
                topic: {p: start + (self.ends[topic][p] - start) * part // number for p, start in of.items()}
                for topic, of in self.starts.items()
            }
            is_first = part == 1
            gaps, opening = (self.gaps, self.opening) if is_first else ([], None)
            yield _Plan(self.role, low, high, self.positions, gaps, opening)
            low = high


def run(
    spark: SparkSession,
    settings: Settings,
    params: Params,
    say: Callable[[str], None],
    every_s: int | None = None,
    stop: Event | None = None,
    monitor: Monitor | None = None,
) -> Total:
    """Run until ``stop`` is set, or one round, and return what was added.

    Args:
        every_s: seconds between two rounds; None: read what is there, make all days, then end.

    Raises:
        SettingsError: the table belongs to another app.
        SparkError: another process writes to the table.
        TimersError: the brokers do not answer.
    """
    stop, total = stop or Event(), Total()
    table = History(spark, params.table)
    keeps_keys = table.open(_owner(settings), keys=params.keys)
    if params.keys and not keeps_keys:
        raise SettingsError(f"the history in {params.table!r} keeps no keys: leave out --keys, or name another --table")
    params = replace(params, keys=keeps_keys)
    monitor = monitor or Monitor("history", every_s or 0)
    job = _Job(spark, settings, params, table, say, total, stop, every_s, monitor)
    next_look_s = monotonic() + LOOK_S
    monitor.upkept()
    while True:
        begun, named = monotonic(), job.named
        with described(spark, "timers history"):
            count = job.round()
        monitor.ended(count, monotonic() - begun, job.behind)
        if every_s is None and job.named == named:
            _keep_up(job, table, say, monitor)
            return total
        if monotonic() > next_look_s:
            next_look_s = monotonic() + (LOOK_S if _keep_up(job, table, say, monitor) else RETRY_UPKEEP_S)
        if stop.wait(0 if every_s is None else max(0.0, every_s - (monotonic() - begun))):
            return total


def is_kept_up(spark: SparkSession, settings: Settings, table: str, as_of_ms: int, say: Callable[[str], None]) -> bool:
    """Whether a job keeps a table up to the topics, or is at work on it: a second one would end it.

    Raises: as :meth:`History.open`; SparkError if a job is at work that has not read all for the first time.
    """
    tables = History(spark, table)
    if not tables.exists():
        return False
    tables.open(_owner(settings), keys=False)
    known = tables.known()
    if known.as_of_ms >= as_of_ms - 1000 * (IDLE_S + FRESH_S):
        return True
    if known.again_s * 1000 < as_of_ms:
        return False
    busy = f"a `timers spark history` is at work on {table!r} until {utc_text(known.again_s)} at the latest"
    if not known.as_of_ms:
        raise SparkError(f"{busy}, and has not read all that is there yet: wait for it, or start it again if it died")
    say(f"{busy}: the audit is as of {utc_text(known.as_of_ms // 1000)}. If that job died, start it again first")
    return True


def _keep_up(job: _Job, table: History, say: Callable[[str], None], monitor: Monitor) -> bool:
    """Maintain the tables if it is time, by what they note themselves: a process may run for less than a day. Returns
    whether it has succeeded."""
    now_s = int(Clock().now_s())
    try:
        if now_s < table.upkept_s() + UPKEEP_S:
            table.merge(say)
            return True
        with job.at_work():
            table.keep_up(say, now_s)
    except jvm.ERRORS as error:
        say(f"history: the tables are not maintained, and it is tried again later: {sentence_of(error)}")
        return False
    monitor.upkept()
    return True


def accept_gaps(spark: SparkSession, settings: Settings, params: Params) -> Iterator[str]:
    """Accept what could not be read, so that it makes no later audit undecided, and return a sentence for each gap.

    Raises: as :func:`erase`.
    """
    for gap in _existing(spark, settings, params).accept_gaps():
        yield described_gap(gap)


def described_gap(gap: Gap) -> str:
    """What is missing in the history, and why."""
    name = partition_name(gap.topic, gap.partition)
    return f"{name}: offsets {gap.offsets} are not in the history, because {_WHY[gap.code]}"


def _existing(spark: SparkSession, settings: Settings, params: Params) -> History:
    """The tables, which must exist."""
    table = History(spark, params.table)
    if not table.exists():
        raise SettingsError(f"there is no history in {params.table!r}: name the --table of the job")
    table.open(_owner(settings), keys=False)
    return table


def erase(spark: SparkSession, settings: Settings, params: Params, id: str | None, key: bytes | None) -> int:
    """Remove an id or a key from the tables, and return how many rows of timers had it. A job that runs ends: it may
    write the id once more.

    Raises: as :func:`run`; SettingsError also if there are no tables.
    """
    table = _existing(spark, settings, params)
    known = table.known()
    said = [history.position_row(place, each) for place, each in known.positions.items()]
    said.append({"event": history.MADE, "offset": known.through, "end": 0})
    batch, _ = table.commit(known.batch + 1, uuid.uuid4().hex, None, said)
    table.create_timers()
    return table.erase(batch, id, key)


def _owner(settings: Settings) -> str:
    return f"{settings.app_id}@{_cluster(settings).cluster_id}"


def _cluster(settings: Settings) -> Cluster:
    reports = connection.ErrorReports(settings)
    with reports.explained("the topics of the app cannot be read"):
        return existing_topics(admin_client(settings, reports), settings)


class _Job:
    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        params: Params,
        table: History,
        say: Callable[[str], None],
        total: Total,
        stop: Event,
        every_s: int | None,
        monitor: Monitor,
    ) -> None:
        self._spark, self._settings, self._params = spark, settings, params
        self._monitor = monitor
        self._table, self._say, self._total = table, say, total
        self._stop, self._every_s = stop, every_s
        self._unheld = ""
        self._progress: Mapping[TopicPartition, Progress] = {}
        self._run = uuid.uuid4().hex
        # A KeepAlive of a message holds no timer of its own, which the rules of the audit cannot express.
        self._formats = {topic: each for topic, each in enabled_formats(settings).items() if not each.has_markers}
        self._known = table.known()
        self._named = table.named()
        self._told_apart = told_apart_topics(settings)
        found = history.made_anew(table.gaps(), self._told_apart)
        self._anew = {topic: [*times.values()] for topic, times in found.items()}
        self._noted_at = -float(IDLE_S)
        self._moment = Moment(0, 0)
        # Of a process before this one that still runs, no row is added from here on.
        before = self._known.batch
        self._note(self._at_work_s if self._known.through < before else self._again_s)
        table.create_timers()
        table.fence(before)

    @property
    def _again_s(self) -> int:
        """Seconds until the next commit at the latest, if nothing takes long."""
        return max(self._every_s or 0, IDLE_S) + FRESH_S

    @property
    def _at_work_s(self) -> int:
        """Seconds that long work may take. The first run of an audit is started again if it is killed, and no audit can
        use what it has made so far: so it promises each commit for soon, and an audit waits for minutes only."""
        is_first_fill = self._every_s is None and not self._known.as_of_ms
        return self._again_s if is_first_fill else MAX_WORK_S

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Inside the block the job commits nothing for a long time, and no audit ends it."""
        self._note(MAX_WORK_S)
        try:
            with self._monitor.at_work():
                yield
        finally:
            self._note(self._again_s if self._every_s is not None else None)

    def _note(self, again_s: int | None) -> None:
        """Commit no records, but when the next commit is."""
        self._add((), {}, self._known.as_of_ms or None, again_s)

    def round(self) -> int:
        """Read what is new, bring the timers up to it, and return the number of offsets."""
        settings = self._settings
        topics = TopicOffsets(settings)
        newest = partial(topics.newest_append_ms, settings.oscillator_topic)
        own_ms = int(Clock().now_s() * 1000)
        as_of_ms, doubt = brokers_now(own_ms, newest, settings.max_clock_leap_s, self._stop.wait)
        if doubt:
            self._say(f"the time is not known: {doubt}")
        self._moment = Moment(as_of_ms=0, grace_s=0, clocks_ms=0 if topics.brokers == 1 else BROKERS_CLOCKS_MS)
        if self._known.through < self._known.batch:  # the process before this one was killed
            self._make()
        outputs = topics.existing({settings.dead_letter_topic, settings.verdict_topic, *self._named})
        highs = topics.high_watermarks(outputs)  # before those of requests: see the module
        progress = self._progress = progress_of(settings)
        asked = topics.existing(self._formats)
        requests = self._plan(topics, history.REQUEST, asked, topics.high_watermarks(asked), as_of_ms, progress)
        _name_anew(requests)
        if requests.size:
            self._hold_trimming(requests.starts)
        self._open(requests)
        plans = requests, self._plan(topics, history.OUTPUT, outputs, highs, as_of_ms, {})
        for gap in (gap for plan in plans for gap in plan.gaps):
            self._say(described_gap(gap))
        size = sum(each.size for each in plans)
        # A gap is committed in its round: the next one would find it again.
        is_idle, is_last = not size and not any(plan.gaps for plan in plans), self._every_s is None
        if is_idle and not is_last and monotonic() - self._noted_at < IDLE_S:
            return 0
        most = self._params.max_records
        *parts, rest = [plans] if size <= most else [(part,) for plan in plans for part in plan.split(most)]
        for some in parts:
            self._add(some, progress, None, self._at_work_s)
            self._hold_trimming()
        self._add(rest, progress, as_of_ms, self._again_s if size or not is_last else None)
        if is_last and size:
            self._note(None)  # the second note says that the timers are made, too
        self._noted_at = monotonic()
        self._hold_trimming()
        return size

    def _hold_trimming(self, begins: Offsets | None = None) -> None:
        """Note in a group how far requests are read, anew in each round: workers trim no log further than this.

        Args:
            begins: where the round begins to read; None: as far as the table has them. A round may take hours.
        """
        read = {place[1:]: each.offset for place, each in self._known.positions.items() if place[0] == history.REQUEST}
        read |= {(topic, p): offset for topic, of in (begins or {}).items() for p, offset in of.items()}
        places = [KafkaPlace(*tp, offset) for tp, offset in read.items()]
        group, why = history_group(self._settings.app_id), ""
        try:
            note_offsets(librdkafka(self._settings), group, places)
        except KafkaException as error:
            why = str(error.args[0])
        if why and why != self._unheld:
            self._say(
                f"the group {group!r} cannot note how far requests are read, so that workers may trim "
                f"what is not read yet: {why}"
            )
        self._unheld = why

    @property
    def behind(self) -> int:
        """Offsets that were there in the last round, and are not read: not accepted yet, or of open transactions."""
        return sum(max(0, each.end - each.offset) for each in self._known.positions.values())

    @property
    def named(self) -> frozenset[str]:
        """The callback topics that requests name."""
        return frozenset(self._named)

    # ---- positions --------------------------------------------------------------------------------------------------

    def _plan(
        self,
        topics: TopicOffsets,
        role: str,
        names: Collection[str],
        highs: Offsets,
        as_of_ms: int,
        progress: Mapping[TopicPartition, Progress],
    ) -> _Plan:
        """What to read of some topics, up to the ends that were asked for. Of requests only what their machine has
        accepted: only then their feature level and their cuts are known [I21, I28]."""
        firsts, stable = topics.starts(names), topics.ends(names)
        plan = _Plan(role, {}, {}, {})
        for topic in stable:
            id, begins = topics.id_of(topic).hex(), self._begins(topics, role, topic)
            if not id:
                continue  # it was deleted meanwhile
            for partition, first in firsts[topic].items():
                high = highs.get(topic, {}).get(partition, 0)
                end = min(stable[topic][partition], high)
                if (topic, partition) in progress:
                    end = min(end, progress[topic, partition].next_offset)
                known = self._known.positions.get((role, topic, partition))
                start, log = first, 0
                if known is None:
                    start = max(first, begins.get(partition, 0))
                    if first and start == first:
                        plan.gaps.append(self._deleted(topics, role, topic, partition, 0, first, as_of_ms))
                elif known.topic_id != id or high < known.offset:
                    log, code = known.log + 1, LOG_CUT if known.topic_id == id else TOPIC_MADE_ANEW
                    start = min(first, high) if code == TOPIC_MADE_ANEW else high
                    until_ms = as_of_ms
                    if code == TOPIC_MADE_ANEW:
                        # With a margin, the first callbacks of the new log would be of the old one.
                        clocks_ms = 0 if role == history.REQUEST else PRODUCER_CLOCK_ERROR_MS
                        first_ms = topics.first_ms(topic, partition, first, stable[topic][partition], clocks_ms)
                        until_ms = min(as_of_ms, first_ms or as_of_ms)
                    lost = known.offset if code == TOPIC_MADE_ANEW else high
                    plan.gaps.append(Gap(topic, partition, lost, known.end, until_ms, code, role))
                    if code == TOPIC_MADE_ANEW and start:
                        plan.gaps.append(self._deleted(topics, role, topic, partition, 0, start, as_of_ms))
                else:
                    start, log = max(first, known.offset), known.log
                    if first > known.offset:
                        plan.gaps.append(self._deleted(topics, role, topic, partition, known.offset, first, as_of_ms))
                # Never back: a position may be beyond what a machine that has begun since has accepted.
                end = max(start, end) if known is not None else max(first, end)
                start = min(start, end)
                plan.starts.setdefault(topic, {})[partition] = start
                plan.ends.setdefault(topic, {})[partition] = end
                plan.positions[role, topic, partition] = Position(start, high, log, id, as_of_ms)
            for of, name, partition in self._known.positions.keys() - plan.positions.keys():
                if (of, name) == (role, topic):  # the topic was made anew with fewer partitions
                    known = self._known.positions[role, topic, partition]
                    plan.gaps.append(Gap(topic, partition, known.offset, known.end, as_of_ms, TOPIC_MADE_ANEW, role))
        return plan

    def _with_new(self, plans: Collection[_Plan]) -> dict[str, list[int]]:
        """When topics were made anew, with what some plans have found, which counts for all once it is committed."""
        gaps = [gap for plan in plans if plan.role == history.REQUEST for gap in plan.gaps]
        found = {
            gap.topic: gap.until_ms for gap in gaps if gap.code == TOPIC_MADE_ANEW and gap.topic in self._told_apart
        }
        return self._anew | {topic: [*self._anew.get(topic, ()), since_ms] for topic, since_ms in found.items()}

    def _open(self, plan: _Plan) -> None:
        """Add what was pending in a snapshot of logs that are read for the first time and do not begin at 0."""
        late: Offsets = {}
        for role, topic, partition in plan.positions.keys() - self._known.positions.keys():
            if role == history.REQUEST and plan.starts[topic][partition]:
                late.setdefault(topic, {})[partition] = plan.starts[topic][partition]
        if not late:
            return
        found = read_opening(self._spark, self._settings, late, self._formats)
        plan.gaps = [gap for gap in plan.gaps if (gap.topic, gap.partition) not in found.begins]
        for begin in found.begins.values():
            name = partition_name(begin.topic, begin.partition)
            self._say(f"{name} begins at {begin.start:,}: with what was pending at {begin.offset:,}, {begin.timers:,}")
        decoded = requests.decode(found.records, self._formats, NO_LIMIT, self._settings.request_topic, self._progress)
        plan.opening = event_rows.request_rows(decoded, keys=self._params.keys)

    def _begins(self, topics: TopicOffsets, role: str, topic: str) -> dict[int, int]:
        """Where reading of a callback topic begins: a minute before the first request that names it."""
        since_ms = self._named.get(topic)
        if since_ms is None or role == history.REQUEST or (role, topic, 0) in self._known.positions:
            return {}
        return topics.at_time([topic], max(0, since_ms - OUTPUT_MARGIN_MS)).get(topic, {})

    def _deleted(
        self, topics: TopicOffsets, role: str, topic: str, partition: int, start: int, end: int, as_of_ms: int
    ) -> Gap:
        until_ms = topics.whole_since_ms([topic], as_of_ms)[topic][partition]
        return Gap(topic, partition, start, end, until_ms, RECORDS_DELETED, role)

    # ---- records ----------------------------------------------------------------------------------------------------

    def _add(
        self,
        plans: Collection[_Plan],
        progress: Mapping[TopicPartition, Progress],
        as_of_ms: int | None,
        again_s: int | None,
    ) -> None:
        """Commit the records of some plans, and bring the timers up to them.

        Args:
            as_of_ms: after this commit, all records from before this time have been read; None: that is not so yet.
            again_s: seconds until the next commit at the latest; None: there is none.
        """
        begun, known = monotonic(), self._known
        rows, positions, times = [], dict(known.positions), self._with_new(plans)
        for plan in plans:
            rows_of = self._requests if plan.role == history.REQUEST else self._outputs
            if plan.opening is not None:
                rows.append(plan.opening.withColumn("log", F.lit(0)))
            if plan.size:
                rows.append(rows_of(plan, progress, times).withColumn("log", self._log_of(plan)))
            positions |= plan.after()
            for gap in plan.gaps:
                if (plan.role, gap.topic, gap.partition) not in plan.positions:
                    del positions[plan.role, gap.topic, gap.partition]
        # A task writes a file for each kind of row.
        found = [_union(rows).coalesce(self._spark.sparkContext.defaultParallelism)] if rows else [None]
        said = [history.position_row(place, each) for place, each in positions.items()]
        said += [history.gap_row(gap) for plan in plans for gap in plan.gaps]
        made = {"event": history.MADE, "offset": known.through, "end": int(bool(rows)), "timestamp_ms": as_of_ms}
        said.append({**made, "due_s": None if again_s is None else int(Clock().now_s()) + again_s})
        batch, named = self._table.commit(self._known.batch + 1, self._run, found[0], said)
        self._anew = times
        for topic, since_ms in named.items():
            self._named[topic] = min(since_ms, self._named.get(topic, since_ms))
        self._known = known._replace(batch=batch, positions=positions, as_of_ms=as_of_ms or known.as_of_ms)
        if not rows:
            is_made = known.through == batch - 1
            self._known = self._known._replace(through=batch if is_made else known.through)
            return
        self._monitor.looked()
        size = sum(plan.size for plan in plans)
        self._total.records += size
        self._say(f"history: {counted(size, 'record')} read, {per_second(size / (monotonic() - begun))}")
        if any(plan.role == history.OUTPUT for plan in plans) or as_of_ms is not None:
            self._make()

    def _log_of(self, plan: _Plan) -> Column:
        """Number of the log of a row's partition. Mostly it is 0 for all."""
        found = F.lit(0)
        for (_, topic, partition), each in plan.positions.items():
            if each.log:
                is_it = (F.col("topic") == topic) & (F.col("partition") == partition)
                found = F.when(is_it, each.log).otherwise(found)
        return found

    def _records(self, plan: _Plan, topics: Iterable[str], progress: Mapping[TopicPartition, Progress]) -> DataFrame:
        """The records of those of ``topics`` that are in a plan."""
        passed_over = {tp: each.settings.passed_over for tp, each in progress.items()}
        tasks = self._spark.sparkContext.defaultParallelism
        names = [topic for topic in topics if topic in plan.starts]
        low, high = ({topic: offsets[topic] for topic in names} for offsets in (plan.starts, plan.ends))
        return kafka.read(self._spark, self._settings, low, high, tasks, passed_over)

    def _requests(self, plan: _Plan, progress: Mapping[TopicPartition, Progress], times: Anew) -> DataFrame:
        records = self._records(plan, plan.starts, progress)
        more = [header_text(CALLER).alias("caller")]
        topic = self._settings.request_topic
        decoded = requests.decode(records, self._formats, NO_LIMIT, topic, progress, more)
        rows = event_rows.request_rows(decoded, keys=self._params.keys)
        return told_apart(rows, times, is_asked=True)

    def _outputs(self, plan: _Plan, progress: Mapping[TopicPartition, Progress], times: Anew) -> DataFrame:
        settings = self._settings
        letter, verdict = settings.dead_letter_topic, settings.verdict_topic
        new = [topic for topic, of in plan.starts.items() if of != plan.ends[topic]]
        others = [topic for topic in new if topic not in (letter, verdict)]
        # Each part reads its topics only: Spark would read all of them for each part.
        records = self._records(plan, others, progress)
        parts = [event_rows.rows(history.CALLBACK, outcomes.firing_records(records, settings.request_topic))]
        if letter in new:
            letters = outcomes.letter_records(self._records(plan, [letter], progress))
            parts.append(event_rows.rows(history.LETTER, letters))
        if verdict in new:
            told = self._records(plan, [verdict], progress)
            parts.append(event_rows.rows(history.VERDICT, outcomes.verdict_records(told)))
            parts.append(event_rows.rows(history.MISSED, chains.missed_records(told)))
        return told_apart(_union(parts), times, is_asked=False)

    # ---- a row for each timer ---------------------------------------------------------------------------------------

    def _make(self) -> None:
        """Bring the timers up to the events."""
        begun, through = monotonic(), self._known.batch
        topics = topics_in(self._settings, self._known, self._anew)
        with self._monitor.at_work():  # this may make all timers, and nothing of it is kept if it is stopped
            count = retried(partial(self._table.make, self._known.through, through, topics, self._moment))
        self._known = self._known._replace(through=through)
        self._total.timers += count
        if count:
            rate = per_second(count / (monotonic() - begun))
            self._say(f"history: {counted(count, 'timer')} over or changed, {rate}")


def _name_anew(plan: _Plan) -> None:
    """Give the gaps of a topic that was made anew one time, that of its first record: all its partitions were."""
    found: dict[str, int] = {}
    for gap in plan.gaps:
        if gap.code == TOPIC_MADE_ANEW:
            found[gap.topic] = min(gap.until_ms, found.get(gap.topic, gap.until_ms))
    plan.gaps = [gap._replace(until_ms=found.get(gap.topic, gap.until_ms)) for gap in plan.gaps]


def progress_of(settings: Settings) -> dict[TopicPartition, Progress]:
    """The progress of the app; empty before its first worker."""
    cluster = _cluster(settings)
    return read_all(settings, cluster) if settings.progress_topic in cluster.partitions else {}


def told_apart_topics(settings: Settings) -> set[str]:
    """The topics whose requests have other names after they were made anew. Those of the retry topic have the names of
    others."""
    return {topic for of in request_topics(settings)[:3] for topic in of}


def topics_in(settings: Settings, known: Known, times: Anew) -> RequestTopics:
    """The topics of requests that have records in the table, by their names there: each kind of them costs time."""
    asked = (place for place, each in known.positions.items() if each.end and place[0] == history.REQUEST)
    read = {topic for _, topic, _ in asked} | times.keys()
    plain, with_ids, schedules = (
        [anew.named(topic, number) for topic in of if topic in read for number in range(len(times.get(topic, ())) + 1)]
        for of in request_topics(settings)[:3]
    )
    return RequestTopics(plain, with_ids, schedules, settings.retry_topic if settings.retry_topic in read else "")


def not_accepted(
    spark: SparkSession,
    settings: Settings,
    known: Known,
    topics: TopicOffsets,
    progress: Mapping[TopicPartition, Progress],
    times: Anew,
) -> DataFrame:
    """The requests that no machine had accepted at the last round, as rows of the history."""
    starts: Offsets = {}
    for (role, topic, partition), each in known.positions.items():
        if role == history.REQUEST and each.offset < each.end:
            starts.setdefault(topic, {})[partition] = each.offset
    left = topics.remaining(starts)
    records = kafka.read(spark, settings, left.starts, left.ends)
    formats = {topic: each for topic, each in enabled_formats(settings).items() if not each.has_markers}
    decoded = requests.decode(records, formats, NO_LIMIT, settings.request_topic, progress)
    return told_apart(event_rows.request_rows(decoded, keys=True), times, is_asked=True)


def _union(parts: Iterable[DataFrame]) -> DataFrame:
    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), parts)


def request_topics(settings: Settings) -> RequestTopics:
    """The topics of requests of an app, without those of markers: a KeepAlive of a message holds no timer of its own,
    which the rules of the audit cannot express."""
    kinds = {
        topic: (each.has_ids, each.topic_is_compacted)
        for topic, each in enabled_formats(settings).items()
        if not each.has_markers and topic != settings.retry_topic
    }
    without_ids, with_ids, schedules = (
        [topic for topic, kind in kinds.items() if kind == each]
        for each in ((False, False), (True, False), (True, True))
    )
    return RequestTopics(without_ids, with_ids, schedules, settings.retry_topic)
