"""Tokens for logins by OAUTHBEARER: one source for all clients of a process, of whatever library.

A token endpoint, a file, a command or a function gives a token. It counts until three quarters of its life are over.
Then the next client that asks has it renewed, and a failed renewal is tried again, at most once in five seconds; until
its end the former token is still good. So the brokers get the next token before the last one ends: librdkafka and
:mod:`timers.kafka.aiokafka_internals.sessions` ask at 80 % of the life.

No text here shows a token, a secret, an answer or what a command printed on stdout.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import importlib
import json
import logging
import math
import os
import re
import selectors
import shlex
import signal
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from pathlib import Path
from time import monotonic
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote_plus, urlencode

from timers.core.backoff import Pauses
from timers.core.printable import printable, quoted, utc_text
from timers.errors import AccessError, SettingsError
from timers.process.clock import Clock
from timers.process.config.declarations import SETTINGS
from timers.process.config.settings import Settings
from timers.process.config.variables import (
    MASK,
    OAUTHBEARER,
    TOKEN_COMMAND,
    TOKEN_FILE,
    TOKEN_MODULE,
    TOKEN_URL,
    read_secret,
    uses_sasl,
)
from timers.process.threads import call_in_thread, tell_of_forks

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
Answer: TypeAlias = tuple[Any, ...]
"""Of an ``oauth_cb``: token, its end in epoch seconds, and perhaps whom it names and extensions."""

RENEW_AT = 0.75
"""Share of a token's life after which it is renewed."""

ANSWER_S = 8.0
"""How long a renewal may take. confluent-kafka opens no client without a token after 10 s."""

_MARGIN_S = 1.0
"""How much longer those who ask wait: what gives no token in time says so itself, in better words."""

_SOCKET_S = 5.0
PAUSES = Pauses(1.0, 5.0)
"""After a failed renewal."""

NO_TOKEN, ASK_AGAIN_S = "none", 5.0
"""What a client of librdkafka has in place of a token, and for how long."""

_MAX_BYTES = 64 * 1024
"""Of a token, and of an answer that holds one. Brokers take half a megabyte (``sasl.server.max.receive.size``)."""

