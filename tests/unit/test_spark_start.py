"""What the engine on Spark checks before it starts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import (
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    GroupLoadInProgressError,
    KafkaConnectionError,
    NotCoordinatorForGroupError,
)
from confluent_kafka import KafkaError, KafkaException

pytest.importorskip("pyspark", reason="needs the extra 'spark'")

from tests.harness.constants import Constants
from timers.core.progress import Progress
from timers.errors import LogMismatch, SettingsError, TimersError
from timers.kafka import group_access
from timers.kafka.aiokafka_internals.group import DescribedGroup, Member
from timers.process.config.settings import Settings
from timers.spark.engine import query, start
from timers.spark.engine.bucket import STATE_FORMAT
from timers.spark.engine.query import Plan

SETTINGS = Settings(id_topic="")
TOPIC = SETTINGS.request_topic
TP = TOPIC, 0


class Status:
    """A child of a directory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def getPath(self) -> JavaPath:
        return JavaPath(self._path)

    def getModificationTime(self) -> int:
        return int(self._path.stat().st_mtime * 1000)


class Storage:
    """Hadoop's file system over the local one."""

    def exists(self, path: JavaPath) -> bool:
        return Path(path.name).exists()

    def getScheme(self) -> str:
        return "file"

    def listStatus(self, path: JavaPath) -> list[Status]:
        return [Status(child) for child in Path(path.name).iterdir()]

    def createNewFile(self, path: JavaPath) -> bool:
        is_new = not self.exists(path)
        Path(path.name).parent.mkdir(parents=True, exist_ok=True)
        Path(path.name).touch()
        return is_new

    def delete(self, path: JavaPath, recursively: bool) -> None:
        assert recursively or Path(path.name).is_file()
        if Path(path.name).is_dir():
            shutil.rmtree(path.name)
        else:
            Path(path.name).unlink()


class JavaPath:
    """A path of Hadoop."""

    def __init__(self, name: str | Path) -> None:
        self.name = str(name)

    def getName(self) -> str:
        return Path(self.name).name

    def getFileSystem(self, _: Any) -> Storage:
        return Storage()


_HADOOP = SimpleNamespace(fs=SimpleNamespace(Path=JavaPath))
SPARK: Any = SimpleNamespace(
    sparkContext=SimpleNamespace(
        master="local[2]",
        _jvm=SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(hadoop=_HADOOP))),
        _jsc=SimpleNamespace(hadoopConfiguration=lambda: None),
    )
)
CLUSTER: Any = SimpleNamespace(cluster_id="cluster-1", partitions={TOPIC: 1}, topic_ids={})


