"""Classes that each break one rule of docs/design.md. The simulator must find each one.

The docstring names the rule, and says what the class does wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.simulation.edits import changed
from tests.simulation.kit import Parts, SimStore, SimWorker
from tests.simulation.life_mutations import GOES_ON
from timers.core.fired import Command
from timers.core.keys import MAX_OFFSET, OrderKey
from timers.core.machine import Machine
from timers.core.progress import Progress
from timers.core.timer import DueRows, Fetched, Row, Tick

# ---- [I1]: a transaction that fires a timer commits a next_offset above it ------------------------------------------


class IgnoresTheStoreOnOpening(Machine):
    """[I1]: on opening, next_offset is that of the progress, although the store holds later requests."""

    def __init__(self, progress: Progress, *args: Any) -> None:
        super().__init__(progress, *args)
        self.progress = replace(self.progress, next_offset=progress.next_offset)


# ---- [I2]: commit a batch's output, then store the batch; change memory after the commit -----------------------------


# ---- [I3]: chunks ---------------------------------------------------------------------------------------------------


class DeletesTheWholeSecond(Machine):
    """[I3]: after a chunk, all rows of its last second are deleted, also those that have not fired."""

    def fire_chunk(self) -> bool:
        more = super().fire_chunk()
        due_s, offset = self.progress.fired_through
        if offset != MAX_OFFSET:
            self._store.drop_through((due_s, MAX_OFFSET), MAX_OFFSET)
        return more


class StoreWithoutDeleteCheck(SimStore):
    """A store that does not check how many rows it deletes, so that it does not find ``DeletesBeforeCommit``."""

    def delete(self, through: OrderKey, count: int, rest: Sequence[Row] = (), kept: Sequence[DueRows] = ()) -> None:
        self.drop_through(through, MAX_OFFSET)


# ---- [I4]: a replay decides as the first read did -------------------------------------------------------------------


class FiresWhileRecovering(Machine):
    """[I15]: timers fire before the store holds all accepted requests: the others count as late, or are lost."""

    def fire_chunk(self) -> bool:
        next_offset = self.progress.next_offset
        self.progress = replace(self.progress, next_offset=self._store.applied)
        try:
            return super().fire_chunk()
        finally:
            self.progress = replace(self.progress, next_offset=next_offset)


# ---- [I5]: unknown outcomes -----------------------------------------------------------------------------------------


# ---- [I7]: gaps -----------------------------------------------------------------------------------------------------


class IgnoresGaps(Machine):
    """[I7]: the machine does not notice that a fetch was lost."""

    def accept(self, fetched: Fetched, commands: Sequence[Command] = ()) -> bool:
        return super().accept(fetched._replace(from_offset=min(fetched.from_offset, self.position)))


class CountsOffsetsAsRecords(Machine):
    """[I13]: the position moves by the number of records, although offsets have holes."""

    def accept(self, fetched: Fetched, commands: Sequence[Command] = ()) -> bool:
        to_offset = min(fetched.to_offset, fetched.from_offset + len(fetched.records))
        return super().accept(fetched._replace(to_offset=to_offset, records=fetched.records))


# ---- time -----------------------------------------------------------------------------------------------------------


class UsesTheSendersClock(SimWorker):
    """[P2]: the time of a tick is that of its sender's clock, not its append time."""

    def tick_of(self, key: bytes, append_ms: int) -> Tick:
        return Tick(int(key) * 1000)


class AcceptsWhileTheClockIsBehind(Machine):
    """[I10]: a machine accepts requests while the broker's clock is behind ``fired_through``."""

    @property
    def may_accept(self) -> bool:
        return self.recovering or self._tick is not None


class FiresByTheFormerTime(Machine):
    """[I10]: after the broker's clock went back, the machine fires by the former time."""

    def observe(self, tick: Tick, end: int | None = None) -> None:
        known = self._tick
        super().observe(tick, end)
        if known is not None and known.append_ms > tick.append_ms:
            self._tick = known


# ---- bad input ------------------------------------------------------------------------------------------------------


