"""Schedule timers from Python, and receive their callbacks once. Needs confluent-kafka; neither Faust nor Spark.

::

    from timers.client import TimersClient

    with TimersClient() as client:
        timer_id = client.schedule("order-timeouts", "order-17", b"unpaid", delay=900)

A timer without an id cannot be taken back from the log; the receiver decides, by a token, whether a callback still
counts: :mod:`timers.client.tokens`. One with an id is replaced and cancelled in the engine: ``schedule(..., id=...)``,
``update``, ``cancel``. ``send_later`` and ``retry_later`` are what kafka-scheduler and message queues have.
"""

from timers.client.aio import AsyncTimersClient
from timers.client.publish import PartlyPublishedError
from timers.client.request import TimerRequest
from timers.client.retry import Backoff
from timers.client.sync import TimersClient
from timers.client.tokens import MappingTokens, SqlTokens, Timeouts, TokenStore

__all__ = [
    "AsyncTimersClient",
    "Backoff",
    "MappingTokens",
    "PartlyPublishedError",
    "SqlTokens",
    "Timeouts",
    "TimerRequest",
    "TimersClient",
    "TokenStore",
]
