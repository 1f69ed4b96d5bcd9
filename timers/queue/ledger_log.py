"""The ledger topic of a queue: copies of what its group has committed, and the keys that sign what comes back.

Each record names its queue and has a checksum, so that a record which another program wrote by accident does not count.
A program with Write on the topic can forge records: only ACLs protect it.

========================  ==========================================================  =================================
record key                value                                                       meaning
========================  ==========================================================  =================================
``copy/jobs/3``           ``queue.jobs 17 q3.Ab12.17... 5a0c81d2``                    the commit of partition jobs/3
``key/8172635445362718``  ``queue.jobs <64 hexadecimal digits> 1f00ab12``             a key with its number
========================  ==========================================================  =================================

The last word is the CRC-32 of the record key, a space and the words before, in hexadecimal.

What reads or writes raises KafkaException if the brokers do not answer, or refuse.
"""

from __future__ import annotations

import logging
import re
import secrets
import zlib
from collections.abc import Iterable, Mapping
from contextlib import closing
from time import monotonic
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from timers.kafka.clients import LIBRDKAFKA_LOG, reader
from timers.kafka.records import write as write_records
from timers.queue.records import KEY_BYTES, Signing
from timers.queue.settling import Commit, Partition
from timers.wire import topics

_TIMEOUT_S = 10.0
_KEY = re.compile(rb"key/([0-9]{1,19})")
_COPY = re.compile(rb"copy/([a-zA-Z0-9._-]+)/([0-9]{1,9})")
_COPIED = re.compile(rb"([0-9]{1,18}) ([ -~]*)")
_SECRET = re.compile(rb"[0-9a-f]{64}")
_log = logging.getLogger("timers.queue")

Record = tuple[bytes, bytes]
"""Key and value."""


class Kept(NamedTuple):
    """What is in a ledger topic."""

    copies: dict[Partition, Commit]
    """The newest copy of each partition's commit."""
    keys: dict[int, bytes]
    """Number of a key -> key, in the order of the log."""


def encode_copy(group: str, partition: Partition, commit: Commit) -> Record:
    """Return the copy of a commit. Inverse: :func:`decode`."""
    return _encode(group, f"copy/{topics.partition_name(*partition)}", f"{commit.offset} {commit.metadata}")


def encode_key(group: str, number: int, secret: bytes) -> Record:
    """Return the record of a key. Inverse: :func:`decode`."""
    return _encode(group, f"key/{number}", secret.hex())


def _encode(group: str, key: str, body: str) -> Record:
    words = f"{group} {body}".encode()
    return key.encode(), b"%b %08x" % (words, zlib.crc32(b"%b %b" % (key.encode(), words)))


def decode(group: str, key: bytes, value: bytes, kept: Kept) -> bool:
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


def read(login: Mapping[str, Any], group: str) -> Kept:
    """Return what the ledger topic of a group holds.

    Args:
        login: how to connect, as properties of librdkafka.
    """
    topic = topics.queue_ledger(group)
    kept, foreign = Kept({}, {}), list[int | None]()
    with closing(reader(login, LIBRDKAFKA_LOG, enable_partition_eof=True)) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while (record := consumer.poll(_TIMEOUT_S)) is not None:
            error, key, value = record.error(), record.key(), record.value()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                if foreign:
                    _log.error(
                        "topic %s: %d records are damaged or not of this queue, the first at offset %d: they do not "
                        "count. Let only processes of the queue write there",
                        *(topic, len(foreign), foreign[0]),
                    )
                return kept
            if not decode(group, key or b"", value or b"", kept):
                foreign.append(record.offset())
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def write(login: Mapping[str, Any], group: str, records: Iterable[Record]) -> None:
    """Write records to the ledger topic of a group, and return when the brokers have them."""
    write_records(login, topics.queue_ledger(group), 0, records, _TIMEOUT_S)


def signing(login: Mapping[str, Any], group: str, *, is_new: bool) -> Signing:
    """Return the keys of a queue; write one if there is none.

    Of several processes that write the first key at the same time, all sign with the one that is first in the log:
    each reads the log again up to its own key, so that it sees all keys before it.

    Args:
        is_new: whether nothing can have been signed before.
    """
    name = topics.queue_of_group(group) or group
    keys = read(login, group).keys
    if not keys:
        if not is_new:
            _log.error(
                "topic %s has no key: what retries, guards and dead letters brought or bring back from before becomes "
                "a dead letter with the code unsigned. `timers queue redrive %s --code unsigned` delivers these",
                *(topics.queue_ledger(group), name),
            )
        number, secret = secrets.randbits(63), secrets.token_bytes(KEY_BYTES)  # no other key has the number
        write(login, group, [encode_key(group, number, secret)])
        give_up = monotonic() + _TIMEOUT_S
        while number not in (keys := read(login, group).keys):  # it may stand behind an open transaction
            if monotonic() > give_up:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    return Signing(name, keys)
