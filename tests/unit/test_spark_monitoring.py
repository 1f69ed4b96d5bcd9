"""Metrics and health of jobs on Spark, without Spark."""

import json
import socket
from collections import Counter

import pytest

from tests.harness.clock import SimClock
from tests.harness.scrape import get
from timers.core.counters import Counters, TransactionCounters, subtracted
from timers.core.progress import Progress
from timers.core.timer import TopicPartition
from timers.errors import SettingsError
from timers.spark.monitoring import (
    MAX_WORK_S,
    METRICS,
    SHARED,
    UNLIVE_S,
    UNREADY_S,
    EngineCounts,
    Monitor,
    behind,
    served,
)
from timers.spark.totals import Snapshot, Total
from timers.worker.metrics import METRICS as WORKER_METRICS

TP = ("timer-request", 0)


def test_a_job_is_ready_after_its_first_micro_batch_and_while_others_follow() -> None:
    clock = SimClock()
    monitor = Monitor("hold", 10, clock)
    with served(monitor, 0, "127.0.0.1") as port:
        status, page = get(port, "/health/ready")
        assert (status, json.loads(page)["reasons"]) == (503, ["the job has not read its topics yet"])
        assert get(port, "/health/live") == (200, '{"live": true, "reasons": []}')
        monitor.ended(7, 1.5, 100)
        assert get(port, "/health/ready") == (200, '{"ready": true, "reasons": []}')
        clock.now_s += UNREADY_S + 31
        status, page = get(port, "/health/ready")
        assert status == 503 and "no micro-batch has ended for 91 s, more than 90 s" in page
        assert get(port, "/health/live")[0] == 200, "a long micro-batch is no reason to end the process"
        monitor.looked()
        assert get(port, "/health/ready")[0] == 200
        clock.now_s += UNLIVE_S + 31
        assert get(port, "/health/live")[0] == 503
        assert get(port, "/nothing")[0] == 404


def test_an_engine_whose_group_another_program_has_is_not_ready_and_says_so() -> None:
    monitor = Monitor("engine", 10)
    monitor.engine = EngineCounts()
    monitor.looked()
    with served(monitor, 0, "127.0.0.1") as port:
        assert get(port, "/health/ready")[0] == 200
        assert "\ntimers_group_taken 0.0" in get(port, "/metrics")[1]
        monitor.taken = lambda: "another program is in the group"
        status, page = get(port, "/health/ready")
        assert (status, json.loads(page)["reasons"]) == (503, ["another program is in the group"])
        assert "\ntimers_group_taken 1.0" in get(port, "/metrics")[1]
        assert list(monitor.idle()) == [], "it fires on"
        assert '\ntimers_spark_works{spark_job="engine"} 1.0' in get(port, "/metrics")[1], "it raises no alert"


def test_a_job_at_long_work_is_not_ready_and_works() -> None:
    """The search of `promote` before its first round: who ends it begins it anew."""
    clock = SimClock()
    monitor = Monitor("promote", 60, clock)
    assert not monitor.works(), "it has not begun"
    with monitor.at_work():
        clock.now_s += 600
        assert list(monitor.unready()) and monitor.works() and not list(monitor.unlive())
        clock.now_s += MAX_WORK_S
        assert not monitor.works() and list(monitor.unlive())
    assert not monitor.works(), "it has not read its topics yet"
    monitor.looked()
    assert monitor.works()
    clock.now_s += UNREADY_S + 181
    assert not monitor.works()


