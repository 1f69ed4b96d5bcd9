"""The credentials of Faust's Kafka clients, and a filter that keeps passwords out of the log."""

import logging
from typing import Any

import faust

from timers.config.settings import Settings
from timers.kafka import connection


def faust_credentials(settings: Settings) -> Any:
    """Faust's credentials for the brokers; None for plain connections.

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
    """Drops aiokafka's DEBUG records of login requests: with PLAIN they contain the password."""

    def filter(self, record: logging.LogRecord) -> bool:
        arguments = record.args if isinstance(record.args, tuple) else ()
        return not any(type(argument).__name__.startswith("SaslAuthenticate") for argument in arguments)


def hide_logins() -> None:
    """Keep passwords out of aiokafka's log at every log level. Further calls have no effect."""
    log = logging.getLogger("aiokafka.conn")
    if not any(isinstance(known, _WithoutLogins) for known in log.filters):
        log.addFilter(_WithoutLogins())
