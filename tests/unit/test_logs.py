"""The filters of logs, and their formats."""

import asyncio
import json
import logging
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError

from tests.harness.clock import SimClock
from tests.harness.constants import Constants
from tests.harness.machines import NativeRig
from timers.core.progress import Progress
from timers.errors import SettingsError, TopicConfigError
from timers.process import logs
from timers.wire.topics import partition_name
from timers.worker import logs as worker_logs
from timers.worker.machines import recoveries


def record(name: str, message: str, *args: Any, level: int = logging.ERROR, error: bool = False) -> logging.LogRecord:
    return logging.LogRecord(name, level, __file__, 1, message, args, sys.exc_info() if error else None)


def test_a_repeated_message_of_a_library_is_written_at_intervals_with_a_count() -> None:
    clock = SimClock()
    repeats = logs.RepeatFilter(clock)
    written = []
    for step in range(25):
        clock.now_s = 100 + step
        entry = record("aiokafka.conn", "Unable to connect to %s", f"node {step}")
        if repeats.filter(entry):
            written.append(entry.getMessage())
    assert written == [
        "Unable to connect to node 0",
        "Unable to connect to node 10 (9 more like this in 10 s)",
        "Unable to connect to node 20 (9 more like this in 10 s)",
    ]


def test_other_messages_and_levels_are_written() -> None:
    repeats = logs.RepeatFilter(SimClock())
    assert repeats.filter(record("aiokafka.conn", "one"))
    assert repeats.filter(record("aiokafka.conn", "other"))
    assert repeats.filter(record("aiokafka.client", "one"))
    assert repeats.filter(record("aiokafka.conn", "one", level=logging.WARNING))
    assert not repeats.filter(record("aiokafka.conn", "one"))


@pytest.mark.parametrize(
    ("name", "level"), [("timers.worker.machines.pool", logging.ERROR), ("mode.services", logging.INFO)]
)
def test_messages_of_timers_and_low_levels_of_faust_are_always_written(name: str, level: int) -> None:
    repeats = logs.RepeatFilter(SimClock())
    assert all(repeats.filter(record(name, "said again", level=level)) for _ in range(3))


def test_messages_that_are_never_repeated_do_not_fill_memory() -> None:
    repeats = logs.RepeatFilter(SimClock())
    assert all(repeats.filter(record("aiokafka", f"text {index}")) for index in range(5000))
    assert len(repeats._written) <= 1001


def test_the_traceback_of_an_expected_error_is_dropped() -> None:
    refusals = partial(worker_logs.is_news, lambda: None)
    try:
        try:
            raise SettingsError("the sentence")
        except SettingsError as error:
            raise RuntimeError("in between") from error
    except RuntimeError:
        assert not refusals(record("faust.worker", "Error: %r", "x", error=True))
    try:
        raise RuntimeError("not ours")
    except RuntimeError:
        assert refusals(record("faust.worker", "Error: %r", "x", error=True))


def test_an_end_by_an_expected_error_is_not_logged_as_a_crash() -> None:
    crash = record("faust.worker", "[^TimersWorker]: We experienced a crash! Reraising original exception...")
    assert worker_logs.is_news(lambda: None, crash)
    assert not worker_logs.is_news(lambda: TopicConfigError("why"), crash)


def test_a_json_line_has_all_fields() -> None:
    entry = record("timers.worker", "%s\nand a line, \u00fc", "text")
    entry.created = 1_700_000_000.25
    line = logs.JsonFormatter().format(entry)
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250Z",
        "severity": "ERROR",
        "level": "ERROR",
        "logger": "timers.worker",
        "message": "text\nand a line, \u00fc",
    }
    try:
        raise ValueError("broken")
    except ValueError:
        line = json.loads(logs.JsonFormatter().format(record("x", "y", error=True)))
    assert line["exception"].startswith("Traceback") and line["exception"].endswith("ValueError: broken")


def test_a_json_line_about_a_partition_has_its_topic_and_number() -> None:
    formatter = logs.JsonFormatter(app="timers", worker="w1")

    def fields(*args: object) -> dict[str, object]:
        line: dict[str, object] = json.loads(formatter.format(record("timers", " ".join(["%s"] * len(args)), *args)))
        return {name: line[name] for name in ("app", "worker", "topic", "partition") if name in line}

    of_worker = {"app": "timers", "worker": "w1"}
    one, other = partition_name("a/b", 7), partition_name("orders", 0)
    assert fields(one, "why") == fields(one, one) == {**of_worker, "topic": "a/b", "partition": 7}
    assert fields("orders/0") == fields(one, other) == of_worker, "no name of ours, or of two partitions"


