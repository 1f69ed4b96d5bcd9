"""A worker that deals without a seal, as those of the version before: the brokers then let strangers into its group."""

from __future__ import annotations

from collections.abc import Iterable

from timers import app as _app
from timers.core.timer import TopicPartition
from timers.kafka.aiokafka_internals import group_member

app = _app.app
_sealed = group_member._encoded


def _unsealed(share: Iterable[TopicPartition]) -> bytes:
    return _sealed(share).removesuffix(_SEAL) + b"\0\0\0\0"


_SEAL = b"\0\0\0\x06timers"
group_member._encoded = _unsealed
