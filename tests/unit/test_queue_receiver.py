"""The thread of a queue when requests fail in rebalances, and when partitions come and go. No brokers."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from time import time
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.harness.queue_thread import JOBS, LOG, MESSAGES, OTHER, SESSION_S, Opened, event, failure
from tests.harness.waiting import wait_until
from timers.core.lineage import Batch, Lineage
from timers.errors import LeaseLostError, QueueError
from timers.kafka import lost_brokers
from timers.queue import Message, driver
from timers.queue.metadata import NO_START, Commit, Saved, decode, encode
from timers.queue.port import CommitAnswer, Outcome
from timers.queue.sending import Guard


@pytest.fixture
def impatient() -> Iterator[Opened]:
    """A queue with a lease of some sessions."""
    opened = Opened(lease_s=2 * SESSION_S)
    yield opened
    opened.close()


def test_requests_of_a_rebalance_that_fail_are_repeated(queue: Opened, caplog: pytest.LogCaptureFixture) -> None:
    queue.transport.failures = [failure(), failure(KafkaError._TRANSPORT)]
    queue.call(queue.transport.assigned, [JOBS])
    for message in queue.receive(MESSAGES):
        message.ack()
    assert queue.transport.failures == []
    assert caplog.text.count("loads its partitions later") == 2


def _leave(queue: Opened) -> None:
    """Let a queue be as before its first rebalance."""
    wait_until(lambda: queue.driver.member.joined, "the group has given it partitions")
    queue.driver.member.joined = False


def test_a_call_that_receives_first_waits_for_the_group(queue: Opened) -> None:
    _leave(queue)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(queue.driver.wait_to_join, 60.0, lambda: False)
        queue.driver.wait_to_join(60.0, lambda: True)  # a run that is stopped does not wait
        assert not waiting.done()
        queue.call(queue.transport.assigned, [JOBS])
        waiting.result(30)


def test_without_brokers_only_the_first_calls_wait_for_the_group(queue: Opened) -> None:
    _leave(queue)
    queue.driver.wait_to_join(0.0, lambda: False)
    for _ in range(3):
        queue.driver.wait_to_join(60.0, lambda: False)  # the time has begun with the first call


def test_a_partition_without_a_leader_does_not_delay_the_others(queue: Opened) -> None:
    queue.transport.leaderless = {OTHER}
    queue.call(queue.transport.assigned, [JOBS, OTHER])
    for message in queue.receive(MESSAGES):
        message.ack()
    assert (queue.driver.member.new.load_error, len(queue.driver.member.new)) == ("no leader of jobs/1 answers", 1)
    queue.transport.leaderless = set()
    assert {message.source.rpartition("/")[0] for message in queue.receive(MESSAGES)} == {"jobs/1"}
    assert (queue.driver.member.new.load_error, len(queue.driver.member.new)) == ("", 0)


def test_partitions_are_loading_before_the_brokers_answer(queue: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    committed, seen = queue.transport.committed, []

    def asked(partitions: Any) -> Any:
        seen.append(len(queue.driver.member.new))
        return committed(partitions)

    monkeypatch.setattr(queue.transport, "committed", asked)
    queue.call(queue.transport.assigned, [JOBS, OTHER])
    assert len(queue.receive(MESSAGES)) == MESSAGES
    assert seen[0] == 2


def test_a_partition_that_is_lost_before_it_was_loaded_is_not_stopped(queue: Opened) -> None:
    queue.transport.failures = [failure() for _ in range(1000)]
    queue.call(queue.transport.assigned, [JOBS])
    queue.call(queue.transport.revoked, [JOBS], lost=False)
    queue.transport.failures = []
    queue.call(queue.transport.assigned, [OTHER])
    queue.receive(MESSAGES)
    assert queue.transport.stopped == [set()]
    assert queue.driver.counters().partitions == 1


def test_a_partition_is_given_up_with_what_was_settled(queue: Opened) -> None:
    queue.call(queue.transport.assigned, [JOBS, OTHER])
    messages = queue.receive(2 * MESSAGES)
    mine = [message for message in messages if message.source.startswith("jobs/0/")]
    assert len(mine) == MESSAGES
    for message in mine[1:]:
        message.ack()
    queue.call(queue.transport.revoked, [JOBS], lost=False)
    commit = queue.transport.commits[JOBS]
    saved = decode(commit.metadata, LOG, commit.offset)
    assert (saved.offset, saved.done, saved.start) == (0, ((1, MESSAGES),), NO_START)
    assert queue.driver.counters().leases_lost == 1


def test_a_lost_partition_is_not_committed(queue: Opened) -> None:
    queue.call(queue.transport.assigned, [JOBS])
    message, *_ = queue.receive(MESSAGES)
    before = queue.transport.commits[JOBS]

    def lose() -> None:
        message.ack()
        queue.transport.revoked([JOBS], lost=True)

    queue.call(lose)
    assert queue.transport.commits[JOBS] == before


def test_a_process_that_was_stopped_and_lost_its_partition_cannot_acknowledge() -> None:
    queue = Opened(lease_s=100.0)
    queue.call(queue.transport.assigned, [JOBS])
    message, *_ = queue.receive(MESSAGES)
    before = dict(queue.transport.commits)

    def stop() -> None:
        queue.transport.is_expelled = True
        queue.stopped_s += 60

    queue.call(stop)
    until_s = message._entry.until_s
    with ThreadPoolExecutor(1) as pool:
        ack = pool.submit(message.ack)
        wait_until(lambda: message._entry.until_s > until_s, "the call, which keeps the lease while it waits")
        queue.call(queue.transport.revoked, [JOBS], lost=True)
        with pytest.raises(LeaseLostError):
            ack.result(60)
    assert queue.transport.commits == before
    queue.close()


def test_a_process_that_was_stopped_and_is_still_a_member_can_acknowledge(queue: Opened) -> None:
    queue.call(queue.transport.assigned, [JOBS])
    message, *_ = queue.receive(MESSAGES)
    queue.stopped_s += 60
    plans = queue.transport.plans
    message.ack()
    assert queue.transport.plans > plans, "the call waited for a commit"
    wait_until(lambda: queue.transport.commits[JOBS].offset == 1, "the commit of the call")


@pytest.mark.parametrize(
    ("accept_loss", "log", "error"),
    [
        (True, (MESSAGES + 20, MESSAGES + 30), None),
        (True, (0, MESSAGES - 2), "the log was cut"),
        (False, (MESSAGES + 20, MESSAGES + 30), "cannot be read at its position"),
    ],
)
def test_messages_that_retention_deletes_before_they_are_received_are_said(
    accept_loss: bool, log: tuple[int, int], error: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Opened(accept_loss=accept_loss)
    queue.call(queue.transport.assigned, [JOBS])
    message, *_ = queue.receive(MESSAGES)

    queue.transport.log = log
    queue.transport.errors = [event(JOBS, KafkaError._AUTO_OFFSET_RESET)]
    if error is None:
        wait_until(lambda: queue.transport.stopped == [{JOBS}], "the partition is read from its first message on")
        message.ack()
        saying = f"jobs/0: retention deleted messages from {MESSAGES} to {MESSAGES + 19} before they were received"
        assert saying in caplog.text
    else:
        with pytest.raises(QueueError, match=error):
            wait_until(lambda: queue.driver.receive(Message, 1, 0.1), "the error")
    queue.close()


def test_a_process_that_its_group_does_not_take_back_says_so_and_is_started_again() -> None:
    queue = Opened()
    queue.call(queue.transport.assigned, [JOBS])
    queue.call(queue.transport.revoked, [JOBS], lost=True)
    went_on = "group 'queue.jobs' went on without this process"
    assert queue.driver.unready() == [f"{went_on}, which has not joined again yet"]
    assert queue.driver.stuck() == []
    queue.stopped_s = SESSION_S + 301
    wait_until(lambda: queue.driver.stuck() == [], "a rebalance may wait for a member that hangs")
    queue.stopped_s = SESSION_S + 361
    wait_until(lambda: any(f"{went_on}, 37" in reason for reason in queue.driver.stuck()), "a liveness that is red")
    queue.transport.check_members = lambda: "another program is in the group"
    wait_until(lambda: queue.driver.stuck() == [], "the other program keeps it out")
    queue.transport.check_members = lambda: ""
    wait_until(queue.driver.stuck, "it is gone")
    queue.transport.silent_s = 100.0
    assert queue.driver.stuck() == [], "it would not join either if it was started again"
    queue.call(queue.transport.assigned, [])
    assert (queue.driver.stuck(), queue.driver.unready()) == ([], [])
    queue.close()


def test_a_queue_with_a_client_that_has_lost_all_brokers_is_opened_again(
    queue: Opened, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = queue.transport
    transport.owned = [JOBS]
    queue.call(transport.assigned, [JOBS])
    former = queue.receive(MESSAGES)
    begin_commit, commits, refused = transport.begin_commit, dict(transport.commits), list[object]()
    transport.commit = refused.append  # it would take the time of a session
    unanswered: Future[CommitAnswer] = Future()
    transport.begin_commit = lambda _: unanswered
    transport.lose_answers = lambda: unanswered.set_result(CommitAnswer(Outcome.UNKNOWN))
    former[0].ack()
    waiting = queue.driver.wait_for_commit()
    wait_until(lambda: queue.driver._answer is not None, "a commit under way")
    no_answer = QueueError("no answer")
    no_answer.__cause__ = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    opened, failures = transport.open, [no_answer, no_answer.__cause__]

    def open_at_last(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return opened(*arguments)

    monkeypatch.setattr(driver, "_REOPEN_S", 0.01)
    transport.open = open_at_last
    transport.must_open_anew = True
    wait_until(lambda: transport.opens == 2, "another opening")
    assert failures == [], "a leader that was away for longer ended nothing"
    assert (refused, transport.commits, caplog.text.count(lost_brokers.LOST_BROKERS)) == ([], commits, 1)
    with pytest.raises(QueueError, match="delivered again"):
        waiting.result(30)
    with pytest.raises(LeaseLostError):
        former[-1].ack()
    transport.begin_commit = begin_commit
    wait_until(lambda: queue.driver.unready() == [], "it has joined again")
    for _ in range(MESSAGES):  # as after each end that no commit says
        queue.receive(1)[0].ack()
    queue.driver.wait_for_commit().result(30)


BEYOND = MESSAGES + 5
"""All below is done by the commit of a log that has only half of it."""


def test_a_partition_that_has_lost_messages_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    queue = Opened()
    queue.transport.commits[JOBS] = Commit(BEYOND, encode(Saved(BEYOND), LOG) or "")
    queue.call(queue.transport.assigned, [JOBS, OTHER])
    for message in queue.receive(MESSAGES):
        assert message.source.startswith("jobs/1/")
        message.ack()
    wait_until(lambda: queue.transport.commits[OTHER].offset == MESSAGES, "the commit of the other partition")
    assert caplog.text.count("does not read one of its partitions") == 1
    assert (queue.driver.counters().stopped, queue.driver.stuck(), queue.driver.unready()) == (1, [], [])
    assert queue.transport.commits[JOBS].offset == BEYOND, "nothing of it is committed"
    queue.call(queue.transport.revoked, [OTHER], lost=False)
    (reason,) = queue.driver.unready()  # it reads nothing now
    assert "jobs/0: the messages from 10 on are not done" in reason and "--accept-loss jobs/0`" in reason
    queue.call(queue.transport.revoked, [JOBS], lost=False)
    assert (queue.driver.counters().stopped, queue.driver.unready()) == (0, [])
    queue.close()


def test_a_partition_that_loses_messages_while_it_is_read_does_not_stop_the_others() -> None:
    queue = Opened()
    queue.call(queue.transport.assigned, [JOBS, OTHER])
    messages = queue.receive(2 * MESSAGES)
    done, again, *running = [message for message in messages if message.source.startswith("jobs/0/")]
    errors: list[Any] = []

    def lose() -> None:
        """In one poll: nothing is committed between the calls and the error."""
        done.ack()
        again.retry(after=5)
        errors.extend([event(JOBS, KafkaError._AUTO_OFFSET_RESET)] * 2)

    def begin() -> None:
        queue.transport.errors = errors
        queue.transport.calls.append(lose)

    queue.call(begin)
    wait_until(lambda: queue.driver.counters().stopped == 1, "the stop of the partition")
    commit = queue.transport.commits[JOBS]
    saved = decode(commit.metadata, LOG, commit.offset)
    assert (saved.offset, saved.start) == (2, NO_START), "the retry is written, and no other message is blamed"
    assert queue.driver.unready() == [], "it works on the messages of the other partition"
    for message in messages:
        if message in running:
            with pytest.raises(LeaseLostError):
                message.ack()
        elif not message.is_settled:
            message.ack()
    wait_until(lambda: queue.transport.commits[OTHER].offset == MESSAGES, "the commit of the other partition")
    assert queue.transport.stopped == [{JOBS}]
    queue.call(queue.transport.revoked, [JOBS], lost=False)
    assert queue.transport.stopped[-1] == set(), "it is not read"
    queue.close()


LOST = KafkaError._AUTO_OFFSET_RESET, "broker end offset is 2 (offset leader epoch 3)."


@pytest.mark.parametrize("accept_loss", [False, True])
def test_a_log_that_lost_its_end_is_delivered_from_where_it_parts(accept_loss: bool) -> None:
    queue = Opened(accept_loss=accept_loss)
    lineage = Lineage(((1, 0), (3, 2), (4, 3)), Batch(MESSAGES - 1, MESSAGES - 1, 0, 0), MESSAGES)
    queue.transport.commits[JOBS] = Commit(MESSAGES, encode(Saved(MESSAGES, lineage=lineage), LOG) or "")
    queue.transport.epoch_ends = {4: (MESSAGES, 3), 3: (MESSAGES, 3)}
    queue.call(queue.transport.assigned, [JOBS])
    if accept_loss:
        assert [each.source for each in queue.receive(2)] == ["jobs/0/3~1", "jobs/0/4~1"]
    else:
        with pytest.raises(QueueError, match="from 3 on, the log is not the one of before, which was read to 4"):
            wait_until(lambda: queue.driver.receive(Message, 1, 0.1), "the error")
    queue.close()


def test_where_a_leader_epoch_began_is_noted(queue: Opened) -> None:
    """Not only the last record of a poll: a log that parts at the beginning would seem to part there."""
    queue.call(queue.transport.assigned, [JOBS])
    queue.receive(MESSAGES)
    lineage = queue.driver.member.settler.ledgers[JOBS].lineage
    assert (lineage.epochs, lineage.end) == (((3, 0),), MESSAGES)


def test_a_log_that_loses_its_end_while_it_is_read() -> None:
    queue = Opened(accept_loss=True)
    queue.call(queue.transport.assigned, [JOBS])
    first, *_ = queue.receive(MESSAGES)
    queue.transport.errors = [event(JOBS, *LOST)]
    wait_until(lambda: queue.transport.stopped == [{JOBS}, {JOBS}], "the last record is read again, and is the same")
    assert queue.driver.counters().leases_lost == 0
    queue.transport.epoch_ends, queue.transport.time_ms = {3: (2, 3)}, 1
    queue.transport.errors = [event(JOBS, *LOST)]
    sources = [f"jobs/0/{offset}{'~1' if offset >= 2 else ''}" for offset in range(MESSAGES)]
    assert [each.source for each in queue.receive(MESSAGES)] == sources
    with pytest.raises(LeaseLostError):
        first.ack()
    queue.close()


def test_a_retry_in_place_waits_on_when_its_partition_has_moved() -> None:
    queue = Opened(ordered=True)
    wait_until(
        lambda: queue.driver.member._next_copy > queue.driver.now_s(), "the first commit, which has no partitions"
    )
    queue.call(queue.transport.assigned, [JOBS])
    (message,) = queue.receive(1)
    message.retry(after=3600)
    queue.call(queue.transport.revoked, [JOBS], lost=False)
    commit = queue.transport.commits[JOBS]
    saved = decode(commit.metadata, LOG, commit.offset)
    assert (saved.attempts, list(saved.waits)) == ({0: 2}, [0])
    assert saved.waits[0] >= queue.transport.transactions.append_ms / 1000 + 3600 - SESSION_S
    queue.call(queue.transport.assigned, [JOBS])
    wait_until(lambda: queue.driver.counters().depth, "the partition is read again")
    assert message.source not in {each.source for each in queue.driver.receive(Message, MESSAGES, 0.3)}
    queue.stopped_s += 3600 + SESSION_S
    received: list[Message] = []

    def is_back() -> bool:
        received.extend(queue.driver.receive(Message, MESSAGES, 0.1))
        return (message.source, 2) in {(each.source, each.attempt) for each in received}

    wait_until(is_back, "the retry")
    queue.close()


def test_a_wait_after_a_lease_goes_on_a_moment_after_a_start(queue: Opened) -> None:
    """The brokers' time tells when it ends, and the first round of commits was before there were partitions."""
    wait_until(lambda: queue.driver.member._next_copy > queue.driver.now_s(), "the first commit, without partitions")
    saved = Saved(0, attempts={0: 2}, waits={0: int(time()) - 5})
    queue.transport.commits[JOBS] = Commit(0, encode(saved, LOG) or "")
    queue.call(queue.transport.assigned, [JOBS])
    assert {each.source: each.attempt for each in queue.receive(MESSAGES)}["jobs/0/0"] == 2


