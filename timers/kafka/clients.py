"""The Kafka clients that the worker opens, beside Faust's own, and what Faust's own log in with."""

import logging
from typing import Any

import faust

from timers.config.settings import Settings
from timers.kafka import connection
from timers.wire.dead_letter import OVERHEAD_BYTES

TRANSACTION_TIMEOUT_MS = 10_000
"""An open transaction holds back every read_committed receiver of its topics: never longer than this."""


def librdkafka(settings: Settings) -> dict[str, Any]:
    """What every librdkafka client of this worker shares."""
    return {
        **connection.librdkafka(settings),
        "client.id": settings.worker_id,
        "socket.nagle.disable": True,
        # A pause of the broker is not worth a second of idle reconnect back-off when a timer is due.
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        # What a client cannot do, its call says: no second report, past the log, thirty times a second.
        "log_level": 0,
    }


def faust_credentials(settings: Settings) -> Any:
    """What Faust opens aiokafka's clients with; None for plain connections.

    Raises:
        SettingsError: certificates or key cannot be used.
    """
    login = connection.aiokafka(settings)
    if "sasl_mechanism" in login:
        return faust.SASLCredentials(
            username=login["sasl_plain_username"],
            password=login["sasl_plain_password"],
            mechanism=login["sasl_mechanism"],
            ssl_context=login["ssl_context"],
        )
    return faust.SSLCredentials(login["ssl_context"]) if login["ssl_context"] is not None else None


class _WithoutLogins(logging.Filter):
    """Drops what aiokafka logs of a login at level DEBUG: all that is sent, and PLAIN sends the password as it is."""

    def filter(self, record: logging.LogRecord) -> bool:
        arguments = record.args if isinstance(record.args, tuple) else ()
        return not any(type(argument).__name__.startswith("SaslAuthenticate") for argument in arguments)


def hide_logins() -> None:
    """Keep passwords out of the log, whatever its level. May be called again."""
    log = logging.getLogger("aiokafka.conn")
    if not any(isinstance(known, _WithoutLogins) for known in log.filters):
        log.addFilter(_WithoutLogins())


def max_message_bytes(settings: Settings) -> int:
    """Largest record that our own topics and producers take: the largest request and what we add to it."""
    return settings.max_request_bytes + OVERHEAD_BYTES
