"""Brokers that throttle the worker by a quota: everything fires later, and nothing counts as failing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.harness.callbacks import check, read_callbacks
from tests.harness.judge import judge
from tests.harness.publication import Publication, dues, start_publisher
from tests.harness.quotas import PRODUCER_BYTES_PER_S, set_quota
from tests.harness.scrape import scrape
from tests.harness.system import PARTITIONS, System
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.cli.broker import EmbeddedBroker

pytestmark = pytest.mark.broker

QUOTA_WINDOW_S = 10
"""A broker compares the mean rate of so many seconds with the quota, so a burst of as many seconds is not throttled."""


def fire_all(
    broker: EmbeddedBroker, directory: Path, bytes_per_s: float, count: int, deadline_s: float
) -> tuple[float, int]:
    """Let a worker fire ``count`` overdue timers under a quota; each must fire once, and nothing may fail.

    Returns:
        Seconds from the first to the last callback, and bytes of the callbacks.
    """
    system = System(broker.start(), directory)
    try:
        system.create_own_topics()
        target = system.target(PARTITIONS)
        publication = Publication(
            brokers=system.address,
            topic=system.request_topic,
            target=target,
            timers=count,
            first_due_s=int(time.time()) - 5,
            spread_s=5,
            payload_bytes=100,
            partitions=PARTITIONS,
            partitioner="spread",
        )
        publisher = start_publisher(publication, directory)
        assert publisher.exit_code() == 0, publisher.tail()
        set_quota(system.address, PRODUCER_BYTES_PER_S, bytes_per_s)
        worker = system.worker().start()
        wait_until(lambda: system.end(target, committed=True) >= count, "as many records were written", deadline_s)
        # Some of them may have been rolled back.
        wait_until(lambda: not check(system.cluster, publication).lost, "all have fired", deadline_s)
        metrics = scrape(worker.port)
        set_quota(system.address, PRODUCER_BYTES_PER_S, None)
        found = read_callbacks(system.cluster, publication)
        fired = judge(found, dues(publication))
        assert (fired.lost, fired.duplicates, fired.early) == (0, 0, 0)
        assert system.dead_letters().rest() == [] and system.end(system.settings.retry_topic) == 0
        assert " fails: " not in worker.log, worker.tail()
        assert metrics.total("timers_throttled_seconds_total") > 0
        size = sum(path.stat().st_size for path in Path(broker.directory).rglob(f"{target}-*/*.log"))
        return (int(found.append_ms.max()) - int(found.append_ms.min())) / 1000, size
    finally:
        system.close()


@pytest.mark.long  # it is sensitive to other load: a starved worker cannot tell a quota from a slow broker
def test_a_quota_delays_timers_and_opens_no_circuit(own_broker: EmbeddedBroker, tmp_path: Path) -> None:
    rate = 256_000
    seconds, size = fire_all(own_broker, tmp_path, rate, 30_000, 3 * DEADLINE_S)
    assert seconds > size / rate - 2 * QUOTA_WINDOW_S, "the quota had no effect"


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_most_of_a_quota_is_used(own_broker: EmbeddedBroker, tmp_path: Path) -> None:
    rate = 1_000_000
    seconds, size = fire_all(own_broker, tmp_path, rate, 1_000_000, 900)
    used = size / (rate * (seconds + QUOTA_WINDOW_S))
    print(f"{size / 1e6:.1f} MB in {seconds:.1f} s: {used:.0%} of the quota")
    assert used >= 0.8