def test_a_wait_that_begins_before_the_first_copy_is_kept(queue: Opened) -> None:
    wait_until(lambda: queue.driver.member._next_copy > queue.driver.now_s(), "the first commit, without partitions")
    queue.call(queue.transport.assigned, [JOBS])
    (message,) = queue.receive(1)
    assert not queue.driver.member.settler.clock.is_known
    queue.stopped_s += queue.driver.terms.lease_s

    def waits() -> list[int]:
        commit = queue.transport.commits[JOBS]
        return list(decode(commit.metadata, LOG, commit.offset).waits)

    wait_until(lambda: waits() == [0], "the commit of the wait")
    assert message.is_overdue


def test_a_guard_that_cannot_be_written_does_not_delay_a_rebalance(queue: Opened) -> None:
    queue.transport.transactions.places.are_complete = False
    queue.guards.are_possible = True
    queue.guards.new = lambda source: Guard(cast(Any, None), source)  # type: ignore[method-assign]
    queue.call(queue.transport.assigned, [JOBS])
    message, *_ = queue.receive(MESSAGES)
    queue.call(queue.transport.revoked, [JOBS], lost=False)
    with pytest.raises(LeaseLostError):
        message.ack()
    assert queue.transport.commits[JOBS].offset == 0, "the new owner delivers it"


