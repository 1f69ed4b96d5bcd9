"""What tests with queues on a real broker call."""

from __future__ import annotations

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
