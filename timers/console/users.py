"""The users of the console, from a TOML file, and their passwords.

::

    [[user]]
    name = "ada"
    role = "operator"                      # or reader, the default
    password = "scrypt$ln=15,r=8,p=1$..."  # `timers console --hash-password` prints it
    values = true                          # may see values of callbacks; false by default
    topics = ["orders-*"]                  # callback topics that the user may use and see; missing: all
    ids = ["order-*"]                      # ids that the user may set and cancel; with topics: missing: none

    [[user]]
    name = "prometheus"
    token_sha256 = "9f86d08..."            # `timers console --new-token` prints a token and this
    [[user]]
    name = "batch.example.com"             # the common name of a client certificate, or the name that a proxy sends
"""

from __future__ import annotations

import asyncio
import base64
import fnmatch
import hashlib
import hmac
import re
import secrets
import tomllib
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from timers.console.routes import OPERATOR, PUBLIC, READER
from timers.errors import SettingsError
from timers.wire.printable import quoted

_LOG_N, _R, _P = 15, 8, 1
"""Costs of new hashes: 32 MiB and about 0.1 s."""

_MAX_LOG_N = 18
_REMEMBER_S = 300.0
_REMEMBERED = 1000
_MAX_WAITING = 8
"""Checks that may wait for the one that runs. Each takes 0.1 s of a core and 32 MiB."""


class BusyError(Exception):
    """Too many passwords are being checked."""


class ScryptHash(NamedTuple):
    """Parameters, salt and hash of a password."""

    log_n: int
    r: int
    p: int
    salt: bytes
    digest: bytes

    @classmethod
    def parse(cls, text: str) -> ScryptHash:
        """Read the form of :meth:`__str__`.

        Raises:
            ValueError: the text has another form, or the costs are out of range.
        """
        name, costs, salt, digest = text.split("$")
        log_n, r, p = (int(each.partition("=")[2]) for each in costs.split(","))
        if name != "scrypt" or not 10 <= log_n <= _MAX_LOG_N or not 1 <= r <= 16 or not 1 <= p <= 4:
            raise ValueError("not a hash of scrypt with usual costs")
        return cls(log_n, r, p, base64.b64decode(salt, validate=True), base64.b64decode(digest, validate=True))

    def __str__(self) -> str:
        salt, digest = (base64.b64encode(each).decode() for each in (self.salt, self.digest))
        return f"scrypt$ln={self.log_n},r={self.r},p={self.p}${salt}${digest}"

    def matches(self, password: str) -> bool:
        """Whether this is the hash of a password. Takes 0.1 s."""
        return hmac.compare_digest(_scrypt(password, self.salt, self.log_n, self.r, self.p), self.digest)


def hash_password(password: str) -> ScryptHash:
    """Hash a password with a new salt."""
    salt = secrets.token_bytes(16)
    return ScryptHash(_LOG_N, _R, _P, salt, _scrypt(password, salt, _LOG_N, _R, _P))


def _scrypt(password: str, salt: bytes, log_n: int, r: int, p: int) -> bytes:
    memory = 2 * 128 * r * (1 << log_n) * p
    return hashlib.scrypt(password.encode(), salt=salt, n=1 << log_n, r=r, p=p, maxmem=memory, dklen=32)


def hash_token(token: str) -> str:
    """Hash a bearer token. It is random and long, so a slow hash is not needed."""
    # The server decodes the bytes of a header that are not UTF-8 in this way.
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


_OF_NO_USER = ScryptHash(_LOG_N, _R, _P, b"\0" * 16, b"\0" * 32)
"""Compared with the password of an unknown user, so that the time of the answer does not tell which users exist."""


