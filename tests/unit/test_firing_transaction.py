"""What the outbox makes of answers that one real broker does not give: no list of refused records, silence, quotas."""

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from aiokafka.errors import MessageSizeTooLargeError
from aiokafka.record.memory_records import MemoryRecords

from tests.harness.constants import Constants
from tests.harness.sim_admin import SimAdmin
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.core.limits import ChunkSize
from timers.core.ports import BatchesRefused, DeliveryFailed, Lost, Output, TooMuch, Unanswered
from timers.core.progress import Progress
from timers.core.timer import Origin, Row, Tick
from timers.kafka.aiokafka_internals.refusals import (
    INVALID_RECORD,
    INVALID_TIMESTAMP,
    RecordsRefused,
    RefusedRecord,
)
from timers.kafka.request_formats import NATIVE
from timers.kafka.topic_admin import ListedTopic
from timers.machines.firing import producer as producer_module
from timers.machines.firing import topics as targets_module
from timers.machines.firing import transaction as module
from timers.machines.firing.policy import Policy, policy_of
from timers.machines.firing.producer import Batch, TransactionalProducer
from timers.machines.firing.topics import Targets
from timers.machines.firing.transaction import MAX_REFUSALS, QUIET_WITNESS_S, Transaction
from timers.process.config.settings import Settings
from timers.process.partition_metrics import PartitionMetrics
from timers.wire import progress as progress_record
from timers.wire.formats import RequestRecord
from timers.wire.headers import TIMER_TIMESTAMP

NOW_S = 1_700_000_000


class SimProducer(TransactionalProducer):
    """A producer with one planned outcome for each transaction.

    Attributes:
        sent: topics and number of records of each transaction.
        offsets: of the group, with their metadata, of each committed transaction.
    """

    def __init__(self, settings: Settings, metrics: PartitionMetrics) -> None:
        loop: Any = None
        super().__init__(loop, settings, (settings.request_topic, 0), threading.Event(), metrics)
        self.outcomes: list[Any] = []
        self.sent: list[dict[str, int]] = []
        self.offsets: list[Any] = []
        self.left_s = 0.0

    @property
    def throttled_s(self) -> float:
        return self.left_s

    def transact(self, batches: Iterable[Batch], offsets: Any) -> bool:
        counts: dict[str, int] = {}
        for topic, _, batch in batches:
            counts[topic] = counts.get(topic, 0) + len(batch.offsets)
            batch._build()  # as aiokafka does before it sends
        self.sent.append(counts)
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if callable(outcome):
            outcome = outcome(batches)
        if outcome is not None:
            raise outcome
        self.offsets.append(list(offsets.values()))
        return bool(offsets)

    def close(self) -> None:
        self.sent.append({"closed": 1})


class Rig:
    """An outbox with the topics ``t`` and ``u``, of one partition each."""

    def __init__(self) -> None:
        settings = Settings(brokers="localhost:1")
        self.targets = Targets(settings, dict.fromkeys(settings.own_topics, 1) | {"t": 1, "u": 1})
        self.targets.usable.update(t=1, u=1)
        self.metrics = PartitionMetrics()
        self.producer = SimProducer(settings, self.metrics)
        self.compute_lock = threading.Lock()
        self.outbox = self.outbox_of(settings.request_topic, None)
        self.retry_topic = settings.retry_topic

    def outbox_of(self, topic: str, requests: Any) -> Policy:
        settings, counters = Settings(brokers="localhost:1"), self.metrics.counters
        parts: Any = (requests, self.producer, counters, ChunkSize(), self.compute_lock, lambda: NOW_S + 0.5)
        return policy_of(settings, self.targets, Transaction(settings, (topic, 0), self.targets, *parts))

    def fire(self, *targets: str, progress: Progress = Progress()) -> None:  # noqa: B008  # frozen
        rows: list[Row] = [(offset, target, "k", b"v", None, None) for offset, target in enumerate(targets)]
        self.outbox.begin(Tick(NOW_S * 1000))
        self.outbox.commit(progress, Output([(NOW_S, rows)]))

    @property
    def callbacks(self) -> list[dict[str, int]]:
        """Number of callbacks and retries in each transaction."""
        kept = ("t", "u", self.retry_topic)
        return [{topic: count for topic, count in sent.items() if topic in kept} for sent in self.producer.sent]


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> Rig:
    monkeypatch.setattr(targets_module, "asking_admin", SimAdmin)
    monkeypatch.setattr(
        targets_module, "listed", lambda *_: dict.fromkeys(["t", "u", "new"], ListedTopic(1, frozenset()))
    )
    monkeypatch.setattr(targets_module, "oldest_ms", lambda *_: {})
    constants(targets_module, ANSWER_S=DEADLINE_S)
    return Rig()


