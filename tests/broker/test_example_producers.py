"""The example producers in Java, Go and JavaScript, and receivers, by the commands on their page."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.docs.markdown import ROOT
from tests.harness.command_line import need
from tests.harness.process import Process, clean_environment
from tests.harness.system import System, timers
from tests.harness.waiting import DEADLINE_S, due_in, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(1200)]

BUILD_S = 900.0
"""The first build downloads the packages."""

DELAY_S = 5

COMMANDS = re.findall(r"^\(cd examples/(\w+) && (.+)\)$", (ROOT / "examples" / "README.md").read_text(), re.MULTILINE)
PRODUCERS = {language: command for language, command in COMMANDS if "unpaid" in command}
RECEIVERS = {language: command for language, command in COMMANDS if "receive" in command}


def copied(language: str, directory: Path) -> Path:
    """A copy of an example; a build writes nothing into the checkout."""
    built = shutil.ignore_patterns("target", "node_modules")
    return shutil.copytree(ROOT / "examples" / language, directory / "examples" / language, ignore=built)


def test_the_page_has_a_command_for_each_language() -> None:
    assert set(PRODUCERS) == {path.name for path in (ROOT / "examples").iterdir() if path.is_dir()} - {"__pycache__"}


@pytest.mark.parametrize(("language", "tools"), [("java", "mvn"), ("go", "go"), ("javascript", "npm node")])
def test_a_timer_of_each_language_fires(language: str, tools: str, running: System, tmp_path: Path) -> None:
    for tool in tools.split():
        need(tool)
    target = running.target()
    command = PRODUCERS[language].replace("expired o-1 unpaid 5", f"{target} o-1 unpaid {DELAY_S}")
    assert target in command
    environment = clean_environment(TIMERS_BROKERS=running.address, TIMERS_REQUEST_TOPIC=running.request_topic)
    log = tmp_path / "log"
    process = Process(language, ["bash", "-c", command], environment, copied(language, tmp_path), log)
    process.start()
    try:
        assert process.exit_code(BUILD_S) == 0, process.tail()
    finally:
        process.clean_up()
    ended_s = math.ceil(time.time())
    reader = running.reader(target)
    (fired,) = reader.take(1)
    assert (fired.key, fired.value, fired.headers[0]) == (b"o-1", b"unpaid", ("sent-by", language.encode()))
    assert fired.timer_id in process.log, "the program prints the id"
    assert math.ceil(process.started_at) <= fired.due_s - DELAY_S <= ended_s
    assert fired.lag_ms >= 0
    running.wait_past(fired.due_s)
    assert reader.rest() == []


@pytest.mark.parametrize(("language", "tools"), [("go", "go"), ("javascript", "npm node")])
def test_a_receiver_gets_each_callback_once(language: str, tools: str, running: System, tmp_path: Path) -> None:
    """Not what was taken back, and no record of another program. What it has committed does not come again."""
    for tool in tools.split():
        need(tool)
    target = running.target(partitions=2)
    command = RECEIVERS[language]
    (group,) = {"billing", "shipping"} & set(command.split())
    command = command.replace(f"expired {group}", f"{target} {group}-{target}")
    environment = clean_environment(TIMERS_BROKERS=running.address)
    producer = Producer({"bootstrap.servers": running.address, "transactional.id": target})
    producer.init_transactions(DEADLINE_S)

    def write(*, is_committed: bool) -> None:
        producer.begin_transaction()
        for partition in (0, 1, 0):
            headers: list[tuple[str, str | bytes | None]] = [] if is_committed else [("timer-id", "taken-back")]
            producer.produce(target, "v", "k", partition, headers=headers)
        producer.flush()
        (producer.commit_transaction if is_committed else producer.abort_transaction)(DEADLINE_S)

    def receive(sources: set[str]) -> None:
        process = Process(language, ["bash", "-c", command], environment, directory, tmp_path / "log")
        process.start()
        try:
            wait_until(lambda: set(printed(process)) >= sources, "it has got them", BUILD_S)
            write(is_committed=False)
            later = running.send(*timers(target, 1, due_in(2), 1))[0].source
            wait_until(lambda: later in printed(process), "it has got the last one")
            assert sorted(printed(process)) == sorted([*sources, later])
            os.killpg(process.pid, signal.SIGINT)  # Ctrl-C
            assert process.exit_code() == (language == "go"), process.tail()  # `go run` says that it was interrupted
        finally:
            process.clean_up()

    directory = copied(language, tmp_path)
    for _ in range(2):
        write(is_committed=False)
        write(is_committed=True)
        sent = running.send(*timers(target, 20, due_in(2), 2))
        write(is_committed=False)
        receive({each.source for each in sent})


def printed(process: Process) -> list[str]:
    """The timers whose callbacks a receiver has printed."""
    return re.findall(r"^(\S+/\d+/\d+|taken-back) ", process.log, re.MULTILINE)
