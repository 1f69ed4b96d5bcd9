"""The example producers in Java, Go and JavaScript: each schedules a timer that fires, by the command on its page."""

from __future__ import annotations

import math
import re
import shutil
import time
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT
from tests.harness.command_line import need
from tests.harness.process import Process, clean_environment
from tests.harness.system import System

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(1200)]

BUILD_S = 900.0
"""The first build downloads the packages."""

DELAY_S = 5

COMMANDS = dict(
    re.findall(r"^\(cd examples/(\w+) && (.+)\)$", (ROOT / "examples" / "README.md").read_text(), re.MULTILINE)
)


def copied(language: str, directory: Path) -> Path:
    """A copy of an example; a build writes nothing into the checkout."""
    built = shutil.ignore_patterns("target", "node_modules")
    return shutil.copytree(ROOT / "examples" / language, directory / "examples" / language, ignore=built)


def test_the_page_has_a_command_for_each_language() -> None:
    assert set(COMMANDS) == {path.name for path in (ROOT / "examples").iterdir() if path.is_dir()} - {"__pycache__"}


@pytest.mark.parametrize(("language", "tools"), [("java", "mvn"), ("go", "go"), ("javascript", "npm node")])
def test_a_timer_of_each_language_fires(language: str, tools: str, running: System, tmp_path: Path) -> None:
    for tool in tools.split():
        need(tool)
    target = running.target()
    command = COMMANDS[language].replace("expired o-1 unpaid 5", f"{target} o-1 unpaid {DELAY_S}")
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
