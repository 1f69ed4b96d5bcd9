"""``bench.ids`` drives a machine by itself, without a worker: it must go on doing so."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench import ids
from timers.kafka.request_formats import REQUEST_FORMATS

TIMERS = 300
FORMATS = {kind.request_format.name: kind.request_format for kind in REQUEST_FORMATS}


@pytest.mark.parametrize(
    ("name", "kind", "records", "fired", "verdicts"),
    [
        ("future", ids.DiscardingOutbox, ids.native, TIMERS, 0),
        ("future-by-id", ids.DiscardingOutbox, ids.by_id, TIMERS * 2 // 5, TIMERS * 2 // 5),
        ("future-by-id", ids.RepeatingOutbox, ids.repeating, TIMERS, TIMERS),
        ("countdown", ids.DiscardingOutbox, ids.countdowns, TIMERS, 0),
        ("schedule", ids.DiscardingScheduleOutbox, ids.schedules, TIMERS * 2 // 5, 0),
    ],
)
def test_each_kind_of_timers_is_measured(
    name: str,
    kind: type[ids.DiscardingOutbox],
    records: Callable[[int], Iterator[ids.Record]],
    fired: int,
    verdicts: int,
    tmp_path: Path,
) -> None:
    found = ids.measure(list(records(TIMERS)), FORMATS[name], tmp_path, kind)
    assert (found["records"], found["fired"], found["verdicts"]) == (TIMERS, fired, verdicts)