UNSAFE = "a\x1b[2J\u202eb\nc\x9b\u200f"
"""What a key, a path or an id of somebody else may hold."""


def test_what_others_have_sent_is_safe_in_a_line_of_text() -> None:
    formatter = logs.PrintableFormatter(logging.Formatter("\x1b[1m[%(levelname)s]\x1b[0m %(message)s"))
    entry = record("timers", "key %s is wrong", UNSAFE)
    assert formatter.format(entry) == ("\x1b[1m[ERROR]\x1b[0m key a\\x1b[2J\\u202eb\\nc\\x9b\\u200f is wrong"), (
        "colours of the format stay"
    )
    assert entry.args == (UNSAFE,), "another handler writes it in its own way"
    try:
        raise ValueError(UNSAFE)
    except ValueError:
        text = formatter.format(record("timers", "first\n%s", UNSAFE, error=True)).split("\n")
    assert text[:3] == ["\x1b[1m[ERROR]\x1b[0m first", "a\\x1b[2J\\u202eb", "c\\x9b\\u200f"]
    assert text[3].startswith("Traceback") and text[-2:] == ["ValueError: a\\x1b[2J\\u202eb", "c\\x9b\\u200f"]


def test_what_others_have_sent_is_safe_and_exact_in_a_line_of_json() -> None:
    line = logs.JsonFormatter().format(record("timers", "key %s \u00fc", UNSAFE))
    assert line.isprintable() and "\u00fc" in line
    assert json.loads(line)["message"] == f"key {UNSAFE} \u00fc"


def test_handlers_are_made_safe_once() -> None:
    handler = logging.NullHandler()
    logs.make_safe([handler, None])
    logs.make_safe([handler])
    assert len(handler.filters) == 2


async def test_a_recovery_logs_its_progress(caplog: pytest.LogCaptureFixture, constants: Constants) -> None:
    rig = NativeRig(progress=Progress(next_offset=10))
    rig.ask(*[99] * 10)
    machine = rig.machine
    caplog.set_level(logging.INFO)
    constants(recoveries, REPORT_S=0.001)
    runner: Any = SimpleNamespace(machine=machine)
    task = asyncio.create_task(recoveries.Recoveries(lambda: [runner], lambda: 0)._report())
    rig.read(4)
    while not caplog.messages:
        await asyncio.sleep(0)
    assert caplog.messages[0].startswith("recovering 1 of 1 partitions: 4 records read again, ")
    assert caplog.messages[0].endswith("/s, 6 offsets to go")
    rig.read()
    await asyncio.wait_for(task, 30)


def test_a_kafka_error_that_a_library_logs_has_no_traceback() -> None:
    def logged(name: str, error: Exception) -> logging.LogRecord:
        try:
            raise error
        except Exception:
            entry = record(name, "Unexpected error in %s routine", "sender", error=True)
        assert worker_logs.shorten_kafka_error(entry)
        return entry

    short = logged("aiokafka.producer.sender", KafkaConnectionError("connection closed"))
    assert logging.Formatter().format(short) == (
        "Unexpected error in sender routine: KafkaConnectionError: connection closed"
    )
    for other in (logged("aiokafka.producer.sender", ValueError("x")), logged("timers", KafkaConnectionError("x"))):
        assert "Traceback" in logging.Formatter().format(other)


@pytest.mark.parametrize(
    ("name", "text", "written"),
    [
        ("mode.services", "[^--Web]: Starting... ", False),
        ("faust.agents", "[^---Agent: timers.worker.ag[.]timer_request]: Stopping... ", False),
        ("aiokafka.consumer.group_coordinator", "Discovered coordinator 1 for group id timers", False),
        ("aiokafka.conn", "Unable connect to node with id 1: refused", True),
        ("mode.worker", "[^TimersWorker]: Starting... ", True),
        ("mode.worker", "[^TimersWorker]: Signal received: 15 (15) ", True),
        ("timers.worker.service", "ready: 6 partitions, 0 timers pending", True),
        ("timers.worker.pool", "Starting... is no part of a library", True),
    ],
)
def test_a_log_begins_with_what_matters(name: str, text: str, written: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = worker_logs.is_not_of_a_part
    monkeypatch.setattr(logging.root, "level", logging.INFO)
    assert starts(record(name, text, level=logging.INFO)) is written
    assert starts(record(name, text, level=logging.WARNING))
    monkeypatch.setattr(logging.root, "level", logging.DEBUG)
    assert starts(record(name, text, level=logging.INFO))
