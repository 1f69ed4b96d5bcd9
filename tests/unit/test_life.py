"""The table of a partition's life, walked through all that can happen to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from timers.core.ports import Lost
from timers.errors import DoubtfulLog, Fenced, LogMismatch
from timers.machines.life import (
    FACTS,
    LIFE,
    ON_ITS_WAY,
    RELEASING,
    UNANSWERED_BY_GROUP,
    Command,
    Event,
    Life,
    ReadAhead,
    State,
    Waiting,
    kind_of,
)

RUNNING = (State.READING, State.OPEN, State.LEAVING)

FAILURES = {Event.FENCED, Event.FAILED, Event.FAILED_AGAIN, Event.MISMATCH}

REPORTS = {
    Command.OPEN_AHEAD: {Event.OPENED, Event.NOTHING_AHEAD},
    Command.FENCE: {Event.OPENED, *FAILURES},
    Command.JOIN: {Event.READ, *FAILURES},
    Command.ASK: {Event.OWNED, Event.NOT_OWNED, Event.UNANSWERED},
    Command.ASK_LATER: {Event.OWNED, Event.NOT_OWNED, Event.UNANSWERED},
    Command.PAUSE: {Event.WAITED},
    Command.CLOSE: {Event.RELEASED},
    Command.DISCARD: {Event.RELEASED},
    Command.RUN: {Event.ENDED},
}
"""Command -> what it may report."""

WAITS = Waiting("brokers", "no leader")


class Worker(NamedTuple):
    """A partition, and what its worker is about to report."""

    state: State = State.AWAY
    busy_with: Command | None = None

    def on(self, event: Event) -> Worker:
        """Checks that at most one thing is under way, and that it is told to end before another one begins."""
        life = Life()
        life.state = self.state
        command = life.on(event)
        busy_with = self.busy_with if event in FACTS - {Event.ENDED} else None
        if command is Command.CLOSE:
            # An opening, a question or a pause reports its own end.
            assert busy_with is not None
            busy_with = Command.CLOSE if busy_with is Command.RUN else busy_with
        elif command in REPORTS:
            assert busy_with is None, f"{self}: {event} begins {command}"
            busy_with = command
        return Worker(life.state, busy_with)

    def events(self) -> Iterator[Event]:
        yield from FACTS - {Event.ENDED}
        if self.busy_with is not None:
            yield from REPORTS[self.busy_with]


def all_lives() -> dict[tuple[Worker, Event], Worker]:
    steps: dict[tuple[Worker, Event], Worker] = {}
    found = [Worker()]
    for worker in found:  # grows
        for event in worker.events():
            after = steps[worker, event] = worker.on(event)
            if after not in found:
                found.append(after)
    return steps


STEPS = all_lives()


def test_each_row_of_the_table_can_happen() -> None:
    made = {(worker.state, event) for worker, event in STEPS}
    assert {(state, event) for state, steps in LIFE.items() for event in steps} <= made
    assert LIFE.keys() == set(State)


def test_at_most_one_machine_or_opening_has_the_store() -> None:
    """[I11]: the machine of a partition that comes back waits until the former one has released the store."""
    for worker in {worker for worker, _ in STEPS}:
        assert (worker.state in RUNNING) == (worker.busy_with is Command.RUN), worker
        assert (worker.state in RELEASING) <= (worker.busy_with not in (None, Command.RUN)), worker
        assert (worker.busy_with is None) == (worker.state in (State.AWAY, State.DEALT, State.STOPPED)), worker


def test_each_report_has_an_effect() -> None:
    """Else a partition would stay as it is for ever."""
    for (worker, event), after in STEPS.items():
        if event not in FACTS:
            assert after.state in LIFE and (after != worker or event in LIFE[worker.state]), (worker, event)


def test_what_is_taken_away_is_never_opened() -> None:
    for (worker, event), after in STEPS.items():
        if worker.state in (State.CLOSING, State.LEAVING, State.AWAY) and event is not Event.DEALT:
            assert after.state in (State.CLOSING, State.LEAVING, State.AWAY), (worker, event)
        if event is Event.TAKEN:
            assert after.state in (State.CLOSING, State.AWAY), worker


def test_after_a_failure_the_group_is_asked_before_an_opening_fences() -> None:
    """[I5]: else a worker that was paused fences the new owner. Only what was dealt just now is opened unasked."""
    for (worker, event), after in STEPS.items():
        if after.state is State.OPENING is not worker.state:
            assert (worker.state, event) in ((State.ASKING, Event.OWNED), (State.AHEAD, Event.NOTHING_AHEAD))


def lived(*events: Event, waiting: Waiting | None = None) -> Life:
    """A life in which this has happened. Those that wait have ``waiting``."""
    life = Life()
    for event in events:
        life.on(event, waiting if event is Event.FAILED_AGAIN else None)
    return life


OPEN = (Event.DEALT, Event.FOUND, Event.NOTHING_AHEAD, Event.OPENED)


@pytest.mark.parametrize(
    ("events", "waiting"),
    [
        ((*OPEN, Event.ENDED, Event.FAILED), None),
        ((*OPEN, Event.ENDED, Event.FAILED_AGAIN), WAITS),
        ((*OPEN, Event.ENDED, Event.FAILED_AGAIN, Event.WAITED, Event.OWNED), WAITS),
        ((*OPEN, Event.ENDED, Event.FAILED_AGAIN, Event.WAITED, Event.UNANSWERED), WAITS),
        ((*OPEN, Event.ENDED, Event.FAILED_AGAIN, Event.WAITED, Event.OWNED, Event.OPENED), None),
        ((*OPEN, Event.ENDED, Event.FENCED, Event.UNANSWERED), UNANSWERED_BY_GROUP),
        ((*OPEN, Event.ENDED, Event.FENCED, Event.UNANSWERED, Event.NOT_OWNED), UNANSWERED_BY_GROUP),
        ((*OPEN, Event.ENDED, Event.FENCED, Event.UNANSWERED, Event.OWNED), None),
        ((*OPEN, Event.ENDED, Event.FAILED_AGAIN, Event.TAKEN), None),
        ((*OPEN, Event.TAKEN, Event.FAILED_AGAIN), None),
    ],
)
def test_a_partition_says_why_its_timers_wait(events: tuple[Event, ...], waiting: Waiting | None) -> None:
    life = lived(*events, waiting=WAITS)
    assert life.waiting == waiting
    assert waiting is None or life.state in ON_ITS_WAY


@pytest.mark.parametrize(
    ("events", "again"),
    [
        ((), False),
        ((Event.ENDED, Event.FAILED), True),
        ((Event.ENDED, Event.FENCED, Event.OWNED, Event.OPENED), True),
        ((Event.ENDED, Event.FAILED, Event.TAKEN, Event.DEALT, Event.RELEASED, Event.FOUND), False),
    ],
)
def test_a_machine_is_opened_again_if_the_former_one_has_failed(events: tuple[Event, ...], again: bool) -> None:
    assert lived(*OPEN, *events).again is again


def test_reading_ahead_is_no_failure() -> None:
    life = lived(Event.DEALT, Event.FOUND, Event.OPENED, Event.ENDED, Event.READ)
    assert (life.state, life.again) == (State.ASKING, False)


@pytest.mark.parametrize(
    ("error", "pause_s", "event"),
    [
        (ReadAhead(), 0.0, Event.READ),
        (Fenced("taken over"), 0.0, Event.FENCED),
        (DoubtfulLog("it may lack requests", None), 0.0, Event.MISMATCH),
        (LogMismatch("it has lost 3 records"), 0.0, Event.MISMATCH),
        (Lost("no leader"), 0.0, Event.FAILED),
        (Lost("no leader"), 0.2, Event.FAILED_AGAIN),
        (KeyError("offset"), 1.0, Event.FAILED_AGAIN),
    ],
)
def test_an_error_means_one_event(error: Exception, pause_s: float, event: Event) -> None:
    assert kind_of(error, pause_s) is event
