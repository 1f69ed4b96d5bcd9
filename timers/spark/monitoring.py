"""Metrics and health of a job that runs until it is stopped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from functools import reduce
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql import SparkSession

from timers.core.counters import HELD, LATE, RETRIED, WAITED, Counters, added, dead_lettered_of, lag_of, missed_of
from timers.core.ports import MISSED_REASONS
from timers.core.timer import TopicPartition
from timers.machines.machine_parts import BUILD_LABELS
from timers.process import partition_metrics
from timers.process.clock import Clock
from timers.process.http.metrics_server import MetricsServer
from timers.process.metrics import Entry, Samples, encoder, registry
from timers.process.past_figures import FIGURES_STEP_S, PastFigures, since
from timers.spark import jvm
from timers.spark.totals import Snapshot, Total
from timers.wire.dead_letter import CODES
from timers.wire.topics import partition_name

if TYPE_CHECKING:
    from timers.machines.queries.answers import Machines

UNREADY_S = 60.0
"""A job is not ready if it has done nothing for longer than this and three times its interval."""

UNLIVE_S = 1800.0
"""The same for a job that must be restarted. A long micro-batch after a downtime must not end its process."""

MAX_WORK_S = 3 * 3600
"""How long work may take of which nothing is kept if it is ended before: upkeep of the history, to make all its timers
again, the search of `promote` in the logs. An audit does not end a job of the history that is at such work, or at a
part of many records, but uses the tables as they are."""


Waiting: TypeAlias = Mapping[TopicPartition, tuple[int, int | None]]
"""Partition -> number of timers that wait, and the due second of the next one; None: there is none."""


class EngineCounts:
    """What the engine has fired since the start of its driver, and what waits.

    A micro-batch that fails is not counted: what it has committed is not fired again when Spark repeats it.

    Args:
        in_driver: returns the counters of the machines that run in the driver.
        open_circuits: returns the number of targets that fail.
        waiting_in_driver: returns what waits in the machines that run in the driver, as :attr:`waiting` does.
    """

    def __init__(
        self,
        in_driver: Callable[[], Iterable[Counters]] = list,
        open_circuits: Callable[[], int] = int,
        waiting_in_driver: Callable[[], Waiting] = dict,
    ) -> None:
        self._in_driver, self._waiting_in_driver = in_driver, waiting_in_driver
        self.open_circuits = open_circuits
        self._numbers: dict[str, float] = {}
        self._waiting: Waiting = {}
        self.snapshots: Mapping[TopicPartition, Snapshot] = {}

    def add(self, counted: Total) -> None:
        """Note what a bucket has done in a micro-batch that has ended."""
        self._numbers = added(self._numbers, counted.numbers)
        self._waiting = {**self._waiting, **counted.waiting}
        known = self.snapshots
        self.snapshots = {**known, **{tp: _latest(known.get(tp), each) for tp, each in counted.snapshots.items()}}

    @property
    def waiting(self) -> Waiting:
        """As in :class:`Total`: as of the last micro-batch of each partition, or run of its machine in the driver."""
        return {**self._waiting, **self._waiting_in_driver()}

    def present(self, now_s: float | None) -> dict[str, float]:
        """What waits as of the last micro-batches, for the figures of the last day."""
        waiting = self.waiting.values()
        due = [due_s for _, due_s in waiting if due_s is not None]
        overdue_s = max(0.0, now_s - min(due)) if due and now_s is not None else 0.0
        pending = sum(pending for pending, _ in waiting)
        return {"pending": pending, "overdue_s": round(overdue_s, 1), "memory_bytes": 0}

    def numbers(self) -> Mapping[str, float]:
        """The totals, with those of the driver."""
        return reduce(added, (each.numbers() for each in self._in_driver()), self._numbers)


def _latest(known: Snapshot | None, found: Snapshot) -> Snapshot:
    """What is known of the newest snapshot. A process of Spark may know only when an older one was complete."""
    times_ms = [each.written_ms for each in (known, found) if each is not None and each.written_ms is not None]
    return found._replace(written_ms=max(times_ms, default=None))


class Monitor:
    """Counts the micro-batches of one job.

    Attributes:
        micro_batches: number of those that have ended since the start of the job.
        rows: that it has read.
        took_s: duration of the last micro-batch.
        behind: records that the job has not read; None if it does not know.
        engine: what an engine has fired; None: the job fires nothing.
        past_figures: of the last day of an engine, since the start of its driver.
        has_end: whether the job ends by itself. Then nothing is said of whether it works: that it has gone is no fault.
        taken: returns who has the group of an engine if other programs have it, a sentence; else an empty text.

    Args:
        now_s: a clock that never goes back.
    """

    def __init__(self, job: str, every_s: float, now_s: Callable[[], float] = monotonic) -> None:
        self.job = job
        self.micro_batches = self.rows = 0
        self.took_s = 0.0
        self.behind: int | None = None
        self._upkept_s: float | None = None
        self.engine: EngineCounts | None = None
        self.has_end = False
        self.taken: Callable[[], str] = str
        self._every_s = every_s
        self._now_s = now_s
        self._seen_s = now_s()
        self._has_begun = False
        self._may_take_s = 0.0
        self._noted_s = -math.inf
        clock = Clock()
        self.past_figures = PastFigures(None, lambda: self.broker_now_s() or clock.now_s())
        self._tick: tuple[int, float] | None = None
        """The newest tick that counts, in epoch ms, and when it came; None: the job needs no ticks."""

    def needs_ticks(self) -> None:
        """The job is ready only while ticks count."""
        self._tick = 0, self._now_s()

    def ticked(self, tick_ms: int) -> None:
        """A tick counts."""
        if self._tick is None or tick_ms > self._tick[0]:
            self._tick = tick_ms, self._now_s()

    def ended(self, rows: int, took_s: float, behind: int | None = None) -> None:
        """A micro-batch has ended."""
        self.micro_batches, self.rows = self.micro_batches + 1, self.rows + rows
        self.took_s, self.behind = took_s, behind
        self.looked()

    def looked(self) -> None:
        """The job has looked for records and found none, or has read a part of those that it found."""
        self._seen_s = self._now_s()
        self._has_begun = True
        if self.engine is not None and self._seen_s - self._noted_s >= FIGURES_STEP_S:
            self._noted_s, now_s = self._seen_s, self.broker_now_s()
            self.past_figures.note(self.engine.numbers(), self.engine.present(now_s))

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Inside the block the job does what may take :data:`MAX_WORK_S`: it need not be restarted before."""
        before, self._seen_s, self._may_take_s = self._may_take_s, self._now_s(), MAX_WORK_S
        try:
            yield
        finally:
            self._seen_s, self._may_take_s = self._now_s(), before

    def upkept(self) -> None:
        """The tables of the job are maintained; or the job begins, which has tables to maintain."""
        self._upkept_s = self._now_s()

    def upkeep_age_s(self) -> float | None:
        """Seconds since the job has maintained its tables, or since it began; None: it has none to maintain."""
        return None if self._upkept_s is None else self._now_s() - self._upkept_s

    def age_s(self) -> float:
        """Seconds since the last micro-batch, or since the job last looked for records."""
        return self._now_s() - self._seen_s

    def tick_age_s(self) -> float | None:
        """Seconds since a newer tick counted, or since the job began; None if the job needs no ticks."""
        return None if self._tick is None else self._now_s() - self._tick[1]

    def broker_now_s(self) -> float | None:
        """The brokers' time, by the newest tick that counts; None before the first one."""
        tick = self._tick
        return None if tick is None or not tick[0] else tick[0] / 1000 + self._now_s() - tick[1]

    def unready(self) -> Iterator[str]:
        """Why the job does not work now, or others may not see that it does."""
        yield from self.idle()
        if taken := self.taken():
            yield taken

    def works(self) -> bool:
        """Whether the job works now: also while it does what may take long, and while others may not see it."""
        return self.age_s() < self._may_take_s or not any(self.idle())

    def idle(self) -> Iterator[str]:
        """Why the job does not end micro-batches now, or counts no ticks."""
        if not self._has_begun:
            yield "the job has not read its topics yet"
        yield from self._late(UNREADY_S)
        tick_age_s = self.tick_age_s()
        if self._tick is not None and not self._tick[0]:
            yield "no tick has counted since the job began, so no timer fires"
        elif tick_age_s is not None and tick_age_s > UNREADY_S:
            yield f"no newer tick has counted for {tick_age_s:.0f} s, so no timer fires"

    def unlive(self) -> Iterator[str]:
        """Why the job must be restarted."""
        yield from self._late(max(UNLIVE_S, self._may_take_s))

    def _late(self, limit_s: float) -> Iterator[str]:
        limit_s += 3 * self._every_s
        if self.age_s() > limit_s:
            yield f"no micro-batch has ended for {self.age_s():.0f} s, more than {limit_s:.0f} s"

    def watching(self, spark: SparkSession) -> AbstractContextManager[None]:
        """Count the micro-batches of the streaming queries of a session."""

        def count(progress: Mapping[str, Any]) -> None:
            took_s = progress["durationMs"].get("triggerExecution", 0) / 1000
            self.ended(sum(each["numInputRows"] for each in progress["sources"]), took_s, behind(progress))

        return jvm.listening(spark, count, self.looked)


