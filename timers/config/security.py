"""Secrets that are never shown, and the check that the security settings fit together."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from pathlib import Path

from timers.config.variables import invalid
from timers.errors import SettingsError

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

MASK = "***"

PROTOCOL = "TIMERS_SECURITY_PROTOCOL"
_USERNAME, _PASSWORD = "TIMERS_SASL_USERNAME", "TIMERS_SASL_PASSWORD"
_CERT, _KEY, _KEY_PASSWORD = "TIMERS_SSL_CERT_FILE", "TIMERS_SSL_KEY_FILE", "TIMERS_SSL_KEY_PASSWORD"
_FILE = "_FILE"

_QUERY_SECRET = "TIMERS_QUERY_SECRET"
_MIN_QUERY_SECRET = 32

_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
"""Control characters, and the bytes of a setting that are not UTF-8."""
_MAX_SECRET_FILE_BYTES = 64 * 1024


class Secret:
    """A password. Its text is in no repr, log or error; :meth:`reveal` returns it."""

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text, for the library that needs it."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __repr__(self) -> str:
        return MASK if self._text else ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))


def secret(env: str, value: str) -> Secret:
    """Return a password. The error for a wrong one does not show it."""
    if _CONTROL.search(value):
        raise invalid(env, MASK, "a password in one line of UTF-8 without control characters")
    return Secret(value)


def query_secret(env: str, value: str) -> Secret:
    """Return a secret that signs queries: too long to be guessed."""
    if len(value) < _MIN_QUERY_SECRET:
        raise invalid(env, MASK, f"a secret of {_MIN_QUERY_SECRET} characters or more (try: openssl rand -hex 32)")
    return secret(env, value)


def only_this_machine(bind: str) -> bool:
    """Return whether a port that is bound to this address takes connections from this machine only."""
    try:
        return ipaddress.ip_address(bind).is_loopback
    except ValueError:
        return bind == "localhost"


def read_secret(env: str, path: Path) -> Secret:
    """Return the password in a file, without the line break at its end."""
    with path.open("rb") as file:  # without the limit, a device such as /dev/zero would be read for ever
        content = file.read(_MAX_SECRET_FILE_BYTES)
    try:
        text = content.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        text = ""
    if not text or _CONTROL.search(text):
        raise invalid(env, str(path), "a file that holds a password in one line, in UTF-8, and nothing else")
    return Secret(text)


def uses_sasl(protocol: str) -> bool:
    """Return whether the protocol needs a user name and a password."""
    return protocol.startswith("SASL_")


def uses_tls(protocol: str) -> bool:
    """Return whether the protocol encrypts connections."""
    return protocol.endswith("SSL")


def check(protocol: str, given: Collection[str]) -> None:
    """Check that the security settings fit together.

    Args:
        protocol: the chosen security protocol.
        given: names of the variables that are set.
    """
    for name in (_PASSWORD, _KEY_PASSWORD, _QUERY_SECRET):
        if name in given and name + _FILE in given:
            raise SettingsError(f"{name} and {name}{_FILE} are both set: keep one of them")
    _refuse_unused("TIMERS_SASL_", given, uses_sasl(protocol), protocol, "SASL_SSL")
    _refuse_unused("TIMERS_SSL_", given, uses_tls(protocol), protocol, "SSL or SASL_SSL")
    if uses_sasl(protocol):
        if _USERNAME not in given:
            raise SettingsError(f"{PROTOCOL}={protocol!r} needs {_USERNAME}, which is not set")
        if not {_PASSWORD, _PASSWORD + _FILE} & set(given):
            raise SettingsError(f"{PROTOCOL}={protocol!r} needs {_PASSWORD} or {_PASSWORD}{_FILE}, and neither is set")
    for name, other in ((_CERT, _KEY), (_KEY, _CERT)):
        if name in given and other not in given:
            raise SettingsError(
                f"{name} needs {other}, which is not set: a client certificate and its key belong together"
            )
    for name in (_KEY_PASSWORD, _KEY_PASSWORD + _FILE):
        if name in given and _KEY not in given:
            raise SettingsError(f"{name} needs {_KEY}, which is not set: there is no key to decrypt")


def _refuse_unused(prefix: str, given: Collection[str], used: bool, protocol: str, instead: str) -> None:
    names = sorted(name for name in given if name.startswith(prefix))
    if names and not used:
        raise SettingsError(
            f"{names[0]} is set, but {PROTOCOL}={protocol!r} does not use it: set {PROTOCOL}={instead}, or unset it"
        )
