"""Who sends a request: the users of a file, and the checks of host, origin and login before anything else is done."""

from __future__ import annotations

import asyncio
import base64
import fnmatch
import hashlib
import hmac
import ipaddress
import math
import re
import secrets
import tomllib
from collections import OrderedDict
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from aiohttp import web

from timers.console.problems import Problem
from timers.console.routes import OPERATOR, PUBLIC, READER
from timers.console.signer import Signer
from timers.core.printable import quoted
from timers.errors import SettingsError
from timers.process import hosts
from timers.process.config import variables
from timers.process.config.settings import Settings
from timers.process.hosts import Hosts
from timers.process.http.slots import Slots
from timers.process.renewed_tls import ChangedFiles

if TYPE_CHECKING:
    from timers.console.oidc import Logins

_LOG_N, _R, _P = 15, 8, 1
"""Costs of new hashes: 32 MiB and about 0.1 s."""

_MAX_LOG_N = 18
_REMEMBER_S = 300.0
_REMEMBERED = 1000
_MAX_WAITING, _MAX_WAIT_S = 8, 30.0
"""Checks that may wait for the one that runs, and for how long. Each takes 0.1 s of a core and 32 MiB."""


class ScryptHash(NamedTuple):
    """Parameters, salt and hash of a password."""

    log_n: int
    r: int
    p: int
    salt: bytes
    digest: bytes

    @classmethod
    def parse(cls, text: str) -> ScryptHash:
        """Read the form of :meth:`__str__`, or raise ValueError, also for costs out of range."""
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
        self._slots = Slots(1, _MAX_WAIT_S, lambda: too_many(1.0, "many passwords are being checked"), _MAX_WAITING)
        # A thread of its own: slow brokers may keep those that asyncio has for everything.
        self._thread = ThreadPoolExecutor(1, "timers-console-passwords")

    async def is_right(self, user: str, password: str, known: ScryptHash | None) -> bool:
        """Whether the password is that of the user, whose hash is ``known``; None: there is no such user.

        Raises:
            Problem: too many checks are waiting.
        """
        async with self._slots:
            if self.is_remembered(user, password, known):  # a request that was first had the same password
                return True
            loop = asyncio.get_running_loop()
            right = await loop.run_in_executor(self._thread, (known or _OF_NO_USER).matches, password)
        if right and known is not None:
            self._right[self._name(user, password, known)] = monotonic() + _REMEMBER_S
            while len(self._right) > _REMEMBERED:
                self._right.popitem(last=False)
        return right and known is not None

    def is_remembered(self, user: str, password: str, known: ScryptHash | None) -> bool:
        """Whether the password was right a short time ago."""
        return self._right.get(self._name(user, password, known), 0.0) > monotonic()

    def _name(self, user: str, password: str, known: ScryptHash | None) -> bytes:
        # With the hash in it, a changed password is checked again.
        return hmac.digest(self._key, f"{user}\0{known}\0{password}".encode(errors="surrogatepass"), "sha256")


_RIGHTS = {"name", "role", "values", "topics", "ids"}
_FIELDS = _RIGHTS | {"password", "token_sha256"}
_ENV = "TIMERS_CONSOLE_USERS_FILE"


@dataclass(frozen=True)
class Principal:
    """Who sends a request, and what this user may do.

    Attributes:
        name: for the log of changes and the limits.
        topics: patterns of callback topics; None: all.
        ids: patterns of ids; None: all.
        session: the id of a login by an issuer in the browser, which can be ended; empty for other logins.
    """

    name: str
    role: str = READER
    values: bool = False
    topics: tuple[str, ...] | None = None
    ids: tuple[str, ...] | None = None
    password: ScryptHash | None = field(default=None, repr=False)
    token_sha256: str = field(default="", repr=False)
    session: str = ""

    def may(self, role: str) -> bool:
        return role in (PUBLIC, self.role) or (role == READER and self.role == OPERATOR)

    def may_use_topic(self, topic: str | None) -> bool:
        """Whether the user may use and see timers with this callback topic; None: it is not known."""
        return self.topics is None or (topic is not None and _matches(self.topics, topic))

    def may_use_id(self, id: str) -> bool:
        """Whether the user may set, replace and cancel the timer with this id, whatever its callback topic is."""
        return (self.topics is None and self.ids is None) or _matches(self.ids, id)


def _matches(patterns: tuple[str, ...] | None, text: str) -> bool:
    return any(fnmatch.fnmatchcase(text, each) for each in patterns or ())