@contextmanager
def served(monitor: Monitor, port: int, host: str) -> Iterator[int]:
    """Serve ``/metrics``, ``/health/live`` and ``/health/ready``, and return the port. Raises as MetricsServer."""
    metrics = registry((*METRICS, *SHARED), lambda: monitor)
    with closing(MetricsServer(metrics, monitor.unlive, monitor.unready, port, host)) as server:
        yield server.port


def register(
    page: Callable[[str], Callable[[Any], Any]],
    monitor: Monitor,
    origin: Mapping[str, str],
    machines: Machines,
) -> None:
    """Add a worker's pages of health and metrics to an engine's port of queries: the console reads them.

    Args:
        page: returns the decorator for the handler of a path.
    """
    from aiohttp import web  # not at the top: the other jobs need no aiohttp

    metrics = registry((*METRICS, *SHARED), lambda: monitor)

    def answer(reasons: list[str], body: Mapping[str, Any]) -> web.Response:
        return web.json_response({"reasons": reasons, **body}, status=503 if reasons else 200)

    @page("/health/live")
    async def live(*_: object) -> web.Response:
        reasons = list(monitor.unlive())
        return answer(reasons, {"live": not reasons, **origin})

    @page("/health/ready")
    async def ready(*_: object) -> web.Response:
        reasons = list(monitor.unready())
        waiting = monitor.engine.waiting if monitor.engine else {}
        pending = sum(pending for pending, _ in waiting.values())
        tick_age_s = round(monitor.tick_age_s() or 0.0, 3)
        return answer(reasons, {"ready": not reasons, "stopped": {}, "pending": pending, "tick_age_s": tick_age_s})

    @page("/health/partitions")
    async def partitions(*_: object) -> web.Response:
        firing = [] if any(monitor.idle()) else sorted(partition_name(*tp) for tp in machines.runners)
        return answer([], {"red": {}, "firing": firing, "request_partitions": machines.partitions})

    @page("/figures")
    async def figures(_: object, request: web.Request) -> web.Response:
        kept = monitor.past_figures.page(since(request.query.get("since", "")), origin)
        return web.Response(body=kept, content_type="application/json")

    @page("/metrics")
    async def scrape(_: object, request: web.Request) -> web.Response:
        encode, content_type = encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(metrics), headers={"Content-Type": content_type})


