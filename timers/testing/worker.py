"""A worker without threads: the same steps in the same order as :mod:`timers.worker.machines.runner` and ``pool``.

The real runner takes what waits in its inbox, then makes at most one chunk, one acceptance and one commit of progress,
and so on. Here each of these rounds is one call of :meth:`SimWorker.step`, so that anything may happen between two of
them, and at any of the points of :class:`timers.testing.faults.Faults` inside one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from zlib import crc32

from timers.config.settings import Settings
from timers.core.limits import Limits
from timers.core.loop import Loop
from timers.core.ports import Lost
from timers.core.progress import Progress
from timers.core.timer import Fetched, Tick, TopicPartition
from timers.errors import Fenced
from timers.partition import Classes, PartitionSpec
from timers.request_formats import enabled_formats
from timers.testing.faults import Crashed, Faults
from timers.testing.log import SimLog
from timers.testing.outbox import PROGRESS_PARTITION, SimOutbox, SimRoutes
from timers.testing.store import SimDisk, SimStore
from timers.wire import progress as progress_record

MAX_WAITING = 4


@dataclass(frozen=True)
class Parts(Classes):
    """The classes that a worker is made of. Mutations replace one of them by a broken one."""

    loop: type[Loop] = Loop
    outbox: type[SimOutbox] = SimOutbox
    store: type[SimStore] = SimStore


SOUND = Parts()
"""The product's own machine."""


class SimRunner:
    """Runs one machine: the worker's own :class:`timers.core.loop.Loop`, without a thread.

    Args:
        name: the partition.
        loop: drives the machine.
        store: of the machine.
        indexed: whether its timers have ids.

    Attributes:
        read_to: offset from which the consumer reads on.
        observed: each tick that the machine was told, with the log's ``seq`` at which the tick was appended.
        tick_s: second of the last tick.
        idle_too_long: whether the next commit of progress is due even if only time has passed.
    """

    def __init__(self, name: TopicPartition, loop: Loop, store: SimStore, *, indexed: bool) -> None:
        self.name = name
        self.machine = loop.machine
        self.loop = loop
        self.store = store
        self.indexed = indexed
        self.read_to = loop.machine.position
        self.observed: list[tuple[int, Tick]] = []
        self.idle_too_long = False
        self.tick_s = -1

    def tick(self, tick: Tick, seq: int, end: int | None) -> None:
        """Hand over the time, and the end of the log at that time."""
        self.loop.add_tick(tick, end)
        self.observed.append((seq, tick))
        self.tick_s = tick.second

    def step(self) -> None:
        """Do one step, and what it asks for."""
        outcome = self.loop.step(idle_too_long=self.idle_too_long)
        if outcome.read_again_from is not None:
            self.read_to = outcome.read_again_from
        if outcome.settled:
            self.idle_too_long = False