@dataclass(frozen=True)
class Users:
    """The file of users. ``groups`` are those of an issuer: what a user of each may do, in the order of the file."""

    by_name: dict[str, Principal]
    by_token: dict[str, Principal]
    groups: dict[str, Principal]

    @classmethod
    def read(cls, path: Path) -> Users:
        """Read the file, or raise SettingsError if it is not as described above."""
        try:
            content = tomllib.loads(path.read_bytes().decode())
        except (OSError, ValueError, RecursionError) as error:
            raise _wrong(path, str(error)) from None
        entries, groups = content.get("user", []), content.get("group", [])
        if not isinstance(entries, list) or not isinstance(groups, list) or not content.keys() <= {"user", "group"}:
            raise _wrong(path, "it has something else than [[user]] and [[group]]")
        if not entries and not groups:
            raise _wrong(path, "it has no [[user]] and no [[group]]")
        users = [_user(path, entry) for entry in entries]
        by_name = {user.name: user for user in users}
        if len(by_name) < len(users):
            raise _wrong(path, "two users have the same name")
        by_token = {user.token_sha256: user for user in users if user.token_sha256}
        if len(by_token) < sum(bool(user.token_sha256) for user in users):
            raise _wrong(path, "two users have the same token")
        by_group = {group.name: group for group in (_rights(path, "group", entry, _RIGHTS) for entry in groups)}
        if len(by_group) < len(groups):
            raise _wrong(path, "two groups have the same name")
        return cls(by_name, by_token, by_group)

    def member(self, name: str, groups: Collection[str], session: str = "") -> Principal:
        """A user whom an issuer names, with the rights of the first group of the file that is one of ``groups``.

        Raises:
            Problem: it is none of them, or the file has a user with this name: two people would be one in the log.
        """
        if name in self.by_name:
            raise Problem("role-missing", f"the file of users has a [[user]] {quoted(name)}, who logs in another way")
        found = next((rights for group, rights in self.groups.items() if group in groups), None)
        if found is None:
            raise Problem("role-missing", f"{quoted(name)} is in no group of the issuer that the file of users has")
        return replace(found, name=name, session=session)


def _rights(path: Path, kind: str, entry: Any, fields: Collection[str]) -> Principal:
    """A user or a group of users, without what a user logs in with."""
    if not isinstance(entry, dict):
        raise _wrong(path, f"a {kind} is {quoted(entry)}, not a table [[{kind}]]")
    name = entry.get("name")
    if not isinstance(name, str) or not name or not name.isprintable() or (kind == "user" and ":" in name):
        colon = ", or one with ':'" if kind == "user" else ""
        raise _wrong(path, f"a {kind} has no name{colon}: {quoted(name)}")
    if unknown := sorted(entry.keys() - fields):
        raise _wrong(path, f"{kind} {quoted(name)} has {quoted(unknown[0])}: there are {', '.join(sorted(fields))}")
    role, values = entry.get("role", READER), entry.get("values", False)
    if role not in (READER, OPERATOR) or not isinstance(values, bool):
        raise _wrong(path, f"{kind} {quoted(name)}: role is {READER} or {OPERATOR}, values is true or false")
    return Principal(name, role, values, _texts(path, kind, entry, "topics"), _texts(path, kind, entry, "ids"))


def _user(path: Path, entry: Any) -> Principal:
    user = _rights(path, "user", entry, _FIELDS)
    password, token = entry.get("password"), entry.get("token_sha256", "")
    try:
        hashed = None if password is None else ScryptHash.parse(password)
    except (ValueError, AttributeError):
        hint = "`timers console --hash-password` prints the right form"
        raise _wrong(path, f"the password of user {quoted(user.name)} is no hash of scrypt: {hint}") from None
    if not isinstance(token, str) or not re.fullmatch(r"([0-9a-f]{64})?", token):
        raise _wrong(path, f"token_sha256 of user {quoted(user.name)} has not 64 hexadecimal digits in lower case")
    return replace(user, password=hashed, token_sha256=token)


def _texts(path: Path, kind: str, entry: dict[str, Any], field: str) -> tuple[str, ...] | None:
    found = entry.get(field)
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(each, str) and each for each in found):
        raise _wrong(path, f"{field} of {kind} {quoted(entry['name'])} is not a list of texts, such as ['orders-*']")
    return tuple(found)


def _wrong(path: Path, why: str) -> SettingsError:
    return SettingsError(f"{_ENV}={quoted(str(path))} is not a file of users ({why}): docs/http-api.md describes it")