def test_a_chunk_is_told_how_much_of_the_second_has_passed(rig: Rig) -> None:
    """Also while the machine waits before the transaction: others come due when the second is over."""
    rig.compute_lock.acquire()
    # It is called when the tick was seen, so that the whole wait counts.
    rig.producer.await_quota = threading.Timer(0.1, rig.compute_lock.release).start  # type: ignore[method-assign]
    rig.outbox.begin(Tick(NOW_S * 1000 + 250))
    rig.outbox.commit(Progress(), Output([(NOW_S, [(0, "t", "k", b"v", None, None)])]))
    assert rig.outbox.chunk.since_tick_s >= 0.25 + 0.1


def test_a_timer_larger_than_the_setting_is_tried_again_if_the_retry_topic_takes_it(rig: Rig) -> None:
    """TIMERS_MAX_REQUEST_BYTES was lowered after the timer was accepted, and nobody changed the topic."""
    rig.targets._admin.topics[rig.retry_topic] = [1]  # type: ignore[attr-defined]
    rig.targets._admin.limits[rig.retry_topic] = 4_000_000  # type: ignore[attr-defined]
    transaction = rig.outbox.transaction
    transaction.begin(Tick(NOW_S * 1000))
    sizes = []
    for length in (3_000_000, 5_000_000):
        row: Row = (1, "t", "k", bytes(length), None, None)
        sizes.append(transaction.retry(row, Origin("requests/0/1", NOW_S, 1), NOW_S + 9))
    assert sizes[0] is None
    assert (sizes[1] or 0) > 5_000_000
    transaction.release_compute_lock()


def refusal(topic: str, code: int, *records: RefusedRecord) -> Any:
    """An outcome: the broker refuses the batch of ``topic``."""

    def outcome(batches: Sequence[Batch]) -> BatchesRefused:
        (batch,) = (batch for name, _, batch in batches if name == topic)
        return BatchesRefused([(batch, RecordsRefused(topic, 0, code, "the reason", records))])

    return outcome


def test_a_listed_record_goes_to_the_retry_topic_and_the_others_are_sent(rig: Rig) -> None:
    rig.producer.outcomes = [refusal("t", INVALID_RECORD, RefusedRecord(1, "no key"))]
    rig.fire("t", "t", "u", "t")
    assert rig.callbacks == [{"t": 3, "u": 1}, {"t": 2, "u": 1, rig.retry_topic: 1}]


def test_without_a_list_the_chunk_must_be_shorter_until_the_record_is_alone(rig: Rig) -> None:
    rig.producer.outcomes = [refusal("t", INVALID_RECORD)]
    with pytest.raises(TooMuch) as too_much:
        rig.fire("t", "t", "u")
    assert too_much.value.rolled_back
    rig.producer.outcomes = [refusal("t", INVALID_RECORD)]
    rig.fire("t", "u", "u")
    assert rig.callbacks[1:] == [{"t": 1, "u": 2}, {"u": 2, rig.retry_topic: 1}]
    assert not rig.targets.circuit_breaker.count


def test_a_topic_that_refuses_again_and_again_fails_and_the_others_are_sent(rig: Rig) -> None:
    rig.producer.outcomes = [refusal("t", INVALID_RECORD, RefusedRecord(0, "bad"))] * (MAX_REFUSALS + 1)
    with pytest.raises(DeliveryFailed):
        rig.fire(*["t"] * (2 * MAX_REFUSALS), "u")
    rig.fire(*["t"] * (2 * MAX_REFUSALS), "u")
    assert rig.callbacks[-1] == {"u": 1, rig.retry_topic: 2 * MAX_REFUSALS}


