"""Accepts fetched requests: new ones, and those that a machine reads again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from timers.core.keys import NEVER, OrderKey
from timers.core.lineage import Leader, Lineage
from timers.core.machine_state import MachineState
from timers.core.operation import OperationResults
from timers.core.progress import Progress, reached
from timers.core.timer import Decoded, Fetched, Row, RowsByDue


class ReadAgain(Exception):
    """A fetch was not accepted: the log must be read again from ``position`` [I7]."""

    def __init__(self, position: int) -> None:
        super().__init__(f"expected a fetch from offset {position}")
        self.position = position


class Accepting(MachineState):
    """Accepts requests: stores them, fires late ones at once, and rejects those that cannot be read."""

    def accept(self, fetched: Fetched) -> None:
        """Accept one fetch.

        Raises:
            ReadAgain: records before this fetch are missing, or its new records need a tick first.
            Lost: the output could not be committed: drop this machine and open it again.
        """
        position = self.position
        if fetched.from_offset > position:  # [I7] a fetch before this one was dropped
            raise ReadAgain(position)
        if fetched.to_offset <= position:
            return
        self._passed = fetched.passed
        self.trust(self._leader_of(fetched))
        records: Sequence[Any] = fetched.records
        if records and records[0].offset < position:
            records = [record for record in records if record.offset >= position]
        end_of_replay = self.progress.next_offset
        if not self.recovering:
            self._in_pieces(self._accept_new, records, fetched.to_offset)
        elif fetched.to_offset <= end_of_replay:
            self._in_pieces(self._replay, records, fetched.to_offset)
        else:
            before = [record for record in records if record.offset < end_of_replay]
            self._in_pieces(self._replay, before, end_of_replay)
            if not self.may_accept:
                raise ReadAgain(end_of_replay)
            after = [record for record in records if record.offset >= end_of_replay]
            self._in_pieces(self._accept_new, after, fetched.to_offset)
        self._barrier.read(self.position)

    def untrusted(self, fetched: Fetched) -> Leader | None:
        """Returns the leader that a fetch came from, if its log may be another one than the one that was read [I28].

        Then the log must be compared with :attr:`lineages` before the fetch is accepted. If it is the same log:
        :meth:`trust`.
        """
        trusted, leader = self._trusted, self._leader_of(fetched)
        if not any(each.end for each in self.lineages):
            return None
        is_known = leader.epoch <= trusted.epoch and trusted.connection in (-1, leader.connection)
        return None if is_known else leader

    def _leader_of(self, fetched: Fetched) -> Leader:
        return Leader(fetched.passed[-1][0] if fetched.passed else self._trusted.epoch, fetched.connection)

    def trust(self, leader: Leader) -> None:
        """Accept fetches from a leader."""
        self._trusted = leader._replace(epoch=max(self._trusted.epoch, leader.epoch))

    def _in_pieces(self, accept: Callable[[Sequence[Any], int], None], records: Sequence[Any], to_offset: int) -> None:
        for piece, end in self._horizon.pieces(records, to_offset):
            accept(piece, end)

    def _replay(self, records: Sequence[Any], to_offset: int) -> None:
        """Read accepted records again: with the same decisions, without output [I15]."""
        decoded = self._read(records, to_offset)
        copy_entries = self._horizon.admit(decoded)
        rows, entries = self._index.replay(decoded)
        _, waiting = self._split_late(rows)
        if self._holes:
            waiting = self._without_holes(waiting)
        # A version that has fired also replaces the one before it: the older version must not fire after it.
        self._store.write(waiting, to_offset, {**entries, **copy_entries}, self._lineage_at(to_offset))
        self.replayed += len(records)
        self.counters.replayed += len(records)

    def _accept_new(self, records: Sequence[Any], to_offset: int) -> None:
        decoded = self._read(records, to_offset)
        if len(records) > self._outbox.chunk.timers and self._may_emit(decoded):
            while records:  # brokers are slow: the output is sent in parts, which grow after each transaction
                count = self._outbox.chunk.timers
                end = records[count].offset if count < len(records) else to_offset
                self._accept_new(records[:count], end)
                records = records[count:]
            return
        copy_entries = self._horizon.admit(decoded)
        rows, judged = self._settle(decoded)
        late, waiting = self._split_late(rows)
        lineage = self._lineage_at(to_offset)
        new_progress = replace(self.progress, next_offset=to_offset, lineage=lineage)
        ended = {offset for _, offset, due_s, _ in decoded.operations if due_s is None}
        ended.update(rejected.offset for rejected in decoded.rejected)
        accepted = len(records) - len(ended) - len(decoded.copies) - judged.refused
        late_count, copy_count = sum(map(len, late.values())), len(decoded.copies)
        self.counters.note_accepted(to_offset, accepted, late_count, copy_count, decoded.ignored, decoded.callers)
        has_output = late or decoded.rejected or decoded.forwarded or judged.verdicts or judged.superseded
        if has_output or new_progress.settings != self._committed.settings:
            # [I2] Output is committed before the batch is stored. A changed setting is committed too: a replay of
            # this batch must find it in the history [I4].
            self._emit(late, decoded, judged, new_progress)
        entries = {**judged.entries, **copy_entries} if copy_entries else judged.entries
        self._store.write(waiting, to_offset, entries, lineage)
        self.progress = new_progress

    def _lineage_at(self, to_offset: int) -> Lineage:
        """Returns the lineage of an offset inside the present fetch [I28]."""
        return self._store.lineage.through(self._passed, to_offset).before(to_offset)

    def _may_emit(self, decoded: Decoded) -> bool:
        late, _ = self._split_late(decoded.rows)
        return bool(late or decoded.rejected or decoded.forwarded or decoded.operations)

    def _settle(self, decoded: Decoded) -> tuple[RowsByDue, OperationResults]:
        return self._index.settle(decoded, self.progress.fired_through, self._committed.fired_through)

    def _read(self, records: Sequence[Any], to_offset: int) -> Decoded:
        return self._reader.read(records, to_offset, self.progress)

    def _split_late(self, rows: RowsByDue) -> tuple[RowsByDue, RowsByDue]:
        """Returns the late rows, which are at or below ``fired_through``, and the rows that wait."""
        fired_s, fired_offset = self.progress.fired_through
        if all(due_s > fired_s for due_s in rows):
            return {}, rows
        late: RowsByDue = {}
        waiting: RowsByDue = {}
        for due_s, group in rows.items():
            if due_s > fired_s:
                waiting[due_s] = group
            elif due_s < fired_s:
                late[due_s] = group
            else:
                late_rows = [row for row in group if row[0] <= fired_offset]
                waiting_rows = [row for row in group if row[0] > fired_offset]
                if late_rows:
                    late[due_s] = late_rows
                if waiting_rows:
                    waiting[due_s] = waiting_rows
        return late, waiting

    def _without_holes(self, rows: RowsByDue) -> RowsByDue:
        """Returns the rows that have not fired before a wrong time was taken back [I24]."""
        left = {
            due_s: [row for row in group if (due_s, row[0]) > reached(NEVER, self._holes, row[0])]
            for due_s, group in rows.items()
        }
        return {due_s: group for due_s, group in left.items() if group}

    def _emit(self, late: RowsByDue, decoded: Decoded, judged: OperationResults, new_progress: Progress) -> None:
        """Commit the output of one batch."""
        assert self._tick is not None, "the caller must check may_accept"
        self._outbox.begin(self._tick)
        self.counters.transaction.late = bool(late)
        if late:
            self._fire(sorted(late.items()), self._tick)
        if decoded.rejected:
            self._outbox.reject(decoded.rejected)
        if decoded.forwarded:
            self._outbox.forward(decoded.forwarded)
        if judged.verdicts:
            self._outbox.answer(judged.verdicts)
        if judged.superseded:
            self._outbox.republish([self._row_of(key, decoded.rows) for key in judged.superseded])
        others: list[Sequence[Any]] = [decoded.rejected, decoded.forwarded, judged.verdicts, judged.superseded]
        self._commit(new_progress, sum(map(len, [*late.values(), *others])))

    def _row_of(self, key: OrderKey, new_rows: RowsByDue) -> Row:
        """Returns the row of a key that the index holds: from the new rows of this batch, or from the store."""
        due_s, offset = key
        for row in new_rows.get(due_s, ()):
            if row[0] == offset:
                return row
        _, rows = next(self._store.waiting((due_s, offset - 1)))
        assert rows[0][0] == offset, f"the index holds {key}, the store does not"
        return rows[0]
