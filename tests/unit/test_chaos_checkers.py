"""The checkers of chaos find each violation of a promise in made-up callbacks, and its plans follow from a seed."""

import signal
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from tests.chaos import plan, split
from tests.chaos.checker import CATCH_UP_S, InjectedFault, Verdict, catch_up_s, verdict
from tests.chaos.queues.round import Member
from tests.harness.judge import Callbacks, Ints

FIRST_S = 1_700_000_000
TIMERS = 1_000
DUE_S = FIRST_S + np.arange(TIMERS, dtype=np.int64) // 100
LAG_MS = 30

FAULT = InjectedFault("kill", "worker-0", at_ms=FIRST_S * 1000 + 10, over_ms=FIRST_S * 1000 + 10, held={0: 150, 2: 150})
"""A fault of a worker with partitions 0 and 2 of 4, just after the begin of the first due second."""


def correct_callbacks() -> Callbacks:
    """Callbacks that fired once, 30 ms late; timer ``i`` is on partition ``i % 4``, at offset ``i // 4``."""
    numbers = np.arange(TIMERS, dtype=np.int64)
    return Callbacks(numbers, DUE_S * 1000 + LAG_MS, numbers % 4, numbers // 4)


def repeated(found: Callbacks, places: list[int] | Ints) -> Callbacks:
    """The records at ``places``, in that order."""
    return found.only(places)


def judged(found: Callbacks, injected_faults: list[InjectedFault] | None = None) -> Verdict:
    return verdict(found, DUE_S, [FAULT] if injected_faults is None else injected_faults)


def test_a_correct_round_counts_and_keeps_all_promises() -> None:
    found = judged(correct_callbacks())
    assert found.kept and found.counts
    assert (found.accepted, found.fired.records) == (TIMERS, TIMERS)
    assert (found.fired.lost, found.fired.duplicates, found.fired.early, found.fired.altered) == (0, 0, 0, 0)
    assert found.in_flight == (50,), "the 100 timers of the first second are on four partitions, and it holds two"
    assert (found.worst_lag_ms, found.worst_after_faults_ms, found.overdue) == (LAG_MS, LAG_MS, 0)


def test_a_lost_timer_is_found() -> None:
    found = judged(repeated(correct_callbacks(), np.delete(np.arange(TIMERS), 17)))
    assert found.fired.lost == 1
    assert not found.kept


def test_if_nothing_fired_all_timers_are_lost() -> None:
    found = judged(repeated(correct_callbacks(), []))
    assert found.fired.lost == TIMERS
    assert not found.kept and not found.counts


def test_a_timer_that_fired_twice_is_found() -> None:
    found = judged(repeated(correct_callbacks(), [*range(TIMERS), 17, 17]))
    assert found.fired.duplicates == 2
    assert not found.kept


def test_a_timer_that_fired_a_millisecond_early_is_found() -> None:
    whole = correct_callbacks()
    append_ms = whole.append_ms.copy()
    append_ms[17] = DUE_S[17] * 1000 - 1
    found = judged(replace(whole, append_ms=append_ms))
    assert found.fired.early == 1
    assert not found.kept


def test_a_record_without_a_request_is_found() -> None:
    whole = correct_callbacks()
    numbers = whole.numbers.copy()
    numbers[17] = TIMERS
    found = judged(replace(whole, numbers=numbers))
    assert (found.fired.altered, found.fired.lost) == (1, 1)
    assert not judged(replace(whole, altered=1)).kept


def test_a_timer_that_fires_too_long_after_the_last_fault_is_overdue() -> None:
    over_ms = FIRST_S * 1000 + 20_000
    last = replace(FAULT, over_ms=over_ms)
    whole = correct_callbacks()
    append_ms = whole.append_ms.copy()
    append_ms[17] = over_ms + CATCH_UP_S * 1000
    found = judged(replace(whole, append_ms=append_ms), [last])
    assert found.kept and found.worst_after_faults_ms == CATCH_UP_S * 1000
    append_ms[17] += 1
    late = replace(whole, append_ms=append_ms)
    found = judged(late, [last])
    assert found.overdue == 1 and not found.kept
    assert judged(late, [replace(last, grace_ms=1)]).kept


def test_on_a_slow_machine_timers_may_wait_longer_but_nothing_else_is_forgiven() -> None:
    assert catch_up_s(1.5) == CATCH_UP_S
    limit_s = catch_up_s(15.0)
    assert limit_s == 150
    whole = correct_callbacks()
    append_ms = whole.append_ms.copy()
    append_ms[17] = DUE_S[17] * 1000 + 150_000
    assert verdict(replace(whole, append_ms=append_ms), DUE_S, [], limit_s).kept
    append_ms[17] += 1
    assert verdict(replace(whole, append_ms=append_ms), DUE_S, [], limit_s).overdue == 1
    assert not verdict(repeated(whole, [*range(TIMERS), 17]), DUE_S, [], limit_s).kept
    assert not verdict(repeated(whole, [*range(TIMERS - 1)]), DUE_S, [], limit_s).kept


def test_a_round_does_not_count_if_the_effect_of_a_fault_was_not_seen() -> None:
    found = judged(correct_callbacks(), [FAULT, replace(FAULT, seen=False)])
    assert found.unseen == 1
    assert found.kept and not found.counts


@pytest.mark.parametrize(
    "miss",
    [
        replace(FAULT, at_ms=FIRST_S * 1000 + LAG_MS),
        replace(FAULT, at_ms=FIRST_S * 1000 - 1),
        replace(FAULT, held={}),
        replace(FAULT, held={0: 0, 2: 0}),
    ],
    ids=["all timers had fired", "no timer was due", "it held no partition", "the timers were published later"],
)
def test_a_round_does_not_count_if_a_fault_hit_no_timer_in_flight(miss: InjectedFault) -> None:
    found = judged(correct_callbacks(), [FAULT, miss])
    assert found.in_flight == (50, 0)
    assert found.missed == 1 and not found.counts
    assert judged(correct_callbacks(), [FAULT, replace(miss, delays=False)]).counts


# ---- plans -----------------------------------------------------------------------------------------------------------


def test_the_same_seed_makes_the_same_plan() -> None:
    assert plan.make(7, 4, 1000) == plan.make(7, 4, 1000)
    assert plan.make(7, 4, 1000) != plan.make(8, 4, 1000)


@pytest.mark.parametrize("seed", range(20))
def test_each_kind_of_fault_happens_once_at_a_burst_during_publishing(seed: int) -> None:
    made = plan.make(seed, 4, 1_000_000)
    assert sorted(fault.kind for fault in made.faults) == sorted(plan.KINDS)
    moments = [fault.at_s for fault in made.faults]
    assert moments == sorted(set(moments))
    assert all(moment % plan.BURST_EVERY_S == 0 for moment in moments)
    assert moments[0] > 0 and moments[-1] < made.storm_s
    assert made.clock_offsets_s[0] == 0, "one worker's clock is right"


def test_at_least_two_workers_are_left() -> None:
    with pytest.raises(ValueError, match="3 workers are too few"):
        plan.make(7, 3, 1000)
    assert plan.make(7, 3, 1000, (plan.KILL, plan.PAUSE))


# ---- ends of the consumers of queues ---------------------------------------------------------------------------------


STARTED_AT = 1000.0
NO_BROKER = "timers.errors.QueueError: no broker answers at 127.0.0.1:9: is it running?\n"


class SimProcess:
    """A process that has ended."""

    name = "consumer-1"
    started_at = STARTED_AT

    def __init__(self, code: int, log: str) -> None:
        self._code = code
        self.log = log

    def exit_code(self) -> int:
        return self._code

    def tail(self) -> str:
        return self.log


def failure(code: int, log: str = "opened\n", *, faulty: bool = False, broker_back_at: float = 0.0) -> str:
    """What is said of a consumer that ended, by a fault or by itself."""
    member = Member(cast(Any, SimProcess(code, log)), back_s=1.0 if faulty else None)
    return member.failure(broker_back_at)


@pytest.mark.parametrize("code", [0, -signal.SIGKILL])
def test_a_fault_explains_an_end(code: int) -> None:
    assert failure(code, faulty=True) == ""


@pytest.mark.parametrize("code", [0, 1, -signal.SIGKILL, -signal.SIGTERM])
def test_an_end_without_a_fault_is_a_failure(code: int) -> None:
    assert failure(code, "opened\nits last words") == f"consumer-1 ended with {code}: opened\nits last words"


def test_a_drain_that_ends_with_an_error_is_a_failure() -> None:
    assert failure(1, faulty=True).startswith("consumer-1 ended with 1")


def test_a_consumer_may_be_drained_before_it_handles_signals() -> None:
    assert failure(-signal.SIGTERM, "", faulty=True) == ""


def test_a_consumer_that_was_started_while_the_broker_was_down_may_end() -> None:
    assert failure(1, NO_BROKER, broker_back_at=STARTED_AT + 5) == ""
    assert failure(1, NO_BROKER, faulty=True, broker_back_at=STARTED_AT + 5) == ""


def test_a_consumer_that_finds_no_broker_while_one_runs_is_a_failure() -> None:
    assert failure(1, NO_BROKER, broker_back_at=STARTED_AT - 5).startswith("consumer-1 ended with 1")


def test_a_consumer_that_worked_must_outlive_the_broker() -> None:
    assert failure(1, "opened\nworking\n" + NO_BROKER, broker_back_at=STARTED_AT + 5).startswith("consumer-1 ended")


def test_a_consumer_that_ends_for_another_reason_beside_a_kill_of_the_broker_is_a_failure() -> None:
    assert failure(1, "ValueError\n", broker_back_at=STARTED_AT + 5).startswith("consumer-1 ended with 1")


# ---- ends of transactions --------------------------------------------------------------------------------------------

PRODUCER = 11
CONTROL = 0x20
"""The bit of a batch of a marker, in the second byte of its attributes, which are at offset 21."""


def batch(at_ms: int, commits: bool | None = None, producer: int = PRODUCER) -> bytes:
    """A record of a transaction, or its end."""
    builder = DefaultRecordBatchBuilder(2, 0, True, producer, 0, 0, 10_000)
    key = b"k" if commits is None else struct.pack(">hh", 0, commits)
    builder.append(0, timestamp=at_ms, key=key, value=b"v", headers=[])
    data = bytearray(builder.build())
    if commits is not None:
        data[22] |= CONTROL
    return bytes(data)


def said(directory: Path, **partitions: bytes) -> list[str]:
    """What is said about these logs, of a broker each."""
    for name, data in partitions.items():
        log = directory / "brokers" / f"broker-{name}" / "data" / f"{name}-0"
        log.mkdir(parents=True)
        (log / "00000000000000000000.log").write_bytes(data)
    return split.of_brokers(directory)


def test_a_transaction_with_two_ends_is_the_brokers_fault(tmp_path: Path) -> None:
    """A producer's next transaction begins when the one before has ended everywhere."""
    (sentence,) = said(
        tmp_path,
        a=batch(1) + batch(3, commits=True) + batch(10) + batch(30, commits=True),
        b=batch(1) + batch(4, commits=True) + batch(11) + batch(12, producer=5) + batch(40, commits=False),
        c=batch(50) + batch(51, commits=False) + batch(60),
    )
    assert sentence == "the brokers' fault: a transaction of producer 11 is committed in a-0, aborted in b-0"


def test_transactions_that_end_in_one_way_are_no_fault(tmp_path: Path) -> None:
    assert not said(
        tmp_path,
        a=batch(1) + batch(3, commits=True) + batch(10) + batch(30, commits=False) + batch(31, commits=True),
        b=batch(1) + batch(4, commits=True) + batch(11) + batch(40, commits=False) + batch(50)[:-1],
        c=batch(1, producer=5) + batch(20, commits=False, producer=5),
    )
