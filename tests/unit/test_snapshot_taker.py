"""The service that takes snapshots: whose turn it is, and what a failure of each step leaves behind."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from weakref import ref

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.harness.memory_store import MemoryStore
from tests.harness.sim_admin import answered
from timers.core.index import Sweeper, Swept
from timers.core.levels import FIRST_LEVEL
from timers.core.ports import Lost
from timers.core.progress import FEATURE_LEVEL, NamedSnapshot, Progress
from timers.core.snapshots import LEAST_BYTES, SNAPSHOT_CHUNK_BYTES, Place, Unreadable
from timers.core.steps import State
from timers.kafka.snapshot_log import Unwritten
from timers.machines import snapshot_taker
from timers.machines.snapshot_taker import BEHIND_S, FOOTER_S, SnapshotTaker
from timers.machines.store.failures import StoreDamaged
from timers.process.partition_metrics import PartitionMetrics

TP = ("requests", 1)
NAMED = NamedSnapshot(b"id", 7, 10, 12, 900, 3, 2, b"digest")


class SimLog:
    """The topic of snapshots: fails where it is told to."""

    has_written = False

    def __init__(self, system: SimSystem) -> None:
        self.system = system

    def __call__(
        self, settings: Any, topic: str, partition: int, check: Callable[[], None], patience_s: float
    ) -> SimLog:
        self.partition, self.patience_s, self.has_written = partition, patience_s, False
        return self

    def close(self) -> None:
        self.system.did.append("close")

    def has_footer(self, named: NamedSnapshot) -> bool:
        if self.partition in self.system.silent:
            self.system.now_s += self.patience_s
            raise Lost(f"it cannot be read for {self.patience_s:.0f} s")
        return named.number not in self.system.lost

    def prepare(self, topic: str) -> list[str]:
        return self.system.doubts

    def write(self, view: Any, footer: Callable[[int, bytes], Any], bytes_per_s: float) -> NamedSnapshot:
        self.system.now_s += self.system.write_s
        self.has_written = self.system.takes_records
        if self.system.falls_silent:
            self.system.silent.add(self.partition)
        if self.system.error is not None:
            self.system.did.append("gave up")
            raise self.system.error
        end = footer(3, b"digest")
        self.system.did.append(f"write {end.applied}")
        return NAMED._replace(number=8, applied=end.applied, first_offset=20, topic_id=self.system.written_id)

    def written_ms(self, named: NamedSnapshot) -> int:
        return 1000 * named.number

    def unnamed_bytes(self, named: list[NamedSnapshot]) -> int:
        return self.system.unnamed_bytes

    def delete_before(self, offset: int) -> None:
        if self.partition in self.system.silent:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        self.system.did.append(f"delete before {offset}")


class SimMachine:
    """A machine that commits what it is asked to."""

    def __init__(self, progress: Progress) -> None:
        self.progress = self.committed = progress
        self.state = State.ACCEPTING
        self.position, self.pending = progress.next_offset, 2
        self.sweeper = Sweeper(MemoryStore())

    def commit_change(self, change: Callable[[Progress], Progress]) -> bool:
        self.progress = self.committed = change(self.progress)
        return True


class SimRunner:
    name = "requests/1"
    record_bytes = 256.0

    def __init__(self, progress: Progress) -> None:
        self.machine = SimMachine(progress)
        self.store = MemoryStore()
        self.store.applied = progress.next_offset

    def view(self) -> Any:
        return self.store.view()

    def ask(self, question: Callable[[Any], Any]) -> Future[Any]:
        return answered(question(self.machine))


class SimSystem:
    """A pool with one machine."""

    def __init__(self, progress: Progress) -> None:
        self.did: list[str] = []
        self.lost: set[int] = set()
        self.silent: set[int] = set()
        self.now_s, self.write_s = 100_000.0, 0.0
        self.takes_records, self.falls_silent, self.unnamed_bytes = True, False, 0
        self.doubts: list[str] = []
        self.error: Exception | None = None
        self.failed: list[Exception] = []
        self.same_log = True
        self.topic_ids = {"app-snapshot-requests": NAMED.topic_id}
        self.written_id = NAMED.topic_id
        self.runner = SimRunner(progress)
        self.metrics = PartitionMetrics()
        self.runners = {TP: self.runner}
        self.partition_metrics = {TP: self.metrics}
        settings: Any = SimpleNamespace(
            app_id="app", snapshot_factor=2, snapshot_records=1000, snapshot_mb_per_s=1, trimmed_topics=frozenset()
        )
        self.ask_log = self
        self.parts = self
        self.formats = {TP[0]: SimpleNamespace(topic_is_compacted=False)}
        pool: Any = self
        self.taker = SnapshotTaker(settings, pool, lambda: 8.0, self.fail)

    def place_of(self, tp: tuple[str, int]) -> Place:
        return Place("cluster", "app", b"topic id", tp[1], "future")

    def has_same_log(self, tp: tuple[str, int], machine: SimMachine) -> bool:
        return self.same_log

    def fail(self, tp: tuple[str, int], error: Exception) -> None:
        self.failed.append(error)

    @property
    def named(self) -> tuple[int | None, int | None]:
        progress = self.runner.machine.committed
        return (
            progress.snapshot and progress.snapshot.number,
            progress.older_snapshot and progress.older_snapshot.number,
        )

    def look(self) -> None:
        self.taker.look()


def progress_at(next_offset: int, named: NamedSnapshot | None = NAMED) -> Progress:
    progress = Progress(next_offset, snapshot=named, older_snapshot=named and named._replace(number=6, first_offset=0))
    return progress.with_setting(FEATURE_LEVEL, FIRST_LEVEL)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SimSystem]:
    def make(progress: Progress, **given: Any) -> SimSystem:
        monkeypatch.setattr(snapshot_taker, "asking_admin", lambda _: None)
        system = SimSystem(progress, **given)
        monkeypatch.setattr(snapshot_taker, "SnapshotLog", SimLog(system))
        monkeypatch.setattr(snapshot_taker, "ids_of", lambda *_: system.topic_ids)
        monkeypatch.setattr(snapshot_taker, "monotonic", lambda: system.now_s)
        return system

    return make


def test_a_log_that_has_grown_gets_a_snapshot_and_older_ones_are_deleted(made: Callable[..., SimSystem]) -> None:
    system = made(progress_at(2000))
    system.look()
    assert system.named == (8, 7)
    assert system.did == ["write 2000", "delete before 10", "close"]
    assert (system.metrics.snapshots, system.metrics.snapshots_failed, system.metrics.snapshot_ms) == (1, 0, 8000)
    system.look()
    assert system.did.count("close") == 1, "nothing has come since"


@pytest.mark.parametrize("ids", [{}, {"app-snapshot-requests": b"another id"}])
def test_snapshots_whose_topic_was_deleted_are_written_again_at_once(
    made: Callable[..., SimSystem], ids: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """Else they would be missed when they are looked at again, ten minutes later."""
    system = made(progress_at(1000))
    system.look()
    assert (system.named, system.taker.lost) == ((7, 6), {})
    system.topic_ids, system.lost = ids, {6, 7}
    system.look()
    assert system.named[0] == 8 and [*system.taker.lost] == [TP]
    assert "the snapshots of requests/1 are lost, because topic 'app-snapshot-requests' was deleted" in caplog.text
    newest = system.runner.machine.progress.snapshot
    assert newest is not None
    system.topic_ids = {"app-snapshot-requests": newest.topic_id}
    system.look()
    assert system.taker.lost == {}


def test_the_first_snapshot_in_a_new_topic_is_not_deleted_below_a_former_offset(made: Callable[..., SimSystem]) -> None:
    progress = progress_at(2000)
    assert progress.older_snapshot is not None
    system = made(replace(progress, older_snapshot=progress.older_snapshot._replace(first_offset=3)))
    system.lost, system.written_id = {6, 7}, b"id of the new topic"
    system.look()
    assert system.named == (8, 6) and system.did == ["write 2000", "close"]


def test_a_snapshot_of_ids_that_were_forgotten_since_is_replaced_once(made: Callable[..., SimSystem]) -> None:
    records = 2 * LEAST_BYTES // SNAPSHOT_CHUNK_BYTES
    large = NAMED._replace(end_offset=NAMED.first_offset + records, keys=1000, rows=2)
    system = made(progress_at(1000, large))
    system.look()
    assert "write 1000" not in system.did
    system.runner.machine.sweeper.swept = Swept(forgotten=990, snapshot=large.number)
    system.look()
    assert "write 1000" in system.did and system.named == (8, 7)
    system.runner.machine.progress = system.runner.machine.committed = progress_at(1000, large._replace(number=8))
    system.did.clear()
    system.look()
    assert "write 1000" not in system.did, "none was forgotten since that one"


def test_ids_that_are_forgotten_while_a_snapshot_is_written_count_for_it(made: Callable[..., SimSystem]) -> None:
    system = made(progress_at(2000))
    sweeper = system.runner.machine.sweeper
    sweeper.swept = Swept(forgotten=3, snapshot=NAMED.number)

    def has_same_log(tp: tuple[str, int], machine: SimMachine) -> bool:
        sweeper.swept = sweeper.swept._replace(forgotten=8)  # all of it is written, and it is not named yet
        return True

    system.has_same_log = has_same_log  # type: ignore[method-assign]
    system.look()
    assert system.named == (8, 7)
    assert sweeper.swept.forgotten_since(system.runner.machine.committed.snapshot) == 5


def test_a_machine_that_recovers_waits(made: Callable[..., SimSystem]) -> None:
    system = made(progress_at(2000))
    system.runner.machine.state = State.RECOVERING
    system.look()
    assert system.did == []


def test_a_topic_with_a_wrong_configuration_keeps_older_snapshots(
    made: Callable[..., SimSystem], caplog: pytest.LogCaptureFixture
) -> None:
    system = made(progress_at(2000))
    system.doubts = ["its retention.ms is 7 days"]
    system.look()
    assert system.named == (8, 7)
    assert system.did == ["write 2000", "close"]
    assert "its retention.ms is 7 days" in caplog.text


def test_a_failed_snapshot_is_one_sentence(made: Callable[..., SimSystem], caplog: pytest.LogCaptureFixture) -> None:
    system = made(progress_at(2000))
    system.error = Unwritten("the topic of snapshots does not exist")
    system.look()
    system.look()
    assert system.named == (7, 6)
    assert system.metrics.snapshots_failed == 1, "the next attempt comes later"
    assert caplog.text.count("requests/1: no snapshot was taken: the topic of snapshots does not exist") == 1


def test_one_machine_whose_snapshots_are_silent_keeps_no_other_one_waiting(made: Callable[..., SimSystem]) -> None:
    system, other = made(progress_at(2000)), SimRunner(progress_at(2000))
    system.runners["requests", 2] = other
    system.partition_metrics["requests", 2] = PartitionMetrics()
    system.silent, began_s = {1}, system.now_s
    system.look()
    assert system.now_s - began_s < 60
    assert other.machine.committed.snapshot is not None and other.machine.committed.snapshot.number == 8
    assert (system.metrics.snapshots_failed, system.named) == (1, (7, 6))
    system.now_s += 5
    before_s = system.now_s
    system.look()
    assert system.now_s == before_s, "it waits for its next turn"
    system.silent = set()
    system.now_s += 60
    system.look()
    assert system.named == (8, 7)


@pytest.mark.parametrize("newest", [NAMED, None])
def test_a_topic_that_falls_silent_while_a_snapshot_is_written_takes_nothing_from_it(
    made: Callable[..., SimSystem], newest: NamedSnapshot | None, caplog: pytest.LogCaptureFixture
) -> None:
    """All of it is there. Whether the former newest one is, nobody knows: the one before that one stays."""
    older = newest and newest._replace(number=6, first_offset=3)
    system = made(replace(progress_at(2000, newest), older_snapshot=older))
    system.falls_silent = True
    system.taker.wanted.add(TP)
    system.look()
    assert system.named == ((8, 6) if newest else (8, None))
    assert (system.metrics.snapshots, system.metrics.snapshots_failed, system.taker.wanted) == (1, 0, set())
    assert "no snapshot was taken" not in caplog.text
    assert ("former snapshots are deleted later" in caplog.text) == (newest is not None)


def test_a_machine_that_is_closed_while_its_topic_is_silent_names_nothing(made: Callable[..., SimSystem]) -> None:
    system = made(progress_at(2000))
    system.falls_silent = True

    def has_same_log(tp: tuple[str, int], machine: SimMachine) -> bool:
        system.taker.should_stop = True
        return True

    system.has_same_log = has_same_log  # type: ignore[method-assign]
    system.look()
    assert (system.named, system.metrics.snapshots) == ((7, 6), 0)


def test_looks_that_fail_put_no_snapshot_off(made: Callable[..., SimSystem]) -> None:
    """Nothing is written in vain by them."""
    system = made(progress_at(950))
    system.silent = {1}
    for _ in range(3 * 720):
        system.look()
        system.now_s += 5
    assert system.metrics.snapshots_failed >= 8
    system.silent = set()
    while "close" not in system.did or system.metrics.snapshot_ms is None:
        system.look()
        system.now_s += 5
    system.runner.machine.progress = system.runner.machine.committed = progress_at(2000)
    began_s = system.now_s
    while system.named != (8, 7):
        system.look()
        system.now_s += 5
    assert system.now_s - began_s <= 60


@pytest.mark.parametrize("takes_records", [True, False])
def test_an_outage_puts_a_snapshot_that_is_due_off_for_an_hour_only_if_records_were_written(
    made: Callable[..., SimSystem], takes_records: bool
) -> None:
    system = made(progress_at(2000, None))
    system.error, system.takes_records = Unwritten("not allowed"), takes_records
    for _ in range(6 * 720):
        system.look()
        system.now_s += 5
    assert system.named == (None, None)
    assert (system.metrics.snapshots_failed < 12) is takes_records
    system.error, began_s = None, system.now_s
    while system.named[0] is None:
        system.look()
        system.now_s += 5
    assert system.now_s - began_s <= (3610 if takes_records else 610)


def test_what_was_given_up_counts_as_if_the_log_had_grown(made: Callable[..., SimSystem]) -> None:
    """Also that of other owners. Only what is named next lets brokers delete it."""
    system = made(progress_at(950))
    system.unnamed_bytes = LEAST_BYTES + 1
    system.look()
    assert system.did == ["close"]
    system.look()
    assert system.named == (8, 7)
    system.look()
    assert system.did.count("write 950") == 1, "it is counted anew when they are looked at next"


@pytest.mark.parametrize("is_opened_again", [False, True])
def test_what_is_written_in_vain_is_bounded(made: Callable[..., SimSystem], is_opened_again: bool) -> None:
    """It stays on the disks of the brokers until a snapshot is named."""
    system = made(progress_at(2000))
    system.error, system.write_s = Unwritten("no acknowledgement"), 70.0
    attempts, began_s = list[float](), system.now_s
    while system.now_s < began_s + 6 * 3600:
        system.did.clear()
        system.look()
        attempts += [system.now_s] * system.did.count("gave up")
        system.now_s += 5
        if is_opened_again:
            system.runners[TP] = system.runner = SimRunner(progress_at(2000))
    pauses = [after - before - system.write_s for before, after in pairwise(attempts)]
    assert pauses == sorted(pauses) and 60 <= pauses[0] < 70 and 3600 <= pauses[-1] < 3610
    system.error = None
    system.taker.wanted.add(TP)
    system.now_s += 60
    system.look()
    assert system.named == (8, 7), "an operator need not wait for an hour"


def test_a_lost_snapshot_is_written_within_minutes_however_many_fail(made: Callable[..., SimSystem]) -> None:
    system = made(progress_at(950))
    system.lost, system.error = {7}, Unwritten("no acknowledgement")
    for _ in range(3 * 720):
        system.look()
        system.now_s += 5
    assert system.metrics.snapshots_failed > 10
    system.error = None
    for _ in range(130):
        system.look()
        system.now_s += 5
    assert system.named == (8, 6)


def test_a_snapshot_whose_broker_was_ahead_is_replaced_by_its_age_here(made: Callable[..., SimSystem]) -> None:
    """Else an app that is idle is not trimmed until that time has come."""
    system = made(progress_at(1000))
    settings: Any = system.taker._settings
    settings.trimmed_topics, settings.log_keep_s = {TP[0]}, 200
    system.taker._now_s, system.metrics.snapshot_ms = lambda: 1000.0, 10_000_000
    system.taker._trimmer = SimpleNamespace(keep=len, is_due=lambda *_: False)  # type: ignore[assignment]
    for _ in range(30):  # SimLog says that the new one is old: 8 s
        system.look()
        system.metrics.snapshot_ms = 10_000_000
        system.now_s += 5
    assert system.did.count("write 1000") == 1, "after 100 s, and then not in each look"


def test_a_machine_that_has_gone_is_not_kept_with_what_it_had_to_read(made: Callable[..., SimSystem]) -> None:
    system = made(progress_at(2000))
    system.look()
    runner: Any = system.runner
    system.taker._trimmer.is_due(TP, runner)
    gone = ref(runner)
    del runner, system.runners[TP]
    system.runner = None  # type: ignore[assignment]
    system.look()
    gc.collect()
    assert gone() is None


def test_a_damaged_store_opens_its_machine_again(made: Callable[..., SimSystem]) -> None:
    system = made(progress_at(2000))
    system.error = StoreDamaged("a block cannot be read", 0)
    system.look()
    assert system.failed == [system.error]
    assert system.named == (7, 6)


def test_a_partition_that_was_closed_meanwhile_names_nothing(made: Callable[..., SimSystem]) -> None:
    system = made(progress_at(2000))
    system.error = Lost("the partition was closed meanwhile")
    system.look()
    assert system.named == (7, 6)
    assert system.failed == []


def test_a_lost_snapshot_is_replaced_and_does_not_become_the_older_one(
    made: Callable[..., SimSystem], monkeypatch: pytest.MonkeyPatch
) -> None:
    system = made(progress_at(950))
    system.look()
    assert system.did == ["close"], "it is not due, and whole"
    system.lost.add(7)
    system.look()
    assert system.did == ["close"], "it was looked at just now"
    seen = system.taker._seen[TP]
    system.taker._seen[TP] = seen._replace(checked_at=seen.checked_at - FOOTER_S)
    system.look()
    assert system.named == (8, 6)


def test_a_machine_gets_one_that_is_wanted_although_none_is_due(made: Callable[..., SimSystem]) -> None:
    system = made(progress_at(950))
    system.taker.wanted.add(TP)
    system.error = Unwritten("the topic cannot be written")
    system.look()
    assert system.named == (7, 6) and system.taker.wanted == {TP}, "it is tried again"
    system.error = None
    system.taker._seen[TP] = system.taker._seen[TP]._replace(tried_at=0)
    for _ in range(2):
        system.look()
    assert system.named == (8, 7)
    assert system.did.count("write 950") == 1


def test_a_machine_that_has_moved_to_another_worker_is_no_longer_wanted(made: Callable[..., SimSystem]) -> None:
    system = made(progress_at(950))
    system.taker.wanted.add((TP[0], TP[1] + 1))
    system.look()
    assert system.taker.wanted == set()


def test_a_machine_that_is_opened_again_and_again_is_not_looked_at_each_time(made: Callable[..., SimSystem]) -> None:
    system = made(progress_at(950))
    for _ in range(3):
        system.look()
        system.runners[TP] = system.runner = SimRunner(progress_at(950))
    assert system.did == ["close"]
    assert system.metrics.snapshots == 0


def test_the_first_snapshot_has_none_before_it(made: Callable[..., SimSystem]) -> None:
    system = made(replace(progress_at(2000, None)))
    system.look()
    assert system.named == (8, None)
    assert system.did == ["write 2000", "close"]


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (Unwritten("the topic of snapshots cannot be looked at"), "the topic of snapshots cannot be looked at"),
        (Lost("the partition was closed meanwhile"), "the partition was closed meanwhile"),
        (TimeoutError(), "the machine did not answer"),
        (KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer")), "no answer"),
        (StoreDamaged("a file is damaged", 0), "a file is damaged"),
    ],
)
def test_a_log_that_cannot_be_trimmed_is_one_sentence_and_stops_nothing(
    made: Callable[..., SimSystem], caplog: pytest.LogCaptureFixture, error: Exception, sentence: str
) -> None:
    system = made(progress_at(0))
    trimmer: Any = SimpleNamespace(keep=len, is_due=lambda *_: True, trim=Mock(side_effect=error))
    system.taker._trimmer = trimmer
    system.look()
    assert sentence in caplog.text
    assert system.failed == []


def test_a_snapshot_that_the_trimmer_misses_is_replaced_at_once(made: Callable[..., SimSystem]) -> None:
    system = made(progress_at(0))
    system.look()
    system.lost = {7}
    system.taker._trimmer = SimpleNamespace(keep=len, is_due=lambda *_: True, trim=Mock(side_effect=Unreadable("lost")))  # type: ignore[assignment]
    system.look()
    assert "write 0" not in system.did
    system.look()
    assert "write 0" in system.did


def test_others_get_theirs_during_a_comparison(made: Callable[..., SimSystem], monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison may take minutes. Its own machine gets none: the log is compared with those that it has."""
    system = made(progress_at(0))
    other, other_tp = SimRunner(progress_at(0)), ("requests", 2)
    system.runners[other_tp], system.partition_metrics[other_tp] = other, PartitionMetrics()

    def trim(tp: Any, log: Any, record_bytes: float, check: Callable[[], None]) -> None:
        check()
        assert "write 2000" not in system.did, "they were looked at just now"
        monkeypatch.setattr(snapshot_taker, "SNAPSHOT_LOOK_S", -1.0)
        check()
        assert system.did.count("write 2000") == 1
        assert other.machine.committed.snapshot == NAMED._replace(number=8, applied=2000, first_offset=20)
        assert system.named == (7, 6)

    def is_due(tp: Any, runner: Any) -> bool:
        for each in (system.runner, other):
            each.machine.progress = each.machine.committed = progress_at(2000)
            each.store.applied = 2000
        return tp == TP  # type: ignore[no-any-return]

    compare = Mock(side_effect=trim)
    system.taker._trimmer = SimpleNamespace(keep=len, is_due=is_due, trim=compare)  # type: ignore[assignment]
    system.look()
    assert compare.call_count == 1
    assert "write 2000" in system.did