def test_refused_times_are_sent_again_with_new_times_and_are_no_fault_of_a_record(rig: Rig) -> None:
    rig.producer.outcomes = [refusal("t", INVALID_TIMESTAMP, RefusedRecord(0, "too old"))]
    rig.fire("t", "t")
    assert rig.callbacks == [{"t": 2}, {"t": 2}]


def test_a_schedule_whose_old_time_is_refused_is_written_back_with_the_present_time(rig: Rig) -> None:
    """Else no request of the partition could be accepted any more."""
    topic = Settings(brokers="localhost:1").id_topic
    outbox, times = rig.outbox_of(topic, None), list[int]()
    row: Row = (3, "t", "k", b"v", [(TIMER_TIMESTAMP, b"1000")], Origin("id", NOW_S + 60, 0))

    def refused(batches: Sequence[Batch]) -> BatchesRefused:
        (batch,) = (batch for name, _, batch in batches if name == topic)
        times.extend(record.timestamp for record in MemoryRecords(bytes(batch._build())).next_batch())
        return BatchesRefused([(batch, RecordsRefused(topic, 0, INVALID_TIMESTAMP, "too old", ()))])

    def taken(batches: Sequence[Batch]) -> None:
        refused(batches)

    rig.producer.outcomes = [refused, taken, refused, refused]
    outbox.begin(Tick(NOW_S * 1000))
    outbox.commit(Progress(), Output(republished=[row]))
    assert times[0] == 1000 and times[1] >= NOW_S * 1000 and len(times) == 2
    outbox.begin(Tick(NOW_S * 1000))
    with pytest.raises(DeliveryFailed) as failed:
        outbox.commit(Progress(), Output(republished=[row]))
    assert failed.value.culprits.keys() == {topic}, "it refuses all times"


def test_a_schedule_that_its_topic_takes_no_more_becomes_a_dead_letter_and_others_are_written_back(rig: Rig) -> None:
    """Its owner has lowered max.message.bytes. Else no request of the partition could be accepted any more."""
    settings = Settings(brokers="localhost:1")
    topic, letters, reader = settings.id_topic, list[tuple[Any, ...]](), SimRequests("nowhere")
    rig.targets._admin.topics[topic] = [1]  # type: ignore[attr-defined]
    outbox = rig.outbox_of(topic, reader)
    rows: list[Row] = [
        (offset, "t", "k", bytes(length), [(TIMER_TIMESTAMP, b"1000")], Origin(f"id{offset}", NOW_S + 60, 0))
        for offset, length in ((3, 5), (4, 5_000), (5, 1_500))
    ]

    def too_large(batches: Sequence[Batch]) -> DeliveryFailed:
        return DeliveryFailed({topic: MessageSizeTooLargeError()})

    def taken(batches: Sequence[Batch]) -> None:
        for name, _, sent in batches:
            if name == settings.dead_letter_topic:
                records = MemoryRecords(bytes(sent._build())).next_batch()
                letters.extend((each.value, dict(each.headers)) for each in records)

    rig.producer.outcomes = [too_large, taken, taken]
    rig.targets._admin.limits[topic] = 1_000  # type: ignore[attr-defined]
    for _ in range(2):  # the machine is opened anew, and comes to the same requests
        with suppress(DeliveryFailed):
            outbox.begin(Tick(NOW_S * 1000))
            outbox.commit(Progress(), Output(republished=rows))
    assert [sent[topic] for sent in rig.producer.sent] == [3, 1]
    assert [value for value, _ in letters] == [b"as sent"] * 2, "as published"
    codes = {headers["timer-error"] for _, headers in letters}
    assert codes == {b"message-too-large"} and b"tombstone" in letters[0][1]["timer-error-message"]
    rig.targets._admin.limits[topic] = 2_000  # type: ignore[attr-defined]
    outbox.begin(Tick(NOW_S * 1000))
    outbox.commit(Progress(), Output(republished=rows))
    assert rig.producer.sent[-1][topic] == 2, "the limit was raised"


