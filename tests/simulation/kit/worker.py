"""A worker without threads: it lives by the product's own :mod:`timers.machines.life`, as the real ``pool`` does.

A round of the real runner is one call of :meth:`SimWorker.step` here. Faults happen between two rounds, or inside one
at the points of :class:`tests.simulation.kit.faults.Faults`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from hashlib import sha256
from random import Random
from typing import Any, ClassVar, TypeAlias
from zlib import crc32

from tests.simulation.kit.faults import FENCED, Crashed, Faults, Unforeseen, Violation
from tests.simulation.kit.log import SimLog, SimProducer, SimRecord
from tests.simulation.kit.next_level import formats_at
from tests.simulation.kit.opening import NoSnapshots, SimAsk, SimPort, SimProgressLog, SimStores
from tests.simulation.kit.outbox import (
    PROGRESS_PARTITION,
    TOPIC_ID,
    RefusingOutbox,
    SimOutbox,
    SimTopics,
    SimTransactions,
    outbox_of,
)
from tests.simulation.kit.store import SimDisk, SimStore
from timers.core import levels
from timers.core.backoff import AFTER_UNFORESEEN, Reopening
from timers.core.clock_guard import ClockGuard, Clocks
from timers.core.limits import Limits
from timers.core.lineage import EpochEnd, Lineage, Parted, Unknown, compared, next_question, parted_inside
from timers.core.loop import MAX_WAITING_FETCHES, Loop
from timers.core.machine import Machine
from timers.core.passed_over import pass_over
from timers.core.ports import Lost
from timers.core.progress import Progress
from timers.core.snapshots import Place
from timers.core.timer import CUT_VALUE_BYTES, CutValue, Fetched, Rejected, Tick, TopicPartition
from timers.errors import DoubtfulLog, Fenced, LogMismatch
from timers.machines.firing.policy import Policy
from timers.machines.life import ON_ITS_WAY, Command, Event, Life, ReadAhead, State, kind_of, taken_away
from timers.machines.opener import Known, OpenedMachine, open_machine
from timers.machines.partition import PartitionSpec
from timers.process.config.settings import Settings
from timers.wire import progress as progress_record
from timers.wire import topics
from timers.wire.dead_letter import BATCH_UNREADABLE

RIGHT = (0, 1)
"""Partitions of the oscillator topic, each led by the broker with the same id: the clocks of these are right."""
WRONG = 2
"""The partition of ticks whose broker may have a wrong clock."""


Report: TypeAlias = tuple[Event, Any]
"""What came of a command, and what was opened, or the error."""


class SimRunner:
    """Runs one machine: the worker's own :class:`timers.core.loop.Loop`, without a thread.

    Attributes:
        read_to: offset from which the consumer reads on.
        observed: (``seq`` of the log at its append, tick) of each tick that the machine has observed.
        tick_s: second of the last tick.
        idle_too_long: whether progress is committed after the next step even if only time has passed.
        held_end: where the log ended for committed readers while the transaction of the last step was open; None: it
            wrote nothing there. A tick that comes next may have come meanwhile.
        must_ask_end: whether the end of the log must be asked again.
    """

    def __init__(self, name: TopicPartition, loop: Loop, store: SimStore, outbox: SimOutbox, *, indexed: bool) -> None:
        self.name = name
        self.machine = loop.machine
        self.loop = loop
        self.store = store
        self.outbox = outbox
        self.indexed = indexed
        self.read_to = loop.machine.position
        self.observed: list[tuple[int, Tick]] = []
        self.idle_too_long = False
        self.tick_s = -1
        self.held_end: int | None = None
        self.must_ask_end = False

    def tick(self, tick: Tick, seq: int, end: int | None) -> None:
        """Give the machine a tick, and the end of the log at that time."""
        self.loop.add_tick(tick, end)
        self.observed.append((seq, tick))
        self.tick_s = tick.second

    def step(self) -> None:
        """Do one step, and read requests again if the loop asks for it."""
        before = self.outbox.producer.transactions
        outcome = self.loop.step()
        self.must_ask_end = outcome.must_ask_end
        self.held_end = self.outbox.producer.newest_start if self.outbox.producer.transactions > before else None
        if outcome.settled and self.idle_too_long:
            self.machine.commit_progress(even_if_idle=True)
            self.idle_too_long = False
        transaction = self.outbox.policy.transaction
        if transaction.has_old_witness and not self.loop.firing:
            transaction.tell_group()
        if outcome.read_again_from is not None:
            self.read_to = outcome.read_again_from


class SimWorker:
    """One worker process.

    Attributes:
        alive: False after a crash until :meth:`start`.
        supports: feature level that its version supports.
        formats: request formats of its version.
        has_conditions: whether timers with an id may have conditions.
        hot_horizon_s: horizon of the machines that it opens from now on.
        retention_s: for how long the machines that it opens from now on remember ids, if conditions count there.
        first_level: feature level of the machines that no worker has opened before.
        wall_offset_s: by how much the wall clock of its machine is ahead of the brokers' clock.
        accepted: machines whose losses the operator accepts.
        lives: machine -> its life here, which decides what is done with it.
        stopped: machines that must not run, until they are assigned again -> why.
        slow: how many of the next openings and closings end later, by :meth:`report`.
        is_owner: asks the group whether this worker still owns a machine whose transaction failed.
        refused: machines that it has refused because their topic was compacted.
        restores: number of stores that were restored.
        went_back: number of times that it went on with a progress that had gone back.
    """

    producer_kind: type[SimTransactions] = SimTransactions
    store_kind: type[SimStore] = SimStore

    def __init__(
        self,
        name: str,
        log: SimLog,
        settings: Settings,
        limits: Limits,
        *,
        has_conditions: bool = True,
    ) -> None:
        self.name = name
        self.has_conditions = has_conditions
        self.disk = SimDisk(self.store_kind)
        self.faults = Faults()
        self.runners: dict[TopicPartition, SimRunner] = {}
        self.lives: dict[TopicPartition, Life] = {}
        self.alive = True
        self.slow = 0
        self._reports: dict[TopicPartition, Callable[[], Report]] = {}
        """How what is under way ends."""
        self._waits: dict[TopicPartition, Command] = {}
        """Machines that wait until time has passed, and for what."""
        self._confirmed: set[TopicPartition] = set()
        """Machines that a deal or the group's coordinator has given to this worker, and that have not failed since."""
        self._reads_ahead = False
        self.log = log
        self.settings = settings
        self.limits = limits
        self.use_version(levels.SUPPORTED)
        self.hot_horizon_s = settings.hot_horizon_s
        self.retention_s = settings.verdict_retention_s
        self.is_owner: Callable[[TopicPartition], bool] = lambda machine: True
        self.first_level = levels.FIRST_LEVEL
        self.accepted: set[TopicPartition] = set()
        self.stopped: dict[TopicPartition, LogMismatch] = {}
        self._topics = SimTopics(log)
        self.refused: set[TopicPartition] = set()
        self.restores = self.went_back = 0
        self.committed: dict[TopicPartition, int] = {}
        self.wall_offset_s = 0
        self._last_tick: tuple[int, Tick] | None = None
        self._ticks_read_to = dict.fromkeys((*RIGHT, WRONG), 0)
        self._guard = self._new_guard()
        self._reopening: dict[TopicPartition, Reopening] = {}

    conditions: ClassVar[bool | None] = None
    """Whether timers with an id may have conditions in a run; None: either."""

    is_slow: ClassVar[bool] = False
    """Whether in a run openings and closings take a while, machines are let go, and logs change."""

    has_levels: ClassVar[bool] = False
    """Whether the workers of a run have two versions, and machines are raised."""

    accepts_at_once: ClassVar[frozenset[str]] = frozenset({"with the larger values"})
    """The ways out of a lost progress that an operator takes at once, by their words in the sentences."""

    def use_version(self, supports: int) -> None:
        """Run another version from the next start on."""
        self.supports = supports
        self.formats = formats_at(self.settings, supports, has_conditions=self.has_conditions)

    # ---- ownership ----------------------------------------------------------------------------------------------

    def assign(self, machines: Iterable[TopicPartition], *, exist: bool = True) -> None:
        """Take over what a deal gives.

        Args:
            exist: whether this worker knows that the topics exist.
        """
        with self._may_crash():
            for machine in machines:
                self._confirmed.add(machine)
                self._tell(machine, Event.DEALT)
                if exist:
                    self._tell(machine, Event.FOUND)

    def take_away(self, machine: TopicPartition) -> None:
        """A deal gives a machine to another worker. If it fires, it goes on until it is fenced."""
        self._confirmed.discard(machine)
        runner = self.runners.get(machine)
        recovering = runner is None or runner.machine.recovering
        event = taken_away(self.lives.get(machine, Life()).state, recovering=recovering)
        with self._may_crash():
            self._tell(machine, event)
        if machine in self.lives and self.lives[machine].state in ON_ITS_WAY | {State.READING}:
            raise Violation(f"{machine} was taken away, and is {self.lives[machine].state}")

    def happens(self, machine: TopicPartition, event: Event) -> None:
        """Let something else happen to a machine."""
        life = self.lives.get(machine, Life())
        if event is Event.CHANGED and life.state not in (State.AWAY, State.CLOSING, State.LEAVING):
            self._confirmed.add(machine)  # the last deal stands, as far as this worker knows
        with self._may_crash():
            self._tell(machine, event)

    def report(self, machine: TopicPartition, *, answers: bool = True) -> None:
        """Let what is under way at a machine end: an opening, a closing, a pause, or the question to the group, whose
        coordinator ``answers`` or not."""
        with self._may_crash():
            if (end := self._reports.pop(machine, None)) is not None:
                self._tell(machine, *end())
            elif (waits_for := self._waits.pop(machine, None)) is Command.PAUSE:
                self._tell(machine, Event.WAITED)
            elif waits_for is not None:
                self._ask(machine, answers=answers)

    def asks(self, machine: TopicPartition) -> bool:
        """Whether the group is asked who owns a machine."""
        return machine in self.lives and self.lives[machine].state is State.ASKING

    @property
    def unreported(self) -> list[TopicPartition]:
        """Machines of which something is under way."""
        return [*self._reports, *self._waits]

    @contextmanager
    def _may_crash(self) -> Iterator[None]:
        try:
            yield
        except Crashed:
            self.crash()

    def _tell(self, machine: TopicPartition, event: Event, about: Any = None) -> None:
        """Take in an event, and do what it demands; ``about``: what was opened, or the error."""
        life = self.lives.setdefault(machine, Life())
        command = life.on(event)
        runner = self.runners.get(machine)
        match command:
            case Command.OPEN_AHEAD | Command.FENCE:
                report = self._report_of(machine, fences=command is Command.FENCE)
                self._end(machine, lambda: report, waits=report[0] is not Event.OPENED and self._reads_ahead)
            case Command.JOIN | Command.CLOSE if runner is not None:
                del self.runners[machine]
                self._end(machine, partial(self._closed, machine, runner, about))
            case Command.DISCARD:
                self._end(machine, partial(self._closed, machine, about, None))
            case Command.CLOSE if self._waits.pop(machine, None) is not None:
                self._tell(machine, Event.RELEASED)
            case Command.ASK:
                self._ask(machine)
            case Command.ASK_LATER | Command.PAUSE:
                self._waits[machine] = command
            case Command.RUN:
                self._run(machine, about)
            case Command.COMMIT if runner is not None:
                runner.idle_too_long = True
            case Command.LOG:
                self.stopped[machine] = about
            case Command.FIND:
                self._tell(machine, Event.FOUND)
        if life.state is not State.STOPPED:
            self.stopped.pop(machine, None)

    def _end(self, machine: TopicPartition, end: Callable[[], Report], *, waits: bool = False) -> None:
        """Let something end now, or later."""
        if self.slow or waits:
            self.slow, self._reports[machine] = max(0, self.slow - 1), end
        else:
            self._tell(machine, *end())

    def _closed(self, machine: TopicPartition, runner: SimRunner, error: Exception | None) -> Report:
        """Close a machine."""
        if not isinstance(runner.outbox, RefusingOutbox):
            runner.outbox.policy.transaction.close()
        self.committed[machine] = runner.machine.committed.next_offset
        self.disk.close(machine)
        return (Event.RELEASED, None) if error is None else self._judged(machine, error)

    def _ask(self, machine: TopicPartition, *, answers: bool = True) -> None:
        owned = self.is_owner(machine) if answers else None
        if owned:
            self._confirmed.add(machine)
        self._tell(machine, {True: Event.OWNED, False: Event.NOT_OWNED, None: Event.UNANSWERED}[owned])

    def _judged(self, machine: TopicPartition, error: Exception) -> Report:
        """What an error means. One that no code expects demands a pause if it has come before."""
        pause_s = 0.0
        if isinstance(error, Unforeseen):
            reopening = self._reopening.setdefault(machine, Reopening())
            pause_s = reopening.pause_s(str(error), AFTER_UNFORESEEN, self.log.clock.now_ms / 1000)
        return kind_of(error, pause_s), error

    def _report_of(self, machine: TopicPartition, *, fences: bool) -> Report:
        """Open a machine, and return what is to be reported."""
        if not fences and not self._reads_ahead:
            return Event.NOTHING_AHEAD, None
        if fences and machine not in self._confirmed:
            raise Violation(f"{self.name} fences {machine}, which no deal and no answer of the group has given to it")
        try:
            opened = self._open(machine, fences=fences)
        except (LogMismatch, Fenced, Lost, Unforeseen) as error:
            self._confirmed.discard(machine)
            return self._judged(machine, error) if fences else (Event.NOTHING_AHEAD, None)
        return (Event.NOTHING_AHEAD, None) if opened is None else (Event.OPENED, opened)

    def fence(self, machine: TopicPartition, policy: Policy) -> None:
        """Fence the former owner of a machine. Another worker may do so at the same time."""
        if self.faults.take(FENCED):
            raise Fenced("another worker has taken it over meanwhile")
        policy.transaction.open()

    def known_of(self, machine: TopicPartition) -> Known | None:
        """What is known of a machine without reading its progress: nothing, in a worker."""
        return None

    def place(self, machine: TopicPartition) -> Place:
        """What the footers of a machine's snapshots say."""
        return Place("cluster", self.settings.app_id, TOPIC_ID, machine[1], machine[0])

    def snapshots_of(self, machine: TopicPartition) -> Any:
        """The snapshots of a machine: there are none."""
        return NoSnapshots()

    def known_time_s(self) -> float:
        """The brokers' time."""
        return self.log.clock.now_ms / 1000

    def _made(self, machine: TopicPartition, port: SimPort, **more: Any) -> OpenedMachine | None:
        stores: Any = SimStores(self)
        ask: Any = SimAsk(self)
        return open_machine(stores, port, machine, ask, **more)

    def _open(self, machine: TopicPartition, *, fences: bool) -> SimRunner | None:
        outbox: Any = RefusingOutbox()
        if fences:
            outbox = outbox_of(self.log, self.settings, machine, self.faults, self._topics, self.producer_kind)
        port = SimPort(self, machine, outbox.policy, outbox.counters) if fences else SimPort(self, machine, outbox)
        try:
            found = self._made(machine, port, fences=fences, least_ahead=0)
        except DoubtfulLog:
            if fences and port.compacted() is not None and not port.could_not_refuse:
                self.refused.add(machine)
            raise
        if found is None:
            return None
        store: Any = found.opened.store
        indexed = fences and self.formats[machine[0]].has_ids
        return SimRunner(machine, Loop(found.machine), store, outbox, indexed=indexed)

    def _run(self, machine: TopicPartition, runner: SimRunner) -> None:
        self.runners[machine] = runner
        if self.lives[machine].state is State.READING:
            return
        if machine not in self._confirmed:
            raise Violation(f"{self.name} runs {machine}, which was taken away")
        self._note_config(machine)
        if self._last_tick is not None:
            runner.tick(self._last_tick[1], self._last_tick[0], None)

    def read_ahead(self, machine: TopicPartition, random: Random, meets: Event | None = None) -> None:
        """Read the log of a machine as far as its owner has, which is not fenced. Without ticks it sends nothing.

        Args:
            random: decides how much a fetch has, and whether the reading ends early.
            meets: what happens to it meanwhile; if a deal takes it away, that is when it has read all.
        """
        self._reads_ahead = True
        with self._may_crash():
            self._tell(machine, Event.DEALT)
            self._tell(machine, Event.FOUND)
            if meets is Event.CHANGED:
                self._tell(machine, meets)
            try:
                while (runner := self.runners.get(machine)) is not None and random.random() < 0.9:
                    if not runner.machine.recovering:
                        if meets is Event.TAKEN:
                            self.take_away(machine)
                        raise ReadAhead
                    self._read_some(runner, random.choice([1, 3, 10, 50]))
            except (LogMismatch, Lost, Unforeseen, ReadAhead) as error:
                self._tell(machine, Event.ENDED, error)
        self._reads_ahead = False
        if not self.asks(machine):
            self.revoke(machine)

    def _read_some(self, runner: SimRunner, max_offsets: int) -> None:
        fetched = self.poll_requests(runner.name, max_offsets)
        assert fetched is not None
        runner.loop.add_fetch(fetched)
        if (leader := runner.loop.untrusted_leader) is not None:  # its log was compared in this step
            runner.machine.trust(leader)
        if not runner.loop.step().consumed:
            raise Violation(f"{runner.name} does not read ahead: it is {runner.machine.state}")

    def spec_now(self, machine: TopicPartition) -> PartitionSpec:
        """Returns the specification of a machine that is opened now."""
        spec = self.spec(machine)
        return replace(spec, retention_s=self.retention_s) if spec.request_format.has_conditions else spec

    def spec(self, machine: TopicPartition) -> PartitionSpec:
        """Returns the specification of a machine. The key of its seals is the same in each run."""
        request_format = self.formats[machine[0]]
        limits = replace(self.limits, partitions=self.log.partitions)
        if not request_format.topic_is_compacted:
            limits = replace(limits, stale_after_s=0)
        new_seal_key = crc32(repr(machine).encode()) | 1
        retention_s = self.settings.verdict_retention_s
        known = machine, request_format, limits, new_seal_key, self.hot_horizon_s, retention_s
        accepted = topics.partition_name(*machine) if machine in self.accepted else ""
        return PartitionSpec(*known, accepted)

    def compare_configs(self, machines: Iterable[TopicPartition]) -> None:
        """Tell open machines whether their topic is compacted, which it must not be. One that reads its log again is
        closed."""
        for machine in [each for each in machines if each in self.runners]:
            if machine[0] in self.log.wrongly_compacted and self.runners[machine].machine.recovering:
                self.revoke(machine)
            else:
                self._note_config(machine)

    def _note_config(self, machine: TopicPartition) -> None:
        is_compacted = machine[0] in self.log.wrongly_compacted
        self.runners[machine].machine.doubts.note(self.name, is_compacted=is_compacted)

    def compare(self, machine: TopicPartition, lineages: Sequence[Lineage]) -> list[Parted | None]:
        """Where the log of a machine parts from lineages, as :mod:`timers.kafka.log_lineage` finds it."""
        return [self._compare(machine, lineage) for lineage in lineages]

    def _compare(self, machine: TopicPartition, lineage: Lineage) -> Parted | None:
        ends: dict[int, EpochEnd] = {}
        while isinstance(found := next_question(lineage, ends), int):
            ends[found] = self.log.epoch_end(*machine, found)
        known = lineage.batch
        answer = compared(lineage, ends, None if known is None else self.log.batch_at(*machine, known.base_offset))
        if not isinstance(answer, int):
            assert not isinstance(answer, Unknown), "no topic is compacted"
            return answer
        later = self.log.offset_at(*machine, answer)
        first_later = later if later < self.log.end(*machine) else None
        while isinstance(parted := parted_inside(lineage, ends, first_later), int):
            ends[parted] = self.log.epoch_end(*machine, parted)
        return parted

    def compare_logs(self) -> None:
        """Compare the logs of the open machines, as a worker does every 10 s."""
        for machine, runner in list(self.runners.items()):
            if self.runners.get(machine) is not runner:  # the end of another one has crashed the worker
                continue
            if any(isinstance(each, Parted) for each in self.compare(machine, runner.machine.lineages)):
                self.ended(machine, Lost("the log is not the one that was read"))
            elif (leader := runner.loop.untrusted_leader) is not None:
                runner.machine.trust(leader)

    def read_progress(self, machine: TopicPartition) -> Progress:
        """Returns the newest committed progress of a machine, also after open transactions of other machines."""
        progress = SimProgressLog(self).read_one(machine, after_fence=False)[1]
        return Progress.first(self.first_level) if progress == Progress() else progress

    def newest_record(self, key: bytes) -> SimRecord | None:
        """The newest committed record of a machine on the progress topic."""
        return self.log.newest(self.settings.progress_topic, PROGRESS_PARTITION, key)

    def repair(self, machine: TopicPartition) -> None:
        """Take back the time of a machine, as ``timers clock --repair`` does."""
        producer = SimProducer(self.log, topics.transactional_id(self.settings.app_id, *machine))
        producer.init_transactions()
        producer.begin()
        name = progress_record.machine_name(self.settings.app_id, *machine)
        progress = SimProgressLog(self).read_one(machine)[1].without_time()
        key, value = progress_record.encode_key(*machine), progress_record.encode(progress, TOPIC_ID, name)
        producer.produce(self.settings.progress_topic, key, value, partition=PROGRESS_PARTITION)
        producer.commit()

    def revoke(self, machine: TopicPartition) -> None:
        """Close one machine. The next owner aborts an open transaction when it fences this worker."""
        self._confirmed.discard(machine)
        self.happens(machine, Event.TAKEN)
        if machine in self._reports:
            self.report(machine)

    def crash(self) -> None:
        """End the process; its memory is lost."""
        self.committed.clear()
        self.alive, self.faults.has_crashed = False, False
        for memory in (self.runners, self.lives, self.stopped, self._reports, self._waits, self._confirmed):
            memory.clear()
        self.disk.crash()
        self._last_tick = None
        self.slow = 0

    def start(self) -> None:
        """Start the process. It reads ticks from the end of the topic on."""
        self.alive = True
        self._topics = SimTopics(self.log)
        self._ticks_read_to = {each: self.log.end(self.settings.oscillator_topic, each) for each in (*RIGHT, WRONG)}
        self._guard = self._new_guard()

    def _new_guard(self) -> ClockGuard:
        return ClockGuard(self.settings.max_clock_leap_s, self.settings.accept_time_s)

    # ---- flow ---------------------------------------------------------------------------------------------------

    def poll_ticks(self) -> None:
        """Read new ticks, and deliver the last one that counts, also if the brokers' clock went back before it."""
        records: list[SimRecord] = []
        for partition, position in self._ticks_read_to.items():
            fetched = self.log.fetch(self.settings.oscillator_topic, partition, position, committed=False)
            self._ticks_read_to[partition] = fetched.to_offset
            records += fetched.records
        counted = [record for record in sorted(records, key=lambda record: record.seq) if self._counts(record)]
        if counted:
            self.deliver_tick(self.tick_of(counted[-1].key or b"", counted[-1].timestamp_ms), counted[-1].seq)

    def has_read(self, tick: SimRecord) -> bool:
        """Whether a tick was read before."""
        return tick.offset < self._ticks_read_to[tick.partition]

    def _counts(self, tick: SimRecord) -> bool:
        clocks = Clocks(self.log.clock.boot_ms / 1000, self.log.clock.now_ms / 1000 + self.wall_offset_s)
        fired_s = [runner.machine.progress.fired_through[0] for runner in self.runners.values()]
        return self._guard.counts(tick.timestamp_ms, tick.partition, clocks, [each for each in fired_s if each >= 0])

    def tick_of(self, key: bytes, append_ms: int) -> Tick:
        """The tick of an oscillator record: its append time, not its key."""
        return Tick(append_ms)

    def deliver_tick(self, tick: Tick, seq: int) -> None:
        """Deliver a tick to all machines."""
        self._last_tick = (seq, tick)
        for name, runner in self.runners.items():
            end = self.end_of(name)
            runner.tick(tick, seq, end if runner.held_end is None else min(end, runner.held_end))

    def end_of(self, machine: TopicPartition) -> int:
        """The end of a log for committed readers."""
        return self.log.last_stable(*machine)

    def poll_requests(self, machine: TopicPartition, max_offsets: int = 50) -> Fetched | None:
        """Fetch the next requests of a machine; None if too many fetches wait.

        A fetch without new requests has an empty range. The machine gets it too: by its start the machine finds a gap
        after a lost fetch [I7].
        """
        runner = self.runners[machine]
        if len(runner.loop.fetches) >= MAX_WAITING_FETCHES:
            return None
        if runner.read_to < self.log.start(*machine):
            self._do(machine, self._out_of_range)
            return None
        while (damaged := self._damaged(machine, runner)) == runner.read_to:
            self._do(machine, partial(self.pass_over, runner.machine, damaged))
            if self.runners.get(machine) is not runner or self._damaged(machine, runner) == damaged:
                return None
        to_offset = runner.read_to + max_offsets if damaged is None else min(damaged, runner.read_to + max_offsets)
        fetched = self.fetch(machine, runner.read_to, to_offset - runner.read_to)
        runner.read_to = fetched.to_offset
        return fetched

    def _damaged(self, machine: TopicPartition, runner: SimRunner) -> int | None:
        """The next offset at which reading stops; None: none is known."""
        damaged = [
            each.offset for each in self.log.damaged if each.unreadable and (each.topic, each.partition) == machine
        ]
        return min(
            (each for each in damaged if each >= runner.read_to and not self.passes_over(runner, each)), default=None
        )

    def passes_over(self, runner: SimRunner, offset: int) -> bool:
        """Whether a machine reads on after a damaged record."""
        return runner.machine.progress.settings.passes_over(offset, offset + 1)

    def pass_over(self, machine: Machine, offset: int) -> None:
        """Let a machine pass over a damaged record, which its operator has accepted."""
        pass_over(machine, Rejected(offset, BATCH_UNREADABLE, "damaged", None, b"damaged", []), offset + 1)

    def fetch(self, machine: TopicPartition, from_offset: int, max_offsets: int) -> Fetched:
        """The requests that the consumer reads. It does not hold values that are too large [I23]."""
        fetched = self.log.fetch(*machine, from_offset, max_offsets)
        limit = self.value_limit(machine)
        records = [record if len(record.value or b"") <= limit else self.cut(record) for record in fetched.records]
        return fetched._replace(records=records)

    def value_limit(self, machine: TopicPartition) -> int:
        """The size above which the consumer does not hold a value."""
        return self.runners[machine].machine.largest_value_limit

    def cut(self, record: SimRecord) -> SimRecord:
        """The record with the begin, the length and the hash of its value."""
        value = record.value or b""
        return replace(record, value=CutValue.of(value[:CUT_VALUE_BYTES], len(value), sha256(value).digest()))

    def settle(self, machine: TopicPartition) -> None:
        """Let one machine read and fire until it is idle."""
        runner = self.runners[machine]
        while True:
            fetched = self.poll_requests(machine)
            if fetched is not None and fetched.to_offset > fetched.from_offset:
                runner.loop.add_fetch(fetched)
            self.step(machine)
            if runner.loop.idle and not runner.must_ask_end:
                break

    def fire_unread(self, machine: TopicPartition) -> None:
        """Commit new seconds before a machine reads what its former owner accepted without a commit [I1]."""
        self.poll_ticks()
        for _ in range(8):
            runner = self.runners.get(machine)
            if runner is None:
                return
            fetched = self.poll_requests(machine, runner.machine.left_to_replay) if runner.machine.recovering else None
            if fetched is not None:
                runner.loop.add_fetch(fetched)
            if machine not in self.runners:
                return
            runner.idle_too_long = True
            self.step(machine)

    @staticmethod
    def _out_of_range() -> None:
        raise Lost("its position was deleted")

    def step(self, machine: TopicPartition) -> None:
        """Do one round of one machine. A batch of a new leader waits until the log was compared."""
        if self.runners[machine].loop.untrusted_leader is not None:
            self.compare_logs()
            if machine not in self.runners:
                return
        runner = self.runners[machine]
        if runner.must_ask_end:
            runner.tick(runner.observed[-1][1], runner.observed[-1][0], self.end_of(machine))
        self._do(machine, runner.step)

    def raise_level(self, machine: TopicPartition, level: int) -> None:
        """Raise one machine."""
        self._do(machine, partial(self.runners[machine].machine.raise_level, level))

    def _do(self, machine: TopicPartition, action: Callable[[], object]) -> None:
        """Let one machine do something, which may end it."""
        try:
            self.faults.stepping = True
            try:
                action()
            finally:
                self.faults.stepping = False
        except (Lost, Fenced, LogMismatch, Unforeseen) as error:
            self.ended(machine, error)
        except Crashed:
            self.crash()

    def ended(self, machine: TopicPartition, error: Exception) -> None:
        """A machine has ended with an error. If its transaction failed, it is committed or not; after fencing, the
        committed progress tells which."""
        if isinstance(error, LogMismatch) and machine not in self.log.lost:
            raise Violation(f"the log has lost nothing: {error}") from None
        self._confirmed.discard(machine)
        runner = self.runners[machine]
        with self._may_crash():
            self._tell(machine, Event.ENDED, error)
        if self.runners.get(machine) is runner:  # only a broken life lets it go on
            runner.outbox.producer.producer._begun = False
