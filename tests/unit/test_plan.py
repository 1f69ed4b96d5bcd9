"""``timers doctor --plan``: its figures are those of the documents and of the chart."""

import re

import click
import pytest

from tests.harness.process import ROOT
from timers.cli.doctor import _rate
from timers.cli.main import main
from timers.offline.plan import WEEK_S, Load, lines
from timers.process.config.settings import Settings

DAY_S = 86_400
CHART = ROOT / "deploy" / "helm" / "timers"


@pytest.mark.parametrize(
    ("name", "load", "log", "snapshots", "disk"),
    [
        ("small", Load(100, DAY_S, 500, 2), "32 GB", "18 GB", "8.8 GB"),
        ("medium", Load(1000, DAY_S, 500, 3), "318 GB", "177 GB", "44 GB"),
        ("large", Load(10_000, DAY_S, 500, 6), "454 GB", "1.8 TB", "177 GB"),
    ],
)
def test_the_values_of_the_chart_follow_formulas(name: str, load: Load, log: str, snapshots: str, disk: str) -> None:
    values = (CHART / f"values-{name}.yaml").read_text()
    assert f"{log} of log" in values and re.search(
        rf"(of log.*and |of log.*, ){snapshots}", values.replace("\n# ", " ")
    )
    assert f"= {disk}" in values
    keep_s = DAY_S if name == "large" else WEEK_S

    def near(said: str, number: float) -> bool:
        count, unit = said.split()
        return round(number / {"GB": 1e9, "TB": 1e12}[unit], 1 if "." in count else 0) == float(count)

    assert near(log, load.log_bytes(keep_s))
    assert near(snapshots, load.snapshot_bytes(2))
    assert near(disk, load.worker_disk_bytes)


def test_the_formulas_are_those_of_the_documents() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    for formula in (
        "TIMERS_LOG_KEEP_S × requests a second × (P + 26)",
        "(2 + TIMERS_SNAPSHOT_FACTOR) × pending timers × (P + 12)",
        "2 × pending timers on its partitions × (P + 12)",
        "110 MB + TIMERS_STORE_MEMORY_MB + 1.2 MB × partitions + 4 MB × partitions that read a backlog",
        "at about 500,000 pending timers a second",
    ):
        assert formula in page, formula
    assert "at about 340,000 records a second" in (ROOT / "docs" / "design.md").read_text()


@pytest.mark.parametrize(("per_s", "days"), [(100, 1), (2000, 1), (2000, 30), (2000, 7)])
def test_the_table_of_the_documents_has_these_figures(per_s: int, days: int) -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    said = {name: says for name, _, says in lines(Load(per_s, days * DAY_S), Settings())}
    found = {name: re.split(" on each| for each| after", says)[0] for name, says in said.items()}
    row = [found[name] for name in ("log", "snapshots", "worker_disk")]
    assert f"| {' | '.join(row)} | {found['takeover'].replace('8.9', '9')} |" in page


@pytest.mark.parametrize(
    ("text", "per_s"),
    [("2000/s", 2000), ("2,000/s", 2000), ("120/m", 2), ("60/min", 1), ("86400/d", 1), ("3/h", 3 / 3600)],
)
def test_a_rate(text: str, per_s: float) -> None:
    assert _rate(text) == per_s


@pytest.mark.parametrize("text", ["", "x", "0/s", "-1/s", "5/x", "inf/s", "nan/s", "1e308/s"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write 2000/s"):
        _rate(text)


def test_a_plan_says_where_cold_tiers_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMERS_BROKERS", "127.0.0.1:1")
    assert main(["doctor", "--plan", "2000/s", "--wait", "30d"]) == 0
    out = capsys.readouterr().out
    assert "5,184,000,000 timers wait at a time" in out
    assert "TIMERS_HOT_HORIZON_S=604800 leaves 1,209,600,000 timers to the workers" in out
    assert main(["doctor", "--plan", "100/s"]) == 0
    assert "of little use" in capsys.readouterr().out


def test_the_memory_of_stores_is_counted_in_mib_as_workers_take_it() -> None:
    little, more = (Load(1, DAY_S).memory_bytes(Settings(store_memory_mb=mib)) for mib in (64, 65))
    assert more - little == 2**20


def test_a_log_that_is_never_trimmed_has_no_size() -> None:
    settings = Settings.load({"TIMERS_LOG_KEEP_S": "never"})
    found = {name: (value, says) for name, value, says in lines(Load(1, DAY_S), settings)}
    assert found["log"][0] is None and "it grows without end" in found["log"][1]
