"""What tasks of the engine do with Arrow batches, without Kafka and without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from timers.config.settings import Settings
from timers.core.delivery import DeliveryProblem
from timers.core.progress import Progress
from timers.spark.columns import RECORD
from timers.spark.engine import accepting, timer_batches
from timers.spark.engine.accepting import Accepting
from timers.spark.engine.callback_topics import Limits
from timers.spark.engine.firing import Firing, FiringTask
from timers.wire import future

pytestmark = pytest.mark.spark

BUCKETS = (3, 8)
MAX_BYTES = 1000
ACCEPT = Accepting(BUCKETS, MAX_BYTES, 5000)


def record(
    offset: int, key: bytes | None, value: bytes | None, headers: Any = None, partition: int = 1
) -> dict[str, Any]:
    pairs = None if headers is None else [{"key": name, "value": data} for name, data in headers]
    return {"topic": "r", "partition": partition, "offset": offset, "key": key, "value": value, "headers": pairs}


def accept(records: Sequence[dict[str, Any]]) -> dict[int, list[timer_batches.Item]]:
    schema = to_arrow_schema(RECORD)
    batch = pa.RecordBatch.from_pylist(list(records), schema=schema).select(accepting.COLUMNS)
    (out,) = ACCEPT([batch])
    found: dict[int, list[timer_batches.Item]] = {}
    for row in out.to_pylist():
        found.setdefault(row["bucket"], []).extend(timer_batches.unpack(row["timer_batch"]))
    return found


def test_a_hot_second_is_spread_over_all_buckets_and_always_alike() -> None:
    hot = [record(offset, b"100", future.encode("t", "k", b"v")) for offset in range(1000)]
    found = accept(hot)
    assert found.keys() == set(BUCKETS)
    counts = [sum(count for _, count, _ in items) for items in found.values()]
    assert sum(counts) == 1000
    assert max(counts) - min(counts) <= 1 << accepting.RUN_BITS
    # Another attempt, or other batches of the same records: each goes the same way.
    where = {
        r[0]: bucket for bucket, items in found.items() for item in items for r in timer_batches.requests_of(item[2])[1]
    }
    for few in (hot[:300], hot[300:]):
        for bucket, items in accept(few).items():
            assert all(where[r[0]] == bucket for item in items for r in timer_batches.requests_of(item[2])[1])


def test_a_request_waits_as_it_came() -> None:
    headers = [("a", None), ("timer-id", b"x"), ("a", b"\xff")]
    value = future.encode("t", "k", b"v") + b"\x7a\x01x"
    (items,) = accept([record(7, b"0100", value, headers), record(9, b"100", value, partition=2)]).values()
    first, second = ((item[0], item[1], *timer_batches.requests_of(item[2])) for item in items)
    assert first == (100, 1, "r/1", [(7, b"0100", value, (("a", None), ("timer-id", b"x"), ("a", b"\xff")))])
    assert second == (100, 1, "r/2", [(9, b"100", value, ())])


def test_timers_that_are_alike_take_little_room() -> None:
    requests = [
        timer_batches.Request(
            offset, b"100", future.encode("t", f"k{offset}", b"v" * 100), [("a", None), ("b", b"\xff")]
        )
        for offset in range(100)
    ]
    _, count, payload = timer_batches.timers(100, "r/1", requests)
    place, again = timer_batches.requests_of(payload)
    assert (count, place) == (100, "r/1")
    assert [each._replace(headers=list(each.headers)) for each in again] == requests
    assert len(payload) < sum(len(each.value or b"") for each in requests) / 4


def test_what_cannot_be_read_goes_on_as_a_dead_letter() -> None:
    (items,) = accept(
        [record(7, None, b"x", [("a", None)]), record(8, b"5", future.encode("t", "", bytes(MAX_BYTES)))]
    ).values()
    ((due_s, timers, payload),) = items
    assert (due_s, timers) == (timer_batches.AT_ONCE, 0)
    first, second = timer_batches.letters_of(payload)
    assert first[:2] == (None, b"x") and first[2][0] == ("a", None)
    assert dict(first[2][1:])["timer-source"] == b"r/1/7"
    assert dict(second[2])["timer-error"] == b"value-too-large"


def test_what_workers_have_done_is_not_done_again() -> None:
    """Offsets 0 to 9 were accepted by a worker that came through (second 100, offset 5)."""
    value = future.encode("t", "k", b"v")
    dues = {0: 99, 4: 100, 5: 100, 6: 100, 7: 101, 8: 50, 10: 99, 11: 100, 12: 102}
    records = [record(offset, b"%d" % due_s, value) for offset, due_s in dues.items()]
    records += [record(9, None, value), record(13, None, value)]
    batch = pa.RecordBatch.from_pylist(records, schema=to_arrow_schema(RECORD)).select(accepting.COLUMNS)
    (out,) = replace(ACCEPT, workers={"r/1": Progress(10, (100, 5)), "r/2": Progress(100, (10**9, 0))})([batch])
    items = [item for row in out.to_pylist() for item in timer_batches.unpack(row["timer_batch"])]
    left = {each.offset for due_s, _, payload in items if due_s >= 0 for each in timer_batches.requests_of(payload)[1]}
    assert left == {6, 7, 10, 11, 12}
    letters = [letter for due_s, _, payload in items if due_s < 0 for letter in timer_batches.letters_of(payload)]
    assert [dict(letter.headers)["timer-source"] for letter in letters] == [b"r/1/13"]


class Brokers:
    """Topic metadata with fixed limits; records each question."""

    def __init__(self, **limits: int) -> None:
        self.known = {name: Limits(most, name == "r") for name, most in limits.items()}
        self.asked: list[str] = []

    def begin(self) -> None:
        """A task begins."""

    def limits(self, topic: str) -> Limits | DeliveryProblem:
        self.asked.append(topic)
        return self.known.get(topic) or DeliveryProblem.unknown(topic)


def fire(brokers: Brokers, items: Sequence[timer_batches.Item], **settings: str) -> list[dict[str, Any]]:
    configured = Settings.load({"TIMERS_REQUEST_TOPIC": "r", **settings})
    batch = pa.RecordBatch.from_pydict({"tick_ms": [100_500], "timer_batch": [timer_batches.pack(items)]})
    task = FiringTask(Firing(configured, 5000), brokers)  # type: ignore[arg-type]
    return [row for out in task.fire([batch]) for row in out.to_pylist()]


def timer(topic: str, value: bytes = b"v", key: str = "k", offset: int = 7) -> timer_batches.Item:
    return timer_batches.timers(
        100, "r/1", [timer_batches.Request(offset, b"100", future.encode(topic, key, value), ())]
    )


def test_each_topic_is_asked_for_once_a_task() -> None:
    brokers = Brokers(t=10_000)
    rows = fire(brokers, [timer("t", offset=n) for n in range(5)] + [timer("gone", offset=n) for n in range(5)])
    assert sorted(brokers.asked) == ["gone", "t"]
    assert [row["offset"] for row in rows if row["topic"] == "t"] == list(range(5))
    letters = [row for row in rows if row["place"] is None]
    assert len(letters) == 5
    assert all(row["topic"] == "timer-dead-letter" and row["key"] == b"100" for row in letters)


@pytest.mark.parametrize("most", [2000, 2001, 3000])
def test_a_message_that_just_fits_is_sent(most: int) -> None:
    fitting = next(n for n in range(3000, 0, -1) if fire(Brokers(t=most), [timer("t", bytes(n))])[0]["place"])
    (too_large,) = fire(Brokers(t=most), [timer("t", bytes(fitting + 1))])
    said = {header["key"]: header["value"] for header in too_large["headers"]}
    assert said["timer-error"] == b"message-too-large"
    assert f"a batch of {most + 1} bytes, more than the {most} that fit".encode() in said["timer-error-message"]


def test_a_chain_of_timers_counts_its_links() -> None:
    value = future.encode("r", "x", b"")
    allowed = {"TIMERS_CALLBACK_ALLOW": "r"}
    (sent,) = fire(Brokers(r=10_000), [timer("r", value, key="200")], **allowed)
    assert sent["topic"] == "r" and sent["headers"] == [{"key": "callback-depth", "value": b"1"}]
    (refused,) = fire(Brokers(r=10_000), [timer("r", value, key="100")], **allowed)
    assert refused["place"] is None and refused["topic"] == "timer-dead-letter"
