"""The data directory of the embedded broker: a formatted one is recognized, whichever Kafka wrote it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from timers.broker import data
from timers.errors import BrokerError


@pytest.mark.parametrize(
    "checkpoint",
    [
        pytest.param("bootstrap.checkpoint", id="4.2.1"),
        pytest.param("__cluster_metadata-0/00000000000000000000-0000000000.checkpoint", id="4.4.0"),
        pytest.param("__cluster_metadata-0/00000000000000012345-0000000007.checkpoint", id="4.4.0, a later snapshot"),
    ],
)
def test_a_directory_that_kafka_has_formatted_is_kept(tmp_path: Path, checkpoint: str) -> None:
    formatted: list[str] = []

    def format_data(name: str, cluster_id: str) -> subprocess.CompletedProcess[str]:
        formatted.append(cluster_id)
        file = tmp_path / name / checkpoint
        file.parent.mkdir(parents=True)
        file.touch()
        (tmp_path / name / data.META_FILE).write_text(f"version=1\nnode.id=1\ncluster.id={cluster_id}\n")
        return subprocess.CompletedProcess([], 0, stdout="")

    data.prepare(tmp_path, "4.4.0", format_data)
    data.prepare(tmp_path, "4.4.0", format_data)
    assert formatted == [data.cluster_id(tmp_path)]


def test_a_directory_without_first_metadata_is_not_taken_for_formatted(tmp_path: Path) -> None:
    def format_data(name: str, cluster_id: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / name).mkdir()
        (tmp_path / name / data.META_FILE).write_text(f"version=1\nnode.id=1\ncluster.id={cluster_id}\n")
        return subprocess.CompletedProcess([], 0, stdout="disk full")

    with pytest.raises(BrokerError, match="disk full"):
        data.prepare(tmp_path, "4.4.0", format_data)
    assert not (tmp_path / data.NAME).exists()