def _value(read: Callable[[Monitor], float | None]) -> Callable[[Monitor], Samples]:
    def samples(monitor: Monitor) -> Samples:
        value = read(monitor)
        return [] if value is None else [((monitor.job,), value)]

    return samples


METRICS: tuple[Entry[Monitor], ...] = (
    Entry(
        "timers_spark_micro_batches_total{spark_job}",
        "Micro-batches of the job, or rounds of `promote`, since its start.",
        _value(lambda monitor: monitor.micro_batches),
    ),
    Entry(
        "timers_spark_rows_total{spark_job}",
        "Records that the job has read, or timers that `promote` has written back, since its start.",
        _value(lambda monitor: monitor.rows),
    ),
    Entry(
        "timers_spark_micro_batch_seconds{spark_job}",
        "Duration of the last micro-batch.",
        _value(lambda monitor: monitor.took_s),
    ),
    Entry(
        "timers_spark_idle_seconds{spark_job}",
        "Seconds since a micro-batch ended, or since the job last looked for records and found none.",
        _value(Monitor.age_s),
    ),
    Entry(
        "timers_spark_tick_age_seconds{spark_job}",
        "Seconds since `engine` counted a newer tick: timers fire only at ticks. Other jobs do not show it.",
        _value(Monitor.tick_age_s),
    ),
    Entry(
        "timers_spark_behind_records{spark_job}",
        "Records of its topics that the job has not read. `promote` does not show it.",
        _value(lambda monitor: monitor.behind),
    ),
    Entry(
        "timers_spark_upkeep_age_seconds{spark_job}",
        "Seconds since `promote` or `history` has maintained its tables, or since it began. Other jobs do not show it.",
        _value(Monitor.upkeep_age_s),
    ),
    Entry(
        "timers_spark_works{spark_job}",
        "1 while the job is ready, and also while `history` maintains its tables or makes `timers`, while `promote` "
        "looks for copies in the logs, and while another program has the group of `engine`, which fires. A job with "
        "`--once` does not show it.",
        _value(lambda monitor: None if monitor.has_end else float(monitor.works())),
    ),
    Entry(
        "timers_spark_ready{spark_job}",
        "1 if /health/ready answers 200.",
        _value(lambda monitor: float(not list(monitor.unready()))),
    ),
)


