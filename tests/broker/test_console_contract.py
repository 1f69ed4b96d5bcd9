"""Each answer of a console with a worker and a broker is one that its OpenAPI document has, and none is a failure."""

import http.client
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest

from tests.harness.console_process import ConsoleProcess
from tests.harness.contract import Asked, Contract
from tests.harness.system import System, with_ids
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.long]

REQUESTS = 600
SEED = 15


def send(port: int, asked: Asked) -> tuple[int, Mapping[str, str], bytes]:
    """Status, headers and body; of a stream no body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(asked.method, asked.target, asked.body, asked.headers)
        response = connection.getresponse()
        is_stream = response.getheader("Content-Type") == "text/event-stream"
        return response.status, dict(response.headers), b"" if is_stream else response.read()
    finally:
        connection.close()


def test_each_answer_is_documented(broker_address: str, tmp_path: Path) -> None:
    system = System(broker_address, tmp_path, **with_ids(), TIMERS_QUERIES="values")
    worker = system.worker()
    more = {"TIMERS_CONSOLE_WRITE": "1", "TIMERS_CONSOLE_RATE_PER_S": "100000"}
    environment = {**system.environment, **more, "TIMERS_WORKER_URL": f"http://127.0.0.1:{worker.port}"}
    console = ConsoleProcess(tmp_path / "console", environment, forked=True)
    statuses: Counter[str] = Counter()
    try:
        worker.start()
        console.start().wait_for("console: ")
        worker.ready()
        wait_until(lambda: console.ask("GET", "/v1/health/ready")[1]["reasons"] == [], "brokers and worker answer")
        callback_topics = [system.target(), system.target(2), f"{system.app_id}-missing"]
        document = console.ask("GET", "/v1/openapi.json")[1]
        contract = Contract(document, Random(SEED), callback_topics, time.time)
        for _ in range(REQUESTS):
            asked = contract.request()
            answer = send(console.port, asked)
            contract.check(asked, *answer)
            statuses[f"{asked.operation['operationId'] if asked.operation else 'none'} {answer[0]}"] += 1
    finally:
        print(*sorted(statuses.items()), sep="\n")
        console.end()
        system.close()
    succeeded = {each.partition(" ")[0] for each in statuses if each.partition(" ")[2] < "300"}
    assert succeeded >= {"setTimer", "putTimer", "moveTimer", "cancelTimer", "listTimers", "getTimer", "cancelTimers"}
