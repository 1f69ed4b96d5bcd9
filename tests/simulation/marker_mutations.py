"""Changes that each break one rule of markers; the runs of :mod:`tests.simulation.marker_simulator` must find each."""

from tests.simulation.edits import changed

SETTLED = "rows, entries = self.replay(decoded, progress)"
REPLAYED = "return rows, entries"


MUTATIONS = {
    "a KeepAlive always counts": changed(("append_s < former_due_s", "True")),
    "a KeepAlive never counts": changed(("append_s < former_due_s", "False")),
    "a KeepAlive counts by what has fired": changed(  # a replay does not know when a message was delivered again
        (SETTLED, f"self._fired_s = progress.fired_through[0]; {SETTLED}"),
        ("append_s < former_due_s", "former_due_s > getattr(self, '_fired_s', -1)"),
    ),
    "a replay takes the last marker": changed(  # of each message, and so forgets the message itself
        (SETTLED, f"self._settles = True; {SETTLED}; del self._settles"),
        (REPLAYED, f"if not hasattr(self, '_settles'): return Index.replay(self, decoded, progress)\n{REPLAYED}"),
    ),
    "an End has no effect": changed(("known[id] = entries[id] = None", "pass")),
    "no End for a message that is delivered again": changed(
        ("(due_s, self.transaction.end_messages(rows))", "(due_s, rows)"),
    ),
}
