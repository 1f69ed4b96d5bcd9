"""Changes, and two classes, that each break one rule of docs/design.md. The simulator must find each one."""

from collections.abc import Sequence

from tests.simulation.edits import changed
from tests.simulation.kit import SimStore, SimWorker
from tests.simulation.life_mutations import GOES_ON
from timers.core.keys import MAX_OFFSET, OrderKey
from timers.core.timer import DueRows, Row, Tick


class StoreWithoutDeleteCheck(SimStore):
    """A store that does not check how many rows it deletes, so that it does not find ``DeletesBeforeCommit``."""

    def delete(self, through: OrderKey, count: int, rest: Sequence[Row] = (), kept: Sequence[DueRows] = ()) -> None:
        self.drop_through(through, MAX_OFFSET)


class ChecksNoDelete(SimWorker):
    store_kind = StoreWithoutDeleteCheck


class UsesTheSendersClock(SimWorker):
    """[P2]: the time of a tick is that of its sender's clock, not its append time."""

    def tick_of(self, key: bytes, append_ms: int) -> Tick:
        return Tick(int(key) * 1000)


SENT = "sent = (...).transact(batches, ...)"
SENT_AGAIN = """
producer, copy = ..., ...
try:
    sent = producer.transact(batches, copy)
except Lost:
    producer.open()
    sent = producer.transact(batches, copy)
"""
CAUGHT_UP = "store.drop_through(progress.fired_through, progress.next_offset, held_of, indexed=indexed)"

CHANGED = {
    "[I1] next_offset on opening ignores the store": changed(
        ("replace(progress, next_offset=store.applied, lineage=...)", "replace(progress, lineage=...)"),
    ),
    "[I3] timers that have not fired are deleted": changed(
        (
            "self._store.delete(after.fired_through, chunk.count, chunk.rest, chunk.kept)",
            "self._store.drop_through((after.fired_through[0], MAX_OFFSET), MAX_OFFSET)",
        ),
    ),
    "[I15] fires while recovering": changed(
        (
            'tick is None or "fire_chunk" not in STEPS[self.state]',
            'tick is None or "fire_chunk" not in STEPS[self.state] and not self.recovering',
        ),
    ),
    "[I7] gaps are ignored": changed(("fetched.from_offset > position", "False")),
    "[I13] offsets are counted as records": changed(
        (
            "if fetched.from_offset > position:\n    raise ReadAgain(position)",
            """
end = min(fetched.to_offset, fetched.from_offset + len(fetched.records))
fetched = fetched._replace(to_offset=end)
if fetched.from_offset > position:
    raise ReadAgain(position)
""",
        ),
    ),
    "[I10] accepts while the clock is behind": changed(
        (
            '"accept" in STEPS[self.state] and (self._store_age is None or self._store_age.is_checked)',
            "self.recovering or self._tick is not None",
        ),
    ),
    "[I10] fires by the former time after the clock went back": changed(
        ("latest_tick(self._tick, tick)", "max(self._tick or tick, tick, key=lambda each: each.append_ms)"),
    ),
    "[I8] a store with another history is read on": changed(("store = self.stores.emptied(self.tp, store)", "pass")),
    "[I11] an opening that fails keeps its store": changed(("close_store(held)", "pass")),
    "[I1] requests that the former owner had not read are dropped": changed(
        (
            "catch_up(store, progress, indexed=self.stores.indexed(self.tp))",
            "store.drop_through(progress.fired_through, 2**62) is None",
        ),
    ),
    "[I1] timers that another worker fired are kept on opening": changed((CAUGHT_UP, "True")),
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
        worker=ChecksNoDelete,
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