def test_the_metrics_page_has_each_metric_with_the_name_of_the_job() -> None:
    clock = SimClock()
    monitor = Monitor("engine", 10, clock)
    monitor.needs_ticks()
    with served(monitor, 0, "127.0.0.1") as port:
        clock.now_s += 1
        monitor.ticked(5000)
        clock.now_s += 2
        monitor.ticked(5000)
        monitor.ended(7, 2.0, 100)
        monitor.ended(3, 1.5, 90)
        clock.now_s += 4
        assert "timers_spark_upkeep_age_seconds{" not in get(port, "/metrics")[1], "it has no tables"
        monitor.upkept()
        clock.now_s += 3
        monitor.looked()
        status, page = get(port, "/metrics?x=1")
    assert status == 200 and "process_resident_memory_bytes" in page
    values = {entry.name: f'\n{entry.name}{{spark_job="engine"}} ' for entry in METRICS}
    found = {name: float(page.partition(start)[2].split("\n")[0]) for name, start in values.items()}
    assert found == {
        "timers_spark_micro_batches_total": 2,
        "timers_spark_rows_total": 10,
        "timers_spark_micro_batch_seconds": 1.5,
        "timers_spark_idle_seconds": 0,
        "timers_spark_tick_age_seconds": 9,
        "timers_spark_behind_records": 90,
        "timers_spark_upkeep_age_seconds": 3,
        "timers_spark_works": 1,
        "timers_spark_ready": 1,
    }


def test_a_job_that_needs_no_ticks_shows_no_age_of_a_tick() -> None:
    with served(Monitor("hold", 10), 0, "127.0.0.1") as port:
        assert "timers_spark_tick_age_seconds{" not in get(port, "/metrics")[1]


def test_a_job_that_ends_by_itself_does_not_say_that_it_works() -> None:
    """An alert watches jobs that have said so, and are gone."""
    monitor = Monitor("hold", 10)
    with served(monitor, 0, "127.0.0.1") as port:
        assert 'timers_spark_works{spark_job="hold"}' in get(port, "/metrics")[1]
        monitor.has_end = True
        assert "timers_spark_works{" not in get(port, "/metrics")[1]


def test_a_port_in_use_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(SettingsError, match=f"127.0.0.1:{port} cannot be listened on"),
            served(Monitor("hold", 10), port, "127.0.0.1"),
        ):
            pass


def test_a_query_is_behind_by_the_records_that_it_has_not_read() -> None:
    sources = [
        {"endOffset": {"a": {"0": 5, "1": 7}}, "latestOffset": {"a": {"0": 9, "1": 7, "2": 3}}},
        {"endOffset": None, "latestOffset": {"b": {"0": 2}}},
        {"endOffset": {"c": {"0": 5}}, "latestOffset": None},
    ]
    assert behind({"sources": sources}) == 4 + 3 + 2


def test_a_job_that_needs_ticks_is_ready_while_they_come() -> None:
    clock = SimClock()
    monitor = Monitor("engine", 1, clock)
    monitor.looked()
    monitor.needs_ticks()
    assert list(monitor.unready()) == ["no tick has counted since the job began, so no timer fires"]
    monitor.ticked(5000)
    assert not list(monitor.unready())
    clock.now_s += UNREADY_S + 1
    monitor.looked()
    said = ["no newer tick has counted for 61 s, so no timer fires"]
    assert list(monitor.unready()) == said
    monitor.ticked(7000)
    assert not list(monitor.unready())
    clock.now_s += UNREADY_S + 1
    monitor.looked()
    monitor.ticked(6000)
    assert list(monitor.unready()) == said, "it is an older one"
    assert not list(monitor.unlive())


