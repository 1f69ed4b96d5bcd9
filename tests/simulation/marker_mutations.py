"""Classes that each break one rule of markers; the runs of :mod:`tests.simulation.marker_simulator` must find each."""

from __future__ import annotations

from tests.simulation.edits import Mutation, changed
from tests.simulation.kit.worker import Parts
from timers.core.index import Index, MarkerIndex
from timers.core.operation import Entries, OperationResults
from timers.core.progress import Progress
from timers.core.timer import Decoded, RowsByDue


class ReplaysTheLastMarker(MarkerIndex):
    """A replay takes the last marker of each message, and so forgets the message itself."""

    def replay(self, decoded: Decoded, progress: Progress) -> tuple[RowsByDue, Entries]:
        return Index.replay(self, decoded, progress)

    def settle(self, decoded: Decoded, progress: Progress, committed: Progress) -> tuple[RowsByDue, OperationResults]:
        rows, entries = MarkerIndex.replay(self, decoded, progress)
        return rows, OperationResults(entries)


MUTATIONS = {
    "a KeepAlive always counts": changed(("append_s < former_due_s", "True")),
    "a KeepAlive never counts": changed(("append_s < former_due_s", "False")),
    "a KeepAlive counts by what has fired": changed(  # a replay does not know when a message was delivered again
        (
            "rows, entries = self.replay(decoded, progress)",
            "self._fired_s = progress.fired_through[0]; rows, entries = self.replay(decoded, progress)",
        ),
        ("append_s < former_due_s", "former_due_s > getattr(self, '_fired_s', -1)"),
    ),
    "a replay takes the last marker": Mutation(Parts(marker_index=ReplaysTheLastMarker)),
    "an End has no effect": changed(("known[id] = entries[id] = None", "pass")),
    "no End for a message that is delivered again": changed(
        ("(due_s, self.transaction.end_messages(rows))", "(due_s, rows)"),
    ),
}
