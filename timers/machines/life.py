"""The life of one partition in one worker, from the deal that gives it to the close of its store.

Facts come in as events, commands go out: :data:`LIFE` says for each state which event has an effect, which state comes
next, and what is to be done. A worker carries out the commands, and reports what came of it as further events. At most
one thing is under way at a time: a machine that runs, or a command that will report. So a partition that a deal takes
away and the next one gives back is opened only when its former machine or opening has released the store [I11].

There is no clock, no thread and no log here: workers and the simulated workers of the tests live by the same table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple, TypeAlias

from timers.errors import Fenced, LogMismatch

BROKERS, STORE, UNFORESEEN, LIMITS = REASONS = ("brokers", "store", "unforeseen", "limits")
"""Why a partition waits: a broker or a leader is missing; its store is damaged again and again or cannot be opened
now; its machine failed with an exception that no code expects; or the process has too many machines."""


class Waiting(NamedTuple):
    """Why a partition is closed although it will be opened again."""

    reason: str
    """One of :data:`REASONS`."""
    sentence: str


UNANSWERED_BY_GROUP = Waiting(BROKERS, "the coordinator of the group does not answer")


class ReadAhead(Exception):
    """A machine that was not fenced has read its log as far as its owner had. Now its owner can be fenced."""


class State(Enum):
    """What a worker does with a partition now."""

    AWAY = "away"  # another worker has the partition, or no worker
    DEALT = "dealt"  # the group has dealt it to this worker, and nothing is done yet: maybe its topic was deleted
    AHEAD = "opened ahead"  # it is opened without a fence, to read its log while its owner fires
    READING = "reading ahead"  # its machine reads the log as far as its owner has. It fires nothing
    ASKING = "asking"  # the group is asked whether this worker still has it: an opening would fence a new owner [I5]
    OPENING = "opening"  # its former owner is fenced, then its progress is read and its store is opened [I14]
    OPEN = "open"  # its machine runs: it reads the log again, or accepts and fires
    ENDING = "ending"  # its machine has ended, and releases the store
    WAITING = "waiting"  # it failed more than once: a while must pass
    STOPPED = "stopped"  # it must not run: an operator has to decide [I8]. The next deal tries again
    LEAVING = "leaving"  # a deal has taken it away. Its machine fires until its new owner fences it
    CLOSING = "closing"  # it is this worker's no more. What was under way is told to end, and releases the store
    RETURNING = "returning"  # as closing, but it is this worker's: it is opened when the store is released


class Event(Enum):
    """What happens to a partition."""

    DEALT = "dealt"  # a deal of the group gives it to this worker, or leaves it there
    FOUND = "found"  # its topic exists
    TAKEN = "taken away"  # a deal gives it to another worker, or this worker ends; its machine does not fire
    LET_GO = "let go"  # as taken away, but its machine fires: it goes on until the new owner is ready
    OVERDUE = "overdue"  # no new owner has begun in time
    CHANGED = "changed"  # its log is another one, or must be read again: it is opened again
    ENDED = "ended"  # the thread of its machine has ended with an error, which is judged when the store is released
    OPENED = "opened"  # a machine was opened
    NOTHING_AHEAD = "nothing ahead"  # there is little to read ahead, or it could not be tried
    READ = "read"  # the error: its log was read ahead
    FENCED = "fenced"  # the error: another owner has fenced it
    FAILED = "failed"  # the error: any other, for the first time in a while
    FAILED_AGAIN = "failed again"  # the error: one that came shortly before, so it waits
    MISMATCH = "mismatch"  # the error: log, progress and store do not match
    OWNED = "owned"  # the group says that this worker has it
    NOT_OWNED = "not owned"  # the group says that it has not, or rebalances: the next deal decides
    UNANSWERED = "unanswered"  # the group does not say
    WAITED = "waited"  # the pause after a failure is over
    RELEASED = "released"  # what was told to end has ended, and its store is closed


class Command(Enum):
    """What a worker must do. All but the last four report: with the events that their states have."""

    OPEN_AHEAD = "open ahead"  # open a machine without a fence
    FENCE = "fence"  # fence the former owner, and open a machine
    JOIN = "join"  # wait until the machine that has ended has released its store; then report why it has ended
    ASK = "ask the group"  # ask whether this worker has the partition
    ASK_LATER = "ask later"  # the same, after a short pause
    PAUSE = "pause"  # wait for as long as its failures demand
    CLOSE = "close"  # end what is under way: a machine, an opening, a question or a pause
    DISCARD = "discard"  # close the machine that was opened too late
    FIND = "find"  # look whether its topic exists
    RUN = "run"  # let the machine that was opened read its log, and fire
    COMMIT = "commit soon"  # let the machine commit soon: if another owner has fenced it, it finds out
    LOG = "log"  # log why it must not run


Next: TypeAlias = tuple[State, Command | None]


BUSY: Mapping[Event, Next] = {
    Event.TAKEN: (State.CLOSING, Command.CLOSE),
    Event.CHANGED: (State.RETURNING, Command.CLOSE),
}
AFTER_ERRORS: Mapping[Event, Next] = {
    Event.FAILED: (State.ASKING, Command.ASK),
    Event.FAILED_AGAIN: (State.WAITING, Command.PAUSE),
    Event.MISMATCH: (State.STOPPED, Command.LOG),
}
LIFE: Mapping[State, Mapping[Event, Next]] = {
    State.AWAY: {Event.DEALT: (State.DEALT, None)},
    State.DEALT: {Event.FOUND: (State.AHEAD, Command.OPEN_AHEAD), Event.TAKEN: (State.AWAY, None)},
    State.AHEAD: {
        **BUSY,
        Event.OPENED: (State.READING, Command.RUN),
        Event.NOTHING_AHEAD: (State.OPENING, Command.FENCE),
    },
    State.READING: {**BUSY, Event.ENDED: (State.ENDING, Command.JOIN)},
    State.ASKING: {
        **BUSY,
        Event.OWNED: (State.OPENING, Command.FENCE),
        Event.NOT_OWNED: (State.ASKING, Command.ASK_LATER),
        Event.UNANSWERED: (State.ASKING, Command.ASK_LATER),
    },
    State.OPENING: {
        **BUSY,
        Event.OPENED: (State.OPEN, Command.RUN),
        **AFTER_ERRORS,
        Event.FENCED: (State.ASKING, Command.ASK_LATER),
    },
    State.OPEN: {
        **BUSY,
        Event.LET_GO: (State.LEAVING, None),
        Event.ENDED: (State.ENDING, Command.JOIN),
    },
    State.ENDING: {
        **BUSY,
        **AFTER_ERRORS,
        Event.FENCED: (State.ASKING, Command.ASK),
        Event.READ: (State.ASKING, Command.ASK),
    },
    State.WAITING: {**BUSY, Event.WAITED: (State.ASKING, Command.ASK)},
    State.STOPPED: {Event.DEALT: (State.DEALT, None), Event.TAKEN: (State.AWAY, None)},
    State.LEAVING: {
        Event.DEALT: (State.OPEN, Command.COMMIT),
        Event.TAKEN: (State.CLOSING, Command.CLOSE),
        Event.CHANGED: (State.CLOSING, Command.CLOSE),
        Event.OVERDUE: (State.CLOSING, Command.CLOSE),
        Event.ENDED: (State.CLOSING, Command.JOIN),
    },
    State.CLOSING: {
        Event.DEALT: (State.RETURNING, None),
        Event.OPENED: (State.CLOSING, Command.DISCARD),
        Event.RELEASED: (State.AWAY, None),
    },
    State.RETURNING: {
        Event.TAKEN: (State.CLOSING, None),
        Event.OPENED: (State.RETURNING, Command.DISCARD),
        Event.RELEASED: (State.DEALT, Command.FIND),
    },
}
"""State -> event that has an effect in it -> (state after it, what to do). All other events do nothing there.