class Log:
    """A progress log whose brokers answer after some failures."""

    def __init__(
        self,
        failures: int = 0,
        low: int = 0,
        progress: Progress | None = None,
        mismatches: int = 0,
        cut: int | None = None,
    ) -> None:
        self._left = iter(range(failures))
        self._mismatches = iter(range(mismatches))
        self._low = low
        self._progress = progress or Progress()
        self._cut = cut

    def read_one(self, tp: Any, *, after_fence: bool = True) -> tuple[dict[Any, bytes], Progress, tuple[int, int]]:
        if next(self._left, None) is not None:
            raise KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
        if next(self._mismatches, None) is not None:
            raise LogMismatch("it has no progress")
        return {}, self._progress, (self._low, 100)

    def check_logs(self, read: dict[Any, Progress]) -> dict[Any, Progress]:
        return read if self._cut is None else {tp: each.shortened(self._cut) for tp, each in read.items()}

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Makes a plan over a given log."""

    def make(
        log: Log,
        directory: Path = tmp_path,
        buckets: int | None = 2,
        *,
        anew: bool = False,
        settings: Settings = SETTINGS,
        cluster: Any = CLUSTER,
    ) -> Any:
        monkeypatch.setattr(start, "ProgressLog", lambda *_: log)
        return start.Start(SPARK, settings, str(directory), buckets, 2, 1000).plan(cluster, 7, anew=anew)

    return make


def test_the_engine_waits_for_a_leader_that_changes(plan: Any, tmp_path: Path) -> None:
    made = plan(Log(failures=3))
    path = f"{tmp_path}/state-{STATE_FORMAT}-2"
    assert made == Plan(path, 2, 1000, CLUSTER, {TP: 0}, {TP: Progress()}, 7)


def test_brokers_that_do_not_answer_raise_one_sentence(plan: Any, constants: Constants) -> None:
    constants(start, TIMEOUT_S=0.0)
    with pytest.raises(TimersError, match=r"the progress of 'timers' cannot be read from .*: Broker: Not leader"):
        plan(Log(failures=10**6))


def checkpoint(root: Path, name: str, planned: int = 1, ended: int = 0) -> Path:
    """Make a checkpoint as Spark has it, with numbers of micro-batches."""
    directory = root / name
    for child, count in (("offsets", planned), ("commits", ended)):
        (directory / child).mkdir(parents=True)
        for number in range(count):
            (directory / child / str(number)).touch()
    return directory


READ_BEFORE = Progress(50)


@pytest.mark.parametrize(
    ("low", "progress", "start"), [(7, Progress(), 7), (0, READ_BEFORE, 50), (60, READ_BEFORE, 60)]
)
def test_a_new_query_starts_where_the_progress_ends(plan: Any, low: int, progress: Progress, start: int) -> None:
    """Machines read what is below, if their stores lack it, or restore it from snapshots."""
    assert plan(Log(low=low, progress=progress)).starts == {TP: start}


def test_no_checkpoint_is_deleted_if_the_log_has_lost_what_it_may_have(plan: Any, tmp_path: Path) -> None:
    used, older = checkpoint(tmp_path, f"state-{STATE_FORMAT}-2"), checkpoint(tmp_path, f"state-{STATE_FORMAT - 1}-2")
    with pytest.raises(LogMismatch, match="it has no progress"):
        plan(Log(progress=READ_BEFORE, mismatches=1), anew=True)
    assert used.exists() and older.exists()
    plan(Log(progress=READ_BEFORE))
    assert used.exists() and not older.exists()


def test_a_check_leaves_checkpoints_in_use_alone(plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = checkpoint(tmp_path, f"state-{STATE_FORMAT - 1}-2")
    used = checkpoint(tmp_path, f"state-{STATE_FORMAT}-2", planned=3, ended=2)
    monkeypatch.setattr(start, "ProgressLog", lambda *_: Log(progress=READ_BEFORE))
    found, _, _ = start.Start(SPARK, SETTINGS, str(tmp_path), 2, 2, 1000).check(CLUSTER)
    assert (found.path, found.replaced) == (str(used), (str(older),))
    assert older.exists() and len(list((used / "offsets").iterdir())) == 3


def test_a_checkpoint_that_cannot_be_used_is_deleted_if_the_log_is_complete(plan: Any, tmp_path: Path) -> None:
    used = checkpoint(tmp_path, f"state-{STATE_FORMAT}-2")
    assert plan(Log(progress=READ_BEFORE), anew=True).checkpoint == str(used)
    assert not used.exists()
    used = checkpoint(tmp_path, f"state-{STATE_FORMAT}-2")
    assert plan(Log(progress=READ_BEFORE), buckets=4).buckets == 4
    assert not used.exists()


def test_a_start_that_accepts_a_loss_uses_no_checkpoint_of_the_log_before(plan: Any, tmp_path: Path) -> None:
    used = checkpoint(tmp_path, f"state-{STATE_FORMAT}-2")
    before = plan(Log(progress=READ_BEFORE.shortened(30)))
    assert (before.starts, before.is_new, used.exists()) == ({TP: 30}, False, True), "it was accepted before"
    made = plan(Log(progress=READ_BEFORE, cut=30))
    assert (made.starts, made.progress[TP].cuts) == ({TP: 30}, ((30, 1),))
    assert made.is_new and not used.exists()


def test_of_two_checkpoints_the_newer_one_is_used(plan: Any, tmp_path: Path) -> None:
    for buckets, changed_s in ((8, 5), (3, 6), (5, 4)):
        os.utime(checkpoint(tmp_path, f"state-{STATE_FORMAT}-{buckets}"), (changed_s, changed_s))
    assert plan(Log(progress=READ_BEFORE), buckets=None).buckets == 3


def test_a_checkpoint_of_which_nothing_was_planned_is_a_new_one(plan: Any, tmp_path: Path) -> None:
    used = checkpoint(tmp_path, f"state-{STATE_FORMAT}-2", planned=0)
    plan(Log(progress=READ_BEFORE))
    assert not used.exists()


def test_a_micro_batch_that_has_not_ended_is_planned_again(plan: Any, tmp_path: Path) -> None:
    used = checkpoint(tmp_path, f"state-{STATE_FORMAT}-2", planned=3, ended=2)
    plan(Log(progress=READ_BEFORE))
    assert sorted(path.name for path in (used / "offsets").iterdir()) == ["0", "1"]


# ---- workers that run ---------------------------------------------------------------------------------------------


def coordinator(monkeypatch: pytest.MonkeyPatch, *answers: int | Exception) -> None:
    """Let the group's coordinator answer with numbers of members, the last one again and again."""
    left = list(answers)

    def describe(settings: Settings, group: str, timeout_s: float) -> DescribedGroup:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return DescribedGroup("Stable", [Member("")] * answer)

    monkeypatch.setattr(group_access, "describe", describe)


