"""Passwords as scrypt hashes, tokens as SHA-256, and the check of a password without letting attackers use the CPU."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import NamedTuple

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