SENT = "sent = (...).transact(batches, ...)"
SENT_AGAIN = """
producer, copy = ..., ...
try:
    sent = producer.transact(batches, copy)
except Lost:
    producer.open()
    sent = producer.transact(batches, copy)
"""
CAUGHT_UP = "store.drop_through(progress.fired_through, progress.next_offset, held_of)"

CHANGED = {
    "[I8] a store with another history is read on": changed(("store = self.stores.emptied(self.tp, store)", "pass")),
    "[I11] an opening that fails keeps its store": changed(("close_store(held)", "pass")),
    "[I1] requests that the former owner had not read are dropped": changed(
        (
            "catch_up(store, progress, indexed=self.stores.indexed(self.tp))",
            "store.drop_through(progress.fired_through, 2**62) is None",
        ),
    ),
    "[I1] timers that another worker fired are kept on opening": changed(
        (CAUGHT_UP, "None"),
    ),
    "[I1] an old next_offset is committed": changed(
        (
            "self._outbox.commit(after, output)",
            "self._outbox.commit(replace(after, next_offset=self.committed.next_offset), output)",
        ),
    ),
    "[I2] stored before committed": changed(
        (
            "has_output = ...",
            "self._store.write(waiting, to_offset, judged.entries, lineage); has_output = ...",
        ),
        ("self._store.write(waiting, to_offset, entries, lineage, held)", "None"),
    ),
    "[I2] late rows are stored": changed(("all(due_s > fired_s for due_s in rows)", "True")),
    "[I2] memory changes before the commit": changed(
        (
            "self.counters.transaction.progress = after",
            "self.counters.transaction.progress = self.progress = self.committed = after",
        ),
        GOES_ON,
    ),
    "[I3] fired_through is the whole second after a chunk": changed(
        (
            "replace(self.progress, fired_through=max(start, through))",
            f"replace(self.progress, fired_through=(second, {MAX_OFFSET}))",
        ),
        (
            "self._store.delete(after.fired_through, chunk.count, chunk.rest, chunk.kept)",
            "self._store.delete(max(start, through), chunk.count, chunk.rest, chunk.kept)",
        ),
    ),
    "[I3] deleted before the commit": changed(
        (
            "self._outbox.chunk.begun = timers",
            f"self._outbox.chunk.begun = timers; self._store.drop_through(after.fired_through, {MAX_OFFSET})",
        ),
        parts=Parts(store=StoreWithoutDeleteCheck),
    ),
    "[I4] replay filters by whole seconds": changed(
        (
            "_, waiting, held = ...",
            """
held = {}
waiting = {due_s: group for due_s, group in rows.items() if due_s > self.progress.fired_through[0]}
""",
        ),
    ),
    "[I4] replay does not filter": changed(("_, waiting, held = ...", "waiting, held = rows, {}")),
    "[I15] replay does not discard its output": changed(
        (
            "_, waiting, held = ...",
            """
late, waiting, held = ...
if (late or decoded.rejected) and self._tick is not None:
    self._outbox.begin(self._tick)
    self._outbox.commit(self.progress, Output(sorted(late.items()), rejected=decoded.rejected))
""",
        ),
    ),
    "[P6] bad requests are dropped": changed(("if output.rejected:\n    ...(output.rejected)", "pass")),
    "[P1] postponed timers are dropped": changed(("...(*postponed)", "None")),
    "[P3] postponed timers fire twice": changed(
        (
            "return fired, postponed",
            "return [*fired, *(each[:2] for each in postponed)], postponed",
        ),
    ),
    "[P6] two dead letters for one bad request": changed(
        (
            "if output.rejected:\n    ...(output.rejected)",
            "if output.rejected:\n    ...([*output.rejected, *output.rejected])",
        ),
    ),
    "[I5] a commit of unknown outcome is repeated in a new transaction": changed((SENT, SENT_AGAIN)),
    "[P2] a tick proves the next second": changed(("self.append_ms // 1000", "self.append_ms // 1000 + 1")),
}