_MAX_LIFE_S = 1e8
_SHOWN = 200

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""What may follow ``Bearer`` (RFC 6750, 2.1). Control characters would end the token in the login request."""

_LONG_WORD = re.compile(r"[A-Za-z0-9._~+/=%-]{24,}")
"""What may be a token or a secret in the text of another program."""


@dataclass(frozen=True)
class Token:
    """A token for brokers.

    Attributes:
        text: what is sent.
        ends_at: seconds of the monotonic clock: a step of the wall clock does not end it.
        subject: whom it names, if it is a JWT that says so.
    """

    text: str = field(repr=False)
    ends_at: float
    subject: str

    @property
    def left_s(self) -> float:
        """Seconds until it ends; negative after its end."""
        return self.ends_at - monotonic()


class TokenSource:
    """The present token of a login, and its renewal. Any thread may ask.

    Args:
        name: the setting that says where tokens come from.
        read: gets another token, within about :data:`ANSWER_S`, or raises AccessError.

    Attributes:
        failure: why the last renewal failed; None if it did not.
        failures: how many renewals have failed since the last one that did not.
    """

    def __init__(self, name: str, read: Callable[[], Token]) -> None:
        self.name = name
        self._read = read
        self.failure: AccessError | None = None
        self.failures = 0
        self._withheld = -math.inf, ""
        self._token: Token | None = None
        self._renew_at = self._again_at = -math.inf
        self.after_fork()
        tell_of_forks(self)

    def after_fork(self) -> None:
        """Begin without a thread; the token is still good."""
        self._lock = threading.Lock()
        self._renewing: Future[Token] | None = None

    @property
    def left_s(self) -> float | None:
        """Seconds until the present token ends; negative after its end, None before the first one."""
        return None if self._token is None else self._token.left_s

    @property
    def subject(self) -> str:
        """Whom the present token names; empty if that is not known."""
        return "" if self._token is None else self._token.subject

    @property
    def trouble(self) -> str | None:
        """Why clients cannot log in now, in a sentence; None if they can, or no token was needed yet."""
        if self.failure is not None and (self._token is None or self._token.left_s <= 0):
            return str(self.failure)
        until, failure = self._withheld
        return failure if monotonic() < until else None

    def withhold(self, error: AccessError) -> None:
        """Note that a client has no token for :data:`ASK_AGAIN_S`, even if one comes earlier."""
        self._withheld = monotonic() + ASK_AGAIN_S, str(error)

    def get(self) -> Token:
        """The present token, which is renewed first if it is time. Blocks for up to 9 s.

        Raises:
            AccessError: there is none. The message has the setting and what to do.
        """
        renewing = self._ask()
        if isinstance(renewing, Token):
            return renewing
        try:
            return renewing.result(ANSWER_S + _MARGIN_S)
        except TimeoutError:
            return self._former(AccessError(f"{self.name} gives no token within {ANSWER_S:g} s"))

    async def get_soon(self) -> Token:
        """As :meth:`get`, on an event loop."""
        renewing = self._ask()
        if isinstance(renewing, Token):
            return renewing
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(renewing)), ANSWER_S + _MARGIN_S)
        except TimeoutError:
            return self._former(AccessError(f"{self.name} gives no token within {ANSWER_S:g} s"))

    def _ask(self) -> Token | Future[Token]:
        """A token that needs no renewal, or one that comes."""
        now = monotonic()
        with self._lock:
            if self._token is not None and now < self._renew_at:
                return self._token
            if self._renewing is None or self._renewing.done():
                if self.failure is not None and now < self._again_at:
                    return self._former(self.failure)
                self._renewing = call_in_thread("timers-token", self._renew)
            return self._renewing

    def _former(self, error: AccessError) -> Token:
        if self._token is not None and self._token.left_s > 0:
            return self._token
        raise AccessError(str(error))  # a new error: threads share the first one, and each would add to its traceback

    def _renew(self) -> Token:
        try:
            token = self._read()
        except Exception as error:
            if not isinstance(error, AccessError):
                logger.error("%s: an error in this program", self.name, exc_info=error)
                error = AccessError(f"{self.name}: {type(error).__name__} in this program")
            self._note_failure(error)
            return self._former(error)
        with self._lock:
            is_back, self.failure, self.failures = self.failure is not None, None, 0
            self._token = token
            self._renew_at = monotonic() + max(PAUSES.first_s, RENEW_AT * token.left_s)
        if is_back:
            logger.info("%s gives tokens again", self.name)
        return token

    def _note_failure(self, error: AccessError) -> None:
        with self._lock:
            self.failure = error
            self.failures += 1
            self._again_at = monotonic() + PAUSES.after(self.failures)
            former = self._token if self.failures == 1 else None
        if former is not None:  # else this error goes to all who ask
            left_s = max(0.0, former.left_s)
            logger.warning("the token for the brokers is not renewed, and ends in %.0f s: %s", left_s, error)


_sources: dict[tuple[Any, ...], TokenSource] = {}
_LOGIN = tuple(name for name in SETTINGS if name.startswith("sasl_"))


def source_of(settings: Settings) -> TokenSource:
    """The source of these settings, one in a process."""
    login = tuple(getattr(settings, name) for name in _LOGIN)
    found = _sources.get(login)
    if found is None:
        name, read = next(
            (name, read)
            for name, read, given in (
                (TOKEN_URL, _from_url, settings.sasl_token_url),
                (TOKEN_FILE, _from_file, settings.sasl_token_file),
                (TOKEN_COMMAND, _from_command, settings.sasl_token_command),
                (TOKEN_MODULE, _from_module, settings.sasl_token_module),
            )
            if given
        )
        found = _sources.setdefault(login, TokenSource(name, partial(read, settings)))
    return found


def present_source(settings: Settings) -> TokenSource | None:
    """The source of these settings; None for a login without tokens."""
    has_tokens = uses_sasl(settings.security_protocol) and settings.sasl_mechanism == OAUTHBEARER
    return source_of(settings) if has_tokens else None


def troubles(settings: Settings) -> list[str]:
    """Why no client of this process can log in now, in a sentence; empty if it can, or needs no token."""
    source = present_source(settings)
    return [source.trouble] if source is not None and source.trouble is not None else []


def extensions(settings: Settings) -> dict[str, str]:
    """What goes to the brokers with each token."""
    pairs = (each.partition("=") for each in settings.sasl_extensions)
    return {name: value for name, _, value in pairs}


def for_librdkafka(settings: Settings, _config: str = "") -> Answer:
    """The ``oauth_cb`` of a client, by :func:`functools.partial`. A background thread of librdkafka calls it.

    It never fails: confluent-kafka would keep the caller of a constructor for 10 s, and raise an error that no code of
    a running process expects. Without a token the brokers refuse the login, which is handled, and
    :class:`timers.kafka.connection.ErrorReports` says why.

    Returns:
        Token, its end in epoch seconds, whom it names, and extensions.
    """
    return uncollected(_for_librdkafka, settings)


def uncollected(callback: Callable[[_T], Answer], argument: _T) -> Answer:
    """Call an ``oauth_cb``, without garbage collection meanwhile. It may free a client that is part of a cycle, such as
    that of an exception and its traceback, and librdkafka ends the process if a thread of its own frees a client."""
    _uncollected.begin()
    try:
        return callback(argument)
    finally:
        _uncollected.end()


def no_token() -> Answer:
    """What an ``oauth_cb`` returns without a token: it is asked again in :data:`ASK_AGAIN_S`."""
    return NO_TOKEN, Clock().now_s() + ASK_AGAIN_S, "", {}


class _Uncollected:
    """Switches Python's garbage collection off while at least one call runs."""

    def __init__(self) -> None:
        self.after_fork()
        tell_of_forks(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._was_on = True

    def begin(self) -> None:
        was_on = gc.isenabled()
        gc.disable()  # before anything is made that garbage collection counts
        with self._lock:
            self._calls += 1
            if self._calls == 1:
                self._was_on = was_on

    def end(self) -> None:
        with self._lock:
            self._calls -= 1
            if not self._calls and self._was_on:
                gc.enable()


_uncollected = _Uncollected()


def _for_librdkafka(settings: Settings) -> Answer:
    source = source_of(settings)
    try:
        token = source.get()
    except AccessError as error:
        source.withhold(error)
        return no_token()
    return token.text, Clock().now_s() + token.left_s, token.subject, extensions(settings)


# ---- where tokens come from ------------------------------------------------------------------------------------------


def _from_url(settings: Settings) -> Token:
    """A token of the OAuth server, for client credentials (RFC 6749, 4.4)."""
    name = f"{TOKEN_URL}={quoted(settings.sasl_token_url)}"
    secret = settings.sasl_password.reveal()
    if settings.sasl_password_file is not None:  # the file may have been renewed
        with suppress(OSError, SettingsError):
            secret = read_secret("TIMERS_SASL_PASSWORD_FILE", settings.sasl_password_file).reveal()
    form = {"grant_type": "client_credentials"}
    if settings.sasl_token_scope:
        form["scope"] = settings.sasl_token_scope
    login = base64.b64encode(f"{quote_plus(settings.sasl_username)}:{quote_plus(secret)}".encode()).decode()
    headers = {"Accept": "application/json", "Authorization": f"Basic {login}"}
    request = urllib.request.Request(settings.sasl_token_url, urlencode(form).encode(), headers)
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=_trust(settings)), _NoRedirections)
    try:
        with opener.open(request, timeout=_SOCKET_S) as response:
            answer = _read_until(response, monotonic() + ANSWER_S)
    except urllib.error.HTTPError as error:
        with error, suppress(OSError, HTTPException):
            raise _refused(name, error, _read_until(error, monotonic() + ANSWER_S), secret) from None
        raise AccessError(f"{name} gives no token: it answers {error.code}") from None
    except (OSError, HTTPException) as error:  # urllib's own error is an OSError
        reason = getattr(error, "reason", None) or error
        advice = "is it right, and does this machine reach it"
        if isinstance(reason, ssl.SSLError):
            advice = "does TIMERS_SASL_TOKEN_CA_FILE contain the authority that signed its certificate"
        raise AccessError(f"{name} gives no token ({_masked(str(reason), secret)}): {advice}?") from None
    return _of_json(name, answer)