def _of_engine(read: Callable[[EngineCounts], Samples]) -> Callable[[Monitor], Samples]:
    return lambda monitor: [] if monitor.engine is None else read(monitor.engine)


def _total(name: str) -> Callable[[Monitor], Samples]:
    return _of_engine(lambda engine: [((), engine.numbers().get(name, 0))])


def _missed(engine: EngineCounts) -> Samples:
    found = dict.fromkeys(MISSED_REASONS, 0) | missed_of(engine.numbers())
    return [((reason,), count) for reason, count in found.items()]


def _dead_lettered(engine: EngineCounts) -> Samples:
    found = dict.fromkeys(CODES, 0) | dead_lettered_of(engine.numbers())
    return [((code,), count) for code, count in found.items()]


def _lag(engine: EngineCounts) -> Samples:
    numbers = engine.numbers()
    return [((way,), lag_of(numbers, way)) for way in (WAITED, LATE, RETRIED, HELD)]


def _of_each(name: str, read: Callable[[Monitor, Any], float | None]) -> Callable[[Monitor], Samples]:
    """Reads a value for each partition of an attribute of :class:`EngineCounts`."""

    def samples(monitor: Monitor) -> Samples:
        for (topic, partition), each in getattr(monitor.engine, name, {}).items():
            if (value := read(monitor, each)) is not None:
                yield (topic, str(partition)), value

    return samples


def _age_s(monitor: Monitor, snapshot: Snapshot) -> float | None:
    now_s, written_ms = monitor.broker_now_s(), snapshot.written_ms
    return None if now_s is None or written_ms is None else max(0.0, now_s - written_ms / 1000)


def _overdue_s(monitor: Monitor, waiting: tuple[int, int | None]) -> float | None:
    now_s, (_, oldest_due_s) = monitor.broker_now_s(), waiting
    return now_s and (0.0 if oldest_due_s is None else max(0.0, now_s - oldest_due_s))


SHARED: tuple[Entry[Monitor], ...] = (
    Entry(*partition_metrics.FIRED, _total("fired")),
    Entry(*partition_metrics.DEAD_LETTERED, _of_engine(_dead_lettered)),
    Entry(*partition_metrics.RETRIED, _total("retried")),
    Entry(*partition_metrics.FOLLOWED, _total("followed")),
    Entry(*partition_metrics.MENDED, _total("mended")),
    Entry(*partition_metrics.ZONE_UNKNOWN, _total("zone-unknown")),
    Entry(*partition_metrics.MISSED, _of_engine(_missed)),
    Entry(*partition_metrics.LAG, _of_engine(_lag), histogram=True),
    Entry(*partition_metrics.PENDING, _of_each("waiting", lambda _, each: each[0])),
    Entry(*partition_metrics.OVERDUE, _of_each("waiting", _overdue_s)),
    Entry(*partition_metrics.SNAPSHOT_UNREAD, _of_each("snapshots", lambda _, each: each.unread)),
    Entry(*partition_metrics.SNAPSHOT_OFFSET, _of_each("snapshots", lambda _, each: each.applied)),
    Entry(*partition_metrics.SNAPSHOT_BYTES, _of_each("snapshots", lambda _, each: each.bytes)),
    Entry(*partition_metrics.SNAPSHOT_AGE, _of_each("snapshots", _age_s)),
    Entry(*partition_metrics.OPEN_CIRCUITS, _of_engine(lambda engine: [((), engine.open_circuits())])),
    Entry(*partition_metrics.GROUP_TAKEN, lambda monitor: [((), bool(monitor.taken()))] if monitor.engine else []),
    Entry(*partition_metrics.BUILD, lambda _: [(BUILD_LABELS, 1)]),
)
"""Metrics under the names that they have in a worker. Only the engine shows those of timers."""


def behind(progress: Mapping[str, Any]) -> int:
    """Records of the topics that a query has not read, by the offsets in Spark's progress report."""
    count = 0
    for source in progress["sources"]:
        read, latest = (source.get(name) or {} for name in ("endOffset", "latestOffset"))
        for topic, partitions in latest.items():
            for partition, end in partitions.items():
                count += max(0, end - read.get(topic, {}).get(partition, 0))
    return count
