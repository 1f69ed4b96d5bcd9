"""Logins with tokens that end after seconds: all clients have a new one in time, and nothing is lost if none comes."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.command_line import command, set_environment
from tests.harness.oauth import CLIENT, SECRET, SIGNED, UNSECURED, OAuthBroker, OAuthServer, oauth_server
from tests.harness.records import Request
from tests.harness.system import System
from tests.harness.waiting import due_in
from timers.client import TimersClient

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
    set_environment(monkeypatch, system.environment)
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
