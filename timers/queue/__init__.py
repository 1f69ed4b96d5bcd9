"""Queues with an acknowledgement for each message, on a Kafka topic and a consumer group.

::

    from timers.queue import Queue

    with Queue("orders") as queue:
        queue.send(b"order 17", key="customer-4")
        for message in queue.receive(100):
            message.ack()

docs/queues.md has the guarantees and the limits.
"""

from timers.client import Backoff
from timers.client.tokens import SqlInbox
from timers.errors import LeaseLostError, QueueError
from timers.queue.aio import AsyncMessage, AsyncQueue
from timers.queue.message import Message
from timers.queue.port import Counters
from timers.queue.queue import Queue

__all__ = [
    "AsyncMessage",
    "AsyncQueue",
    "Backoff",
    "Counters",
    "LeaseLostError",
    "Message",
    "Queue",
    "QueueError",
    "SqlInbox",
]
