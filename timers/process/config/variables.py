"""Parsers of environment variables: each returns a value, or raises an error that says what is expected.

Passwords are never shown. :func:`check` says whether the settings of logins and TLS fit together.
"""

from __future__ import annotations

import ipaddress
import math
import re
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from timers.core.printable import quoted
from timers.errors import SettingsError
from timers.process.hosts import without_brackets
from timers.wire import topics
from timers.wire.instants import parse_instant


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


def legal_text(is_legal: Callable[[str], object], expected: str) -> Callable[[str, str], str]:
    """Return a parser of texts that ``is_legal`` accepts."""

    def parse(env: str, value: str) -> str:
        if not is_legal(value):
            raise invalid(env, value, expected)
        return value

    return parse


function = legal_text(
    re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII).fullmatch,
    "the name of a function, module:function (try company.kafka_login:token)",
)
one_line = legal_text(str.isprintable, "text in one line")
topic = legal_text(topics.is_legal, topics.LEGAL_FORM)
topic_or_empty = legal_text(lambda value: not value or topics.is_legal(value), topics.LEGAL_FORM)


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
group_ids = listed(lambda each: each and each.isprintable(), "group ids", "billing,reports")
topic_patterns = listed(lambda each: topics.is_legal(each.replace("*", "x")), "topic names", "orders-*,invoices")
_host_names = listed(re.compile(r"[a-zA-Z0-9._-]{1,253}").fullmatch, "host names", "timers.example.com,build-7")


def host_names(env: str, value: str) -> tuple[str, ...]:
    """Parse host names, separated by commas."""
    return tuple(each.lower() for each in _host_names(env, value))


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True


extensions = listed(
    re.compile(r"(?!auth=)[A-Za-z]{1,100}=[!-+\--~]{1,1000}").fullmatch,
    "SASL extensions",
    "logicalCluster=lkc-1a2b3c,identityPoolId=pool-4d5e",
)
"""Names and values as RFC 7628 has them, without spaces and commas in values."""
networks = listed(_is_network, "addresses and networks", "10.0.0.7,10.1.0.0/16")


def brokers(env: str, value: str) -> str:
    """Parse bootstrap servers."""
    if "@" in value:  # the value is not shown, because it probably contains a password
        raise SettingsError(
            f"{env} holds an '@': name hosts and ports only (try 127.0.0.1:9092); user name and password go into "
            "TIMERS_SASL_USERNAME and TIMERS_SASL_PASSWORD"
        )
    for address in value.split(","):
        if re.fullmatch(r"[0-9A-Fa-f]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f.]*(%\w+)?(:[0-9]+)?", address.strip()):
            raise invalid(env, value, "an IPv6 address in brackets (try [::1]:9092)")
        host, _, port = address.strip().rpartition(":")
        is_host = re.fullmatch(r"\[[0-9A-Fa-f:.%\w]+\]|[^\s:/]+", host)
        if not is_host or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
            raise invalid(env, value, "host:port[,host:port...] with ports 1 to 65535 (try 127.0.0.1:9092)")
    return ",".join(address.strip() for address in value.split(","))


def _path(env: str, value: str) -> Path:
    if _CONTROL.search(value) or (value and value[0] in "'\"" and value[0] == value[-1]):
        # Files of `docker run --env-file` and of Compose keep quotes, and the line ends of Windows.
        raise invalid(env, value, "a path without quotes around it, and without line ends")
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
    return legal_text(choices.__contains__, f"one of {', '.join(choices)}")


def url(env: str, value: str) -> str:
    """Parse the URL of a web server, without a path."""
    found = re.fullmatch(r"https?://([^\s/?#@:\[\]]+|\[[0-9a-fA-F:.]+\])(?::([0-9]{1,5}))?/?", value)
    if not found or int(found[2] or 0) > 65535:
        raise invalid(env, value, "http://host:port (try http://127.0.0.1:6066, or with IPv6 http://[::1]:6066)")
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
    """Parse a host name or address to listen on; one of IPv6 may be in brackets, as in a URL."""
    if not value or re.search(r"[\s/]", value):
        raise invalid(env, value, "a host name or address to listen on (try 127.0.0.1)")
    return without_brackets(value)


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


PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
OAUTHBEARER = "OAUTHBEARER"
AUTO = "auto"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)

MASK = "***"