def test_the_engine_shows_what_a_worker_shows_under_the_same_names() -> None:
    clock = SimClock()
    monitor = Monitor("engine", 1, clock)
    in_driver = Counters()
    in_driver.retried, in_driver.dead_lettered = 2, Counter({"value-too-large": 1})
    retries: dict[TopicPartition, tuple[int, int | None]] = {("retry", 0): (2, 995)}
    monitor.engine = counts = EngineCounts(lambda: [in_driver], lambda: 4, lambda: retries)
    worked, before = Counters(), Counters().numbers()
    for fired, due_s in ((3, 1000), (2, 1001)):
        one_letter = Counter({"no-such-topic": 1})
        worked.transaction = TransactionCounters(fired={"orders": {due_s: fired}}, dead_lettered=one_letter)
        worked.transaction.mended, worked.transaction.followed, worked.transaction.missed = 1, 2, Counter({"late": 3})
        worked.transaction.ended_ms = 1001_500
        worked.count_committed(Progress())
        waiting: dict[TopicPartition, tuple[int, int | None]] = {TP: (7, 998), ("timer-request", 1): (0, None)}
        snapshots = {TP: Snapshot(5, 70, 512 * 1024, 990_000), ("timer-request", 1): Snapshot(9, None, None, None)}
        counts.add(Total(subtracted(worked.numbers(), before), waiting, True, snapshots, []))
        before = worked.numbers()
    monitor.needs_ticks()
    monitor.ticked(1_000_000)
    clock.now_s += 2
    with served(monitor, 0, "127.0.0.1") as port:
        _, page = get(port, "/metrics")
    shown = dict(
        line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("timers_") and "spark" not in line
    )
    assert float(shown["timers_fired_total"]) == 5 and float(shown["timers_retried_total"]) == 2
    assert float(shown["timers_occurrences_total"]) == 4
    assert float(shown["timers_occurrences_mended_total"]) == 2
    assert float(shown['timers_occurrences_missed_total{reason="late"}']) == 6
    assert float(shown['timers_occurrences_missed_total{reason="held"}']) == 0
    assert float(shown["timers_open_circuits"]) == 4
    letters = {line: float(value) for line, value in shown.items() if "dead_lettered_total" in line and float(value)}
    assert letters == {
        'timers_dead_lettered_total{code="no-such-topic"}': 2,
        'timers_dead_lettered_total{code="value-too-large"}': 1,
    }
    lag = 'timers_lag_seconds_bucket{le="%s",way="waited"}'
    assert [float(shown[lag % bound]) for bound in ("0.3", "0.5", "1.5")] == [0, 2, 5]
    assert float(shown['timers_lag_seconds_sum{way="waited"}']) == 3 * 1.5 + 2 * 0.5
    place = '{partition="%d",topic="timer-request"}'
    assert [float(shown["timers_pending" + place % number]) for number in (0, 1)] == [7, 0]
    assert [float(shown["timers_oldest_overdue_seconds" + place % number]) for number in (0, 1)] == [4, 0]
    assert float(shown['timers_pending{partition="0",topic="retry"}']) == 2
    assert float(shown['timers_oldest_overdue_seconds{partition="0",topic="retry"}']) == 7
    assert counts.present(1002)["pending"] == 9

    for name, values in {"unread_offsets": (5, 9), "offset": (70,), "bytes": (524288,), "age_seconds": (12,)}.items():
        series = [shown.get(f"timers_snapshot_{name}{place % number}") for number in (0, 1)]
        assert [float(each) for each in series if each] == [*values], name


def test_a_process_that_knows_an_older_snapshot_does_not_hide_when_the_newest_was_complete() -> None:
    counts = EngineCounts()
    for written_ms, said in ((None, None), (2000, 2000), (1000, 2000), (None, 2000), (3000, 3000)):
        counts.add(Total({}, {}, True, {TP: Snapshot(0, 7, 1, written_ms)}, []))
        assert counts.snapshots[TP].written_ms == said


def test_shared_metrics_are_those_of_a_worker() -> None:
    workers = {entry.name_and_labels: (entry.help, entry.kind) for entry in WORKER_METRICS}
    assert all(workers[entry.name_and_labels] == (entry.help, entry.kind) for entry in SHARED)
    with served(Monitor("hold", 10), 0, "127.0.0.1") as port:
        assert "\ntimers_fired_total " not in get(port, "/metrics")[1]


def test_an_engine_keeps_its_figures_while_it_works() -> None:
    clock = SimClock()
    monitor = Monitor("engine", 1, clock)
    monitor.needs_ticks()
    monitor.engine = EngineCounts()
    for _ in range(12):
        clock.now_s += 1
        monitor.ticked(int(1_900_000_000_000 + 1000 * clock.now_s))
        monitor.engine.add(Total({"fired": 10}, {TP: (7, None)}, True, {}, ()))
        monitor.ended(10, 0.1)
    points = json.loads(monitor.past_figures.page(0, {}))["points"]
    assert [(each["s"], each["counts"]["fired"], each["pending"]) for each in points] == [(5, 50, 7), (5, 50, 7)]
