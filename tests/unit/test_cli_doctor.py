"""``timers doctor``: what it says of workers and clocks, whose answers are given. The rest is in ``tests/broker``."""

import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.harness.console_pages import ANSWERS, LOST
from tests.harness.constants import Constants
from timers.cli import doctor as command
from timers.cli import partitions
from timers.cli.doctor import FAILED, OK, SKIPPED, Doctor, Line
from timers.console.figures import judged
from timers.kafka import brokers_time
from timers.process.clock import Clock
from timers.process.config.settings import Settings

STRANGER = "another program is in the group 'timers': client 'report' at 10.1.2.3 (protocol consumer). Stop it"


@pytest.mark.parametrize("workers", [[], [{**LOST, "why": "the group does not tell its address"}], [ANSWERS]])
def test_a_program_that_has_the_group_is_named_and_no_worker_is_to_be_started(
    workers: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers deal, or they keep the workers out."""

    async def look(_: Any) -> dict[str, Any]:
        return {"state": judged(workers, STRANGER)._asdict(), "taken": STRANGER, "workers": workers}

    monkeypatch.setattr(partitions, "look", look)
    found = Doctor(Settings())
    (line,) = found._workers()
    assert line.state == FAILED and "client 'report'" in line.says and line.says.startswith("group: ")
    assert "timersgrouptaken" in line.remedy and "Start" not in line.remedy
    (timer,) = found._timer()
    assert timer.state == SKIPPED


NOW_MS = 1_800_000_000_000
OLD_MS = NOW_MS - 3 * 3_600_000
SILENT = KafkaException(KafkaError(KafkaError._TIMED_OUT))


def clocks(answers: list[dict[int, int] | KafkaException], monkeypatch: pytest.MonkeyPatch) -> Line:
    left = iter(answers)

    def ticks(_: Settings) -> dict[int, int]:
        answer = next(left, answers[-1])
        if isinstance(answer, KafkaException):
            raise answer
        return answer

    monkeypatch.setattr(brokers_time, "newest_ticks_ms", ticks)
    monkeypatch.setattr(Clock, "now_s", lambda _: NOW_MS / 1000)
    (line,) = Doctor(Settings())._clocks()
    return line


@pytest.mark.parametrize(
    ("answers", "state", "words"),
    [
        ([{}, {0: OLD_MS}], SKIPPED, "no worker writes ticks"),
        ([{0: OLD_MS - 5000}, {0: OLD_MS - 5000, 1: OLD_MS}], SKIPPED, "no worker writes ticks"),
        ([SILENT], SKIPPED, "the brokers do not say which tick is the newest"),
        ([SILENT, {0: NOW_MS - 1000}, {0: NOW_MS}], OK, "agree"),
        ([{0: OLD_MS - 1000}, {1: OLD_MS - 9000}, {0: OLD_MS}], FAILED, "3 h ahead"),
    ],
)
def test_only_a_tick_that_came_meanwhile_says_the_brokers_time(
    answers: list[dict[int, int] | KafkaException],
    state: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    constants: Constants,
) -> None:
    """With no worker for three hours, an old tick of a partition that answers later is not the brokers' time."""
    constants(command, _POLL_S=0.0, _TICK_S=0.05)
    pauses_s: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses_s.append)
    line = clocks(answers, monkeypatch)
    assert state == SKIPPED or len(pauses_s) == len(answers) - 1, "it does not wait after the last one"
    assert line.state == state and words in line.says
