"""Arguments of the aiokafka clients, computed from the settings."""

from __future__ import annotations

from typing import Any

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError

from timers.errors import AccessError
from timers.kafka import connection, login_tokens
from timers.kafka.aiokafka_internals.sessions import keep_logged_in
from timers.process.config.settings import Settings
from timers.process.config.variables import OAUTHBEARER, uses_sasl, uses_tls


def arguments(settings: Settings, name: str = "") -> dict[str, Any]:
    """Arguments of an aiokafka client: addresses, TLS and login. They contain secrets: never log them.

    From now on all connections of aiokafka in this process log in again before their session ends.

    Args:
        name: of the client, after the worker's id; empty: the caller names it.
    """
    keep_logged_in()
    found: dict[str, Any] = {
        "bootstrap_servers": settings.brokers.split(","),
        "security_protocol": settings.security_protocol,
        "ssl_context": connection.ssl_context(settings) if uses_tls(settings.security_protocol) else None,
    }
    if name:
        found["client_id"] = f"{settings.worker_id}-{name}"
    if uses_sasl(settings.security_protocol):
        found["sasl_mechanism"] = settings.sasl_mechanism
        if settings.sasl_mechanism == OAUTHBEARER:
            found["sasl_oauth_token_provider"] = Tokens(settings)
        else:
            found["sasl_plain_username"] = settings.sasl_username
            found["sasl_plain_password"] = settings.sasl_password.reveal()
    return found


class Tokens(AbstractTokenProvider):
    """The tokens of the settings, for aiokafka."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def token(self) -> str:
        """The present token.

        Raises:
            KafkaConnectionError: there is none; aiokafka then tries another broker, or this one later.
        """
        try:
            return (await login_tokens.source_of(self._settings).get_soon()).text
        except AccessError as error:
            raise KafkaConnectionError(str(error)) from None

    def extensions(self) -> dict[str, str]:
        """What goes to the brokers with the token."""
        return login_tokens.extensions(self._settings)
