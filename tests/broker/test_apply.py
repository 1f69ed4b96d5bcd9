"""``timers apply`` with a worker: what it sets repeats, a second run changes nothing, and what is gone is cancelled."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.command_line import command
from tests.harness.ids import Ids, running_ids
from timers.wire import headers as h

pytestmark = pytest.mark.broker

FILE = """
set: billing
timers:
  - {{id: often, repeat: {{every: 1s}}, topic: {target}, value: often, headers: {{trace: "1"}}}}
  - {{id: daily, repeat: {{cron: "0 9 * * 1-5", zone: Europe/Paris}}, topic: {target}, value: {{kind: daily}}}}
  - {{id: yearly, repeat: {{cron: "0 0 29 2 *", zone: UTC}}, topic: {target}, value: leap}}
"""


@pytest.fixture
def ids(
    broker_address: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ids]:
    """With a worker that shows values."""
    with running_ids(broker_address, tmp_path_factory.mktemp("apply"), TIMERS_QUERIES="values") as ids:
        ids.system.use(monkeypatch, TIMERS_WORKER_URL=f"http://127.0.0.1:{ids.system.workers[0].port}")
        yield ids


def test_a_file_is_made_so_and_a_second_run_changes_nothing(
    ids: Ids, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "schedules.yaml"

    def run(text: str, *options: str, code: int = 0) -> list[str]:
        path.write_text(text.format(target=ids.target))
        got = command(capsys, "apply", "-f", str(path), *options)
        assert got.code == code, got
        return got.out.splitlines()

    assert run(FILE) == ["often: set", "daily: set", "yearly: set"]
    (record, *_) = ids.fired.take(2)
    assert (record.value, record.text("trace"), record.text(h.SET)) == (b"often", "1", "billing")
    assert run(FILE) == []
    assert [line for line in run(FILE, "--dry-run") if "unchanged" not in line] == []
    shown = [json.loads(line) for line in command(capsys, "get", "yearly", "-o", "json").out.splitlines()]
    assert shown[0]["repeat"] == "cron=0 0 29 2 *; zone=UTC" and shown[0]["topic"] == ids.target
    assert shown[0]["next_at"].endswith("-02-29T00:00:00Z")

    later = FILE.replace("0 9 * *", "30 8 * *")
    less = "\n".join(line for line in later.splitlines() if "often" not in line)
    changes = run(less, "--prune", "--dry-run", code=3)
    assert changes[:3] == ["daily: to change", "- repeat.cron: 0 9 * * 1-5", "+ repeat.cron: 30 8 * * 1-5"]
    assert "often: to cancel" in changes
    assert run(less, "--prune") == ["daily: replaced", "often: cancelled"]
    assert command(capsys, "get", "often").code == 4
    assert run(less, "--prune") == []
