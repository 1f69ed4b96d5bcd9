"""The users of the console, from a TOML file.

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

import fnmatch
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from timers.console.passwords import ScryptHash
from timers.console.routes import OPERATOR, PUBLIC, READER
from timers.errors import SettingsError
from timers.wire.printable import quoted

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
