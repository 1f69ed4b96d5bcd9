"""Signs what the console gives away and gets back, so that it keeps nothing for each user."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import secrets
from typing import Any

from timers.console.problems import Problem
from timers.errors import SettingsError
from timers.process.config.settings import Settings

_MIN_SECRET_BYTES = 32
_MAX_SECRET_BYTES = 64 * 1024


class Signer:
    """Signs texts for one user, one purpose and a limited time. A secret that is too short is a SettingsError.

    ``user`` is the name of the user; it is empty for a text that says itself whose it is.
    """

    def __init__(self, settings: Settings) -> None:
        path = settings.console_secret_file
        if path is None:
            self._key = secrets.token_bytes(_MIN_SECRET_BYTES)
            return
        with path.open("rb") as file:
            self._key = file.read(_MAX_SECRET_BYTES).strip()
        if len(self._key) < _MIN_SECRET_BYTES:
            raise SettingsError(
                f"TIMERS_CONSOLE_SECRET_FILE={str(path)!r} has fewer than {_MIN_SECRET_BYTES} bytes "
                "(try: openssl rand -hex 32)"
            )

    def sign(self, purpose: str, user: str, content: Any, until_s: float) -> str:
        """A text that holds ``content`` until the epoch second ``until_s``."""
        payload = _base64(json.dumps([content, int(until_s)], separators=(",", ":")).encode())
        return f"{payload}.{self._signature(purpose, user, payload)}"

    def open(self, purpose: str, user: str, text: str, now_s: float) -> Any:
        """The content of a text that :meth:`sign` made for this purpose and user. Another or old text is a problem."""
        payload, _, signature = text.partition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(purpose, user, payload).encode()):
            raise Problem("cursor-invalid", f"this {purpose} was not made for you by this console")
        try:
            content, until_s = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        except (binascii.Error, ValueError):
            raise Problem("cursor-invalid", f"this {purpose} cannot be read") from None
        if now_s > until_s:
            raise Problem("cursor-invalid", f"this {purpose} is too old: begin again")
        return content

    def _signature(self, purpose: str, user: str, payload: str) -> str:
        text = json.dumps([purpose, user, payload]).encode()
        return _base64(hmac.digest(self._key, text, "sha256"))


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
