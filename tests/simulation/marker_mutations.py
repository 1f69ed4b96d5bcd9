"""Classes that each break one rule of markers; the runs of :mod:`tests.simulation.marker_simulator` must find each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from timers.core.delivery import MarkerDelivery
from timers.core.index import Index
from timers.core.keys import OrderKey
from timers.core.markers import MarkerIndex
from timers.core.operation import Entries, OperationResults
from timers.core.timer import Decoded, Row, RowsByDue
from timers.testing import SimOutbox
from timers.testing.worker import Parts


class KeepAlivesAlwaysCount(MarkerIndex):
    """A KeepAlive counts also if the lease was over before it."""

    def _is_in_time(self, former_due_s: int, append_s: int) -> bool:
        return True


class KeepAlivesNeverCount(MarkerIndex):
    """A KeepAlive has no effect."""

    def _is_in_time(self, former_due_s: int, append_s: int) -> bool:
        return False


class JudgesByWhatHasFired(MarkerIndex):
    """A KeepAlive counts unless the message was delivered again: a replay does not know when that was."""

    _fired_s = -1

    def settle(
        self, decoded: Decoded, fired_through: OrderKey, committed: OrderKey
    ) -> tuple[RowsByDue, OperationResults]:
        self._fired_s = fired_through[0]
        return super().settle(decoded, fired_through, committed)

    def _is_in_time(self, former_due_s: int, append_s: int) -> bool:
        return former_due_s > self._fired_s


class ReplaysTheLastMarker(MarkerIndex):
    """A replay takes the last marker of each message, and so forgets the message itself."""

    def replay(self, decoded: Decoded) -> tuple[RowsByDue, Entries]:
        return Index.replay(self, decoded)

    def settle(
        self, decoded: Decoded, fired_through: OrderKey, committed: OrderKey
    ) -> tuple[RowsByDue, OperationResults]:
        rows, entries = MarkerIndex.replay(self, decoded)
        return rows, OperationResults(entries)


class IgnoresEnds(MarkerIndex):
    """An End has no effect."""

    def _fold(self, decoded: Decoded) -> Entries:
        decoded.operations = [each for each in decoded.operations if each[2] is not None]
        return super()._fold(decoded)


class WritesNoEnds(MarkerDelivery):
    """A message that is delivered again gets no End."""

    def fire(self, due_s: int, rows: Sequence[Row]) -> None:
        self._deliver(due_s, rows)


def _index(broken: type[MarkerIndex]) -> Parts:
    return Parts(marker_index=broken)


def _policy(change: type[Any]) -> Parts:
    """The broken policy replaces the policy of markers only."""

    class Outbox(SimOutbox):
        def __init__(self, log: Any, settings: Any, machine: Any, *more: Any) -> None:
            self.policy_change = change if machine[0] == settings.marker_topic else None  # type: ignore[misc]
            super().__init__(log, settings, machine, *more)

    return Parts(outbox=Outbox)


MUTATIONS = {
    "a KeepAlive always counts": _index(KeepAlivesAlwaysCount),
    "a KeepAlive never counts": _index(KeepAlivesNeverCount),
    "a KeepAlive counts by what has fired": _index(JudgesByWhatHasFired),
    "a replay takes the last marker": _index(ReplaysTheLastMarker),
    "an End has no effect": _index(IgnoresEnds),
    "no End for a message that is delivered again": _policy(WritesNoEnds),
}
