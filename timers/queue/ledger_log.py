"""The ledger topic of a queue: copies of what its group has committed, and the keys that sign what comes back.
:mod:`timers.queue.records` has the form of its records.

What reads or writes raises KafkaException if the brokers do not answer, or refuse.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping
from contextlib import closing
from time import monotonic
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from timers.kafka.clients import LIBRDKAFKA_LOG, reader
from timers.kafka.records import write as write_records
from timers.queue.records import SIGNING_KEY_BYTES, Kept, Signing, decode_kept, encode_key
from timers.wire import topics

_TIMEOUT_S = 10.0
_log = logging.getLogger("timers.queue")


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
            if not decode_kept(group, key or b"", value or b"", kept):
                foreign.append(record.offset())
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def write(login: Mapping[str, Any], group: str, records: Iterable[tuple[bytes, bytes]]) -> None:
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
        number, secret = secrets.randbits(63), secrets.token_bytes(SIGNING_KEY_BYTES)  # random: no other key has it
        write(login, group, [encode_key(group, number, secret)])
        give_up = monotonic() + _TIMEOUT_S
        while number not in (keys := read(login, group).keys):  # the new key may stand behind an open transaction
            if monotonic() > give_up:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    return Signing(name, keys)
