"""The event loop that runs the producers of all machines.

This module relies on:

==========================================================  ==========================================================
``AIOKafkaProducer._closed``, ``_sender.sender_task``       closed or not, the task that sends
==========================================================  ==========================================================
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from timers.kafka.aiokafka_internals import produce, sessions
from timers.kafka.aiokafka_internals.broker_answers import BrokerAnswers
from timers.process.partition_metrics import Heartbeat, keep_heartbeat
from timers.process.threads import LoopThread


def log_unless_reported(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of the loop that runs producers, unless a caller got it already.

    After a failure, aiokafka leaves futures with the same error, and tasks when its producer is dropped.
    """
    reported = isinstance(context.get("exception"), KafkaError) and "never retrieved" in context["message"]
    if not reported and "was destroyed but" not in context["message"]:
        loop.default_exception_handler(context)


async def close_at_once(producer: AIOKafkaProducer, timeout_s: float) -> None:
    """Close a producer without waiting for deliveries, which ``producer.stop()`` waits for."""
    producer._closed = True
    task = producer._sender.sender_task
    if task is not None:
        task.cancel()
    await sessions.end_in_time(producer.client.close())
    if task is not None:
        await asyncio.wait([task], timeout=timeout_s)
        if task.done() and not task.cancelled():
            task.exception()


class ProducerLoop(LoopThread):
    """The event loop of the producers of all machines."""

    def __init__(self) -> None:
        produce.install()
        super().__init__("timers-producers", log_unless_reported)
        self.heartbeat = Heartbeat()
        self.answers = BrokerAnswers()
        self.submit(keep_heartbeat(self.heartbeat))
