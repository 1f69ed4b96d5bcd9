"""A broker with TLS, passwords, client certificates, and ACLs that deny by default.

Tests use its PLAINTEXT listener, where everything is allowed, to prepare it. It has three other listeners, each with a
port of its own: ``SASL_SSL``, ``SSL`` (with client certificates) and ``SASL_PLAINTEXT``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import trustme
from confluent_kafka.admin import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives import serialization

from tests.harness.acls import ANONYMOUS, AUTHORIZER
from tests.harness.brokers import NEVER_KILLED
from tests.harness.waiting import DEADLINE_S
from timers.cli.broker import EmbeddedBroker
from timers.cli.broker.embedded import NODE_ID, free_port
from timers.cli.broker.process import HOST
from timers.kafka.admin_client import AdminClient

PROTOCOLS = ("SASL_SSL", "SSL", "SASL_PLAINTEXT")
PLAIN_USER = "plain-user"
"""The only user with a PLAIN login, because these users are in the configuration of the broker."""

_ITERATIONS = 4096


@dataclass(frozen=True)
class Certificates:
    """A certificate authority for one test session, and its files."""

    directory: Path
    authority: trustme.CA

    @classmethod
    def make(cls, directory: Path) -> Certificates:
        directory.mkdir()
        made = cls(directory, trustme.CA())
        made.authority.cert_pem.write_to_path(str(made.ca))
        trustme.CA().cert_pem.write_to_path(str(made.other_ca))
        return made

    @property
    def ca(self) -> Path:
        """Certificate of the authority that has signed the broker's certificate."""
        return self.directory / "ca.pem"

    @property
    def other_ca(self) -> Path:
        """Certificate of another authority."""
        return self.directory / "strange-ca.pem"

    def issue(self, name: str, password: str = "") -> tuple[Path, Path]:
        """Make certificate and key for a host or a client; with a password the key is encrypted."""
        cert = self.authority.issue_cert(name, common_name=name)
        chain, key = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        chain.write_bytes(b"".join(pem.bytes() for pem in cert.cert_chain_pems))
        private = serialization.load_pem_private_key(cert.private_key_pem.bytes(), None)
        lock = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        key.write_bytes(  # Java reads PKCS 8 only
            private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)
        )
        return chain, key


@contextmanager
def secure_broker(directory: Path, users: Mapping[str, str], plain_password: str = "unused") -> Iterator[SecureBroker]:
    """A running secure broker on which ``users``, name -> password, may log in."""
    server = SecureBroker(directory, plain_password)
    try:
        server.start()
        for name, password in users.items():
            server.add_user(name, password)
        yield server
    finally:
        server.stop()


class SecureBroker:
    """An :class:`EmbeddedBroker` with more listeners.

    Args:
        directory: directory of its data and certificates.
        plain_password: password of :data:`PLAIN_USER`.
        host: the name in the broker's certificate.
    """

    def __init__(self, directory: Path, plain_password: str, host: str = HOST) -> None:
        directory.mkdir(exist_ok=True)
        self.certificates = Certificates.make(directory / "certificates")
        self._host, self._store = host, directory / "broker.pem"
        self.sign_anew(self.certificates.authority)
        port, controller = free_port(), free_port()
        self._ports = {name: free_port() for name in PROTOCOLS}
        ours = {"PLAINTEXT": port, **self._ports}
        clients = ",".join(f"{name}://{HOST}:{port}" for name, port in ours.items())
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        properties = {
            **AUTHORIZER,
            "super.users": ANONYMOUS,
            **NEVER_KILLED,
            "controller.quorum.voters": f"{NODE_ID}@{HOST}:{controller}",
            "listeners": f"{clients},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": clients,
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,"
            + ",".join(f"{name}:{name}" for name in ("PLAINTEXT", *PROTOCOLS)),
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificates.ca),
            "listener.name.ssl.ssl.client.auth": "required",
            # CN=ada,O=... -> User:ada
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]+),.*$/$1/,DEFAULT",
        }
        for name in ("sasl_ssl", "sasl_plaintext"):
            properties |= {
                f"listener.name.{name}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
                f"listener.name.{name}.scram-sha-256.sasl.jaas.config": scram,
                f"listener.name.{name}.scram-sha-512.sasl.jaas.config": scram,
                f"listener.name.{name}.plain.sasl.jaas.config": f'{login} user_{PLAIN_USER}="{plain_password}";',
            }
        self.embedded = EmbeddedBroker(directory / "broker", port, properties)

    def start(self) -> SecureBroker:
        self.embedded.start()
        return self

    def stop(self) -> None:
        self.embedded.stop()

    def sign_anew(self, authority: trustme.CA) -> None:
        """Give the broker a certificate of this authority, which it has from its next start on."""
        chain, key = replace(self.certificates, authority=authority).issue(self._host)
        self._store.write_bytes(key.read_bytes() + chain.read_bytes())

    @property
    def address(self) -> str:
        """The PLAINTEXT listener, where everything is allowed."""
        address = self.embedded.address
        assert address is not None
        return address

    def address_of(self, protocol: str, host: str = HOST) -> str:
        """The listener of a security protocol."""
        return f"{host}:{self._ports[protocol]}"

    def add_user(self, name: str, password: str) -> None:
        """Add a user who may log in by SCRAM."""
        admin = AdminClient({"bootstrap.servers": self.address})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):  # not both in one request
            change = UserScramCredentialUpsertion(name, ScramCredentialInfo(mechanism, _ITERATIONS), password.encode())
            admin.alter_user_scram_credentials([change])[name].result(DEADLINE_S)
