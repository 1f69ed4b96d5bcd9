"""A bucket of the engine on Spark: which ticks count, and what it writes into Spark's state."""

from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from inspect import GEN_CLOSED, getgeneratorstate
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyarrow", reason="needs the extra 'spark'")

from tests.harness.machines import BY_ID, MachineRig, NativeRig
from timers.core.clock_guard import ClockGuard, Clocks
from timers.core.fired import Command
from timers.core.index import MIN_SWEEP_ENTRIES, Swept
from timers.core.lineage import Lineage
from timers.core.loop import IDLE_COMMIT_S, Loop
from timers.core.only_if import TIME_ID
from timers.core.operation import Entry
from timers.core.ports import Lost
from timers.core.progress import Cuts, NamedSnapshot, Progress
from timers.core.second_barrier import SecondBarrier
from timers.core.timer import Fetched, Tick, TopicPartition
from timers.errors import CheckpointMismatch, StoreInUse
from timers.kafka.aiokafka_internals.batch_pieces import UnreadableBatch
from timers.process.config.settings import Settings
from timers.process.partition_metrics import PartitionMetrics
from timers.spark.engine.bucket import ANCHORS, STATE_FORMAT, Bucket, BucketState
from timers.spark.engine.machines import Known, MachineRun, ProducerOpening, Read, RunningMachine
from timers.spark.engine.questions import Question

NOW_S = 1_800_000_000
NOT_ASKED = SimpleNamespace(asks=lambda _: False)

NOTHING: Any = None
"""No partition is opened."""


SECONDS, SWEPT = ((NOW_S, 0), (NOW_S + 1, 9)), Swept(b"id", 1000, 7, 5, 8, ((b"a", 3, 99),), 60)
KNOWN = Known(7, Progress(7), b"topic id 16 byte", ProducerOpening(3, 4), SWEPT, NOW_S, 2, NOW_S + 60, SECONDS, 6)


TP = "r", 1
CUT = KNOWN.progress.shortened(3)


def test_the_state_is_read_as_it_was_written() -> None:
    state = BucketState(known={("r", 1): KNOWN}, read_to={("r", 1): 7, ("ids", 1): 0})
    assert BucketState.decode(state.encode()) == state


@pytest.mark.parametrize(
    ("read_to", "after_s", "expected"), [(7, 1, False), (8, 1, True), (7, 60, True), (7, 59, False)]
)
def test_a_partition_without_work_stays_closed(read_to: int, after_s: int, expected: bool) -> None:
    assert KNOWN.has_work(read_to, NOW_S + after_s, ()) == expected


@pytest.mark.parametrize(
    ("before", "planned", "is_used"),
    [(KNOWN.progress, (), True), (CUT, ((3, 1),), True), (CUT, (), True), (KNOWN.progress, ((3, 1),), False)],
)
def test_what_was_known_before_an_accepted_loss_is_of_no_use(before: Progress, planned: Cuts, is_used: bool) -> None:
    opened: list[Known | None] = []

    class Run(MachineRun):
        def go(self) -> None:
            opened.append(self.known)

    partitions: Any = SimpleNamespace(run=lambda runs: [run.go() for run in runs], commands=())
    state = BucketState(tick=Tick(NOW_S * 1000), known={TP: KNOWN._replace(progress=before)})
    bucket = Bucket(state, partitions, {}, {TP: planned}, Run)
    bucket.process([], {TP: Read(9, None, Lineage())}, None)
    assert [known is not None for known in opened] == [is_used]


def test_a_question_opens_a_partition_in_which_nothing_else_is_to_do() -> None:
    asked: list[tuple[TopicPartition, int]] = []

    class Asked(MachineRun):
        def go(self) -> None:
            asked.extend((self._tp, question.number) for question in self._questions)

    partitions: Any = SimpleNamespace(run=lambda runs: [run.go() for run in runs], snapshots=NOT_ASKED, commands=())
    state = BucketState(tick=Tick(NOW_S * 1000), known={TP: KNOWN, ("r", 2): KNOWN})
    bucket = Bucket(state, partitions, {}, {}, Asked)
    read = dict.fromkeys([TP, ("r", 2)], Read(7, None, Lineage()))
    bucket.process([], read, None, [(TP, Question(3, b"")), (("of another bucket", 1), Question(4, b""))])
    assert asked == [(TP, 3)]


