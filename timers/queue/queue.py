"""Receives the messages of a topic, each acknowledged by itself and in any order."""

from __future__ import annotations

import logging
import re
import socket
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from time import monotonic, sleep
from typing import Self

from timers.client import Backoff, TimersClient
from timers.client.config import DEFAULT_TIMEOUT_S, LONGEST_WAIT_S, Connection, seconds
from timers.client.publish import left_s
from timers.client.request import BytesLike, HeadersLike
from timers.client.times import At
from timers.core.printable import quoted
from timers.errors import QueueError, SettingsError
from timers.kafka import login_tokens
from timers.process.limits import MAX_CONCURRENCY, MAX_PROCESSES
from timers.process.threads import call_in_thread, tell_of_forks
from timers.queue.driver import RUN_LEASES, Driver
from timers.queue.inspection import Inspection, QueueStats
from timers.queue.message import Message
from timers.queue.port import Counters, Terms
from timers.queue.running import Child, Handlers, check_count, check_handler, handle
from timers.queue.sending import Guards, Sendable, Sender
from timers.queue.transport import Transport
from timers.wire import topics

_log = logging.getLogger("timers.queue")

_MEMBER_CHARACTERS = 200
_NUMBER = re.compile("0|[1-9][0-9]{0,9}")

_WAIT_S = 0.5
"""Longest time until a thread without a message notices that it must end."""

_STOP_POLL_S = 0.05
"""Longest time until :meth:`Queue.run` notices that it must end."""

JOIN_WAIT_S = 10.0
"""How long after the first call that receives calls wait for the group, before they wait for messages: so that the
first one, after which a program of a few lines may end, does not find the queue empty."""


def _are_partitions(names: object, of_topics: Collection[str]) -> bool:
    """Whether the argument has names of partitions of these topics, as :func:`topics.partition_name` writes them."""
    if isinstance(names, str) or not isinstance(names, Collection):
        return False
    parts = [str(each).rpartition("/") for each in names]
    return all(topic in of_topics and _NUMBER.fullmatch(number) for topic, _, number in parts)