def _trust(settings: Settings) -> ssl.SSLContext:
    path = settings.sasl_token_ca_file
    try:
        return ssl.create_default_context(cafile=path)
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error.strerror
        raise AccessError(
            f"TIMERS_SASL_TOKEN_CA_FILE={quoted(str(path))} is not a file of PEM certificates ({reason})"
        ) from None


class _NoRedirections(urllib.request.HTTPRedirectHandler):
    """The client's secret goes to no other address."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _read_until(response: Any, deadline: float) -> bytes:
    """The content of an answer.

    Raises:
        OSError: it is longer than :data:`_MAX_BYTES`, or has not come by ``deadline``.
    """
    content = bytearray()
    while more := response.read1(_MAX_BYTES):
        content += more
        if len(content) > _MAX_BYTES:
            raise OSError(f"its answer is longer than {_MAX_BYTES} bytes")
        if monotonic() > deadline:
            raise TimeoutError(f"its answer takes longer than {ANSWER_S:g} s")
    return bytes(content)


def _refused(name: str, error: urllib.error.HTTPError, answer: bytes, secret: str) -> AccessError:
    """The server's refusal in words (RFC 6749, 5.2)."""
    try:
        said = json.loads(answer)
        reason = ": ".join(str(said[key]) for key in ("error", "error_description") if said.get(key))
    except (ValueError, AttributeError, RecursionError):
        reason = ""
    shown = f" ({_masked(reason, secret)})" if reason else ""
    location = " with a redirection, which is not followed: name the right URL" if 300 <= error.code < 400 else ""
    advice = (
        ": check TIMERS_SASL_USERNAME, its password and TIMERS_SASL_TOKEN_SCOPE"
        if error.code in (400, 401, 403)
        else ""
    )
    return AccessError(f"{name} gives no token: it answers {error.code}{shown}{location}{advice}")


