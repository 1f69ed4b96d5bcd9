"""A queue's process without brokers: what its receivers get, and what becomes of their calls."""

from collections.abc import Sequence
from typing import Any, cast

from confluent_kafka import Message as KafkaMessage

from tests.harness.clock import SimClock
from timers.client import Backoff
from timers.queue import Message, records
from timers.queue.driver import Driver
from timers.queue.ledger import Ledger
from timers.queue.metadata import Commit, Saved, Start
from timers.queue.port import Terms
from timers.queue.records import SIGNING_KEY_BYTES, Signing
from timers.queue.sending import Guards
from timers.wire.headers import Header

JOBS, OTHER = ("jobs", 0), ("jobs", 1)
RETURNS = ("queue.jobs-returns", 0)
SESSION_S = 10.0
SIGNING = Signing("jobs", {1: b"k" * SIGNING_KEY_BYTES})


def at_once(_: object) -> float:
    """No pause after the end of a lease."""
    return 0.0


def record(topic: str, partition: int, offset: int, headers: Sequence[Header] | None = None) -> KafkaMessage:
    content: dict[str, Any] = {"key": b"key", "value": b"%d" % offset, "headers": headers}
    return KafkaMessage(topic=topic, partition=partition, offset=offset, timestamp=(2, 1_700_000_000_000), **content)


class SimGuards(Guards):
    """Guards whose cancels have the given verdict, and whose dead letters are written or not."""

    def __init__(self, *, is_cancelled: bool = True, is_published: bool = True, timeout_s: float = 0.0) -> None:
        self.are_possible = True
        self.timeout_s = timeout_s
        self.is_cancelled = is_cancelled
        self.is_published = is_published
        self.calls: list[str] = []

    def cancel(self, id: str, timeout_s: float) -> bool:
        self.calls.append("cancel")
        return self.is_cancelled

    def publish(self, letter: records.Record, timeout_s: float) -> bool:
        self.calls.append("publish")
        return self.is_published


def opened(
    messages: int = 10,
    *,
    attempts: int = 3,
    ordered: bool = False,
    guards: Guards | None = None,
    clock: SimClock | None = None,
) -> Driver:
    """A process with messages in one partition."""
    terms = Terms(
        "jobs", "jobs", "queue.jobs-returns", Backoff(retries=attempts), 30.0, ordered, False, 1_000_000, SESSION_S
    )
    driver = Driver(terms, guards or SimGuards(), cast(Any, None), clock or SimClock())
    driver.member.signing = SIGNING
    add(driver, JOBS, messages)
    return driver


def add(driver: Driver, partition: tuple[str, int], messages: int, *, attempt: int = 1) -> Ledger:
    ledger = Ledger(Saved(0))
    ledger.starts.allow(Start(0, messages))
    driver.member.settler.assign(partition, ledger, "log", Commit(0, "1234"))
    for offset in range(messages):
        ledger.read(offset, record(*partition, offset), attempt=attempt)
    return ledger


def receive(driver: Driver, count: int, kind: type[Message] = Message) -> list[Message]:
    """Return ``count`` messages, which must be there."""
    messages = driver.receive(kind, count, 0)
    assert len(messages) == count
    return messages


def guarded(driver: Driver, *, commit: bool = True, kind: type[Message] = Message) -> Message:
    """A message whose partition moved while its handler worked on it."""
    member = driver.member
    (message,) = receive(driver, 1, kind)
    (guard,) = member.protect([JOBS])
    plan = member.settler.plan()
    assert plan is not None and plan.in_transaction
    if commit:
        member.settler.succeed(plan)
    guard.decide(is_set=False)
    member.settler.revoke([JOBS])
    return message


def confirm(driver: Driver, planned_s: float) -> None:
    """The brokers accept a commit that was planned at a time."""
    with driver.lock:
        driver.member.settler.confirmed_s = planned_s
        driver.lock.notify_all()


def answer(driver: Driver) -> None:
    """All that was settled is committed."""
    with driver.lock:
        driver._do(driver.member.answer(list(driver.member.waiting)))
