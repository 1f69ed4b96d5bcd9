"""Changes that each break one rule of conditions [I27]; see :mod:`tests.simulation.mutations`."""

from __future__ import annotations

from tests.simulation.edits import changed
from tests.simulation.kit import SimWorker


class WithoutConditions(SimWorker):
    """A worker of runs in which timers with an id have no conditions."""

    conditions = False


CHANGED = {
    "[I27] a replay takes refused requests": changed(
        ("(...).entries if decoded.operations else {}", "latest(decoded.operations)"),
    ),
    "[I27] what has fired is swept": changed(
        (
            "lambda entry: ... and not ...",
            "lambda entry: version_of(entry)[:2] <= committed.fired_through and not self._is_cold(entry)"
            " and max(due_s_of(entry), version_of(entry)[2]) + self._retention_s <= committed.fired_through[0]",
        ),
    ),
    "[I27] conditions are ignored": changed(
        ("condition == ABSENT", "True"),
        ("None if former is None else EXISTS", "None"),
    ),
    "[I27] refused requests keep their rows": changed(
        ("decoded.drop(refused | stale)", "rows = decoded.rows; decoded.drop(refused | stale); decoded.rows = rows"),
    ),
    "[I27] refused requests go cold": changed(
        (
            "decoded.drop(refused | stale)",
            "cold = decoded.forwarded; decoded.drop(refused | stale); decoded.forwarded = cold",
        ),
    ),
    "[I27] refused requests get no verdict": changed(
        (
            "OperationResults(entries, verdicts, (), ..., ..., ..., ...)",
            "OperationResults(entries, [each for each in verdicts if each.offset not in refused], (), "
            "..., ..., ..., ...)",
        ),
    ),
    "[I27] what has fired is absent": changed(
        (
            "former = None if entry is None or ... else entry",
            "former = None if entry is None or not (not is_cancelled(entry) and "
            "(self._is_cold(entry) or version_of(entry)[:2] > (fired_through or (-1, 0)))) else entry",
        ),
    ),
    "[I27] pending ids are swept": changed(("lambda entry: ... and not ...", "lambda entry: ...")),
    "[I27] cancelled ids are absent": changed(
        ("former if ... else cancelled(offset, time_s)", "former if ... else None")
    ),
    "[I27] a cancel of nothing counts": changed(
        ("former if former is None or is_cancelled(former) else ...", "former or cancelled(offset, time_s)"),
    ),
    "[I27] the present retention decides": changed(
        ("values[-1] if values else self._retentions[0][1]", "self._retention_s"),
    ),
    "[I27] the time is not stored": changed(("0 if entry is None else due_s_of(entry)", "0")),
    "[I27] a copy has a source of its own": changed(
        ("NO_VERSION if entry is None else request_of(entry)", "NO_VERSION if entry is None else version_of(entry)[1]")
    ),
    "[I27] no change is too late": changed(("TOO_LATE if ... else None", "None")),
    "[I27] a request that was readable late is refused and not listed": changed(
        (
            "OperationResults(entries, verdicts, (), ..., tuple(late.offsets), ..., ...)",
            "OperationResults(entries, verdicts, (), ..., (), ..., ...)",
        ),
    ),
    "[I27] a request that was readable late is listed and counts": changed(
        ("refusal = TOO_LATE", "pass"),
    ),
    "[I27] what was readable late is forgotten while the log has it": changed(
        ("progress.with_log_start(log_start)", "progress.with_log_start(progress.next_offset)"),
    ),
    "[I27] what was readable late is listed in another transaction than its verdict": changed(
        (
            "replace(self.progress, next_offset=to_offset, lineage=lineage, late_changes=late_changes)",
            "replace(self.progress, next_offset=to_offset, lineage=lineage)",
        ),
        ("self.progress = new_progress", "self.progress = replace(new_progress, late_changes=late_changes)"),
    ),
    "[I27] what is due counts as fired": changed(
        (
            "rows, judged = self._index.settle(..., ..., ...)",
            "self._index.due_s = self._tick.second; rows, judged = self._index.settle(..., ..., ...)",
        ),
        ("... and late.takes(offset)", "due_s_of(former) <= self.due_s and late.takes(offset)"),
    ),
    "[I27] a batch is judged without its earlier records": changed(
        ("known[id] = entries[id] = after = ...", "entries[id] = after = ..."),
    ),
}
