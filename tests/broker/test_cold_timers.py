"""Cold timers on a real broker: copies that come back early, twice, late or forged."""

import math
import shutil
from pathlib import Path

import pytest

from tests.harness.records import Headers, Record, Request
from tests.harness.scrape import scrape, wait_equal
from tests.harness.system import System
from tests.harness.waiting import due_in
from timers.wire import cold
from timers.wire import headers as h

pytestmark = pytest.mark.broker


@pytest.mark.long
def test_a_cold_timer_fires_once_even_if_several_copies_come_back(broker_address: str, tmp_path: Path) -> None:
    system = System(broker_address, tmp_path, TIMERS_HOT_HORIZON_S="5", TIMERS_COLD_TOPIC="cold-of-test")
    worker = system.worker().start().ready()
    target = system.target()
    headers: Headers = [("a", b"1"), ("a", None), ("timer-id", b"copied")]
    due_s = due_in(9 + math.ceil(4 * worker.ready_s))
    requests = [Request(target, due_s, f"key-{n}", b"value-%d" % n, headers, partition=n % 4) for n in range(40)]
    hot = Request(target, due_in(2), "hot")
    system.send(*requests, hot)
    cold_ones = system.reader("cold-of-test").take(len(requests))
    told = {each.source: (each, record) for record in cold_ones if (each := cold.decode_cold(record.headers))}
    assert told.keys() == {request.source for request in requests}
    publisher = system.publisher()

    def promote(request: Request, value: bytes | None = None) -> str:
        said, record = told[request.source]
        partition = int(said.source.split("/")[1])
        return publisher.send_raw(record.key, value or record.value, cold.encode_promoted(said), partition)

    early, late = requests[:20], requests[20:]
    for request in early:
        promote(request)
    worker.kill()
    shutil.rmtree(worker.data_dir)
    worker.start(TIMERS_HOT_HORIZON_S="0").ready()
    for request in early:
        promote(request)
    forged = promote(late[0], value=Request(target, due_s, "forged").wire_value)
    (letter,) = system.dead_letters().take(1)
    assert (letter.text(h.TIMER_ERROR), letter.text(h.TIMER_SOURCE)) == ("promotion-invalid", forged)
    reader = system.reader(target)
    first = reader.take(len(early) + 1)
    for request in requests:  # late ones for the first time, early ones when they have fired
        promote(request)
        promote(request)
    records = first + reader.take(len(late))
    system.wait_past(due_s)
    records += reader.rest()
    check(records, [*requests, hot])
    assert {record.timer_id for record in first} == {request.source for request in [*early, hot]}
    # Of the early ones, the first copies may have been accepted by the worker that was killed.
    repeated = 3 * len(early) + len(late)
    wait_equal(lambda: scrape(worker.port).total("timers_promoted_duplicates_total"), repeated)
    worker.stop()
    system.close()


def check(records: list[Record], requests: list[Request]) -> None:
    """Check that each fired once, as it was requested."""
    by_source = {record.timer_id: record for record in records}
    assert len(records) == len(by_source) == len(requests)
    for request in requests:
        record = by_source[request.source]
        assert (record.key, record.value, record.due_s) == (request.key.encode(), request.value, request.due_s)
        assert record.lag_ms >= 0
        travelled = [each for each in record.headers if not each[0].startswith(h.PREFIX)]
        assert travelled == [each for each in request.headers if not each[0].startswith(h.PREFIX)]


def test_a_cold_topic_with_too_small_a_message_limit_is_refused(broker_address: str, tmp_path: Path) -> None:
    system = System(broker_address, tmp_path, TIMERS_HOT_HORIZON_S="5", TIMERS_COLD_TOPIC="small-cold-of-test")
    system.create_topic("small-cold-of-test", 1, max_message_bytes="100000")
    worker = system.worker().start()
    assert worker.exit_code() == 1
    assert "topic 'small-cold-of-test' has max.message.bytes=100000, less than a request may take" in worker.log
    assert "--add-config max.message.bytes=1065536" in worker.log
    system.close()