@pytest.mark.parametrize(("is_same", "is_damaged", "fences"), [(True, False, 0), (False, False, 1), (True, True, 1)])
def test_a_question_fences_nothing_if_the_store_is_the_last_one(is_same: bool, is_damaged: bool, fences: int) -> None:
    """A fence costs each question a write of the brokers for each partition, and a new process its connections."""
    opened: list[str] = []
    machine = SimpleNamespace(observe=lambda *_: None)
    found: Any = SimpleNamespace(loop=SimpleNamespace(machine=machine), close=lambda: opened.append("closed"))

    def open_fenced(*_: Any) -> Any:
        opened.append("fenced")
        raise StoreInUse("enough")

    def answered(_: Any) -> tuple[int, str, None]:
        if is_damaged:
            raise Lost("damaged")
        return 3, "answer", None

    partitions: Any = SimpleNamespace(look=lambda *_: found if is_same else None, open=open_fenced)
    question: Any = SimpleNamespace(answered=answered)
    tick, read = Tick(NOW_S * 1000), Read(7, None, Lineage(), 7)
    run = MachineRun(TP, KNOWN, read, tick, partitions, [question], only_asked=True)
    with pytest.raises(StoreInUse) if fences else nullcontext():
        run.go()
    assert opened == ["closed"] * is_same + ["fenced"] * fences
    assert run.known == KNOWN
    assert [*run.done.answers] == ([] if fences else [(3, "answer", None)])


def test_what_is_due_does_not_wait_for_partitions_that_are_only_asked() -> None:
    ran: list[list[TopicPartition]] = []

    class Noted(MachineRun):
        def go(self) -> None:
            ran[-1].append(self._tp)

    def run(runs: Any) -> None:
        ran.append([])
        for each in runs:
            each.go()

    partitions: Any = SimpleNamespace(run=run, snapshots=NOT_ASKED, commands=())
    first, second, due, idle = (("r", number) for number in range(4))
    known = {**dict.fromkeys([first, second, idle], KNOWN), due: KNOWN._replace(oldest_due_s=NOW_S)}
    bucket = Bucket(BucketState(tick=Tick(NOW_S * 1000), known=known), partitions, {}, {}, Noted)
    questions = [(tp, Question(number, b"")) for number, tp in enumerate([second, due, first, second])]
    bucket.process([], dict.fromkeys(known, Read(7, None, Lineage())), None, questions)
    assert ran == [[due], [second, first]], "the oldest question first"


def test_a_released_second_waits_again_on_a_machine_whose_store_ends_below() -> None:
    """What was read before it was released need not be committed: a cancel may be in it [I17]."""
    run = MachineRun(TP, None, Read(200, 200, Lineage(), 100), Tick(NOW_S * 1000), NOTHING)
    barrier = SecondBarrier()
    for second, end in run._later_seconds(NOW_S, 200):
        barrier.tick(second, end, position=150)
    assert barrier.released_s is None
    barrier.read(200)
    assert barrier.released_s == NOW_S


@pytest.mark.parametrize(
    ("known", "end", "epoch", "is_asked"),
    [
        (KNOWN, 7, 5, False),
        (KNOWN, 6, 5, True),  # the marker of the last commit may not have been written
        (KNOWN, 7, 6, True),  # another owner was between, and its transaction may have been open
        (None, 7, 5, True),
        (KNOWN, None, 6, False),  # timers without an id
    ],
)
def test_an_end_that_own_transactions_may_have_held_back_is_asked_again(
    known: Known | None, end: int | None, epoch: int, is_asked: bool
) -> None:
    """A cancel that was acknowledged in time may stand behind it [I17]."""
    partitions: Any = SimpleNamespace(log_end=lambda _: 9)
    run = MachineRun(TP, known, Read(7, end, Lineage(), 7), Tick(NOW_S * 1000), partitions)
    opened: Any = SimpleNamespace(producer=ProducerOpening(3, epoch))
    run._ask_end_again(opened)
    assert run._read.log_end == (9 if is_asked else end)


# ---- ids that are over ----------------------------------------------------------------------------------------------

NAMED = NamedSnapshot(b"id", 7, 0, 1, 10**6, 10**6, 0, b"digest")
OVER, LIVE = (NOW_S - 100, 3, NOW_S - 200), (NOW_S + 10**6, 4, NOW_S)
"""Entries of an id that is over, and of one that is pending."""


