"""What clients asked for, what they were told, and which requests are under way. Threads share it."""

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Timer:
    """A timer that a client sets with an ``Idempotency-Key``.

    Attributes:
        ids: ids in the answers; all must be equal.
        answered_s: monotonic time of the first answer that the timer is set.
    """

    number: int
    body: dict[str, Any]
    ids: set[str] = field(default_factory=set)
    answered_s: float | None = None

    @property
    def key(self) -> str:
        return f"chaos-{self.number}"


@dataclass
class Flight:
    """A request under way.

    Attributes:
        console: number of the console that has it.
        began_ms: epoch milliseconds; earlier records are those of an earlier request for the same timer.
        is_written: the broker has it.
        kill: number of the kill of its console after it was written; None if there was none.
    """

    console: int
    began_ms: int
    is_written: bool = False
    kill: int | None = None


class Ledger:
    """All timers of a round, by number.

    Attributes:
        answers: how often each answer came, by what was asked.
        hits: kills after which at least one written request got no answer.
        wrong: answers that no request may get.
    """

    def __init__(self) -> None:
        self.timers: list[Timer] = []
        self.answers: Counter[str] = Counter()
        self.hits: set[int] = set()
        self.wrong: list[str] = []
        self._flights: dict[int, Flight] = {}
        self._lock = threading.Lock()

    def new(self, body: dict[str, Any]) -> Timer:
        with self._lock:
            timer = Timer(len(self.timers), {**body, "value": f"n={len(self.timers)};"})
            self.timers.append(timer)
            return timer

    def take_off(self, timer: Timer, console: int) -> None:
        with self._lock:
            self._flights[timer.number] = Flight(console, int(time.time() * 1000))

    def land(self, timer: Timer, asked: str, status: int | None) -> None:
        """Note the end of a request; ``status`` is None if no answer came."""
        with self._lock:
            flight = self._flights.pop(timer.number)
            self.answers[f"{asked} {status or 'no answer'}"] += 1
            if status is None and flight.kill is not None:
                self.hits.add(flight.kill)

    def note_answer(self, timer: Timer, id: str) -> None:
        """Note that a client was told that its timer is set."""
        with self._lock:
            timer.ids.add(id)
            timer.answered_s = timer.answered_s or time.monotonic()

    def note_wrong(self, what: str) -> None:
        with self._lock:
            self.wrong.append(what)

    def see_written(self, number: int, timestamp_ms: int) -> int | None:
        """Note that a request is written; return the number of its console, None if it is not under way."""
        with self._lock:
            flight = self._flights.get(number)
            if flight is None or timestamp_ms < flight.began_ms:
                return None
            flight.is_written = True
            return flight.console

    def console_of_written(self, number: int) -> int | None:
        """Return the number of the console that has a written request; None if it is not written or not under way."""
        with self._lock:
            flight = self._flights.get(number)
            return flight.console if flight is not None and flight.is_written else None

    def note_kill(self, kill: int, console: int | None) -> None:
        """Note a kill of a console, or with None of the worker or the broker, just before it.

        A kill of a console counts as a hit when a client gets no answer. Without worker or broker, there is none either
        way: such a kill counts if it comes between the record of a request and its answer.
        """
        with self._lock:
            written = [flight for flight in self._flights.values() if flight.is_written]
            if console is None and written:
                self.hits.add(kill)
            for flight in written:
                if flight.console == console:
                    flight.kill = kill
