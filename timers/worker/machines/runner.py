"""The thread that owns one machine.

Requests, ticks and questions come through a queue, and only this thread calls the machine.
:class:`timers.core.loop.Loop` decides the order of the steps. While the thread waits for a transaction or for RocksDB,
the event loop and the other machines run on.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from timers.core.fired import Command
from timers.core.lineage import Leader
from timers.core.loop import IDLE_COMMIT_S, MAX_WAITING_FETCHES, Loop, Outcome
from timers.core.machine import Machine
from timers.core.ports import Lost, View
from timers.core.progress import WITNESS_S
from timers.core.snapshots import ASSUMED_REQUEST_BYTES
from timers.core.timer import Fetched, Tick, TopicPartition
from timers.errors import MachineStopped
from timers.machines.firing.transaction import Transaction
from timers.machines.life import ReadAhead
from timers.machines.store.failures import forget_frames
from timers.process.partition_metrics import PartitionMetrics
from timers.wire.topics import partition_name

logger = logging.getLogger(__name__)

MAX_WAITING_BYTES = 2 * 1024 * 1024
"""Unpacked bytes of the fetches that may wait for a machine before its partition is paused; one may always wait."""

SPREAD_S = 16
"""The machines of a worker, which may be opened at one moment, commit so many seconds apart."""

QUIET_S = 0.2
"""Seconds after a tick at which a machine does what no receiver should wait for, if no timer is due: it commits that
time has passed, tells the group what it has committed, and asks about the callback topics of the next timers."""

QUIET_SLOTS, QUIET_SLOT_S = 8, 0.05
"""Slots over which the quiet times of the machines of a worker are spread, and seconds between two of them: if all
told the group at one moment, the coordinator would answer some of them only after the next tick."""

TELLING_END_S = 0.7
"""Seconds after a tick from which on a machine does not begin to tell the group: where transactions take long, it would
still wait for the answers at the next tick. A transaction that fires then tells it (:data:`WITNESS_S`)."""

SOON_S = 2
"""Seconds before the first timers are due at which a machine that does not fire asks about their callback topics: else
the timers of the first second wait for the answers, 10 to 20 ms."""

REWIND_AGAIN_S = 1.0
"""Seconds after which a rewind is requested again, if it had no effect."""


class OpenMachine(NamedTuple):
    """A machine whose thread may start."""

    machine: Machine
    transaction: Transaction
    close: Callable[[], None]
    """Releases its store and producer."""
    stop: threading.Event
    """When set, it ends the waiting for brokers."""
    view: Callable[[], View]
    """Returns a view of its store. Call it on the machine's thread."""
    expect: Callable[[Collection[str]], None]
    """Asks about the callback topics of timers that are due soon."""
    reads_ahead: bool = False
    """Another worker owns the machine and fires it. This one only reads its log again: it gets no ticks, and its runner
    ends with :class:`ReadAhead`."""


class QueuedTick(NamedTuple):
    """A tick in the queue."""

    tick: Tick
    end: int | None
    """End of the log for committed readers, read after the tick was appended; None if it is not known."""


class Question(NamedTuple):
    """A function to call with the machine between two steps, and the future of its result."""

    ask: Callable[[Machine], Any]
    answer: Future[Any]


class Ended(Lost):
    """The machine has ended before it could answer. Another worker may own the partition now."""


_Stop = None
_Item: TypeAlias = Fetched | QueuedTick | Question | Leader | None
_T = TypeVar("_T")


class RequestConsumer(Protocol):
    """The consumer that delivers fetches to the pool. Its methods run on the event loop."""

    def wake(self) -> None:
        """Fetch again at once, from partitions that :meth:`timers.worker.machines.pool.Pool.with_room` names again."""

    def read_from(self, partition: TopicPartition, offset: int) -> None:
        """Read a partition from ``offset`` on, soon."""

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Read these partitions no more."""

    async def owns(self, partition: TopicPartition) -> bool | None:
        """Ask the group's coordinator whether this worker owns a partition; None without an answer."""


class Reports(Protocol):
    """The pool, which gets what the runners of a worker report. Its methods run on the event loop."""

    consumer: RequestConsumer

    def on_read_again(self, runner: Runner, position: int) -> None: ...
    def on_new_leader(self, runner: Runner, leader: Leader) -> None: ...
    def on_end_held_back(self, runner: Runner) -> None: ...
    def on_recovered(self, runner: Runner, seconds: float) -> None: ...
    def on_failed(self, runner: Runner, error: BaseException) -> None: ...


