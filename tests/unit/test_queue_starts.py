"""How many commits and crashes it takes to find a message that kills its process. No brokers."""

import pytest

from tests.harness.queue_state import at_once
from timers.queue.entry import DONE
from timers.queue.ledger import Ledger, plan_starts, wants_commit
from timers.queue.metadata import NO_START, Saved, Start, decode, encode
from timers.queue.settling import Settler
from timers.queue.starts import MAX_CRASHES

LOG = "log-name"
JOBS = ("jobs", 0)


class SimProcess:
    """A process with one partition, which commits whenever it must."""

    def __init__(self, saved: Saved, messages: int) -> None:
        self.ledger = Ledger(saved, max_bytes=10**6, log_end=messages)
        self.committed = saved
        self.commits = 0
        for offset in range(saved.offset, messages):
            self.ledger.read(offset, None)

    def commit(self) -> None:
        self.commits += 1
        start = plan_starts({JOBS: self.ledger})[JOBS]
        self.committed = self.ledger.saved()._replace(start=start)
        text = encode(self.committed, LOG, 10**6)
        assert text is not None
        assert decode(text, LOG, self.committed.offset).start.group == start.group
        self.ledger.starts.allow(start)

    def run(self, poison: int, most: int = 10**6) -> list[int]:
        """Acknowledge messages until the poison is started; return the offsets of dead ones."""
        dead: list[int] = []
        for _ in range(most):
            entry = self.ledger.take(10)
            while entry is None and (self.ledger.open_count or self.ledger.starts.has_group):
                assert wants_commit({JOBS: self.ledger})
                self.commit()
                entry = self.ledger.take(10)
            if entry is None:
                break
            if entry.crashes >= MAX_CRASHES:
                dead.append(entry.offset)
            elif entry.offset == poison:
                break
            assert self.ledger.settle(entry, entry.delivery, DONE)
        return dead


@pytest.mark.slow
@pytest.mark.parametrize("poison", [4_321, 9_999])
def test_one_of_ten_thousand_suspects_is_found_with_few_crashes_and_commits(poison: int) -> None:
    messages, ends, commits = 10_000, 1, 0
    saved = Saved(0, start=Start(0, messages))
    while True:
        process = SimProcess(saved, messages)
        dead = process.run(poison)
        commits += process.commits
        if not process.ledger.open_count:
            break
        ends += 1
        saved = process.committed
    assert dead == [poison]
    assert ends <= 6
    assert commits <= 120


def test_a_fast_queue_needs_few_commits() -> None:
    process = SimProcess(Saved(0), 20_000)
    process.run(poison=-1)
    assert process.ledger.open_count == 0
    assert process.commits <= 10


def test_a_slow_queue_has_few_suspects() -> None:
    process = SimProcess(Saved(0), 1_000)
    for _ in range(50):
        process.run(poison=-1, most=1)
        process.commit()
    assert process.committed.start.end <= 50 + 100


def test_suspects_that_are_left_are_suspects_in_the_next_process_too() -> None:
    process = SimProcess(Saved(0, start=Start(0, 100)), 100)
    process.run(poison=1)
    again = SimProcess(process.committed, 100)
    again.commit()
    assert again.committed.start == Start(0, 1, 1)
    assert again.committed.suspects_end == 100
    while again.ledger.open_count > 50:
        again.run(poison=-1, most=1)
    assert again.ledger.saved().suspects_end == 100
    again.run(poison=-1)
    assert again.ledger.saved().suspects_end == 0


def test_messages_that_were_sent_after_the_end_of_a_process_are_no_suspects() -> None:
    ledger = Ledger(Saved(0, start=Start(0, 64)), log_end=3)
    assert ledger.starts.suspects_end == 3


def test_a_message_that_was_done_is_not_blamed() -> None:
    ledger = Ledger(Saved(5, ((7, 8),), start=Start(7, 8, 1)))
    assert ledger.crash_count == 0
    assert Ledger(Saved(5, ((6, 7),), start=Start(7, 8, 1))).crash_count == 1


