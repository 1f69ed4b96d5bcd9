"""The deletion of requests that nothing needs: what stands against it, and what a failure leaves behind."""

import logging
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from timers.core.progress import LOG_TRIMMED, NamedSnapshot, Progress
from timers.core.snapshots import SNAPSHOT_CHUNK_BYTES, Unreadable
from timers.kafka.topics import Cluster
from timers.machines import log_trimmer
from timers.machines.log_trimmer import (
    AGAIN_S,
    DELETE_WITHIN_S,
    LONGEST_PAUSE_S,
    MOST_UNREAD,
    READERS_S,
    ROLL_QUIET_S,
    STEP_S,
    Trimmer,
)
from timers.machines.verifying import Verified
from timers.process.partition_metrics import PartitionMetrics

TP = ("requests", 1)
SNAPSHOT_TOPIC = "app-snapshot-requests"
NAMED = NamedSnapshot(b"snapshot id", 7, 10, 12, 900, 3, 2, b"digest")


NOW_S = 5000
"""The time of the brokers."""


class SimBrokers:
    """The log and the snapshots of one partition."""

    def __init__(self) -> None:
        self.start, self.end, self.kept_from, self.to_come = 0, 1000, None, None
        self.deleted: list[tuple[dict[Any, int], float]] = []
        self.others: list[str] = []
        self.ids = {"requests": b"topic id", SNAPSHOT_TOPIC: b"snapshot id"}
        self.wrong: list[str] = []
        self.lost: set[int] = set()
        self.refusal: int | None = None
        self.passes_s = 0.0
        self.now_s = 0.0
        self.rolled = self.asked_since = 0
        self.read_by_history: dict[int, int] = {}

    # as LogTrimmer

    def ends(self, tp: Any) -> tuple[int, int]:
        return self.start, self.end

    def first_since(self, tp: Any, append_ms: int) -> int | None:
        if append_ms > 1000 * NOW_S:
            return self.to_come
        self.asked_since = append_ms
        return self.kept_from

    def topic_ids(self, names: Any) -> dict[str, bytes]:
        self.now_s += self.passes_s
        return self.ids

    def delete_below(self, bounds: Mapping[Any, int], timeout_s: float) -> None:
        if self.refusal is not None:
            raise KafkaException(KafkaError(self.refusal))
        self.deleted.append((dict(bounds), timeout_s))
        self.start = max(self.start, bounds[TP])

    def other_readers(self, topic: str, partitions: int, check: Any) -> list[str]:
        return self.others

    def segment_s(self, topic: str) -> float:
        return 60.0

    def roll(self, tp: Any) -> None:
        self.rolled += 1
        self.end += 2

    # as SnapshotLog

    def prepare(self, topic: str) -> list[str]:
        return self.wrong

    def has_footer(self, named: NamedSnapshot) -> bool:
        return named.number not in self.lost


class SimMachine:
    def __init__(self, progress: Progress) -> None:
        self.progress = self.committed = progress
        self.commits = 0
        self.may_commit = True

    def commit_change(self, change: Callable[[Progress], Progress]) -> bool:
        self.commits += self.may_commit
        if self.may_commit:
            self.progress = self.committed = change(self.progress)
        return self.may_commit