def _from_file(settings: Settings) -> Token:
    path = settings.sasl_token_file
    assert path is not None
    name = f"{TOKEN_FILE}={quoted(str(path))}"
    try:
        return _token(name, _start_of(path), None)
    except OSError as error:
        raise AccessError(f"{name} cannot be read ({error.strerror})") from None


def _start_of(path: Path) -> bytes:
    with path.open("rb") as file:  # without the limit, a device such as /dev/zero would be read for ever
        return file.read(_MAX_BYTES + 1)


def _from_command(settings: Settings) -> Token:
    words = shlex.split(settings.sasl_token_command.reveal())
    name = f"{TOKEN_COMMAND} ({quoted(words[0])})"
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        raise AccessError(f"{name} cannot be run: {error.strerror}") from None
    try:
        output, said, code = _answer_of(process)
    except TimeoutError:
        raise AccessError(f"{name} gives no token within {ANSWER_S:g} s") from None
    finally:
        _kill(process)
        with suppress(subprocess.TimeoutExpired):  # a process that waits for a disk does not end
            process.wait(_MARGIN_S)
    if len(output) > _MAX_BYTES:
        raise AccessError(f"{name} prints more than {_MAX_BYTES} bytes, which is no token")
    if code:
        stderr = said.decode(errors="replace").strip().splitlines()
        why = f" ({_masked(stderr[-1], *words[1:])})" if stderr else ""
        raise AccessError(f"{name} gives no token: it ends with exit code {code}{why}: run it by hand")
    return _of_json(name, output) if output.lstrip().startswith(b"{") else _token(name, output, None)


