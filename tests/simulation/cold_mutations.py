"""Changes that each break one rule of the cold tier. The simulator must find each one."""

from __future__ import annotations

from tests.simulation.edits import changed

FAR = "is_far(due_s, append_s, self._history.setting_at(HOT_HORIZON, offset, 0))"

CHANGED = {
    "cold: every copy counts": changed(("if not decoded.copies:\n    return {}", "return {}")),
    "cold: a restart forgets which copy counted": changed(
        (
            "self._store.entries({each.key for each in decoded.copies})",
            "self._store.entries({each.key for each in decoded.copies}) if self._indexed else "
            "vars(self).setdefault('seen', {})",
        ),
        (
            "self.sweeper.note_written(len(entries))",
            "entries = entries if self._indexed else {}; self.sweeper.note_written(len(entries))",
        ),
    ),
    "cold: a replay uses the present horizon": changed(
        (FAR, "is_far(due_s, append_s, self._horizon_s)"),
        ("self._history.setting_at(HOT_HORIZON, records[0].offset, 0)", "self._horizon_s"),
    ),
    "cold: a copy needs no seal": changed(("hmac.compare_digest(..., seal_digits or b'')", "True")),
    "cold: a copy and a change in one fetch": changed(
        ("not self._indexed or not any(record.headers and self._format.is_copy(record) for record in records)", "True"),
    ),
    "cold: a cold version counts as fired": changed((FAR, "False")),
    "cold: which copy counted is forgotten too soon": changed(
        ("append_s_of(entry) + self._retention_s < self._committed_append_s", "True"),
    ),
    "cold: the last copy counts": changed(
        (
            "entry is not None and key_of(entry) == (each.due_s, each.original)",
            "entry is not None and key_of(entry)[0] == each.due_s",
        ),
    ),
    "cold: forwarded requests are kept": changed(
        ("decoded.rows.pop(due_s)", "decoded.rows[due_s]"),
        ("decoded.rows[due_s] = hot", "pass"),
    ),
    "cold: forwarded without a commit": changed(
        (
            "late or decoded.rejected or decoded.forwarded or judged.verdicts or judged.superseded",
            "late or decoded.rejected or judged.verdicts or judged.superseded",
        ),
    ),
    "cold: forwarded again in a replay": changed(
        (
            "rows, entries = ... if self._index is None else ...",
            """
rows, entries = ... if self._index is None else ...
if decoded.forwarded and self._tick is not None:
    self._outbox.begin(self._tick)
    self._outbox.commit(self.progress, Output(forwarded=decoded.forwarded))
""",
        ),
    ),
    "cold: a promoted timer has another source": changed(
        (
            "Origin(timer_id, due_s, 0, request.source)",
            "Origin(timer_id, due_s, 0, request.source) if self._indexed else None",
        ),
    ),
    "cold: forwarded without headers": changed(
        (
            "cold.encode_cold(record, ..., due_s, secret)",
            "cold.encode_cold(type('', (), {'headers': (), 'offset': record.offset, 'key': record.key, "
            "'value': record.value, 'timestamp': record.timestamp}), ..., due_s, secret)",
        ),
    ),
}