class SimWorker:
    """One process.

    Args:
        name: for messages.
        log: the cluster.
        settings: of the app.
        limits: of each machine.
        parts: what it is made of.

    Attributes:
        disk: survives a crash.
        faults: what will go wrong in it.
        runners: open machines.
        alive: False between a crash, or being fenced, and :meth:`start`.
        hot_horizon_s: how far ahead is hot, for machines that it opens from now on.
        ours: asks the group whether a machine is still this worker's, after its transaction failed.
    """

    def __init__(
        self,
        name: str,
        log: SimLog,
        settings: Settings,
        limits: Limits,
        parts: Parts = Parts(),
    ) -> None:
        self.name = name
        self.disk = SimDisk(parts.store)
        self.faults = Faults()
        self.runners: dict[TopicPartition, SimRunner] = {}
        self.alive = True
        self.log = log
        self.settings = settings
        self.limits = limits
        self.parts = parts
        self.formats = enabled_formats(settings)
        self.hot_horizon_s = settings.hot_horizon_s
        self.ours: Callable[[TopicPartition], bool] = lambda machine: True
        self._routes = SimRoutes(log)
        self._last_tick: tuple[int, Tick] | None = None
        self._ticks_read_to = 0

    # ---- ownership ----------------------------------------------------------------------------------------------

    def assign(self, machines: Iterable[TopicPartition]) -> None:
        """Open machines: fence every former owner first, then read; only then is the newest progress final."""
        fresh = [machine for machine in machines if machine not in self.runners]
        outboxes = {
            machine: self.parts.outbox(self.log, self.settings, machine, self.faults, self._routes) for machine in fresh
        }
        try:
            self.fence(outboxes)
            for machine in fresh:
                self._open(machine, outboxes[machine])
        except Crashed:
            self.crash()

    def fence(self, outboxes: Mapping[TopicPartition, SimOutbox]) -> None:
        """End the former owners."""
        for outbox in outboxes.values():
            outbox.open()

    def _open(self, machine: TopicPartition, outbox: SimOutbox) -> None:
        progress = self.read_progress(machine)
        self.faults.point("after reading progress")
        spec = self.spec(machine)
        store = self.disk.open(machine, self.faults)
        self.open_store(spec, store, progress)
        loop = self.parts.loop(spec.machine(progress, store, outbox, outbox.counters))
        runner = SimRunner(machine, loop, store, indexed=spec.request_format.has_ids)
        self.runners[machine] = runner
        if self._last_tick is not None:
            runner.tick(self._last_tick[1], self._last_tick[0], None)

    def spec(self, machine: TopicPartition) -> PartitionSpec:
        """Returns what decides how a machine works. The key of its seals is the same in each run."""
        request_format = self.formats[machine[0]]
        limits = self.limits if request_format.topic_is_compacted else replace(self.limits, stale_after_s=0)
        new_seal = crc32(repr(machine).encode()) | 1
        retention_s = self.settings.verdict_retention_s
        return PartitionSpec(machine, request_format, limits, new_seal, self.hot_horizon_s, retention_s, self.parts)

    def open_store(self, spec: PartitionSpec, store: SimStore, progress: Progress) -> None:
        """Apply to a store what was committed since it was written."""
        if not spec.catch_up(store, progress):
            store.empty()

    def read_progress(self, machine: TopicPartition) -> Progress:
        """Newest committed progress of a machine.

        Read to the very end: what another machine left open on the partition must be decided first, since a committed
        record may stand behind it.
        """
        where = self.settings.progress_topic, PROGRESS_PARTITION
        self.wait_for_the_end(*where)
        key = progress_record.encode_key(*machine)
        records = self.log.fetch(*where, 0).records
        values = [record.value for record in records if record.key == key]
        return progress_record.decode(values[-1])[0] if values else Progress()

    def wait_for_the_end(self, topic: str, partition: int) -> None:
        """Wait until nothing is open on a partition."""
        self.log.time_out(topic, partition)

    def revoke(self, machine: TopicPartition) -> None:
        """Close one machine; an open transaction is left to the next owner's fencing."""
        if self.runners.pop(machine, None) is not None:
            self.disk.close(machine)

    def crash(self) -> None:
        """Die: nothing in memory is left."""
        self.alive = False
        self.runners.clear()
        self.disk.crash()
        self._last_tick = None

    def start(self) -> None:
        """Start the process (again). Ticks are read from the newest."""
        self.alive = True
        self._routes = SimRoutes(self.log)
        self._ticks_read_to = self.log.end(self.settings.oscillator_topic, 0)

    # ---- flow ---------------------------------------------------------------------------------------------------

    def poll_ticks(self) -> None:
        """Read the oscillator; the last tick is the present, also if the brokers' clock went back before it."""
        fetched = self.log.fetch(self.settings.oscillator_topic, 0, self._ticks_read_to, committed=False)
        self._ticks_read_to = fetched.to_offset
        if fetched.records:
            latest = fetched.records[-1]
            self.deliver_tick(self.tick_of(latest.key, latest.timestamp_ms), latest.seq)

    def tick_of(self, key: bytes, append_ms: int) -> Tick:
        """The time of a tick is its append time; its key only informs."""
        return Tick(append_ms)

    def deliver_tick(self, tick: Tick, seq: int) -> None:
        """Hand the time to every machine."""
        self._last_tick = (seq, tick)
        for name, runner in self.runners.items():
            runner.tick(tick, seq, self.end_of(name))

    def end_of(self, machine: TopicPartition) -> int:
        """Where a log ends for committed readers."""
        return self.log.last_stable(*machine)

    def poll_requests(self, machine: TopicPartition, max_offsets: int = 50) -> Fetched | None:
        """Fetch what comes next for a machine; None if too much waits already.

        If there is nothing new the range is empty. It is handed over all the same: if the last fetch was lost on the
        way, nothing else would tell [I7].
        """
        runner = self.runners[machine]
        if len(runner.loop.fetches) >= MAX_WAITING:
            return None
        fetched = self.fetch(machine, runner.read_to, max_offsets)
        runner.read_to = fetched.to_offset
        return fetched

    def fetch(self, machine: TopicPartition, from_offset: int, max_offsets: int) -> Fetched:
        """What the consumer reads."""
        return self.log.fetch(*machine, from_offset, max_offsets)

    def settle(self, machine: TopicPartition) -> None:
        """Let one machine read and fire until there is nothing more for it to do."""
        runner = self.runners[machine]
        while True:
            fetched = self.poll_requests(machine)
            if fetched is not None and fetched.to_offset > fetched.from_offset:
                runner.loop.add_fetch(fetched)
            self.step(machine)
            if runner.loop.idle:
                break

    def step(self, machine: TopicPartition) -> None:
        """One round of one machine, and what its owner does about the outcome."""
        runner = self.runners[machine]
        try:
            runner.step()
        except (Lost, Fenced) as error:
            # All of it became visible, or nothing: fencing decides, and the committed progress says which.
            self.revoke(machine)
            if self.ours(machine):
                self.assign([machine])
            elif isinstance(error, Fenced):
                self.crash()  # the worker ends, as after a crash, and is started again
        except Crashed:
            self.crash()
