"""Checks that the web port is free, before the worker joins the group."""

from __future__ import annotations

import socket

from timers.errors import SettingsError
from timers.process.config.settings import Settings


def check_port(settings: Settings) -> None:
    """Check that the worker can listen on its port. Faust would fail with a traceback, after it has joined the group.

    Raises:
        SettingsError: another process listens there, probably a worker.
    """
    with socket.socket(socket.AF_INET6 if ":" in settings.web_bind else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.web_bind, settings.web_port))
        except OSError as error:
            raise SettingsError(
                f"TIMERS_WEB_PORT={settings.web_port} cannot be listened on at TIMERS_WEB_BIND={settings.web_bind} "
                f"({error.strerror}): does another worker run here? Give each its own port"
            ) from error
