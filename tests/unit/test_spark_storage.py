"""Which directories are refused under a cluster's master."""

from types import SimpleNamespace
from typing import Any

import pytest

from timers.errors import SettingsError
from timers.spark import storage


def session(monkeypatch: pytest.MonkeyPatch, master: str, default_scheme: str = "file") -> Any:
    """A session whose file system for paths without a scheme is of ``default_scheme``."""
    files = SimpleNamespace(getScheme=lambda: default_scheme)
    monkeypatch.setattr(storage, "on_storage", lambda *_: (None, files))
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master))


@pytest.mark.parametrize("master", ["spark://m:7077", "yarn", "k8s://https://k:443"])
@pytest.mark.parametrize("directory", ["tables", "/data/tables", ".timers/cold", "rows:2026.csv"])
def test_a_directory_of_one_machine_is_refused_on_a_cluster(
    monkeypatch: pytest.MonkeyPatch, master: str, directory: str
) -> None:
    with pytest.raises(SettingsError, match=rf"--tables is '{directory}', on the disk of one machine.*file:///"):
        storage.check_shared(session(monkeypatch, master), "--tables", directory)


@pytest.mark.parametrize(
    "directory", ["s3a://bucket/tables", "hdfs:///tables", "file:///shared/tables", "file:/shared"]
)
def test_a_directory_with_a_scheme_is_what_the_user_says(monkeypatch: pytest.MonkeyPatch, directory: str) -> None:
    storage.check_shared(session(monkeypatch, "yarn"), "--tables", directory, always_local=True)


def test_a_path_without_a_scheme_is_on_the_default_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = session(monkeypatch, "yarn", "hdfs")
    storage.check_shared(spark, "--tables", "/tables")
    with pytest.raises(SettingsError, match="on the disk of one machine"):
        storage.check_shared(spark, "--tables", "/tables", always_local=True)


def test_a_local_master_may_use_the_local_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    storage.check_shared(session(monkeypatch, "local[*]"), "--tables", "tables", always_local=True)
