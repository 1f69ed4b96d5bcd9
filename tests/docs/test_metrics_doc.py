"""docs/metrics.md says of every metric what the code says, and of nothing else."""

import re
from pathlib import Path
from typing import Any

from timers.outbox.monitoring import METRICS as OUTBOX_METRICS
from timers.outbox.relay import UNLIVE_S
from timers.process.metrics import Entry
from timers.queue.monitoring import METRICS as QUEUE_METRICS
from timers.spark.monitoring import METRICS as SPARK_METRICS
from timers.wire.dead_letter import BATCH_UNREADABLE, CODES, LOST_FROM_LOG, REPEAT_LOST
from timers.worker.metrics import METRICS as WORKER_METRICS

METRICS: tuple[Entry[Any], ...] = (*WORKER_METRICS, *QUEUE_METRICS, *SPARK_METRICS, *OUTBOX_METRICS)
ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "metrics.md").read_text()


def test_the_table_is_the_one_in_the_code() -> None:
    rows = re.findall(r"^\| `(timers_\w+)` \| (\w+) \| (.*?) \| (.+) \|$", DOC, re.MULTILINE)
    wanted = [
        (entry.name, entry.kind, ", ".join(f"`{label}`" for label in entry.labels), entry.help) for entry in METRICS
    ]
    assert rows == wanted


def test_names_say_kind_and_unit() -> None:
    """Prometheus' conventions: totals end so, and what has a unit ends in it."""
    for entry in METRICS:
        assert re.fullmatch(r"timers_[a-z_]+", entry.name)
        if entry.kind == "histogram":
            assert entry.name.endswith("_seconds")


def test_every_dead_letter_code_has_its_counter() -> None:
    files = [
        path
        for room in ("core", "machines/firing", "wire", "worker")
        for path in (ROOT / "timers" / room).rglob("*.py")
    ]
    source = "".join(path.read_text() for path in files)
    written = re.findall(
        r'(?:(?:InvalidRequestError|DeliveryProblem)\(\s*|code, first_s(?:, reason)? = )"([a-z-]+)"', source
    )
    assert {*written, LOST_FROM_LOG, BATCH_UNREADABLE, REPEAT_LOST} == set(CODES)


def test_the_relay_is_live_as_long_as_the_page_says() -> None:
    assert UNLIVE_S == 1_800
    assert "has not answered a statement for half an hour" in DOC