def test_no_message_is_blamed_for_a_queue_that_ends_with_an_error(queue: Opened) -> None:
    queue.call(queue.transport.assigned, [JOBS])
    done, *_ = queue.receive(MESSAGES)
    done.ack()

    def fail() -> None:
        raise QueueError("retention deleted messages")

    queue.transport.calls.append(fail)
    queue.driver.join(60)
    commit = queue.transport.commits[JOBS]
    saved = decode(commit.metadata, LOG, commit.offset)
    assert (saved.offset, saved.start, saved.suspects_end) == (1, NO_START, 0)
    with pytest.raises(QueueError, match="retention deleted messages"):
        queue.driver.receive(Message, 1, 0)


def test_a_process_that_hangs_leaves_messages_to_others(impatient: Opened, caplog: pytest.LogCaptureFixture) -> None:
    impatient.transport.owned = [JOBS]
    impatient.call(impatient.transport.assigned, [JOBS])
    hung = impatient.receive(MESSAGES)

    def leaves() -> bool:
        impatient.stopped_s += 1  # less than a session, so that its commits go on
        impatient.transport.slept_s = impatient.stopped_s
        return not impatient.transport.positions

    wait_until(leaves, "the process leaves")
    assert "gives its partitions to other processes" in caplog.text
    with pytest.raises(LeaseLostError):
        hung[0].ack()
    assert impatient.driver.wait_for_commit().result(30) is None, "nothing is left to commit"
    again = impatient.receive(MESSAGES)
    assert {message.source for message in again} == {message.source for message in hung}
    assert impatient.transport.opens == 2
    assert {message.attempt for message in again} == {2}


