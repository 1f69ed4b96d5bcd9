"""The circuit breaker: failing targets are not tried for some time, so that other timers do not wait for them [I6].

A failed transaction delays every timer in it. So only timers from the retry topic try a failing target again; they wait
for failing targets in any case. New timers for the target go to the retry topic until the target works again, or until
it has not been tried for some time, because another worker may own its retries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from timers.core.backoff import Pauses

FIRST_OPEN_S = 30.0
LONGEST_OPEN_S = 600.0
"""Seconds for which a circuit is open at first, and at most. The time doubles with every failure."""


class DeliveryProblem(NamedTuple):
    """Why a callback cannot be sent now."""

    code: str
    """Error code of the dead letter, if the timer becomes one: at once, or after its last attempt."""
    reason: str
    """One sentence."""
    open_s: float | None
    """Seconds from now in which nothing can be sent; None: it never can."""

    @classmethod
    def denied(cls, reason: str) -> DeliveryProblem:
        """Returns the problem of a callback that is not allowed."""
        return cls("topic-denied", reason, None)

    @classmethod
    def unknown(cls, topic: str) -> DeliveryProblem:
        """Returns the problem of a callback whose topic does not exist."""
        return cls("topic-unknown", f"callback topic {topic!r} does not exist", None)

    @classmethod
    def unanswered(cls, topic: str) -> DeliveryProblem:
        """Returns the problem of a callback for whose topic the brokers have no answer yet."""
        return cls("target-failing", f"no broker says whether callback topic {topic!r} exists", 0.0)

    @classmethod
    def too_large(cls, topic: str, size: int, limit: int, what: str = "the callback") -> DeliveryProblem:
        """Returns the problem of a callback that is too large: a batch of it alone has ``size`` bytes."""
        reason = f"{what} makes a batch of {size} bytes, more than the {limit} that fit in {topic!r}"
        return cls("message-too-large", reason, None)


@dataclass(slots=True)
class _Circuit:
    code: str
    reason: str
    since: float
    failures: int
    until: float
    """Before this time no timer is sent to the target."""
    new_from: float
    """Before this time only timers from the retry topic are sent."""


class OpenCircuit(NamedTuple):
    """The circuit of a failing target, as one process tells it to another."""

    topic: str
    code: str
    reason: str
    failures: int
    since_s: float
    """Seconds since the first failure."""
    until_s: float
    """Seconds until timers from the retry topic may be sent; negative if they may."""
    new_from_s: float
    """Seconds until others may be sent."""


class CircuitBreaker:
    """Failing targets of one worker. One thread at a time may change it; any thread may read.

    Args:
        clock: returns seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._circuits: dict[str, _Circuit] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._circuits

    @property
    def count(self) -> int:
        """Number of topics that have failed and have not taken records since."""
        return len(self._circuits)

    @property
    def failing(self) -> int:
        """Number of these topics, without those that nothing has tried since they may be tried again: it is not known
        whether they fail. Retries come at least every ``LONGEST_OPEN_S``."""
        now = self._clock()
        return sum(each.new_from + LONGEST_OPEN_S > now for each in list(self._circuits.values()))

    def open(self, topic: str, code: str, reason: str, first_s: float = FIRST_OPEN_S) -> bool:
        """Open the circuit of ``topic``, longer each time it fails.

        Args:
            topic: a callback topic.
            code: error code of the dead letters, if it never works again.
            reason: one sentence.
            first_s: seconds for which the circuit is open at first.

        Returns:
            Whether this is the first failure.
        """
        now = self._clock()
        circuit = self._circuits.get(topic)
        if circuit is not None and circuit.until > now:
            return False  # another machine reported the same failure
        failures = circuit.failures + 1 if circuit else 1
        open_s = Pauses(first_s, LONGEST_OPEN_S).after(failures)
        since = circuit.since if circuit else now
        self._circuits[topic] = _Circuit(code, reason, since, failures, now + open_s, now + 2 * open_s)
        return failures == 1

    def circuits(self) -> list[OpenCircuit]:
        """Returns all circuits, for :meth:`merge` in another process."""
        now = self._clock()
        return [
            OpenCircuit(
                topic, each.code, each.reason, each.failures, now - each.since, each.until - now, each.new_from - now
            )
            for topic, each in list(self._circuits.items())  # a copy: another thread may change the dictionary
        ]

    def merge(self, circuits: Iterable[OpenCircuit]) -> None:
        """Add the circuits of another process, if they have failed more often than is known here."""
        now = self._clock()
        for topic, code, reason, failures, since_s, until_s, new_from_s in circuits:
            known = self._circuits.get(topic)
            if known is None or failures > known.failures:
                circuit = _Circuit(code, reason, now - since_s, failures, now + until_s, now + new_from_s)
                self._circuits[topic] = circuit

    def problem(self, topic: str, *, retried: bool) -> DeliveryProblem | None:
        """Returns why nothing may be sent to ``topic`` now; None if it may be tried.

        Args:
            topic: of the callback.
            retried: whether the timer has been in the retry topic.
        """
        circuit = self._circuits.get(topic)
        if circuit is None:
            return None
        now = self._clock()
        if now >= (circuit.until if retried else circuit.new_from):
            return None
        return DeliveryProblem(circuit.code, circuit.reason, max(0.0, circuit.until - now))

    def worked(self, topics: Iterable[str]) -> dict[str, float]:
        """Close the circuits of targets that have taken records. Returns topic -> seconds since it first failed."""
        now = self._clock()
        closed = {}
        for topic in topics:
            circuit = self._circuits.get(topic)
            # Else the record was sent before the circuit opened, so the topic may still fail.
            if circuit is not None and circuit.until <= now:
                del self._circuits[topic]
                closed[topic] = now - circuit.since
        return closed

    def drop(self, topic: str) -> bool:
        """Close the circuit of a topic that does not exist any more. Returns whether it was open."""
        return self._circuits.pop(topic, None) is not None
