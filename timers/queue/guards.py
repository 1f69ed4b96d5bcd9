"""Guards: timers that return a message whose partition moves while its handler still works on it.

Without a guard, the new owner of the partition would deliver the message at once, so that two handlers work on it.
With a guard, the message is done, and a timer with an id returns it when its lease is over. Timer and offset are
committed in one transaction, before the partition has another owner. The handler's ``ack`` cancels the timer, and
counts only if the verdict says that the timer was cancelled: so either the acknowledgement counts or the message is
delivered again.

A guard is written once and never changed: an update of one that just fired would be a timer of its own, and the message
would come back twice. A message with outputs has no guard, because its outputs belong into the transaction in which it
is done; an ordered message has none, because it would come back after later messages of its key. They are delivered
again at once, and the first handler's calls are refused.
"""

from __future__ import annotations

import logging
import uuid
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from time import monotonic
from typing import Protocol

from timers.client import TimersClient
from timers.client.publish import left_s
from timers.core.operation import CANCELLED
from timers.errors import TimersError
from timers.queue.records import Letter
from timers.queue.sending import Sender

_log = logging.getLogger("timers.queue")


class Client(Protocol):
    """How a guard reaches the brokers. The calls block."""

    def cancel(self, id: str, timeout_s: float) -> bool:
        """Cancel a timer; False unless the verdict is that it was cancelled."""
        ...

    def publish(self, letter: Letter, due_s: int, timeout_s: float) -> bool:
        """Write a dead letter; False if it may not have been written."""
        ...


class Guard:
    """The guard of one delivery.

    Attributes:
        id: id of its timer.
        is_over: the delivery was settled.
    """

    def __init__(self, client: Client, id: str) -> None:
        self.id = id
        self.is_over = False
        self._client = client
        self._is_set: Future[bool] = Future()

    def confirm(self) -> None:
        """Note that the transaction with the timer was committed."""
        self._decide(True)

    def give_up(self) -> None:
        """Note that the transaction will not be committed any more, or that its outcome is not known."""
        self._decide(False)

    def _decide(self, is_set: bool) -> None:
        """Note what the handler's call waits for. The first answer counts: a late commit only returns the message."""
        if not self._is_set.done():
            self._is_set.set_result(is_set)

    def leave(self, timeout_s: float) -> bool:
        """Let the timer return the message; False if there is no timer, or the delivery was settled before."""
        try:
            is_set = self._is_set.result(timeout_s)
        except FutureTimeoutError:
            return False
        was_over, self.is_over = self.is_over, True
        return is_set and not was_over

    def cancel(self, timeout_s: float) -> bool:
        """Cancel the timer; False if the message comes back, or may come back."""
        deadline = monotonic() + timeout_s
        return self.leave(timeout_s) and self._client.cancel(self.id, left_s(deadline))

    def write_letter(self, letter: Letter, due_s: int, timeout_s: float) -> bool:
        """Write a dead letter, then cancel the timer; False if the message comes back, or may come back. After a crash
        between these two steps the message exists twice."""
        deadline = monotonic() + timeout_s
        return (
            self.leave(timeout_s)
            and self._client.publish(letter, due_s, left_s(deadline))
            and self._client.cancel(self.id, left_s(deadline))
        )


class Guards:
    """Makes the guards of a queue.

    Args:
        id_topic: topic of timers with an id; empty if there is none, and then there are no guards.
    """

    def __init__(
        self, timers: TimersClient, sender: Sender, id_topic: str, dead_letter_topic: str, timeout_s: float
    ) -> None:
        self.are_possible = bool(id_topic)
        self.timeout_s = timeout_s
        self._timers = timers
        self._sender = sender
        self._dead_letter_topic = dead_letter_topic

    def new(self, source: str) -> Guard:
        """Return a guard for a delivery of a message."""
        return Guard(self, f"queue-guard/{source}/{uuid.uuid4().hex}")

    def cancel(self, id: str, timeout_s: float) -> bool:
        try:
            return self._timers.cancel(id, timeout_s=timeout_s).verdict == CANCELLED
        except TimersError as error:  # no verdict: the timer may fire
            _log.warning("it is not known whether the guard %s was cancelled: %s", id, error)
            return False

    def publish(self, letter: Letter, due_s: int, timeout_s: float) -> bool:
        key, deadline = b"%d" % due_s if letter.has_key else None, monotonic() + timeout_s
        try:
            self._sender.publish(self._dead_letter_topic, key, letter.value, letter.headers, deadline)
        except TimersError as error:  # the timer returns the message
            _log.warning("the dead letter of %s was not written: %s", letter.source, error)
            return False
        return True
