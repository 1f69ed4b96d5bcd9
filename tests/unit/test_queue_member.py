"""What a member of a queue asks its driver to do. Pure: no brokers and no threads."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.harness import raw_batches
from tests.harness.queue_state import JOBS, RETURNS, SIGNING, SimGuards
from tests.harness.queue_thread import LOG, SimPlaces, event, record
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.client import Backoff
from timers.errors import QueueError
from timers.queue.delivery import Delivery
from timers.queue.entry import BIND, DONE
from timers.queue.member import Member
from timers.queue.metadata import decode
from timers.queue.port import CommitAnswer, Outcome, Plan, Port, Steps, Stored, Terms, do
from timers.wire.dead_letter import REJECTED

STORED = Stored({JOBS: None}, {}, {JOBS: (0, 9)}, {"jobs": LOG})
ANSWERS = {
    "member": "second",
    "execute": CommitAnswer(Outcome.COMMITTED),
    "ask_leaders": SimPlaces(),
    "first_offsets": {},
}
LOST = event(JOBS, KafkaError._AUTO_OFFSET_RESET, "broker end offset is 9 (offset leader epoch 3).")


def asked(steps: Steps[Any], answers: Mapping[str, Any] = {}) -> list[tuple[str, tuple[Any, ...]]]:
    """The commands of a member, whose driver has these answers."""
    commands = []
    command = next(steps, None)
    while command is not None:
        commands.append((command.name, command.arguments))
        try:
            command = steps.send(answers.get(command.name))
        except StopIteration:
            break
    return commands


def new_member() -> Member:
    """A member with a partition."""
    terms = Terms("jobs", "jobs", RETURNS[0], Backoff(), 30.0, False, True, 1_000_000, 10.0)
    member = Member(terms, SimGuards(), 0.0)
    member.signing = SIGNING
    assert asked(member.assigned([JOBS]), {"member": "first"}) == [("member", ())]
    assert asked(member.work(), {"load": STORED}) == [("load", ([JOBS],)), ("start", ({JOBS: (0, -1)},))]
    return member


@pytest.fixture
def member() -> Member:
    """A member with a partition of which five messages are read."""
    member = new_member()
    assert asked(member.read([record(JOBS, offset) for offset in range(5)])) == []
    return member


def test_a_partition_that_is_taken_away_is_handed_over_before_it_is_left(member: Member) -> None:
    asked(member.round(), ANSWERS)
    taken = member.take(Delivery, 2)
    member.settle(taken[0], DONE)
    commands = asked(member.revoked([JOBS], lost=False), ANSWERS)
    assert [name for name, _ in commands] == ["member", "execute", "ask_leaders", "execute", "member", "stop"]
    plan: Plan = commands[1][1][0]
    guarded: Plan = commands[3][1][0]
    assert [job.entry.offset for job in guarded.jobs] == [1], "the other one that a receiver holds"
    assert taken[1].guard is not None and taken[1].guard.leave(0)
    saved = decode(plan.commits[JOBS].metadata, LOG, plan.commits[JOBS].offset)
    assert (plan.member, plan.in_transaction, saved.offset, saved.start.end) == ("second", False, 1, 0)
    assert commands[-1] == ("stop", ({JOBS},)) and member.counters().partitions == 0


def test_what_another_member_may_own_is_only_left(member: Member) -> None:
    assert asked(member.revoked([JOBS], lost=True)) == [("member", ()), ("stop", ({JOBS},))]


def test_a_loss_of_the_only_partition_that_is_not_accepted_ends_the_member(member: Member) -> None:
    member.terms = replace(member.terms, accept_loss=False)
    with pytest.raises(QueueError, match="cannot be read at its position"):
        asked(member.read([event(JOBS, KafkaError._AUTO_OFFSET_RESET)]), ANSWERS)


DAMAGED = event(JOBS, KafkaError._BAD_COMPRESSION, "Decompression (codec 0x2) of message at 5 failed", 5)


@pytest.mark.parametrize("code", [KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG, KafkaError._NOT_IMPLEMENTED])
def test_a_batch_that_cannot_be_read_stops_its_partition(member: Member, code: int) -> None:
    """It would be read again for ever, and a warning would be all."""
    member.terms = replace(member.terms, accept_loss=False)
    with pytest.raises(QueueError, match=r"the record batch at offset 5 cannot be read \(why\)\. To go on with"):
        asked(member.read([event(JOBS, code, "why", 5)]), ANSWERS)
    assert member.new.refused.keys() == {JOBS}


@pytest.mark.parametrize("end_of_log", [10, 11, 30])
@pytest.mark.parametrize("last", [5, 6, 7, 8, 9])
def test_an_operator_passes_over_a_batch_that_cannot_be_read(member: Member, last: int, end_of_log: int) -> None:
    """The batch has the offsets 3 to ``last``; those below 5 were read. No message behind it is lost."""
    at, complaints, steps = 5, [], 0
    while member.settler.ledgers[JOBS].position == 5:
        steps += 1
        assert steps < 12
        polled: list[Any] = [DAMAGED]
        if at > last:
            polled = [record(JOBS, offset) for offset in range(at, min(at + 3, end_of_log))]
            polled = polled or [event(JOBS, KafkaError._PARTITION_EOF, offset=end_of_log)]
        for name, arguments in asked(member.read(polled), {"ends": {JOBS: end_of_log}}):
            if name == "start":
                ((at, _),) = arguments[0].values()
            elif name == "complain":
                complaints.append(arguments)
    assert at == last + 1
    assert complaints[0][1].startswith("jobs/0: the record batch at offset 5 cannot be read (Decompression")
    assert complaints[1][1:] == ("jobs/0", 5, last)
    assert len(complaints) == 2
    asked(member.read([DAMAGED]), {"ends": {JOBS: 40}})
    assert member._unreadable[JOBS].position == member.settler.ledgers[JOBS].position, "another batch"


@pytest.mark.parametrize("says_batch", [True, False], ids=["offset-of-the-batch", "offset-that-was-asked"])
@pytest.mark.parametrize("is_known", [True, False], ids=["end-known", "end-unknown"])
@pytest.mark.parametrize("batches", [[(5, 8), (10, 15)], [(5, 8), (9, 12)], [(5, 5), (7, 7), (12, 30)]], ids=str)
def test_no_message_between_two_batches_that_cannot_be_read_is_passed_over(
    member: Member, batches: list[tuple[int, int]], is_known: bool, says_batch: bool
) -> None:
    end, at, read = 40, 5, set[int]()
    for _ in range(200):
        bad = {offset: first for first, last in batches for offset in range(first, last + 1)}
        if at in bad:
            offset = bad[at] if says_batch else at
            polled: list[Any] = [event(JOBS, KafkaError._BAD_COMPRESSION, offset=offset)]
        else:
            until = min((offset for offset in bad if offset > at), default=end)
            polled = [record(JOBS, offset) for offset in range(at, until)]
            polled = polled or [event(JOBS, KafkaError._PARTITION_EOF, offset=end)]
        for name, arguments in asked(member.read(polled), {"ends": {JOBS: end} if is_known else {}}):
            if name == "start":
                ((at, _),) = arguments[0].values()
                break
        else:
            read |= {each.offset() for each in polled}
            at = polled[-1].offset() + 1
            if at == end:
                break
    assert read == set(range(5, end)) - set(bad)


def test_librdkafka_reads_on_behind_a_batch_that_it_cannot_read() -> None:
    """As this member lets it: its error has the offset of the batch, also when it reads from the middle of it on."""
    host = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(host.list_topics("jobs", timeout=DEADLINE_S).brokers.values()))
    address = f"{broker.host}:{broker.port}"
    producer = Producer({"bootstrap.servers": address, "log_level": 0})
    for value in (b"before", b"", b"after-1", b"after-2"):
        if value:
            producer.produce("jobs", value, partition=0)
            producer.flush(DEADLINE_S)
            continue
        unusual = raw_batches.READABLE["two streams of xerial"]
        batch = unusual.batch([(None, b"unread", [])] * 10, 1_700_000_000_000)
        assert raw_batches.produce(address, "jobs", 0, batch) == 0
    member = new_member()
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "g", "enable.partition.eof": True, "auto.offset.reset": "error"}
        | {"fetch.error.backoff.ms": 10, "log_level": 0}
    )
    consumer.incremental_assign([TopicPartition(*JOBS, 0)])
    complaints = []

    def is_read() -> bool:
        for name, arguments in asked(member.read(consumer.consume(10, 0.1)), {"ends": {JOBS: 13}}):
            if name == "stop":
                consumer.incremental_unassign([TopicPartition(*JOBS)])
            elif name == "start":
                ((offset, epoch),) = arguments[0].values()
                consumer.incremental_assign([TopicPartition(*JOBS, offset, leader_epoch=epoch)])
            elif name == "complain":
                complaints.append(arguments)
        return member.settler.ledgers[JOBS].position == 13

    wait_until(is_read, "the end of the log")
    consumer.close()
    asked(member.round(), ANSWERS)
    assert [each.value for each in member.take(Delivery, 9)] == [b"before", b"after-1", b"after-2"]
    assert "the record batch at offset 1 cannot be read (Decompression (codec 0x2)" in complaints[0][1]
    assert complaints[-1][1:] == ("jobs/0", 1, 10)


def test_a_partition_that_retention_has_overtaken_is_not_moved_while_its_log_is_verified(member: Member) -> None:
    """The verification would read from another position than it has asked for, and take the log for another one."""
    asked(member.read([event(JOBS, KafkaError._AUTO_OFFSET_RESET), LOST]))
    commands = asked(member.work(), {"bounds": {JOBS: (7, 9)}})
    assert commands == [("stop", ([JOBS],)), ("start", ({JOBS: (4, -1)},)), ("bounds", ([JOBS],))]


def test_transactions_are_made_until_one_tells_how_long_messages_wait(member: Member) -> None:
    """One whose outcome is known later tells no time, and nothing has changed since."""
    told = {**ANSWERS, "execute": CommitAnswer(Outcome.COMMITTED, append_ms=1_700_000_000_000), "ends": {}}
    asked(member.round(), ANSWERS)
    assert len(member.take(Delivery, 1)) == 1
    member.settler.now_s += member.terms.lease_s
    asked(member.control(), told)
    for answers, waits in ((ANSWERS, 0), (ANSWERS, 0), (told, 0), (told, 1)):
        commands = asked(member.round(), answers)
        (plan,) = [arguments[0] for name, arguments in commands if name == "execute"]
        assert plan.in_transaction == (not waits)
        assert len(decode(plan.commits[JOBS].metadata, LOG, 0).waits) == waits
    assert "execute" not in {name for name, _ in asked(member.round(), told)}


def test_what_was_settled_is_committed_before_a_partition_whose_log_parted_is_loaded_again(member: Member) -> None:
    """The log has lost the message that was rejected: else its dead letter would be lost, too."""
    asked(member.round(), ANSWERS)
    taken = member.take(Delivery, 5)
    member.settle(taken[0], DONE)
    member.settle(taken[4], BIND, [member.letter(taken[4], REJECTED, "bad")])
    parts = "broker end offset is 3 (offset leader epoch 0)."
    asked(member.read([event(JOBS, KafkaError._AUTO_OFFSET_RESET, parts)]), ANSWERS)
    answers = {**ANSWERS, "load": STORED, "ask": True}
    commands: list[tuple[str, tuple[Any, ...]]] = []
    for said in ("Offset out of range", "", parts):
        polled = event(JOBS, KafkaError._AUTO_OFFSET_RESET if said else KafkaError._PARTITION_EOF, said, 0)
        commands += [*asked(member.read([polled]), ANSWERS), *asked(member.work(), answers)]
    names = [name for name, _ in commands]
    plan: Plan = commands[names.index("execute")][1][0]
    assert [job.entry.offset for job in plan.jobs] == [4] and names.index("execute") < names.index("load")
    assert all(delivery.is_settled for delivery in taken)


def test_a_command_refuses_arguments_by_name() -> None:
    """The driver gives arguments by their places: one by name would be lost, and the call would fail in its thread."""
    assert do(Port.start, {}) == ("start", ({},))
    with pytest.raises(AssertionError, match="positions"):
        do(Port.start, positions={})