class Queue:
    """The messages of a topic, shared by all processes that open a queue of the same name.

    ::

        with Queue("orders") as queue:
            queue.send(b"order 17", key="customer-4")
            for message in queue:
                message.ack()

    Thread-safe; keep one for the life of the process. It joins the consumer group ``queue.<name>`` at the first
    :meth:`receive`.

    Args:
        topic: an existing topic.
        name: name of the queue; None takes the topic's. Queues with different names each get all messages.
        brokers: bootstrap servers; None takes ``TIMERS_BROKERS``, else this project's running broker.
        backoff: delays between attempts, and how many retries there are.
        lease_s: how long a receiver may take for a message before it is delivered again. While a handler of
            :meth:`run` works on a message, its lease is extended, to ten times ``lease_s``.
        ordered: deliver a message only when all earlier messages of its key are done. Messages without a key have no
            order. All processes of the queue must give the same value.
        member: name of this process among those of the queue, the same after a restart; None takes the name of the
            host and a random part. A transaction that a crash left open delays its partitions by 5 s, unless a process
            of the same name starts before.
        session_timeout_s: after a crash, how long the partitions of the process wait for another one.
        accept_loss: go on if retention deleted messages that were not done, or if the log lost its end and grew again:
            in all partitions, or in those that are named, as ``["jobs/3"]``. Others are not read then, and if the
            process has no other partition, :meth:`receive` raises an error.
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
        accept_loss: bool | Collection[str] = False,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self.topic = topic
        self.name = topic if name is None else name
        returns = f"queue.{self.name}-returns" if isinstance(self.name, str) else self.name
        for argument, given in (("topic", topic), ("name", returns)):
            if not topics.is_legal(given):
                raise SettingsError(f"{argument}={quoted(given)} is not {topics.LEGAL_FORM}")
        lease_s = seconds("lease_s", lease_s, 0.1, 10**6, 30)
        session_timeout_s = seconds("session_timeout_s", session_timeout_s, 1, 1800, 10)
        if not isinstance(accept_loss, bool) and not _are_partitions(accept_loss, (topic, returns)):
            raise SettingsError(
                f"accept_loss={quoted(accept_loss)} is not True, False, or a list of partitions such as ['{topic}/0']"
            )
        if backoff is not None and not isinstance(backoff, Backoff):
            raise SettingsError(f"backoff={quoted(backoff):.100} is not a Backoff, such as Backoff(retries=3)")
        kafka = Connection.resolve(brokers, None, None, timeout_s, None)
        group = topics.queue_group(self.name)
        if member is None or (isinstance(member, str) and not member):
            member = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
        if not isinstance(member, str) or len(member) > _MEMBER_CHARACTERS or not member.isprintable():
            # librdkafka would cut it at its first NUL, and then it could be the name of another process
            raise SettingsError(f"member={quoted(member)} is not 1 to {_MEMBER_CHARACTERS} printable characters")
        transport = Transport(kafka, topic, group, member, session_timeout_s)
        terms = Terms(
            name=self.name,
            topic=topic,
            returns_topic=transport.returns_topic,
            backoff=backoff or Backoff(),
            lease_s=lease_s,
            ordered=ordered,
            accept_loss=accept_loss,
            max_request_bytes=kafka.max_request_bytes,
            session_timeout_s=session_timeout_s,
        )
        self.timeout_s = timeout_s
        self.message: type[Message] = Message
        self.handlers = Handlers()
        self._sender = Sender(kafka, topic)
        self._timers = TimersClient(kafka.settings.brokers, timeout_s=timeout_s)
        self.settings = settings = kafka.settings
        guards = Guards(self._timers, self._sender, settings.id_topic, settings.dead_letter_topic, timeout_s)
        self.driver = Driver(terms, guards, transport)
        self.driver.has_handlers = lambda: self.handlers.are_running() and not self.stopping
        tell_of_forks(self)

    def after_fork(self) -> None:
        """Let calls of a process that was forked say so: it has none of the queue's threads and connections."""
        self.handlers.after_fork()
        self.driver.after_fork()

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
        at: At | None = None,
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
        """Send messages, and return their sources when the brokers have all of them.

        Args:
            messages: each is a value, (key, value), or (key, value, headers). It is read while the producer has room,
                so it may be a generator of any length.

        Raises:
            PartlyPublishedError: the brokers did not take all of them; its ``ids`` are the sources of the others, and
                its ``unknown`` the numbers of those that may have been taken. The error for one message is a
                :class:`~timers.client.PublishError` of another kind.
            InvalidTimerError: a key, a value or a header cannot be sent; the message is named by its number. Those
                before it are sent: its ``ids`` are their sources.
        """
        return self._sender.send(messages)

    # ---- receiving -----------------------------------------------------------------------------------------------

    def receive(self, limit: int = 1, wait_s: float = 1.0) -> list[Message]:
        """Return up to ``limit`` messages; none if none came within ``wait_s``, or the queue is closed.

        Until this process has joined the group, a call waits for that first, unless ``wait_s`` is 0; not longer than
        10 s from the first call on.

        Raises:
            QueueError: the queue cannot be read, or messages of it were lost.
            SettingsError: ``wait_s`` is no number of seconds.
        """
        return self._receive(limit, wait_s, leases=1)

    def receive_to_run(self, limit: int = 1, wait_s: float = 1.0) -> list[Message]:
        """As :meth:`receive`, for handlers of :meth:`run`: their messages have longer leases."""
        return self._receive(limit, wait_s, leases=RUN_LEASES)

    def _receive(self, limit: int, wait_s: float, leases: int) -> list[Message]:
        seconds("wait_s", wait_s, 0, LONGEST_WAIT_S, 1)
        self.driver.start()
        if wait_s:
            self.driver.wait_to_join(JOIN_WAIT_S, lambda: self.stopping)
        return self.driver.receive(self.message, limit, wait_s, leases)

    def __iter__(self) -> Iterator[Message]:
        """Yield messages until :meth:`stop` or :meth:`close` is called: ``for message in queue``.

        Each is taken when the loop asks for it. One that the loop does not settle is delivered again when its lease is
        over.
        """
        while not self.stopping:
            yield from self.receive(1, _WAIT_S)

    def counters(self) -> Counters:
        """Return what this process counted since the queue was opened."""
        return replace(self.driver.counters(), hanging=self.handlers.hanging)

    def stats(self) -> QueueStats:
        """Ask the brokers for the state of the queue, over all its processes. Takes some milliseconds.

        Raises:
            TimersError: the brokers do not answer, or refuse.
        """
        try:
            return call_in_thread("queue-stats", self._inspect).result(self.timeout_s)
        except TimeoutError:
            raise QueueError(
                f"the brokers did not say within {self.timeout_s:g} s what the state of the queue {self.name!r} is"
            ) from None

    def _inspect(self) -> QueueStats:
        return Inspection(self.settings).stats(self.name, self.topic, in_flight=self.counters().in_flight)

    def unready(self) -> list[str]:
        """Return why this process does not work on messages now: sentences, or nothing."""
        return [*login_tokens.troubles(self.settings), *self._hangs(), *self.driver.unready()]

    def stuck(self) -> list[str]:
        """Return why this process should be started again: sentences, or nothing."""
        return [*self._hangs(), *self.driver.stuck()]

    def _hangs(self) -> list[str]:
        if self.driver.is_asked or not self.handlers.all_hang():
            return []
        return [f"all {self.handlers.hanging} handlers of the queue {self.name!r} hang: they take more than ten leases"]

    def run(self, handler: Callable[[Message], None], *, concurrency: int = 1, processes: int = 0) -> None:
        """Call ``handler`` with each message until :meth:`stop` or :meth:`close` is called.

        Ctrl-C is a call of :meth:`stop`: it returns when the running handlers have returned, as the loops of rq and
        procrastinate do, and :attr:`stopping` is True. It does not wait for handlers whose leases are over.

        A message whose handler returns is acknowledged, unless the handler settled it. One whose handler raises an
        exception is retried, with the exception as the error: any exception, also ``SystemExit`` of ``sys.exit()``.

        Args:
            handler: with ``processes``, a function that a new process can import. It gets a copy of the message, whose
                calls take effect when it has returned.
            concurrency: number of threads, with a message each.
            processes: number of child processes, with a message each, instead of threads: for handlers that use the
                processor. A message whose handler ended two of them becomes a dead letter with the code ``crashed``.

        Raises:
            QueueError: the queue cannot be read, or a child process cannot import the handler.
            SettingsError: an argument is wrong.
        """
        check_count("concurrency", concurrency, 1, MAX_CONCURRENCY)
        check_count("processes", processes, 0, MAX_PROCESSES)
        if processes and concurrency > 1:
            raise SettingsError(
                f"concurrency={concurrency}, processes={processes}: give either concurrency, a number of threads, "
                "or processes, a number of child processes"
            )
        check_handler(handler)
        failures: list[BaseException] = []
        threads = [
            # No pool of threads: at the end of the program it would wait for those that hang.
            threading.Thread(
                target=self._work, args=(handler, bool(processes), failures), name=f"queue-{self.name}", daemon=True
            )
            for _ in range(processes or concurrency)
        ]
        try:
            for thread in threads:
                thread.start()
            while not self.stopping:
                # No join: before Python 3.13, one that Ctrl-C interrupts counts its thread as ended while it runs.
                sleep(_STOP_POLL_S)
        except KeyboardInterrupt:
            pass
        finally:
            self.stop()
            self._join(threads)
        if failures:
            raise failures[0]

    def _join(self, threads: Iterable[threading.Thread]) -> None:
        while alive := [thread for thread in threads if thread.is_alive()]:
            hanging = self.handlers.hanging_threads()
            waits = next((thread for thread in alive if thread.ident not in hanging), None)
            if waits is None:
                self.handlers.left += len(alive)
                _log.warning("the queue %s does not wait for %d handlers that hang", self.name, len(alive))
                return
            waits.join(_WAIT_S)

    def _work(self, handler: Callable[[Message], None], in_child: bool, failures: list[BaseException]) -> None:
        child = Child(handler, lambda: self.stopping) if in_child else None
        with self.handlers.running():
            try:
                if child is not None:
                    child.start()
                handle_one = partial(handle, handler=handler) if child is None else child.handle
                while not self.stopping:
                    for message in self.receive_to_run(1, _WAIT_S):
                        if self.stopping:
                            message.put_back()
                            continue
                        with self.handlers.handling(message):
                            handle_one(message)
            except BaseException as error:
                if not (isinstance(error, QueueError) and self.stopping):  # Ctrl-C may end a child that starts
                    failures.append(error)
            finally:
                self.stop()  # if this thread cannot go on, neither does the queue
                if child is not None:
                    child.end(kill=False)

    def stop(self) -> None:
        """Let :meth:`run` return when the handlers that run now have returned. Signal handlers may call it."""
        self.handlers.stopping = True

    @property
    def stopping(self) -> bool:
        """Whether :meth:`stop` or :meth:`close` was called."""
        return self.handlers.stopping or self.driver.closing

    def settle(self) -> None:
        """Wait until all earlier calls of ``ack``, ``retry`` and ``reject`` are committed.

        Raises:
            QueueError: they are not committed within ``timeout_s``, or the process lost a partition before those on
                its messages were.
        """
        if not self.driver.is_started:
            return
        future = self.driver.wait_for_commit()
        try:
            future.result(self.timeout_s)
        except TimeoutError:
            raise QueueError(f"the queue {self.name!r} was not settled within {self.timeout_s:g} s") from None

    def close(self) -> None:
        """Commit what was settled, leave the group, and disconnect. Other processes get the other messages.

        Handlers of :meth:`run` may return first, as long as their leases last, but not those that call this, too. Then
        it takes up to ``timeout_s``.
        """
        self.stop()
        if not self.handlers.wait(RUN_LEASES * self.driver.terms.lease_s):
            _log.warning("the queue %s is closed while handlers run: their messages are delivered again", self.name)
        deadline = monotonic() + self.timeout_s
        self.driver.close()
        self.driver.join(self.timeout_s)
        self._sender.close(deadline)
        self._timers.close(left_s(deadline))