@pytest.mark.parametrize("ends", ["the worker", "the partition", "the machine"])
def test_it_ends_with_its_machine(made: Callable[..., SimSystem], caplog: pytest.LogCaptureFixture, ends: str) -> None:
    system = made(progress_at(0))

    def trim(tp: Any, log: Any, record_bytes: float, check: Callable[[], None]) -> None:
        check()
        if ends == "the worker":
            system.taker.should_stop = True
        elif ends == "the partition":
            del system.runners[TP]
        else:
            system.runners[TP] = SimRunner(progress_at(0))
        check()
        raise AssertionError("it goes on")

    system.taker._trimmer = SimpleNamespace(keep=len, is_due=lambda *_: True, trim=trim)  # type: ignore[assignment]
    system.look()
    assert "the partition was closed meanwhile" in caplog.text


def test_overdue_timers_of_any_machine_let_a_comparison_wait(made: Callable[..., SimSystem]) -> None:
    system = made(progress_at(0))
    system.taker._now_s = lambda: 1000.0
    for due_s, is_behind in ((None, False), (1000 - BEHIND_S, False), (999 - BEHIND_S, True)):
        system.metrics.oldest_due_s = due_s
        assert system.taker._trimmer._is_behind() is is_behind
    system.runners.clear()
    assert not system.taker._trimmer._is_behind(), "another worker has it"
