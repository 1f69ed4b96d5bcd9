"""The log of a worker at its start, and when its start is refused."""

import json
import re
import socket
from pathlib import Path

import pytest

from tests.harness.system import PARTITIONS, System
from tests.harness.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.broker


def test_a_normal_start_has_no_warning_and_ends_with_ready(system: System) -> None:
    log = system.worker(forked=False).start(TIMERS_SESSION_TIMEOUT_S="60").ready().log  # a pause must not end it
    assert "Warning" not in log
    assert "memory:" not in log, "Faust's table of settings, some of which do not apply"
    said = re.findall(r"\] (recovered|ready)", log)
    assert said == [*["recovered"] * 2 * PARTITIONS, "ready"]


def test_json_logs_have_one_object_in_each_line(system: System) -> None:
    worker = system.worker(forked=False).start(TIMERS_LOG_FORMAT="json")
    worker.ready()
    worker.stop()
    lines = [json.loads(line) for line in worker.log.splitlines() if line.startswith("{")]
    banner = worker.log[: worker.log.index("{")]
    assert "\n{" not in banner
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert any(line["message"].startswith("ready: ") for line in lines)
    after_banner = worker.log[worker.log.index("{") :].splitlines()
    assert len(after_banner) == len(lines)


@pytest.mark.parametrize("log_format", ["console", pytest.param("json", marks=pytest.mark.long)])
def test_a_refused_start_is_one_sentence(tmp_path: Path, broker_address: str, log_format: str) -> None:
    system = System(broker_address, tmp_path)
    try:
        system.create_topic(system.settings.dead_letter_topic, cleanup_policy="compact")
        worker = system.worker(forked=False).start(TIMERS_LOG_FORMAT=log_format)
        assert worker.exit_code() == 1
        wait_until(lambda: "which would lose timers" in worker.log, "the sentence")
        assert worker.log.count("which would lose timers") == 1
        assert "Traceback" not in worker.log
        assert "Error" not in worker.log
    finally:
        system.close()


def test_a_taken_port_is_reported_before_the_worker_joins_the_group(system: System) -> None:
    worker = system.worker(forked=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", worker.port))
        taken.listen()
        worker.start()
        assert worker.exit_code() == 2
    (sentence,) = worker.sentences
    assert sentence.startswith(f"timers: TIMERS_WEB_PORT={worker.port} cannot be listened on")
    assert "Traceback" not in worker.log and "oining group" not in worker.log


def test_of_two_workers_with_one_name_one_ends_and_says_so(system: System) -> None:
    twins = [system.worker().start(TIMERS_WORKER_ID="twin") for _ in range(2)]
    wait_until(lambda: not all(twin.running for twin in twins), "the end of one", 2 * DEADLINE_S)
    (ended,) = (twin for twin in twins if not twin.running)
    (left,) = (twin for twin in twins if twin is not ended)
    assert ended.exit_code() == 6
    assert "another worker was started with TIMERS_WORKER_ID=twin, and has the partitions of this one" in ended.log
    left.ready()
