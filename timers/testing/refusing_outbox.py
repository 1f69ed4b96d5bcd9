"""An outbox that must not be used: a recovery emits nothing [I15]."""

from __future__ import annotations

from typing import Any, NoReturn

from timers.testing.id_oracle import Violation


class RefusingOutbox:
    """Raises :class:`Violation` when a machine uses it."""

    def __getattr__(self, name: str) -> Any:
        def refuse(*args: Any) -> NoReturn:
            raise Violation(f"recovery called {name} of its outbox")

        return refuse