class SimPartitions:
    """One partition of timers with an id: its machine is opened anew in each micro-batch, over the same store.

    Attributes:
        seen: how many ids of the newest snapshot are forgotten, whenever snapshots may be taken.
    """

    commands: Sequence[Command] = ()

    def __init__(self, entries: Mapping[bytes, Entry]) -> None:
        self._rig = MachineRig(BY_ID, retention_s=10, progress=Progress(9, (NOW_S, 0), snapshot=NAMED))
        self._rig.store.write({}, 9, {TIME_ID: (NOW_S, 0, 0), **entries})
        self._ids = [*entries]
        self._second, self._state = NOW_S, b""
        self.seen: list[int] = []

    @property
    def left(self) -> int:
        """Number of ids that are not forgotten."""
        return sum(entry is not None for entry in self._rig.store.entries(self._ids).values())

    def micro_batch(self) -> None:
        self._second += round(IDLE_COMMIT_S)
        state = BucketState.decode(self._state) if self._state else BucketState()
        bucket = Bucket(state, cast(Any, self), {}, {})
        bucket.process([], {TP: Read(9, 9, Lineage())}, Tick(self._second * 1000))
        self._state = bucket.state.encode()

    def name(self, snapshot: NamedSnapshot) -> None:
        self._rig.outbox.progress = replace(self._rig.outbox.progress, snapshot=snapshot)

    def run(self, runs: Collection[MachineRun]) -> None:
        for each in runs:
            each.go()

    def log_end(self, tp: TopicPartition) -> int:
        return 9

    def open(self, tp: TopicPartition, known: Known | None) -> RunningMachine:
        machine = self._rig.open()
        transaction: Any = SimpleNamespace(has_old_witness=False, held_from=set())
        names, metrics = (bytes(16), ProducerOpening(1, 1)), PartitionMetrics()

        def answer(record_bytes: float | None) -> None:
            self.seen.append(machine.sweeper.swept.forgotten_since(machine.progress.snapshot))

        return RunningMachine(Loop(machine), transaction, *names, metrics, lambda: None, answer)


def test_forgotten_ids_of_the_newest_snapshot_are_counted_over_several_micro_batches() -> None:
    partitions = SimPartitions({b"%05d" % number: OVER for number in range(8 * MIN_SWEEP_ENTRIES)})
    while partitions.left:
        partitions.micro_batch()
    assert partitions.seen[-1] == 8 * MIN_SWEEP_ENTRIES and len(partitions.seen) > 1
    partitions.name(NAMED._replace(number=8))
    partitions.micro_batch()
    assert partitions.seen[-1] == 0, "counting begins anew"


def test_ids_that_are_over_are_forgotten_behind_many_that_are_not() -> None:
    live = {b"a%05d" % number: LIVE for number in range(4 * MIN_SWEEP_ENTRIES)}
    partitions = SimPartitions(live | {b"b%05d" % number: OVER for number in range(7)})
    partitions.micro_batch()
    assert partitions.left == len(live) + 7
    for _ in range(4):
        partitions.micro_batch()
    assert partitions.left == len(live)


# ---- clocks that are wrong ------------------------------------------------------------------------------------------

LEAP_S = 300
YEAR_S = 365 * 86_400


def counted(
    state: BucketState,
    ahead_s: int,
    *,
    boot_id: str = "a",
    boot_s: float = 0,
    wall_s: float = 0,
    fired_s: int | None = NOW_S - YEAR_S,
    accept_s: int | None = None,
) -> bool:
    """Judge a tick on a machine, as in one micro-batch; times are seconds after NOW_S."""
    guard, clocks = ClockGuard(LEAP_S, accept_s), Clocks(boot_s, NOW_S + wall_s)
    bucket = Bucket(state, NOTHING, {}, {})
    tick = bucket.counted([(NOW_S + ahead_s) * 1000], guard, clocks, boot_id, fired_s)
    state.tick = tick or state.tick
    return tick is not None


def test_a_tick_a_year_ahead_is_held_until_the_machines_clock_agrees() -> None:
    state = BucketState()
    assert not counted(state, YEAR_S)
    assert counted(state, 0)
    state = BucketState.decode(state.encode())
    assert not counted(state, YEAR_S, boot_s=1)
    assert counted(state, 2, boot_s=2)
    assert counted(state, YEAR_S, boot_s=3, wall_s=YEAR_S)


