"""Answers about all topics that partitions share which are opened at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cached_property
from time import monotonic
from typing import Any, Concatenate, ParamSpec, TypeVar

from timers.kafka.admin_client import AdminClient
from timers.kafka.clients import asking_admin
from timers.process.config.settings import Settings
from timers.process.threads import call_in_thread

_P = ParamSpec("_P")
_T = TypeVar("_T")

FRESH_S = 1.0
"""Seconds for which an answer is shared."""


class SharedAnswers:
    """Asks questions in threads of their own, with one client. Any thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._asked: dict[Callable[..., Any], tuple[Future[Any], float]] = {}
        """Question -> the last answer, and until when it is fresh, by the monotonic clock."""

    @cached_property
    def _admin(self) -> AdminClient:
        return asking_admin(self._settings)

    def ask(
        self, question: Callable[Concatenate[AdminClient, _P], _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> Future[_T]:
        """Returns the answer to a question; one that was asked a moment ago is not asked again. Returns at once."""
        with self._lock:
            asked = self._asked.get(question)
            if asked is None or (asked[0].done() and monotonic() > asked[1]):
                answer = call_in_thread("timers-topics", lambda: self._answer(question, *args, **kwargs))
                asked = self._asked[question] = answer, monotonic() + FRESH_S
            return asked[0]

    def _answer(self, question: Callable[Concatenate[AdminClient, _P], _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with self._making:  # making a client takes a second if logins have tokens
            admin = self._admin
        return question(admin, *args, **kwargs)
