"""An OAuth server, and a broker that takes its tokens.

The broker has three listeners of its own, with SASL_PLAINTEXT: ``UNSECURED`` takes unsigned tokens (Kafka's default),
``SIGNED`` those that the server has signed, and ``LASTING`` the same without ending a session when its token ends.
On its PLAINTEXT listener everything is allowed.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TextIO
from unittest.mock import patch
from urllib.parse import parse_qs, unquote_plus

from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from tests.harness.acls import ANONYMOUS, AUTHORIZER
from tests.harness.brokers import NEVER_KILLED
from tests.harness.process import ROOT
from timers.cli.broker import EmbeddedBroker, jars
from timers.cli.broker.embedded import NODE_ID, free_port
from timers.cli.broker.process import HOST
from timers.errors import BrokerError
from timers.process.jars import JarSet

UNSECURED, SIGNED, LASTING = "UNSECURED", "SIGNED", "LASTING"
LISTENERS = (UNSECURED, SIGNED, LASTING)

CLIENT = "timers-client"
SECRET = "s3cret: of+the/client%"
ISSUER = "https://login.example"
AUDIENCE = "kafka"

JOSE4J = JarSet("jose4j", ROOT / "tests" / "kafka" / "oauth" / "jose4j.toml", BrokerError)
_KEY_ID = "k1"
_LOGIN = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
_VALIDATOR = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def jwt(claims: dict[str, Any], key: rsa.RSAPrivateKey | None = None, kid: str | None = _KEY_ID, **more: Any) -> str:
    """A token with these claims, signed if there is a key. ``more`` of its head; None takes a part out."""
    parts = {"alg": "none"} if key is None else {"alg": "RS256", "kid": kid, "typ": "JWT"} | more
    head = {name: value for name, value in parts.items() if value is not None}
    text = ".".join(base64url(json.dumps(part).encode()) for part in (head, claims))
    signature = b"" if key is None else key.sign(text.encode(), padding.PKCS1v15(), SHA256())
    return f"{text}.{base64url(signature)}"


def jwk(key: rsa.RSAPrivateKey, kid: str | None = _KEY_ID) -> dict[str, str]:
    """The public part of a key, as JWKS has it; None: without an id."""
    numbers = key.public_key().public_numbers()
    parts = {"n": numbers.n, "e": numbers.e}
    encoded = {name: base64url(value.to_bytes((value.bit_length() + 7) // 8)) for name, value in parts.items()}
    return {"kty": "RSA", "use": "sig", "alg": "RS256", **encoded} | ({"kid": kid} if kid else {})


def claims_of(subject: str, life_s: float) -> dict[str, Any]:
    """The claims of a token that ends ``life_s`` from now."""
    now_s = time.time()
    return {"iss": ISSUER, "aud": AUDIENCE, "sub": subject, "iat": now_s, "exp": now_s + life_s}


@dataclass
class OAuthServer:
    """Gives tokens for client credentials, and its public key. Use :func:`oauth_server`.

    Attributes:
        life_s: of the next tokens.
        asked: when tokens were asked for, and the status of each answer.
        fails: answer each request for a token with an error.
        answer: sends this in place of an answer: status, headers, content.
    """

    url: str
    life_s: float = 60.0
    fails: bool = False
    answer: tuple[int, dict[str, str], bytes] | None = None
    asked: list[tuple[float, int]] = field(default_factory=list)
    given: list[str] = field(default_factory=list)
    key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))

    def token(self, subject: str = CLIENT, life_s: float | None = None) -> str:
        """A signed token."""
        text = jwt(claims_of(subject, self.life_s if life_s is None else life_s), self.key)
        self.given.append(text)
        return text

    def keys(self) -> dict[str, Any]:
        """Its public key, as JWKS."""
        return {"keys": [jwk(self.key)]}

    def answer_to(self, login: str, form: dict[str, list[str]]) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and content of the answer to a request for a token."""
        if self.answer is not None:
            return self.answer
        if self.fails:
            return 503, {}, b"try later"
        kind, _, credentials = login.partition(" ")
        name, _, secret = base64.b64decode(credentials).decode().partition(":")
        if (kind, unquote_plus(name), unquote_plus(secret)) != ("Basic", CLIENT, SECRET):
            return 401, {}, json.dumps({"error": "invalid_client", "error_description": f"not {secret}"}).encode()
        if form.get("grant_type") != ["client_credentials"]:
            return 400, {}, b'{"error": "unsupported_grant_type"}'
        return 200, {}, json.dumps({"access_token": self.token(), "expires_in": self.life_s}).encode()


