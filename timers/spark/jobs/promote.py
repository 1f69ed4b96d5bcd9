"""``timers spark promote``: writes cold timers back to their partitions before they are due, at a limited rate.

A search finds the timers that are due first, and reads their requests; a few rounds write them, one chunk each. Before
the first round the job records that this *batch* begins, and where the request logs end; after the last one, which
copies it has written, and the end of the batch. After a crash, the next run looks for copies in the logs from those
ends on, and records them before it chooses new ones. So a crash at any point repeats no copy. If a copy is repeated
nevertheless, its partition ignores it for a day after the timer was due (``TIMERS_VERDICT_RETENTION_S``).

Tables that come back from a backup do not know what was written back since. So Kafka has the name of the newest batch:
tables without it are older, and the next run looks for copies from their newest batch on.

Spark's own Kafka sink has no transactions. So one task writes, with one transactional id: a second promoter, or a task
that Spark starts again, fences the first. Each round opens the id, which would fence a newer promoter. So a promoter
notes its run in Kafka before it fences, and a task ends if another run is noted before or after it opens the id.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from threading import Event, Thread
from time import monotonic
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaPlace
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from timers.core.grouping import groups
from timers.core.ports import Lost
from timers.core.timer import TopicPartition
from timers.errors import NameTakenError, SparkError, TimersError
from timers.kafka import connection
from timers.kafka.clients import admin_client, note_offsets, reader
from timers.kafka.error_codes import FENCED, RECORD_REFUSED, code_of
from timers.kafka.progress_log import read_all
from timers.kafka.records import Record, TransactionalWriter
from timers.kafka.topic_offsets import OFFSETS_TIMEOUT_S, Offsets, TopicOffsets
from timers.kafka.topics import existing_topics
from timers.process.config.settings import Settings
from timers.process.counted import counted
from timers.spark import cold, jvm, kafka
from timers.spark.cold import PROMOTED_SCHEMA, ColdTables, cold_sources
from timers.spark.columns import header_text, headers_of, record_batch, schema
from timers.spark.jobs.hold import read_to
from timers.spark.session import described, sentence_of
from timers.spark.storage import BEGUN, DONE, Kept
from timers.wire import headers as h
from timers.wire import topics
from timers.wire.cold import Cold, encode_promoted

logger = logging.getLogger(__name__)

SENT = schema("copies bigint, transactions bigint, refused string, reason string")
"""Result of one task: a row with the numbers of copies and transactions, and a row for each copy that its topic
refuses, with its source and the reason."""

MAX_COPIES = 1000
MAX_BYTES = 8 * 1024 * 1024
"""Limits of one transaction: readers of the request topics wait for its end, and it must end before its timeout."""

_MAX_MESSAGE_BYTES = 100_000_000
"""Only the limit of the topic applies: a request that was read from a topic fits in it."""

_CHECK_S = 5.0
"""How long a round waits to learn whether a newer promoter has begun."""

TAKEN = "another `timers spark promote` of the same TIMERS_APP_ID has begun since, or has gone on: this one ends"


class KafkaPort:
    """Writes copies, which are promoted requests, to the request topics: all copies of a call, or none. It ends with
    NameTakenError if a newer promoter has begun, which ``check_newest`` raises; it returns whether this is known."""

    def __init__(
        self, config: Mapping[str, Any], transactional_id: str, check_newest: Callable[[], bool] = lambda: True
    ) -> None:
        self._make = partial(TransactionalWriter, config, transactional_id, _MAX_MESSAGE_BYTES)
        self._check_newest = check_newest
        self._writer = self._open()

    def _open(self) -> TransactionalWriter:
        is_known, writer = self._check_newest(), self._make()
        if is_known:  # else a second check would wait for the group's coordinator again
            self._check_newest()
        return writer

    def write(self, copies: Sequence[Record]) -> None:
        try:
            with self._writer.transaction() as send:
                send(copies)
        except KafkaException as error:
            if code_of(error) in RECORD_REFUSED:
                # After a refused batch, librdkafka 2.16 fails the next transaction too: sequence numbers have a gap.
                self._writer = self._open()
            if code_of(error) in FENCED:
                raise NameTakenError(TAKEN) from error
            raise


def _noted(config: Mapping[str, Any], group: str, topic: str, timeout_s: float) -> tuple[str, str]:
    """What is noted in the group: the newest batch and the newest run; empty: none, or it is not known any more."""
    with closing(reader(config, group_id=group)) as consumer:
        (found,) = consumer.committed([KafkaPlace(topic, 0)], timeout=timeout_s)
    if found.error is not None:
        raise KafkaException(found.error)
    batch, _, run = (found.metadata or "").partition(" ")
    return batch, run


def _check_newest(config: Mapping[str, Any], group: str, topic: str, own: str) -> bool:
    with suppress(KafkaException):  # one that is alone must go on; the older of two fences the newer then
        if _noted(config, group, topic, _CHECK_S)[1] not in ("", own):
            raise NameTakenError(TAKEN)
        return True
    return False


def writer(
    open_port: Callable[[], KafkaPort], rate_per_s: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``mapInArrow`` over rows of :data:`timers.spark.cold.HELD_SCHEMA`; it yields rows of
    :data:`SENT`."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sent: list[int] = []
        refused: dict[str, str] = {}
        seen: set[str] = set()
        port: KafkaPort | None = None
        began_s = 0.0
        for batch in batches:
            for copies in groups(copies_of(_without(batch, seen)), _size, MAX_COPIES, MAX_BYTES):
                if port is None:
                    port, began_s = open_port(), monotonic()
                for count in _write(port, copies, refused):
                    sent.append(count)
                    time.sleep(max(0.0, began_s + sum(sent) / rate_per_s - monotonic()))
        rows = [(sum(sent), len(sent), None, None), *((0, 0, source, why) for source, why in refused.items())]
        yield record_batch(rows, SENT)

    return write


def _write(port: KafkaPort, copies: Sequence[Record], refused: dict[str, str]) -> Iterator[int]:
    """Write copies, and yield the number of each transaction. A copy that its topic refuses does not stop the others:
    ``refused`` gets its source, with the reason."""
    try:
        port.write(copies)
    except KafkaException as error:
        if code_of(error) not in RECORD_REFUSED:
            raise
        if len(copies) == 1:
            source = dict(copies[0].headers)[h.TIMER_PROMOTED]
            refused[source.decode() if isinstance(source, bytes) else str(source)] = error.args[0].str()
            return
        half = len(copies) // 2
        yield from _write(port, copies[:half], refused)
        yield from _write(port, copies[half:], refused)
    else:
        yield len(copies)


def _without(batch: pa.RecordBatch, seen: set[str]) -> pa.RecordBatch:
    """The rows of a batch whose sources were not seen before, which are added: a request that `hold` has read twice,
    because its checkpoint was lost, is in the table twice. To leave it out in Spark, whole requests were sorted."""
    is_new = list[bool]()
    for source in batch.column("source").to_pylist():
        is_new.append(source not in seen)
        seen.add(source)
    return batch if all(is_new) else batch.filter(pa.array(is_new))


def copies_of(batch: pa.RecordBatch) -> Iterator[Record]:
    """Yield the records that promote the rows of an Arrow batch."""
    names = ("source", "topic", "partition", "due_s", "append_ms", "seal", "key", "value")
    columns = [batch.column(name).to_pylist() for name in names]
    for source, topic, partition, due_s, append_ms, seal, key, value, headers in zip(
        *columns, headers_of(batch.column("headers")), strict=True
    ):
        cold = Cold(source, due_s, append_ms, seal, list(headers))
        yield Record(topic, partition, key, value, encode_promoted(cold))


def _size(copy: Record) -> int:
    return len(copy.key or b"") + len(copy.value or b"")


CHUNK = 100_000
"""Largest number of copies in one round: their names pass through the driver."""

ROUND_S = 20
"""A round has as many copies as it may write in this time. The end of the job waits for the end of its round, and a
small commit costs a second more."""

BATCH_ROUNDS = 5
"""A search finds the timers of so many rounds, at most: with 5,000,000 timers that are near, it reads all of these.
What another program deletes from the table after that may still be written back."""

CHUNK_BYTES = 256 * 1024 * 1024
"""Limit of a round for the bytes of keys and values. A single larger request is a round of its own."""

CARE_S, RETRY_CARE_S = 6 * 3600, 3600
"""Time between two runs of the table maintenance, and after which it is tried again if it failed."""

_UPKEEP = "upkeep"
"""Spark's job group and pool of the table maintenance. With ``spark.scheduler.mode=FAIR`` a round gets half of the
cores beside it, as soon as its tasks end."""

_STOP_S = 30.0
"""How long the end of the job waits for the end of the table maintenance."""

_HOLDING_S = 3600
"""Age of what `hold` must have read before copies are looked for. A copy of a younger cold record is younger, too, so
its partition remembers it."""

DELETE_AFTER_DUE_S = 2 * cold.DAY_S
"""A promoted timer is deleted from the tables this long after its due second."""


class Logs:
    """The request logs in Kafka, where the job writes copies and looks for them. Tests replace it.

    Attributes:
        deleted: number of offsets in which :meth:`copies_since` could not look for copies, because they are deleted.
        unsure_until_s: copies of timers due by this second may have been among them.
    """

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self._spark = spark
        self._settings = settings
        self._id, self._run = topics.promoter_id(settings.app_id), uuid.uuid4().hex
        self.deleted = self.unsure_until_s = 0

    def ends(self) -> Offsets:
        """Where the request logs end now, for committed readers."""
        return TopicOffsets(self._settings).ends(cold_sources(self._settings))

    def does_no_harm(self, now_s: int) -> Column:
        """Condition: see :func:`timers.spark.cold.does_no_harm`."""
        settings = self._settings
        return cold.does_no_harm(settings.verdict_retention_s, [settings.id_topic], now_s, self.unsure_until_s)

    def needs_its_copy(self) -> Column:
        """Condition: see :func:`timers.spark.cold.needs_its_copy`."""
        return cold.needs_its_copy(self._settings.verdict_retention_s, [self._settings.id_topic])

    def take_over(self) -> None:
        """Become the newest promoter. Raises as :meth:`note_batch`."""
        for _ in range(3):
            self._note(self.noted_batch())
            with suppress(NameTakenError):  # a former one had looked before this note, and has noted its batch since
                self.fence()
                return
        raise NameTakenError(TAKEN)

    def unheld(self, tables: ColdTables, now_s: int) -> int:
        """Number of records of the cold topic that `hold` has not read, without those of the last hour: it may be about
        to read these."""
        topics = TopicOffsets(self._settings)
        ends = topics.at_time(topics.existing([self._settings.cold_topic]), (now_s - _HOLDING_S) * 1000)
        read = read_to(self._spark, tables.checkpoint)
        places = ((of, read.get(topic, {}).get(p, 0)) for topic, each in ends.items() for p, of in each.items())
        return sum(max(0, end - at) for end, at in places)

    def fence(self) -> None:
        """Abort the open transaction of a former promoter, and fence that promoter."""
        self.ends()  # its errors name the broker and the reason
        try:
            self.port()()
        except KafkaException as error:
            raise SparkError(f"transactional id {self._id!r} cannot be used: {error.args[0].str()}") from error

    def noted_batch(self) -> str:
        """Name of the newest batch that may have written copies; empty: there was none, or it is not known any more."""
        with self._noting() as config:
            return _noted(config, self._id, self._settings.progress_topic, OFFSETS_TIMEOUT_S)[0]

    def note_batch(self, name: str) -> None:
        """Keep the name of a batch where no backup of the tables is: brokers keep it for seven days.

        Raises:
            SparkError: the group cannot be used, or had no coordinator for 30 s.
            NameTakenError: another promoter has begun since.
        """
        self._check_newest()()
        self._note(name)

    def _note(self, batch: str) -> None:
        place = KafkaPlace(self._settings.progress_topic, 0, 0, f"{batch} {self._run}")
        with self._noting() as config:
            note_offsets(config, self._id, [place], OFFSETS_TIMEOUT_S)

    def _check_newest(self) -> Callable[[], bool]:
        config = connection.librdkafka(self._settings)
        return partial(_check_newest, config, self._id, self._settings.progress_topic, self._run)

    @contextmanager
    def _noting(self) -> Iterator[dict[str, Any]]:
        failed = f"the group {self._id!r}, in which `promote` notes what it writes, cannot be used"
        reports = connection.ErrorReports(self._settings)
        with reports.explained(failed, SparkError):
            yield {**connection.librdkafka(self._settings), **reports.callbacks}

    def copies_since(self, starts: Offsets) -> DataFrame:
        """Sources of the copies in the logs at or after ``starts``: (source).

        Records may have been deleted since, and topics created again: a batch that cannot be read as a whole must not
        keep the job from starting.
        """
        left = TopicOffsets(self._settings).remaining(starts)
        self.deleted += left.deleted
        read = kafka.read(self._spark, self._settings, left.starts, left.ends, passed_over=self._passed_over())
        return read.select(header_text(h.TIMER_PROMOTED).alias("source")).where("source is not null")

    def _passed_over(self) -> dict[TopicPartition, Sequence[tuple[int, int]]]:
        """The ranges that workers have passed over; none, if this program may not read the progress or cannot."""
        try:
            admin = admin_client(self._settings, connection.ErrorReports(self._settings))
            known = read_all(self._settings, existing_topics(admin, self._settings))
        except (KafkaException, TimersError, Lost) as error:
            logger.warning("what workers have passed over in the request logs is not known: %s", error)
            return {}
        return {tp: each.settings.passed_over for tp, each in known.items()}

    def port(self) -> Callable[[], KafkaPort]:
        """A function that opens the writer of a task. Spark sends it to an executor."""
        return partial(KafkaPort, connection.librdkafka(self._settings), self._id, self._check_newest())


@dataclass(frozen=True)
class Promote:
    """Parameters of the job."""

    tables: ColdTables
    lead_s: int = 3600
    """How many seconds before its due second a timer is promoted."""
    rate_per_s: int = 5000
    chunk: int = CHUNK
    """Largest number of copies in one round, if the rate allows for so many (:data:`ROUND_S`)."""
    overdue: bool = False
    """Whether to promote timers that may have been promoted before: they were held late, or their copies may have been
    in records that are deleted."""


class Batch(NamedTuple):
    """What a search has found and read, for several rounds."""

    name: str
    until_s: int
    """Its timers are due by this second."""
    is_cut: bool
    """Whether there are more."""
    files: int
    """Number of files of the held table that Spark scanned."""
    kept: Kept
    """Keeps the requests until the batch ends."""
    chunks: Sequence[pa.Table] = ()
    """For each round the timers that it writes, the earliest first: (due_day, due_s, source)."""
    requests: Sequence[DataFrame] = ()
    """For each round the whole requests of these timers (:data:`timers.spark.cold.HELD_SCHEMA`)."""
    written: Sequence[pa.Table] = ()
    """The timers that earlier rounds have written: as ``chunks``."""


class Round(NamedTuple):
    """Result of one round."""

    promoted: int
    more: bool
    """Whether more timers are due than the round promoted."""
    files: int
    """Number of files of the held table that Spark scanned to find the timers."""
    seconds: float
    refused: Mapping[str, str] = MappingProxyType({})
    """Source of a timer whose copy its topic refuses -> the reason."""
    left: Batch | None = None
    """What the search found for the next rounds."""

    def lines(self, until_s: int) -> Iterator[str]:
        """What a user is told of it. Its timers were due by ``until_s``."""
        if self.refused:
            source, reason = next(iter(self.refused.items()))
            yield (
                f"{counted(len(self.refused), 'timer')} not written back, because the topic of the request refuses the "
                f"copy, such as {source}: {reason}"
            )
        if self.promoted:
            more = ", more is due" if self.more else ""
            took = f"{self.files} files scanned, {self.seconds:.1f} s"
            yield f"{self.promoted:,} due by {until_s} written back{more}; {took}"


def run(
    spark: SparkSession,
    job: Promote,
    logs: Logs,
    now_s: Callable[[], int],
    say: Callable[[str], None],
    every_s: int | None = None,
    stop: Event | None = None,
    ended: Callable[[int, float], None] = lambda rows, took_s: None,
    maintained: Callable[[], None] = lambda: None,
    searching: AbstractContextManager[None] | None = None,
) -> int:
    """Promote until ``stop`` is set, or once.

    Args:
        now_s: returns epoch seconds. They decide only which timers are near their due second.
        every_s: seconds between two rounds; None: promote until no timer is near, maintain the tables, and end.
        ended: called after each round with the number of its timers and its duration in seconds.
        maintained: called when the maintenance of the tables has succeeded.
        searching: entered while the job looks in the logs, which may take hours.
    """
    job.tables.create(spark)
    with searching or nullcontext(), described(spark, "timers promote: look for what the previous run has written"):
        logs.take_over()  # a former promoter may be about to write
        if note_older_tables(spark, job, logs, now_s()):
            say(
                "promote: the tables may be older than what was written back last (from a backup, or after seven "
                "days without a run): looking in the request logs for what was written back since"
            )
        found = record_interrupted(spark, job.tables, logs, overdue=job.overdue)
    if found:
        say(f"promote: {found:,} had been written back when the previous run ended")
    if logs.deleted:
        again = "; each start looks again while such timers wait, until it has --overdue" if logs.unsure_until_s else ""
        say(
            f"promote: {logs.deleted:,} records are deleted in which copies of the previous run may have been; their "
            f"partitions ignore a second copy{again}"
        )
    total, refused, left, stop = 0, set[str](), None, stop or Event()
    with closing(Upkeep(spark, job.tables, logs, say, maintained)) as upkeep:
        while not stop.is_set():
            second = now_s()
            with described(spark, f"timers promote: timers due by {second + job.lead_s}"):
                done = promote_chunk(spark, job, logs, second, refused, left)
            refused.update(done.refused)
            left = done.left
            total += done.promoted
            ended(done.promoted, done.seconds)
            for line in done.lines(second + job.lead_s):
                say(f"promote: {line}")
            if done.more:
                continue
            if upkeep.begins(second):
                refused.clear()  # the topic may take larger records now
                _note_anew(logs, say)
            if every_s is None:
                upkeep.wait()
                break
            stop.wait(every_s)
        if left is not None:
            end(spark, job, left)
    return total


def _note_anew(logs: Logs, say: Callable[[str], None]) -> None:
    """Brokers would forget the newest batch after seven days."""
    try:
        logs.note_batch(logs.noted_batch())
    except NameTakenError:
        raise
    except TimersError as error:
        say(f"promote: the newest batch is not noted anew, and it is tried again later: {error}")


class Upkeep:
    """Maintains the tables in a thread beside the rounds: it takes minutes, for which no timer should wait."""

    def __init__(
        self,
        spark: SparkSession,
        tables: ColdTables,
        logs: Logs,
        say: Callable[[str], None],
        maintained: Callable[[], None],
    ) -> None:
        self._spark, self._tables, self._logs, self._say = spark, tables, logs, say
        self._maintained = maintained
        self._next_s = 0
        self._thread: Thread | None = None
        self._stopped = False
        self._error: Exception | None = None

    def begins(self, now_s: int) -> bool:
        """Begin if it is time, and return whether it began."""
        if now_s < self._next_s or (self._thread is not None and self._thread.is_alive()):
            return False
        self._next_s, self._error = now_s + CARE_S, None
        self._thread = Thread(target=self._run, args=(now_s,), name="upkeep", daemon=True)
        self._thread.start()
        return True

    def wait(self) -> None:
        """Wait for its end, and raise its error."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Interrupt it. What it has not committed is done again by the next run."""
        self._stopped, gives_up_s = True, monotonic() + _STOP_S
        with suppress(*jvm.ERRORS, OSError):  # Java has died, which the error of the round says
            while self._thread is not None and self._thread.is_alive() and monotonic() < gives_up_s:
                self._spark.sparkContext.cancelJobGroup(_UPKEEP)  # again: it ends no job that begins afterwards
                self._thread.join(1)

    def _run(self, now_s: int) -> None:
        context = self._spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", _UPKEEP)
        context.setJobGroup(_UPKEEP, "timers promote: maintain the tables", interruptOnCancel=True)
        try:
            self._say(maintain(self._spark, self._tables, now_s, self._say))
            self._maintained()
            self._report(now_s)
        except (*jvm.ERRORS, KafkaException, TimersError) as error:
            self._error = error
            if not self._stopped:
                self._next_s = now_s + RETRY_CARE_S
                self._say(f"promote: the tables are not maintained, and it is tried again later: {sentence_of(error)}")

    def _report(self, now_s: int) -> None:
        """Say which overdue timers are not written back, and why."""
        logs, due = self._logs, partial(cold.unpromoted, self._spark, self._tables, now_s)
        if doubtful := due(~logs.does_no_harm(now_s)).count():
            self._say(
                f"promote: {doubtful:,} overdue timers may have fired before: they were held late, or what was "
                "written back is deleted; they are not written back unless --overdue is given"
            )
        if without_place := due(~cold.has_place(logs.ends())).count():
            self._say(
                f"promote: {without_place:,} overdue timers are not written back: the topic or the partition of "
                "their request does not exist any more, or no setting names the topic"
            )