class Runner:
    """Runs one machine on a thread of its own.

    Args:
        tp: the partition.
        opened: from now on only this runner calls the machine, and its thread closes it.
        post: calls a function later, on the event loop of the pool.

    Attributes:
        name: ``<topic>/<partition>``, for logs and the thread.
        paused: whether too many fetches wait.
        view: returns a view of the machine's store; call it in a question (:meth:`ask`).
        is_recovered: whether the recovery of the machine was logged. On the event loop of the pool.
    """

    def __init__(
        self,
        tp: TopicPartition,
        opened: OpenMachine,
        pool: Reports,
        post: Callable[..., object],
        metrics: PartitionMetrics,
    ) -> None:
        self.tp, self.name = tp, partition_name(*tp)
        self.is_recovered = False
        self.machine, self._transaction, self._close, self._stop, self.view, self._expect, self.reads_ahead = opened
        self._pool = pool
        self._post = post
        self._loop = Loop(self.machine)
        self._metrics = metrics
        self._inbox: SimpleQueue[_Item] = SimpleQueue()
        self._questions: deque[Question] = deque()
        self._first_position = self.machine.position
        self._delivered = self._delivered_bytes = 0  # written by the event loop's thread only
        self._consumed = self._consumed_bytes = 0  # written by the runner's thread only
        self.paused = False
        self._clock_is_behind = False
        # Only time may have passed, and the group may lack what a former owner committed before it was killed [I8].
        self._idle_commit_s = IDLE_COMMIT_S - tp[1] % SPREAD_S
        self._later_s = tp[1] % QUIET_SLOTS * QUIET_SLOT_S
        self._last_commit = monotonic() - self._idle_commit_s + WITNESS_S
        self._is_quiet_time_left = False
        """Whether the quiet time after the last tick is still to come."""
        self._fired_before = 0
        """Number of callbacks before the last tick."""
        self._ticked_at = 0.0
        self._ticked_s: int | None = None
        self._has_fired = False
        self._recovering_since: float | None = monotonic()
        self._rewound_at: float | None = None
        self._reported_leader: Leader | None = None
        self._thread = threading.Thread(target=self._run, name=f"timers-{self.name}", daemon=True)

    @property
    def record_bytes(self) -> float:
        """Mean size of a request that this runner got, unpacked. Any thread."""
        records = self.machine.position - self._first_position
        return self._delivered_bytes / records if records > 0 else ASSUMED_REQUEST_BYTES

    @property
    def waiting_bytes(self) -> int:
        """Unpacked bytes of the fetches that wait for the machine. Any thread."""
        return self._delivered_bytes - self._consumed_bytes

    def command(self, commands: Sequence[Command]) -> None:
        """Let the machine take these commands about targets with its next tick. Any thread.

        Args:
            commands: ascending by number; those that it has taken before have no effect.
        """
        self._loop.commands = commands

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def deliver(self, fetched: Fetched) -> None:
        """Put a fetch into the queue. Call on the event loop's thread."""
        self._delivered += 1
        self._delivered_bytes += fetched.size
        self._inbox.put(fetched)
        waiting = self._delivered - self._consumed
        if waiting >= MAX_WAITING_FETCHES or (waiting > 1 and self.waiting_bytes >= MAX_WAITING_BYTES):
            self.paused = True

    def tick(self, tick: Tick, end: int | None = None) -> None:
        """Put a tick into the queue, with the end of the log after it. Any thread."""
        if not self.reads_ahead:
            self._inbox.put(QueuedTick(tick, end))

    def trust(self, leader: Leader) -> None:
        """Accept fetches from a new leader, whose log is the same. Any thread."""
        self._inbox.put(leader)

    def ask(self, question: Callable[[Machine], _T]) -> Future[_T]:
        """Call ``question`` on the machine's thread between two steps. Timers wait meanwhile. Any thread.

        The future may fail with :class:`Ended`. If the thread ended before this call, the future never completes.
        """
        answer: Future[_T] = Future()
        self._inbox.put(Question(question, answer))
        return answer

    def commit_soon(self) -> None:
        """Commit soon after the next tick, even if nothing has changed: so a fenced machine finds out. Any thread."""
        self._last_commit = monotonic() - 2 * IDLE_COMMIT_S

    def commit_to(self, progress_partition: int) -> None:
        """Write the progress to this partition of its topic from now on, and soon: the topic was made anew, or has more
        partitions. Any thread."""
        self._transaction.progress_partition = progress_partition
        self.commit_soon()

    def stop(self) -> None:
        """Tell the thread to end after its present step; see :meth:`join`. Any thread."""
        self._stop.set()
        self._inbox.put(_Stop)

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end. Returns False after ``timeout_s`` seconds."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # ---- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Do steps until the machine must end. After a failed transaction the pool opens the machine again."""
        try:
            self._report_recovery()
            while self._take():
                self._note_wait()
                size = self._loop.fetches[0].size if self._loop.fetches else 0
                self._report(self._loop.step(), size)
                if self._has_quiet_work and not (self._loop.firing or self._until_quiet_s()):
                    self._work_quietly()
                if self._questions:  # one in each step, so that questions do not delay timers
                    self._answer(self._questions.popleft())
        except BaseException as error:
            forget_frames(error)
            self._post(self._pool.on_failed, self, error)
        finally:
            try:
                self._close()
            finally:
                for question in self._questions:
                    if question.answer.set_running_or_notify_cancel():
                        question.answer.set_exception(Ended())
                self._metrics.heartbeat.rest()

    def _take(self) -> bool:
        """Empty the queue; if there is nothing else to do, wait for an item. Returns False when the thread must end."""
        self._report_new_leader()
        wait = self._loop.idle and not self._questions
        if wait:
            self._metrics.heartbeat.rest()
        while True:
            try:
                item = self._inbox.get(wait, self._until_quiet_s() if self._has_quiet_work else None)
            except Empty:
                break
            wait = False
            if isinstance(item, QueuedTick):
                self._loop.add_tick(*item)
                self._ticked_at, self._ticked_s, self._is_quiet_time_left = monotonic(), item.tick.second, True
                self._fired_before = self.machine.counters.fired
                # Also before the step: a step may take seconds, and metrics must show the lag meanwhile.
                self._metrics.oldest_due_s = self.machine.oldest_due_s
            elif isinstance(item, Question):
                self._questions.append(item)
            elif isinstance(item, Leader):
                self.machine.trust(item)
            elif item is not None:
                self._loop.add_fetch(item)
        self._metrics.heartbeat.beat()
        return not self._stop.is_set()

    @property
    def _is_idle_too_long(self) -> bool:
        is_due = self._is_quiet_time_left and monotonic() - self._last_commit > self._idle_commit_s
        return is_due and not (self.machine.recovering or self.machine.rescue_count)

    @property
    def _begins_to_fire_soon(self) -> bool:
        due_s, now_s = self._metrics.oldest_due_s, self._ticked_s
        is_soon = due_s is not None and now_s is not None and now_s < due_s <= now_s + SOON_S
        return self._is_quiet_time_left and is_soon and self.machine.counters.fired == self._fired_before

    @property
    def _may_tell_group(self) -> bool:
        return self._transaction.has_old_witness and monotonic() < self._ticked_at + TELLING_END_S

    @property
    def _has_quiet_work(self) -> bool:
        return self._is_idle_too_long or self._may_tell_group or self._begins_to_fire_soon

    def _work_quietly(self) -> None:
        """Commit what no receiver waits for, and ask about the callback topics of the first of the next timers."""
        if self._is_idle_too_long:
            self.machine.commit_progress(even_if_idle=True)
            self._last_commit = monotonic()
        if self._may_tell_group:
            self._transaction.tell_group()
        if self._begins_to_fire_soon:
            _, rows = next(self.machine.waiting(self.machine.progress.fired_through), (None, ()))
            self._expect({row[1] for row in rows})
        self._is_quiet_time_left = False

    def _until_quiet_s(self) -> float:
        return max(0.0, self._ticked_at + QUIET_S + self._later_s - monotonic())

    def _report(self, outcome: Outcome, fetch_size: int) -> None:
        """Report what one step has changed; ``fetch_size`` is that of the first fetch that waited."""
        if outcome.consumed:
            self._consumed += 1
            self._consumed_bytes += fetch_size
            self._report_recovery()
            self._rewind(outcome.read_again_from)
        if outcome.must_ask_end:
            self._post(self._pool.on_end_held_back, self)
        if outcome.committed:
            self._last_commit = monotonic()
        if outcome.settled:
            self._metrics.oldest_due_s = self.machine.oldest_due_s
        if self.paused and self._delivered - self._consumed <= 1:
            self.paused = False
            self._post(self._pool.consumer.wake)
        if self.machine.clock_is_behind != self._clock_is_behind:
            self._clock_is_behind = self.machine.clock_is_behind
            if self._clock_is_behind:
                logger.error("%s: the broker's clock went back; new requests wait until it has caught up", self.name)
            else:
                logger.info("%s: the broker's clock has caught up; accepting again", self.name)

    def _rewind(self, position: int | None) -> None:
        """Request the log from ``position`` again; None: the last fetch was accepted.

        If a fetch leaves a gap, the waiting fetches after it do too: one rewind is enough for all of them.
        """
        if position is None:
            self._rewound_at = None
        elif self._rewound_at is None or monotonic() - self._rewound_at > REWIND_AGAIN_S:
            self._rewound_at = monotonic()
            self._post(self._pool.on_read_again, self, position)

    def _report_new_leader(self) -> None:
        leader = self._loop.untrusted_leader
        if leader is not None and leader != self._reported_leader:
            self._post(self._pool.on_new_leader, self, leader)
        self._reported_leader = leader

    def _report_recovery(self) -> None:
        if self.reads_ahead and not self.machine.recovering:
            raise ReadAhead
        if self._recovering_since is not None and not self.machine.recovering:
            seconds, self._recovering_since = monotonic() - self._recovering_since, None
            self._post(self._pool.on_recovered, self, seconds)

    def _note_wait(self) -> None:
        """Note once how long the oldest due timer had waited when the machine begins to fire."""
        if self._ticked_s is not None and not self._has_fired and not self.machine.recovering:
            self._has_fired = True
            due_s = self.machine.oldest_due_s
            self._metrics.waits.observe(0.0 if due_s is None else max(0.0, self._ticked_s - due_s))

    def _answer(self, question: Question) -> None:
        if question.answer.set_running_or_notify_cancel():
            try:
                question.answer.set_result(question.ask(self.machine))
            except BaseException as error:  # the caller gets it; the machine continues, unless it must stop
                question.answer.set_exception(error)
                if isinstance(error, (Lost, MachineStopped)):
                    raise
