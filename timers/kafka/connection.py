"""Settings to the configuration of every Kafka client that we open, and what a refusal by the brokers means.

Four libraries talk to Kafka here: librdkafka (admin, client library, command line), aiokafka (the worker's producers
and the reader of ticks), Faust, which opens aiokafka's clients itself and takes :func:`aiokafka`'s values as
credentials, and Kafka's own Java clients inside Spark. What is asked of each is written here and nowhere else.
"""

from __future__ import annotations

import re
import ssl
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException

from timers.config.security import Secret, uses_sasl, uses_tls
from timers.config.settings import Settings
from timers.errors import AccessError, SettingsError

UNREACHABLE = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE)
"""What librdkafka's calls say while no broker answers, whatever the reason."""

_FIRST_TRY_S = 1.0


def librdkafka(settings: Settings) -> dict[str, Any]:
    """Properties of a librdkafka client: where to connect, whom to trust, and as whom. Holds secrets: not for logs.

    Raises:
        SettingsError: certificates or key cannot be used.
    """
    config: dict[str, Any] = {"bootstrap.servers": settings.brokers, "security.protocol": settings.security_protocol}
    if uses_tls(settings.security_protocol):
        ssl_context(settings)  # reads the same files: what is wrong with them is said in the same words
        config["ssl.endpoint.identification.algorithm"] = "https" if settings.ssl_check_hostname else "none"
        for name, path in (
            ("ssl.ca.location", settings.ssl_ca_file),
            ("ssl.certificate.location", settings.ssl_cert_file),
            ("ssl.key.location", settings.ssl_key_file),
        ):
            if path is not None:
                config[name] = str(path)
        if settings.ssl_key_password:
            config["ssl.key.password"] = settings.ssl_key_password.reveal()
    if uses_sasl(settings.security_protocol):
        config |= {
            "sasl.mechanism": settings.sasl_mechanism,
            "sasl.username": settings.sasl_username,
            "sasl.password": settings.sasl_password.reveal(),
        }
    return config


def aiokafka(settings: Settings) -> dict[str, Any]:
    """Arguments of an aiokafka client: where to connect, whom to trust, and as whom. Holds secrets: not for logs.

    Raises:
        SettingsError: certificates or key cannot be used.
    """
    arguments: dict[str, Any] = {
        "bootstrap_servers": settings.brokers.split(","),
        "security_protocol": settings.security_protocol,
        "ssl_context": ssl_context(settings) if uses_tls(settings.security_protocol) else None,
    }
    if uses_sasl(settings.security_protocol):
        arguments |= {
            "sasl_mechanism": settings.sasl_mechanism,
            "sasl_plain_username": settings.sasl_username,
            "sasl_plain_password": settings.sasl_password.reveal(),
        }
    return arguments


def java(settings: Settings) -> dict[str, str]:
    """Properties of a Kafka client in Java: where to connect, whom to trust, and as whom. Holds secrets: not for logs.

    Certificates and keys go as text, not as paths: those who connect may be executors on other machines.

    Raises:
        SettingsError: certificates or key cannot be used.
    """
    config = {"bootstrap.servers": settings.brokers, "security.protocol": settings.security_protocol}
    if uses_tls(settings.security_protocol):
        ssl_context(settings)  # reads the same files: what is wrong with them is said in the same words
        config["ssl.endpoint.identification.algorithm"] = "https" if settings.ssl_check_hostname else ""
        if settings.ssl_ca_file is not None:
            config |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": settings.ssl_ca_file.read_text()}
        if settings.ssl_cert_file is not None and settings.ssl_key_file is not None:
            config |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": settings.ssl_cert_file.read_text(),
                "ssl.keystore.key": _for_java(settings.ssl_key_file, settings.ssl_key_password),
            }
    if uses_sasl(settings.security_protocol):
        kind = "plain.Plain" if settings.sasl_mechanism == "PLAIN" else "scram.Scram"
        name, password = _jaas_text(settings.sasl_username), _jaas_text(settings.sasl_password.reveal())
        config |= {
            "sasl.mechanism": settings.sasl_mechanism,
            "sasl.jaas.config": f"org.apache.kafka.common.security.{kind}LoginModule required "
            f"username={name} password={password};",
        }
    return config


