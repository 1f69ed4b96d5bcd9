"""The data directory of the embedded broker is formatted once, and completely."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from timers.broker import data
from timers.errors import BrokerError


@pytest.mark.parametrize("meta", ["version=1\nnode.id=1\ncluster.id={}\n", "version=1\nclus"])
def test_a_directory_that_exists_is_kept_whatever_it_holds(tmp_path: Path, meta: str) -> None:
    formatted: list[str] = []

    def format_data(name: str, cluster_id: str) -> subprocess.CompletedProcess[str]:
        formatted.append(cluster_id)
        (tmp_path / name).mkdir()
        (tmp_path / name / data.META_FILE).write_text(meta.format(cluster_id))
        return subprocess.CompletedProcess([], 0, stdout="")

    (tmp_path / data.UNFINISHED_NAME).mkdir()  # an attempt before was interrupted
    for _ in range(2):
        data.prepare(tmp_path, format_data)
    assert len(formatted) == 1
    assert data.cluster_id(tmp_path) == (formatted[0] if "cluster.id" in meta else None)


def test_a_format_that_fails_leaves_no_data(tmp_path: Path) -> None:
    def format_data(name: str, cluster_id: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / name).mkdir()
        return subprocess.CompletedProcess([], 1, stdout="disk full")

    with pytest.raises(BrokerError, match="disk full"):
        data.prepare(tmp_path, format_data)
    assert not (tmp_path / data.NAME).exists()
