"""The thread that owns one machine.

Requests and ticks come in through a queue; nothing else touches the machine, so its steps never interleave. While it
waits for a transaction or for RocksDB, the event loop and the other machines go on.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from timers.core.machine import Machine, OutOfPlace
from timers.core.timer import Fetched, Tick
from timers.worker.partition_metrics import PartitionMetrics

logger = logging.getLogger(__name__)

MAX_WAITING = 4
"""Fetches that may wait for a machine before its partition is paused. Bounds memory: a fetch is at most
``worker.consumer.transport.MAX_FETCH_BYTES`` of raw records."""

IDLE_COMMIT_S = 60
"""A machine that only saw time pass commits this often, so that a new owner starts from a recent second."""

REWIND_AGAIN_S = 1.0
"""A rewind that brought no progress within this time is asked for again."""


class Listener(Protocol):
    """What a runner tells its owner. Every method is called from the runner's thread."""

    def on_pause_changed(self, runner: Runner) -> None:
        """:attr:`Runner.paused` has changed. Also called from :meth:`Runner.deliver`'s thread, so two words may come
        in the wrong order: what counts is how it stands when the last is heard."""

    def on_out_of_place(self, runner: Runner, position: int) -> None:
        """A fetch was lost on the way: read again from ``position``."""

    def on_recovered(self, runner: Runner, seconds: float) -> None:
        """All that was accepted before is in the store again; firing begins."""

    def on_failed(self, runner: Runner, error: BaseException) -> None:
        """The machine ended by itself."""


class Time(NamedTuple):
    """A tick, as it is handed over."""

    tick: Tick
    end: int | None
    """Where the log ended for committed readers once the tick was there; None if nobody asked."""


class Question(NamedTuple):
    """What somebody wants to know of a machine."""

    ask: Callable[[Machine], Any]
    answer: Future[Any]


class Ended(Exception):
    """The machine has ended; somebody else may know."""


_Stop = None
_Item: TypeAlias = Fetched | Time | Question | None
_T = TypeVar("_T")


