"""Changes of the table of a partition's life: each breaks one rule of [I5], [I8], [I11] or [I14].

The simulator must find each one.
"""

from tests.simulation import edits
from tests.simulation.edits import Change, Mutation
from tests.simulation.kit import SimWorker


class SlowWorker(SimWorker):
    """A worker of runs in which openings and closings take a while."""

    is_slow = True


def changed(*changes: Change) -> Mutation:
    """Returns the mutation that makes changes, in such a run."""
    return edits.changed(*changes, worker=SlowWorker)


ASKING = "** OWNED NOT_OWNED UNANSWERED"
BUSY = "TAKEN CHANGED"
CLOSING = "DEALT OPENED RELEASED"
ENDING = "** ** FENCED READ"
ERRORS = "FAILED FAILED_AGAIN MISMATCH"
LEAVING = "DEALT TAKEN CHANGED OVERDUE ENDED"
OPEN = "** LET_GO ENDED"
RETURNING = "TAKEN OPENED RELEASED"
"""The events of a state, or of several, in the order of the table."""

FENCE = "OPENING, FENCE"


def entry(events: str, event: str, before: str, after: str) -> Change:
    """Replace what an event does in the state that has these events: next state and command."""

    def written(does: str) -> str:
        state, command = does.split(", ")
        value = f"(State.{state}, {'None' if command == 'None' else f'Command.{command}'})"
        items = ("**..." if each == "**" else f"Event.{each}: {value if each == event else '...'}" for each in names)
        return f"{{{', '.join(items)}}}"

    names = events.split()
    return written(before), written(after)


TRIED_AGAIN = entry(ERRORS, "MISMATCH", "STOPPED, LOG", "WAITING, PAUSE")
"""[I8]: a machine that must not run does not wait for an operator. Its log has lost its end."""

GOES_ON = entry(OPEN, "ENDED", "ENDING, JOIN", "OPEN, None")

CHANGED = {
    "[I5] a machine is used after a failed transaction": changed(GOES_ON),
    "[I5] a machine goes on after an unforeseen failure": changed(
        entry(LEAVING, "ENDED", "CLOSING, JOIN", "LEAVING, None"),
    ),
    "[I5] a failed machine is opened without asking the group": changed(entry(ERRORS, "FAILED", "ASKING, ASK", FENCE)),
    "[I5] a fenced machine fences its new owner": changed(entry(ENDING, "FENCED", "ASKING, ASK", FENCE)),
    "[I5] what another worker owns is opened": changed(entry(ASKING, "NOT_OWNED", "ASKING, ASK_LATER", FENCE)),
    "[I5] a group that does not answer has said yes": changed(entry(ASKING, "UNANSWERED", "ASKING, ASK_LATER", FENCE)),
    "[I5] after a pause the group is not asked": changed(entry("** WAITED", "WAITED", "ASKING, ASK", FENCE)),
    "[I14] after reading ahead the group is not asked": changed(entry(ENDING, "READ", "ASKING, ASK", FENCE)),
    "[I14] a machine that has not fenced runs": changed(
        entry("** OPENED NOTHING_AHEAD", "OPENED", "READING, RUN", "OPEN, RUN"),
    ),
    "[I11] a machine that has just read ahead is let go": changed(
        ("state in (State.OPEN, State.LEAVING) and not recovering", "not recovering"),
    ),
    "[I11] opened before the former machine has closed": changed(
        entry(CLOSING, "DEALT", "RETURNING, None", "AHEAD, OPEN_AHEAD"),
    ),
    "[I11] opened before the store of a machine that has ended is closed": changed(
        entry(OPEN, "ENDED", "ENDING, JOIN", "ASKING, ASK"),
    ),
    "[I11] a machine that was opened too late stays open": changed(
        entry(CLOSING, "OPENED", "CLOSING, DISCARD", "AWAY, None"),
    ),
    "[I11] a machine that comes back too late stays open": changed(
        entry(RETURNING, "OPENED", "RETURNING, DISCARD", "DEALT, FIND"),
    ),
    "[I11] a machine that was opened too late runs": changed(entry(CLOSING, "OPENED", "CLOSING, DISCARD", "OPEN, RUN")),
    "[I11] what is taken away while it opens is opened again": changed(
        entry(BUSY, "TAKEN", "CLOSING, CLOSE", "RETURNING, CLOSE"),
    ),
    "[I11] what is taken away while it closes is opened again": changed(
        entry(RETURNING, "TAKEN", "CLOSING, None", "RETURNING, None"),
    ),
    "[I11] what is leaving is opened again when its log changes": changed(
        entry(LEAVING, "CHANGED", "CLOSING, CLOSE", "RETURNING, CLOSE"),
    ),
}
