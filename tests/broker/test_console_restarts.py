"""A broker or a worker starts again while the console answers: it waits for it, or says that the outcome is unknown."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.harness.console_process import ConsoleProcess
from tests.harness.system import System, with_ids
from tests.harness.waiting import wait_until
from timers.cli.broker import EmbeddedBroker
from timers.console.kafka_cluster import ANSWER_S, PUBLISH_TIMEOUT_S

pytestmark = [pytest.mark.broker, pytest.mark.long]

SOON_S = min(ANSWER_S, PUBLISH_TIMEOUT_S) / 2
"""A failure that comes sooner was not waited for."""


def test_a_restart_is_waited_for(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "broker", port=0)
    system = System(broker.start(), tmp_path, **with_ids())
    target = system.target()
    worker = system.worker().start().ready()
    environment = {**system.environment, "TIMERS_WORKER_URL": f"http://127.0.0.1:{worker.port}"}
    consoles = [
        ConsoleProcess(tmp_path / f"console-{number}", {**environment, "TIMERS_CONSOLE_WRITE": "1"}, forked=True)
        for number in range(2)
    ]
    timer = {"topic": target, "key": "k", "value": "v", "delay": "1h"}
    path = "/v1/timer?id=a&wait=30"
    asked: list[tuple[str, str, Any]] = [
        ("POST", "/v1/timers", timer),
        ("POST", "/v1/timers", {**timer, "id": "b"}),
        ("PUT", path, timer),
        ("GET", "/v1/timer?id=a", None),
        ("GET", f"/v1/timers?topic={target}", None),
        ("GET", "/v1/pending?by=hour", None),
        ("GET", "/v1/timer/history?id=a", None),
        ("GET", "/v1/workers", None),
        ("GET", "/v1/dead-letters", None),
    ]

    def answer(console: ConsoleProcess, method: str, path: str, body: Any) -> tuple[str, int, Any, float]:
        begun_s = time.monotonic()
        status, found = console.ask(method, path, body)
        return f"{method} {path}", status, found, time.monotonic() - begun_s

    def check(stop: Callable[[], object], start: Callable[[], object]) -> None:
        """One console has its connections, the other one begins without them."""
        stop()
        with ThreadPoolExecutor(2 * len(asked)) as pool:
            answers = [pool.submit(answer, console, *each) for console in consoles for each in asked]
            start()
        for what, status, found, took_s in (each.result() for each in answers):
            is_known = status < 500 or (status == 504 and found["code"] == "unknown")
            assert is_known or took_s > SOON_S, (what, status, found, took_s)

    try:
        for console in consoles:
            console.start().wait_for("console: ")
        wait_until(lambda: consoles[0].ask("PUT", path, timer)[0] in (200, 201), "the first timer is set")
        check(broker.kill, broker.start)
        worker.ready()
        check(worker.kill, lambda: system.workers[-1].start())
        wait_until(
            lambda: consoles[1].ask("PUT", path, timer)[1].get("verdict") == "replaced", "the timer is as it was"
        )
    finally:
        for console in consoles:
            console.end()
        system.close()
        broker.stop()
