"""What receivers get from the ledgers of a process, and what is counted. No brokers."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.harness.clock import SimClock
from tests.harness.queue_state import (
    JOBS,
    OTHER,
    SESSION_S,
    SIGNING,
    SimGuards,
    add,
    answer,
    confirm,
    guarded,
    opened,
    receive,
)
from tests.harness.waiting import wait_until
from timers.errors import InvalidTimerError, LeaseLostError, PublishError, QueueError
from timers.kafka.brokers_time import BrokersTime
from timers.queue import Backoff, Message, Queue
from timers.queue.driver import RUN_LEASES, Driver
from timers.queue.records import Content, Kind, Record
from timers.queue.records import letter as letter_of
from timers.queue.sending import Guards


def test_each_call_is_counted_once() -> None:
    clock = SimClock()
    state = opened(clock=clock)
    done, retried, rejected, extended, *_ = receive(state, 5)
    clock.now_s += 0.5
    done.ack()
    retried.retry(after=5)
    rejected.reject("bad")
    extended.extend(60)
    with pytest.raises(LeaseLostError):
        done.ack()
    with pytest.raises(LeaseLostError):
        retried.reject("bad")
    counters = state.counters()
    assert (counters.received, counters.acked, counters.retried, counters.dead) == (5, 1, 1, {"rejected": 1})
    assert (counters.in_flight, counters.ready, counters.partitions, counters.ledger_bytes) == (2, 5, 1, 4)
    assert counters.handling_s == 3 * 0.5
    counters.dead["rejected"] = 7
    assert state.counters().dead == {"rejected": 1}, "a copy"


def test_a_lease_ends_while_the_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Driver(opened().terms, SimGuards(), cast(Any, None))
    awake_s = time.monotonic()
    monkeypatch.setattr(time, "clock_gettime", lambda _: awake_s + 3600)
    assert state.is_unconfirmed, "the time-out of its session is over"


def test_deliveries_that_a_rebalance_ends_are_counted() -> None:
    state = opened()
    receive(state, 3)
    state.member.settler.totals.leases_lost += state.member.settler.revoke([JOBS])
    assert state.counters().leases_lost == 3


def test_a_message_after_its_last_attempt_is_a_dead_letter_and_is_not_delivered() -> None:
    state = opened(messages=0, attempts=1)
    add(state, OTHER, 2, attempt=3)
    assert state.receive(Message, 5, 0) == []
    assert state.counters().dead == {"attempts-exhausted": 2}


def test_calls_that_wait_for_a_commit_end_with_the_queue() -> None:
    state = opened()
    first = state.wait_for_commit()
    answer(state)
    assert first.result(0) is None
    second = state.wait_for_commit()
    state.end()
    assert second.exception(0) is not None
    assert state.wait_for_commit().result(0) is None, "nothing is left to commit"


def test_a_call_that_waits_after_the_end_knows_that_earlier_calls_were_dropped() -> None:
    state = opened()
    (message,) = receive(state, 1)
    waits = state.wait_for_commit()
    message.ack()
    state.end()
    for each in (waits, state.wait_for_commit()):
        with pytest.raises(QueueError, match="lost partitions"):
            each.result(0)


def commit_all(state: Driver) -> None:
    while (plan := state.member.settler.plan()) is not None:
        state.member.settler.succeed(plan)


def settled(state: Driver) -> BaseException | None:
    """The error of a call that waits until all calls before it are committed."""
    commit_all(state)
    future = state.wait_for_commit()
    answer(state)
    return future.exception(0)


def settle_one(state: Driver, call: str, *, has_output: bool = False) -> None:
    (message,) = receive(state, 1)
    if has_output:
        message.output("results", b"")
    getattr(message, call)(*(["bad"] if call == "reject" else []))


@pytest.mark.parametrize(
    ("call", "more", "has_output"),
    [
        ("ack", {}, False),
        ("ack", {}, True),
        ("retry", {}, False),
        ("retry", {"ordered": True}, False),
        ("reject", {}, False),
    ],
)
def test_a_call_whose_partition_is_lost_before_its_commit_is_an_error_of_settle(
    call: str, more: dict[str, Any], has_output: bool
) -> None:
    state = opened(**more)
    settle_one(state, call, has_output=has_output)
    assert settled(state) is None
    state.member.settler.revoke([JOBS])
    assert settled(state) is None, "all was committed"
    state = opened(**more)
    settle_one(state, call, has_output=has_output)
    add(state, OTHER, 3)
    waits = state.wait_for_commit()
    state.member.settler.revoke([JOBS])
    settle_one(state, "ack")
    commit_all(state)
    answer(state)
    assert isinstance(waits.exception(0), QueueError)
    assert settled(state) is None, "it is said once"


@pytest.mark.parametrize("how", ["end", "leave"])
def test_after_the_end_of_a_queue_its_lost_calls_are_an_error_of_settle(how: str) -> None:
    state = opened()
    settle_one(state, "ack")
    if how == "end":
        state.end()
    else:
        state.close()
        state.wait_for_receiver(is_settled=False)
        state._is_left = True  # as while it waits
    assert isinstance(state.wait_for_commit().exception(0), QueueError)
    assert state.wait_for_commit().exception(0) is None


def test_what_no_receiver_called_is_no_error_of_settle() -> None:
    state = opened()
    receive(state, 2)
    state.member.protect([JOBS])
    state.member.settler.ledgers[JOBS].pass_holes(50)
    state.member.settler.revoke([JOBS])
    assert settled(state) is None


@pytest.mark.parametrize("call", ["ack", "retry", "reject"])
def test_a_guarded_message_is_settled_once(call: str) -> None:
    guards = SimGuards()
    state = opened(guards=guards)
    message = guarded(state)
    assert not message.is_settled
    with pytest.raises(LeaseLostError):
        message.extend(60)
    with pytest.raises(LeaseLostError):
        message.output("results", b"")
    getattr(message, call)(*(["bad"] if call == "reject" else []))
    assert guards.calls == {"ack": ["cancel"], "retry": [], "reject": ["publish", "cancel"]}[call]
    assert message.is_settled
    for again in ("ack", "retry"):
        with pytest.raises(LeaseLostError):
            getattr(message, again)()
    counters = state.counters()
    assert (counters.acked, counters.retried, sum(counters.dead.values())) == (
        call == "ack",
        call == "retry",
        call == "reject",
    )


def test_an_acknowledgement_after_the_guard_fired_does_not_count() -> None:
    state = opened(guards=SimGuards(is_cancelled=False))
    message = guarded(state)
    with pytest.raises(LeaseLostError):
        message.ack()
    assert state.counters().acked == 0


def test_a_dead_letter_of_a_guarded_message_that_is_not_written_leaves_the_guard() -> None:
    guards = SimGuards(is_published=False)
    state = opened(guards=guards)
    message = guarded(state)
    with pytest.raises(LeaseLostError):
        message.reject("bad")
    assert (guards.calls, state.counters().dead) == (["publish"], {})


def test_brokers_that_do_not_take_a_dead_letter_are_no_error_of_the_handler(caplog: pytest.LogCaptureFixture) -> None:
    def publish(*arguments: object) -> None:
        raise PublishError("no broker")

    assert not guards_of(publish).publish(Record(Kind.LETTER, b"", [], "jobs/0/1", 0), 0.0)
    assert "the dead letter of jobs/0/1 was not written: no broker" in caplog.text


def guards_of(publish: Callable[..., None]) -> Guards:
    """Guards with a sender whose clock is right."""
    sender = SimpleNamespace(publish=publish, brokers_time=BrokersTime(dict, lambda: 1_700_000_000.5))
    return Guards(cast(Any, None), cast(Any, sender), "ids", "letters", 0.0)


@pytest.mark.parametrize("sent_ms", [-86_400_000, -1, 0, 4 * 10**13, 2**62])
def test_the_request_in_a_dead_letter_is_due_now_whatever_time_the_message_has(sent_ms: int) -> None:
    """The producer gives the time of the message."""
    written: list[tuple[str, bytes | None]] = []
    letter = letter_of(Content("jobs/0/1", sent_ms, 1, b"k", b"v", []), SIGNING, "rejected", "why", 1_000_000)
    assert guards_of(lambda topic, key, *_: written.append((topic, key))).publish(letter, 0.0)
    assert written == [("letters", b"1700000000")]


def test_without_the_commit_of_the_guard_the_new_owner_has_the_message() -> None:
    guards = SimGuards()
    message = guarded(opened(guards=guards), commit=False)
    with pytest.raises(LeaseLostError):
        message.ack()
    assert guards.calls == []


def test_messages_with_outputs_and_ordered_ones_have_no_guard() -> None:
    state = opened()
    with_output, without, *_ = receive(state, 3)
    with_output.output("results", b"")
    without.ack()
    assert len(state.member.protect([JOBS])) == 1
    assert len(state.member.settler.jobs) == 1
    ordered = opened(ordered=True)
    receive(ordered, 3)
    assert state.member.protect([JOBS]) == ordered.member.protect([JOBS]) == []


def test_each_commit_is_copied_also_if_nothing_changed_since() -> None:
    state = opened(messages=1)
    (message,) = receive(state, 1)
    message.ack()
    plain = state.member.settler.plan()
    assert plain is not None and not plain.in_transaction
    state.member.settler.succeed(plain)
    copy = state.member.settler.plan(in_transaction=True)
    assert copy is not None and copy.commits == plain.commits
    state.member.settler.succeed(copy)
    assert state.member.settler.plan(in_transaction=True) is None
    assert state.member.settler.copied == plain.commits


def test_a_guard_whose_commit_is_known_too_late_does_not_hold() -> None:
    guard = SimGuards().new("jobs/0/1")
    guard.decide(is_set=False)
    guard.decide()
    assert not guard.leave(0)


def test_a_message_whose_child_process_ended_is_delivered_again_and_then_given_up() -> None:
    state = opened(1)
    (first,) = receive(state, 1)
    first.crashed("was ended by SIGKILL")
    (second,) = receive(state, 1)
    assert (second.source, second.attempt) == (first.source, 1)
    second.crashed("was ended by SIGKILL")
    assert state.receive(Message, 1, 0) == []
    assert (state.member.settler.totals.crashes, dict(state.member.settler.totals.dead)) == (2, {"crashed": 1})


CALLS = [
    ("ack", ()),
    ("retry", ()),
    ("reject", ("bad",)),
    ("extend", (60.0,)),
]


@pytest.mark.parametrize(("call", "arguments"), CALLS)
def test_a_stopped_process_settles_nothing_before_it_is_member_again(call: str, arguments: tuple[object, ...]) -> None:
    clock = SimClock()
    state = opened(clock=clock)
    (message,) = receive(state, 1)
    clock.now_s += SESSION_S + 1
    with pytest.raises(LeaseLostError):
        getattr(message, call)(*arguments)
    counters = state.counters()
    assert (counters.acked, counters.retried, counters.dead) == (0, 0, {})


@pytest.mark.parametrize("has_output", [False, True])
@pytest.mark.parametrize(("call", "arguments"), CALLS)
def test_a_call_that_raises_does_not_count_later(call: str, arguments: tuple[object, ...], has_output: bool) -> None:
    clock = SimClock()
    state = opened(clock=clock)
    (message,) = receive(state, 1)
    if has_output:
        message.output("results", b"")
    clock.now_s += SESSION_S + 1
    with pytest.raises(LeaseLostError):
        getattr(message, call)(*arguments)
    assert message.is_settled
    with pytest.raises(LeaseLostError):
        message.ack()
    confirm(state, clock.now_s)
    plan = state.member.settler.plan()
    assert plan is None or (plan.jobs, plan.commits[JOBS].offset) == ([], 0)
    (again,) = receive(state, 1)
    assert (again.source, again.attempt) == (message.source, 1)


@pytest.mark.parametrize("is_member", [True, False])
@pytest.mark.parametrize(("call", "arguments"), CALLS)
def test_the_next_commit_tells_whether_a_call_counts(call: str, arguments: tuple[object, ...], is_member: bool) -> None:
    clock = SimClock()
    state = opened(guards=SimGuards(timeout_s=60.0), clock=clock)
    (message,) = receive(state, 1)
    lease_s = message._entry.until_s
    clock.now_s += SESSION_S + 1
    planned_before_s = clock.now_s - 1
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(getattr(message, call), *arguments)
        wait_until(lambda: message._entry.until_s > lease_s, "the call, which keeps the lease while it waits")
        confirm(state, planned_before_s)
        with state.lock:
            assert not called.done(), "that commit does not contain the call"
            state.member.settler.revoke([] if is_member else [JOBS])
            state.lock.notify_all()
        if is_member:
            confirm(state, clock.now_s)
            called.result(60)
        else:
            with pytest.raises(LeaseLostError):
                called.result(60)


WRONG_SECONDS: list[Any] = [-5, float("nan"), float("inf"), Decimal("nan"), 10**10, 10**400, True, "5", b"5"]


@pytest.mark.parametrize("given", WRONG_SECONDS, ids="{!r:.12}".format)
@pytest.mark.parametrize("ordered", [False, True])
def test_what_is_no_number_of_seconds_is_refused_and_changes_nothing(given: Any, ordered: bool) -> None:
    state = opened(ordered=ordered)
    (message,) = receive(state, 1)
    for call in (message.retry, message.extend):
        with pytest.raises(InvalidTimerError, match="is not a number of seconds"):
            call(given)
    assert (message.is_settled, message._entry.until_s) == (False, state.now_s() + state.terms.lease_s)
    message.retry(timedelta(seconds=5) if ordered else Decimal(5))  # type: ignore[arg-type]
    assert message.is_settled


@pytest.mark.parametrize(("call", "arguments"), CALLS[:3])
def test_after_a_message_is_settled_it_takes_no_output(call: str, arguments: tuple[object, ...]) -> None:
    (message,) = receive(opened(), 1)
    getattr(message, call)(*arguments)
    with pytest.raises(LeaseLostError):
        message.output("results", b"too late")


def end_lease(state: Driver, clock: SimClock, after_s: float = 0.0) -> None:
    """Let time pass until the lease of a message that was just received is over, and then some seconds."""
    clock.now_s += state.terms.lease_s
    confirm(state, clock.now_s)
    state.member.settler.ledgers[JOBS].expire(clock.now_s, state.terms.pause_s)
    clock.now_s += after_s
    confirm(state, clock.now_s)
    state.member.settler.ledgers[JOBS].expire(clock.now_s, state.terms.pause_s)


@pytest.mark.parametrize("after_s", [0.0, 6.0])
def test_a_message_counts_until_it_is_delivered_again(after_s: float) -> None:
    clock = SimClock()
    state = opened(clock=clock)
    done, retried, rejected, with_output = receive(state, 4)
    end_lease(state, clock, after_s)
    assert (done.is_overdue, done.is_settled, state.counters().in_flight) == (True, False, 0)
    ready = state.counters().ready
    with pytest.raises(LeaseLostError):
        done.extend(60)
    done.put_back()
    assert not done.is_settled
    done.ack()
    retried.retry(after=5)
    rejected.reject("bad")
    with_output.output("results", b"late")
    with_output.ack()
    for message in (done, retried, rejected):
        assert message.is_settled
        with pytest.raises(LeaseLostError):
            message.ack()
    counters = state.counters()
    assert (counters.acked, counters.retried, counters.dead) == (2, 1, {"rejected": 1})
    assert counters.ready == ready - (4 if after_s else 0)
    assert [job.records[0].kind for job in state.member.settler.jobs] == [Kind.RETRY, Kind.LETTER, Kind.OUTPUT]
    assert len(state.receive(Message, 10, 0)) == 6, "none of them is delivered again"


def test_after_its_next_delivery_a_late_message_is_over() -> None:
    clock = SimClock()
    state = opened(1, clock=clock)
    (late,) = receive(state, 1)
    end_lease(state, clock)
    assert state.receive(Message, 1, 0) == [], "the end of a lease has the delay of a retry"
    end_lease(state, clock, state.terms.backoff.first_s)
    (again,) = receive(state, 1)
    assert (again.source, again.attempt) == (late.source, 2)
    assert late.is_settled
    with pytest.raises(LeaseLostError):
        late.output("results", b"too late")
    with pytest.raises(LeaseLostError):
        late.ack()
    again.ack()


def test_a_late_retry_of_an_ordered_message_is_one_attempt() -> None:
    clock = SimClock()
    state = opened(1, ordered=True, clock=clock)
    state.member.settler.clock.note(5000.0, clock.now_s, clock.now_s)
    (late,) = receive(state, 1)
    end_lease(state, clock)
    late.retry(after=100)
    with pytest.raises(LeaseLostError):
        late.ack()
    end_lease(state, clock, 60)
    assert state.receive(Message, 1, 0) == [], "the delay of the retry counts, and not that of the lease"
    end_lease(state, clock, 60)
    (again,) = receive(state, 1)
    assert (again.source, again.attempt) == (late.source, 2)


def test_the_last_attempt_of_a_message_is_given_up_at_the_end_of_its_lease() -> None:
    clock = SimClock()
    state = opened(1, attempts=0, clock=clock)
    receive(state, 1)
    end_lease(state, clock)
    assert state.receive(Message, 1, 0) == []
    assert state.counters().dead == {"attempts-exhausted": 1}


def test_messages_whose_leases_end_together_come_back_one_after_the_other() -> None:
    state = opened()
    terms = replace(state.terms, backoff=Backoff(first_s=10, jitter=1))
    ledger = state.member.settler.ledgers[JOBS]
    pauses = sorted(terms.pause_s(entry) for entry in ledger._open.values())
    assert all(0 < later - earlier < 2 for earlier, later in pairwise(pauses)), "spread over ten seconds"


def test_a_lease_is_never_shortened() -> None:
    clock = SimClock()
    state = opened(clock=clock)
    (message,) = receive(state, 1)
    message.extend(1)
    clock.now_s += state.terms.lease_s - 1
    assert not message.is_overdue
    confirm(state, clock.now_s)
    message.extend(60)
    clock.now_s += 59
    assert not message.is_overdue


def test_a_process_whose_handlers_run_keeps_its_partitions() -> None:
    clock = SimClock()
    state = opened(clock=clock)
    clock.now_s += state.terms.lease_s + 1
    assert state._is_abandoned()
    state.has_handlers = lambda: True
    assert not state._is_abandoned()


def test_a_handler_of_a_run_has_ten_leases_and_a_receiver_beside_it_one() -> None:
    queue = Queue("jobs", brokers="localhost:1", session_timeout_s=600, lease_s=60)
    queue.driver.start = lambda: None  # type: ignore[method-assign]
    add(queue.driver, JOBS, 2)
    with queue.handlers.running():
        for receives, leases in ((queue.receive_to_run, RUN_LEASES), (queue.receive, 1)):
            began_s = queue.driver.now_s()
            (message,) = receives(1, 0)
            assert began_s <= message._entry.until_s - leases * 60 <= queue.driver.now_s()


def test_a_stopped_run_whose_handlers_hang_does_not_keep_the_partitions() -> None:
    queue = Queue("jobs", brokers="localhost:1", session_timeout_s=600)
    add(queue.driver, JOBS, 2)
    queue.driver._asked_s -= queue.driver.terms.lease_s + 1
    with queue.handlers.running():  # a thread that hangs is still here when the run has returned
        assert not queue.driver._is_abandoned()
        queue.stop()
        assert queue.driver._is_abandoned()


def test_a_message_that_is_put_back_after_its_lease_has_used_an_attempt() -> None:
    """The end of a lease is noted each 100 ms: a handler that hangs may be cancelled in between."""
    clock = SimClock()
    state = opened(1, clock=clock)
    (first,) = receive(state, 1)
    first.put_back()
    (second,) = receive(state, 1)
    assert (second.attempt, state.counters().leases_lost) == (1, 0)
    clock.now_s += state.terms.lease_s
    confirm(state, clock.now_s)
    until_s = clock.now_s + state.terms.pause_s(second._entry)
    for _ in range(2):
        second.put_back()
        assert (second._entry.attempt, state.counters().leases_lost, state.counters().in_flight) == (2, 1, 0)
        assert second._entry.until_s == until_s
    assert state.receive(Message, 1, 0) == [], "it waits as after a failure"
    second.ack()


def test_a_message_whose_last_lease_is_over_is_given_up_when_it_is_put_back() -> None:
    clock = SimClock()
    state = opened(1, attempts=0, clock=clock)
    (message,) = receive(state, 1)
    clock.now_s += state.terms.lease_s
    confirm(state, clock.now_s)
    message.put_back()
    assert state.receive(Message, 1, 0) == []
    assert state.counters().dead == {"attempts-exhausted": 1}


@pytest.mark.parametrize("is_ready", [False, True])
@pytest.mark.parametrize("is_member", [False, True])
def test_a_late_call_that_no_other_receiver_can_overtake_waits_for_a_commit(is_ready: bool, is_member: bool) -> None:
    clock = SimClock()
    state = opened(1, guards=SimGuards(timeout_s=60.0), clock=clock)
    (late,) = receive(state, 1)
    clock.now_s += state.terms.lease_s
    state.member.settler.ledgers[JOBS].expire(clock.now_s, state.terms.pause_s)
    if is_ready:
        clock.now_s += state.terms.pause_s(late._entry)
        state.member.settler.ledgers[JOBS].expire(clock.now_s, state.terms.pause_s)
    assert (state.is_unconfirmed, state.counters().ready) == (True, is_ready)
    with pytest.raises(LeaseLostError):
        late.extend(60)
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(late.ack)
        wait_until(lambda: not late.is_overdue, "the call, whose handler does not hang while it waits")
        assert state.receive(Message, 1, 0) == []
        if is_member:
            confirm(state, clock.now_s)
            called.result(60)
        else:
            state.call(lambda: state.member.settler.revoke([JOBS]))
            with pytest.raises(LeaseLostError):
                called.result(60)
    assert state.counters().acked == is_member


def test_a_handler_that_waits_for_the_brokers_does_not_hang() -> None:
    clock = SimClock()
    state = opened(guards=SimGuards(timeout_s=60.0), clock=clock)
    (message,) = receive(state, 1)
    clock.now_s += state.terms.lease_s - 1
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(message.ack)
        wait_until(lambda: message._entry.until_s == clock.now_s + 60, "the call, which keeps the lease")
        clock.now_s += 59
        assert not message.is_overdue
        confirm(state, clock.now_s)
        called.result(60)


def test_a_handler_that_waits_for_the_verdict_about_its_guard_does_not_hang() -> None:
    clock = SimClock()
    guards = SimGuards(timeout_s=60.0)
    message = guarded(opened(guards=guards, clock=clock))
    clock.now_s += 59
    assert message.is_overdue
    is_overdue: list[bool] = []
    guards.cancel = lambda id, timeout_s: not is_overdue.append(message.is_overdue)  # type: ignore[method-assign,func-returns-value]
    message.ack()
    assert is_overdue == [False]


def test_a_process_that_was_stopped_delivers_nothing_before_its_next_commit() -> None:
    clock = SimClock()
    state = opened(clock=clock)
    clock.now_s += SESSION_S + 1
    assert state.receive(Message, 1, 0) == []
    confirm(state, clock.now_s)
    receive(state, 1)
