"""The classes that a simulated worker and its machines are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from tests.simulation.kit.outbox import SimTransactions
from tests.simulation.kit.store import SimStore
from timers.core.clock_guard import ClockGuard
from timers.core.horizon import Horizon
from timers.core.index import Index, ScheduleIndex
from timers.core.loop import Loop
from timers.core.machine import Machine
from timers.core.only_if import ConditionalIndex
from timers.core.second_barrier import SecondBarrier
from timers.machines.partition import PartitionSpec


@dataclass(frozen=True)
class Parts:
    """The classes that a worker is made of. Mutations replace one of them by a broken one."""

    machine: type[Machine] = Machine
    index: type[Index] = Index
    conditional_index: type[ConditionalIndex] = ConditionalIndex
    schedule_index: type[ScheduleIndex] = ScheduleIndex
    horizon: type[Horizon] = Horizon
    barrier: type[SecondBarrier] = SecondBarrier
    loop: type[Loop] = Loop
    producer: type[SimTransactions] = SimTransactions
    store: type[SimStore] = SimStore
    guard: type[ClockGuard] = ClockGuard


REAL = Parts()
"""The product's own classes."""


@dataclass(frozen=True)
class SimSpec(PartitionSpec):
    """A specification whose machines are made of parts, which stand in the product's module while it makes one."""

    parts: Parts = REAL

    def machine(self, *args: Any, **options: Any) -> Machine:
        parts = self.parts
        with patch.multiple(
            "timers.machines.partition",
            Machine=parts.machine,
            Index=parts.index,
            ConditionalIndex=parts.conditional_index,
            ScheduleIndex=parts.schedule_index,
            Horizon=parts.horizon,
            SecondBarrier=parts.barrier,
        ):
            return super().machine(*args, **options)