def _answer_of(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes, int]:
    """What a command prints on stdout, the end of what it prints on stderr, and its exit code.

    It waits neither for a process that the command leaves behind with these files, nor for one that prints too much.

    Raises:
        TimeoutError: this takes longer than :data:`ANSWER_S`.
    """
    assert process.stdout is not None and process.stderr is not None
    end_at, output, said = monotonic() + ANSWER_S, b"", b""
    with process.stdout, process.stderr, selectors.DefaultSelector() as selector:
        for each in (process.stdout, process.stderr):
            selector.register(each, selectors.EVENT_READ)
        while selector.get_map() and len(output) <= _MAX_BYTES:
            left_s = end_at - monotonic()
            if left_s <= 0 or not (ready := selector.select(left_s)):
                raise TimeoutError
            for key, _ in ready:
                more = os.read(key.fd, _MAX_BYTES + 1)
                if not more:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stdout:
                    output += more
                else:
                    said = (said + more)[-4096:]
        if len(output) > _MAX_BYTES:
            return output, said, 0
    try:
        return output, said, process.wait(max(0.0, end_at - monotonic()))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a command, and what it has started, if they still run."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _from_module(settings: Settings) -> Token:
    name = f"{TOKEN_MODULE}={settings.sasl_token_module}"
    module, _, path = settings.sasl_token_module.partition(":")
    try:
        function: Any = importlib.import_module(module)
        for part in path.split("."):
            function = getattr(function, part)
        result = function()
    except Exception as error:  # code of the user
        raise AccessError(f"{name} gives no token: {type(error).__name__} ({_masked(str(error))})") from None
    text, ends_s = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    if not isinstance(text, str) or isinstance(ends_s, bool) or not isinstance(ends_s, int | float | None):
        expected = "the text of a token, or a tuple of it and the epoch seconds of its end"
        raise AccessError(f"{name} returns a value of type {type(result).__name__}: return {expected}")
    return _token(name, text.encode(errors="replace"), None if ends_s is None else ends_s - Clock().now_s())


# ---- what a token says -----------------------------------------------------------------------------------------------


def _of_json(name: str, answer: bytes) -> Token:
    """The token in a successful answer of an OAuth server (RFC 6749, 5.1)."""
    try:
        found = json.loads(answer)
        text, life_s = found["access_token"], found.get("expires_in")
        life_s = None if life_s is None else float(life_s)
        return _token(name, text.encode(), life_s)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise AccessError(
            f"{name} gives no token: its answer is no JSON with access_token and expires_in (seconds)"
        ) from None


def _token(name: str, content: bytes, life_s: float | None) -> Token:
    """A token from its text.

    Args:
        name: where it comes from, for errors.
        life_s: seconds until it ends; None: a claim of the JWT says it.

    Raises:
        AccessError: it is no token, it has ended, or it does not say when it ends.
    """
    text = content.decode("latin-1").strip()
    if len(text) > _MAX_BYTES or not _TOKEN.fullmatch(text):
        raise AccessError(f"{name} gives no token: what it gives is empty, longer than {_MAX_BYTES} bytes, or no token")
    claims, now_s = _claims(text), Clock().now_s()
    if life_s is None:
        end_s = claims.get("exp")
        if isinstance(end_s, bool) or not isinstance(end_s, int | float):
            raise AccessError(
                f"{name} gives a token without an end: a JWT has the claim exp; with another token, say it in "
                "expires_in, or in what the function returns"
            )
        life_s = end_s - now_s
    if not 0 < life_s < math.inf:
        at = f" at {utc_text(int(now_s + life_s))}" if abs(life_s) < _MAX_LIFE_S else ""
        raise AccessError(f"{name} gives a token that ended{at}: was it renewed, and is this machine's clock right?")
    subject = claims.get("sub")
    is_name = isinstance(subject, str) and subject.isprintable()
    return Token(text, monotonic() + min(life_s, _MAX_LIFE_S), subject if is_name and isinstance(subject, str) else "")


def _claims(text: str) -> dict[str, Any]:
    """The claims of a JWT, which the brokers verify; none if it is another token."""
    parts = text.split(".")
    if len(parts) != 3:
        return {}
    try:
        found = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _masked(text: str, *secrets: str) -> str:
    """The text of another program, in one line, without what may be secret in it."""
    for each in secrets:
        if len(each) > 3:
            text = text.replace(each, MASK)
    return printable(_LONG_WORD.sub(MASK, text).replace("\n", " "))[:_SHOWN]