def test_the_anchor_is_used_on_its_own_machine_only() -> None:
    state = BucketState()
    assert counted(state, 0)
    state = BucketState.decode(state.encode())
    assert counted(state, 2 * LEAP_S, boot_s=2 * LEAP_S, wall_s=-YEAR_S), "the time has passed"
    assert not counted(state, 4 * LEAP_S, boot_id="b", boot_s=4 * LEAP_S, wall_s=-YEAR_S), "another machine"
    assert counted(state, 3 * LEAP_S, boot_id="b", boot_s=4 * LEAP_S, wall_s=-YEAR_S), "it follows the agreed time"


def test_leaps_on_several_machines_do_not_add_up() -> None:
    """Each is small enough to count on a machine without an anchor."""
    state = BucketState()
    assert counted(state, 0, boot_id="0")
    ahead_s = [
        number * (LEAP_S - 1)
        for number in range(1, 20)
        if counted(state, number * (LEAP_S - 1), boot_id=str(number % 10), boot_s=number, wall_s=number)
    ]
    assert max(ahead_s) < 3 * LEAP_S
    assert counted(state, 30, boot_id="99", boot_s=30, wall_s=30), "a right clock still counts"


def test_an_operators_agreement_lasts_while_time_passes_on_a_machine() -> None:
    """The clocks of all machines are wrong. New machines begin a day after an operator has agreed with the brokers."""
    state, day_s = BucketState(), 86_400
    assert counted(state, 0, wall_s=-YEAR_S, accept_s=NOW_S)
    for now_s in (LEAP_S - 1, LEAP_S + 10, day_s):
        state = BucketState.decode(state.encode())
        assert counted(state, now_s, boot_s=now_s, wall_s=-YEAR_S)
    state = BucketState.decode(state.encode())
    assert not counted(state, day_s + LEAP_S + 10, boot_id="b", boot_s=7, wall_s=-YEAR_S), "a leap"
    assert counted(state, day_s - 3, boot_id="b", boot_s=17, wall_s=-YEAR_S), "a micro-batch reads its tick later"
    assert counted(state, 2 * day_s, boot_id="b", boot_s=day_s + 7, wall_s=-YEAR_S), "time passes there too"
    assert counted(state, 2 * day_s, boot_id="c", boot_s=2 * day_s, wall_s=-YEAR_S)
    assert not counted(BucketState(), day_s, boot_id="b", wall_s=-YEAR_S, accept_s=NOW_S), "not an instant later"


def test_leaps_after_an_operators_agreement_do_not_add_up_on_several_machines() -> None:
    state = BucketState()
    assert counted(state, 0, boot_id="0", wall_s=-YEAR_S, accept_s=NOW_S)
    ahead_s = [0]
    for number in range(1, 40):
        next_s, machine = ahead_s[-1] + LEAP_S - 20, str(number % 10)
        if counted(state, next_s, boot_id=machine, boot_s=number, wall_s=-YEAR_S):
            ahead_s.append(next_s)
        state = BucketState.decode(state.encode())
    assert max(ahead_s) < 2 * LEAP_S


def test_the_agreed_time_follows_a_clock_that_goes_back() -> None:
    """An operator agreed with a wrong time: once second clocks agree with the right one, no machine remembers it."""
    state = BucketState()
    for machine in ("a", "b"):
        assert counted(state, YEAR_S, boot_id=machine, wall_s=0, accept_s=NOW_S + YEAR_S)
    assert counted(state, 10, boot_id="a", boot_s=10, wall_s=10)
    assert counted(state, 11, boot_id="b", boot_s=11, wall_s=11)
    assert not counted(state, YEAR_S + 12, boot_id="c", boot_s=12, wall_s=12)
    assert counted(state, 13, boot_id="c", boot_s=13, wall_s=-YEAR_S)


def test_the_first_tick_of_a_new_app_may_differ_from_the_clock_of_the_machine() -> None:
    assert counted(BucketState(), 0, wall_s=7200, fired_s=None)
    assert not counted(BucketState(), 0, wall_s=2 * 86_400, fired_s=None)
    assert counted(BucketState(), 0, wall_s=7200, fired_s=NOW_S - LEAP_S), "after a lost checkpoint"
    assert not counted(BucketState(), 0, wall_s=7200, fired_s=NOW_S - LEAP_S - 1)


