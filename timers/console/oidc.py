"""Logins of users whom an issuer of OpenID Connect knows: in the browser, and with tokens of programs.

The browser goes to the issuer and comes back with a code (authorization code with PKCE). What the console must know
then, and later who the user is, is in two signed cookies, so that each console with the same secret can go on.
joserfc checks tokens: it is small, typed, and leaves requests to aiohttp, which the console has.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import secrets
import ssl
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import quote_plus, urlencode, urlsplit

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector
from joserfc import jwt
from joserfc.errors import (
    BadSignatureError,
    ExpiredTokenError,
    InvalidKeyCurveError,
    InvalidKeyIdError,
    JoseError,
    KeyParameterError,
)
from joserfc.jwk import Key, import_key
from joserfc.jws import JWSRegistry, extract_compact
from joserfc.jwt import ClaimsOption, JWTClaimsRegistry

from timers.console.problems import Problem
from timers.console.signer import Signer
from timers.core.printable import quoted
from timers.errors import SettingsError
from timers.process.clock import Clock
from timers.process.config import variables
from timers.process.config.settings import Settings

logger = logging.getLogger(__name__)

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
"""Of signatures. Without ``none``, and without those that take the issuer's public key for a shared secret."""

LEEWAY_S = 60
"""How far the clocks of issuer and console may differ."""

LOGIN_S = 600.0
"""Time for a user to log in at the issuer."""

FRESH_S = 600.0
"""The addresses and keys of the issuer are read again when they are older."""

STALE_S = 3600.0
"""If the issuer does not answer, they count until this age: a key that was taken back counts no longer than this."""

AGAIN_S = 10.0
"""Least time from the end of an attempt to read them to the next one. An unknown key of a token leads to one."""

_ANSWER_S = 8.0
_MAX_ANSWER_BYTES = 512 * 1024
_MAX_KEYS = 100
_MAX_TOKEN_HEADER_BYTES = 8 * 1024
_MAX_BACK = 1500
"""Characters of the page to which a login leads back: a cookie holds 4,096 bytes."""

_MAX_NAME = 200
_MAX_COOKIE = 3_500
_MOST_SPENT = 10_000


class Identity(NamedTuple):
    """Who a user is, as the issuer says. ``session``: the id of the login of a browser; empty for a program."""

    name: str
    groups: tuple[str, ...]
    session: str = ""


class Metadata(NamedTuple):
    """Addresses of the issuer (OpenID Connect Discovery)."""

    authorization: str
    token: str
    keys: str
    end_session: str
    takes_basic: bool
    names_itself: bool


@dataclass(frozen=True)
class _Known:
    """What was read of the issuer, and when by the monotonic clock."""

    metadata: Metadata
    keys: list[Key]
    read_at: float


class _Silent(Exception):
    """The issuer does not answer, or not as an issuer does."""


class Spent:
    """Ids that count no more. Each is kept until what it belongs to has ended."""

    def __init__(self) -> None:
        self._until: OrderedDict[str, float] = OrderedDict()

    def add(self, id: str, until_s: float) -> None:
        now_s = Clock().now_s()
        while self._until and (len(self._until) >= _MOST_SPENT or next(iter(self._until.values())) < now_s):
            self._until.popitem(last=False)
        self._until[id] = until_s

    def __contains__(self, id: str) -> bool:
        return id in self._until


# ---- what the issuer says --------------------------------------------------------------------------------------------


