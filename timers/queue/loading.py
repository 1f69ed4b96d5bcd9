"""Loads what the group committed for new partitions, and says what is lost."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from timers.core.lineage import Lineage
from timers.errors import QueueError
from timers.queue.lineage import Loaded
from timers.queue.metadata import DeletedLogError, ForeignMetadataError, OtherVersionError, Saved, decode
from timers.queue.settling import Commit, Partition
from timers.wire import topics

_log = logging.getLogger("timers.queue")


class Log(Protocol):
    """What this module asks the brokers."""

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, Commit | None]: ...
    def copies(self) -> dict[Partition, Commit]: ...
    def bounds(self, partitions: Iterable[Partition]) -> dict[Partition, tuple[int, int]]: ...
    def log_tag(self, topic: str) -> str: ...


def load(transport: Log, partitions: Iterable[Partition], *, accept_loss: bool) -> dict[Partition, Loaded]:
    """Return what counts for each partition whose leader answers.

    A partition without a committed offset begins where its newest copy says, or with its first message.

    Raises:
        QueueError: messages that are not done are not in the log, or another version wrote the metadata.
        KafkaException: the brokers do not answer.
    """
    committed = transport.committed(partitions)
    copies = transport.copies() if None in committed.values() else {}
    loaded = {}
    bounds = transport.bounds(committed)
    for partition, (low, high) in bounds.items():
        commit = committed[partition]
        name = topics.partition_name(*partition)
        saved, lost = saved_by(name, commit, copies.get(partition), transport.log_tag(partition[0]))
        if lost:
            _log.error("%s: %s", name, lost)
        if saved is None:
            saved = Saved(low)
        is_cut = saved.offset > high and not saved.lineage.epochs  # else it is asked where the log parts
        if saved.offset < low or is_cut:
            gone = (
                f"the messages from {saved.offset} on are not done, and the log has {low} to {high}: retention deleted "
                "messages, or the topic was recreated"
            )
            if not accept_loss:
                raise QueueError(f"{name}: {gone}. Queue(accept_loss=True) goes on without them")
            _log.error("%s: %s. The queue goes on with the messages from %d on", name, gone, low)
            saved = saved if saved.offset < low else saved.cut(low, -1)
        loaded[partition] = Loaded(saved, commit, low, high)
    return loaded


def check_parted(name: str, lineage: Lineage, at: int, *, accept_loss: bool) -> None:
    """Say that a log parts at an offset from the one that was read.

    Raises:
        QueueError: that is not accepted.
    """
    read = "" if lineage.batch is None else f", which was read to {lineage.batch.last_offset}"
    parted = (
        f"from {at} on, the log is not the one of before{read}: a leader without its newest records was elected, or a "
        f"disk has lost them. The messages of before that were not done from {at} on are gone"
    )
    if not accept_loss:
        raise QueueError(f"{name}: {parted}. Queue(accept_loss=True) delivers all messages that are there from {at} on")
    _log.error("%s: %s. The queue delivers all messages that are there from %d on", name, parted, at)


def saved_by(name: str, commit: Commit | None, copy: Commit | None, log: str) -> tuple[Saved | None, str]:
    """Return what a commit or else its copy says, None if the first message of the log is the next one; and in a
    sentence what was lost, if anything was.

    Raises:
        QueueError: another version wrote the metadata.
    """
    found = commit or copy
    if found is None:
        return None, ""
    try:
        saved = decode(found.metadata, log, found.offset)
    except OtherVersionError as error:
        raise QueueError(f"{name}: {error}") from error
    except DeletedLogError:
        return None, "the topic was deleted and created again, so all its messages are delivered"
    except ForeignMetadataError as error:
        if commit is None:
            return None, ""
        return Saved(commit.offset), (
            f"the metadata of the committed offset is not this queue's ({error}). A tool or another program of the "
            f"group committed it. Messages below {commit.offset} count as done; those from there on that were done are "
            "delivered again"
        )
    if commit is None:
        return saved, "the group has no offset, so the copy of its last commits counts, up to a minute old"
    return saved, ""
