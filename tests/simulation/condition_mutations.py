"""Indexes that each break one rule of conditions [I27]; see :mod:`tests.simulation.mutations`."""

from __future__ import annotations

from timers.core.index import Index
from timers.core.keys import OrderKey
from timers.core.only_if import ConditionalIndex
from timers.core.operation import (
    CANCELLED_DUE_S,
    REFUSED,
    TOO_LATE,
    Entries,
    Entry,
    Operation,
    OperationResults,
    VerdictName,
)
from timers.core.timer import Decoded, RowsByDue
from timers.testing import SimWorker


class WithoutConditions(SimWorker):
    """A worker of runs in which timers with an id have no conditions."""

    conditions = False


class IgnoresConditions(ConditionalIndex):
    """Each request counts."""

    def _refusal(self, condition: str, former: Entry | None, append_s: int) -> VerdictName | None:
        return None


class ReplaysRefusedRequests(ConditionalIndex):
    """A replay takes the last record of each id."""

    def replay(self, decoded: Decoded) -> tuple[RowsByDue, Entries]:
        return Index.replay(self, decoded)


class KeepsRefusedRows(ConditionalIndex):
    """A refused request keeps its row: a late one fires."""

    def _fold(self, decoded: Decoded, fired_through: OrderKey | None) -> OperationResults:
        rows = decoded.rows
        results = super()._fold(decoded, fired_through)
        decoded.rows = rows
        return results


class ForwardsRefusedRequests(ConditionalIndex):
    """A refused request goes cold."""

    def _fold(self, decoded: Decoded, fired_through: OrderKey | None) -> OperationResults:
        forwarded = decoded.forwarded
        results = super()._fold(decoded, fired_through)
        decoded.forwarded = forwarded
        return results


class SendsNoRefusals(ConditionalIndex):
    """A refused request gets no verdict."""

    def _fold(self, decoded: Decoded, fired_through: OrderKey | None) -> OperationResults:
        results = super()._fold(decoded, fired_through)
        return results._replace(verdicts=[each for each in results.verdicts if each.verdict not in REFUSED])


class FiredIsAbsent(ConditionalIndex):
    """What has fired decides whether an id is absent."""

    _fired: OrderKey = (-1, 0)

    def _fold(self, decoded: Decoded, fired_through: OrderKey | None) -> OperationResults:
        self._fired = fired_through or self._fired
        return super()._fold(decoded, fired_through)

    def _is_past(self, entry: Entry, time_s: int) -> bool:
        return not self._is_pending(entry, self._fired)


class SweepsWhatHasFired(ConditionalIndex):
    """Entries are removed by the second that has fired."""

    def sweep(self, fired_through: OrderKey) -> None:
        self._sweeper.sweep(lambda entry: Index._is_over(self, entry, fired_through))


class SweepsPendingIds(ConditionalIndex):
    """Entries are removed by append times alone, also if their timers have not fired."""

    def _is_pending(self, entry: Entry | None, fired_through: OrderKey) -> bool:
        return super()._is_pending(entry, fired_through) and not self._sweeps

    _sweeps = False

    def sweep(self, fired_through: OrderKey) -> None:
        self._sweeps = True
        super().sweep(fired_through)
        self._sweeps = False


class CancelledIsAbsent(ConditionalIndex):
    """A cancelled id is absent at once."""

    @staticmethod
    def _entry_after(operation: Operation, former: Entry | None, time_s: int) -> Entry | None:
        entry = ConditionalIndex._entry_after(operation, former, time_s)
        return None if entry is not None and entry[0] == CANCELLED_DUE_S else entry


class CancelsOfNothingCount(ConditionalIndex):
    """A cancel without a timer makes an id exist."""

    @staticmethod
    def _entry_after(operation: Operation, former: Entry | None, time_s: int) -> Entry | None:
        entry = ConditionalIndex._entry_after(operation, former, time_s)
        return entry or (CANCELLED_DUE_S, operation[1], time_s)


class UsesThePresentRetention(ConditionalIndex):
    """The present retention holds for all offsets."""

    def _retention_at(self, offset: int) -> int:
        return self._retention_s


class ForgetsTheTime(ConditionalIndex):
    """The latest append time is that of the batch alone."""

    @staticmethod
    def _time_of(entry: Entry | None) -> int:
        return 0


class CopiesHaveTheirOwnSource(ConditionalIndex):
    """After a promotion a condition must name the copy."""

    @staticmethod
    def _version(entry: Entry | None) -> int:
        return ConditionalIndex._version(None if entry is None else entry[:3])


class IsNeverTooLate(ConditionalIndex):
    """A change may come in the due second of its version, or later."""

    def _refusal(self, condition: str, former: Entry | None, append_s: int) -> VerdictName | None:
        refusal = super()._refusal(condition, former, append_s)
        return None if refusal == TOO_LATE else refusal


class JudgesByTheStoreAlone(ConditionalIndex):
    """A condition does not see the earlier records of its batch."""

    def _fold(self, decoded: Decoded, fired_through: OrderKey | None) -> OperationResults:
        entries: Entries = {}
        results = OperationResults(entries)
        for operation in decoded.operations:
            alone = Decoded(operations=[operation], append_s=decoded.append_s, conditions=decoded.conditions)
            one = super()._fold(alone, fired_through)
            entries.update(one.entries)
            decoded.drop([each.offset for each in one.verdicts if each.verdict in REFUSED])
            results = OperationResults(
                entries, [*results.verdicts, *one.verdicts], refused=results.refused + one.refused
            )
        return results


class JudgesWithoutHoles(ConditionalIndex):
    """The verdict on a timer that has fired by a wrong clock says that it was cancelled or replaced."""

    def _has_fired(self, entry: Entry, fired_through: OrderKey) -> bool:
        return entry[:2] <= fired_through
