"""The warning when a data directory was used with another cluster."""

import logging
from pathlib import Path

import pytest

from timers.errors import SettingsError
from timers.process.config.settings import Settings
from timers.worker.data_dir import make_data_dir, note_cluster


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    caplog.clear()
    return found


def test_another_cluster_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings.load({"TIMERS_DATA_DIR": str(tmp_path / "data"), "TIMERS_BROKERS": "kafka:9092"})
    for cluster_id in ("first", "first"):
        note_cluster(settings, cluster_id)
        assert warnings(caplog) == []
    note_cluster(settings, "second")
    (said,) = warnings(caplog)
    assert f"the data in {tmp_path / 'data'}/worker-" in said
    assert "cluster 'first', and TIMERS_BROKERS=kafka:9092 is the cluster 'second'" in said
    note_cluster(settings, "second")
    assert warnings(caplog) == []


def test_other_apps_and_workers_have_their_own_notes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    common = {"TIMERS_DATA_DIR": str(tmp_path)}
    for number, more in enumerate(({}, {"TIMERS_APP_ID": "other"}, {"TIMERS_WORKER_ID": "other"})):
        note_cluster(Settings.load(common | more), f"cluster {number}")
    assert warnings(caplog) == []


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = Settings.load({"TIMERS_DATA_DIR": str(tmp_path / "file" / "data")})
    with pytest.raises(SettingsError, match=r"^TIMERS_DATA_DIR=.*file/data' is not a directory in which .* may write"):
        make_data_dir(settings, settings.data_dir / "worker-1")


def test_a_damaged_note_or_a_full_disk_does_not_stop_a_worker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings.load({"TIMERS_DATA_DIR": str(tmp_path)})
    note_cluster(settings, "first")
    (note,) = tmp_path.glob("worker-*/cluster-of-timers")
    note.write_bytes(b"\xff\0" * 1_000_000)
    note_cluster(settings, "first")
    (said,) = warnings(caplog)
    assert len(said) < 1500
    note.unlink()
    note.mkdir()  # it can be neither read nor written
    note_cluster(settings, "first")
    assert warnings(caplog) == []
