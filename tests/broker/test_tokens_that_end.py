"""Logins with tokens that end after seconds: all clients have a new one in time, and nothing is lost if none comes."""

import json
import re
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.harness.command_line import command
from tests.harness.console_process import ConsoleProcess
from tests.harness.oauth import CLIENT, SECRET, SIGNED, UNSECURED, OAuthBroker, OAuthServer, oauth_server
from tests.harness.queue_calls import PATIENT, receive
from tests.harness.records import Request
from tests.harness.scrape import get, scrape
from tests.harness.system import System, assert_once, timers
from tests.harness.waiting import due_in, wait_until
from tests.harness.worker import Worker
from timers.client import TimersClient
from timers.errors import AccessError, LeaseLostError, PublishError
from timers.queue import Queue

pytestmark = pytest.mark.broker

_PRINTS_A_TOKEN = (
    "import base64, json, time; parts = {{'alg': 'none'}}, {{'sub': {subject!r}, 'exp': time.time() + {life_s}}}; "
    "print(*(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip('=') for part in parts), '', sep='.')"
)
"""It imports little: a Python that takes seconds to start on a busy machine would be too late for tokens so short."""


@pytest.fixture(scope="module")
def server() -> Iterator[OAuthServer]:
    with oauth_server() as running:
        yield running


@pytest.fixture(scope="module")
def broker(server: OAuthServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OAuthBroker]:
    with OAuthBroker(tmp_path_factory.mktemp("oauth"), server) as running:
        yield running


def by_command(broker: OAuthBroker, life_s: float) -> dict[str, str]:
    """A login with unsigned tokens that a command prints."""
    program = _PRINTS_A_TOKEN.format(subject=CLIENT, life_s=life_s)
    return {
        "TIMERS_BROKERS": broker.address_of(UNSECURED),
        "TIMERS_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "TIMERS_SASL_MECHANISM": "OAUTHBEARER",
        "TIMERS_SASL_TOKEN_COMMAND": shlex.join([sys.executable, "-I", "-S", "-c", program]),
    }


def by_url(broker: OAuthBroker, server: OAuthServer) -> dict[str, str]:
    """A login with tokens of the server."""
    return {
        "TIMERS_BROKERS": broker.address_of(SIGNED),
        "TIMERS_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "TIMERS_SASL_MECHANISM": "OAUTHBEARER",
        "TIMERS_SASL_TOKEN_URL": f"{server.url}/token",
        "TIMERS_SASL_USERNAME": CLIENT,
        "TIMERS_SASL_PASSWORD": SECRET,
    }


@pytest.fixture
def system(broker: OAuthBroker, tmp_path: Path) -> Iterator[System]:
    system = System(broker.address, tmp_path)
    system.create_own_topics()
    yield system
    system.close()


