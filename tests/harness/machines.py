"""A machine over a simulated log, driven by hand: what property tests of any request format do with one."""

from __future__ import annotations

from collections.abc import Sequence

from timers.core.machine import Machine
from timers.core.timer import Forwarded
from timers.store.memory import MemoryStore
from timers.testing import SimLedger, SimLog
from timers.wire import cold

HORIZON_S = 12
"""Due seconds and ticks of these tests are below it."""


class ColdLedger(SimLedger):
    """Remembers what went cold, as whoever keeps it is told of it."""

    def __init__(self) -> None:
        super().__init__()
        self.cold: list[cold.Cold] = []

    def forward(self, forwarded: Sequence[Forwarded]) -> None:
        super().forward(forwarded)
        for record, due_s, secret in forwarded:
            told = cold.decode_cold(cold.encode_cold(record, record.source, due_s, secret))
            assert told is not None
            self.cold.append(told)


class MachineRig:
    """What a test that opens its machine as it likes needs besides; :meth:`tick` and :attr:`topic` are its own."""

    topic: str
    machine: Machine
    log: SimLog
    ledger: SimLedger
    store: MemoryStore

    def tick(self, second: int) -> None:
        raise NotImplementedError

    def fetch(self, count: int = 10**6) -> None:
        if self.machine.may_accept:
            self.machine.accept(self.log.fetch(self.topic, 0, self.machine.position, count))

    def fire(self) -> None:
        while self.machine.fire_chunk():
            pass

    def finish(self) -> None:
        """Everything comes in and comes due; the clock must not be thought to have gone back."""
        self.ledger.failing = 0
        fired_s = max(self.machine.progress.fired_through[0], HORIZON_S)
        self.tick(fired_s)
        while self.machine.position < self.log.end(self.topic, 0):
            self.fetch()
        self.tick(fired_s + 1)
        self.fire()
        self.machine.commit_progress()