class Runner:
    """Runs one machine on a thread of its own.

    Args:
        name: ``<topic>/<partition>``, for logs and the thread.
        machine: opened; from now on only this runner touches it.
        close: releases store and producer; called on the runner's thread at its end.
        stop: also watched by the machine's outbox.
        listener: learns what happens.
        metrics: of the partition.
    """

    def __init__(
        self,
        name: str,
        machine: Machine,
        close: Callable[[], None],
        stop: threading.Event,
        listener: Listener,
        metrics: PartitionMetrics,
    ) -> None:
        self.name = name
        self.machine = machine
        self._close = close
        self._stop = stop
        self._listener = listener
        self._metrics = metrics
        self._inbox: SimpleQueue[_Item] = SimpleQueue()
        self._waiting: deque[Fetched] = deque()
        self._questions: deque[Question] = deque()
        self._delivered = 0  # counted by the event loop's thread alone
        self._done = 0  # counted by this runner's alone
        self._paused = False
        self._firing = False
        self._commit_due = False
        self._last_commit = monotonic()
        self._recovering_since: float | None = monotonic()
        self._rewound_at: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"timers-{name}", daemon=True)

    @property
    def paused(self) -> bool:
        """Whether too many fetches wait."""
        return self._paused

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def deliver(self, fetched: Fetched) -> None:
        """Hand over a fetch. The event loop's thread."""
        self._delivered += 1
        self._inbox.put(fetched)
        if not self._paused and self._delivered - self._done >= MAX_WAITING:
            self._paused = True
            self._listener.on_pause_changed(self)

    def tick(self, tick: Tick, end: int | None = None) -> None:
        """Hand over the time, and where the log ended then. Any thread."""
        self._inbox.put(Time(tick, end))

    def ask(self, question: Callable[[Machine], _T]) -> Future[_T]:
        """Have something read on the machine's thread, between two of its steps: its time is the timers'. Any thread.

        The answer may be :class:`Ended`; and it never comes if the thread ended just now.
        """
        answer: Future[_T] = Future()
        self._inbox.put(Question(question, answer))
        return answer

    def stop(self) -> None:
        """Ask the thread to end after its present step; :meth:`join` waits for that. Any thread."""
        self._stop.set()
        self._inbox.put(_Stop)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end. False: it took longer."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # ---- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._tell_recovered()
            while self._take():
                self._step()
        except BaseException as error:
            self._listener.on_failed(self, error)
        finally:
            self._close()
            for question in self._questions:
                if question.answer.set_running_or_notify_cancel():
                    question.answer.set_exception(Ended())
            self._metrics.heartbeat.rest()

    def _take(self) -> bool:
        """Empty the inbox; wait for something if there is nothing else to do. False: the end."""
        idle = not self._firing and not self._commit_due and not self._questions and not self._can_accept()
        if idle:
            self._metrics.heartbeat.rest()
        while True:
            try:
                item = self._inbox.get(block=idle)
            except Empty:
                break
            idle = False
            if isinstance(item, Time):
                self._observe(*item)
                self._firing = self._commit_due = True
                self._metrics.oldest_due_s = self.machine.oldest_due_s
            elif isinstance(item, Question):
                self._questions.append(item)
            elif item is not None:
                self._waiting.append(item)
        self._metrics.heartbeat.beat()
        return not self._stop.is_set()

    def _observe(self, tick: Tick, end: int | None) -> None:
        held = self.machine.held
        self.machine.observe(tick, end)
        if self.machine.held and not held:
            logger.error("%s: the broker's clock went back; new requests wait until it has caught up", self.name)
        elif held and not self.machine.held:
            logger.info("%s: the broker's clock has caught up; accepting again", self.name)

    def _can_accept(self) -> bool:
        return bool(self._waiting) and self.machine.may_accept

    def _step(self) -> None:
        """At most one chunk, one fetch and one question, so that none waits for the end of the others."""
        if self._firing:
            self._firing = self.machine.fire_chunk()
        if self._can_accept() and not (self._firing and self.machine.fires_first):
            released_s = self.machine.released_s
            self._accept(self._waiting[0])
            self._firing = self._firing or self.machine.released_s != released_s
            self._waiting.popleft()
            self._done += 1
        if self._commit_due and not self._firing:
            idle_too_long = monotonic() - self._last_commit > IDLE_COMMIT_S
            if self.machine.commit_progress(even_if_idle=idle_too_long):
                self._last_commit = monotonic()
            self._commit_due = False
            self._metrics.oldest_due_s = self.machine.oldest_due_s
        self._resume_if_caught_up()
        if self._questions:
            self._answer(self._questions.popleft())

    def _answer(self, question: Question) -> None:
        if question.answer.set_running_or_notify_cancel():
            try:
                question.answer.set_result(question.ask(self.machine))
            except Exception as error:  # whoever asked may deal with it: the machine is none the worse
                question.answer.set_exception(error)

    def _accept(self, fetched: Fetched) -> None:
        try:
            self.machine.accept(fetched)
        except OutOfPlace as gap:
            # The fetches behind this one are out of place too: one rewind answers for all of them.
            if self._rewound_at is None or monotonic() - self._rewound_at > REWIND_AGAIN_S:
                self._rewound_at = monotonic()
                self._listener.on_out_of_place(self, gap.position)
        else:
            self._rewound_at = None
        self._tell_recovered()

    def _tell_recovered(self) -> None:
        if self._recovering_since is not None and not self.machine.recovering:
            self._listener.on_recovered(self, monotonic() - self._recovering_since)
            self._recovering_since = None
            self._firing = True

    def _resume_if_caught_up(self) -> None:
        if self._paused and self._delivered - self._done <= 1:
            self._paused = False
            self._listener.on_pause_changed(self)
