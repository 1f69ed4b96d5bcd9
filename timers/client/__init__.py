"""Schedule timers from Python, and receive their callbacks once. Needs confluent-kafka; neither Faust nor Spark.

::

    from timers.client import TimersClient

    with TimersClient() as client:
        timer_id = client.schedule("order-timeouts", "order-17", b"unpaid", delay=900)

A timer without an id is cancelled by its receiver, with a token: :mod:`timers.client.tokens`. A timer with an id is
replaced and cancelled in the engine: ``schedule(..., id=...)``, ``update``, ``cancel``, each under a condition if you
want: ``if_absent``, ``if_source``. It may repeat: ``repeat=Repeat.every(900)``. ``send_later`` works like
kafka-scheduler's ``sendLater``; ``retry_later`` like the retries of message queues. A receiver that may get a record
twice accepts each timer once: :mod:`timers.client.tokens`.

Names with a heavy import (librdkafka, protobuf) are imported at their first use, so that a program that needs only the
errors or the receiver's part starts fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from timers.core.operation import (
    ALREADY_FIRED,
    CANCELLED,
    CHANGED,
    EXISTS,
    REPLACED,
    SET,
    TOO_LATE,
    UNCHANGED,
    UNKNOWN,
    VerdictName,
)
from timers.errors import (
    AccessError,
    InvalidTimerError,
    NoVerdictError,
    PartlyPublishedError,
    PublishError,
    SettingsError,
    TimersError,
    TimerTooLargeError,
    UnacknowledgedError,
    UnreachableError,
)

if TYPE_CHECKING:
    from timers.client.calls import TimerId
    from timers.client.clients import AsyncTimersClient, TimersClient
    from timers.client.outbox import AsyncSqlOutbox, SqlOutbox
    from timers.client.request import TimerRequest
    from timers.client.retry import Backoff
    from timers.client.tokens import (
        MappingFirings,
        MappingTokens,
        SqlFirings,
        SqlTokens,
        Timeouts,
        TokenStore,
        source_of,
    )
    from timers.client.tracing import callback_span
    from timers.wire.repeat import Repeat
    from timers.wire.verdict import VerdictMessage

_MODULES = {
    "AsyncSqlOutbox": "timers.client.outbox",
    "AsyncTimersClient": "timers.client.clients",
    "Backoff": "timers.client.retry",
    "MappingFirings": "timers.client.tokens",
    "MappingTokens": "timers.client.tokens",
    "Repeat": "timers.wire.repeat",
    "SqlFirings": "timers.client.tokens",
    "SqlOutbox": "timers.client.outbox",
    "SqlTokens": "timers.client.tokens",
    "Timeouts": "timers.client.tokens",
    "TimerId": "timers.client.calls",
    "TimerRequest": "timers.client.request",
    "TimersClient": "timers.client.clients",
    "TokenStore": "timers.client.tokens",
    "VerdictMessage": "timers.wire.verdict",
    "callback_span": "timers.client.tracing",
    "source_of": "timers.client.tokens",
}
"""Name -> the module that is imported at its first use."""

__all__ = [
    "ALREADY_FIRED",
    "CANCELLED",
    "CHANGED",
    "EXISTS",
    "REPLACED",
    "SET",
    "TOO_LATE",
    "UNCHANGED",
    "UNKNOWN",
    "AccessError",
    "AsyncSqlOutbox",
    "AsyncTimersClient",
    "Backoff",
    "InvalidTimerError",
    "MappingFirings",
    "MappingTokens",
    "NoVerdictError",
    "PartlyPublishedError",
    "PublishError",
    "Repeat",
    "SettingsError",
    "SqlFirings",
    "SqlOutbox",
    "SqlTokens",
    "Timeouts",
    "TimerId",
    "TimerRequest",
    "TimerTooLargeError",
    "TimersClient",
    "TimersError",
    "TokenStore",
    "UnacknowledgedError",
    "UnreachableError",
    "VerdictMessage",
    "VerdictName",
    "callback_span",
    "source_of",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