_MOST_NAMES = 10_000


class Rates:
    """A token bucket for each name: ``per_s`` a second, and up to ``burst`` at once."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Name -> what is left, and at which time. A name that is forgotten has a full bucket."""

    def wait_s(self, name: str, now_s: float) -> float:
        """Seconds until ``name`` may go on; 0: it may, now."""
        left, at_s = self._buckets.get(name, (self._burst, now_s))
        left = min(self._burst, left + (now_s - at_s) * self._per_s)
        return 0.0 if left >= 1 else (1 - left) / self._per_s

    def take(self, name: str, now_s: float) -> None:
        """Count one."""
        left, at_s = self._buckets.pop(name, (self._burst, now_s))
        self._buckets[name] = min(self._burst, left + (now_s - at_s) * self._per_s) - 1, now_s
        while len(self._buckets) > _MOST_NAMES:
            self._buckets.popitem(last=False)


_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


_FAILED_LOGINS = 10
_FAILED_LOGINS_PER_S = 0.2
_LOGINS_PER_S, _LOGINS = 1.0, 60
"""Of one address that come back from the issuer: each costs a request to it."""

_ISSUER = "TIMERS_CONSOLE_OIDC_ISSUER"

WWW_AUTHENTICATE = "WWW-Authenticate"
"""A header; a browser that gets it asks for a password."""

_LOGINS_TAKEN = 'Basic realm="timers", charset="UTF-8", Bearer realm="timers"'


def check_settings(settings: Settings) -> None:
    """Check that only users who may use the console can reach it.

    Raises:
        SettingsError: the settings contradict each other, or the console would be open to other machines.
    """
    for name, needed, value in (
        ("TIMERS_CONSOLE_CERT_FILE", "TIMERS_CONSOLE_KEY_FILE", settings.console_key_file),
        ("TIMERS_CONSOLE_KEY_FILE", "TIMERS_CONSOLE_CERT_FILE", settings.console_cert_file),
        ("TIMERS_CONSOLE_CLIENT_CA_FILE", "TIMERS_CONSOLE_CERT_FILE", settings.console_cert_file),
        ("TIMERS_CONSOLE_CLIENT_CA_FILE", "TIMERS_CONSOLE_USERS_FILE", settings.console_users_file),
        ("TIMERS_CONSOLE_PROXIES", "TIMERS_CONSOLE_USERS_FILE", settings.console_users_file),
        (_ISSUER, "TIMERS_CONSOLE_OIDC_CLIENT_ID", settings.console_oidc_client_id),
        (_ISSUER, "TIMERS_CONSOLE_USERS_FILE", settings.console_users_file),
        (_ISSUER, "TIMERS_CONSOLE_URL", settings.console_url),
        ("TIMERS_CONSOLE_OIDC_CLIENT_ID", _ISSUER, settings.console_oidc_issuer),
        ("TIMERS_CONSOLE_OIDC_CLIENT_SECRET_FILE", _ISSUER, settings.console_oidc_issuer),
        ("TIMERS_CONSOLE_OIDC_AUDIENCE", _ISSUER, settings.console_oidc_issuer),
        ("TIMERS_CONSOLE_OIDC_CA_FILE", _ISSUER, settings.console_oidc_issuer),
    ):
        if getattr(settings, name.removeprefix("TIMERS_").lower()) and not value:
            raise SettingsError(f"{name} needs {needed}, which is not set")
    if settings.console_oidc_issuer:
        _check_issuer(settings)
    if variables.only_this_machine(settings.console_bind):
        return
    encrypted = settings.console_cert_file or settings.console_proxies
    missing = [
        name
        for name, given in (
            ("TIMERS_CONSOLE_USERS_FILE", settings.console_users_file),
            ("TIMERS_CONSOLE_URL", settings.console_url),
            ("TIMERS_CONSOLE_CERT_FILE or TIMERS_CONSOLE_PROXIES", encrypted),
        )
        if not given
    ]
    if missing:
        raise SettingsError(
            f"TIMERS_CONSOLE_BIND={settings.console_bind!r} lets other machines reach the console, so it also needs "
            f"{' and '.join(missing)} (docs/http-api.md#who-may-use-it)"
        )


