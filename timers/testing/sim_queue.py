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

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Self, cast

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME
from confluent_kafka import Message as SimMessage

from timers.client import Backoff, tracing
from timers.client.config import LONGEST_WAIT_S, seconds
from timers.client.request import BytesLike, HeadersLike
from timers.client.times import At
from timers.errors import SettingsError
from timers.queue import records
from timers.queue.aio import AsyncMessage
from timers.queue.driver import RUN_LEASES, Driver
from timers.queue.ledger import Ledger
from timers.queue.message import Message
from timers.queue.metadata import Commit, Saved
from timers.queue.port import Terms
from timers.queue.records import SIGNING_KEY_BYTES, Signing
from timers.queue.running import check_handler, handle, is_async
from timers.queue.sending import Guards, Sendable, record_of
from timers.queue.transactions import due_key
from timers.testing.sim_timers import DeadLetter, SimTimers
from timers.wire import dead_letter, topics
from timers.wire.headers import Header

_MAX_REQUEST_BYTES = 1_000_000


class Output(NamedTuple):
    """What a handler wrote with ``message.output``."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[Header]


class SimQueue:
    """A queue in memory, with one process and one partition. Several threads may use it.

    Args:
        topic: topic of the queue.
        name: name of the queue; by default that of its topic.
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
        name: str | None = None,
        timers: SimTimers | None = None,
        backoff: Backoff | None = None,
        lease_s: float = 30.0,
        ordered: bool = False,
    ) -> None:
        self.topic = topic
        self.name = topic if name is None else name
        self.stopping = False
        self.timers = SimTimers() if timers is None else timers
        self.dead: list[DeadLetter] = []
        self.outputs: list[Output] = []
        self._messages: dict[str, tuple[bytes | None, bytes | None]] = {}
        """Source -> key and value, for dead letters."""
        returns = topics.queue_returns(topics.queue_group(self.name))
        terms = Terms(
            name=self.name,
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
        self._member.signing = Signing(self.name, {1: bytes(SIGNING_KEY_BYTES)})
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
            with self._driver.lock:
                self._append(self.topic, key, value, headers, self.timers.clock.now_ms)
                sources.append(topics.source(self.topic, 0, self._ends[self.topic] - 1))
        return sources

    def receive(self, limit: int = 1, wait_s: float = 1.0) -> list[Message]:
        """The next messages that are ready, up to ``limit``. It never waits: no time passes meanwhile."""
        seconds("wait_s", wait_s, 0, LONGEST_WAIT_S, 1)
        return self._receive(limit)

    def _receive(self, limit: int = 1, leases: int = 1, make: type[Message] = Message) -> list[Message]:
        with self._driver.lock:
            self.settle()
            return self._driver.receive(make, limit, 0.0, leases)

    def __iter__(self) -> Iterator[Message]:
        """Yield messages until none is ready."""
        while not self.stopping and (messages := self.receive()):
            yield from messages

    def run(
        self,
        handler: Callable[[Message], None] | Callable[[AsyncMessage], Awaitable[None]],
        *,
        concurrency: int = 1,
        processes: int = 0,
    ) -> int:
        """Call a handler with each message that is ready, and settle it as ``Queue.run``. Returns how many.

        An async handler gets an :class:`~timers.queue.AsyncMessage`, as from ``AsyncQueue.run``, in an event loop of
        this call.

        Args:
            concurrency: has no effect, as ``processes``: one handler runs after the other, in this thread.

        Raises:
            SettingsError: the handler is none; or it is async, and this thread has an event loop that runs.
        """
        self.stopping = False
        if not is_async(handler):
            check_handler(handler)
            return self._run(cast(Callable[[Message], None], handler), Message)
        if asyncio._get_running_loop() is not None:
            raise SettingsError("an event loop runs in this thread: `await asyncio.to_thread(queue.run, handler)`")
        make = cast(Callable[[Message], Coroutine[Any, Any, None]], handler)
        with asyncio.Runner() as runner:
            return self._run(lambda message: runner.run(make(message)), AsyncMessage)

    def _run(self, handler: Callable[[Any], None], make: type[Message]) -> int:
        count = 0
        while not self.stopping and (messages := self._receive(1, RUN_LEASES, make)):
            handle(messages[0], handler)
            count += 1
        return count

    def stop(self) -> None:
        """Let :meth:`run` and loops end after the message that they work on."""
        self.stopping = True

    def close(self) -> None:
        """As :meth:`stop`, and settle. The next :meth:`run` or ``with`` block goes on with the same messages."""
        self.stop()
        self.settle()

    def __enter__(self) -> Self:
        self.stopping = False
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def settle(self) -> None:
        """Commit what handlers have settled: retries become timers, and dead letters appear in :attr:`dead`."""
        with self._driver.lock:
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
            self.outputs.append(Output(record.topic, record.key, record.value, record.headers))
        else:
            letter = dead_letter.decode(record.headers)
            assert letter is not None, "the queue has written it"
            self.dead.append(DeadLetter(letter.code, letter.message, letter.source, *self._messages[letter.source]))

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
        self._messages[topics.source(topic, 0, offset)] = key, value
        record = SimMessage(topic, 0, offset, key, value, [*headers], timestamp=(TIMESTAMP_LOG_APPEND_TIME, append_ms))
        list(self._member.read([record]))  # it asks nothing of the brokers