def note_older_tables(spark: SparkSession, job: Promote, logs: Logs, now_s: int) -> bool:
    """Begin a batch for what the tables do not know of, if they are older than what was written back last. It has all
    copies since the newest batch of the tables, and :func:`record_interrupted` records them. It takes the place of
    unfinished batches with the same begin. Returns whether it began. A former promoter must be fenced.

    A restored table has old times at which its requests were held, so :func:`timers.spark.cold.does_no_harm` cannot see
    that they come from a backup. SparkError: `hold` has not read the cold topic: what it adds later is not looked for.
    """
    noted, steps = logs.noted_batch(), job.tables.steps(spark)
    begun = steps.begun()
    newest = begun.orderBy(F.desc("until_s")).limit(1).collect()
    if not begun.where(F.col("batch") == noted).isEmpty() or not (noted or newest):
        return False
    if unheld := logs.unheld(job.tables, now_s):
        raise SparkError(
            "the tables may be older than what was written back last, and `timers spark hold` has not read "
            f"{counted(unheld, 'record')} of the cold topic: run it first (docs/cold-tier.md#backup)"
        )
    name, until_s, replaced = uuid.uuid4().hex, now_s + job.lead_s, []
    if newest:
        starts, until_s = newest[0].starts, max(until_s, newest[0].until_s)
        replaced = [each for each in steps.unfinished() if each.starts == starts]
    else:
        starts = kafka.as_json({topic: dict.fromkeys(of, 0) for topic, of in logs.ends().items()})
    steps.add(name, BEGUN, until_s, starts)
    logs.note_batch(name)
    for each in replaced:
        steps.add(each.batch, DONE, each.until_s, "")
    return True


