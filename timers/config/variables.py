"""Parsers of environment variables: each returns a value, or raises an error that says what is expected."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from timers.errors import SettingsError
from timers.wire import topics
from timers.wire.instants import parse_instant
from timers.wire.printable import quoted


@dataclass(frozen=True)
class Setting:
    """An environment variable, its parser and its documentation."""

    env: str
    unit: str
    why: str
    parse: Callable[[str, str], Any]
    may_be_empty: bool = False
    """Whether an empty variable is a value. Other settings have their default then."""

    def is_given(self, env: Mapping[str, str]) -> bool:
        """Return whether these variables have a value for this setting."""
        return bool(env.get(self.env)) or (self.may_be_empty and self.env in env)


def invalid(env: str, value: str, expected: str) -> SettingsError:
    """Return the error for a value that is not as expected."""
    return SettingsError(f"{env}={quoted(value)} is not {expected}")


def whole_number(low: int, high: int, example: int) -> Callable[[str, str], int]:
    """Return a parser of whole numbers from ``low`` to ``high``."""

    def parse(env: str, value: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", value) or not low <= int(value) <= high:
            raise invalid(env, value, f"a whole number between {low} and {high} (try {example})")
        return int(value)

    return parse


def flag(env: str, value: str) -> bool:
    """Parse 1 as True and 0 as False."""
    if value not in ("0", "1"):
        raise invalid(env, value, "0 or 1")
    return value == "1"


def seconds(env: str, value: str) -> float:
    """Parse seconds; they may be negative or have a fraction."""
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not -1e9 <= number <= 1e9:
        raise invalid(env, value, "a number of seconds, such as -3600 or 0.4")
    return number


def seconds_or_never(env: str, value: str) -> float:
    """Parse whole seconds; infinity for ``never``."""
    if value == "never":
        return math.inf
    if not re.fullmatch(r"[0-9]{1,10}", value):
        raise invalid(env, value, "a whole number of seconds, or never (try 604800)")
    return int(value)


def instant(env: str, value: str) -> int:
    """Parse an instant of ISO 8601 as epoch seconds, rounded up."""
    try:
        second = parse_instant(value)
    except ValueError:
        second = None
    if second is None:
        raise invalid(env, value, "an instant with its offset from UTC, such as 2030-01-31T12:00:00Z")
    return second


def matching_text(pattern: re.Pattern[str], expected: str) -> Callable[[str, str], str]:
    """Return a parser of text that fully matches ``pattern``."""

    def parse(env: str, value: str) -> str:
        if not pattern.fullmatch(value):
            raise invalid(env, value, expected)
        return value

    return parse


def one_line(env: str, value: str) -> str:
    """Parse text without line breaks and other control characters."""
    if not value.isprintable():
        raise invalid(env, value, "text in one line")
    return value


def topic(env: str, value: str) -> str:
    """Parse the name of a topic."""
    if not topics.is_legal(value):
        raise invalid(env, value, topics.LEGAL_FORM)
    return value


def topic_or_empty(env: str, value: str) -> str:
    """Parse the name of a topic, or empty text."""
    return topic(env, value) if value else value


def listed(is_legal: Callable[[str], object], what: str, example: str) -> Callable[[str, str], tuple[str, ...]]:
    """Return a parser of values separated by commas, each of which ``is_legal`` accepts."""

    def parse(env: str, value: str) -> tuple[str, ...]:
        found = tuple(each.strip() for each in value.split(","))
        for each in found:
            if not is_legal(each):
                raise invalid(env, value, f"a list of {what}, but {quoted(each)} is not one (try {example})")
        return found

    return parse


topic_names = listed(topics.is_legal, "topic names", "schedules,more-schedules")
_patterns = listed(lambda each: topics.is_legal(each.replace("*", "x")), "topic names", "orders-*,invoices")
_host_names = listed(re.compile(r"[a-zA-Z0-9._-]{1,253}").fullmatch, "host names", "timers.example.com,build-7")


def topic_patterns(env: str, value: str) -> str:
    """Parse topic names, separated by commas, each with any number of ``*``."""
    return ",".join(_patterns(env, value))


def host_names(env: str, value: str) -> tuple[str, ...]:
    """Parse host names, separated by commas."""
    return tuple(each.lower() for each in _host_names(env, value))


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True


networks = listed(_is_network, "addresses and networks", "10.0.0.7,10.1.0.0/16")


def brokers(env: str, value: str) -> str:
    """Parse bootstrap servers."""
    if "@" in value:  # the value is not shown, because it probably contains a password
        raise SettingsError(
            f"{env} holds an '@': name hosts and ports only (try 127.0.0.1:9092); user name and password go into "
            "TIMERS_SASL_USERNAME and TIMERS_SASL_PASSWORD"
        )
    for address in value.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
            raise invalid(env, value, "host:port[,host:port...] with ports 1 to 65535 (try 127.0.0.1:9092)")
        if ":" in host and not re.fullmatch(r"\[[0-9A-Fa-f:.%\w]+\]", host):
            raise invalid(env, value, "an IPv6 address in brackets (try [::1]:9092)")
    return ",".join(address.strip() for address in value.split(","))


def _path(env: str, value: str) -> Path:
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise invalid(env, value, "a path without ~, as this process has no home directory (or set HOME)") from None


def directory(env: str, value: str) -> Path:
    """Parse the path of a directory, which may not exist yet."""
    path = _path(env, value)
    if path.exists() and not path.is_dir():
        raise invalid(env, value, "a directory: it is a file")
    return path


def file(env: str, value: str) -> Path:
    """Parse the path of a readable file."""
    path = _path(env, value)
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        raise invalid(env, value, f"a file that can be read ({error.strerror})") from None


def one_of(*choices: str) -> Callable[[str, str], str]:
    """Return a parser that accepts only ``choices``."""

    def parse(env: str, value: str) -> str:
        if value not in choices:
            raise invalid(env, value, f"one of {', '.join(choices)}")
        return value

    return parse


def url(env: str, value: str) -> str:
    """Parse the URL of a web server, without a path."""
    found = re.fullmatch(r"https?://([^\s/?#@:\[\]]+|\[[0-9a-fA-F:.]+\])(?::([0-9]{1,5}))?/?", value)
    if not found or int(found[2] or 0) > 65535:
        raise invalid(env, value, "http://host:port (try http://127.0.0.1:6066)")
    return value.rstrip("/")


def public_url(env: str, value: str) -> str:
    """Parse the URL of a web server, with or without a path."""
    scheme, separator, rest = value.partition("//")
    name, slash, rest = rest.partition("/")
    host, path = scheme + separator + name, slash + rest
    try:
        if re.fullmatch(r"(/[A-Za-z0-9._~-]+)*/?", path):
            return url(env, host) + path.rstrip("/")
    except SettingsError:
        pass
    raise invalid(env, value, "http://host:port/path (try https://timers.example.com/console)")


def bind(env: str, value: str) -> str:
    """Parse a host name or address to listen on."""
    if not value or re.search(r"[\s/]", value):
        raise invalid(env, value, "a host name or address to listen on (try 127.0.0.1)")
    return value


def setting(
    parse: Callable[[str, str], Any],
    why: str,
    *,
    default: Any = None,
    unit: str = "",
    env: str = "",
    may_be_empty: bool = False,
) -> Any:
    """A setting. Its variable is ``TIMERS_`` and its name in capitals, if ``env`` gives no other one."""
    metadata = {"env": env, "unit": unit, "why": why, "parse": parse, "may_be_empty": may_be_empty}
    return field(default=default, metadata=metadata)


def number_setting(
    bounds: tuple[int, int], why: str, *, default: int, unit: str = "", example: int | None = None
) -> Any:
    """A setting that is a whole number within ``bounds``. Errors suggest ``example``, or else the default."""
    parse = whole_number(*bounds, default if example is None else example)
    return setting(parse, why, default=default, unit=unit)
