"""Processes of a queue that are killed, stopped, or replaced while their handlers work. Real processes."""

import json
import re
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.harness.process import Process, clean_environment, python
from tests.harness.queue_worker import RETRY_AFTER_S
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.queue import Queue
from timers.queue.inspection import Inspection

pytestmark = [pytest.mark.broker, pytest.mark.long]

SESSION_S = 6.0
Start = Callable[..., Process]


@pytest.fixture
def system(id_system: System) -> System:
    """With a worker."""
    id_system.worker().start().ready()
    return id_system


@pytest.fixture
def start(system: System, tmp_path: Path) -> Iterator[Start]:
    """Start a process of a queue: its topic, the topic of its outputs, how much its clock is ahead, arguments of the
    queue by name."""
    started: list[Process] = []

    def start(topic: str, results: str = "", ahead_s: float = 0.0, **arguments: Any) -> Process:
        given = json.dumps({"session_timeout_s": SESSION_S, "lease_s": 600.0, **arguments})
        command = python("tests.harness.queue_worker", topic, str(tmp_path), results, str(ahead_s), given)
        log = tmp_path / f"queue-{len(started)}.log"
        process = Process(f"queue-{len(started)}", command, clean_environment(**system.environment), tmp_path, log)
        started.append(process)
        return process.start()

    yield start
    for process in started:
        process.clean_up()


def send(topic: str, *values: str) -> None:
    with Queue(topic, timeout_s=60) as queue:
        queue.send_many((value, value, ()) for value in values)


def lines(log: str, event: str) -> list[str]:
    return [line.split()[1] for line in log.splitlines() if line.startswith(f"{event} ")]


def test_a_message_that_kills_its_process_is_a_dead_letter_and_its_neighbours_are_done(
    system: System, start: Start
) -> None:
    topic = system.target()
    values = [f"m{number}" for number in range(40)]
    values[7] = "kill7"
    send(topic, *values)
    process = start(topic, member="one")
    crashes = 0
    acked: list[str] = []

    def all_done() -> bool:
        nonlocal crashes
        if not process.running:
            acked.extend(lines(process.log, "acked"))
            crashes += 1
            process.clean_up()
            process.start()
        return set(lines(process.log, "acked")) | set(acked) == set(values) - {"kill7"}

    wait_until(all_done, "all other messages", 8 * DEADLINE_S)
    (letter,) = system.dead_letters().take(1, 2 * DEADLINE_S)
    assert letter.text("timer-error") == "crashed"
    assert letter.text("timer-source") == f"{topic}/0/7"
    assert 3 <= crashes <= 5, "the first end, perhaps those of groups, and two while it ran alone"


def test_a_rolling_deploy_in_mid_handler_runs_no_message_twice(system: System, start: Start, tmp_path: Path) -> None:
    topic = system.target(partitions=4)
    values = [f"wait{number}" for number in range(20)]
    send(topic, *values)
    processes = [start(topic, session_timeout_s=60.0)]
    processes[0].wait_for("^started wait", 2 * DEADLINE_S)
    processes += [start(topic, session_timeout_s=60.0) for _ in range(3)]
    wait_until(
        lambda: system.end(system.settings.id_topic), "guards of messages whose partitions moved", 4 * DEADLINE_S
    )
    for value in values:
        (tmp_path / value).touch()

    def seen(event: str) -> list[str]:
        return lines("\n".join(process.log for process in processes), event)

    wait_until(lambda: set(seen("acked")) == set(values), "all messages", 4 * DEADLINE_S)
    assert sorted(seen("started")) == sorted(values), "each ran once"
    assert seen("lost") == []


def test_clocks_that_are_days_apart_do_not_move_retries(system: System, start: Start) -> None:
    topic = system.target(partitions=4)
    day_s = 24 * 3600.0
    processes = [start(topic, ahead_s=ahead_s, session_timeout_s=60.0) for ahead_s in (-day_s, 0.0, day_s)]
    for process in processes:
        process.wait_for("^opened", 2 * DEADLINE_S)
    values = [f"retry{number}" for number in range(40)]
    send(topic, *values)

    def acked() -> list[str]:
        return lines("\n".join(process.log for process in processes), "acked")

    wait_until(lambda: set(acked()) == set(values), "all messages", 4 * DEADLINE_S)
    sent_ms = {record.value: record.append_ms for record in system.reader(topic).rest()}
    returned = system.reader(f"queue.{topic}-returns").rest()
    assert {record.value for record in returned} == set(sent_ms)
    assert all(record.append_ms - sent_ms[record.value] >= RETRY_AFTER_S * 1000 for record in returned)
    assert all(int(record.text("queue-sent")) == sent_ms[record.value] for record in returned)


