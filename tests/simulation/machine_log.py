"""The state that a machine must have, computed from the requests of its log and its committed progress."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.simulation.cold import ColdLog
from tests.simulation.id_oracle import IdOracle, Request, is_ended
from tests.simulation.schedules import ScheduleLog
from timers.core.keys import OrderKey
from timers.core.levels import FIRST_LEVEL
from timers.core.operation import Entry
from timers.core.ports import Decoder
from timers.core.progress import FEATURE_LEVEL, Progress
from timers.wire.formats import RequestFormat

NO_WITNESS = 0, ""


@dataclass
class MachineLog:
    """All requests of one machine by offset, and its committed progress."""

    cold: ColdLog
    requests: dict[int, Request] = field(default_factory=dict)
    progress: Progress = Progress()  # noqa: RUF009  # frozen
    changed: bool = False
    needs_witness: bool = False
    """Whether a commit was made since the last check."""
    witness: tuple[int, str] = NO_WITNESS
    """Offset and second copy of the progress in the group, as they were at the last check."""
    witnessed_s: float = 0.0
    """When it was last seen to be new or the newest."""
    id_oracle: IdOracle | None = None
    """None: its timers have no ids, or are schedules."""
    schedules: ScheduleLog | None = None
    """None: its requests are no schedules. Schedules are only here, not in ``requests``."""

    forgotten_below: int = 0
    """Some requests below this offset were forgotten."""
    forgotten_through: OrderKey = (-1, 0)
    """They had fired when the machine had fired up to this key."""

    @classmethod
    def of(cls, request_format: RequestFormat) -> MachineLog:
        """Returns the log of a machine that nothing was written to."""
        log = cls(ColdLog(request_format))
        if request_format.topic_is_compacted:
            log.schedules = ScheduleLog()
        elif request_format.has_ids:
            log.id_oracle = IdOracle(log.cold.first_copy, log.cold.is_cold, request_format.has_conditions)
        return log

    def level_at(self, offset: int) -> int:
        """The feature level at which a request is read."""
        return self.progress.setting_at(FEATURE_LEVEL, offset, FIRST_LEVEL)

    def read_again(self, decode: Decoder, max_request_bytes: int) -> None:
        """After a raise, read the requests since then at the new level."""
        for offset, request in self.requests.items():
            if request.key is not None and self.level_at(offset) == self.progress.level:
                (due_s,) = decode([request.record], max_request_bytes).rows
                request.key = (due_s, offset)

    def pending(self, progress: Progress, next_offset: int) -> list[OrderKey]:
        """Order keys of the pending timers: not fired, replaced, cancelled or cold."""
        return sorted(
            request.key
            for offset, request in self.requests.items()
            if offset < next_offset
            and request.key is not None
            and not request.has_fired(progress)
            and not request.refused
            and (request.original.end is None or request.original.end.offset >= next_offset)
            and self.cold.is_timer(request, progress, next_offset)
        )

    def entries(self, applied: int) -> dict[bytes, Entry | None]:
        """The entries that the index must hold."""
        assert self.id_oracle is not None
        return self.id_oracle.entries(applied)

    def all_requests(self) -> list[Request]:
        """All requests, schedules too."""
        return [request for _, request in self.timers()]

    def timers(self) -> list[tuple[int, Request]]:
        """(offset, request) of all that may be timers."""
        return [*self.requests.items(), *({} if self.schedules is None else self.schedules.requests).items()]

    def unsettled(self) -> set[str]:
        """The names of the requests that have no outcome yet."""
        progress, next_offset = self.progress, self.progress.next_offset
        if self.schedules is not None:
            return {self.schedules.requests[offset].name for _, offset in self.schedules.pending(next_offset, progress)}
        pending = {self.requests[offset].name for _, offset in self.pending(progress, next_offset)}
        unread_or_cold = {
            request.name
            for offset, request in self.requests.items()
            if offset >= next_offset
            or (
                self.cold.is_cold(request, progress)
                and not is_ended(request, next_offset)
                and self.cold.first_copy(request, next_offset) is None
            )
        }
        return pending | unread_or_cold

    def forget_ids(self, names: set[str], retention_s: int) -> set[str]:
        """Forget the ids whose last entry is over, and all of whose requests are settled.

        Args:
            names: of the requests that are not settled.

        Returns:
            The names of the requests that are left.
        """
        if self.schedules is not None:
            return self.schedules.forget(names)
        return set() if self.id_oracle is None else self.id_oracle.forget(names, self.progress, retention_s)

    def forget(self, names: set[str]) -> None:
        """Forget all requests but those with these names."""
        self.forgotten_below, self.forgotten_through = self.progress.next_offset, self.progress.fired_through
        self.requests = {offset: each for offset, each in self.requests.items() if each.name in names}
        for by_offset in (self.cold.copies, self.cold.forwarded):
            for offset in by_offset.keys() - self.requests.keys():
                del by_offset[offset]

    def cold_requests(self, progress: Progress) -> int:
        """Number of cold requests that are neither promoted nor ended."""
        return sum(
            offset < progress.next_offset
            and self.cold.is_cold(request, progress)
            and not is_ended(request, progress.next_offset)
            and self.cold.first_copy(request, progress.next_offset) is None
            for offset, request in self.requests.items()
        )
