"""A worker ends if another one has taken its name, and only then."""

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

from timers.errors import NameTakenError
from timers.kafka.aiokafka_internals.group import NamedHeartbeat, NamedHeartbeatResponse
from timers.worker.consumer.duplicate_member import DuplicateMemberWatch

OK, LOADING, UNKNOWN_MEMBER, REBALANCING, FENCED = 0, 14, 25, 27, 82


class Member:
    """A member that gets the responses of a simulated coordinator.

    Attributes:
        ended: the errors that end its worker.
    """

    def __init__(self) -> None:
        self.ended: list[NameTakenError] = []
        self._watch = DuplicateMemberWatch("twin", self.ended.append)

    def join(self, error_code: int) -> int:
        request = JoinGroupRequest("group", 10_000, 60_000, "id", "twin", "consumer", [])
        return self._inspected(request, JoinGroupResponse_v5(0, error_code, 1, "plain", "leader", "id", []))

    def sync(self, error_code: int) -> int:
        return self._inspected(SyncGroupRequest("group", 1, "id", "twin", []), SyncGroupResponse_v3(0, error_code, b""))

    def heartbeat(self, error_code: int) -> int:
        return self._inspected(HeartbeatRequest("group", 1, "id"), HeartbeatResponse_v1(0, error_code))

    def ask_for_name(self, error_code: int) -> int:
        return self._inspected(NamedHeartbeat("group", 1, "id", "twin"), NamedHeartbeatResponse(0, error_code))

    def _inspected(self, request: Any, response: Any) -> int:
        """The error code that aiokafka gets."""
        self._watch.inspect(request, response)
        return int(response.error_code)


def test_a_heartbeat_of_a_member_that_is_not_known_joins_again_with_its_id() -> None:
    """aiokafka would join as a new member, which takes the name from a member that has it."""
    worker = Member()
    assert worker.heartbeat(UNKNOWN_MEMBER) == REBALANCING
    assert worker.ended == []


def test_a_name_that_another_worker_has_ends_the_worker() -> None:
    worker = Member()
    worker.heartbeat(UNKNOWN_MEMBER)
    assert worker.join(FENCED) == LOADING, "aiokafka tries again, and knows no code of its own for this"
    (error,) = worker.ended
    assert error.exit_code == 6
    assert "another worker was started with TIMERS_WORKER_ID=twin, and has the partitions of this one" in str(error)


def test_a_worker_that_was_replaced_while_it_waited_for_others_ends() -> None:
    worker = Member()
    assert worker.sync(FENCED) == REBALANCING
    assert len(worker.ended) == 1


@pytest.mark.parametrize("code", [OK, UNKNOWN_MEMBER, REBALANCING, FENCED])
def test_a_worker_that_asks_for_its_name_ends_if_another_one_has_it(code: int) -> None:
    worker = Member()
    worker.ask_for_name(code)
    assert len(worker.ended) == (code == FENCED)


def test_a_heartbeat_with_a_name_is_encoded_as_kafka_expects_it() -> None:
    request = NamedHeartbeat("group", 7, "id", "twin").prepare({HeartbeatRequest.API_KEY: (0, 4)})
    assert request.API_VERSION == 3
    assert request.encode() == b"\0\5group\0\0\0\7\0\2id\0\4twin"


@pytest.mark.parametrize("ask", [Member.join, Member.sync])
@pytest.mark.parametrize("code", [OK, UNKNOWN_MEMBER, REBALANCING])
def test_a_member_that_the_group_has_removed_joins_as_a_new_one(ask: Any, code: int) -> None:
    worker = Member()
    assert ask(worker, code) == code
    assert worker.ended == []


@pytest.mark.parametrize("code", [OK, REBALANCING])
def test_a_rebalance_is_no_trouble(code: int) -> None:
    worker = Member()
    assert worker.heartbeat(code) == code
    assert worker.ended == []
