"""Delivers messages from the ledgers of a process to its receivers."""

from __future__ import annotations

from timers.queue import records
from timers.queue.ledger import Ledger
from timers.queue.message import Message
from timers.queue.settling import Partition
from timers.queue.starts import MAX_CRASHES
from timers.queue.state import State


class Deliveries:
    """Takes messages from all partitions of a process in turn.

    Attributes:
        kind: class of the messages.
    """

    def __init__(self, state: State) -> None:
        self.kind = Message
        self._state = state
        self._turn = 0

    def receive(self, limit: int, wait_s: float) -> list[Message]:
        """Return up to ``limit`` messages; none if none came within ``wait_s``, or the queue is closed.

        Raises:
            QueueError: the queue ended.
        """
        return self._state.receive(lambda: self._take(limit), wait_s)

    def _take(self, limit: int) -> list[Message]:
        """Take messages of all partitions: the same number from each, or fewer if a partition has fewer."""
        messages: list[Message] = []
        if self._state.is_unconfirmed:
            return messages
        now_s = self._state.now_s()
        partitions = list(self._state.settler.ledgers.items())
        self._turn = (self._turn + 1) % max(1, len(partitions))
        waiting = [*partitions[self._turn :], *partitions[: self._turn]]
        while len(messages) < limit:
            waiting = [each for each in waiting if each[1].starts.may_start]
            if not waiting:
                break
            share = max(1, (limit - len(messages)) // len(waiting))
            for partition, ledger in waiting[: limit - len(messages)]:
                self._take_from(partition, ledger, share, now_s, messages)
        self._state.totals.received += len(messages)
        return messages

    def _take_from(
        self, partition: Partition, ledger: Ledger, limit: int, now_s: float, messages: list[Message]
    ) -> None:
        terms = self._state.terms
        signing = self._state.signing if partition[0] == terms.returns_topic else None
        until_s = now_s + terms.lease_s
        for _ in range(limit):
            entry = ledger.take(until_s)
            if entry is None:
                return
            returned = records.identity(entry.item, signing, ledger.cuts) if signing is not None else None
            message = self.kind(self._state, partition, ledger, entry, now_s, returned)
            if returned is not None and returned.doubt:
                message.give_up_unsigned()
            elif entry.crashes >= MAX_CRASHES or message.attempt > terms.backoff.retries + 1:
                message.retry(error="the lease of the last attempt ended")
            else:
                messages.append(message)
