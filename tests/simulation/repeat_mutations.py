"""Changes that each break one rule of timers that repeat [I37]. Runs of :mod:`repeat_simulator` must find each one."""

from tests.simulation.edits import changed

MUTATIONS = {
    "an occurrence counts whatever it follows": changed(
        ("chain is None or place_of(chain) != (followed, defined_at) or due_s is None", "chain is None"),
    ),
    "no occurrence follows": changed(("if output.followers:\n    ...(output.followers)", "pass")),
    "fires in its own append second": changed(
        ("...(row, rule, decided_s, max(append_s, now_s))", "...(row, rule, decided_s - 1, max(append_s, now_s))"),
    ),
    "an entry is over while it goes on": changed(("if repeating(entry):\n    return False", "pass")),
    "a waypoint is sent": changed(
        (
            "occurrence = occurrence_of(row)",
            """
occurrence = occurrence_of(row)
occurrence = occurrence if occurrence.nominal_s is not None else occurrence._replace(nominal_s=due_s)
""",
        ),
    ),
    "a late occurrence is judged by the tick": changed(
        (
            "self._fired(sorted(late.items()), second, self._tick, begun=begun)",
            "self._fired(sorted(late.items()), self._tick.second, self._tick, begun=begun)",
        ),
    ),
    "an end that the own transaction has held back counts": changed(("end in held_from", "False")),
    "what is owed is forgotten": changed(
        (
            "NextOccurrence(due_s, nominal_s, 0, owed_s, rule, is_last)",
            "NextOccurrence(due_s, nominal_s, 0, None, rule, is_last)",
        ),
    ),
    "a dead letter is for the occurrence of its record": changed(
        ("Origin(_id_of(row), sent_s, 0)", "Origin(_id_of(row), due_s, 0)"),
    ),
    "what is late is sent": changed(("judged_s - each <= limit_s", "True")),
    "an occurrence goes cold": changed(
        (
            "row[0] in decoded.follows or not is_far(due_s, record.timestamp // 1000, horizon_s)",
            "not is_far(due_s, record.timestamp // 1000, horizon_s)",
        )
    ),
}
