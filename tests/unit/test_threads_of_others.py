"""Threads that Kafka's client library cannot run in: clients say so at once, and do not wait for ever or crash."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from timers.client import AsyncTimersClient, TimersClient
from timers.errors import SettingsError
from timers.queue import AsyncQueue, Queue


@pytest.mark.parametrize("patched", ["threading", "queue", "socket"])
@pytest.mark.parametrize("make", [TimersClient, AsyncTimersClient, lambda: Queue("jobs"), lambda: AsyncQueue("jobs")])
def test_gevent_is_named_before_anything_waits(
    make: type[TimersClient], patched: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may replace other modules: then clients work."""
    monkeypatch.setitem(sys.modules, "gevent.monkey", SimpleNamespace(is_module_patched=lambda name: name == patched))
    if patched == "socket":
        make()
        return
    with pytest.raises(SettingsError, match=r"^gevent has replaced the threads .* patch_all\(thread=False"):
        make()


def test_a_python_without_its_global_lock_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    with pytest.raises(SettingsError, match="without PYTHON_GIL=0"):
        TimersClient()


def test_eventlet_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "eventlet.patcher", SimpleNamespace(is_monkey_patched=lambda name: name == "thread")
    )
    with pytest.raises(SettingsError, match=r"^eventlet has replaced the threads"):
        TimersClient()
