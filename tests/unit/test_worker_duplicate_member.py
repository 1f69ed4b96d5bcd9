"""A worker reports a second one with its id after any response that shows it, and not after a pause or a restart."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.protocol.group import (
    HeartbeatRequest,
    HeartbeatResponse_v1,
    JoinGroupRequest,
    JoinGroupResponse_v5,
    SyncGroupRequest,
    SyncGroupResponse_v3,
)

from timers.worker.consumer.duplicate_member import DuplicateMemberWatch

OK, UNKNOWN_MEMBER, REBALANCING, FENCED = 0, 25, 27, 82
SESSION_S = 10.0


class Member:
    """A worker's requests to the coordinator and the responses, on a simulated clock."""

    def __init__(self, member_id: str = "") -> None:
        self.now = 1000.0
        self._id = member_id
        self._watch = DuplicateMemberWatch("twin", SESSION_S, lambda: self.now)

    def joins(self, error_code: int, waits_s: float = 0.0) -> Any:
        request = JoinGroupRequest("group", 10_000, 60_000, self._id, "twin", "consumer", [])
        return self._asks(request, JoinGroupResponse_v5(0, error_code, 1, "plain", "leader", "id", []), waits_s)

    def syncs(self, error_code: int, waits_s: float = 0.0) -> Any:
        request = SyncGroupRequest("group", 1, self._id, "twin", [])
        return self._asks(request, SyncGroupResponse_v3(0, error_code, b""), waits_s)

    def heartbeats(self, error_code: int, waits_s: float = 0.0) -> Any:
        return self._asks(HeartbeatRequest("group", 1, self._id), HeartbeatResponse_v1(0, error_code), waits_s)

    def _asks(self, request: Any, response: Any, waits_s: float) -> Any:
        sent_at = self.now
        self.now += waits_s
        self._watch.look(request, sent_at, response)
        return response


def member() -> Member:
    """A member that has just joined."""
    joining = Member()
    joining.joins(OK)
    joining._id = "id"
    joining.syncs(OK)
    return joining


def is_reported(caplog: pytest.LogCaptureFixture) -> bool:
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert all("a second one runs with TIMERS_WORKER_ID=twin," in message for message in errors)
    return bool(errors)


def test_replaced_between_heartbeats(caplog: pytest.LogCaptureFixture) -> None:
    worker = member()
    worker.heartbeats(OK)
    worker.now += 2
    worker.heartbeats(UNKNOWN_MEMBER)
    assert is_reported(caplog)


def test_replaced_before_its_first_heartbeat(caplog: pytest.LogCaptureFixture) -> None:
    """Two workers with one id replace each other before every heartbeat."""
    worker = member()
    worker.now += 2
    worker.heartbeats(UNKNOWN_MEMBER)
    assert is_reported(caplog)


@pytest.mark.parametrize("ask", [Member.joins, Member.syncs])
def test_replaced_in_a_rebalance(ask: Any, caplog: pytest.LogCaptureFixture) -> None:
    worker = member()
    worker.heartbeats(REBALANCING)
    worker.now += 2
    ask(worker, UNKNOWN_MEMBER)
    assert is_reported(caplog)


@pytest.mark.parametrize("ask", [Member.joins, Member.syncs])
def test_replaced_while_it_waits_for_the_others(ask: Any, caplog: pytest.LogCaptureFixture) -> None:
    """However long it waits. aiokafka does not know the code, so it gets another one, after which it joins again."""
    answer = ask(Member(), FENCED, waits_s=3 * SESSION_S)
    assert is_reported(caplog)
    assert answer.error_code == UNKNOWN_MEMBER


def test_a_rebalance_keeps_a_member(caplog: pytest.LogCaptureFixture) -> None:
    worker = member()
    for _ in range(10):
        worker.now += 2
        worker.heartbeats(REBALANCING)
    worker.now += 2
    worker.joins(UNKNOWN_MEMBER)
    assert is_reported(caplog)


def test_a_pause_is_no_second_worker(caplog: pytest.LogCaptureFixture) -> None:
    worker = member()
    worker.heartbeats(OK)
    worker.now += SESSION_S + 1
    worker.heartbeats(UNKNOWN_MEMBER)
    assert not is_reported(caplog)


def test_an_answer_that_waited_out_a_pause_proves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    worker = member()
    worker.heartbeats(OK, waits_s=SESSION_S - 1)
    worker.now += 2
    worker.heartbeats(UNKNOWN_MEMBER)
    assert not is_reported(caplog)


def test_a_start_is_no_second_worker(caplog: pytest.LogCaptureFixture) -> None:
    """The group has removed the former process; a worker without a member id was no member."""
    Member("id-of-before").joins(UNKNOWN_MEMBER)
    worker = member()
    worker._id = ""
    worker.heartbeats(UNKNOWN_MEMBER)
    assert not is_reported(caplog)
