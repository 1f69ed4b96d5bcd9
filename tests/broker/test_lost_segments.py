"""A disk of the brokers lost a segment in the middle of a request log [I32]."""

import shutil
import time
from pathlib import Path

import pytest

from tests.harness.scrape import health
from tests.harness.system import System, timers
from tests.harness.waiting import due_in, wait_until
from timers.cli.broker import EmbeddedBroker
from timers.cli.broker.embedded import DATA

pytestmark = pytest.mark.broker

SEGMENT_S = 1.0
EACH = 20
"""Requests in a segment."""


@pytest.mark.long
def test_a_log_that_lost_a_segment_in_its_middle_is_not_read_in_silence(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "broker", 0)
    system = System(broker.start(), tmp_path, TIMERS_PARTITIONS="1")
    try:
        worker = system.worker().start().ready()
        topic = system.request_topic
        system.configure(topic, segment_ms=str(int(1000 * SEGMENT_S)))
        for _ in range(3):
            system.send(*timers(system.target(), EACH, due_in(600), 3))
            time.sleep(SEGMENT_S)
        wait_until(lambda: health(worker.port, "ready")[1]["pending"] == 3 * EACH, "all are accepted")
        worker.stop()

        broker.stop()
        segments = sorted((broker.directory / DATA / f"{topic}-0").glob("*.log"))
        for each in segments[1].parent.glob(f"{segments[1].stem}.*"):
            each.unlink()
        broker.start()
        worker.start().ready()
        assert health(worker.port, "ready")[1]["pending"] == 3 * EACH, "the store on its disk holds what the log lacks"
        worker.stop()

        shutil.rmtree(worker.data_dir)
        worker.start().wait_for(f"{topic}/0 has lost {EACH} records between the offsets 0 and {3 * EACH}")
        wait_until(lambda: health(worker.port, "partitions")[0] == 503, "it is red")
        worker.stop()
        worker.start(TIMERS_ACCEPT_LOSS=f"{topic}/0").ready()
        assert health(worker.port, "ready")[1]["pending"] == 2 * EACH
        worker.stop()
        shutil.rmtree(worker.data_dir)
        worker.start().ready()
        assert health(worker.port, "ready")[1]["pending"] == 2 * EACH, "it was accepted once"
    finally:
        system.close()
        broker.stop()