def record_interrupted(
    spark: SparkSession, tables: ColdTables, logs: Logs, *, overdue: bool = False, only: str = ""
) -> int:
    """Record the copies of interrupted batches. Must run before the first round, when a former promoter is fenced.

    Args:
        overdue: the user takes it that what is not found has not been written back.
        only: name of one batch; empty: all.
    """
    steps, found = tables.steps(spark), 0
    for batch, _, until_s, starts in steps.unfinished():
        if only not in ("", batch):
            continue
        deleted, waiting = logs.deleted, partial(cold.unpromoted, spark, tables, until_s)
        if not waiting(F.lit(True)).isEmpty():  # to read the logs may take hours
            copies = logs.copies_since(kafka.from_json(starts)).distinct()
            new = waiting(F.lit(True)).join(copies, "source", "left_semi")
            with Kept() as kept:
                rows = kept.on_disk(new.select("due_day", "due_s", "source", F.lit(batch).alias("batch")))
                found += rows.count()
                cold.append(rows, tables.promoted, PROMOTED_SCHEMA)
        if logs.deleted > deleted and not overdue and not waiting(logs.needs_its_copy()).isEmpty():
            # The batch is not done: the next run must not be sure of it, either.
            logs.unsure_until_s = max(logs.unsure_until_s, until_s)
        else:
            steps.add(batch, DONE, until_s, "")
    return found


