"""Settings of the Kafka clients that the worker opens beside Faust's own."""

from typing import Any

from timers.settings import Settings
from timers.wire.dead_letter import OVERHEAD_BYTES

TRANSACTION_TIMEOUT_MS = 10_000
"""An open transaction holds back every read_committed receiver of its topics: never longer than this."""

DELIVERY_TIMEOUT_MS = 8_000
"""Within the transaction's time, so that a failing target is known before the broker ends the transaction."""


def librdkafka(settings: Settings) -> dict[str, Any]:
    """What every librdkafka client of this worker shares."""
    return {
        "bootstrap.servers": settings.brokers,
        "client.id": settings.worker_id,
        "socket.nagle.disable": True,
        # A pause of the broker is not worth a second of idle reconnect back-off when a timer is due.
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        "log_level": 3,
    }


def transactional_producer(settings: Settings, transactional_id: str) -> dict[str, Any]:
    """A machine's producer.

    ``murmur2_random`` is Java's partitioner: callbacks land where a Java producer would put the same key.
    """
    return {
        **librdkafka(settings),
        "transactional.id": transactional_id,
        "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
        "partitioner": "murmur2_random",
        "message.max.bytes": max_message_bytes(settings),
        # One transaction is a chunk: the queue must hold a whole one, whatever its size.
        "queue.buffering.max.messages": max(100_000, 2 * settings.chunk_timers),
        "queue.buffering.max.kbytes": 1_048_576,
        # A chunk is known to be complete: commit flushes it. Lingering only lets batches fill up meanwhile.
        "linger.ms": 5,
        "batch.num.messages": 20_000,
        "delivery.report.only.error": True,
        "topic.metadata.propagation.max.ms": 2_000,
    }


def max_message_bytes(settings: Settings) -> int:
    """Largest record that our own topics and producers take: the largest request and what we add to it."""
    return settings.max_request_bytes + OVERHEAD_BYTES
