"""A small issuer of OpenID Connect: discovery, keys, a page for the user, codes with PKCE, ID tokens, logout."""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

from cryptography.hazmat.primitives.asymmetric import rsa

from tests.harness.oauth import base64url, jwk, jwt

CLIENT, SECRET, PROGRAMS = "timers-console", "s3cret of+the/client%", "timers-api"
"""The client, its secret, and the audience of tokens of programs."""


@cache
def key_of(owner: str) -> rsa.RSAPrivateKey:
    """A key for each owner: making one takes 60 ms of CPU."""
    return rsa.generate_private_key(65537, 2048)


@dataclass
class OidcIssuer:
    """Its user is always logged in. Use :func:`oidc_issuer`.

    Attributes:
        claims: of its user.
        change: makes the claims of an ID token wrong.
        signed: makes the token of its claims.
        keys: that it publishes beside its own.
        head: more of the heads of its tokens; None takes a part out.
        status: of each answer, if it is not 200.
        before: is called before each answer.
        metadata: changes of the discovery document.
        redirect_uri: the only one that it takes.
        asked: paths of all requests.
        tokens: all ID tokens that it gave.
        grants: code -> what its login asked for.
    """

    url: str
    redirect_uri: str = ""
    claims: dict[str, Any] = field(default_factory=lambda: {"sub": "u-1", "name": "ada", "groups": ["ops", "all"]})
    change: Callable[[dict[str, Any]], object] = lambda claims: None
    signed: Callable[[dict[str, Any]], str] | None = None
    status: int = 200
    before: Callable[[], object] = lambda: None
    metadata: dict[str, Any] = field(default_factory=dict)
    keys: list[dict[str, Any]] = field(default_factory=lambda: [{"kty": "EC", "crv": "?"}])
    head: dict[str, Any] = field(default_factory=dict)
    kid: str | None = "k1"
    key: rsa.RSAPrivateKey = field(default_factory=partial(key_of, "issuer"))
    asked: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    grants: dict[str, dict[str, str]] = field(default_factory=dict)

    def rotate(self) -> None:
        """Sign with another key, and publish this one only."""
        self.kid = secrets.token_hex(4)
        self.key = key_of(self.kid)

    def token(self, audience: Any = PROGRAMS, life_s: float = 60, **claims: Any) -> str:
        """A signed token for an audience."""
        now_s = time.time()
        times = {"iat": int(now_s), "exp": int(now_s + life_s)}
        return self.sign({"iss": self.url, "aud": audience, **times, **self.claims, **claims})

    def sign(self, claims: dict[str, Any]) -> str:
        return jwt(claims, self.key, **{"kid": self.kid, **self.head})

    def authorize(self, asked: dict[str, str]) -> str:
        """Where the browser goes when its user agrees."""
        assert asked["response_type"] == "code" and asked["code_challenge_method"] == "S256"
        assert asked["redirect_uri"] == self.redirect_uri and asked["client_id"] == CLIENT
        assert "openid" in asked["scope"].split()
        code = secrets.token_urlsafe(16)
        self.grants[code] = asked
        return f"{self.redirect_uri}?{urlencode({'code': code, 'state': asked['state'], 'iss': self.url})}"

    def _give(self, form: dict[str, str], login: str) -> tuple[int, dict[str, str]]:
        kind, _, credentials = login.partition(" ")
        name, _, secret = base64.b64decode(credentials).decode().partition(":")
        if (kind, unquote_plus(name), unquote_plus(secret)) != ("Basic", CLIENT, SECRET):
            return 401, {"error": "invalid_client"}
        grant = self.grants.pop(form["code"], None)  # a code counts once
        challenge = base64url(hashlib.sha256(form["code_verifier"].encode()).digest())
        if grant is None or grant["code_challenge"] != challenge or form["redirect_uri"] != self.redirect_uri:
            return 400, {"error": "invalid_grant"}
        now_s = int(time.time())
        claims = {"iss": self.url, "aud": CLIENT, "nonce": grant["nonce"], "iat": now_s, "exp": now_s + 300}
        claims |= self.claims
        self.change(claims)
        self.tokens.append((self.signed or self.sign)(claims))
        return 200, {"access_token": "opaque", "token_type": "Bearer", "id_token": self.tokens[-1]}

    def answer(self, path: str, form: dict[str, str], login: str) -> tuple[int, str | dict[str, Any]]:
        """Status and content: a page, or JSON."""
        found = urlsplit(path)
        self.asked.append(found.path)
        self.before()
        query = dict(parse_qsl(found.query))
        if self.status != 200:
            return self.status, "not today"
        if found.path == "/.well-known/openid-configuration":
            names = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
            names["end_session_endpoint"] = "logout"
            endpoints = {name: f"{self.url}/{path}" for name, path in names.items()}
            return 200, {"issuer": self.url, **endpoints, **self.metadata}
        if found.path == "/keys":
            return 200, {"keys": [*self.keys, jwk(self.key, self.kid)]}
        if found.path == "/token":
            return self._give(form, login)
        if found.path == "/authorize":
            return 200, f'<a id="agree" href="{self.authorize(query).replace("&", "&amp;")}">Continue as ada</a>'
        if found.path == "/logout":
            return 200, f'<p>Logged out</p><a href="{query["post_logout_redirect_uri"]}">Back</a>'
        return 200, ""  # a browser asks for an icon


@contextmanager
def oidc_issuer(redirect_uri: str = "") -> Iterator[OidcIssuer]:
    """An issuer that answers in threads of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            form = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            status, content = issuer.answer(self.path, dict(parse_qsl(form)), self.headers.get("Authorization", ""))
            body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/html" if isinstance(content, str) else "application/json")
            self.send_header("Content-Length", str(len(body)))
            if 300 <= status < 400:
                self.send_header("Location", "/elsewhere")
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        issuer = OidcIssuer(f"http://127.0.0.1:{server.server_address[1]}", redirect_uri)
        thread = threading.Thread(target=server.serve_forever, args=[0.02], name="oidc issuer")
        thread.start()
        try:
            yield issuer
        finally:
            server.shutdown()
            thread.join()