def test_worker_client_and_commands_log_in_with_tokens_of_a_command(
    system: System, broker: OAuthBroker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    target = system.target()
    system.environment |= by_command(broker, 12)
    worker = system.worker()
    worker.log_level = "debug"
    worker.start().ready()
    system.use(monkeypatch)
    with TimersClient() as client:
        first = client.schedule(target, "by the client", b"", delay=1)
        asked = command(capfd, "schedule", "--in", "1s", "-t", target, "-k", "by a command", "-v", "")
        assert asked.code == 0, asked.err
        requests = system.send(*(Request(target, due_in(each), str(each)) for each in range(2, 22)))
        last = client.schedule(target, "after some tokens", b"", delay=22)
    records = system.reader(target).take(23, 60)
    ids = {first, asked.out.splitlines()[-1], last} | {each.source for each in requests}
    assert {record.timer_id for record in records} == ids
    log = worker.log
    worker.stop()
    numbers = map(int, re.findall(r"Request to \S+ (\d+): SaslHandShakeRequest", log))
    assert len([number for number in numbers if number > 9]) > 10, "connections logged in again"
    assert not re.findall(r"Closing connection at \S+ \(0, .*", log), "and no broker closed one"
    assert not re.findall(r"eyJ[\w-]{10}", worker.log), "the log shows no token"


@pytest.fixture
def working(
    system: System, broker: OAuthBroker, server: OAuthServer, tmp_path: Path
) -> Iterator[tuple[Worker, ConsoleProcess]]:
    """A worker and a console with tokens of 20 s."""
    server.life_s, server.fails = 20, False
    system.environment |= by_url(broker, server)
    worker = system.worker()
    asking = {**system.environment, "TIMERS_WORKER_URL": f"http://127.0.0.1:{worker.port}"}
    console = ConsoleProcess(tmp_path / "console", asking, forked=True)
    worker.start().ready()
    console.start()
    yield worker, console
    console.clean_up()
    server.fails = False


@pytest.mark.long
def test_nothing_is_lost_while_no_token_comes_for_a_minute(
    system: System, working: tuple[Worker, ConsoleProcess], server: OAuthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens of 20 s end while their server fails for a minute. Then everything goes on, without a restart."""
    worker, console = working
    target, jobs = system.target(), system.target()
    system.use(monkeypatch)
    due_s = due_in(5)
    requests = system.send(*timers(target, 2400, due_s, 120))
    with TimersClient(timeout_s=10) as client, Queue(jobs, **PATIENT) as queue:
        ids: list[str] = [client.schedule(target, "before", b"", delay=1)]
        queue.send_many((None, b"%d" % number, ()) for number in range(20))
        held = receive(queue, 10)
        wait_until(lambda: is_ready(console), "the console is ready")
        server.fails = True
        failing_until = time.monotonic() + 60
        sentence = wait_until(lambda: reason(worker.port), "the worker says why it cannot log in", 60)
        assert sentence == f"TIMERS_SASL_TOKEN_URL='{server.url}/token' gives no token: it answers 503"
        assert sentence in wait_until(queue.unready, "the queue says it too")
        assert sentence in wait_until(
            lambda: not is_ready(console) and console.ask("GET", READY)[1]["reasons"], "as the console"
        )
        assert scrape(worker.port).total("timers_login_token_failures") > 0
        with pytest.raises((AccessError, PublishError)):
            client.schedule(target, "meanwhile", b"", delay=1)
        wait_until(lambda: time.monotonic() > failing_until, "a minute is over", 70)
        server.fails = False
        values = set()
        for message in held:  # its group may have given the partition up, as after each long silence
            with suppress(LeaseLostError):
                message.ack()
                values.add(message.value)

        def all_done() -> bool:
            for message in queue.receive(20, wait_s=1):
                message.ack()
                values.add(message.value)
            return len(values) == 20 and queue.counters().depth == 0

        wait_until(all_done, "each message is done", 120)
        queue.settle()
        wait_until(lambda: is_ready(console), "the console is ready again")
        ids.append(wait_until(lambda: scheduled(client, target), "the client sends again"))
    wait_until(lambda: not reason(worker.port), "the worker is ready again")
    records = system.reader(target).take(len(requests) + len(ids), 200)
    others = [record for record in records if record.key in (b"before", b"after", b"meanwhile")]
    assert set(ids) <= {record.timer_id for record in others}
    assert_once([record for record in records if record not in others], {each.source: each for each in requests})
    worker.stop()
    console.stop()
    for log in (worker.log, console.log):
        assert not [text for text in (SECRET, *server.given) if text in log]
    assert server.asked


READY = "/v1/health/ready"


def is_ready(console: ConsoleProcess) -> bool:
    """Whether the console says so."""
    with suppress(OSError):
        return bool(console.ask("GET", READY)[0] == 200)
    return False


def reason(port: int) -> str:
    """Why the worker has no token, as its health page says it."""
    reasons: list[str] = json.loads(get(port, "/health/ready")[1])["reasons"]
    return next((each for each in reasons if "TIMERS_SASL" in each), "")


def scheduled(client: TimersClient, target: str) -> str:
    """Set a timer; empty while the client cannot log in."""
    with suppress(AccessError, PublishError):
        return client.schedule(target, "after", b"", delay=1)
    return ""
