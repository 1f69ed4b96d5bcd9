"""Requests with a condition: they count only if their id is as the sender believed [I27].

The header ``timer-if`` of a request or a cancel holds the condition:

``absent``
    No record of the id counts, or the last one is over: its timer fired, or it was cancelled, some time ago. This time
    is the retention that was in force at the offset of that record.
a source
    The latest record of the id that counts is the one with this source, the request was appended before the due
    second of that version, and the version has not fired when the request is accepted. A promoted copy has the source
    of its request.

A request whose condition is not true changes nothing. Each request with a condition gets a verdict.

A replay must decide alike, so it decides by append times, which are in the log, and by one list: the requests that were
readable only after their version had fired. They may stand behind another producer's open transaction. The transaction
with the verdict on such a request adds its offset to :attr:`timers.core.progress.Progress.late_changes`.

Time is the latest append time of all records with an id so far. It never goes back, although the clocks of brokers may.
So what is over stays over, and its entry may be removed at any later time. The time is an entry of the index too, under
:data:`TIME_ID`: it is written with the records that it comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from timers.core.index import Index, latest, nothing_is_cold
from timers.core.operation import (
    ABSENT,
    ALREADY_FIRED,
    CANCELLED,
    CHANGED,
    EXISTS,
    NO_VERSION,
    REPLACED,
    SET,
    TOO_LATE,
    UNCHANGED,
    UNKNOWN,
    Entries,
    Entry,
    Operation,
    OperationResults,
    Verdict,
    VerdictName,
    cancelled,
    chain_of,
    defined,
    digest_of,
    due_s_of,
    id_of,
    is_cancelled,
    offset_of,
    place_of,
    repeated,
    repeating,
    request_of,
    version_of,
)
from timers.core.ports import Store
from timers.core.progress import MOST_LATE_CHANGES, VERDICT_RETENTION, Cuts, Progress, cut_suffix
from timers.core.timer import Decoded, Definition, RowsByDue

TIME_ID = b""
"""No timer has an empty id."""


class _LateChanges:
    """The requests of a batch that were readable only after the version that they name had fired [I27].

    Attributes:
        offsets: of the new ones, for the list in the progress.
        unlisted: number of those that count, because the list is full.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.offsets: list[int] = []
        self.unlisted = 0

    def takes(self, offset: int) -> bool:
        """Whether such a request is refused. It is if the list has room for it."""
        if len(self._progress.late_changes) + len(self.offsets) < MOST_LATE_CHANGES:
            self.offsets.append(offset)
            return True
        self.unlisted += 1
        return False


