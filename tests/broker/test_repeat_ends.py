"""Timers that repeat whose next occurrence is lost, or cannot be written: they go on, or end alone [I37]."""

import json
import time
from pathlib import Path

import pytest

from tests.chaos.logs.broker_disk import restart_without_end
from tests.harness.command_line import command
from tests.harness.ids import Ids
from tests.harness.scrape import scrape
from tests.harness.waiting import wait_until
from timers.cli.broker import EmbeddedBroker
from timers.wire import headers as h

pytestmark = pytest.mark.broker

EVERY_S = 12


def define(ids: Ids, id: str, value: bytes, rule: str) -> None:
    ids.send(id.encode(), value, [(h.TIMER_TOPIC, ids.target.encode()), (h.TIMER_REPEAT, rule.encode())])
    ids.flush()


def test_a_timer_whose_next_occurrence_the_log_has_lost_goes_on(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "broker", 0)
    ids = Ids(broker.start(), tmp_path)
    try:
        worker = ids.system.worker(quick=True).start().ready()
        log = ids.system.reader(ids.topic)
        from_s = int(time.time()) + 4
        define(ids, "report", b"daily", f"every={EVERY_S}; from={from_s}")
        assert [each.due_s for each in ids.fired.take(1)] == [from_s]
        _, _, lost = log.take(3)
        worker.kill()
        restart_without_end(broker, ids.topic, lost.partition, lost.offset)
        worker.start(TIMERS_ACCEPT_LOSS=f"{ids.topic}/{lost.partition}").ready()
        worker.wait_for("the log lost the next occurrence of 1 repeating timer")
        fired = ids.fired.take(2)
        assert (fired[0].due_s - from_s) % EVERY_S == 0
        assert fired[1].due_s == fired[0].due_s + EVERY_S
        assert fired[0].due_s > from_s, "what has fired does not fire again"
        assert scrape(worker.port).total("timers_occurrences_mended_total") == 1
    finally:
        ids.system.close()
        broker.stop()


@pytest.mark.long
def test_a_timer_whose_next_occurrence_is_too_large_does_not_hold_up_the_others(
    broker_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = Ids(broker_address, tmp_path)
    try:
        ids.system.worker(quick=True).start().ready()
        ids.system.use(monkeypatch)
        ids.system.configure(ids.topic, max_message_bytes="20000")
        for number in range(20):
            define(ids, f"small-{number}", b"x", "every=1")
        ids.system.configure(ids.topic, max_message_bytes="1000000")
        define(ids, "large", b"x" * 60_000, "every=3")
        ids.told(21)
        wait_until(lambda: "large" in {each.timer_id for each in ids.fired.take(20)}, "it fires once")
        ids.system.configure(ids.topic, max_message_bytes="20000")
        (letter,) = ids.system.dead_letters().take(1)
        assert (letter.text("timer-error"), letter.key, letter.value) == ("repeat-lost", b"large", b"x" * 60_000)
        told = [json.loads(each.value or b"") for each in ids.verdicts.take(1)]
        assert [(each["id"], each["verdict"]) for each in told] == [("large", "cancelled")]
        assert {each.timer_id for each in ids.fired.take(80)} >= {f"small-{number}" for number in range(20)}
        late_ms = max(each.lag_ms for each in ids.fired.take(40))
        assert late_ms < 5_000, "the partition goes on"

        ids.system.configure(ids.topic, max_message_bytes="1000000")
        done = command(capsys, "dead-letters", "retry", "--code", "repeat-lost", "--force", "--yes")
        assert done.code == 0, done.err
        wait_until(lambda: "large" in {each.timer_id for each in ids.fired.take(20)}, "it goes on")
    finally:
        ids.system.close()