def _check_issuer(settings: Settings) -> None:
    url = urlsplit(settings.console_url)
    if url.scheme == "http" and not variables.only_this_machine(url.hostname or ""):
        raise SettingsError(
            f"TIMERS_CONSOLE_URL={settings.console_url!r} is http, and {_ISSUER} is set: the cookies of logins would "
            "be readable on the way (try https)"
        )
    if "openid" not in settings.console_oidc_scopes.split():
        raise SettingsError("TIMERS_CONSOLE_OIDC_SCOPES has no openid (try 'openid profile')")
    if settings.console_oidc_audience == settings.console_oidc_client_id:
        raise SettingsError(
            "TIMERS_CONSOLE_OIDC_AUDIENCE is TIMERS_CONSOLE_OIDC_CLIENT_ID: each token about a user that the console "
            "gets would let its holder in. Give programs an audience of their own"
        )


class Access:
    """Decides who sends a request. A wrong file of users is a SettingsError."""

    def __init__(self, settings: Settings, signer: Signer) -> None:
        self._settings = settings
        self._public = urlsplit(settings.console_url)
        self._hosts = Hosts([settings.console_url], settings.web_hosts)
        self._networks = [ipaddress.ip_network(each) for each in settings.console_proxies]
        self._only_proxies = (
            not variables.only_this_machine(settings.console_bind) and settings.console_cert_file is None
        )
        self._header = settings.console_proxy_header.lower()
        self._passwords = PasswordChecks()
        self._failures = Rates(_FAILED_LOGINS_PER_S, _FAILED_LOGINS)
        self._returns = Rates(_LOGINS_PER_S, _LOGINS)
        self.logins: Logins | None = None
        if settings.console_oidc_issuer:
            from timers.console.oidc import Logins  # its packages are an extra

            self.logins = Logins(settings, signer)
        path = settings.console_users_file
        self._users_file = None if path is None else ChangedFiles([path], is_read=False)
        self._users: Users | None = None
        self._read_users()

    public = Principal("")
    """The user of routes without a login."""

    # ---- host and origin --------------------------------------------------------------------------------------------

    def check_site(self, request: web.Request) -> None:
        """Refuse what a page of another site asks for in the background. A link to the console is allowed.

        Such a page may have its own name point to this machine: so a request for another host is refused, too.
        """
        if why := self._hosts.why_refused(request.headers):
            raise Problem("misdirected", why)
        if why := hosts.why_cross_site(request.headers):
            raise Problem("cross-site", why)

    def check_origin(self, request: web.Request) -> None:
        """Refuse a change that a page of another origin sends with the login of its reader."""
        origin = request.headers.get("Origin")
        own = f"{self._public.scheme}://{self._public.netloc}".lower()
        same = origin is None or origin.lower() in (own, f"{request.scheme}://{request.headers['Host']}".lower())
        if not hosts.is_own_site(request.headers) or not same:
            raise Problem("cross-site", hosts.CROSS_SITE)

    # ---- login ------------------------------------------------------------------------------------------------------

    async def principal(self, request: web.Request) -> Principal:
        """The user who sends a request. It is a problem if there is no valid login."""
        self._read_users()
        users = self._users
        if users is None:
            role = OPERATOR if self._settings.console_write else READER
            return Principal("local", role, values=True)
        if self._only_proxies and not self._is_proxy(request):
            raise Problem("login-missing", "this console has no TLS, so it lets users in through its proxies only")
        found = await self._by_authorization(request, users)
        if found is None and self.logins is not None and (identity := self.logins.session(request.cookies)):
            found = users.member(*identity)
        if found is None:
            names = [name for name in (self._of_proxy(request), _of_certificate(request)) if name]
            found = users.by_name.get(names[0]) if names else None
        if found is None:
            raise unknown()
        return found

    async def _by_authorization(self, request: web.Request, users: Users) -> Principal | None:
        """The user of the header ``Authorization``; None without this header."""
        given = request.headers.getall("Authorization", [])
        if not given:
            return None
        scheme, _, credentials = given[0].partition(" ")
        user = None
        if len(given) == 1 and scheme.lower() == "bearer":
            user = users.by_token.get(hash_token(credentials.strip()))
            if user is None and self.logins is not None and (identity := await self.logins.bearer(credentials.strip())):
                user = users.member(*identity)
        elif len(given) == 1 and scheme.lower() == "basic":
            try:
                name, colon, password = base64.b64decode(credentials.strip(), validate=True).decode().partition(":")
            except ValueError:
                raise unknown() from None
            found = users.by_name.get(name)
            known = None if found is None else found.password
            if colon and await self._is_right(self.client_address(request), name, password, known):
                user = found
        if user is None:
            raise unknown()
        return user

    @property
    def has_passwords(self) -> bool:
        """Whether a user of the file logs in with a password."""
        return self._users is not None and any(user.password for user in self._users.by_name.values())

    async def finish_login(self, request: web.Request) -> tuple[str, tuple[str, ...]]:
        """Let in the user whom the issuer sends back: the path at which he began, and his cookies.

        Raises:
            Problem: the login is not valid, or the user has no rights here.
        """
        assert self.logins is not None and self._users is not None, "the settings are checked"
        address, now_s = self.client_address(request), monotonic()
        if wait_s := self._returns.wait_s(address, now_s):
            raise too_many(wait_s, "too many logins came from this address")
        self._returns.take(address, now_s)
        identity, back = await self.logins.finish(request.query, request.cookies)
        self._users.member(*identity)
        # Of the user's groups, of which some issuers name hundreds, the cookie has those that count here.
        groups = tuple(group for group in self._users.groups if group in identity.groups)
        return back, self.logins.cookies_of(identity._replace(groups=groups))

    async def _is_right(self, address: str, name: str, password: str, known: ScryptHash | None) -> bool:
        if self._passwords.is_remembered(name, password, known):  # also while others try passwords
            return True
        wait_s = self._failures.wait_s(address, monotonic())
        if wait_s:
            raise too_many(wait_s, "too many wrong passwords came from this address")
        # Counted before the check: many requests at once must not pass together. A right password is remembered.
        self._failures.take(address, monotonic())
        return await self._passwords.is_right(name, password, known)

    def _of_proxy(self, request: web.Request) -> str | None:
        """The name that a trusted proxy sends."""
        if not self._networks or not self._is_proxy(request):
            return None
        # Some servers read X_User as X-User: a client could add a header that the proxy does not remove.
        same = [
            (name, value)
            for name, value in ((name.decode("latin-1").lower(), value) for name, value in request.raw_headers)
            if name.replace("_", "-") == self._header
        ]
        if not same:
            return None
        if len(same) > 1 or same[0][0] != self._header:
            raise Problem("parameter-invalid", f"the header {self._header} is given twice, or in another spelling")
        return same[0][1].decode("utf-8", "surrogateescape")  # no user has a name with wrong bytes

    def _is_proxy(self, request: web.Request) -> bool:
        peer = request.transport.get_extra_info("peername") if request.transport else None
        address = _address(peer[0]) if peer else None
        return address is not None and self._is_trusted(address)

    def _is_trusted(self, address: _Address) -> bool:
        return any(address in network for network in self._networks)

    def client_address(self, request: web.Request) -> str:
        """The address that a request comes from; that of the proxy if a trusted proxy does not name its client."""
        found = request.remote or ""
        if not self._networks or not self._is_proxy(request):
            return found
        named = ",".join(request.headers.getall("X-Forwarded-For", [])).split(",")
        for text in reversed(named):  # each proxy appends its client; before that is what a client has written itself
            address = _address(text.strip())
            if address is None:
                break
            found = str(address)
            if not self._is_trusted(address):
                break
        return found

    def _read_users(self) -> None:
        """Read the file of users if it has changed. A wrong file does not replace the users that were read."""
        path = self._settings.console_users_file
        if path is None or self._users_file is None:
            return
        try:
            if (versions := self._users_file.found()) is None:
                return
            users = Users.read(path)
            if not users.by_name and self.logins is None:
                raise _wrong(path, f"it has no [[user]], and groups need {_ISSUER}")
            self._users = users
            self._users_file.read(versions)
        except (OSError, SettingsError) as error:
            if self._users is None:
                raise SettingsError(str(error)) from None
            self._users_file.log_failure("the users stay as they were: %s", error)


def too_many(wait_s: float, why: str) -> Problem:
    """The answer to a user who must wait."""
    seconds = max(1, math.ceil(wait_s))
    return Problem("rate-limited", f"{why}: wait {seconds} s", {"Retry-After": str(seconds)})


def _address(text: str) -> _Address | None:
    """An address, which may have a port; None if the text is none."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def unknown(why: str = "log in with a password, a token or a certificate") -> Problem:
    """The answer to a request without a login."""
    return Problem("login-missing", why, {WWW_AUTHENTICATE: _LOGINS_TAKEN})


def _of_certificate(request: web.Request) -> str | None:
    """The common name of the client's certificate, which TLS has checked."""
    certificate = (request.transport.get_extra_info("peercert") if request.transport else None) or {}
    names = [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
    return names[0] if len(names) == 1 else None
