"""What the engine on Spark does with what the topic of targets says, or when it cannot be read."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness.constants import Constants
from tests.harness.waiting import wait_until
from timers.core.fired import Command
from timers.process.config.settings import Settings
from timers.spark.engine import commands
from timers.spark.engine.commands import Commands
from timers.wire.targets import Target, Targets

PAUSE = Command(1, "mails", True)


@pytest.fixture
def openings(constants: Constants) -> Any:
    constants(commands, TARGETS_LOOK_S=0.001, TARGETS_START_WAIT_S=0.0)

    def submit(answer: Any) -> Future[Any]:
        done = Future[Any]()
        done.set_exception(answer) if isinstance(answer, Exception) else done.set_result(answer)
        return done

    return SimpleNamespace(commands=(), parts=SimpleNamespace(producers=SimpleNamespace(submit=submit)))


def reading(openings: Any, *answers: Targets | Exception | None) -> Commands:
    """Commands whose reader finds one answer after the other; the last one again and again."""
    left = list(answers)
    read = Commands.__new__(Commands)
    made: Any = read
    made.__init__(Settings(), openings)
    made._client = SimpleNamespace(close=lambda: None)
    made._reader = SimpleNamespace(look=lambda wait_s: left.pop(0) if len(left) > 1 else left[0])
    return read


def test_no_exception_ends_the_reading(openings: Any, caplog: pytest.LogCaptureFixture) -> None:
    said = Targets({"mails": Target(PAUSE)}, {})
    with reading(openings, OSError("no"), RuntimeError("not foreseen"), None, said):
        wait_until(lambda: openings.commands == (PAUSE,), "the command is known")
    assert len([each for each in caplog.records if "cannot be read now" in each.message]) == 1


def test_each_record_that_cannot_be_read_is_named_once(openings: Any, caplog: pytest.LogCaptureFixture) -> None:
    known = {"mails": Target(PAUSE)}
    damaged = [Targets(known, {"a": "it is damaged"}), Targets(known, {"a": "it is damaged", "b": "it is damaged"})]
    with reading(openings, Targets(known, {}), damaged[0], damaged[0], damaged[1]):
        wait_until(lambda: "the record of 'b'" in caplog.text, "it is named")
    assert caplog.text.count("the record of 'a'") == 2, "with each change"
