"""Schedule timers from Python, and receive their callbacks once. Needs confluent-kafka; neither Faust nor Spark.

::

    from timers.client import TimersClient

    with TimersClient() as client:
        timer_id = client.schedule("order-timeouts", "order-17", b"unpaid", delay=900)

A timer without an id is cancelled by its receiver, with a token: :mod:`timers.client.tokens`. A timer with an id is
replaced and cancelled in the engine: ``schedule(..., id=...)``, ``update``, ``cancel``. ``send_later`` works like
kafka-scheduler's ``sendLater``; ``retry_later`` like the retries of message queues. A receiver that may get a record
twice accepts each timer once: :mod:`timers.client.firings`.
"""

from timers.client.aio import AsyncTimersClient
from timers.client.firings import MappingFirings, SqlFirings, source_of
from timers.client.publish import PartlyPublishedError
from timers.client.request import TimerRequest
from timers.client.retry import Backoff
from timers.client.sync import TimersClient
from timers.client.tokens import MappingTokens, SqlTokens, Timeouts, TokenStore
from timers.errors import (
    AccessError,
    InvalidTimerError,
    NoVerdictError,
    PublishError,
    SettingsError,
    TimersError,
)
from timers.wire.verdict import VerdictMessage

__all__ = [
    "AccessError",
    "AsyncTimersClient",
    "Backoff",
    "InvalidTimerError",
    "MappingFirings",
    "MappingTokens",
    "NoVerdictError",
    "PartlyPublishedError",
    "PublishError",
    "SettingsError",
    "SqlFirings",
    "SqlTokens",
    "Timeouts",
    "TimerRequest",
    "TimersClient",
    "TimersError",
    "TokenStore",
    "VerdictMessage",
    "source_of",
]