def promote_chunk(
    spark: SparkSession, job: Promote, logs: Logs, now_s: int, without: Collection[str] = (), left: Batch | None = None
) -> Round:
    """Promote one chunk of the timers that are due within the lead, the earliest first.

    Args:
        now_s: epoch second. It only decides which timers are near. A timer can fire late by it only if this clock is
            behind by more than the lead.
        without: sources of timers that are not promoted now.
        left: what an earlier search has found, and no round has promoted.
    """
    began, batch = monotonic(), left or begin(spark, job, logs, now_s, without)
    if not batch.chunks:
        return Round(0, False, batch.files, monotonic() - began)
    try:
        return _write_chunk(spark, job, logs, batch, began)
    except BaseException as error:
        batch.kept.close()
        if isinstance(error, PySparkException) and TAKEN in str(error):
            raise NameTakenError(TAKEN) from error
        raise


def begin(spark: SparkSession, job: Promote, logs: Logs, now_s: int, without: Collection[str]) -> Batch:
    """Find the timers that are due within the lead and not promoted, the earliest first, and read their requests."""
    until_s, ends = now_s + job.lead_s, logs.ends()
    most = min(job.chunk, ROUND_S * job.rate_per_s)
    may_be_promoted = (F.lit(job.overdue) | logs.does_no_harm(now_s)) & cold.has_place(ends)
    may_be_promoted &= ~F.col("source").isin(list(without))
    near = cold.unpromoted(spark, job.tables, until_s, may_be_promoted).orderBy("due_s", "source")
    near = near.limit(BATCH_ROUNDS * most + 1)
    rows = near.toArrow()
    sizes = [len(chunk) for chunk in groups(rows.column("size").to_pylist(), int, most, CHUNK_BYTES)][:BATCH_ROUNDS]
    count = sum(sizes)
    files = cold.files_scanned(near, job.tables.held)
    batch = Batch(uuid.uuid4().hex, until_s, rows.num_rows > count, files, Kept())
    if not count:
        return batch
    job.tables.steps(spark).add(batch.name, BEGUN, until_s, kafka.as_json(ends))
    logs.note_batch(batch.name)
    numbers = pa.array([number for number, size in enumerate(sizes) for _ in range(size)], pa.int32())
    chosen = rows.slice(0, count).select(["due_day", "due_s", "source"]).append_column("round", numbers)
    whole = cold.whole_requests(spark, job.tables, chosen, "round").sortWithinPartitions("round")
    whole = batch.kept.on_disk(whole)  # sorted, so that a round reads only its part
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return batch._replace(
        chunks=[chosen.slice(start, size) for start, size in zip(starts, sizes, strict=True)],
        requests=[whole.where(F.col("round") == number) for number in range(len(sizes))],
    )


