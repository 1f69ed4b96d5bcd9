"""A queue names the members of other programs in its group, and says when that is not known. No brokers."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from tests.harness.waiting import wait_until
from timers.queue import strangers
from timers.queue.strangers import Strangers

GROUP = "queue.jobs"
FAILED = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)


def member(client_id: str) -> Any:
    return SimpleNamespace(client_id=client_id, client_host="/10.0.0.1", host="/10.0.0.1")


class SimAdmin:
    """Brokers that answer what a test says.

    Attributes:
        members: client ids in the group.
        is_dead: what the classic request says of a group of another kind.
        error: of the next answers.
        asked: how often the members of a group of another kind were asked for.
    """

    def __init__(self) -> None:
        self.members = [f"{GROUP}-1"]
        self.is_dead = False
        self.error: KafkaError | str | None = None
        self.looks = self.asked = 0

    def list_groups(self, group: str, timeout: float) -> Any:
        self.looks += 1
        members = [] if self.is_dead else [member(each) for each in self.members]
        state = "Dead" if self.is_dead else "Stable"
        other = SimpleNamespace(id="other", error=None, members=[member("other")], state="Stable")
        return [other, SimpleNamespace(id=group, error=self.error, members=members, state=state)]

    def describe_consumer_groups(self, groups: list[str], request_timeout: float) -> dict[str, Future[Any]]:
        self.asked += 1
        found: Future[Any] = Future()
        found.set_result(SimpleNamespace(members=[member(each) for each in self.members]))
        return {groups[0]: found}


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> SimAdmin:
    monkeypatch.setattr(strangers, "LOOK_S", 0.0)
    return SimAdmin()


def looked(found: Strangers, admin: SimAdmin) -> str | None:
    """What it says after a whole look."""
    wanted = admin.looks + 2

    def is_done() -> bool:
        found.check(admin)
        return admin.looks >= wanted

    wait_until(is_done, "a look")
    return found.sentence


@pytest.mark.parametrize(
    ("is_dead", "stays"),
    [(False, False), (True, False), (True, True)],
    ids=["classic", "of another kind", "of a kind that stays"],
)
def test_members_of_other_programs_are_named_until_they_have_gone(
    admin: SimAdmin, is_dead: bool, stays: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    found = Strangers(GROUP)
    assert found.sentence is None
    assert looked(found, admin) == ""
    admin.members, admin.is_dead = [f"{GROUP}-1", "java", "queue.jobs2-1"], is_dead
    sentence = looked(found, admin)
    assert sentence is not None and sentence.startswith(
        "another program is in the group 'queue.jobs': client 'java' at 10.0.0.1, client 'queue.jobs2-1' at 10.0.0.1. "
    )
    looked(found, admin)
    assert caplog.text.count("another program is in the group") == 1
    assert admin.asked == is_dead, "asking the coordinator may end the process: once is enough"
    admin.members = [f"{GROUP}-1"]
    admin.is_dead &= stays
    found.look_soon()
    assert looked(found, admin) == ""
    assert "no other program is in the group queue.jobs any more" in caplog.text


def test_without_an_answer_it_is_not_known(admin: SimAdmin) -> None:
    found = Strangers(GROUP)
    assert looked(found, admin) == ""
    for admin.error in FAILED, "of no kind that a program expects":
        assert looked(found, admin) is None


def test_it_looks_every_five_seconds_and_after_a_rebalance(admin: SimAdmin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "LOOK_S", 1e9)
    found = Strangers(GROUP)
    found.check(admin)

    def has_looked() -> bool:
        found.check(admin)
        return found.sentence == ""

    wait_until(has_looked, "the first look")
    assert admin.looks == 1
    found.look_soon()
    found.check(admin)
    wait_until(lambda: admin.looks == 2, "a look after a rebalance")


def test_a_process_that_is_kept_out_says_so(admin: SimAdmin) -> None:
    found = Strangers(GROUP)
    found.note_kept_out()
    for sentence in (found.sentence, looked(found, admin)):
        assert (
            sentence is not None
            and "group 'queue.jobs': a client, or a share group without members, that keeps" in sentence
        )
    found.look_soon()
    assert looked(found, admin) == ""