class PasswordChecks:
    """Checks passwords, one at a time, and remembers right ones for five minutes."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, float] = OrderedDict()
        self._lock = asyncio.Lock()
        # A thread of its own: slow brokers may keep those that asyncio has for everything.
        self._thread = ThreadPoolExecutor(1, "timers-console-passwords")
        self._waiting = 0

    async def is_right(self, user: str, password: str, known: ScryptHash | None) -> bool:
        """Whether the password is that of the user, whose hash is ``known``; None: there is no such user.

        Raises:
            BusyError: too many checks are waiting.
        """
        name = self._name(user, password, known)
        if self._right.get(name, 0.0) > monotonic():
            return True
        if self._waiting >= _MAX_WAITING:
            raise BusyError
        self._waiting += 1
        try:
            async with self._lock:
                if self._right.get(name, 0.0) > monotonic():  # a request that was first had the same password
                    return True
                loop = asyncio.get_running_loop()
                right = await loop.run_in_executor(self._thread, (known or _OF_NO_USER).matches, password)
        finally:
            self._waiting -= 1
        if right and known is not None:
            self._right[name] = monotonic() + _REMEMBER_S
            while len(self._right) > _REMEMBERED:
                self._right.popitem(last=False)
            return True
        return False

    def is_remembered(self, user: str, password: str, known: ScryptHash | None) -> bool:
        """Whether the password was right a short time ago."""
        return self._right.get(self._name(user, password, known), 0.0) > monotonic()

    def _name(self, user: str, password: str, known: ScryptHash | None) -> bytes:
        # With the hash in it, a changed password is checked again.
        return hmac.digest(self._key, f"{user}\0{known}\0{password}".encode(errors="surrogatepass"), "sha256")


_FIELDS = {"name", "role", "password", "token_sha256", "values", "topics", "ids"}
_ENV = "TIMERS_CONSOLE_USERS_FILE"


@dataclass(frozen=True)
class Principal:
    """Who sends a request, and what this user may do.

    Attributes:
        name: for the log of changes and the limits.
        topics: patterns of callback topics; None: all.
        ids: patterns of ids; None: all.
    """

    name: str
    role: str = READER
    values: bool = False
    topics: tuple[str, ...] | None = None
    ids: tuple[str, ...] | None = None
    password: ScryptHash | None = field(default=None, repr=False)
    token_sha256: str = field(default="", repr=False)

    def may(self, role: str) -> bool:
        """Whether the user has this role."""
        return role in (PUBLIC, self.role) or (role == READER and self.role == OPERATOR)

    def may_use_topic(self, topic: str | None) -> bool:
        """Whether the user may use and see timers with this callback topic; None: it is not known."""
        return self.topics is None or (topic is not None and _matches(self._topic_pattern, topic))

    def may_use_id(self, id: str) -> bool:
        """Whether the user may set, replace and cancel the timer with this id, whatever its callback topic is."""
        return (self.topics is None and self.ids is None) or _matches(self._id_pattern, id)

    @cached_property
    def _topic_pattern(self) -> re.Pattern[str] | None:
        return _pattern(self.topics)

    @cached_property
    def _id_pattern(self) -> re.Pattern[str] | None:
        return _pattern(self.ids)


def _pattern(patterns: Iterable[str] | None) -> re.Pattern[str] | None:
    return re.compile("|".join(map(fnmatch.translate, patterns or ()))) if patterns else None


def _matches(pattern: re.Pattern[str] | None, text: str) -> bool:
    return pattern is not None and pattern.fullmatch(text) is not None


@dataclass(frozen=True)
class Users:
    """All users of a file."""

    by_name: dict[str, Principal]
    by_token: dict[str, Principal]

    @classmethod
    def read(cls, path: Path) -> Users:
        """Read the file.

        Raises:
            SettingsError: it is not as described above.
        """
        try:
            content = tomllib.loads(path.read_bytes().decode())
        except (OSError, ValueError, RecursionError) as error:
            raise _wrong(path, str(error)) from None
        entries = content.get("user")
        if not isinstance(entries, list) or not entries or content.keys() != {"user"}:
            raise _wrong(path, "it has no [[user]], or something else")
        users = [_user(path, entry) for entry in entries]
        by_name = {user.name: user for user in users}
        if len(by_name) < len(users):
            raise _wrong(path, "two users have the same name")
        by_token = {user.token_sha256: user for user in users if user.token_sha256}
        if len(by_token) < sum(bool(user.token_sha256) for user in users):
            raise _wrong(path, "two users have the same token")
        return cls(by_name, by_token)


def _user(path: Path, entry: Any) -> Principal:
    if not isinstance(entry, dict):
        raise _wrong(path, f"a user is {quoted(entry)}, not a table [[user]]")
    name = entry.get("name")
    if not isinstance(name, str) or not name or not name.isprintable() or ":" in name:
        raise _wrong(path, f"a user has no name, or one with ':': {quoted(name)}")
    if unknown := sorted(entry.keys() - _FIELDS):
        raise _wrong(path, f"user {quoted(name)} has {quoted(unknown[0])}: there are {', '.join(sorted(_FIELDS))}")
    role, values = entry.get("role", READER), entry.get("values", False)
    if role not in (READER, OPERATOR) or not isinstance(values, bool):
        raise _wrong(path, f"user {quoted(name)}: role is {READER} or {OPERATOR}, values is true or false")
    password, token = entry.get("password"), entry.get("token_sha256", "")
    try:
        hashed = None if password is None else ScryptHash.parse(password)
    except (ValueError, AttributeError):
        hint = "`timers console --hash-password` prints the right form"
        raise _wrong(path, f"the password of user {quoted(name)} is no hash of scrypt: {hint}") from None
    if not isinstance(token, str) or not re.fullmatch(r"([0-9a-f]{64})?", token):
        raise _wrong(path, f"token_sha256 of user {quoted(name)} has not 64 hexadecimal digits in lower case")
    return Principal(name, role, values, _texts(path, entry, "topics"), _texts(path, entry, "ids"), hashed, token)


def _texts(path: Path, entry: dict[str, Any], field: str) -> tuple[str, ...] | None:
    found = entry.get(field)
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(each, str) and each for each in found):
        raise _wrong(path, f"{field} of user {quoted(entry['name'])} is not a list of texts, such as ['orders-*']")
    return tuple(found)


def _wrong(path: Path, why: str) -> SettingsError:
    return SettingsError(f"{_ENV}={quoted(str(path))} is not a file of users ({why}): docs/http-api.md describes it")
