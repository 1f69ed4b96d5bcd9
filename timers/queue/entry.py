"""An open message in the ledger of its partition, and how its delivery may end. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

READY, HELD, BOUND, WAITING, OVER = range(5)


class Settlement(NamedTuple):
    """What becomes of a message that a receiver holds.

    Attributes:
        state: its next state.
        has_run: whether the delivery has ended while its process lives, so that the message is no suspect any more.
        changes: 1 if a commit must say so, and no transaction does; else 0.
        attempts: 1 if the next delivery is another attempt.
    """

    state: int
    has_run: bool
    changes: int = 0
    attempts: int = 0


DONE = Settlement(OVER, has_run=True, changes=1)
BIND = Settlement(BOUND, has_run=True)
"""It shares the fate of the transaction that has the outputs of its handler."""
RETRY = Settlement(WAITING, has_run=True, changes=1, attempts=1)
EXPIRED = Settlement(WAITING, has_run=True, attempts=1)
"""Its lease has ended: it is delivered again."""
PUT_BACK = Settlement(READY, has_run=False)
EXTEND_LEASE = Settlement(HELD, has_run=False)


@dataclass(slots=True, eq=False)
class Entry:
    """An open message.

    Attributes:
        item: the message, which the ledger does not read.
        size: its bytes.
        returned: what it is if it came back, which the ledger does not read; None: a message of its own topic.
        came_ms: when it came to its topic, in epoch milliseconds; 0: not known.
        lane: messages of one lane are delivered one after the other; None: in no order.
        attempt: number of the present delivery, or of the next one; counted from 1.
        delivery: changes with each delivery, and when one is settled, so that later calls on it are refused.
        until_s: end of the lease of a held message; when a waiting one becomes ready.
        new_until_s: until when a held message counts as new: other messages wait if one of a group is.
        due_s: the same for a waiting one by the brokers' time, in epoch seconds; 0 if it is not known.
        is_suspect: a process ended while the message may have run in it (:mod:`timers.queue.starts`).
        crashes: how often a process ended while only this message ran in it.
        holder: the delivery, while a receiver holds the message.
    """

    offset: int
    item: Any
    lane: bytes | None
    attempt: int
    first_attempt: int
    size: int = 0
    returned: Any = None
    came_ms: int = 0
    is_suspect: bool = False
    crashes: int = 0
    holder: Any = None
    delivery: int = 0
    until_s: float = 0.0
    new_until_s: float = 0.0
    due_s: int = 0
    state: int = READY

    def is_over(self, delivery: int) -> bool:
        """Whether a delivery was settled, or the message was taken again."""
        return self.delivery != delivery or self.state in (BOUND, OVER)