PROTOCOL, MECHANISM = "TIMERS_SECURITY_PROTOCOL", "TIMERS_SASL_MECHANISM"
_USERNAME, _PASSWORD = "TIMERS_SASL_USERNAME", "TIMERS_SASL_PASSWORD"
_FILE = "_FILE"
TOKEN_URL, TOKEN_FILE = "TIMERS_SASL_TOKEN_URL", "TIMERS_SASL_TOKEN_FILE"
TOKEN_COMMAND, TOKEN_MODULE = "TIMERS_SASL_TOKEN_COMMAND", "TIMERS_SASL_TOKEN_MODULE"
_TOKEN_SOURCES = (TOKEN_URL, TOKEN_FILE, TOKEN_COMMAND, TOKEN_MODULE)
_SCOPE, _TOKEN_CA = "TIMERS_SASL_TOKEN_SCOPE", "TIMERS_SASL_TOKEN_CA_FILE"
_OF_TOKENS: tuple[str, ...] = (*_TOKEN_SOURCES, _SCOPE, _TOKEN_CA, "TIMERS_SASL_EXTENSIONS")
_OF_TOKEN_URL = (_USERNAME, _PASSWORD, _PASSWORD + _FILE, _SCOPE, _TOKEN_CA)
_CERT, _KEY, _KEY_PASSWORD = "TIMERS_SSL_CERT_FILE", "TIMERS_SSL_KEY_FILE", "TIMERS_SSL_KEY_PASSWORD"

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


def command_line(env: str, value: str) -> Secret:
    """Return a command line, which may hold a password, and so is not shown."""
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise invalid(env, MASK, f"a command line ({error})") from None
    if not words or _CONTROL.search(value):
        raise invalid(env, MASK, "a command line: a program and its arguments, without a shell")
    return Secret(value)


def login_url(what: str, example: str) -> Callable[[str, str], str]:
    """Return a parser of the URL of a server of logins, which gets secrets: with https, except on this machine."""

    def parse(env: str, value: str) -> str:
        found = re.fullmatch(r"(https?)://([^\s/?#@:\[\]]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?(/[^\s#@]*)?", value)
        if not found or not value.isascii():
            shown = MASK if "@" in value else value  # it probably contains a password
            raise invalid(env, shown, f"{what} (try {example})")
        if found[1] == "http" and not only_this_machine(without_brackets(found[2])):
            raise invalid(env, value, "a URL with https: secrets and tokens would be readable on the way")
        return value

    return parse


token_url = login_url("the URL of a token endpoint", "https://login.example.com/oauth2/token")
issuer_url = login_url("the URL of an issuer of OpenID Connect", "https://login.example.com/realms/company")


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


def check(protocol: str, mechanism: str, given: Collection[str]) -> None:
    """Check that the security settings fit together."""
    for name in (_PASSWORD, _KEY_PASSWORD, _QUERY_SECRET):
        if name in given and name + _FILE in given:
            raise SettingsError(f"{name} and {name}{_FILE} are both set: keep one of them")
    _refuse_unused("TIMERS_SASL_", given, uses_sasl(protocol), protocol, "SASL_SSL")
    _refuse_unused("TIMERS_SSL_", given, uses_tls(protocol), protocol, "SSL or SASL_SSL")
    if uses_sasl(protocol):
        _check_login(protocol, mechanism, given)
    for name, other in ((_CERT, _KEY), (_KEY, _CERT)):
        if name in given and other not in given:
            raise SettingsError(
                f"{name} needs {other}, which is not set: a client certificate and its key belong together"
            )
    for name in (_KEY_PASSWORD, _KEY_PASSWORD + _FILE):
        if name in given and _KEY not in given:
            raise SettingsError(f"{name} needs {_KEY}, which is not set: there is no key to decrypt")


def _check_login(protocol: str, mechanism: str, given: Collection[str]) -> None:
    needing, unused = f"{PROTOCOL}={protocol!r}", _OF_TOKENS
    if mechanism == OAUTHBEARER:
        needing, unused = f"{MECHANISM}={mechanism!r}", ()
        sources = [name for name in _TOKEN_SOURCES if name in given]
        if len(sources) != 1:
            found = f"{' and '.join(sources)} are set" if sources else "none is set"
            raise SettingsError(f"{needing} needs one of {', '.join(_TOKEN_SOURCES)}, and {found}")
        if sources != [TOKEN_URL]:
            needing, unused = f"{needing} with {sources[0]}", _OF_TOKEN_URL
    for name in unused:
        if name in given:
            raise SettingsError(f"{name} is set, but {needing} does not use it: unset it, or choose another login")
    if unused == _OF_TOKEN_URL:
        return
    if _USERNAME not in given:
        raise SettingsError(f"{needing} needs {_USERNAME}, which is not set")
    if not {_PASSWORD, _PASSWORD + _FILE} & set(given):
        raise SettingsError(f"{needing} needs {_PASSWORD} or {_PASSWORD}{_FILE}, and neither is set")


def _refuse_unused(prefix: str, given: Collection[str], used: bool, protocol: str, instead: str) -> None:
    names = sorted(name for name in given if name.startswith(prefix))
    if names and not used:
        raise SettingsError(
            f"{names[0]} is set, but {PROTOCOL}={protocol!r} does not use it: set {PROTOCOL}={instead}, or unset it"
        )
