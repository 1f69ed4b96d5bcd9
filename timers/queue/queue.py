"""Receives the messages of a topic, each acknowledged by itself and in any order.

One thread of the process reads, serves rebalances and commits. The program's threads take messages from the ledgers and
settle them there, under one lock and without I/O.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from timers.client import Backoff, TimersClient
from timers.client.config import DEFAULT_TIMEOUT_S, Connection
from timers.client.request import BytesLike, HeadersLike
from timers.errors import LeaseLostError, QueueError, SettingsError, TimersError
from timers.queue import records
from timers.queue.committing import Committer
from timers.queue.ledger import Ledger
from timers.queue.loading import load
from timers.queue.message import Message, handle
from timers.queue.sending import Sendable, Sender
from timers.queue.settling import Partition, Settler
from timers.queue.transport import Transport
from timers.wire import topics

SETTLE_S = 0.1
"""Time between two commits: after a crash, what was acknowledged in this time is delivered again."""

_POLL_S = 0.02
_BATCH = 500
_MOST_READY = 4000
_MOST_READY_BYTES = 64 * 1024 * 1024
"""Messages and their bytes that may wait for receivers; above that, partitions are paused."""

_CONTROL_BYTES = 8 * 1024 * 1024
"""After so many bytes it is checked whether to pause, also before the next commit."""

_COPY_S = 60.0
_RETRY_S = 0.5
_DRAIN_S = 15.0
"""How long a process that closes tries to settle."""

_LONG_SKIP = 2000
"""Done messages that are skipped by a seek instead of by reading them."""

_log = logging.getLogger("timers.queue")


class Queue:
    """The messages of a topic, shared by all processes that open a queue of the same name.

    ::

        with Queue("orders") as queue:
            queue.send(b"order 17", key="customer-4")
            for message in queue.receive(100):
                message.ack()

    Thread-safe; keep one for the life of the process. It joins the consumer group ``queue.<name>`` at the first
    :meth:`receive`.

    Args:
        topic: an existing topic.
        name: name of the queue; None takes the topic's. Queues with different names each get all messages.
        brokers: bootstrap servers; None takes ``TIMERS_BROKERS``, else this project's running broker.
        backoff: delays between attempts, and how many retries there are.
        lease_s: how long a receiver may take for a message before it is delivered again.
        ordered: deliver a message only when all earlier messages of its key are done. Messages without a key have no
            order. All processes of the queue must give the same value.
        member: name of this process among those of the queue, the same after a restart; None takes the name of the
            host and a random part. A transaction that a crash left open delays its partitions by 5 s, unless a process
            of the same name starts before.
        session_timeout_s: after a crash, how long the partitions of the process wait for another one.
        accept_loss: go on if retention deleted messages that were not done; otherwise :meth:`receive` raises an error.
        timeout_s: how long one call may wait for the brokers.

    Raises:
        SettingsError: an argument or a setting is wrong.
    """

    def __init__(
        self,
        topic: str,
        *,
        name: str | None = None,
        brokers: str | Sequence[str] | None = None,
        backoff: Backoff | None = None,
        lease_s: float = 30.0,
        ordered: bool = False,
        member: str | None = None,
        session_timeout_s: float = 10.0,
        accept_loss: bool = False,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self.topic = topic
        self.name = topic if name is None else name
        for argument, given in (("topic", topic), ("name", f"queue.{self.name}-returns")):
            if not topics.is_legal(given):
                raise SettingsError(f"{argument}={given!r} is not {topics.LEGAL_FORM}")
        if not 0.1 <= lease_s <= 10**6:
            raise SettingsError(f"lease_s={lease_s!r} is not a number of seconds from 0.1 to 1000000 (try 30)")
        self.backoff = backoff or Backoff()
        self.lease_s = lease_s
        self.ordered = ordered
        self.settler = Settler()
        self.lock = threading.Condition()
        kafka = Connection.resolve(brokers, None, None, timeout_s, None)
        self.max_request_bytes = kafka.max_request_bytes
        group = topics.queue_group(self.name)
        member = member or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
        self._transport = Transport(kafka, topic, group, member, session_timeout_s)
        self._committer = Committer(self._transport, self.settler, self.lock)
        self.returns_topic = self._transport.returns_topic
        self._accept_loss = accept_loss
        self._timeout_s = timeout_s
        self._sender = Sender(kafka, topic)
        self._timers = TimersClient(kafka.brokers, timeout_s=timeout_s)
        self._thread: threading.Thread | None = None
        self.closing = False
        self._failure: TimersError | None = None
        self._paused: set[Partition] = set()
        self._waiting: list[Future[None]] = []
        self._fed_bytes = 0
        self._next_settle = self._next_copy = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- sending -------------------------------------------------------------------------------------------------

    def send(
        self,
        value: str | BytesLike,
        *,
        key: str | BytesLike | None = None,
        headers: HeadersLike = (),
        at: datetime | float | None = None,
        delay: timedelta | float | None = None,
    ) -> str:
        """Send a message, and return its source; with ``at`` or ``delay`` set a timer that sends it, and return its id.

        Raises:
            PublishError: the brokers did not take it.
            InvalidTimerError: an argument is wrong.
        """
        if at is not None or delay is not None:
            return self._timers.schedule(self.topic, key, value, at=at, delay=delay, headers=headers)
        (source,) = self.send_many([(key, value, headers)])
        return source

    def send_many(self, messages: Iterable[Sendable]) -> list[str]:
        """Send messages, each as (key, value, headers), and return their sources when the brokers have all of them.

        Raises:
            PublishError: the brokers did not take one of them.
        """
        return self._sender.send(messages)

    # ---- receiving -----------------------------------------------------------------------------------------------

    def receive(self, limit: int = 1, wait_s: float = 1.0) -> list[Message]:
        """Return up to ``limit`` messages; none if none came within ``wait_s``, or the queue is closed.

        Raises:
            QueueError: the queue cannot be read, or messages of it were lost.
        """
        deadline = monotonic() + wait_s
        with self.lock:
            if self._thread is None and not self.closing:
                self._thread = threading.Thread(target=self._run, name=f"queue-{self.name}", daemon=True)
                self._thread.start()
            while True:
                if self._failure is not None:
                    raise self._failure
                messages = self._take(limit)
                remaining_s = deadline - monotonic()
                if messages or remaining_s <= 0 or self.closing:
                    return messages
                self.lock.wait(remaining_s)

    def _take(self, limit: int) -> list[Message]:
        messages: list[Message] = []
        until_s = monotonic() + self.lease_s
        for partition, ledger in self.settler.ledgers.items():
            returned = partition[0] == self.returns_topic
            while len(messages) < limit and (entry := ledger.take(until_s)) is not None:
                message = Message(self, partition, ledger, entry, returned=returned)
                if message.attempt > self.backoff.attempts + 1:
                    message.give_up("the lease of the last attempt ended")
                else:
                    messages.append(message)
        return messages

    def run(self, handler: Callable[[Message], None], *, concurrency: int = 1) -> None:
        """Call ``handler`` with each message in ``concurrency`` threads, until :meth:`close` is called.

        A message whose handler returns is acknowledged, unless the handler settled it. One whose handler raises an
        exception is retried, with the exception as the error.

        Raises:
            QueueError: the queue cannot be read.
        """
        with ThreadPoolExecutor(concurrency, f"queue-{self.name}") as pool:
            for done in [pool.submit(self._work, handler) for _ in range(concurrency)]:
                done.result()

    def _work(self, handler: Callable[[Message], None]) -> None:
        while not self.closing:
            for message in self.receive():
                try:
                    handle(message, handler)
                except LeaseLostError as error:
                    _log.warning("%s", error)

    def settle(self) -> None:
        """Wait until all earlier calls of ``ack``, ``retry`` and ``reject`` are committed.

        Raises:
            QueueError: they are not committed within ``timeout_s``.
        """
        future: Future[None] = Future()
        with self.lock:
            if self._failure is not None:
                raise self._failure
            if self._thread is None or not self._thread.is_alive():
                return
            self._waiting.append(future)
        try:
            future.result(self._timeout_s)
        except TimeoutError:
            raise QueueError(f"the queue {self.name!r} was not settled within {self._timeout_s:g} s") from None

    def close(self) -> None:
        """Commit what was settled, leave the group, and disconnect. Other processes get the other messages."""
        with self.lock:
            self.closing = True
            self.lock.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._sender.close()
        self._timers.close()

    # ---- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._transport.open(self._assigned, self._revoked)
            while not self.closing:
                self._feed(self._transport.poll(_BATCH, _POLL_S))
                if monotonic() >= self._next_settle:
                    self._settle_all()
                    self._control_reading()
                elif self._fed_bytes > _CONTROL_BYTES:
                    self._control_reading()
            self._drain()
        except TimersError as error:
            self._fail(error)
        except KafkaException as error:
            self._fail(self._transport.user_error(error, f"the queue {self.name!r} cannot be read"))
        except Exception as error:
            _log.exception("the queue %s failed", self.name)
            self._fail(QueueError(f"the queue {self.name!r} failed: {error!r}"))
        finally:
            with self.lock:
                self.settler.revoke(list(self.settler.ledgers))
                for future in self._waiting:
                    future.set_exception(QueueError(f"the queue {self.name!r} was closed before it was settled"))
                self._waiting = []
            with contextlib.suppress(KafkaException, RuntimeError):
                self._transport.close()

    def _drain(self) -> None:
        give_up = monotonic() + _DRAIN_S
        while not self._settle_all(with_copy=True):
            if monotonic() > give_up:
                _log.warning("the queue %s is closed, and its last calls of ack or retry are not committed", self.name)
                return
            self._feed(self._transport.poll(1, _RETRY_S))

    def _fail(self, error: TimersError) -> None:
        with self.lock:
            self._failure = error
            for future in self._waiting:
                future.set_exception(error)
            self._waiting = []
            self.lock.notify_all()

    def _feed(self, polled: Iterable[Any]) -> None:
        """Add records to the ledgers."""
        seeks: list[TopicPartition] = []
        with self.lock:
            ledgers = self.settler.ledgers
            for record in polled:
                error = record.error()
                ledger = ledgers.get((record.topic(), record.partition()))
                if error is not None:
                    self._note(error, record, ledger)
                elif ledger is not None:
                    offset, returned = record.offset(), record.topic() == self.returns_topic
                    lane = record.key() if self.ordered and not returned else None
                    attempt = records.identity(record, returned=True).attempt if returned else 1
                    ledger.read(offset, record, lane, attempt)
                    self._fed_bytes += len(record)
                    if ledger.position > offset + _LONG_SKIP:
                        seeks.append(TopicPartition(record.topic(), record.partition(), ledger.position))
            self.lock.notify_all()
        for each in seeks[-1:]:
            self._transport.consumer.seek(each)

    def _note(self, error: KafkaError, record: Any, ledger: Ledger | None) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            if ledger is not None:
                ledger.pass_holes(record.offset())
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise QueueError(
                f"{record.topic()}/{record.partition()} cannot be read at its position "
                f"({error.str()}): retention deleted messages, or the topic was recreated. Open the queue again"
            )
        elif error.fatal():
            raise KafkaException(error)
        else:
            _log.warning("the queue %s: %s", self.name, error.str())

    def _control_reading(self) -> None:
        """Pause partitions whose ledger has no room, or all if too many messages wait for receivers."""
        with self.lock:
            ledgers = self.settler.ledgers
            now_s = monotonic()
            share = 0.0
            self._fed_bytes = 0
            for ledger in ledgers.values():
                ledger.expire(now_s)
                ledger.measure()
                ready_bytes = sum(map(len, ledger.ready_items()))
                share += ledger.ready_count / _MOST_READY + ready_bytes / _MOST_READY_BYTES
            full = {each for each, ledger in ledgers.items() if ledger.position >= ledger.read_limit}
            wanted = full | (set(ledgers) if share > 1 else self._paused & ledgers.keys() if share > 0.5 else set())
            self.lock.notify_all()
        pause, resume = wanted - self._paused, (self._paused - wanted) & ledgers.keys()
        if pause:
            self._transport.consumer.pause([TopicPartition(*each) for each in pause])
        if resume:
            self._transport.consumer.resume([TopicPartition(*each) for each in resume])
        self._paused = wanted

    # ---- settling ------------------------------------------------------------------------------------------------

    def _settle_all(self, *, with_copy: bool = False) -> bool:
        now_s = monotonic()
        with_copy = with_copy or now_s >= self._next_copy
        with self.lock:
            waiting, self._waiting = self._waiting, []
        done = self._committer.commit_all(with_copy=with_copy)
        self._next_settle = monotonic() + (SETTLE_S if done else _RETRY_S)
        if done:
            for future in waiting:
                future.set_result(None)
            if with_copy:
                self._next_copy = now_s + _COPY_S
        else:
            with self.lock:
                self._waiting = waiting + self._waiting
        return done

    # ---- rebalances ----------------------------------------------------------------------------------------------

    def _assigned(self, partitions: list[TopicPartition]) -> None:
        names = [(each.topic, each.partition) for each in partitions]
        loaded = load(self._transport, names, accept_loss=self._accept_loss)
        with self.lock:
            for partition, ledger, commit in loaded:
                self.settler.assign(partition, ledger, self._transport.log_tag(partition[0]), commit)
            self.settler.join(self._transport.member())
        starts = [TopicPartition(*partition, ledger.position) for partition, ledger, _ in loaded]
        self._transport.consumer.incremental_assign(starts)

    def _revoked(self, partitions: list[TopicPartition], *, lost: bool) -> None:
        if not lost:
            # The settler's generation is over by now, so the brokers would refuse a transaction.
            self._committer.commit_all(only_plain=True)
        names = [(each.topic, each.partition) for each in partitions]
        with self.lock:
            self.settler.revoke(names)
            self.settler.join(self._transport.member())
        self._paused -= set(names)
        self._transport.consumer.incremental_unassign(partitions)
