"""Settings of the Kafka clients that the worker opens beside Faust's own."""

from typing import Any

from timers.settings import Settings
from timers.wire.dead_letter import OVERHEAD_BYTES

TRANSACTION_TIMEOUT_MS = 10_000
"""An open transaction holds back every read_committed receiver of its topics: never longer than this."""


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


def max_message_bytes(settings: Settings) -> int:
    """Largest record that our own topics and producers take: the largest request and what we add to it."""
    return settings.max_request_bytes + OVERHEAD_BYTES