def _for_java(path: Path, password: Secret) -> str:
    """A key in the one form that all Javas read: PKCS#8, not encrypted. (Java 17 cannot open what OpenSSL 3 locks.)"""
    from cryptography.hazmat.primitives import (
        serialization,
    )  # comes with the extra for Spark, as its clients are Java's

    text = path.read_bytes()
    try:
        key = serialization.load_pem_private_key(text, password.reveal().encode() if password else None)
    except TypeError:  # a password, and nothing that it opens: OpenSSL takes no notice of it either
        key = serialization.load_pem_private_key(text, None)
    except ValueError as error:
        raise _unusable("TIMERS_SSL_KEY_FILE", path, "a file of a PEM private key", OSError(0, str(error))) from None
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def _jaas_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@lru_cache(maxsize=4)
def ssl_context(settings: Settings) -> ssl.SSLContext:
    """TLS as OpenSSL's defaults have it, 1.2 or later. One for all clients: reading the system's authorities is slow.

    Raises:
        SettingsError: certificates or key cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=settings.ssl_ca_file)
    except (ssl.SSLError, OSError) as error:
        raise _unusable("TIMERS_SSL_CA_FILE", settings.ssl_ca_file, "a file of PEM certificates", error) from None
    context.check_hostname = settings.ssl_check_hostname
    if settings.ssl_cert_file is not None:
        try:
            # A function, for without a password OpenSSL would ask for one on the terminal.
            context.load_cert_chain(settings.ssl_cert_file, settings.ssl_key_file, settings.ssl_key_password.reveal)
        except (ssl.SSLError, OSError) as error:
            expected = (
                f"a PEM certificate that goes with TIMERS_SSL_KEY_FILE={str(settings.ssl_key_file)!r} and "
                "TIMERS_SSL_KEY_PASSWORD"
            )
            raise _unusable("TIMERS_SSL_CERT_FILE", settings.ssl_cert_file, expected, error) from None
    return context


def _unusable(env: str, value: object, expected: str, error: OSError) -> SettingsError:
    reason = getattr(error, "reason", None) or error.strerror
    return SettingsError(f"{env}={str(value)!r} is not {expected} ({reason})")


def principal(settings: Settings) -> str:
    """How ACLs name us, as far as settings say: brokers may map names otherwise."""
    if uses_sasl(settings.security_protocol):
        return f"User:{settings.sasl_username}"
    return f"the owner of {settings.ssl_cert_file}" if settings.ssl_cert_file else "User:ANONYMOUS"


class Reports:
    """What librdkafka reports by the way, as its ``error_cb``: only there does it say that a login is refused.

    Calls of the client just time out meanwhile. Give one to each client, and poll the client for it to be called.

    Attributes:
        refusal: what the brokers do not accept of us; None while nothing says so.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.refusal: AccessError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Take one report."""
        said = _essence(error.str())
        settings = self._settings
        if error.code() == KafkaError._AUTHENTICATION:
            self.refusal = AccessError(
                f"the brokers at {settings.brokers} refuse the login of TIMERS_SASL_USERNAME="
                f"{settings.sasl_username!r} ({said}): check that name, its password and TIMERS_SASL_MECHANISM="
                f"{settings.sasl_mechanism!r}"
            )
        elif error.code() == KafkaError._SSL:
            self.refusal = AccessError(
                f"the brokers at {settings.brokers} are not to be trusted ({said}): does TIMERS_SSL_CA_FILE hold the "
                "authority that signed their certificate, and does that name this host?"
            )
        elif "ssl/tls alert" in said:
            self.refusal = AccessError(
                f"the brokers at {settings.brokers} refuse the client's certificate ({said}): set TIMERS_SSL_CERT_FILE "
                "and TIMERS_SSL_KEY_FILE to one that they trust"
            )

    def hint(self) -> str:
        """What else could be the matter when no broker answers."""
        return f"do they speak TIMERS_SECURITY_PROTOCOL={self._settings.security_protocol!r} there?"


def _essence(text: str) -> str:
    """librdkafka's text without the address before it, the timing behind it, and its advice on its own properties."""
    text = re.sub(r"^\S+://\S+: ", "", text)
    return re.sub(r"(, verify that ssl\.ca\.location.*)? ?\(after .*$", "", text)


class _Client(Protocol):
    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any: ...
    def poll(self, timeout: float = -1) -> Any: ...


def metadata(client: _Client, reports: Reports, timeout_s: float, topic: str | None = None) -> Any:
    """``client.list_topics``, but a refusal ends it at once: by itself it would wait until its time is over.

    Raises:
        AccessError: the brokers do not accept us, or we do not trust them.
        KafkaException: no broker answers within ``timeout_s``.
    """
    give_up = monotonic() + timeout_s
    try_s = _FIRST_TRY_S
    while True:
        left_s = give_up - monotonic()
        try:
            found = client.list_topics(topic, timeout=max(0.1, min(try_s, left_s)))
            reports.refusal = None
            return found
        except KafkaException as error:
            client.poll(0)
            if reports.refusal is not None:
                raise reports.refusal from None
            if error.args[0].code() not in UNREACHABLE or monotonic() >= give_up:
                raise
        try_s *= 2