@contextmanager
def oauth_server(trust: ssl.SSLContext | None = None) -> Iterator[OAuthServer]:
    """A running server; with ``trust`` it speaks HTTPS."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, {}, json.dumps(server.keys()).encode())

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            status, headers, content = server.answer_to(self.headers["Authorization"] or "", form)
            server.asked.append((time.time(), status))
            self._send(status, headers, content)

        def _send(self, status: int, headers: dict[str, str], content: bytes) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    listener = ThreadingHTTPServer((HOST, 0), Handler)
    listener.daemon_threads = True
    scheme = "http"
    if trust is not None:
        listener.socket = trust.wrap_socket(listener.socket, server_side=True)
        scheme = "https"
    server = OAuthServer(f"{scheme}://{HOST}:{listener.server_address[1]}")
    threading.Thread(target=listener.serve_forever, args=[0.02], daemon=True).start()
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()


class _WithJose4j(JarSet):
    def ensure(self, out: TextIO | None) -> list[Path]:
        return [*super().ensure(out), *JOSE4J.ensure(out)]


class OAuthBroker:
    """An :class:`EmbeddedBroker` that takes tokens. Tokens name its users: ``User:<sub>``."""

    def __init__(self, directory: Path, server: OAuthServer) -> None:
        directory.mkdir(exist_ok=True)
        port, controller = free_port(), free_port()
        self._ports = {name: free_port() for name in LISTENERS}
        self._keys = f"{server.url}/keys"
        clients = ",".join(f"{name}://{HOST}:{at}" for name, at in {"PLAINTEXT": port, **self._ports}.items())
        properties = {
            **AUTHORIZER,
            "super.users": f"{ANONYMOUS};User:{CLIENT}",
            **NEVER_KILLED,
            "controller.quorum.voters": f"{NODE_ID}@{HOST}:{controller}",
            "listeners": f"{clients},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": clients,
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,"
            + ",".join(f"{name}:SASL_PLAINTEXT" for name in LISTENERS),
            "inter.broker.listener.name": "PLAINTEXT",
        }
        for listener in LISTENERS:
            prefix = f"listener.name.{listener.lower()}"
            properties |= {
                f"{prefix}.sasl.enabled.mechanisms": "OAUTHBEARER",
                f"{prefix}.oauthbearer.sasl.jaas.config": _LOGIN,
            }
            if listener != LASTING:
                properties[f"{prefix}.oauthbearer.connections.max.reauth.ms"] = "3600000"
            if listener != UNSECURED:
                properties |= {
                    f"{prefix}.oauthbearer.sasl.server.callback.handler.class": _VALIDATOR,
                    f"{prefix}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": self._keys,
                    f"{prefix}.oauthbearer.sasl.oauthbearer.expected.audience": AUDIENCE,
                    # From Kafka 4.4 on, a broker does not start without it.
                    f"{prefix}.oauthbearer.sasl.oauthbearer.expected.issuer": ISSUER,
                }
        self.embedded = EmbeddedBroker(directory / "broker", port, properties)

    @property
    def address(self) -> str:
        """The PLAINTEXT listener."""
        address = self.embedded.address
        assert address is not None
        return address

    def address_of(self, listener: str) -> str:
        return f"{HOST}:{self._ports[listener]}"

    def __enter__(self) -> OAuthBroker:
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._keys}"
        options = {"KAFKA_OPTS": f"{os.environ.get('KAFKA_OPTS', '')} {allowed}"}
        joined = _WithJose4j(jars.KAFKA.name, jars.KAFKA.spec, jars.KAFKA.error)
        with patch.dict(os.environ, options), patch.object(jars, "KAFKA", joined):
            self.embedded.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.embedded.stop()
