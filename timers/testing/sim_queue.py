"""A queue with a simulated clock, for the tests of programs that handle its messages.

It delivers, retries and gives up messages by the rules of :class:`timers.queue.Queue`, with the queue's own ledgers::

    from timers.queue import Backoff
    from timers.testing import SimQueue

    def test_a_payment_is_retried_and_then_given_up():
        queue = SimQueue("payments", backoff=Backoff(first_s=10, retries=1))
        queue.send(b"order-17")

        assert queue.run(fails) == 1
        queue.advance(10)
        assert queue.run(fails) == 1
        [letter] = queue.dead
        assert letter.code == "attempts-exhausted"
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, cast

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME
from confluent_kafka import Message as SimMessage

from timers.client import Backoff, tracing
from timers.client.config import LONGEST_S, seconds
from timers.client.request import BytesLike, HeadersLike
from timers.client.times import At
from timers.queue import records
from timers.queue.driver import RUN_LEASES, Driver
from timers.queue.ledger import Ledger
from timers.queue.message import Message
from timers.queue.metadata import Commit, Saved
from timers.queue.port import Terms
from timers.queue.records import KEY_BYTES, Signing
from timers.queue.running import check_handler, handle
from timers.queue.sending import Guards, Sendable, record_of
from timers.queue.transactions import due_key
from timers.testing.sim_timers import DeadLetter, SimTimers
from timers.wire import dead_letter, topics
from timers.wire.headers import Header

_MAX_REQUEST_BYTES = 1_000_000


class SimQueue:
    """A queue in memory, with one process and one partition.

    Args:
        topic: name of the queue and of its topic.
        timers: the timers that return messages; by default timers of its own.
        backoff: as in :class:`timers.queue.Queue`; so are the other arguments.

    Attributes:
        timers: its timers; their clock is that of the queue.
        dead: the dead letters so far.
        outputs: what handlers wrote with ``message.output``, so far.
    """

    def __init__(
        self,
        topic: str = "jobs",
        *,
        timers: SimTimers | None = None,
        backoff: Backoff | None = None,
        lease_s: float = 30.0,
        ordered: bool = False,
    ) -> None:
        self.topic = topic
        self.timers = SimTimers() if timers is None else timers
        self.dead: list[DeadLetter] = []
        self.outputs: list[records.Record] = []
        returns = topics.queue_returns(topics.queue_group(topic))
        terms = Terms(
            name=topic,
            topic=topic,
            returns_topic=returns,
            backoff=backoff or Backoff(),
            lease_s=lease_s,
            ordered=ordered,
            accept_loss=False,
            max_request_bytes=_MAX_REQUEST_BYTES,
            session_timeout_s=math.inf,
        )
        no_guards = Guards(cast(Any, None), cast(Any, None), "", "", 0.0)  # no partition moves here
        self._driver = Driver(terms, no_guards, cast(Any, None), lambda: self.timers.clock.now_ms / 1000)
        self._member = self._driver.member
        self._member.signing = Signing(topic, {1: bytes(KEY_BYTES)})
        clock, now_s = self._member.settler.clock, self._driver.now_s()
        clock.note(now_s, now_s, now_s)
        self._ledgers = {name: Ledger(Saved(0), clock=clock) for name in (topic, returns)}
        self._ends = dict.fromkeys(self._ledgers, 0)
        for name, ledger in self._ledgers.items():
            self._member.settler.assign((name, 0), ledger, "simulated", Commit(0, ""))
        self._read_fired = len(self.timers.fired)

    def send(
        self,
        value: str | BytesLike,
        *,
        key: str | BytesLike | None = None,
        headers: HeadersLike = (),
        at: At | None = None,
        delay: timedelta | float | None = None,
    ) -> str:
        """As :meth:`timers.queue.Queue.send`."""
        if at is not None or delay is not None:
            return self.timers.schedule(self.topic, key, value, at=at, delay=delay, headers=headers)
        (source,) = self.send_many([(key, value, headers)])
        return source

    def send_many(self, messages: Iterable[Sendable]) -> list[str]:
        """As :meth:`timers.queue.Queue.send_many`."""
        sources = []
        for key, value, headers in (record_of(message, tracing.current()) for message in messages):
            self._append(self.topic, key, value, headers, self.timers.clock.now_ms)
            sources.append(topics.source(self.topic, 0, self._ends[self.topic] - 1))
        return sources

    def receive(self, limit: int = 1, wait_s: float = 1.0) -> list[Message]:
        """The next messages that are ready, up to ``limit``. It never waits: no time passes meanwhile."""
        seconds("wait_s", wait_s, 0, LONGEST_S, 1)
        return self._receive(limit)

    def _receive(self, limit: int = 1, leases: int = 1) -> list[Message]:
        self.settle()
        return self._driver.receive(Message, limit, 0.0, leases)

    def __iter__(self) -> Iterator[Message]:
        """Yield messages until none is ready."""
        while messages := self.receive():
            yield from messages

    def run(self, handler: Callable[[Message], None]) -> int:
        """Call a handler with each message that is ready, and settle it as ``Queue.run``. Returns how many."""
        check_handler(handler)
        count = 0
        while messages := self._receive(leases=RUN_LEASES):
            handle(messages[0], handler)
            count += 1
        return count

    def settle(self) -> None:
        """Commit what handlers have settled: retries become timers, and dead letters appear in :attr:`dead`."""
        self._read_callbacks()
        settler = self._member.settler
        for ledger in self._ledgers.values():
            ledger.expire(self._driver.now_s(), self._member.terms.pause_s)
        while (plan := settler.plan()) is not None:
            for job in plan.jobs:
                for record in job.records:
                    self._write(record)
            settler.succeed(plan)
            self._read_callbacks()

    def advance(self, seconds: float | timedelta) -> None:
        """Move the clock forward: messages whose retry or delay is over become ready, and leases end."""
        self.settle()
        self.timers.advance(seconds)
        self.settle()

    def _write(self, record: records.Record) -> None:
        now_ms = self.timers.clock.now_ms
        if record.kind is records.Kind.RETRY:
            self.timers.produce(due_key(now_ms, record.after_ms or 0), record.value, record.headers)
        elif record.kind is records.Kind.OUTPUT:
            self.outputs.append(record)
        else:
            letter = dead_letter.decode(record.headers)
            assert letter is not None, "the queue has written it"
            self.dead.append(DeadLetter(letter.code, letter.message, letter.source, None, record.value))

    def _read_callbacks(self) -> None:
        """Read the messages that timers have sent since the last call."""
        new, self._read_fired = self.timers.fired[self._read_fired :], len(self.timers.fired)
        for fired in new:
            if fired.topic in self._ledgers:
                self._append(fired.topic, fired.key, fired.value, fired.headers, fired.at_ms)

    def _append(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Sequence[Header], append_ms: int
    ) -> None:
        offset = self._ends[topic]
        self._ends[topic] += 1
        record = SimMessage(topic, 0, offset, key, value, [*headers], timestamp=(TIMESTAMP_LOG_APPEND_TIME, append_ms))
        list(self._member.read([record]))  # it asks nothing of the brokers
