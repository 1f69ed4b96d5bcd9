"""Signs what a queue sends to its topic of returns, and checks what comes back. Pure.

A timer may have the topic of returns as its callback topic, so each requester can write there. The headers that say
which message comes back, and how often it was tried, are believed only if they are signed with a key of the queue. The
keys are in the queue's ledger topic (:mod:`timers.queue.ledger_log`), which requesters may not read.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from timers.wire import headers as h
from timers.wire import topics
from timers.wire.cold import framed
from timers.wire.headers import Header

ATTEMPT = "retry-attempt"
"""On the returns topic: how often the message was retried, in ASCII digits, as in :mod:`timers.client.retry`."""

SOURCE = "queue-source"
"""On the returns topic: ``<topic>/<partition>/<offset>`` of the message on the queue's topic."""

SENT = "queue-sent"
"""On the returns topic: epoch milliseconds of the message on the queue's topic, in ASCII digits."""

ERROR = "queue-error"
"""On the returns topic: why the last delivery failed. Not signed, and no program reads it."""

NO_VALUE = "queue-no-value"
"""On the returns topic: the message has a null value. A callback has an empty value instead."""

SIGNATURE = "queue-signature"
"""On the returns topic: ``<number of the key>.<HMAC-SHA256 in hexadecimal>``, by :meth:`Signing.sign`."""

OWN = frozenset({ATTEMPT, SOURCE, SENT, ERROR, NO_VALUE, SIGNATURE})

KEY_BYTES = 32


class Identity(NamedTuple):
    """What a message is, over all its deliveries."""

    source: str
    sent_ms: int
    attempt: int
    """Number of its next delivery, counted from 1."""
    doubt: str = ""
    """Why the headers of a record on the topic of returns are not believed; empty if they are."""


def new_key() -> tuple[int, bytes]:
    """Return a number that no other key has, and a key."""
    return secrets.randbits(63), secrets.token_bytes(KEY_BYTES)


class Signing:
    """The keys of one queue.

    Args:
        keys: number of a key -> key. The first one signs, all of them count. So processes that start at the same time
            and write a key each accept what the others sign.

    Attributes:
        returns_topic: the queue's topic of returns.
    """

    def __init__(self, queue: str, keys: Mapping[int, bytes]) -> None:
        self.returns_topic = topics.queue_returns(topics.queue_group(queue))
        self._queue = queue.encode()
        self._keys = dict(keys)
        self._number = next(iter(self._keys))

    def sign(
        self, source: str, sent_ms: int, attempt: int, key: bytes | None, value: bytes | None, number: int | None = None
    ) -> list[Header]:
        """Return the headers of a message that comes back.

        Args:
            attempt: how often it was retried; 0: its next delivery is the first one.
            number: of the key; None takes that of the queue's first key.
        """
        number = self._number if number is None else number
        own: list[Header] = [(SOURCE, source.encode()), (SENT, b"%d" % sent_ms), (ATTEMPT, b"%d" % attempt)]
        signed = self._digest(self._keys[number], (*(data for _, data in own), key, value))
        if value is None:
            own.append((NO_VALUE, b""))
        return [*own, (SIGNATURE, b"%d.%b" % (number, signed))]

    def identity(self, own: Identity, key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> Identity:
        """Return what a record on the topic of returns is.

        Args:
            own: what it is if its headers do not count: a message of its own, with a doubt.
        """
        found = h.last(headers, SIGNATURE)
        if found is None:
            return own._replace(doubt=f"it has no header {SIGNATURE}")
        number, _, signature = found.partition(b".")
        secret = self._keys.get(int(number)) if number.isdigit() and len(number) <= 19 else None
        if secret is None:
            return own._replace(
                doubt=f"its {SIGNATURE} is not made with a key in topic {topics.queue_ledger(self._group)}"
            )
        claimed = [h.last(headers, name) for name in (SOURCE, SENT, ATTEMPT)]
        if not hmac.compare_digest(self._digest(secret, (*claimed, key, returned_value(value, headers))), signature):
            return own._replace(doubt=f"its {SIGNATURE} is not that of its key, value, {SOURCE}, {SENT} and {ATTEMPT}")
        source, sent, attempt = (data or b"" for data in claimed)
        return Identity(source.decode(), int(sent), int(attempt) + 1)

    @property
    def _group(self) -> str:
        return topics.queue_group(self._queue.decode())

    def _digest(self, secret: bytes, parts: Sequence[bytes | None]) -> bytes:
        """Return the signature of parts. Null differs from empty."""
        return hmac.digest(secret, framed((self._queue, *parts)), "sha256").hex().encode()


def returned_value(value: bytes | None, headers: Sequence[Header]) -> bytes | None:
    """Return the value with which a message of the returns topic was sent."""
    return None if not value and any(name == NO_VALUE for name, _ in headers) else value
