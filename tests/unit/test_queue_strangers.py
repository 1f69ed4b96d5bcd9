"""A queue names the members of other programs in its group, and says when that is not known. No brokers."""

import logging

import pytest
from confluent_kafka import KafkaError

from tests.harness.constants import Constants
from tests.harness.sim_admin import SimAdmin
from tests.harness.waiting import wait_until
from timers.queue import strangers
from timers.queue.strangers import Strangers

GROUP = "queue.jobs"
FAILED = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)


@pytest.fixture
def admin(constants: Constants) -> SimAdmin:
    constants(strangers, LOOK_S=0.0)
    admin = SimAdmin()
    admin.members = [f"{GROUP}-1"]
    return admin


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
    assert admin.members_asked == is_dead, "asking the coordinator may end the process: once is enough"
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


def test_it_looks_every_five_seconds_and_after_a_rebalance(admin: SimAdmin, constants: Constants) -> None:
    constants(strangers, LOOK_S=1e9)
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
