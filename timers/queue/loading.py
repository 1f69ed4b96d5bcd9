"""Loads the ledgers of new partitions from what the group committed."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from timers.errors import QueueError
from timers.queue.ledger import Ledger
from timers.queue.metadata import ForeignMetadataError, NewerMetadataError, Saved, decode
from timers.queue.settling import Commit, Partition
from timers.queue.transport import Transport
from timers.wire import topics

_log = logging.getLogger("timers.queue")


def load(
    transport: Transport, partitions: Iterable[Partition], *, accept_loss: bool
) -> list[tuple[Partition, Ledger, Commit | None]]:
    """Return a ledger for each partition, and what is committed for it.

    A partition without a committed offset begins where its newest copy says, or with its first message.

    Raises:
        QueueError: messages that are not done are not in the log, or a newer version wrote the metadata.
        KafkaException: the brokers do not answer.
    """
    committed = transport.committed(partitions)
    copies = transport.copies() if None in committed.values() else {}
    loaded = []
    for partition, commit in committed.items():
        saved = _decode(partition, commit, copies.get(partition), transport.log_tag(partition[0]))
        low, high = transport.bounds(partition)
        if saved is None:
            saved = Saved(low)
        if not low <= saved.offset <= high:
            if not accept_loss:
                raise QueueError(
                    f"{topics.partition_name(*partition)}: the messages from {saved.offset} on are not done, and the "
                    f"log has {low} to {high}: retention deleted messages, or the topic was recreated. "
                    "Queue(accept_loss=True) goes on without them"
                )
            saved = saved if saved.offset < low else Saved(low)
        ledger = Ledger(saved)
        ledger.pass_holes(low)
        loaded.append((partition, ledger, commit))
    return loaded


def _decode(partition: Partition, commit: Commit | None, copy: Commit | None, log: str) -> Saved | None:
    found = commit or copy
    if found is None:
        return None
    try:
        return decode(found.metadata, log, found.offset)
    except NewerMetadataError as error:
        raise QueueError(f"{topics.partition_name(*partition)}: {error}") from error
    except ForeignMetadataError as error:
        if commit is None:
            return None  # a copy of a deleted topic
        _log.warning(
            "%s: the metadata of the committed offset is not this queue's (%s): messages from %d on that were done are "
            "delivered again",
            topics.partition_name(*partition),
            error,
            commit.offset,
        )
        return Saved(commit.offset)
