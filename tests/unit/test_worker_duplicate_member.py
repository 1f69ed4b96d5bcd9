"""A worker reports a duplicate member when a response shows it, and not after a pause or a restart."""

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
    """Sends requests of a worker to a simulated coordinator, on a simulated clock."""

    def __init__(self, member_id: str = "") -> None:
        self.now = 1000.0
        self._id = member_id
        self._watch = DuplicateMemberWatch("twin", SESSION_S, lambda: self.now)

    def join(self, error_code: int, response_s: float = 0.0) -> Any:
        request = JoinGroupRequest("group", 10_000, 60_000, self._id, "twin", "consumer", [])
        return self._request(request, JoinGroupResponse_v5(0, error_code, 1, "plain", "leader", "id", []), response_s)

    def sync(self, error_code: int, response_s: float = 0.0) -> Any:
        request = SyncGroupRequest("group", 1, self._id, "twin", [])
        return self._request(request, SyncGroupResponse_v3(0, error_code, b""), response_s)

    def heartbeat(self, error_code: int, response_s: float = 0.0) -> Any:
        return self._request(HeartbeatRequest("group", 1, self._id), HeartbeatResponse_v1(0, error_code), response_s)

    def _request(self, request: Any, response: Any, response_s: float) -> Any:
        sent_at = self.now
        self.now += response_s
        self._watch.inspect(request, sent_at, response)
        return response


def member() -> Member:
    """A member that has just joined."""
    joining = Member()
    joining.join(OK)
    joining._id = "id"
    joining.sync(OK)
    return joining


def is_reported(caplog: pytest.LogCaptureFixture) -> bool:
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert all("a second one runs with TIMERS_WORKER_ID=twin," in message for message in errors)
    return bool(errors)


def test_replaced_between_heartbeats(caplog: pytest.LogCaptureFixture) -> None:
    worker = member()
    worker.heartbeat(OK)
    worker.now += 2
    worker.heartbeat(UNKNOWN_MEMBER)
    assert is_reported(caplog)


def test_replaced_before_its_first_heartbeat(caplog: pytest.LogCaptureFixture) -> None:
    """Two workers with one id replace each other before each heartbeat."""
    worker = member()
    worker.now += 2
    worker.heartbeat(UNKNOWN_MEMBER)
    assert is_reported(caplog)


@pytest.mark.parametrize("ask", [Member.join, Member.sync])
def test_replaced_in_a_rebalance(ask: Any, caplog: pytest.LogCaptureFixture) -> None:
    worker = member()
    worker.heartbeat(REBALANCING)
    worker.now += 2
    ask(worker, UNKNOWN_MEMBER)
    assert is_reported(caplog)


@pytest.mark.parametrize("ask", [Member.join, Member.sync])
def test_replaced_while_it_waits_for_other_members(ask: Any, caplog: pytest.LogCaptureFixture) -> None:
    """aiokafka does not know the error code, so it gets another one, and join again."""
    answer = ask(Member(), FENCED, response_s=3 * SESSION_S)
    assert is_reported(caplog)
    assert answer.error_code == UNKNOWN_MEMBER


def test_a_rebalance_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    worker = member()
    for _ in range(10):
        worker.now += 2
        worker.heartbeat(REBALANCING)
    worker.now += 2
    worker.join(UNKNOWN_MEMBER)
    assert is_reported(caplog)


def test_a_pause_of_the_process_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    worker = member()
    worker.heartbeat(OK)
    worker.now += SESSION_S + 1
    worker.heartbeat(UNKNOWN_MEMBER)
    assert not is_reported(caplog)


def test_a_response_read_after_a_pause_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    worker = member()
    worker.heartbeat(OK, response_s=SESSION_S - 1)
    worker.now += 2
    worker.heartbeat(UNKNOWN_MEMBER)
    assert not is_reported(caplog)


def test_a_start_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    """A worker without a member id was not replaced: the group has removed its former process."""
    Member("id-of-before").join(UNKNOWN_MEMBER)
    worker = member()
    worker._id = ""
    worker.heartbeat(UNKNOWN_MEMBER)
    assert not is_reported(caplog)
