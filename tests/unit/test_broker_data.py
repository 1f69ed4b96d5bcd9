"""The data directory of the embedded broker is formatted once, and completely."""

import subprocess
from pathlib import Path

import pytest

from timers.cli.broker import EmbeddedBroker, process
from timers.cli.broker.embedded import DATA, META_FILE, UNFINISHED
from timers.errors import BrokerError


@pytest.mark.parametrize("meta", ["version=1\nnode.id=1\ncluster.id={}\n", "version=1\nclus"])
def test_an_existing_directory_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meta: str) -> None:
    formatted: list[str] = []

    def run(_: object, __: object, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        cluster_id = arguments[arguments.index("--cluster-id") + 1]
        formatted.append(cluster_id)
        (directory / UNFINISHED).mkdir()
        (directory / UNFINISHED / META_FILE).write_text(meta.format(cluster_id))
        return subprocess.CompletedProcess([], 0, stdout="")

    monkeypatch.setattr(process, "run", run)
    broker = EmbeddedBroker(tmp_path, port=0)
    (tmp_path / UNFINISHED).mkdir()  # an attempt before was interrupted
    for _ in range(2):
        broker._format(Path("java"), [])
    assert len(formatted) == 1
    assert broker.cluster_id == (formatted[0] if "cluster.id" in meta else None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broker.log", DATA]


def test_a_format_that_fails_leaves_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_: object, __: object, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        (directory / UNFINISHED).mkdir()
        return subprocess.CompletedProcess([], 1, stdout="disk full")

    monkeypatch.setattr(process, "run", run)
    with pytest.raises(BrokerError, match="disk full"):
        EmbeddedBroker(tmp_path, port=0)._format(Path("java"), [])
    assert not (tmp_path / DATA).exists()
