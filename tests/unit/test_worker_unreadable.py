"""Records that cannot be read stop their own partition; those of the others are delivered, all of them."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import CorruptRecordException, GroupAuthorizationFailedError
from faust.types import TP

from timers.core.timer import Fetched
from timers.worker.consumer.transport import BatchConsumerThread

BAD, GOOD = TP("timer-request", 1), TP("timer-request", 0)


class SimConsumer:
    """The parts of aiokafka's consumer that a fetch uses. It takes records of ``GOOD`` before ``BAD`` fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.states = {tp: SimpleNamespace(position=0, has_valid_position=True) for tp in (GOOD, BAD)}
        self._closed = False
        self._fetcher = self
        self._records: dict[TP, Any] = {}
        self._subscriptions = SimpleNamespace(fetch_context=nullcontext)
        assignment = SimpleNamespace(tps=set(self.states), state_value=self.states.get)
        self._subscription = SimpleNamespace(subscription=SimpleNamespace(assignment=assignment))
        self._client = SimpleNamespace(cluster=SimpleNamespace(leader_for_partition=lambda tp: 0), _conns={})

    async def fetched_records(self, partitions: set[TP], **_: Any) -> dict[TP, list[str]]:
        records: dict[TP, list[str]] = {}
        if GOOD in partitions:
            records[GOOD] = ["a", "b"][self.states[GOOD].position :]
            self.states[GOOD].position = 2
        if BAD in partitions:
            self.states[BAD].position = 5
            raise self.error
        return records

    def seek(self, tp: TP, offset: int) -> None:
        self.states[tp].position = offset


def thread(consumer: SimConsumer, reports: list[Any]) -> BatchConsumerThread:
    made = object.__new__(BatchConsumerThread)  # its __init__ would want a Faust app
    made.consumer = SimpleNamespace(flow_active=True, on_unreadable=lambda *report: reports.append(report))
    made.app = SimpleNamespace(loop=SimpleNamespace(call_soon_threadsafe=lambda call, *args: call(*args)))
    made._consumer = consumer
    made._delivered_to, made._delivered_at, made._suspended = dict.fromkeys((GOOD, BAD), 0), {}, set()
    made._passed, made._connections = {}, {}
    return made


@pytest.mark.parametrize("error", [CorruptRecordException("bad CRC"), ValueError("no header")], ids=["crc", "parser"])
async def test_a_partition_whose_records_cannot_be_read_is_reported_and_no_record_of_another_is_lost(
    error: Exception,
) -> None:
    reports: list[Any] = []
    consumer = SimConsumer(error)
    fetched = await thread(consumer, reports).fetch({GOOD, BAD}, 0)
    assert fetched == {GOOD: Fetched(0, 2, ["a", "b"])}
    assert reports == [(BAD, error)]
    assert consumer.states[BAD].position == 0, "it is read again when its machine is open again"


async def test_an_error_of_the_group_is_no_error_of_a_partition() -> None:
    reports: list[Any] = []
    with pytest.raises(GroupAuthorizationFailedError):
        await thread(SimConsumer(GroupAuthorizationFailedError("group")), reports).fetch({GOOD, BAD}, 0)
    assert reports == []
