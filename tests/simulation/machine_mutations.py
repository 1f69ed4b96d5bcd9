"""Changes that each break one rule of a machine. The simulator must find each one."""

from tests.simulation.edits import changed
from tests.simulation.kit import SimWorker
from tests.simulation.kit.next_level import LEVEL
from timers.core.progress import FEATURE_LEVEL

# ---- conditions [I27] ------------------------------------------------------------------------------------------------


class WithoutConditions(SimWorker):
    """A worker of runs in which timers with an id have no conditions."""

    conditions = False


CONDITIONS = {
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
    "[I27] a request that was readable late is listed and counts": changed(("refusal = TOO_LATE", "pass")),
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


# ---- timers with an id -----------------------------------------------------------------------------------------------

VERSION = "None if due_s is None else (due_s, offset, append_s)"
NOTED = f"known[id] = entries[id] = {VERSION}"
THROUGH = "second if second is None or self._barrier is None else self._barrier.through(second)"


IDS = {
    "ids: replaced rows fire": changed(
        ("ids = [id_bytes(row[5][0]) for _, rows in due for row in rows if row[5] is not None]", "ids = []"),
        worker=WithoutConditions,
    ),
    "ids: a batch is judged without its earlier records": changed(
        (NOTED, f"entries[id] = {VERSION}"), worker=WithoutConditions
    ),
    "ids: a late cancel changes nothing": changed(
        (
            NOTED,
            f"if due_s is not None or entry is None or verdicts[-1].verdict != ALREADY_FIRED:\n    {NOTED}",
        ),
        worker=WithoutConditions,
    ),
    "ids: swept by uncommitted progress": changed(
        ("self._index.sweep(self.committed)", "self._index.sweep(self.progress)"), worker=WithoutConditions
    ),
    "ids: a second fires before its requests are read": changed((THROUGH, "second")),
    "ids: only the first second waits": changed((THROUGH, f"None if ({THROUGH}) is None else second")),
    "ids: an end that an own transaction held back counts": changed(("end in held_from", "False")),
    "ids: replay skips fired versions": changed(
        (
            "rows, entries = ... if self._index is None else ...",
            """
fired = [
    row[0]
    for due_s, group in decoded.rows.items()
    for row in group
    if (due_s, row[0]) <= self.progress.fired_through
]
decoded.operations = [each for each in decoded.operations if each[1] not in fired]
rows, entries = ... if self._index is None else ...
""",
        ),
    ),
    "ids: replay gives verdicts": changed(
        (
            "rows, entries = ... if self._index is None else ...",
            """
again = self._reader.decode(records, to_offset, self.progress)
verdicts = () if self._index is None else self._index.settle(
    again, self.progress, self.committed.fired_through
)[1].verdicts
if verdicts and self._tick is not None:
    self._outbox.begin(self._tick)
    self._outbox.commit(self.progress, Output(verdicts=verdicts))
rows, entries = ... if self._index is None else ...
""",
        ),
    ),
    "ids: a callback names no version": changed(
        (
            "h.identity(id_bytes(origin[0]), ...)",
            "[each for each in h.identity(id_bytes(origin[0]), ...) if each[0] != h.TIMER_SOURCE]",
        ),
        (
            "h.identity(id_bytes(origin.timer_id), ...)",
            "[each for each in h.identity(id_bytes(origin.timer_id), ...) if each[0] != h.TIMER_SOURCE]",
        ),
    ),
    "ids: no verdicts": changed(("self.transaction.answer(output.verdicts)", "None")),
}


# ---- clocks: which ticks count, and what has fired after a time was taken back ---------------------------------------

HAS_FIRED = (
    "progress.is_past(key_of(entry))",
    "key_of(entry) <= progress.fired_through",
)

CLOCKS = {
    "[I20] all ticks count": changed(("tick = Seen(append_ms / 1000, clocks.boot_s)", "return True")),
    "[I20] small leaps add up": changed(
        (
            "if broker is not None:\n    self._counted[broker] = tick",
            "self.anchor = tick\nif broker is not None:\n    self._counted[broker] = tick",
        ),
    ),
    "[I24] a store keeps what a wrong clock has fired": changed(("store.applied <= hole.before_offset", "False")),
    "[I20] a later clock agrees": changed(
        ("abs(time_s - tick.time_s) <= self._max_leap_s", "time_s >= tick.time_s - self._max_leap_s"),
    ),
    "[I20] a broker agrees with itself": changed(
        ("id != broker and tick.boot_s - each.boot_s < FRESH_S", "tick.boot_s - each.boot_s < FRESH_S"),
        ("newest_s is not None and newest_s - tick.time_s > CLOCK_STEP_BACK_S", "False"),
    ),
    "[I20] the first tick counts": changed(
        ("self.anchor is None or tick.time_s > ...", "self.anchor is not None and tick.time_s > ..."),
    ),
    "[I20] any first tick after what has fired counts": changed(
        ("self.anchor is None and abs(wall_s - tick.time_s) <= NEW_APP_LEAP_S", "self.anchor is None"),
        (
            "self.anchor is None and newest_s is not None and 0 <= int(tick.time_s) - newest_s <= self._max_leap_s",
            "self.anchor is None and (newest_s is None or int(tick.time_s) >= newest_s)",
        ),
    ),
    "[I20] a held tick never counts": changed(("abs(time_s - tick.time_s) <= self._max_leap_s", "False")),
    "[I24] a replay stores what a wrong clock has fired": changed(("not has_fired((due_s, row[0]), row[1])", "True")),
    "[I24] a verdict forgets what a wrong clock has fired": changed(HAS_FIRED, worker=WithoutConditions),
    "[I27] a verdict forgets what a wrong clock has fired": changed(HAS_FIRED),
}


# ---- the cold tier ---------------------------------------------------------------------------------------------------

FAR = "is_far(due_s, append_s, self._history.setting_at(HOT_HORIZON, offset, 0))"

COLD = {
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


# ---- logs that may lack requests [I29] -------------------------------------------------------------------------------

DECIDED = "progress, use = decide_use(..., ..., ..., ..., ..., ...)"
COMMITTED = "min(applied, self.stores.committed.get(self.tp, applied))", "applied"

DOUBTS = {
    "[I29] a doubtful log is read from its start": changed(('doubt.worker not in ("", worker) or ...', "False")),
    "[I29] a refusal is forgotten": changed(("port.refuse(doubtful.progress)", "pass")),
    "[I29] a store counts beyond what its machine has committed": changed(COMMITTED),
    "[I29] progress is read without its doubt": changed(
        (DECIDED, f"{DECIDED}; progress = __import__('dataclasses').replace(progress, doubt=None)"),
    ),
    "[I29] a compacted topic is only reported": changed(("self.worker = worker", "pass")),
    "[I29] a store that a fenced machine has written is whole": changed(
        ('doubt.worker not in ("", worker)', "False"),
        COMMITTED,  # else only a fenced worker that was restarted shows it
    ),
    "[I29] a doubt ends when the topic is corrected": changed(
        ("self._leftovers.are_gone(committed.fired_through)", "True"),
    ),
}


# ---- each offset is read at its feature level [I21] ------------------------------------------------------------------


class UpgradedWorker(SimWorker):
    """A worker of runs with two versions."""

    has_levels = True


LEVELS = {
    "levels: raised with a batch": changed(
        (
            "self.progress.level >= level or self.commit_change(...)",
            "vars(self).__setitem__('wanted', level)",
        ),
        (
            "self.progress = new_progress",
            """
self.progress, wanted = new_progress, vars(self).get("wanted", 0)
if to_offset > progress.next_offset and wanted > progress.level:
    self.progress = replace(new_progress, settings=progress.with_setting(FEATURE_LEVEL, wanted).settings)
""",
        ),
        worker=UpgradedWorker,
    ),
    "levels: raised before all members can": changed(("min((allowed, *supported))", "allowed"), worker=UpgradedWorker),
    "levels: older versions read on": changed(
        (
            "progress_record.decode(record, self.supported, partition_name(*tp), machine)",
            f"progress_record.decode(record, {LEVEL}, partition_name(*tp), machine)",
        ),
        ("seen.level > self.supported", "False"),
        worker=UpgradedWorker,
    ),
    "levels: all requests are read at the newest level": changed(
        ("progress.setting_at(FEATURE_LEVEL, offset, FIRST_LEVEL)", "progress.level"),
        worker=UpgradedWorker,
    ),
    "levels: a raise is forgotten in a replay": changed(
        (
            "self._reader.decode(records, to_offset, self.progress)",
            "self._reader.decode(records, to_offset, replace(self.progress, settings=type(self.progress.settings)("
            f"each for each in self.progress.settings if each.name != {FEATURE_LEVEL!r} or not self.recovering)))",
        ),
        worker=UpgradedWorker,
    ),
}


# ---- branches of timers.core.loop.Loop -------------------------------------------------------------------------------

LOOP = {
    "loop: no rewind after a gap": changed(("read_again_from = refused.position", "pass")),
    "loop: a tick starts no drain": changed(("self.firing = self._commit_due = True", "self._commit_due = True")),
    "loop: one chunk for each tick": changed(
        ("self.firing and self.machine.fire_chunk()", "self.firing and self.machine.fire_chunk() and False"),
    ),
    "loop: no drain after acceptance": changed(("self.firing = is_draining = True", "pass")),
    "loop: no drain after a replay": changed(
        (
            "recovering and not self.recovering or self.released_s != released_s",
            "not recovering and self.released_s != released_s",
        ),
    ),
    "loop: no drain after the barrier": changed(
        (
            "recovering and not self.recovering or self.released_s != released_s",
            "recovering and (not self.recovering or self.released_s != released_s)",
        ),
    ),
    "loop: passing time is not committed": changed(
        (
            "even_if_idle or committed.fired_through == NOTHING_FIRED",
            "committed.fired_through == NOTHING_FIRED",
        ),
    ),
    "loop: accepts at any time": changed(
        (
            "bool(self.fetches) and self.machine.takes(self.fetches[0])",
            "bool(self.fetches)",
        ),
    ),
    "loop: no progress is committed": changed(
        ('not changed or self._tick is None or "commit_progress" not in STEPS[self.state]', "True"),
    ),
}


# ---- schedules -------------------------------------------------------------------------------------------------------

JUDGED = "return OperationResults(entries, superseded=superseded)"

SCHEDULES = {
    "schedules: a tombstone ends any version": changed((JUDGED, "return OperationResults(entries)")),
    "schedules: a tombstone of another version changes nothing": changed(
        (
            "version = decoded.fired_versions.get(offset)",
            """
version = decoded.fired_versions.get(offset)
entry = entries[id] if id in entries else self._store.entries([id]).get(id)
if version is not None and entry is not None and offset_of(entry) != version:
    continue
""",
        ),
    ),
    "schedules: a version stays beside its copy": changed(
        (
            JUDGED,
            """
offsets = {offset for _, offset in superseded}
former = self._store.entries(entries.keys())
entries.update({id: entry for id, entry in former.items() if entry is not None and offset_of(entry) in offsets})
return OperationResults(entries, superseded=superseded)
""",
        ),
    ),
    "schedules: a fired version is republished": changed(
        ("entry is not None and offset_of(entry) != version and not ...", "entry and offset_of(entry) != version"),
    ),
    "[I9] the age of a store is checked by a tick only": changed(
        ("self._store_age is None or self._store_age.is_checked", "self._store_age is None or self._tick is not None"),
    ),
    "schedules: no tombstone": changed(("schedule.tombstones(rows)", "()")),
    "schedules: a tombstone on another partition": changed(
        (
            "...(self._topic, self._partition, key, None, headers, now_ms)",
            "...(self._topic, (self._partition + 1) % self._topics.partitions(self._topic), "
            "key, None, headers, now_ms)",
        ),
    ),
    "schedules: a tombstone names another version": changed(
        (
            "schedule.tombstones(rows)",
            "[(key, schedule.tombstone_headers(max(0, int(headers[0][1]) - 1)))"
            " for key, headers in schedule.tombstones(rows)]",
        ),
    ),
    "schedules: a copy has a new time": changed(
        (
            "now_ms = ... if self._topic in self._refused_timestamps else None",
            "now_ms = ...",
        ),
    ),
}


CHANGED = CONDITIONS | IDS | CLOCKS | COLD | DOUBTS | LEVELS | LOOP | SCHEDULES
