"""The states of a machine, and what each of its methods may do in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum


class State(Enum):
    """What a machine does now. It follows from the progress, the store and the last tick."""

    RESCUING = "rescuing"
    """Its store holds timers that the log has lost: it writes their dead letters, and is then opened again [I28]."""
    RECOVERING = "recovering"
    """It reads accepted requests again, until its store has all of them [I15]."""
    WAITING = "waiting for a tick"
    """It does not know the time yet."""
    CLOCK_BEHIND = "clock behind"
    """The brokers' clock is behind what has fired: until it is not, nothing is accepted [I10]."""
    ACCEPTING = "accepting"
    """It accepts requests, and fires them."""


STEPS: Mapping[State, Mapping[str, Sequence[State]]] = {
    State.RESCUING: {
        "observe": [State.RESCUING],
        "rescue_chunk": [State.RESCUING],
    },
    State.RECOVERING: {
        "observe": [State.RECOVERING],
        "accept": [State.RECOVERING, State.WAITING, State.CLOCK_BEHIND, State.ACCEPTING],
    },
    State.WAITING: {
        "observe": [State.CLOCK_BEHIND, State.ACCEPTING],
    },
    State.CLOCK_BEHIND: {
        "observe": [State.CLOCK_BEHIND, State.ACCEPTING],
        "commit_change": [State.CLOCK_BEHIND],
        "commit_progress": [State.CLOCK_BEHIND],
    },
    State.ACCEPTING: {
        "observe": [State.CLOCK_BEHIND, State.ACCEPTING],
        "accept": [State.ACCEPTING],
        "fire_chunk": [State.ACCEPTING],
        "release_chunk": [State.ACCEPTING],
        "commit_change": [State.ACCEPTING],
        "commit_progress": [State.ACCEPTING],
    },
}
"""State -> method that has an effect in it -> states that may follow. All other methods do nothing, or are not called.

The table decides what the methods do, ``docs/design.md`` is drawn from it, and the simulator's machines make all of its
transitions and no others.
"""
