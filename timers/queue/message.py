"""One delivery of a message, and the calls that settle it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, Self

from timers.client.request import BytesLike, HeadersLike
from timers.errors import InvalidTimerError, LeaseLostError
from timers.kafka.records import headers_of
from timers.queue import records
from timers.queue.ledger import HELD, MAX_CRASHES, Entry, Ledger
from timers.queue.records import Identity, returned_value
from timers.queue.sending import Guard
from timers.queue.settling import Job, Partition
from timers.queue.state import State
from timers.wire.dead_letter import ATTEMPTS_EXHAUSTED, CRASHED, REJECTED, UNSIGNED


@dataclass(slots=True, eq=False, repr=False)
class Message:
    """One delivery of a message. Settle it with :meth:`ack`, :meth:`retry` or :meth:`reject`.

    Attributes:
        attempt: number of this delivery, counted from 1.
    """

    _state: State
    _partition: Partition
    _ledger: Ledger
    _entry: Entry
    _received_s: float
    _returned: Identity | None = None
    _outputs: list[records.Record] = field(init=False, default_factory=list)
    _guard: Guard | None = field(init=False, default=None)
    _delivery: int = field(init=False)
    attempt: int = field(init=False)

    def __post_init__(self) -> None:
        self._delivery, self.attempt = self._entry.delivery, self._entry.attempt
        self._entry.holder = self._protect

    @classmethod
    def deliver(cls, state: State, partition: Partition, ledger: Ledger, entry: Entry, now_s: float) -> Self | None:
        """Return a delivery that begins now; None if the message became a dead letter instead.

        The caller holds the lock.
        """
        terms, returned = state.terms, None
        if partition[0] == terms.returns_topic:
            returned = records.identity(entry.item, state.signing, ledger.cuts)
        message = cls(state, partition, ledger, entry, now_s, returned)
        if returned is not None and returned.doubt:
            # A message of its own: what its headers say of another message is not believed.
            message._give_up(UNSIGNED, f"the queue {terms.name!r} did not send it back: {returned.doubt}")
        elif entry.crashes >= MAX_CRASHES or message.attempt > terms.backoff.retries + 1:
            message.retry(error="the lease of the last attempt ended")
        else:
            return message
        return None

    @property
    def is_settled(self) -> bool:
        """Whether the message is settled, or this delivery is over."""
        if self._guard is not None:
            return self._guard.is_over
        return self._entry.state != HELD or self._entry.delivery != self._delivery

    @property
    def may_wait(self) -> bool:
        """Whether a call that settles the message may have to wait for the brokers."""
        return self._guard is not None or self._state.is_unconfirmed

    @property
    def key(self) -> bytes | None:
        key: bytes | None = self._entry.item.key()
        return key

    @property
    def value(self) -> bytes | None:
        value: bytes | None = self._entry.item.value()
        return value if self._returned is None else returned_value(value, headers_of(self._entry.item))

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """The headers that it was sent with. Those that begin with ``timer-`` do not survive a retry.

        A name that is not UTF-8 has U+FFFD in the place of its wrong bytes.
        """
        return records.user_headers(headers_of(self._entry.item), returned=self._returned is not None)

    @property
    def _identity(self) -> Identity:
        return self._returned or records.identity(self._entry.item, None, self._ledger.cuts)

    @property
    def source(self) -> str:
        """``<topic>/<partition>/<offset>`` of the message on the queue's topic, the same in all deliveries.

        If the log has lost its end and has grown again, ``~`` and the number of this loss follow.
        """
        return self._identity.source

    @property
    def id(self) -> str:
        """A text that is the same in all deliveries of this message, and different for each other message.

        It contains the time of sending, because a topic that is deleted and created again has the same sources.
        """
        return f"{self._state.terms.name} {self.source} {self.sent_ms}"

    @property
    def sent_ms(self) -> int:
        """Epoch milliseconds at which it was sent to the queue's topic."""
        return self._identity.sent_ms

    def ack(self) -> None:
        """Mark the message as done. A process commits every 100 ms; :meth:`Queue.settle` waits for it.

        It returns at once, with two exceptions. If the message's partition moved to another process meanwhile, it waits
        until the timer that would return the message is cancelled. If the brokers accepted no commit for the session
        time-out, because they are away or this process was stopped, it waits for the next commit.

        If the message has outputs, they are written in the transaction in which it is done.

        Raises:
            LeaseLostError: the lease is over, the partition has another owner, or the message is settled.
        """
        state, totals = self._state, self._state.totals
        with state.lock:  # the usual case, without calls that it does not need
            now_s = state.now_s()
            is_confirmed = now_s - state.confirmed_s <= self._state.terms.session_timeout_s
            if is_confirmed and not self._outputs and self._ledger.ack(self._entry, self._delivery):
                totals.acked += 1
                totals.handling_s += now_s - self._received_s
                return
        is_accepted = self._settle(
            lambda: self._bind(*self._outputs) if self._outputs else self._ledger.ack(self._entry, self._delivery),
            lambda guard, timeout_s: guard.cancel(timeout_s),
        )
        with state.lock:
            totals.acked += is_accepted

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
            LeaseLostError: the lease is over, the partition has another owner, or the message is settled.
        """
        with self._state.lock:
            if self._guard is not None or self.is_settled:
                raise self._lost()
            self._outputs = [*self._outputs, records.output(self.source, topic, key, value, headers)]

    def retry(self, after: float | timedelta | None = None, error: str = "") -> None:
        """Deliver the message again after a delay; after the last attempt it becomes a dead letter.

        The delay is a timer: the brokers' clocks count it, in whole seconds, rounded up. In an ordered queue the
        message waits in the process that has its partition, and the later messages of its key wait with it. If the
        partition moved to another process before this call, the message is delivered there when the lease is over.

        Args:
            after: seconds; None takes the queue's backoff.
            error: why the attempt failed, for the header ``queue-error`` and the dead letter.

        Raises:
            LeaseLostError: as in :meth:`ack`.
            InvalidTimerError: the message is too large for a request, ``after`` is no delay, or ``error`` no text.
        """
        records.check_text("error", error)
        terms = self._state.terms
        if self._entry.crashes >= MAX_CRASHES:
            times = f"{self._entry.crashes} times while it ran alone"
            self._give_up(CRASHED, f"its process in the queue {terms.name!r} ended {times}")
            return
        if self.attempt > terms.backoff.retries:
            reason = f"the queue {terms.name!r} gave it up in attempt {self.attempt}"
            self._give_up(ATTEMPTS_EXHAUSTED, f"{reason}: {error}" if error else reason)
            return
        if after is None:
            after = terms.backoff.delay_s(self.attempt, random.random())
        elif isinstance(after, timedelta):
            after = after.total_seconds()
        after_s = records.seconds("after", after)
        later = None
        if not terms.ordered:
            later = records.later(self._content, self._state.signing, after_s, error, terms.max_request_bytes)
        is_accepted = self._settle(
            lambda: (
                self._bind(later)
                if later
                else self._ledger.wait(self._entry, self._delivery, self._state.now_s() + after_s)
            ),
            lambda guard, timeout_s: guard.leave(timeout_s),
        )
        with self._state.lock:
            self._state.totals.retried += is_accepted

    def reject(self, reason: str) -> None:
        """Make the message a dead letter with the code ``rejected``.

        Raises:
            LeaseLostError: as in :meth:`ack`.
            InvalidTimerError: ``reason`` is no text.
        """
        records.check_text("reason", reason)
        self._give_up(REJECTED, f"the queue {self._state.terms.name!r} rejected it: {reason}")

    def crashed(self, how: str) -> None:
        """Deliver the message again, because the process of its handler ended; twice, and it becomes a dead letter.

        Raises:
            LeaseLostError: as in :meth:`ack`.
        """
        with self._state.lock:
            self._state.totals.crashes += 1
            self._entry.crashes += 1
        if self._entry.crashes < MAX_CRASHES:
            self.put_back()
        else:
            self._give_up(CRASHED, f"the queue {self._state.terms.name!r} gave it up: the process of its handler {how}")

    def put_back(self) -> None:
        """Deliver the message again at once, with the same attempt. Nothing happens if this delivery is over."""
        with self._state.lock:
            self._ledger.put_back(self._entry, self._delivery)
            self._state.lock.notify_all()  # one thread would not do: the queue's own may wait here, too

    def extend(self, lease_s: float) -> None:
        """Let the lease end ``lease_s`` seconds from now.

        Raises:
            LeaseLostError: as in :meth:`ack`.
            InvalidTimerError: ``lease_s`` is no number of seconds.
        """
        lease_s = records.seconds("lease_s", lease_s)
        with self._state.lock:
            if not self._confirm() or not self._ledger.extend(
                self._entry, self._delivery, self._state.now_s() + lease_s
            ):
                raise self._lost()

    def _give_up(self, code: str, reason: str) -> None:
        letter = self._letter(code, reason)
        is_accepted = self._settle(
            lambda: self._bind(letter),
            lambda guard, timeout_s: guard.write_letter(letter, self.sent_ms // 1000, timeout_s),
        )
        with self._state.lock:
            self._state.totals.dead[code] += is_accepted

    def _settle(self, settle: Callable[[], bool], settle_guarded: Callable[[Guard, float], bool]) -> Literal[True]:
        """Settle the message in the ledger, or by its guard.

        Raises:
            LeaseLostError: this delivery is over.
        """
        deadline_s = self._state.now_s() + self._state.guards.timeout_s
        with self._state.lock:
            is_accepted = self._confirm() and settle()
        if not is_accepted:
            left_s = max(0.0, deadline_s - self._state.now_s())
            if self._guard is None or not settle_guarded(self._guard, left_s):
                raise self._lost()
        with self._state.lock:
            self._state.totals.handling_s += self._state.now_s() - self._received_s
        return True

    def _confirm(self) -> bool:
        """Wait for a commit if other processes may own the partition. If the brokers accept none in time, this delivery
        ends. The caller holds the lock.

        Before that the ledger is not changed: what it says is done would be committed later, although the caller is
        told that its call does not count. The lease lasts while the call waits.

        Returns:
            False if this delivery is over.
        """
        state, ledger, entry = self._state, self._ledger, self._entry
        if not state.is_unconfirmed:
            return True
        if not ledger.extend(entry, self._delivery, max(entry.until_s, state.now_s() + state.guards.timeout_s)):
            return False
        if state.wait_until_confirmed(self._partition, ledger):
            return True
        ledger.put_back(entry, self._delivery)
        return False

    def _bind(self, *written: Any) -> bool:
        if not self._ledger.bind(self._entry, self._delivery):
            return False
        self._state.settler.jobs.append(Job(self._partition, self._ledger, self._entry, written, letter=self._letter))
        return True

    def _letter(self, code: str, reason: str) -> records.Record:
        return records.letter(self._content, self._state.signing, code, reason, self._state.terms.max_request_bytes)

    @property
    def _content(self) -> records.Content:
        return records.Content(self.source, self.sent_ms, self.attempt, self.key, self.value, self.headers)

    def _protect(self) -> Guard | None:
        """Set a guard, because the partition moves, and return it; None if the message cannot have one."""
        if self._outputs:
            return None
        guard, max_bytes = self._state.guards.new(self.source), self._state.terms.max_request_bytes
        left_s = max(0.0, self._entry.until_s - self._state.now_s())
        why = "the partition moved, and then the lease ended"
        try:
            timer = records.later(self._content, self._state.signing, left_s, why, max_bytes)
        except InvalidTimerError:  # it is too large for a request
            return None
        timer = timer._replace(kind=records.Kind.GUARD, key=guard.id.encode())
        self._ledger.bind(self._entry, self._delivery)
        self._state.settler.jobs.append(Job(self._partition, self._ledger, self._entry, [timer], guard.decide))
        self._guard = guard
        return guard

    def _lost(self) -> LeaseLostError:
        lease_s = self._state.terms.lease_s
        return LeaseLostError(
            f"message {self.source} is no longer this receiver's: its lease of {lease_s:g} s is over, its "
            "partition has another owner, or it was settled before. It is delivered again unless it was settled"
        )