def end(spark: SparkSession, job: Promote, batch: Batch) -> None:
    """Record what a batch has promoted, and its end: what it has not promoted the next search finds again."""
    _record(spark, job, batch)
    job.tables.steps(spark).add(batch.name, DONE, batch.until_s, "")
    batch.kept.close()


def _record(spark: SparkSession, job: Promote, batch: Batch) -> None:
    if batch.written:
        written = spark.createDataFrame(pa.concat_tables(batch.written)).withColumn("batch", F.lit(batch.name))
        cold.append(written, job.tables.promoted, PROMOTED_SCHEMA)


def _write_chunk(spark: SparkSession, job: Promote, logs: Logs, batch: Batch, began: float) -> Round:
    (chunk, *chunks), (requests, *more) = batch.chunks, batch.requests
    sent = requests.repartition(1).mapInArrow(writer(logs.port(), job.rate_per_s), SENT).collect()
    refused = {row.refused: row.reason for row in sent if row.refused is not None}
    written = sum(row.copies for row in sent)
    if written + len(refused) != chunk.num_rows:
        # Another program has deleted requests since the search. What this round has written is found as after a crash.
        logger.warning(
            "%d of %d timers are no longer in the table", chunk.num_rows - written - len(refused), chunk.num_rows
        )
        _record(spark, job, batch)
        logs.fence()
        record_interrupted(spark, job.tables, logs, overdue=job.overdue, only=batch.name)
        batch.kept.close()
        return Round(written, written > 0, batch.files, monotonic() - began, refused)
    if refused:
        chunk = chunk.filter(pc.invert(pc.is_in(chunk.column("source"), pa.array(list(refused)))))
    left = batch._replace(chunks=chunks, requests=more, written=(*batch.written, chunk))
    if not chunks:
        end(spark, job, left)
    is_more = bool(chunks) or batch.is_cut
    return Round(written, is_more, batch.files, monotonic() - began, refused, left if chunks else None)


def maintain(spark: SparkSession, tables: ColdTables, now_s: int, say: Callable[[str], None]) -> str:
    """Maintain the tables: merge small files, delete unused files, delete promoted timers due days ago."""
    replaced = cold.compact(spark, tables, lambda line: say(f"promote: {line}"))
    deleted = cold.delete_promoted(spark, tables, now_s - DELETE_AFTER_DUE_S)
    return f"promote: {deleted:,} old timers deleted, {replaced} small files merged"
