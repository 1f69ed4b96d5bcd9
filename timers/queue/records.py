"""What a queue writes to Kafka: the headers of messages, the timers of retries, and dead letters. Pure.

A timer may have the topic of returns as its callback topic, so each requester can write there. The headers that say
which message comes back, and how often it was tried, are believed only if they are signed with a key of the queue. The
keys are in the queue's ledger topic (:mod:`timers.queue.ledger_log`), which requesters may not read.
"""

from __future__ import annotations

import hmac
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from enum import Enum
from typing import Any, NamedTuple

from timers.client.request import Encoder, HeadersLike, TimerRequest, sent_headers
from timers.client.times import is_number
from timers.core.printable import quoted
from timers.core.progress import Cuts
from timers.core.timer import Rejected
from timers.errors import InvalidTimerError
from timers.kafka.records import headers_of
from timers.queue.metadata import Commit, Partition
from timers.wire import dead_letter, topics
from timers.wire import headers as h
from timers.wire.cold import framed
from timers.wire.headers import ATTEMPT, Header

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

SIGNING_KEY_BYTES = 32

_RECORD_BYTES = 500
_HEADER_BYTES = 200
"""Memory of a message and of a header without their contents, about."""


class Identity(NamedTuple):
    """What a message is, over all its deliveries."""

    source: str
    sent_ms: int
    attempt: int
    """Number of its next delivery, counted from 1."""
    doubt: str = ""
    """Why the headers of a record on the topic of returns are not believed; empty if they are."""


class Content(NamedTuple):
    """What a record says of the message that it returns."""

    source: str
    sent_ms: int
    attempt: int
    """Number of its last delivery, counted from 1."""
    key: bytes | None
    value: bytes | None
    headers: list[Header]