def test_a_schedule_whose_request_has_no_leader_waits_for_it_and_is_not_put_off_to_be_fired(rig: Rig) -> None:
    settings = Settings(brokers="localhost:1")
    topic = settings.id_topic
    rig.targets._admin.topics[topic] = [1]  # type: ignore[attr-defined]
    rig.targets._admin.limits[topic] = 1_000  # type: ignore[attr-defined]
    outbox = rig.outbox_of(topic, SimRequests("/4"))
    row: Row = (4, "t", "k", bytes(5_000), [(TIMER_TIMESTAMP, b"1000")], Origin("id4", NOW_S + 60, 0))
    rig.producer.outcomes = [lambda batches: DeliveryFailed({topic: MessageSizeTooLargeError()})]
    for expected in (DeliveryFailed, Lost):
        outbox.begin(Tick(NOW_S * 1000))
        with pytest.raises(expected):
            outbox.commit(Progress(), Output(republished=[row]))
    assert all(settings.retry_topic not in sent for sent in rig.producer.sent)


def test_a_topic_that_refuses_all_times_fails_and_the_others_are_sent(rig: Rig) -> None:
    rig.producer.outcomes = [refusal("t", INVALID_TIMESTAMP)] * 2
    rig.fire("t", "t", "u")
    assert rig.callbacks == [{"t": 2, "u": 1}] * 2 + [{"u": 1, rig.retry_topic: 2}]
    problem = rig.targets.circuit_breaker.problem("t", retried=False)
    assert problem is not None and problem.code == "target-failing" and "INVALID_TIMESTAMP" in problem.reason


def test_a_topic_that_never_takes_the_times_gets_no_record(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets_module, "oldest_ms", lambda *_: {"t": 0})
    rig.producer.outcomes = [refusal("t", INVALID_TIMESTAMP)]
    rig.fire("t", "t", "u")
    assert rig.callbacks == [{"t": 2, "u": 1}, {"u": 1, rig.retry_topic: 2}]
    assert not rig.targets.circuit_breaker.count


def test_a_topic_that_is_used_first_gets_its_callbacks_in_the_same_transaction(rig: Rig) -> None:
    rig.fire("new", "t", "new")
    assert rig.producer.sent[0]["new"] == 2 and rig.callbacks == [{"t": 1}]
    fired = rig.metrics.counters.transaction.fired
    assert {topic: sum(counts.values()) for topic, counts in fired.items()} == {"new": 2, "t": 1}
    assert not rig.metrics.counters.transaction.retried