def test_a_process_that_is_killed_repeats_only_what_was_not_committed(system: System, start: Start) -> None:
    topic = system.target()
    values = [f"m{number}" for number in range(20_000)]
    send(topic, *values)
    first = start(topic, member="one")
    inspection = Inspection(system.settings)

    def done() -> int:
        return len(values) - inspection.stats(topic, topic, with_delayed=False).depth

    wait_until(lambda: done() > 100, "acknowledgements", 2 * DEADLINE_S)
    done_before = done()
    first.kill()
    acked = set(lines(first.log, "acked"))
    assert done_before <= len(acked)
    second = start(topic, member="one")
    wait_until(lambda: acked | set(lines(second.log, "acked")) == set(values), "all messages", 6 * DEADLINE_S)
    repeated = acked & set(lines(second.log, "started"))
    assert len(repeated) <= len(acked) - done_before


@pytest.mark.parametrize(("value", "is_left"), [("wait", False), ("wait", True), ("wait-output", False)])
def test_a_process_that_was_stopped_cannot_acknowledge(
    system: System, start: Start, tmp_path: Path, value: str, is_left: bool
) -> None:
    topic, results = system.target(), system.target()
    send(topic, value)
    first = start(topic, results=results)
    first.wait_for(f"^started {value} ", 2 * DEADLINE_S)
    first.send(signal.SIGSTOP)
    try:
        second = start(topic, results=results)
        second.wait_for(f"^started {value} ", 4 * DEADLINE_S)
        (tmp_path / value).touch()
        second.wait_for(f"^acked {value}$", 2 * DEADLINE_S)
        if is_left:  # then the group has no member that is alive
            second.send(signal.SIGINT)
            second.exit_code(2 * DEADLINE_S)
    finally:
        first.send(signal.SIGCONT)
    first.wait_for(f"^lost {value}$", 2 * DEADLINE_S)
    send(topic, "later")
    wait_until(lambda: "acked later" in first.log + second.log, "a message after that", 2 * DEADLINE_S)
    assert (first.log + second.log).count(f"started {value} ") == 2
    assert len(system.reader(results).rest()) == (value == "wait-output")


def test_a_handler_that_hangs_holds_up_neither_its_message_nor_others(
    system: System, start: Start, tmp_path: Path
) -> None:
    topic = system.target()
    send(topic, "wait", "m1")
    first = start(topic, lease_s=3.0, session_timeout_s=60.0)
    first.wait_for("^started wait ", 2 * DEADLINE_S)
    with Queue(topic, lease_s=600.0, timeout_s=60.0) as second:
        done = set()

        def both() -> bool:
            for message in second.receive(2, wait_s=0.5):
                message.ack()
                done.add(message.value)
            return done == {b"wait", b"m1"}

        wait_until(both, "the message that hangs, and the other one", 3 * DEADLINE_S)
        second.settle()
    (tmp_path / "wait").touch()
    first.wait_for("^lost wait$", 2 * DEADLINE_S)


def test_an_ordered_queue_keeps_the_order_of_keys_though_processes_are_killed_and_replaced(
    system: System, start: Start
) -> None:
    topic, keys, count = system.target(partitions=4), 8, 160
    values = [f"{'retry' if number // keys % 5 == 0 else 'm'}{number}" for number in range(count)]
    with Queue(topic, timeout_s=60) as queue:
        queue.send_many((b"k%d" % (number % keys), value, ()) for number, value in enumerate(values))
    processes = [start(topic, ordered=True, member=member) for member in ("one", "two")]

    def log() -> str:
        return "".join(process.log_path.read_text() for process in processes)

    def acked() -> int:
        return len(set(lines(log(), "acked")))

    def are_acked(most: int) -> bool:
        return acked() >= most

    for victim, how in ((0, signal.SIGKILL), (1, signal.SIGINT), (1, signal.SIGKILL)):
        wait_until(partial(are_acked, min(count, acked() + count // 10)), "more messages", 4 * DEADLINE_S)
        processes[victim].send(how)
        processes[victim].exit_code(2 * DEADLINE_S)
        processes[victim].clean_up()
        processes[victim].start()
    wait_until(lambda: are_acked(count), "all messages", 6 * DEADLINE_S)
    first_ns: dict[int, int] = {}
    last_needed_ns: dict[int, int] = {}
    started = re.findall(r"^started ([a-z]+)([0-9]+) attempt ([0-9]+) at ([0-9]+)$", log(), re.MULTILINE)
    for kind, number, attempt, at_ns in sorted(started, key=lambda each: int(each[3])):
        first_ns.setdefault(int(number), int(at_ns))
        if kind == "m" or int(attempt) > 1:
            last_needed_ns.setdefault(int(number), int(at_ns))
    assert len(last_needed_ns) == count
    overtaken = [number for number in range(keys, count) if first_ns[number] < last_needed_ns[number - keys]]
    assert overtaken == []
