"""The log of a worker at its start, and when its start is refused."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from tests.harness.system import PARTITIONS, System
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.broker


def test_a_normal_start_has_no_warning_and_ends_with_ready(system: System) -> None:
    log = system.worker(forked=False).start().ready().log
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


def test_two_workers_with_one_name_report_it(system: System) -> None:
    """They start together and fence each other before their first heartbeats."""
    twins = [system.worker().start(TIMERS_WORKER_ID="twin") for _ in range(2)]
    sentence = "ERROR] the group removed this worker while it was running: probably a second one runs with"
    wait_until(lambda: any(f"{sentence} TIMERS_WORKER_ID=twin," in twin.log for twin in twins), "one says so")