class ConditionalIndex(Index):
    """The index of a topic whose requests may have conditions.

    Args:
        place: ``<topic>/<partition>`` of the machine.
        on_full: called when a request counts although its version has fired, because the list is full; once until the
            list has taken another one.
    """

    def __init__(
        self,
        store: Store,
        retention_s: int,
        is_cold: Callable[[Entry], bool] = nothing_is_cold,
        place: str = "",
        on_full: Callable[[str], None] = lambda place: None,
    ) -> None:
        super().__init__(store, retention_s, is_cold)
        self._place, self._on_full = place, on_full
        self._was_full = False
        self._retentions: list[tuple[int, int]] = []
        self._cuts: Cuts = ()

    def enter(self, progress: Progress) -> None:
        changes = progress.settings
        self._cuts = progress.cuts
        self._retentions = [(each.from_offset, each.value) for each in changes if each.name == VERDICT_RETENTION]

    @property
    def id_retention_s(self) -> int | None:
        return max((value for _, value in self._retentions), default=self._retention_s)

    # ---- accepting --------------------------------------------------------------------------------------------------

    def settle(self, decoded: Decoded, progress: Progress, committed: Progress) -> tuple[RowsByDue, OperationResults]:
        if not decoded.operations:
            return decoded.rows, OperationResults({})
        results = self._fold(decoded, progress)
        self.sweeper.note_written(len(decoded.operations) - len(decoded.follows) * 7 // 8)
        return decoded.rows, results

    def replay(self, decoded: Decoded, progress: Progress) -> tuple[RowsByDue, Entries]:
        return decoded.rows, self._fold(decoded, progress, is_replay=True).entries if decoded.operations else {}

    def _fold(self, decoded: Decoded, progress: Progress, *, is_replay: bool = False) -> OperationResults:
        """Returns what operations change, and drops the refused ones from ``decoded``.

        Args:
            is_replay: whether they are read again; then no verdicts are needed.
        """
        operations, append_s, all_follows = decoded.operations, decoded.append_s, decoded.follows
        known = self._store.entries({TIME_ID, *map(id_of, operations)})
        time_s = self._time_of(known.get(TIME_ID))
        is_plain = not (decoded.conditions or decoded.definitions or all_follows)
        if is_replay and is_plain and all(due_s is not None for _, _, due_s, _ in operations):
            return OperationResults({**latest(operations), TIME_ID: (max(time_s, *append_s.values()), 0, 0)})
        entries: Entries = {}
        verdicts: list[Verdict] = []
        refused: set[int] = set()
        stale: set[int] = set()
        late = _LateChanges(progress)
        listed: frozenset[int] = frozenset(progress.late_changes if is_replay else ())
        for operation in operations:
            id, offset, due_s, _ = operation
            appended_s = append_s[offset]
            if appended_s > time_s:
                time_s = appended_s
            entry = known.get(id)
            if (follows := all_follows.get(offset)) is not None:
                chain, (followed, defined_at, is_last) = repeating(entry), follows
                if chain is None or place_of(chain) != (followed, defined_at) or due_s is None:
                    stale.add(offset)
                else:
                    known[id] = entries[id] = repeated(due_s, offset, appended_s, chain, is_last=is_last)
                continue
            former = None if entry is None or self._is_past(entry, time_s) else entry
            condition = decoded.conditions.get(offset)
            refusal = None if condition is None else self._refusal(condition, former, appended_s)
            definition = decoded.definitions.get(offset)
            if definition is not None and former is not None and self._is_unchanged(definition, former, progress):
                refusal = UNCHANGED
            if refusal is None and condition is not None and former is not None:  # it names this version
                if is_replay:
                    is_late = offset in listed
                else:
                    is_late = self._was_fired(former, progress, decoded) and late.takes(offset)
                if is_late:
                    refusal = TOO_LATE
            if refusal is None:
                known[id] = entries[id] = after = self._entry_after(operation, definition, former, time_s)
            else:
                refused.add(offset)
                after = former
            if is_replay:
                continue
            about = entry if refusal is None and self._is_pending(entry, progress, decoded) else former
            has_verdict = condition is not None or definition is not None
            otherwise: VerdictName | None = SET if has_verdict else UNKNOWN if offset in decoded.asked else None
            verdict = refusal or self._verdict(due_s, about, progress, decoded, otherwise)
            if verdict is not None:
                asked_s = None if about is None or is_cancelled(about) else due_s_of(about)
                version = self._version(after) if condition is not None or refusal == UNCHANGED else None
                held = None if asked_s is None or about is None else self._held(about, progress, decoded)
                verdicts.append(Verdict(id, offset, verdict, asked_s, version, held))
        entries[TIME_ID] = (time_s, 0, 0)
        cancels = sum(due_s is None for _, offset, due_s, _ in operations if offset in refused) if refused else 0
        decoded.drop(refused | stale)
        at = decoded.definitions and [(known.get(id), offset) for id, offset, _, _ in operations]
        begun = [offset for entry, offset in at or () if offset in decoded.definitions and self._is_at(entry, offset)]
        if late.unlisted and (not self._was_full or late.offsets):
            self._on_full(self._place)
        self._was_full = bool(late.unlisted) or (self._was_full and not late.offsets)
        number = len(refused) - cancels
        return OperationResults(entries, verdicts, (), number, tuple(late.offsets), begun, late.unlisted)

    def _refusal(self, condition: str, former: Entry | None, append_s: int) -> VerdictName | None:
        """Returns why a request does not count; None if its condition is true."""
        if condition == ABSENT:
            return None if former is None else EXISTS
        offset = self._version(former)
        if former is None or condition != f"{self._place}/{offset}{cut_suffix(self._cuts, offset)}":
            return CHANGED
        has_end = not is_cancelled(former) and repeating(former) is None
        return TOO_LATE if has_end and due_s_of(former) <= append_s else None

    @staticmethod
    def _entry_after(
        operation: Operation, definition: Definition | None, former: Entry | None, time_s: int
    ) -> Entry | None:
        """Returns the entry after a request that counts. A cancelled id keeps one, so that it is not absent."""
        _, offset, due_s, append_s = operation
        if definition is not None:
            return defined(offset, append_s, definition.digest)
        if due_s is not None:
            return due_s, offset, append_s
        return former if former is None or is_cancelled(former) else cancelled(offset, time_s)

    def _verdict(
        self, due_s: int | None, about: Entry | None, progress: Progress, new: Decoded, otherwise: VerdictName | None
    ) -> VerdictName | None:
        """Returns the verdict on a request that counts; None if it has none.

        Args:
            about: the version before it: pending, fired and remembered, or cancelled; None if there is none.
            otherwise: that on a request that sets a timer, if there is no version before it.
        """
        if self._is_pending(about, progress, new):
            return CANCELLED if due_s is None else REPLACED
        if about is not None and self._was_fired(about, progress, new):
            return ALREADY_FIRED
        if due_s is None:
            return UNKNOWN
        return otherwise

    # ---- entries ----------------------------------------------------------------------------------------------------

    def remembers(self, entry: Entry, progress: Progress) -> bool:
        if is_cancelled(entry):
            return False
        time_s = self._time_of(self._store.entries([TIME_ID]).get(TIME_ID))
        return self._is_pending(entry, progress) or not self._is_past(entry, time_s)

    def sweep(self, committed: Progress) -> Sequence[tuple[bytes, Entry]]:
        time_s = self._time_of(self._store.entries([TIME_ID]).get(TIME_ID))
        return self.sweeper.sweep(
            lambda entry: self._is_past(entry, time_s) and not self._is_pending(entry, committed),
            committed.snapshot,
        )

    def _is_pending(self, entry: Entry | None, progress: Progress, new: Decoded | None = None) -> bool:
        if entry is None or is_cancelled(entry):
            return False
        if repeating(entry):
            return not progress.is_elsewhere(offset_of(entry))
        return self._is_cold(entry) or not self._has_fired(entry, progress, new)

    def _was_fired(self, entry: Entry, progress: Progress, new: Decoded) -> bool:
        return not is_cancelled(entry) and not self._is_pending(entry, progress, new)

    def _is_past(self, entry: Entry, time_s: int) -> bool:
        """Whether an entry counts as absent. Its timer may be pending still, if the machine is far behind."""
        if repeating(entry):
            return False
        due_s, offset, append_s = version_of(entry)
        return max(due_s, append_s) + self._retention_at(offset) <= time_s

    def _retention_at(self, offset: int) -> int:
        """Returns the retention in seconds at an offset. Offsets before the history have its first value."""
        values = [value for from_offset, value in self._retentions if from_offset <= offset]
        return values[-1] if values else self._retentions[0][1]

    @staticmethod
    def _is_unchanged(definition: Definition, former: Entry, progress: Progress) -> bool:
        """Whether a definition asks for what the latest version of its id asks for, which has not ended yet. It counts
        all the same after the log has lost records, or a wrong clock was taken back: what follows may be lost, or due
        far ahead."""
        chain, offset = chain_of(former), definition.row[0]
        if chain is None or digest_of(chain) != definition.digest:
            return False
        if repeating(former) is None and definition.append_s >= due_s_of(former):
            return False
        doubtful = [hole.before_offset for hole in progress.holes] + [cut for cut, _ in progress.cuts]
        return not any(request_of(chain) < each <= offset for each in doubtful)

    @staticmethod
    def _is_at(entry: Entry | None, offset: int) -> bool:
        """Whether a record at an offset is the latest one of its id."""
        return entry is not None and offset_of(entry) == offset

    @staticmethod
    def _version(entry: Entry | None) -> int:
        """Returns the offset that a condition must name."""
        return NO_VERSION if entry is None else request_of(entry)

    @staticmethod
    def _time_of(entry: Entry | None) -> int:
        """Returns the second that the entry of :data:`TIME_ID` holds."""
        return 0 if entry is None else due_s_of(entry)