class Trial:
    """A trimmer of one machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **given: Any) -> None:
        self.brokers = SimBrokers()
        progress = Progress(1000, snapshot=NAMED, older_snapshot=NAMED._replace(number=6, first_offset=4, applied=700))
        self.machine = SimMachine(progress.with_setting(LOG_TRIMMED, 1) if given.get("trims", True) else progress)
        self.has_same_log = True
        self.runner: Any = SimpleNamespace(name="requests/1", machine=self.machine)
        self.metrics = PartitionMetrics()
        settings: Any = SimpleNamespace(
            app_id="app",
            log_keep_s=given.get("keep_s", 0),
            trimmed_topics=given.get("topics", frozenset({"requests"})),
            data_dir=tmp_path,
            worker_id="worker",
        )
        pool: Any = SimpleNamespace(
            partition_metrics={TP: self.metrics},
            parts=SimpleNamespace(
                formats={
                    TP[0]: SimpleNamespace(
                        topic_is_compacted=given.get("compacted", False), has_ids=given.get("has_ids", True)
                    )
                },
                cluster=Cluster("cluster", {TP[0]: b"topic id"}, {TP[0]: 2}),
                ask_log=SimpleNamespace(has_same_log=lambda tp, machine: self.has_same_log),
            ),
        )
        self.verified: Any = Verified(700, 900, 2, (), 0)
        self.clients = 0
        monkeypatch.setattr(log_trimmer, "LogTrimmer", self._client)
        self.comparisons = 0
        monkeypatch.setattr(log_trimmer, "verify", self._verify)
        self.now_s = 0.0
        monkeypatch.setattr(log_trimmer, "monotonic", lambda: self.now_s)
        self.is_behind = False
        self.trimmer = Trimmer(
            settings,
            pool,
            lambda: float(NOW_S),
            lambda runner, question: question(self.machine),
            lambda: self.is_behind,
        )
        self.trimmer._clock = SimpleNamespace(boot_s=lambda: self.brokers.now_s)  # type: ignore[assignment]

    def _client(self, settings: Any) -> SimBrokers:
        self.clients += 1
        return self.brokers

    def _verify(self, *_: Any) -> Verified:
        self.comparisons += 1
        verified: Verified = self.verified
        return verified

    def trim(self) -> int:
        """Returns how often something was deleted."""
        log: Any = self.brokers
        if self.trimmer.is_due(TP, self.runner):
            self.trimmer.trim(TP, log, 100.0, lambda: None)
        return len(self.brokers.deleted)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Trial]:
    return lambda **given: Trial(monkeypatch, tmp_path, **given)


def test_what_neither_snapshot_needs_is_deleted_after_a_commit(made: Callable[..., Trial]) -> None:
    trial = made()
    assert trial.trim() == 1
    (bounds, timeout_s) = trial.brokers.deleted[0]
    assert bounds == {TP: 700, (SNAPSHOT_TOPIC, 1): 4}
    assert timeout_s == DELETE_WITHIN_S
    assert trial.machine.commits == 1
    assert (trial.metrics.log_start, trial.metrics.trimmed_bytes, trial.metrics.trim_refused) == (700, 70_000, False)


def test_what_is_not_old_enough_is_kept(made: Callable[..., Trial]) -> None:
    trial = made(keep_s=600)
    trial.brokers.kept_from = 300  # type: ignore[assignment]
    assert trial.trim() == 1
    assert trial.brokers.asked_since == 1000 * (5000 - 600)
    assert trial.brokers.start == 300
    assert not trial.trimmer.is_due(TP, trial.runner), "it is not asked all the time"
    trial.now_s += 60
    assert trial.trimmer.is_due(TP, trial.runner)


def test_what_the_history_has_not_read_is_kept(made: Callable[..., Trial]) -> None:
    trial = made()
    trial.brokers.read_by_history = {1: 300, 0: 5}
    assert (trial.trim(), trial.brokers.start) == (1, 300)
    trial.now_s += 2 * READERS_S
    assert (trial.trim(), trial.metrics.trim_refused) == (1, True), "it stands still"
    trial.brokers.read_by_history = {1: 5000}
    trial.now_s += 2 * READERS_S + AGAIN_S
    assert (trial.trim(), trial.brokers.start, trial.metrics.trim_refused) == (2, 700, False)


@pytest.mark.parametrize(
    "given", [{"topics": frozenset()}, {"compacted": True}], ids=["a user's topic", "a compacted topic"]
)
def test_some_topics_are_not_trimmed(made: Callable[..., Trial], given: dict[str, Any]) -> None:
    assert made(**given).trim() == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"wrong": ["its retention.ms is 7 days"]}, "its retention.ms is 7 days"),
        ({"others": ["group 'billing'"]}, "group 'billing' may read it too"),
        ({"ids": {"requests": b"another id", SNAPSHOT_TOPIC: b"snapshot id"}}, "was made anew"),
        ({"ids": {"requests": b"topic id"}}, "was made anew"),
        ({"refusal": KafkaError.TOPIC_AUTHORIZATION_FAILED}, "give it the right Delete on 'requests'"),
        ({"passes_s": 2.5}, "more than 2 s passed"),
    ],
)
def test_what_stands_against_it_is_one_sentence_and_nothing_is_deleted(
    made: Callable[..., Trial], change: dict[str, Any], sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    trial = made()
    vars(trial.brokers).update(change)
    for _ in range(2):
        assert trial.trim() == 0
        trial.now_s += AGAIN_S
    assert caplog.text.count(sentence) == 1
    assert trial.metrics.trim_refused
    trial.brokers = None  # type: ignore[assignment]


def test_what_stands_against_it_anew_is_said_anew(made: Callable[..., Trial], caplog: pytest.LogCaptureFixture) -> None:
    trial = made()
    for wrong in (["its retention.ms is 7 days"], [], ["its retention.ms is 7 days"]):
        trial.brokers.wrong, trial.brokers.start = wrong, 0
        if TP in trial.trimmer._known:
            trial.trimmer._known[TP].deleted_to = 0
        trial.trim()
        trial.now_s += AGAIN_S
    assert trial.brokers.deleted, "it was over"
    assert caplog.text.count("its retention.ms is 7 days") == 2


def test_each_partition_says_what_is_against_it(made: Callable[..., Trial], caplog: pytest.LogCaptureFixture) -> None:
    trial = made()
    trial.brokers.wrong = ["its retention.ms is 7 days"]
    trial.trim()
    trial.runner = SimpleNamespace(name="requests/2", machine=trial.machine, is_verified=False)
    trial.now_s += AGAIN_S
    trial.trim()
    assert [f"requests/{partition}: its log is not trimmed" in caplog.text for partition in (1, 2)] == [True, True]


def test_a_client_that_failed_is_not_used_again(made: Callable[..., Trial]) -> None:
    """An admin client may keep a former epoch of a leader for 15 minutes, and is refused for so long."""
    trial = made()
    trial.brokers.refusal = KafkaError.FENCED_LEADER_EPOCH
    with pytest.raises(KafkaException):
        trial.trim()
    trial.brokers.refusal = None
    trial.now_s += AGAIN_S
    assert (trial.trim(), trial.clients) == (1, 2)
    trial.now_s += AGAIN_S
    trial.brokers.start = 600
    trial.trimmer._known[TP].deleted_to = 0
    assert (trial.trim(), trial.clients) == (2, 2)


def test_a_log_that_has_lost_its_end_is_kept(made: Callable[..., Trial], caplog: pytest.LogCaptureFixture) -> None:
    """What was appended in the place of lost records is below the bound, and was not read."""
    trial = made()
    trial.has_same_log = False
    assert trial.trim() == 0
    assert "it has lost its end" in caplog.text


def test_a_lost_snapshot_is_replaced_first(made: Callable[..., Trial]) -> None:
    trial = made()
    trial.brokers.lost = {6}
    with pytest.raises(Unreadable):
        trial.trim()
    assert trial.brokers.deleted == []


def test_a_deletion_that_was_late_begins_again_from_a_commit(made: Callable[..., Trial]) -> None:
    trial = made()
    times = iter([3.0, 0.5])
    brokers: Any = trial.brokers
    asked = brokers.topic_ids

    def topic_ids(names: Any) -> Any:
        brokers.passes_s = next(times)
        return asked(names)

    brokers.topic_ids = topic_ids
    assert trial.trim() == 1
    assert trial.machine.commits == 2
    assert brokers.deleted[0][1] == 1.5


def test_a_machine_that_cannot_commit_deletes_nothing(made: Callable[..., Trial]) -> None:
    trial = made()
    trial.machine.may_commit = False
    assert trial.trim() == 0


def test_before_the_first_deletion_the_machine_notes_the_comparison(made: Callable[..., Trial]) -> None:
    trial = made(trims=False)
    trial.machine.may_commit = False
    assert trial.trim() == 0
    assert not trial.machine.progress.settings.trims
    trial.machine.may_commit = True
    trial.now_s += AGAIN_S
    assert trial.trim() == 0
    assert trial.machine.progress.settings.trims
    trial.now_s += AGAIN_S
    assert trial.trim() == 1
    assert trial.comparisons == 1


def test_a_comparison_waits_for_busy_machines(made: Callable[..., Trial], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    trial = made(trims=False)

    def is_compared() -> bool:
        trial.now_s += AGAIN_S
        trial.trim()
        return trial.comparisons > 0

    trial.is_behind = True
    assert not is_compared(), "timers are overdue"
    trial.is_behind, trial.brokers.end = False, 1001 + MOST_UNREAD
    assert not is_compared(), "it has much to read"
    assert caplog.text.count(f"{trial.runner.name}: its log is not trimmed: a first deletion waits while") == 1
    assert not trial.metrics.trim_refused, "nobody must act"
    trial.brokers.end -= 1
    assert is_compared()


def test_a_machine_that_is_behind_is_trimmed_if_its_log_was_compared(made: Callable[..., Trial]) -> None:
    trial = made()
    trial.is_behind, trial.brokers.end = True, 10 * MOST_UNREAD
    assert trial.trim() == 1


def test_a_comparison_works_in_short_steps_and_pauses_for_longer_while_timers_are_overdue(
    made: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    trial, pauses, checks = made(), list[float](), list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(round(seconds, 3))
        trial.now_s += seconds

    monkeypatch.setattr(log_trimmer, "sleep", sleep)
    paced = trial.trimmer._paced(lambda: checks.append(trial.now_s))
    for took_s in (STEP_S / 2, STEP_S, 2 * LONGEST_PAUSE_S):
        trial.now_s += took_s
        paced()
    assert pauses == [1.5 * STEP_S, LONGEST_PAUSE_S]
    trial.is_behind = True
    trial.now_s += STEP_S
    paced()
    assert pauses[-1] == LONGEST_PAUSE_S
    assert len(checks) == 3, "a stop is seen after each step"


def test_a_log_unlike_its_snapshots_is_kept(made: Callable[..., Trial], caplog: pytest.LogCaptureFixture) -> None:
    trial = made(trims=False)
    trial.verified = Verified(700, 900, 2, ("the timer of offset 3 is missing",), 1)
    assert trial.trim() == 0
    assert not trial.machine.progress.settings.trims
    assert "the timer of offset 3 is missing" in caplog.text
    assert trial.metrics.trim_refused


@pytest.mark.parametrize(
    ("start", "anchor"),
    [(0, "docs/operations.md#log-and-snapshots-differ"), (5, "#a-trimmed-log-differs-from-its-snapshots")],
)
def test_a_log_that_differs_names_the_way_on_for_where_it_begins(
    made: Callable[..., Trial], caplog: pytest.LogCaptureFixture, start: int, anchor: str
) -> None:
    trial = made(trims=False)
    trial.brokers.start, trial.verified = start, Verified(700, 900, 2, ("the timer of offset 3 is missing",), 1)
    assert trial.trim() == 0
    assert caplog.text.strip().endswith(anchor)
    assert ("nothing is lost" in caplog.text, "delete none of them" in caplog.text) == (not start, bool(start))


def test_nothing_is_compared_on_a_disk_without_room_for_both_copies(
    made: Callable[..., Trial], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    trial = made(trims=False)
    older = trial.machine.committed.older_snapshot
    assert older is not None
    records = shutil.disk_usage(tmp_path).free // SNAPSHOT_CHUNK_BYTES
    large = older._replace(end_offset=older.first_offset + records)
    trial.machine.progress = trial.machine.committed = replace(trial.machine.committed, older_snapshot=large)
    assert (trial.trim(), trial.comparisons, trial.metrics.trim_refused) == (0, 0, True)
    assert "it is not compared with its snapshots: it needs" in caplog.text


def test_a_record_of_the_future_is_named_as_cause(made: Callable[..., Trial], caplog: pytest.LogCaptureFixture) -> None:
    trial = made(keep_s=600)
    trial.brokers.kept_from = trial.brokers.to_come = 5  # type: ignore[assignment]
    for _ in range(3):
        trial.trim()
        trial.now_s += AGAIN_S
    assert (trial.brokers.start, trial.metrics.trim_refused) == (5, True)
    trial.brokers.to_come = None
    for _ in range(3):
        trial.trim()
        assert trial.metrics.trim_refused, "its time has come, and what comes after it may be old"
        trial.now_s += AGAIN_S
    assert caplog.text.count("its record at offset 5 had a time to come") == 1
    trial.brokers.kept_from = 6  # type: ignore[assignment]
    assert (trial.trim(), trial.brokers.start, trial.metrics.trim_refused) == (2, 6, False)
    trial.now_s += AGAIN_S
    trial.trim()
    assert not trial.metrics.trim_refused, "the next one is only young"
    trial.brokers.kept_from = None
    trial.now_s += AGAIN_S
    assert (trial.trim(), trial.brokers.start) == (3, 700)


def test_an_idle_log_gets_a_new_segment_once(made: Callable[..., Trial]) -> None:
    """Else the records before its end stay on the disk, although they are deleted."""
    trial = made(keep_s=60)
    trial.brokers.start = trial.brokers.end = 1000
    for _ in range(3):
        trial.trim()
        trial.now_s += AGAIN_S
        trial.brokers.start = trial.brokers.end
    assert trial.brokers.rolled == 1
    assert not trial.trimmer.is_due(TP, trial.runner), "it is clear until the bounds rise"


def test_no_segment_is_begun_while_a_timer_is_due_soon(made: Callable[..., Trial]) -> None:
    """A cancel behind the record that begins it would not be read in time if the worker were killed just then."""
    trial = made(keep_s=60)
    trial.brokers.start = trial.brokers.end = 1000
    trial.metrics.oldest_due_s = NOW_S + 29
    trial.trim()
    assert trial.brokers.rolled == 0
    trial.now_s += ROLL_QUIET_S
    trial.metrics.oldest_due_s = NOW_S + 31
    trial.trim()
    assert trial.brokers.rolled == 1


def test_without_ids_a_segment_is_begun_also_while_timers_are_due(made: Callable[..., Trial]) -> None:
    """There are no cancels: an idle log whose timers are due each second must leave the disk, too."""
    trial = made(keep_s=60, has_ids=False)
    trial.brokers.start = trial.brokers.end = 1000
    trial.metrics.oldest_due_s = NOW_S + 1
    trial.trim()
    assert trial.brokers.rolled == 1


def test_a_segment_is_begun_when_the_log_is_old_enough(made: Callable[..., Trial]) -> None:
    trial = made()
    assert trial.trim() == 1
    trial.brokers.start, trial.brokers.kept_from = trial.brokers.end, 999  # type: ignore[assignment]
    trial.now_s += AGAIN_S
    trial.trim()
    assert trial.brokers.rolled == 0
    assert not trial.trimmer.is_due(TP, trial.runner), "the last record is younger than a segment may become"
    trial.brokers.kept_from = None
    trial.now_s += AGAIN_S
    trial.trim()
    assert trial.brokers.rolled == 1


@pytest.mark.parametrize(
    ("given", "others"), [({}, []), ({}, ["group 'billing'"]), ({"keep_s": math.inf, "topics": frozenset()}, [])]
)
def test_what_is_below_a_moved_start_goes(made: Callable[..., Trial], given: dict[str, Any], others: list[str]) -> None:
    """By age, by size or by hand: also where this worker may delete nothing, or does not want to."""
    trial = made(**given)
    trial.brokers.others = others
    trial.machine.progress = replace(trial.machine.progress, late_changes=(650, 800, 900))
    trial.brokers.start, trial.brokers.end = 800, 1000
    for _ in range(2):
        trial.trim()
        trial.now_s += AGAIN_S
        trial.trimmer._known.clear()
        assert trial.machine.committed.late_changes == (800, 900)
        assert trial.machine.commits == 1
    assert trial.brokers.deleted == []


def test_without_trimming_nothing_is_asked(made: Callable[..., Trial]) -> None:
    trial = made(keep_s=math.inf, topics=frozenset())
    assert not trial.trimmer.is_due(TP, trial.runner)
