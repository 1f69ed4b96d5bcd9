"""Clients of the consoles: each sets timers, moves some, and sends old requests again."""

import contextlib
import http.client
import random
import threading
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from tests.chaos.console.ledger import Ledger, Timer
from tests.harness.console_process import ConsoleProcess

AGAIN_S = 60.0
"""A request may be sent again for so long after its first answer."""

PATIENCE_S = 600.0
"""A client that gets no answer for so long gives up, and the round fails."""

SHORTEST_S, LONGEST_S = 3, 40
"""Seconds from a request to its due second."""

_PAUSE_S = 0.05
_SET = (200, 201)
_TRY_AGAIN = (None, 202, 503, 504)


class Client:
    """A client in a thread of its own, until :meth:`end`.

    Args:
        is_over: set when no new timers are wanted.
    """

    def __init__(
        self, ledger: Ledger, consoles: Sequence[ConsoleProcess], target: str, seed: int, is_over: threading.Event
    ) -> None:
        self._ledger = ledger
        self._consoles = consoles
        self._target = target
        self._random = random.Random(seed)
        self._is_over = is_over
        self._mine: list[Timer] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.is_set():
            old = self._old()
            if old is None or self._random.random() < 0.5:
                self._mine.append(self._new())
                self._set(self._mine[-1], "set")
            elif self._random.random() < 0.3:
                self._move(old)
            else:
                self._set(old, "again")

    def _old(self) -> Timer | None:
        """One of its timers whose request may still be sent again."""
        now_s = time.monotonic()
        self._mine = [each for each in self._mine if now_s < (each.answered_s or now_s) + AGAIN_S]
        return self._random.choice(self._mine) if self._mine else None

    def _new(self) -> Timer:
        due_s = int(time.time()) + self._random.randint(SHORTEST_S, LONGEST_S)
        return self._ledger.new({"topic": self._target, "key": "k", "at": due_s})

    def _set(self, timer: Timer, asked: str) -> None:
        give_up_s = time.monotonic() + PATIENCE_S
        while True:
            headers = {"Idempotency-Key": timer.key}
            status, body = self._ask(timer, asked, "POST", "/v1/timers", timer.body, headers)
            if status in _SET:
                self._ledger.note_answer(timer, body["id"])
                return
            if status not in _TRY_AGAIN:
                self._ledger.note_wrong(f"{asked} {timer.number}: {status} {body}")
                return
            if time.monotonic() > give_up_s:
                self._ledger.note_wrong(f"{asked} {timer.number}: no answer for {PATIENCE_S:g} s, the last {status}")
                return
            time.sleep(_PAUSE_S)

    def _move(self, timer: Timer) -> None:
        (id,) = timer.ids
        due_s = int(time.time()) + self._random.randint(SHORTEST_S, LONGEST_S)
        status, body = self._ask(timer, "move", "PATCH", f"/v1/timer?id={quote(id)}", {"at": due_s}, {})
        if status is not None and (status == 500 or body.get("code") == "condition-unsupported"):
            self._ledger.note_wrong(f"move {timer.number}: {status} {body}")

    def _ask(
        self, timer: Timer, asked: str, method: str, path: str, body: dict[str, Any], headers: dict[str, str]
    ) -> tuple[int | None, Any]:
        """Status and JSON of an answer; None if none came."""
        number = self._random.randrange(len(self._consoles))
        self._ledger.take_off(timer, number)
        status, answer = None, None
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            status, answer = self._consoles[number].ask(method, path, body, **headers)
        self._ledger.land(timer, asked, status)
        return status, answer