def group(monkeypatch: pytest.MonkeyPatch, *answers: int | Exception) -> list[str]:
    """Wait until no worker is in the group; returns the lines."""
    coordinator(monkeypatch, *answers)
    monkeypatch.setattr(group_access, "POLL_S", 0.0)
    lines: list[str] = []
    start.wait_for_workers(SETTINGS, lines.append, lambda: False)
    return lines


def test_the_engine_starts_when_workers_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    assert group(monkeypatch, 0) == []
    assert group(monkeypatch, CoordinatorNotAvailableError()) == []
    assert group(monkeypatch, GroupLoadInProgressError(), NotCoordinatorForGroupError(), 0) == []
    assert group(monkeypatch, 2, 1, 0) == ["waiting until the workers of 'timers' have left their group (2 left)"]


def test_a_process_that_is_told_to_stop_waits_for_no_group_and_no_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("POLL_S", 0.0), ("MARGIN_S", 1e9)):
        monkeypatch.setattr(group_access, name, seconds)  # without a stop, it waits for ever
    said: list[int] = []
    coordinator(monkeypatch, 2)
    assert (
        group_access.wait_until_empty(SETTINGS, "timers", said.append, lambda: bool(said), 1e9).members
        == [Member("")] * 2
    )
    coordinator(monkeypatch, NotCoordinatorForGroupError())
    with pytest.raises(TimersError, match="cannot be read"):
        group_access.wait_until_empty(SETTINGS, "timers", said.append, lambda: bool(said), 1e9)
    assert said == [2]


def test_a_coordinator_that_moves_is_waited_for_shortly(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> None:
    """An app without Spark must not wait long for the group of an engine that it does not have."""
    constants(group_access, POLL_S=0.0)
    coordinator(monkeypatch, GroupLoadInProgressError())
    with pytest.raises(TimersError, match="cannot be read"):
        group_access.wait_until_empty(SETTINGS, "timers", lambda _: None, lambda: False, 0.0)


def test_the_engine_does_not_start_while_workers_run(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> None:
    constants(group_access, MARGIN_S=-SETTINGS.session_timeout_s)
    with pytest.raises(TimersError, match=r"^workers of TIMERS_APP_ID='timers' run \(3\): stop them first"):
        group(monkeypatch, 3)
    with pytest.raises(TimersError, match=r"the members of the group 'timers' cannot be read"):
        group(monkeypatch, GroupAuthorizationFailedError("timers"))


@pytest.mark.parametrize("answer", [0, TimeoutError(), KafkaConnectionError("no broker")])
def test_the_engine_starts_its_query_again_unless_workers_are_known_to_run(
    monkeypatch: pytest.MonkeyPatch, answer: int | Exception
) -> None:
    coordinator(monkeypatch, answer)
    query.check_no_workers(SETTINGS)


def test_the_engine_ends_when_workers_have_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator(monkeypatch, 2)
    with pytest.raises(TimersError, match=r"^workers of TIMERS_APP_ID='timers' have taken over \(2\)$"):
        query.check_no_workers(SETTINGS)


def test_a_checkpoint_of_another_app_is_refused_and_kept(plan: Any, tmp_path: Path) -> None:
    plan(Log())
    used = checkpoint(tmp_path, f"state-{STATE_FORMAT}-2")
    plan(Log(progress=READ_BEFORE))  # as after kill -9
    other = SimpleNamespace(cluster_id="cluster-2", partitions={TOPIC: 1}, topic_ids={})
    for options in ({"settings": Settings(id_topic="", app_id="other")}, {"cluster": other}):
        with pytest.raises(SettingsError, match="is of TIMERS_APP_ID='timers' on the Kafka cluster 'cluster-1', and"):
            plan(Log(progress=READ_BEFORE), anew=True, **options)
    assert used.exists() and plan(Log(progress=READ_BEFORE)).checkpoint == str(used)
    (tmp_path / "owner-timers@cluster-1").unlink()
    plan(Log(progress=READ_BEFORE), cluster=other)


def test_of_two_apps_that_claim_one_none_uses_it(plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = Storage.createNewFile

    def create_beside(self: Storage, path: JavaPath) -> bool:
        (tmp_path / "owner-other@cluster-1").touch()
        return create(self, path)

    monkeypatch.setattr(Storage, "createNewFile", create_beside)
    with pytest.raises(SettingsError, match="is of TIMERS_APP_ID='other'"):
        plan(Log())
    assert [path.name for path in tmp_path.iterdir()] == ["owner-other@cluster-1"]
