"""One delivery of a message, and the calls that settle it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TypeAlias

from timers.client import tracing
from timers.client.request import BytesLike, HeadersLike
from timers.errors import LeaseLostError
from timers.queue import records
from timers.queue.delivery import ACKED, RETRIED, Delivery
from timers.queue.driver import Driver
from timers.queue.entry import BIND, DONE, EXTEND_LEASE, RETRY, Settlement
from timers.queue.sending import Guard
from timers.queue.starts import MAX_CRASHES
from timers.wire import topics
from timers.wire.dead_letter import CRASHED, REJECTED

After: TypeAlias = float | timedelta | Sequence[float | timedelta] | None
"""When a message is delivered again; see :meth:`Message.retry`."""


@dataclass(slots=True, eq=False, repr=False)
class Message(Delivery):
    """One delivery of a message. Settle it with :meth:`ack`, :meth:`retry` or :meth:`reject`.

    Attributes:
        attempt: number of this delivery, counted from 1.
    """

    _driver: Driver

    @property
    def may_wait(self) -> bool:
        """Whether a call that settles the message may have to wait for the brokers."""
        return self.guard is not None or self._driver.is_unconfirmed

    @property
    def is_overdue(self) -> bool:
        """Whether its lease is over. It may still be settled until it is delivered again."""
        return self._driver.now_s() >= self._until_s

    @property
    def id(self) -> str:
        """A text that is the same in all deliveries of this message, and different for each other message.

        It contains the time of sending, because a topic that is deleted and created again has the same sources.
        """
        return f"{self._driver.terms.name} {self.source} {self.sent_ms}"

    @property
    def group(self) -> str:
        """Name of the queue's consumer group."""
        return topics.queue_group(self._driver.terms.name)

    def ack(self) -> None:
        """Mark the message as done. A process commits every 100 ms; :meth:`Queue.settle` waits for it.

        It returns at once, with two exceptions. If the message's partition moved to another process meanwhile, it waits
        until the timer that would return the message is cancelled. If the brokers accepted no commit for the session
        time-out, because they are away or this process was stopped, it waits for the next commit.

        If the message has outputs, they are written in the transaction in which it is done.

        Raises:
            LeaseLostError: the message was delivered again after its lease, its partition has another owner, or it is
                settled.
        """
        if self._outputs or not self._driver.ack(self):
            self._settle(DONE, ACKED, Guard.cancel, written=self._outputs)

    def output(
        self,
        topic: str,
        value: str | BytesLike | None,
        *,
        key: str | BytesLike | None = None,
        headers: HeadersLike = (),
    ) -> None:
        """Write a record when :meth:`ack` is called, exactly once for ``read_committed`` readers.

        ``retry`` and ``reject`` discard the outputs. An output that the brokers refuse makes the message a dead letter.

        Raises:
            InvalidTimerError: the topic is not legal, or a value is neither str nor bytes.
            LeaseLostError: as in :meth:`ack`.
        """
        make = partial(records.output, self.source, topic, key, value, headers, tracing.current())
        driver = self._driver
        if not driver.call(lambda: self.add_output(make)):
            raise self._lost()

    def retry(self, after: After = None, error: str = "") -> None:
        """Deliver the message again after a delay; after the last attempt it becomes a dead letter.

        The delay is a timer: the brokers' clocks count it, in whole seconds, rounded up. In an ordered queue the
        message waits in the process that has its partition, and the later messages of its key wait with it. If the
        partition moved to another process before this call, the message is delivered there when the lease is over.

        Args:
            after: seconds, or a list of them: the first for the first retry and so on, the last for all further ones.
                None takes the queue's backoff.
            error: why the attempt failed, for the header ``queue-error`` and the dead letter.

        Raises:
            LeaseLostError: as in :meth:`ack`.
            InvalidTimerError: the message is too large for a request, ``after`` is no delay, or ``error`` no text.
        """
        records.check_text("error", error)
        terms, member = self._driver.terms, self._driver.member
        code, reason = member.last_words(self, error)
        if code:
            self._give_up(code, reason)
            return
        if after is None:
            after = terms.backoff.delay_s(self.attempt, random.random())
        after_s = records.delay_s(after, self.attempt)
        written = [] if terms.ordered else [member.later(self, after_s, error, tracing.current())]
        self._settle(RETRY, RETRIED, Guard.leave, written=written, after_s=after_s)

    def reject(self, reason: str) -> None:
        """Make the message a dead letter with the code ``rejected``.

        Raises:
            LeaseLostError: as in :meth:`ack`.
            InvalidTimerError: ``reason`` is no text.
        """
        records.check_text("reason", reason)
        self._give_up(REJECTED, f"the queue {self._driver.terms.name!r} rejected it: {reason}")

    def crashed(self, how: str) -> None:
        """Deliver the message again, because the process of its handler ended; twice, and it becomes a dead letter.

        Raises:
            LeaseLostError: as in :meth:`ack`.
        """
        driver = self._driver
        if driver.call(lambda: driver.member.note_crash(self)) < MAX_CRASHES:
            self.put_back()
        else:
            self._give_up(CRASHED, f"the queue {driver.terms.name!r} gave it up: the process of its handler {how}")

    def put_back(self) -> None:
        """Deliver the message again at once, with the same attempt; if its lease is over, as after the end of a lease.

        Nothing happens if this delivery is over.
        """
        driver = self._driver
        driver.call(lambda: driver.member.put_back(self))

    def extend(self, lease_s: float) -> None:
        """Let the lease last for ``lease_s`` seconds from now, or longer if it already does.

        Raises:
            LeaseLostError: as in :meth:`ack`, and if the lease is over.
            InvalidTimerError: ``lease_s`` is no number of seconds.
        """
        self._settle(EXTEND_LEASE, "", None, after_s=records.seconds("lease_s", lease_s))

    def _give_up(self, code: str, reason: str) -> None:
        letter = self._driver.member.letter(self, code, reason, tracing.current())

        def write(guard: Guard, timeout_s: float) -> bool:
            return guard.write_letter(letter, timeout_s)

        self._settle(BIND, code, write, written=[letter])

    def _settle(
        self,
        how: Settlement,
        end: str,
        guarded: Callable[[Guard, float], bool] | None,
        *,
        written: Sequence[records.Record] = (),
        after_s: float = 0.0,
    ) -> None:
        """Settle the message.

        Raises:
            LeaseLostError: this delivery is over.
        """
        if not self._driver.settle(self, how, end, guarded, written=written, after_s=after_s):
            raise self._lost()

    def _lost(self) -> LeaseLostError:
        return LeaseLostError(
            f"message {self.source} is no longer this receiver's: its lease is over and it was delivered "
            "again, its partition has another owner, or it was settled before. It is delivered again unless "
            "it was settled"
        )