def test_timers_of_a_topic_wait_in_the_retry_topic_while_no_broker_says_whether_it_exists(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    may_answer = threading.Event()
    answer = vars(targets_module)["listed"]
    monkeypatch.setattr(targets_module, "listed", lambda *asked: may_answer.wait(DEADLINE_S) and answer(*asked))
    constants(targets_module, ANSWER_S=0.01)
    rig.fire("new", "t", "new")
    assert not rig.compute_lock.locked()
    assert rig.callbacks == [{"t": 1, rig.retry_topic: 2}]
    may_answer.set()
    wait_until(lambda: rig.targets.route("new", retried=False) == 1, "the brokers have answered")
    rig.fire("new")
    assert rig.producer.sent[1]["new"] == 1


def test_silence_opens_no_circuit_unless_few_records_were_sent(rig: Rig) -> None:
    t, retry = ("t", 0), (rig.retry_topic, 0)
    rig.producer.outcomes = [Unanswered([t]), Unanswered([t, retry]), Unanswered([t])]
    with pytest.raises(TooMuch):
        rig.fire(*["t"] * module.FEW_RECORDS, "u")
    with pytest.raises(TooMuch):
        rig.fire("t", "u")
    assert not rig.targets.circuit_breaker.count, "the engine's own topics are silent too"
    with pytest.raises(TooMuch):
        rig.fire("t", "u")
    assert "t" in rig.targets.circuit_breaker and "u" not in rig.targets.circuit_breaker


def test_no_transaction_begins_while_a_broker_throttles(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        rig.producer.left_s = max(0.0, rig.producer.left_s - seconds)

    monkeypatch.setattr(producer_module, "sleep", sleep)
    rig.fire("t")
    rig.producer.left_s = 4.25
    rig.fire("t")
    assert sum(slept) == rig.metrics.throttled_s == 4.25
    rig.producer.left_s = 5.0
    rig.producer._stop.set()
    with pytest.raises(Lost, match="told to stop"):
        rig.fire("t")


def test_chunks_shrink_if_the_brokers_throttle_for_long(rig: Rig) -> None:
    def throttle(batches: Sequence[Batch]) -> None:
        rig.producer.left_s = 60.0

    rig.producer.outcomes = [throttle]
    rig.outbox.chunk.begun = 3_000
    rig.fire("t")
    assert rig.outbox.chunk.timers == 1_500


class SimRequests:
    """A request reader for which one partition has no leader."""

    def __init__(self, leaderless: str) -> None:
        self._leaderless = leaderless

    def find(self, timers: Iterable[tuple[Row, Origin]], may_wait: Any) -> dict[str, RequestRecord | None]:
        record = RequestRecord(5, b"1", b"as sent", None, 0)
        return {origin.request: None if self._leaderless in origin.request else record for _, origin in timers}

    def request_format(self, source: str) -> Any:
        return NATIVE


def test_a_timer_whose_request_has_no_leader_is_put_off_and_another_one_becomes_a_dead_letter(rig: Rig) -> None:
    settings = Settings(brokers="localhost:1")
    reader: Any = SimRequests("timer-request/7")
    outbox = rig.outbox_of(settings.retry_topic, reader)
    denied = settings.oscillator_topic
    origins = [Origin(f"timer-request/{partition}/5", NOW_S, 0) for partition in (0, 7)]
    rows: list[Row] = [(offset, denied, "k", b"v", None, origin) for offset, origin in enumerate(origins)]
    outbox.begin(Tick(NOW_S * 1000))
    outbox.commit(Progress(), Output([(NOW_S, rows)]))
    (sent,) = rig.producer.sent
    del sent[settings.progress_topic]
    assert sent == {settings.dead_letter_topic: 1, settings.retry_topic: 1}


def test_what_the_group_does_not_know_is_committed_at_the_close(rig: Rig) -> None:
    first, fired = Progress(5), Progress(5, (NOW_S, 1))
    rig.fire("t", progress=first)
    rig.fire("t", progress=fired)
    rig.outbox.transaction.close()
    assert rig.producer.offsets == [
        [(5, progress_record.encode_witness(first, b""))],
        [],
        [(5, progress_record.encode_witness(fired, b""))],
    ]
    assert rig.producer.sent[-2:] == [{}, {"closed": 1}]


def test_the_group_is_told_in_a_transaction_without_records(rig: Rig) -> None:
    transaction = rig.outbox.transaction
    assert not transaction.has_old_witness, "it has committed nothing, so what it knows may be in no topic"
    now_s = 100.0
    transaction._clock_s = lambda: now_s
    rig.fire("t", progress=Progress(5))
    fired = Progress(5, (NOW_S, 1))
    rig.fire("t", progress=fired)
    assert not transaction.has_old_witness
    now_s += QUIET_WITNESS_S
    assert transaction.has_old_witness
    rig.outbox.begin(Tick(NOW_S * 1000))
    assert not transaction.has_old_witness, "another transaction has begun"
    rig.outbox.commit(fired)
    transaction.tell_group()
    assert rig.producer.offsets[1:] == [[], [], [(5, progress_record.encode_witness(fired, b""))]]
    assert rig.producer.sent[-1] == {}
    assert not transaction.has_old_witness
    transaction.tell_group()
    assert len(rig.producer.offsets) == 4, "it knows it"


def test_after_a_failed_transaction_nothing_is_committed_at_the_close(rig: Rig) -> None:
    rig.fire("t", progress=Progress(5))
    rig.fire("t", progress=Progress(5, (NOW_S, 1)))
    rig.producer.outcomes = [Lost("the outcome is not known")]
    with pytest.raises(Lost):
        rig.fire("t", progress=Progress(5, (NOW_S, 2)))
    rig.outbox.transaction.close()
    assert len(rig.producer.offsets) == 2 and rig.producer.sent[-1] == {"closed": 1}