class Issuer:
    """Asks the issuer, and checks what it has signed. It keeps addresses and keys for a while."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.name = settings.console_oidc_issuer
        self._known: _Known | None = None
        self._reading = asyncio.Lock()
        self._tried_at = -AGAIN_S
        self._silence = ""

    async def metadata(self) -> Metadata:
        """The addresses of the issuer.

        Raises:
            Problem: it does not answer.
        """
        return (await self._look()).metadata

    async def claims(
        self, text: str, audience: str, *, of_program: bool = False, **more: ClaimsOption
    ) -> dict[str, Any]:
        """The claims of a token for this audience.

        Args:
            of_program: it must not be an ID token, which browsers get and logs may hold.
            more: what is asked of further claims.

        Raises:
            Problem: it is not a valid token, or the keys of the issuer are not known.
        """
        registry = JWTClaimsRegistry(
            int(Clock().now_s()),
            LEEWAY_S,
            iss={"essential": True, "value": self.name},
            aud={"essential": True, "value": audience},
            exp={"essential": True},
            sub={"essential": True},
            **more,
        )
        try:
            token = await self._verified(text)
            registry.validate(token.claims)
            if of_program:
                _check_access_token(token)
        except ExpiredTokenError:
            raise _refused("it has ended, or the clocks of issuer and console differ by more than a minute") from None
        except JoseError as error:
            raise _refused(error.description or type(error).__name__) from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise _refused(f"it cannot be read ({type(error).__name__})") from None
        return token.claims

    async def _verified(self, text: str) -> jwt.Token:
        known = await self._look()
        try:
            return _decode(text, known.keys)
        except (InvalidKeyIdError, BadSignatureError):
            newer = await self._look(anew=True)  # the issuer may have a new key
            if newer is known:
                raise
            return _decode(text, newer.keys)

    async def exchange(self, code: str, verifier: str, redirect_uri: str) -> str:
        """The ID token for a code.

        Raises:
            Problem: the issuer does not answer, or refuses the code.
        """
        metadata, settings = await self.metadata(), self._settings
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect_uri}
        form |= {"code_verifier": verifier}
        client, login = settings.console_oidc_client_id, ""
        if settings.console_oidc_client_secret_file is not None:
            name = "TIMERS_CONSOLE_OIDC_CLIENT_SECRET_FILE"
            try:
                secret = variables.read_secret(name, settings.console_oidc_client_secret_file).reveal()
            except (SettingsError, OSError) as error:
                logger.error("a login failed: %s", error)
                raise Problem("failed", f"{name} cannot be read; the log of the console has the reason") from None
            if metadata.takes_basic:
                login = base64.b64encode(f"{quote_plus(client)}:{quote_plus(secret)}".encode()).decode()
            else:
                form["client_secret"] = secret
        if not login:
            form["client_id"] = client
        try:
            status, answer = await self._ask(metadata.token, form, login)
        except _Silent as error:
            raise self._unreachable(str(error)) from None
        token = answer.get("id_token")
        if status == HTTPStatus.OK and isinstance(token, str):
            return token
        reason = answer.get("error") if status != HTTPStatus.OK else "no id_token: is openid one of the scopes"
        logger.warning("the issuer %s refuses a login: %s %s", self.name, status, quoted(str(reason)[:100]))
        raise _refused(f"the issuer answers {status} ({str(reason)[:100]})", "login")

    async def _look(self, *, anew: bool = False) -> _Known:
        """What is known of the issuer, of now if it is old or ``anew``. One request at a time asks the issuer."""
        known = self._known
        age_s = monotonic() - known.read_at if known else STALE_S
        if known and not anew and age_s < (STALE_S if self._reading.locked() else FRESH_S):
            return known
        async with self._reading:
            if self._known is known and monotonic() >= self._tried_at + AGAIN_S:
                try:
                    self._known = await self._read()
                    self._silence = ""
                except _Silent as error:
                    if not self._silence:
                        logger.error("the issuer of logins %s cannot be used: %s", self.name, error)
                    self._silence = str(error)
                finally:
                    # The end of the attempt: it may take longer than the pause, while others wait.
                    self._tried_at = monotonic()
        if self._known and monotonic() < self._known.read_at + STALE_S:
            return self._known
        raise self._unreachable(self._silence)

    def _unreachable(self, why: str) -> Problem:
        return Problem("issuer-unreachable", f"the issuer {self.name} gives no usable answer: {why}")

    async def _read(self) -> _Known:
        _, found = await self._ask(f"{self.name.rstrip('/')}/.well-known/openid-configuration")
        if found.get("issuer") != self.name:
            named = quoted(str(found.get("issuer"))[:200])
            raise _Silent(f"it names itself {named}: is TIMERS_CONSOLE_OIDC_ISSUER right, to the last character?")
        methods = found.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        metadata = Metadata(
            _endpoint(found, "authorization_endpoint"),
            _endpoint(found, "token_endpoint"),
            _endpoint(found, "jwks_uri"),
            _endpoint(found, "end_session_endpoint") if found.get("end_session_endpoint") else "",
            "client_secret_basic" in methods,
            found.get("authorization_response_iss_parameter_supported") is True,
        )
        _, answer = await self._ask(metadata.keys)
        return _Known(metadata, _keys_of(answer), monotonic())

    async def _ask(
        self, url: str, form: Mapping[str, str] | None = None, login: str = ""
    ) -> tuple[int, dict[str, Any]]:
        """Status and JSON of an answer. A redirection is not followed: it could lead the secret elsewhere."""
        try:
            connector = TCPConnector(ssl=_trust(self._settings.console_oidc_ca_file))
            timeout = ClientTimeout(total=_ANSWER_S)
            async with ClientSession(connector=connector, timeout=timeout, trust_env=True) as http:
                method = "GET" if form is None else "POST"
                headers = {"Accept": "application/json"} | ({"Authorization": f"Basic {login}"} if login else {})
                async with http.request(method, url, data=form, headers=headers, allow_redirects=False) as response:
                    content = bytearray()
                    async for part in response.content.iter_chunked(64 * 1024):
                        content += part
                        if len(content) > _MAX_ANSWER_BYTES:
                            raise _Silent(f"{url} answers with more than {_MAX_ANSWER_BYTES} bytes")
                    status = response.status
        except TimeoutError:
            raise _Silent(f"{url} does not answer within {_ANSWER_S:.0f} s") from None
        except (ClientError, OSError, ValueError) as error:
            raise _Silent(f"{url} does not answer ({error})") from None
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict) or (form is None and status != HTTPStatus.OK):
            raise _Silent(f"{url} answers {status}, and not with what it should")
        return status, answer


def _trust(path: Path | None) -> ssl.SSLContext | bool:
    if path is None:
        return True
    try:
        return ssl.create_default_context(cafile=path)
    except (ssl.SSLError, OSError) as error:
        raise _Silent(f"TIMERS_CONSOLE_OIDC_CA_FILE cannot be used: {error}") from None


def _endpoint(found: Mapping[str, Any], name: str) -> str:
    try:
        return variables.login_url(f"its {name}", "https://login.example.com/path")(name, str(found.get(name)))
    except SettingsError as error:
        raise _Silent(str(error)) from None


def _keys_of(answer: Mapping[str, Any]) -> list[Key]:
    """The public keys of the issuer. What is no key for signatures is left out."""
    listed = answer.get("keys")
    keys: list[Key] = []
    for each in listed[:_MAX_KEYS] if isinstance(listed, list) else []:
        if isinstance(each, dict) and each.get("kty") != "oct" and each.get("use", "sig") == "sig":
            try:
                keys.append(import_key(each))
            except (JoseError, ValueError, TypeError, KeyError) as error:
                logger.debug("a key of the issuer is left out: %s", type(error).__name__)
    if not keys:
        raise _Silent("it publishes no key for signatures")
    return keys


def _decode(text: str, keys: Sequence[Key]) -> jwt.Token:
    """A token that one of the keys has signed.

    Ids of keys are optional (RFC 7515, 4.1.4): a key is tried if it has the token's, or if one of the two has none.
    KeySet of joserfc gives an id to each key without one, and takes a token without one only if there is one key.
    """
    registry = JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
    registry.max_header_length = (
        _MAX_TOKEN_HEADER_BYTES  # that of Microsoft's and of others with certificates is longer
    )
    head = extract_compact(text.encode(), registry=registry).headers()
    kid = head.get("kid") if isinstance(head, dict) else None  # any JSON may stand there
    named = quoted(kid[:100]) if isinstance(kid, str) else "none"
    failure: JoseError = InvalidKeyIdError(f"the issuer publishes no key for its algorithm and key id ({named})")
    for key in keys:
        if key.kid == kid or key.kid is None or kid is None:
            try:
                return jwt.decode(text, key, registry=registry)
            except BadSignatureError as error:
                failure = error
            except (KeyParameterError, InvalidKeyCurveError):
                continue  # of another algorithm
    raise failure


def _check_access_token(token: jwt.Token) -> None:
    """Refuse a token that may tell a client about its user (ID token), or that was made for another purpose."""
    kind = token.header.get("typ", "JWT").lower().removeprefix("application/")
    said = token.claims.get("typ")
    if kind == "at+jwt" or (kind == "jwt" and said == "Bearer"):  # RFC 9068; Keycloak
        return
    signs = [f"a claim {name}" for name in ("nonce", "at_hash", "c_hash") if name in token.claims]
    if kind != "jwt" or said == "ID":
        signs.append(f"the type {quoted(kind[:40] if kind != 'jwt' else said)}")
    if signs:
        raise _refused(f"programs log in with an access token, and this one has {signs[0]}: is it an ID token")


def _refused(why: str, what: str = "token") -> Problem:
    return Problem("login-missing", f"the {what} of the issuer is not accepted: {why}")


# ---- logins ----------------------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """Where a browser goes on, and the cookies that it gets."""

    location: str
    cookies: tuple[str, ...]


class Logins:
    """The logins of browsers and programs by the issuer of the settings."""

    def __init__(self, settings: Settings, signer: Signer) -> None:
        self._settings = settings
        self._signer = signer
        self.issuer = Issuer(settings)
        self._spent_states, self._ended_sessions = Spent(), Spent()
        url = urlsplit(settings.console_url)
        client = settings.console_oidc_client_id
        # Consoles may share a secret, and those of one machine share their cookies: the ports do not separate them.
        self._deployment = json.dumps([settings.app_id, self.issuer.name, client, settings.console_url])
        self._is_secure = url.scheme == "https"
        prefix = "__Host-timers" if self._is_secure else "timers"
        ours = hashlib.sha256(self._deployment.encode()).hexdigest()[:8]
        self._session_cookie, self._login_cookie = f"{prefix}-session-{ours}", f"{prefix}-login-{ours}"
        self._base_path = url.path
        self._redirect_uri = f"{settings.console_url}/login/done"

    async def bearer(self, token: str) -> Identity | None:
        """Who a program is; None if this is no token of the issuer, or if those of programs are not taken.

        Raises:
            Problem: it is one, and it does not count.
        """
        audience = self._settings.console_oidc_audience
        if not audience or token.count(".") != 2:
            return None
        return self._identity(await self.issuer.claims(token, audience, of_program=True), "")

    def session(self, cookies: Mapping[str, str]) -> Identity | None:
        """Who is logged in; None: no user is, or the login has ended."""
        found = self._open("session", cookies.get(self._session_cookie, ""))
        if found is None or found[2] in self._ended_sessions:
            return None
        name, groups, session = found
        return Identity(name, tuple(groups), session)

    async def begin(self, back: str, *, asks_again: bool = False) -> Answer:
        """Send the browser to the issuer.

        Args:
            back: the path to which the login leads back.
            asks_again: a user whom the issuer knows already logs in again there: he may be the wrong one.

        Raises:
            Problem: the issuer does not answer.
        """
        metadata = await self.issuer.metadata()
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        asked = {
            "response_type": "code",
            "client_id": self._settings.console_oidc_client_id,
            "redirect_uri": self._redirect_uri,
            "scope": self._settings.console_oidc_scopes,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        } | ({"prompt": "login"} if asks_again else {})
        signed = self._sign("login", [state, nonce, verifier, self.own_path(back)], LOGIN_S)
        return Answer(_with_query(metadata.authorization, asked), (self._cookie(self._login_cookie, signed, LOGIN_S),))

    async def finish(self, query: Mapping[str, str], cookies: Mapping[str, str]) -> tuple[Identity, str]:
        """Who comes back from the issuer, and the path at which this user began.

        Raises:
            Problem: this browser has begun no such login, the issuer refuses it, or its token does not count.
        """
        begun = self._open("login", cookies.get(self._login_cookie, ""))
        if begun is None or query.get("state") != begun[0] or begun[0] in self._spent_states:
            raise _refused(f"this browser began no such login, or another one since; open {self._url}", "answer")
        state, nonce, verifier, back = begun
        self._spent_states.add(state, Clock().now_s() + LOGIN_S)
        metadata = await self.issuer.metadata()
        if query.get("iss", self.issuer.name if not metadata.names_itself else "") != self.issuer.name:
            raise _refused("it does not name the issuer as its sender", "answer")
        if "code" not in query:
            said = ": ".join(query[name][:200] for name in ("error", "error_description") if query.get(name))
            raise _refused(said or "it has no code", "answer")
        token = await self.issuer.exchange(query["code"], verifier, self._redirect_uri)
        client = self._settings.console_oidc_client_id
        asked: ClaimsOption = {"essential": True, "value": nonce}
        claims = await self.issuer.claims(token, client, nonce=asked, iat={"essential": True})
        audiences = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        if claims.get("azp", client if len(audiences) == 1 else None) != client:
            raise _refused("it was given to another client (azp)")
        return self._identity(claims, secrets.token_urlsafe(16)), back

    def cookies_of(self, identity: Identity) -> tuple[str, ...]:
        """The cookies of a browser whose user has logged in: a new one, and the end of that of the login."""
        life_s = self._settings.console_oidc_session_s
        signed = self._sign("session", [*identity], life_s)
        while len(signed) > _MAX_COOKIE and identity.groups:  # the first ones of the file count
            identity = identity._replace(groups=identity.groups[:-1])
            signed = self._sign("session", [*identity], life_s)
        return self._cookie(self._session_cookie, signed, life_s), self._cookie(self._login_cookie, "", 0)

    async def end(self, cookies: Mapping[str, str]) -> Answer:
        """Log out here, and send the browser to the issuer to log out there, if this is possible."""
        if identity := self.session(cookies):
            self._ended_sessions.add(identity.session, Clock().now_s() + self._settings.console_oidc_session_s)
        location = f"{self._base_path}/login"
        try:
            there = (await self.issuer.metadata()).end_session
        except Problem:
            there = ""
        if there:
            client = self._settings.console_oidc_client_id
            location = _with_query(there, {"client_id": client, "post_logout_redirect_uri": f"{self._url}/login"})
        return Answer(location, (self._cookie(self._session_cookie, "", 0),))

    def _identity(self, claims: Mapping[str, Any], session: str) -> Identity:
        name_claim, groups_claim = self._settings.console_oidc_name_claim, self._settings.console_oidc_groups_claim
        name, groups = _claim(claims, name_claim), _claim(claims, groups_claim)
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= _MAX_NAME:
            raise _refused(f"its claim {name_claim} is missing, or no name of up to {_MAX_NAME} characters")
        found = groups if isinstance(groups, list) else [groups]
        return Identity(name, tuple(each for each in found if isinstance(each, str)), session)

    @property
    def _url(self) -> str:
        return self._settings.console_url

    def own_path(self, path: str) -> str:
        """A path of this console; the first page in place of a path that leads elsewhere."""
        inside = path.startswith(f"{self._base_path}/") and path.isascii() and path.isprintable() and "\\" not in path
        return path if inside and not path.startswith("//") and len(path) <= _MAX_BACK else f"{self._base_path}/"

    def _sign(self, purpose: str, content: Any, life_s: float) -> str:
        return self._signer.sign(f"{purpose} {self._deployment}", "", content, Clock().now_s() + life_s)

    def _open(self, purpose: str, text: str) -> Any:
        """The content of a cookie; None if this console did not sign it for this, or it has ended."""
        try:
            return self._signer.open(f"{purpose} {self._deployment}", "", text, Clock().now_s())
        except (Problem, UnicodeError):
            return None

    def _cookie(self, name: str, value: str, life_s: float) -> str:
        # Lax: the cookie comes with links from other sites to our pages, as with the way back from the issuer, and with
        # no request that they send in the background. "__Host-" lets no other host of the domain set it.
        secure = "; Secure" if self._is_secure else ""
        return f"{name}={value}; Path=/; Max-Age={life_s:.0f}; HttpOnly; SameSite=Lax{secure}"


def _with_query(url: str, parameters: Mapping[str, str]) -> str:
    return f"{url}{'&' if urlsplit(url).query else '?'}{urlencode(parameters)}"


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its name, or by a path of names with dots between them."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found
