"""Who may ask a worker: the holder of the secret, for one question, for some minutes."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from multidict import CIMultiDict

from timers.errors import SettingsError
from timers.machines.queries.pages import QueryPages
from timers.process.config.settings import Settings
from timers.wire.signatures import SIGNATURE, signed_headers, why_refused

SECRET = "0123456789abcdef0123456789abcdef"
TARGET = "/timers?topic=a%20b&limit=7"
NOW_S = 2_000_000_000.5


def why(target: str = TARGET, recipient: str = "", secret: str = SECRET, now_s: float = NOW_S) -> str:
    headers = signed_headers(secret, target, recipient, now_s)
    return why_refused(SECRET, headers.get(SIGNATURE), TARGET, ("", "worker-1"), NOW_S)


def test_a_signed_query_is_answered() -> None:
    assert why() == why(recipient="worker-1") == why(now_s=NOW_S - 299) == why(now_s=NOW_S + 299) == ""


@pytest.mark.parametrize(
    ("reason", "query"),
    [
        ("is not signed", {"secret": ""}),
        ("with another secret", {"secret": SECRET[::-1]}),
        ("with another secret", {"target": "/timers?topic=a%20b&limit=8"}),
        ("with another secret", {"target": TARGET + "&value=1"}),
        ("with another secret", {"recipient": "worker-2"}),
        ("signed 302 s ago", {"now_s": NOW_S - 302}),
        ("signed -302 s ago", {"now_s": NOW_S + 302}),
    ],
)
def test_each_other_query_is_refused(reason: str, query: dict[str, Any]) -> None:
    assert reason in why(**query)


@pytest.mark.parametrize(
    "header", ["", "x", "2000000000 ", "2000000000 " + "0" * 64, "-1 " + "a" * 64, "\u0662 " + "a" * 64]
)
def test_a_damaged_header_is_refused(header: str) -> None:
    assert "another secret" in why_refused(SECRET, header, TARGET, ("",), NOW_S)


@pytest.mark.parametrize(
    ("environment", "asked"),
    [
        ({}, 503),
        ({"TIMERS_WEB_BIND": "::1"}, 503),
        ({"TIMERS_WEB_BIND": "0.0.0.0"}, 403),
        ({"TIMERS_WEB_BIND": "0.0.0.0", "TIMERS_QUERY_SECRET": SECRET}, 403),
        ({"TIMERS_QUERY_SECRET": SECRET}, 403),
    ],
)
async def test_other_machines_need_the_secret(environment: dict[str, str], asked: int) -> None:
    """A worker that may answer says that it is starting: 503."""
    settings = Settings.load(environment)
    pages = QueryPages(lambda: settings, lambda: NOW_S)
    handlers: dict[str, Callable[..., Any]] = {}
    pages.register(lambda path: lambda handler: handlers.setdefault(path, handler))

    request = SimpleNamespace(headers=CIMultiDict(Host="localhost"), query={}, raw_path="/timers")
    refused = await handlers["/timers"](None, request)
    assert refused.status == asked
    assert asked == 503 or "TIMERS_QUERY_SECRET_FILE" in json.loads(refused.text)["error"]
    signed = signed_headers(settings.query_secret.reveal(), "/timers", "", NOW_S)
    request.headers = CIMultiDict({**signed, "Host": "localhost"})
    assert (await handlers["/timers"](None, request)).status == (503 if settings.query_secret else asked)


def test_a_short_secret_is_refused_and_not_shown() -> None:
    with pytest.raises(SettingsError, match="32 characters or more") as refused:
        Settings.load({"TIMERS_QUERY_SECRET": "hunter2"})
    assert "hunter2" not in str(refused.value)
