"""Who sends a request: the checks of host, origin and login, before anything else is done for it."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import logging
import math
from collections import OrderedDict
from collections.abc import Iterator
from time import monotonic
from typing import TypeAlias
from urllib.parse import urlsplit

from aiohttp import web

from timers import hosts
from timers.config import security
from timers.config.settings import Settings
from timers.console.problems import Problem
from timers.console.routes import OPERATOR, READER
from timers.console.users import BusyError, PasswordChecks, Principal, ScryptHash, Users, hash_token
from timers.errors import SettingsError
from timers.hosts import Hosts
from timers.renewed_tls import version_of

logger = logging.getLogger(__name__)


_REMEMBERED = 10_000


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
        while len(self._buckets) > _REMEMBERED:
            self._buckets.popitem(last=False)


_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


_FAILED_LOGINS = 10
_FAILED_LOGINS_PER_S = 0.2
_CHALLENGE = 'Basic realm="timers", charset="UTF-8", Bearer realm="timers"'


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
    ):
        if getattr(settings, name.removeprefix("TIMERS_").lower()) and not value:
            raise SettingsError(f"{name} needs {needed}, which is not set")
    if security.only_this_machine(settings.console_bind):
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


class Access:
    """Decides who sends a request.

    Raises:
        SettingsError: the file of users is wrong.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._public = urlsplit(settings.console_url)
        self._hosts = Hosts([settings.console_url], settings.web_hosts)
        self._networks = [ipaddress.ip_network(each) for each in settings.console_proxies]
        self._only_proxies = (
            not security.only_this_machine(settings.console_bind) and settings.console_cert_file is None
        )
        self._header = settings.console_proxy_header.lower()
        self._passwords = PasswordChecks()
        self._failures = Rates(_FAILED_LOGINS_PER_S, _FAILED_LOGINS)
        self._version = (0, 0, 0)
        self._users: Users | None = None
        self._read_users()

    public = Principal("")
    """The user of routes without a login."""

    # ---- host and origin --------------------------------------------------------------------------------------------

    def check_host(self, request: web.Request) -> None:
        """Refuse a request for another host: a page of another site may have its own name point to this machine."""
        if why := self._hosts.why_refused(request.headers.getall("Host", [])):
            raise Problem("misdirected", why)

    def check_site(self, request: web.Request) -> None:
        """Refuse what a page of another site asks for in the background. A link to the console is allowed."""
        why = hosts.why_cross_site(request.headers.get("Sec-Fetch-Site"), request.headers.get("Sec-Fetch-Mode"))
        if why:
            raise Problem("cross-site", why)

    def check_origin(self, request: web.Request) -> None:
        """Refuse a change that a page of another origin sends with the login of its reader."""
        origin = request.headers.get("Origin")
        own = f"{self._public.scheme}://{self._public.netloc}".lower()
        same = origin is None or origin.lower() in (own, f"{request.scheme}://{request.headers['Host']}".lower())
        if not hosts.is_own_site(request.headers.get("Sec-Fetch-Site")) or not same:
            raise Problem("cross-site", hosts.CROSS_SITE)

    # ---- login ------------------------------------------------------------------------------------------------------

    async def principal(self, request: web.Request) -> Principal:
        """The user who sends a request.

        Raises:
            Problem: there is no valid login.
        """
        self._read_users()
        users = self._users
        if users is None:
            role = OPERATOR if self._settings.console_write else READER
            return Principal("local", role, values=True)
        if self._only_proxies and not self._is_proxy(request):
            raise Problem("login-missing", "this console has no TLS, so it lets users in through its proxies only")
        found = await self._by_authorization(request, users)
        if found is None:
            names = [name for name in (self._of_proxy(request), _of_certificate(request)) if name]
            found = users.by_name.get(names[0]) if names else None
        if found is None:
            raise _unknown()
        return found

    async def _by_authorization(self, request: web.Request, users: Users) -> Principal | None:
        """The user of the header ``Authorization``; None without this header."""
        given = request.headers.getall("Authorization", [])
        if not given:
            return None
        scheme, _, credentials = given[0].partition(" ")
        if len(given) > 1:
            raise _unknown()
        if scheme.lower() == "bearer":
            user = users.by_token.get(hash_token(credentials.strip()))
            if user is None:
                raise _unknown()
            return user
        if scheme.lower() != "basic":
            raise _unknown()
        try:
            name, colon, password = base64.b64decode(credentials.strip(), validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            raise _unknown() from None
        user = users.by_name.get(name)
        known = None if user is None else user.password
        if colon and await self._is_right(self.client_address(request), name, password, known):
            return user
        raise _unknown()

    async def _is_right(self, address: str, name: str, password: str, known: ScryptHash | None) -> bool:
        if self._passwords.is_remembered(name, password, known):  # also while others try passwords
            return True
        wait_s = self._failures.wait_s(address, monotonic())
        if wait_s:
            raise too_many(wait_s, "too many wrong passwords came from this address")
        # Counted before the check: many requests at once must not pass together. A right password is remembered.
        self._failures.take(address, monotonic())
        try:
            return await self._passwords.is_right(name, password, known)
        except BusyError:
            raise too_many(1.0, "many passwords are being checked") from None

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
        if path is None:
            return
        try:
            version = version_of(path)
            if version == self._version:
                return
            self._version = version
            self._users = Users.read(path)
        except (OSError, SettingsError) as error:
            if self._users is None:
                raise error if isinstance(error, SettingsError) else SettingsError(str(error)) from None
            logger.error("the users stay as they were: %s", error)


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


def _unknown() -> Problem:
    why = "log in with a password, a token or a certificate"
    return Problem("login-missing", why, {"WWW-Authenticate": _CHALLENGE})


def _of_certificate(request: web.Request) -> str | None:
    """The common name of the client's certificate, which TLS has checked."""
    certificate = request.transport.get_extra_info("peercert") if request.transport else None
    names = [value for name, value in _subject(certificate or {}) if name == "commonName"]
    return names[0] if len(names) == 1 else None


def _subject(certificate: dict[str, object]) -> Iterator[tuple[str, str]]:
    for part in certificate.get("subject", ()):  # type: ignore[attr-defined]
        yield from part
