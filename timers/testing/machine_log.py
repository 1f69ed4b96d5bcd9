"""What an oracle knows of one machine: the requests of its log, and what its committed progress makes of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from timers.core.keys import OrderKey
from timers.core.operation import Entry
from timers.core.progress import Progress
from timers.testing.cold import ColdLog
from timers.testing.id_oracle import IdOracle, Request, is_ended
from timers.testing.schedules import ScheduleLog


@dataclass
class MachineLog:
    """All requests of one machine by offset, and its committed progress."""

    cold: ColdLog
    requests: dict[int, Request] = field(default_factory=dict)
    progress: Progress = Progress()  # noqa: RUF009  # frozen
    changed: bool = False
    id_oracle: IdOracle | None = None
    """Where timers have ids."""
    schedules: ScheduleLog | None = None
    """Where they are schedules; then nothing else here knows of them."""

    def pending(self, progress: Progress, next_offset: int) -> list[OrderKey]:
        """The sentence, minus what was replaced or cancelled, and what is cold."""
        return sorted(
            request.key
            for offset, request in self.requests.items()
            if offset < next_offset
            and request.key is not None
            and request.key > progress.fired_through
            and (request.original.end is None or request.original.end.offset >= next_offset)
            and self.cold.counts(request, progress, next_offset)
        )

    def entries(self, progress: Progress, applied: int) -> dict[bytes, Entry | None]:
        """What the index must hold."""
        assert self.id_oracle is not None
        told = self.id_oracle.entries(applied)
        for id, entry in told.items():
            request = None if entry is None else self.requests[entry[1]]
            if request is not None and self.cold.is_cold(request, progress):
                told[id] = self.cold.entry(request, applied) or entry
        return told

    def away(self, progress: Progress) -> int:
        """How many are cold."""
        return sum(
            offset < progress.next_offset
            and self.cold.is_cold(request, progress)
            and not is_ended(request, progress.next_offset)
            and self.cold.counting(request, progress.next_offset) is None
            for offset, request in self.requests.items()
        )
