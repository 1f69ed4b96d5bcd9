"""The steps of one machine: in which order it observes time, fires, accepts and commits.

The worker (:mod:`timers.worker.machines.runner`) calls :meth:`Loop.step` from a thread, the simulator of the tests and
:class:`timers.testing.SimTimers` call it as well. All run this code. Threads, queues, back-pressure and clocks are
outside.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from timers.core.fired import Command
from timers.core.lineage import Leader
from timers.core.machine import Machine
from timers.core.ports import ReadAgain
from timers.core.timer import Fetched, Tick

MAX_WAITING_FETCHES = 4
"""Number of fetches that may wait for a machine before its partition is paused."""


IDLE_COMMIT_S = 60
"""Seconds between the commits of a machine for which only time passes, at most. So a new owner starts from a recent
second."""


class Outcome(NamedTuple):
    """What one step did, for the owner of the loop."""

    consumed: bool = False
    """One waiting fetch was taken, accepted or not."""
    read_again_from: int | None = None
    """The fetch was not accepted: the consumer must read the log again from this offset [I7]."""
    settled: bool = False
    """All due timers have fired, and progress was committed if it had changed."""
    committed: bool = False
    """Progress was committed without firings."""
    must_ask_end: bool = False
    """The end of the log that came with a tick was held back by the machine's own transaction, and no timer is due any
    more whose transaction would hold it back again: ask for it again [I17]."""


class Loop:
    """Drives one machine. Not thread-safe: one thread owns it.

    Attributes:
        fetches: fetches that wait for the machine, oldest first.
        firing: whether timers may be due that have not fired.
        commands: about targets, ascending by number; the machine takes those that it has not taken yet.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.fetches: deque[Fetched] = deque()
        self._ticks: deque[tuple[Tick, int | None]] = deque()
        self.firing = False
        self.commands: Sequence[Command] = ()
        self._commit_due = self._may_take = self._must_ask_end = False

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing."""
        if self.machine.rescue_count and self.firing:
            return False
        return not (self._ticks or self.firing or self._commit_due or self._may_accept())

    @property
    def untrusted_leader(self) -> Leader | None:
        """The leader of the first waiting fetch, if the log must be compared before the fetch is accepted [I28]."""
        return self.machine.untrusted_leader(self.fetches[0]) if self.fetches else None

    def add_fetch(self, fetched: Fetched) -> None:
        """Append a fetch to those that wait."""
        self.fetches.append(fetched)

    def add_tick(self, tick: Tick, end: int | None = None) -> None:
        """Append a tick to those that wait.

        Args:
            end: the end of the log for committed readers, read after the tick was appended; None if it is not known.
        """
        self._ticks.append((tick, end))

    def step(self) -> Outcome:
        """Observe all waiting ticks, then do at most one chunk, one fetch and one commit of progress. Rows that holds
        release come after all that are due.

        So a long backlog of one kind does not delay the others. If only time has passed, nothing is committed: that is
        left to the owner.

        Raises:
            Lost: drop the machine and open it again [I5].
            Fenced: another worker owns the machine.
        """
        self._may_take |= bool(self._ticks)
        while self._ticks:
            self.machine.observe(*self._ticks.popleft())
            self.firing = self._commit_due = True
            self._must_ask_end = self.machine.must_ask_end
        if self.machine.rescue_count:
            self.machine.rescue_chunk()
            return Outcome()
        self._may_take &= bool(self.commands or self.machine.progress.holds)
        if self._may_take:  # the commands may be taken in a later step than they came in, after a replay
            self.machine.take(self.commands)
        is_draining = self.firing and self.machine.fire_chunk()
        if self.firing and not is_draining:
            if self._may_take and self.machine.is_drained:
                self.machine.take(self.commands)
                self._may_take = False
            self.firing = self.machine.release_chunk()
        consumed, read_again_from = False, None
        if self._may_accept() and not (is_draining and self.machine.fires_first):
            try:
                if self.machine.accept(self.fetches[0], self.commands):
                    self.firing = is_draining = True
            except ReadAgain as refused:
                read_again_from = refused.position
            self.fetches.popleft()
            consumed = True
        settled, committed = self._commit_due and not is_draining, False
        if settled:  # once for each tick
            committed = self.machine.commit_progress()
            self._commit_due = False
        must_ask_end = self._must_ask_end and not is_draining
        self._must_ask_end &= is_draining
        return Outcome(consumed, read_again_from, settled, committed, must_ask_end)

    def _may_accept(self) -> bool:
        return bool(self.fetches) and self.machine.takes(self.fetches[0])
