"""The example producers in Java, Go and JavaScript, and receivers, by the commands on their page."""

import math
import os
import signal
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.harness.example_programs import (
    BUILD_S,
    EXAMPLES,
    PRODUCERS,
    RECEIVERS,
    TOOLS,
    copied,
    need_tools,
    printed,
    receiver,
)
from tests.harness.process import Process, clean_environment
from tests.harness.system import System, timers
from tests.harness.waiting import DEADLINE_S, due_in, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(1200)]

DELAY_S = 5

INTERRUPTED = {"java": 130, "go": 1, "javascript": 0}
"""Exit codes after Ctrl-C. Maven and `go run` say that they were interrupted."""


def test_the_page_has_a_command_for_each_language() -> None:
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir()} - {"__pycache__"}
    assert set(PRODUCERS) == set(RECEIVERS) == set(TOOLS) == folders


@pytest.mark.parametrize("language", TOOLS)
def test_a_timer_of_each_language_fires(language: str, running: System, tmp_path: Path) -> None:
    need_tools(language)
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


@pytest.mark.parametrize("language", TOOLS)
def test_a_receiver_gets_each_callback_once(language: str, running: System, tmp_path: Path) -> None:
    """Not what was taken back, and no record of another program. What it has committed does not come again."""
    need_tools(language)
    target = running.target(partitions=2)
    command = receiver(language, target, f"of-{target}")
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
            assert process.exit_code() == INTERRUPTED[language], process.tail()
        finally:
            process.clean_up()

    directory = copied(language, tmp_path)
    for _ in range(2):
        write(is_committed=False)
        write(is_committed=True)
        sent = running.send(*timers(target, 20, due_in(2), 2))
        write(is_committed=False)
        receive({each.source for each in sent})
