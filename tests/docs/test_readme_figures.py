"""The figures of the README are those of one published run."""

import json
from typing import Any

import pytest

from bench.readme import BEGIN, END, PUBLISHED, README, with_figures

RESULTS: dict[str, Any] = json.loads(PUBLISHED.read_text())


def test_the_readme_has_the_figures_of_the_published_run() -> None:
    assert README.read_text() == with_figures(README.read_text(), RESULTS), "run `python -m bench.readme`"


def test_the_readme_is_read_in_some_minutes() -> None:
    before, _, rest = README.read_text().partition(BEGIN)
    assert len((before + rest.partition(END)[2]).split()) <= 900, "without its figures; say it on another page"


def test_another_run_replaces_all_figures() -> None:
    ours = [dict(row, lag_p99_ms=4321.0, lost=7) for row in RESULTS["storm"] if row["subject"] == "timers"]
    machine = {**RESULTS["machine"], "commit": "0123456789"}
    recovery = [{"subject": "timers", "timers": 1_000_000, "recovered_s": 9.87, "start_to_ready_s": 11.0}]
    text = with_figures(README.read_text(), {"machine": machine, "storm": ours, "recovery": recovery})
    section = text.partition(BEGIN)[2].partition(END)[0]
    assert "`0123456789`" in section and RESULTS["machine"]["commit"] not in section
    assert section.count("4,321") == len(ours)
    assert f"lost {7 * len(ours):,}" in section and "No callback was lost" not in section
    assert "9.9 s" in section
    assert "| Kafka Streams |" not in section, "it was not measured in this run"


def test_a_readme_without_the_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="0 sections"):
        with_figures("# timers\n", RESULTS)