class Signing:
    """The keys of one queue.

    Args:
        keys: number of a key -> key. The first one signs, all of them count. So processes that start at the same time
            and write a key each accept what the others sign.

    Attributes:
        keys: number of a key -> key.
        returns_topic: the queue's topic of returns.
    """

    def __init__(self, queue: str, keys: Mapping[int, bytes]) -> None:
        group = topics.queue_group(queue)
        self.returns_topic, self._ledger_topic = topics.queue_returns(group), topics.queue_ledger(group)
        self._queue = queue.encode()
        self.keys = dict(keys)
        self._number = next(iter(self.keys))

    def sign(self, source: str, sent_ms: int, attempt: int, key: bytes | None, value: bytes | None) -> list[Header]:
        """Return the headers of a message that comes back.

        Args:
            attempt: how often it was retried; 0: its next delivery is the first one.
        """
        own: list[Header] = [(SOURCE, source.encode()), (SENT, b"%d" % sent_ms), (ATTEMPT, b"%d" % attempt)]
        signed = self._digest(self.keys[self._number], (*(data for _, data in own), key, value))
        if value is None:
            own.append((NO_VALUE, b""))
        return [*own, (SIGNATURE, b"%d.%b" % (self._number, signed))]

    def identity(self, own: Identity, key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> Identity:
        """Return which message a record on the topic of returns is.

        Args:
            own: the identity of a message that another program wrote to this topic. It is returned, with the doubt, if
                the signature is missing or wrong.
        """
        found = h.last(headers, SIGNATURE)
        if found is None:
            return own._replace(doubt=f"it has no header {SIGNATURE}")
        number, _, signature = found.partition(b".")
        secret = self.keys.get(int(number)) if number.isdigit() and len(number) <= 19 else None
        if secret is None:
            return own._replace(doubt=f"its {SIGNATURE} is not made with a key in topic {self._ledger_topic}")
        claimed = [h.last(headers, name) for name in (SOURCE, SENT, ATTEMPT)]
        if not hmac.compare_digest(self._digest(secret, (*claimed, key, returned_value(value, headers))), signature):
            return own._replace(doubt=f"its {SIGNATURE} is not that of its key, value, {SOURCE}, {SENT} and {ATTEMPT}")
        source, sent, attempt = (data or b"" for data in claimed)
        return Identity(source.decode(), int(sent), int(attempt) + 1)

    def _digest(self, secret: bytes, parts: Sequence[bytes | None]) -> bytes:
        """Return the signature of parts. Null differs from empty."""
        return hmac.digest(secret, framed((self._queue, *parts)), "sha256").hex().encode()


def size_of(record: Any) -> int:
    """Return the bytes of a record that is kept: key, value and headers, and what Python adds to each of them."""
    key, headers = record.key(), headers_of(record)
    size: int = _RECORD_BYTES + len(record) + (len(key) if key else 0)
    if headers:
        size += sum(_HEADER_BYTES + len(name) + len(value or b"") for name, value in headers)
    return size


def returned_value(value: bytes | None, headers: Sequence[Header]) -> bytes | None:
    """Return the value with which a message of the returns topic was sent."""
    return None if not value and any(name == NO_VALUE for name, _ in headers) else value


_MAX_ERROR_CHARACTERS = 1000
_AT_ONCE_S = 10**9
_MAX_SECONDS = 10**9


class Kind(Enum):
    """What a record is: the timer that returns a message, the same with an id, its dead letter, or an output of its
    handler."""

    RETRY, GUARD, LETTER, OUTPUT = range(4)


class Record(NamedTuple):
    """A record that is visible to committed readers when its message is done, and not before.

    Attributes:
        source: that of the message.
        after_ms: when it is due, counted from the brokers' time in its transaction; None for an output and a truncated
            dead letter.
        key: of an output, and the id of a guard. The transaction sets the others, to the due second.
        topic: of an output; the settings have those of the others.
    """

    kind: Kind
    value: bytes | None
    headers: list[Header]
    source: str
    after_ms: int | None = None
    key: bytes | None = None
    topic: str = ""


def identity(message: Any, signing: Signing | None, cuts: Cuts = ()) -> Identity:
    """Return what a record of the queue's topic is, or with ``signing`` one of its returns topic.

    After a cut of the log, its source carries the number of the cut: other messages had the offsets before.

    Only on the returns topic do the headers count, and only if the queue has signed them: a program that copies headers
    to a new message of the queue's topic copies these too.
    """
    own = topics.source(message.topic(), message.partition(), message.offset(), cuts)
    made = Identity(own, message.timestamp()[1], 1)
    if signing is None:
        return made
    return signing.identity(made, message.key(), message.value(), headers_of(message))


def user_headers(headers: Sequence[Header], *, returned: bool) -> list[Header]:
    """Return the headers of a message without those that its return added."""
    if not returned:
        return list(headers)
    return [header for header in h.without_timer_headers(headers) if header[0] not in OWN]


def seconds(name: str, given: object) -> float:
    """Return a number of seconds that a caller gave.

    Raises:
        InvalidTimerError: it is no number, negative, or far too large.
    """
    if not is_number(given) or not 0 <= given <= _MAX_SECONDS:
        raise InvalidTimerError(f"{name}={quoted(given)} is not a number of seconds from 0 to {_MAX_SECONDS}")
    return float(given)


def delay_s(after: float | timedelta | Sequence[float | timedelta], attempt: int) -> float:
    """Return the delay before the attempt that follows ``attempt``: of several, the one with this number, or the last.

    Raises:
        InvalidTimerError: it is no number of seconds, or there is none.
    """
    given = list(after) if isinstance(after, list | tuple) and len(after) else [after]
    delays = [seconds("after", each.total_seconds() if isinstance(each, timedelta) else each) for each in given]
    return delays[min(attempt, len(delays)) - 1]


def check_text(name: str, given: object) -> None:
    """Check that a caller gave a text.

    Raises:
        InvalidTimerError: it is of another type, such as an exception.
    """
    if not isinstance(given, str):
        raise InvalidTimerError(f"{name} is of type {type(given).__name__}: give a str, such as str(error)")


def later(
    message: Content,
    signing: Signing,
    after_s: float,
    error: str,
    max_request_bytes: int,
    context: Sequence[Header] = (),
) -> Record:
    """Return the timer of a message's next delivery.

    Args:
        context: headers of the trace context in which it was handled.

    Raises:
        InvalidTimerError: the message is too large for a request.
    """
    more = [(ERROR, error[:_MAX_ERROR_CHARACTERS].encode(errors="replace"))] if error else []
    _, value, headers = Encoder(max_request_bytes)(_return(message, signing, message.attempt, context, more))
    return Record(Kind.RETRY, value, headers or [], message.source, math.ceil(after_s * 1000))


def _return(
    message: Content, signing: Signing, attempt: int, context: Sequence[Header], more: Sequence[Header] = ()
) -> TimerRequest:
    """The request of a timer that returns a message."""
    kept = h.renewed([each for each in h.without_timer_headers(message.headers) if each[0] not in OWN], context)
    own = signing.sign(message.source, message.sent_ms, attempt, message.key, message.value)
    value = message.value or b""
    return TimerRequest(signing.returns_topic, message.key, value, at=_AT_ONCE_S, headers=[*kept, *more, *own])


def letter(
    message: Content, signing: Signing, code: str, reason: str, max_request_bytes: int, context: Sequence[Header] = ()
) -> Record:
    """Return the dead letter of a message. It contains a request that returns the message to this queue only, as its
    first attempt. ``context``: as in :func:`later`."""
    key, value, headers = Encoder(2**31)(_return(message, signing, 0, context))
    sentence = reason[:_MAX_ERROR_CHARACTERS].encode(errors="replace").decode()
    rejected = Rejected(0, code, sentence, key, value, headers or [])
    encoded = dead_letter.encode(rejected, message.source, max_request_bytes + dead_letter.OVERHEAD_BYTES)
    return Record(Kind.LETTER, encoded.value, encoded.headers, message.source, None if encoded.key is None else 0)


def truncated_letter(record: Record, reason: str) -> Record:
    """Return a truncated dead letter in place of a record that the brokers refuse."""
    errors = dead_letter.decode(record.headers) if record.kind is Kind.LETTER else None
    code = dead_letter.REJECTED if errors is None else errors.code
    encoded = dead_letter.encode(Rejected(0, code, reason, None, None, []), record.source, 0)
    return Record(Kind.LETTER, None, encoded.headers, record.source)


def output(
    source: str, topic: str, key: Any, value: Any, headers: HeadersLike = (), context: Sequence[Header] = ()
) -> Record:
    """Return a record to be written when the message with this source is done. ``context``: as in :func:`later`.

    Raises:
        InvalidTimerError: the topic is not legal, or key, value or headers cannot be sent.
    """
    if not isinstance(topic, str) or not topics.is_legal(topic):
        raise InvalidTimerError(f"output topic {quoted(topic)} is not {topics.LEGAL_FORM}")
    key, value = (None if each is None else as_bytes(each) for each in (key, value))
    return Record(Kind.OUTPUT, value, h.with_context(sent_headers(headers), context), source, key=key, topic=topic)


def as_bytes(data: object) -> bytes:
    """Return bytes as they are, and text in UTF-8.

    Raises:
        InvalidTimerError: it is neither, or text that UTF-8 cannot carry.
    """
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError:
            raise InvalidTimerError(f"{quoted(data):.80} has characters that UTF-8 cannot carry: give bytes") from None
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InvalidTimerError(
            f"{quoted(data):.80} is of type {type(data).__name__}: give bytes or str, or None for null"
        )
    try:
        return bytes(data)
    except ValueError as error:
        raise InvalidTimerError(f"{quoted(data):.80} cannot be read as bytes: {error}") from None


# ---- the ledger topic ------------------------------------------------------------------------------------------------
#
# Each record names its queue and has a checksum, so that a record which another program wrote by accident does not
# count. A program with Write on the topic can forge records: only ACLs protect it.
#
# ========================  ==========================================================  ===============================
# record key                value                                                       meaning
# ========================  ==========================================================  ===============================
# ``copy/jobs/3``           ``queue.jobs 17 q3.Ab12.17... 5a0c81d2``                    the commit of partition jobs/3
# ``key/8172635445362718``  ``queue.jobs <64 hexadecimal digits> 1f00ab12``             a key with its number
# ========================  ==========================================================  ===============================
#
# The last word is the CRC-32 of the record key, a space and the words before, in hexadecimal.

_KEY = re.compile(rb"key/([0-9]{1,19})")
_COPY = re.compile(rb"copy/([a-zA-Z0-9._-]+)/([0-9]{1,9})")
_COPIED = re.compile(rb"([0-9]{1,18}) ([ -~]*)")
_SECRET = re.compile(rb"[0-9a-f]{64}")


class Kept(NamedTuple):
    """What is in a ledger topic."""

    copies: dict[Partition, Commit]
    """The newest copy of each partition's commit."""
    keys: dict[int, bytes]
    """Number of a key -> key, in the order of the log."""


def encode_copy(group: str, partition: Partition, commit: Commit) -> tuple[bytes, bytes]:
    """Return the copy of a commit. Inverse: :func:`decode_kept`."""
    return _encode(group, f"copy/{topics.partition_name(*partition)}", f"{commit.offset} {commit.metadata}")


def encode_key(group: str, number: int, secret: bytes) -> tuple[bytes, bytes]:
    """Return the record of a key. Inverse: :func:`decode_kept`."""
    return _encode(group, f"key/{number}", secret.hex())


def _encode(group: str, key: str, body: str) -> tuple[bytes, bytes]:
    words = f"{group} {body}".encode()
    return key.encode(), b"%b %08x" % (words, zlib.crc32(b"%b %b" % (key.encode(), words)))


def decode_kept(group: str, key: bytes, value: bytes, kept: Kept) -> bool:
    """Add what a record says to ``kept``; False if it is not of this queue, or damaged."""
    words, _, checksum = value.rpartition(b" ")
    name, _, body = words.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(b"%b %b" % (key, words)) or name != group.encode():
        return False
    of_key, of_copy, copied = _KEY.fullmatch(key), _COPY.fullmatch(key), _COPIED.fullmatch(body)
    if of_key is not None and _SECRET.fullmatch(body):
        kept.keys.setdefault(int(of_key[1]), bytes.fromhex(body.decode()))
    elif of_copy is not None and copied is not None:
        kept.copies[of_copy[1].decode(), int(of_copy[2])] = Commit(int(copied[1]), copied[2].decode())
    else:
        return False
    return True