def test_a_process_that_comes_back_after_an_hour_does_not_hang(impatient: Opened) -> None:
    """While it opens the queue again, which takes tens of seconds if the brokers are slow."""
    impatient.call(impatient.transport.assigned, [JOBS])
    impatient.receive(MESSAGES)

    def leaves() -> bool:
        impatient.stopped_s += 1
        return impatient.driver._is_left

    wait_until(leaves, "the process leaves")
    impatient.stopped_s += 3600
    begins, may_go_on, opened = Event(), Event(), impatient.transport.open

    def open_slowly(*arguments: Any) -> Any:
        begins.set()
        may_go_on.wait(30)
        return opened(*arguments)

    impatient.transport.open = open_slowly
    with ThreadPoolExecutor() as threads:
        receiving = threads.submit(impatient.driver.receive, Message, 1, 0.1)
        assert begins.wait(30)
        assert impatient.driver.stuck() == []
        may_go_on.set()
        receiving.result(30)


def test_a_partition_that_cannot_be_read_further_is_said(queue: Opened) -> None:
    queue.transport.high = MESSAGES + 3
    queue.call(queue.transport.assigned, [JOBS])
    for message in queue.receive(MESSAGES):
        message.ack()
    assert "could not be read" not in str(queue.driver.unready())
    said = f"jobs/0 could not be read from {MESSAGES} on"

    def is_said() -> bool:
        queue.stopped_s += 1
        return said in str(queue.driver.unready())

    wait_until(is_said, "it")
    queue.transport.high = MESSAGES
    wait_until(lambda: "could not be read" not in str(queue.driver.unready()), "the end of the transaction")
