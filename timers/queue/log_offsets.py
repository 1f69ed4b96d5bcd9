"""First offsets and ends of logs, as far as their leaders answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import Future, wait
from typing import Any

from confluent_kafka import OFFSET_INVALID, TopicPartition
from confluent_kafka.admin import OffsetSpec

from timers.queue.settling import Partition

_LEADERS_S = 2.0
_GRACE_S = 0.5
"""Time for an answer of the leaders of partitions. The thread of the queue waits for it."""

_FIRST, _END = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]

Asked = dict[Partition, Future[Any]]
"""What each leader was asked for."""


def bounds(admin: Any, partitions: Collection[Partition]) -> dict[Partition, tuple[int, int]]:
    """Return the first offset and the end of logs; those whose leaders do not answer soon are left out."""
    firsts, ends = _list_offsets(admin, partitions, _FIRST), _list_offsets(admin, partitions, _END)
    wait([*firsts.values(), *ends.values()], _LEADERS_S + _GRACE_S)
    return {
        each: (firsts[each].result().offset, ends[each].result().offset)
        for each in partitions
        if _is_answered(firsts[each]) and _is_answered(ends[each])
    }


def ask_first_offsets(admin: Any, partitions: Iterable[Partition]) -> Asked:
    """Ask for the first offsets of logs, without waiting."""
    return _list_offsets(admin, partitions, _FIRST)


def answers(asked: Asked) -> dict[Partition, int]:
    """Return the offsets of the logs whose leaders have answered."""
    return {each: future.result().offset for each, future in asked.items() if _is_answered(future)}


def _list_offsets(admin: Any, partitions: Iterable[Partition], which: OffsetSpec) -> Asked:
    asked = {TopicPartition(*each): which for each in partitions}
    futures = admin.list_offsets(asked, request_timeout=_LEADERS_S) if asked else {}
    return {(each.topic, each.partition): future for each, future in futures.items()}


def _is_answered(future: Future[Any]) -> bool:
    """Whether a future of an offset has one. librdkafka 2.16 reports a leader that did not answer without an error."""
    return future.done() and future.exception() is None and future.result().offset != OFFSET_INVALID