def test_anchors_of_machines_that_are_gone_are_forgotten() -> None:
    state = BucketState()
    for number in range(2 * ANCHORS):
        assert counted(state, number, boot_id=str(number), boot_s=number, wall_s=number)
    state = BucketState.decode(state.encode())
    assert set(state.anchors) == {str(number) for number in range(ANCHORS, 2 * ANCHORS)}
    for number in range(2 * ANCHORS):
        assert counted(state, 2 * ANCHORS, boot_id=f"new {number}", wall_s=-YEAR_S)
    assert len(state.agreed) == ANCHORS


def test_a_state_of_another_format_is_refused() -> None:
    encoded = BucketState().encode()
    assert encoded[1] == STATE_FORMAT
    with pytest.raises(CheckpointMismatch, match=f"has format {STATE_FORMAT - 1}, not {STATE_FORMAT}"):
        BucketState.decode(encoded[:1] + bytes([STATE_FORMAT - 1]) + encoded[2:])


# ---- a batch that cannot be read ------------------------------------------------------------------------------------


class WithABadBatch:
    """One partition of native timers, whose log cannot be read between the offsets 0 and 10."""

    commands: Sequence[Command] = ()

    def __init__(self) -> None:
        self.rig = NativeRig(topic=TP[0])
        self.parts: Any = SimpleNamespace(settings=Settings.load({"TIMERS_ACCEPT_LOSS": "r/1:0-9"}))

    def open(self, tp: TopicPartition, known: Known | None) -> RunningMachine:
        transaction: Any = SimpleNamespace(has_old_witness=False, held_from=set())
        names, metrics = (bytes(16), ProducerOpening(1, 1)), PartitionMetrics()
        return RunningMachine(Loop(self.rig.open()), transaction, *names, metrics, lambda: None, lambda _: None)

    def log_end(self, tp: TopicPartition) -> int:
        return 12

    def read(self, tp: TopicPartition, start: int, end: int) -> Generator[Fetched, None, None]:
        if start >= 10:
            yield Fetched(start, end, [])
            return
        error = UnreadableBatch("r/1: the record batch with the offsets 0 to 9 cannot be read")
        error.from_offset, error.end_offset, error.raw = 0, 10, b"raw"
        raise error


def test_a_batch_is_passed_over_if_the_operator_has_accepted_it() -> None:
    partitions: Any = WithABadBatch()
    run = MachineRun(TP, None, Read(12, 12, Lineage(), 12), Tick(NOW_S * 1000), partitions)
    run.go()
    assert partitions.rig.outbox.progress.settings.passed_over == ((0, 10),)
    assert partitions.rig.outbox.rejected == [(0, "batch-unreadable")] and run.done.is_complete


class WhoseCommitFails(WithABadBatch):
    """Its log is read again, and its engine ends when the first step of the machine fails."""

    reading: Generator[Fetched, None, None]

    def open(self, tp: TopicPartition, known: Known | None) -> RunningMachine:
        opened = super().open(tp, known)
        opened.loop.step = self._step  # type: ignore[method-assign]
        return opened

    def _step(self) -> Any:
        raise Lost("the commit failed")

    def reopen(self, tp: TopicPartition, error: Exception) -> RunningMachine:
        raise Lost("told to stop")

    def read(self, tp: TopicPartition, start: int, end: int) -> Generator[Fetched, None, None]:
        self.reading = (Fetched(start, start + 1, []) for start in range(start, end))
        return self.reading


def test_a_run_that_fails_leaves_no_open_reader_of_the_log() -> None:
    """Its thread would be waited for without end when the process ends."""
    partitions: Any = WhoseCommitFails()
    with pytest.raises(Lost, match="told to stop"):
        MachineRun(TP, None, Read(12, 12, Lineage(), 12), Tick(NOW_S * 1000), partitions).go()
    assert getgeneratorstate(partitions.reading) == GEN_CLOSED


def test_a_bucket_knows_the_epoch_after_the_last_transaction() -> None:
    """Each transaction of version 2 raises it, and the next opening follows that one."""
    partitions: Any = WithABadBatch()
    open_it = partitions.open
    partitions.open = lambda tp, known: open_it(tp, known)._replace(follows=lambda: ProducerOpening(1, 5))
    run = MachineRun(TP, None, Read(12, 12, Lineage(), 12), Tick(NOW_S * 1000), partitions)
    run.go()
    assert run.known is not None
    producer = run.known.producer
    assert producer.is_followed_by(ProducerOpening(1, 6)) and not producer.is_followed_by(ProducerOpening(1, 2))