``docs/design.md`` is drawn from it, and the workers of the simulator make all of its transitions and no others.
"""

FACTS = frozenset({Event.DEALT, Event.FOUND, Event.TAKEN, Event.LET_GO, Event.OVERDUE, Event.CHANGED, Event.ENDED})
"""What may happen at any time. All other events are reports of commands."""

RELEASING = frozenset({State.CLOSING, State.RETURNING})
"""Whatever a command reports, it is the end of what was told to end; but a machine must be discarded first."""

TRYING = frozenset({State.ASKING, State.WAITING, State.OPENING})
"""The states between two machines, in which it is known why the former one failed."""

ON_ITS_WAY = frozenset({State.DEALT, State.AHEAD, State.ENDING, State.RETURNING}) | TRYING
"""It is this worker's, and its machine does not run yet."""


def taken_away(state: State, *, recovering: bool) -> Event:
    """Returns how a deal takes a partition away: a machine that fires goes on, and all else ends."""
    return Event.LET_GO if state in (State.OPEN, State.LEAVING) and not recovering else Event.TAKEN


def kind_of(error: BaseException, pause_s: float = 0.0) -> Event:
    """What an error of a machine, or of an opening, means.

    Args:
        pause_s: for how long it must stay closed, if it is none of those that mean something else.
    """
    if isinstance(error, ReadAhead):
        return Event.READ
    if isinstance(error, LogMismatch):
        return Event.MISMATCH
    if isinstance(error, Fenced):
        return Event.FENCED
    return Event.FAILED_AGAIN if pause_s else Event.FAILED


class Life:
    """One partition in one worker.

    Attributes:
        state: what is done with it now.
        waiting: why its timers wait, after a failure; None: they do not, or a first failure is tried again at once.
        again: whether its machine has failed since it was dealt.
    """

    def __init__(self) -> None:
        self.state = State.AWAY
        self.waiting: Waiting | None = None
        self.again = False

    def on(self, event: Event, waiting: Waiting | None = None) -> Command | None:
        """Take in an event, and return what to do.

        Args:
            waiting: why it must wait, if it has failed again.
        """
        before = self.state
        if before in RELEASING and event not in LIFE[before] and event not in FACTS:
            event = Event.RELEASED
        self.state, command = LIFE[before].get(event, (before, None))
        if self.state not in TRYING or (event is Event.OWNED and self.waiting is UNANSWERED_BY_GROUP):
            self.waiting = None
        elif event is Event.UNANSWERED:
            self.waiting = self.waiting or UNANSWERED_BY_GROUP
        else:
            self.waiting = waiting or self.waiting
        if event in (Event.FOUND, Event.READ):
            self.again = False
        elif before is State.ENDING:
            self.again = True
        return command
