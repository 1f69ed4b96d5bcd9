"""What is pending of partitions whose workers run is read without asking them."""

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from timers.core.progress import Progress
from timers.kafka.progress_log import ProgressLog
from timers.machines.store.database import scratch_directory
from timers.offline.pending import PendingReader
from timers.process.config.settings import Settings
from timers.wire import progress as progress_record

TP = "timer-request", 1


class Log(ProgressLog):
    """A progress log. The group has a newer copy than its records, because the worker has committed meanwhile."""

    def __init__(self, progress: Progress, topic_id: bytes) -> None:
        self._settings, self._cluster = Settings(), CLUSTER
        self._value = progress_record.encode(progress, topic_id, progress_record.machine_name("timers", *TP))

    def read(self, tps: Any, *, after_fence: bool = True, only_some: bool = False) -> dict[Any, bytes]:
        assert not after_fence, "no worker was fenced"
        return {TP: self._value}

    def read_one(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("the copy of the group is newer")


def reader_of(progress: Progress, topic_id: bytes) -> PendingReader:
    reader = PendingReader.__new__(PendingReader)
    reader._log = Log(progress, topic_id)
    return reader


CLUSTER: Any = SimpleNamespace(topic_ids={TP[0]: b"id of the topic."})


def test_the_progress_of_a_running_worker_is_not_compared_with_what_it_has_committed_since() -> None:
    progress = Progress(17, (900, 3))
    assert reader_of(progress, b"id of the topic.").progress([TP]) == {TP: progress}


def test_a_topic_that_was_made_anew_has_no_progress() -> None:
    found = reader_of(Progress(17, (900, 3)), b"id of a former.").progress([TP, ("timer-request", 2)])
    assert found == {TP: Progress(), ("timer-request", 2): Progress()}


def test_stores_of_killed_processes_are_deleted_used_ones_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    others = tmp_path / "others"
    others.mkdir()
    (tmp_path / "timers-scratch-link").symlink_to(others)
    (tmp_path / "timers-pending-former").mkdir()  # a version before takes no lock
    with scratch_directory() as in_use:
        (left,) = tmp_path.glob("timers-scratch-timers-*")
        assert left == in_use
        killed = tmp_path / "timers-scratch-killed"
        (killed / "store").mkdir(parents=True)
        with scratch_directory() as second:
            assert in_use.exists() and second.exists() and not killed.exists()
        assert in_use.exists() and not second.exists()
    assert {each.name for each in tmp_path.iterdir()} == {"others", "timers-scratch-link", "timers-pending-former"}
