"""What simulated leaders share, as :class:`timers.kafka.log_lineage.LogLineages` asks them."""

from collections.abc import Collection
from typing import Any

from timers.core.lineage import Batch
from timers.kafka.aiokafka_internals.batch_pieces import _HEADER
from timers.kafka.aiokafka_internals.leader_client import LeaderClient


class OneLeader:
    """Leads all partitions."""

    by_leader: Any = LeaderClient.by_leader

    async def connect(self, topics: Collection[str]) -> None:
        assert topics

    def leader_of(self, topic: str, partition: int) -> int | None:
        return 1

    def connection_to(self, leader: int) -> object:
        return self


def header(batch: Batch, epoch: int, attributes: int = 0) -> bytes:
    """The header of a record batch, as it stands in a log."""
    last = batch.last_offset - batch.base_offset
    return _HEADER.pack(batch.base_offset, 0, epoch, 2, batch.crc, attributes, last, 0, batch.max_timestamp_ms)