def test_suspects_run_when_no_message_of_another_partition_does() -> None:
    other = Ledger(Saved(0))
    other.read(0, None)
    ledgers = {JOBS: Ledger(Saved(0, start=Start(0, 1))), ("jobs", 1): other}
    other.starts.allow(Start(0, 64))
    entry = other.take(10)
    assert entry is not None
    ledgers[JOBS].read(0, None)
    for _ in range(2):
        assert plan_starts(ledgers) == {JOBS: NO_START, ("jobs", 1): Start(0, 64)}
        assert not wants_commit(ledgers)
    other.read(1, None)
    assert other.take(10) is None, "nothing starts while suspects wait"
    assert other.settle(entry, entry.delivery, DONE)
    assert plan_starts(ledgers) == {JOBS: Start(0, 1, 1), ("jobs", 1): NO_START}


def test_suspects_do_not_wait_longer_than_a_lease_for_a_message_that_runs() -> None:
    other = Ledger(Saved(0))
    ledgers = {JOBS: Ledger(Saved(0, start=Start(0, 4))), ("jobs", 1): other}
    other.starts.allow(Start(0, 64))
    for offset in range(4):
        other.read(offset, None)
        ledgers[JOBS].read(offset, None)
    long = other.take(600, 30)
    assert long is not None

    def commit(now_s: float) -> dict[tuple[str, int], Start]:
        for ledger in ledgers.values():
            ledger.expire(now_s, at_once)
        starts = plan_starts(ledgers)
        for partition, start in starts.items():
            ledgers[partition].starts.allow(start)
        return starts

    assert commit(29) == {JOBS: NO_START, ("jobs", 1): Start(0, 64)}
    assert commit(30) == {JOBS: Start(0, 1, 2), ("jobs", 1): Start(0, 1)}, "a group of two: none is blamed"
    first = ledgers[JOBS].take(600, 60)
    assert first is not None and other.take(600) is None, "nothing starts beside a suspect"
    assert commit(59)[JOBS] == Start(0, 1, 2)
    assert commit(60)[JOBS] == Start(0, 4, 3), "the next group is named together with the message before"
    for offset in range(1, 4):
        entry = ledgers[JOBS].take(600, 90)
        assert entry is not None and entry.offset == offset
    assert other.take(600) is None
    starts = commit(90)
    assert starts[JOBS].end >= 4 and not starts[JOBS].group
    again = other.take(600)
    assert again is not None and again.offset == 1
    for ledger in ledgers.values():
        ledger.drop()
        assert (ledger.held_count, ledger.new_count) == (0, 0)


def test_a_partition_that_is_given_up_has_no_suspects_although_a_message_runs_beside_those_of_another_one() -> None:
    stopped, other = Ledger(Saved(0)), Ledger(Saved(0, start=Start(0, 4)))
    stopped.starts.allow(Start(0, 64))
    for ledger in (stopped, other):
        ledger.read(0, None)
    assert stopped.take(600, 30) is not None
    stopped.expire(30, at_once)
    stopped.starts.stop()
    assert plan_starts({JOBS: stopped, ("jobs", 1): other}) == {JOBS: NO_START, ("jobs", 1): Start(0, 1, 2)}


@pytest.mark.parametrize("answer", ["refused", "none"])
def test_what_may_be_started_is_committed_again_after_a_commit_that_may_have_failed(answer: str) -> None:
    settler = Settler("queue.jobs", 0.0)
    suspects, other = Ledger(Saved(0, start=Start(0, 1))), Ledger(Saved(0))
    settler.assign(("jobs", 1), other, LOG, None)
    first = settler.plan()
    assert first is not None
    settler.succeed(first)
    settler.assign(JOBS, suspects, LOG, None)
    suspects.read(0, None)
    alone = settler.plan()
    assert alone is not None and alone.starts == {JOBS: Start(0, 1, 1), ("jobs", 1): NO_START}
    if answer == "refused":
        settler.fail(alone)
    else:
        settler.lose_answer(alone)
    settler.revoke([JOBS])
    again = settler.plan()
    assert again is not None and again.commits == first.commits
    other.read(0, None)
    assert other.take(10) is None
    settler.succeed(again)
    assert other.take(10) is not None
