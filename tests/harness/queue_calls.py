"""What tests with queues on a real broker call, and a message without a queue."""

from collections.abc import Sequence
from typing import Any

from tests.harness.waiting import DEADLINE_S, wait_until
from timers.queue import Message, Queue

PATIENT: dict[str, Any] = {"lease_s": 600.0, "session_timeout_s": 60.0, "timeout_s": 60.0}
"""For queues whose messages no test expects back: a busy machine may take long between two calls."""


def receive(queue: Queue, count: int, *, ack: bool = False, deadline_s: float = 2 * DEADLINE_S) -> list[Message]:
    """Receive exactly ``count`` messages; with ``ack``, acknowledge each before the next ones come."""
    received: list[Message] = []

    def enough() -> bool:
        for message in queue.receive(count - len(received), wait_s=1):
            received.append(message)
            if ack:
                message.ack()
        return len(received) == count

    wait_until(enough, f"{count} messages of {queue.name}", deadline_s)
    return received


def joined_by_another(topic: str) -> tuple[Queue, Queue, list[Message]]:
    """Two processes of a queue. The first one has a message of each of the two partitions; the second one joins, so one
    of the partitions moves to it."""
    first, second = (Queue(topic, member=member, **PATIENT) for member in ("first", "second"))
    messages = receive(first, 2)
    assert second.receive(wait_s=0) == []  # it joins
    return first, second, messages


class SimMessage:
    """A message that notes the calls, for handlers that run without a queue.

    Args:
        value: what it says.
        refused: what a retry raises.
        lost: what an acknowledgement and an extension raise.
    """

    attempt = 1
    sent_ms = 1_700_000_000_123
    group = "queue.jobs"
    key: bytes | None = b"\xfe"
    headers: Sequence[tuple[str, bytes | None]] = (("trace", b"1"), ("null", None))
    may_wait = False

    def __init__(self, value: str = "", *, refused: Exception | None = None, lost: Exception | None = None) -> None:
        self.value = value.encode()
        self.source = self.id = f"jobs/0/{value or 1}"
        self.calls: list[Any] = []
        self.is_settled = self.is_overdue = False
        self._refused, self._lost = refused, lost

    def ack(self) -> None:
        if self._lost is not None:
            raise self._lost
        self.is_settled = True
        self.calls.append("ack")

    def retry(self, after: float | None = None, error: str = "") -> None:
        if self._refused is not None:
            raise self._refused
        self.is_settled = True
        self.calls.append(("retry", after, error))

    def reject(self, reason: str) -> None:
        self.is_settled = True
        self.calls.append(("reject", reason))

    def output(self, topic: str, value: Any, **more: Any) -> None:
        self.calls.append(("output", topic, value, more))

    def extend(self, lease_s: float) -> None:
        if self._lost is not None:
            raise self._lost
        self.calls.append(("extend", lease_s))

    def put_back(self) -> None:
        self.calls.append("put back")

    def crashed(self, how: str) -> None:
        self.calls.append(("crashed", how))
