"""Connection properties for all Kafka clients, computed from the settings, and the brokers' refusals as sentences.

Three libraries connect to Kafka: librdkafka (admin, client library, command line), aiokafka (the worker's clients, also
the one that Faust makes), and Kafka's Java clients in Spark. Only this module, and for aiokafka
:mod:`timers.kafka.aiokafka_clients`, know their properties for addresses, TLS and SASL.
"""

from __future__ import annotations

import logging
import math
import re
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException

from timers.core.printable import quoted
from timers.errors import AccessError, SettingsError, TimersError, UnacknowledgedError
from timers.kafka import login_tokens
from timers.kafka.error_codes import MOVING, NO_TOPIC, NOT_ALLOWED, UNREACHABLE, code_of, limit_of
from timers.process.clock import Clock
from timers.process.config.settings import Settings
from timers.process.config.variables import OAUTHBEARER, TOKEN_URL, Secret, uses_sasl, uses_tls
from timers.process.renewed_tls import RenewedContext
from timers.process.threads import check_threads

logger = logging.getLogger(__name__)

CALL_TIMEOUT_S = 10.0
"""How long one request to the brokers may take."""

CALL_RETRY_S = 0.2
"""Time between two tries of a call that failed because a leader moves."""

_FIRST_ATTEMPT_S = 0.25

GRACE_S = 5.0
"""Added to the time for an answer, which librdkafka keeps itself."""

_RECENT_S = 15.0
"""librdkafka tries a broker that it needs again every 10 s or earlier, so an older report says nothing about now."""

_REFUSED_S = 60.0
"""librdkafka tries again every 10 s or earlier, and reports the same refusal again after 30 s or earlier. So an older
one says nothing about now: one broker may have refused a login, or broken a TLS handshake, while it restarted."""

_REPEATED_S = 30.0

_HELD_BACK = (
    "a quota of the brokers holds this client back (producer_byte_rate, consumer_byte_rate, request_percentage, or "
    "controller_mutation_rate where topics are created)"
)

_LACKS_RIGHT = NOT_ALLOWED | {KafkaError.GROUP_AUTHORIZATION_FAILED}

_T = TypeVar("_T")


def librdkafka(settings: Settings) -> dict[str, Any]:
    """Properties of a librdkafka client: addresses, TLS and login. They contain secrets: never log them.

    Raises:
        SettingsError: a file of TLS cannot be read, or this process has no threads that the client could use.
    """
    check_threads()
    config: dict[str, Any] = {"bootstrap.servers": settings.brokers, "security.protocol": settings.security_protocol}
    if uses_tls(settings.security_protocol):
        ssl_context(settings)  # reads the same files, so that all libraries report a bad file in the same words
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
        config["sasl.mechanism"] = settings.sasl_mechanism
        if settings.sasl_mechanism == OAUTHBEARER:
            config["oauth_cb"] = partial(login_tokens.for_librdkafka, settings)
        else:
            config["sasl.username"] = settings.sasl_username
            config["sasl.password"] = settings.sasl_password.reveal()
    return config


def java(settings: Settings) -> dict[str, str]:
    """Properties of a Kafka client in Java: addresses, TLS and login. They contain secrets: never log them.

    Certificates and keys are given as text instead of paths, because Spark's executors may run on other machines.
    """
    config = {"bootstrap.servers": settings.brokers, "security.protocol": settings.security_protocol}
    if uses_tls(settings.security_protocol):
        ssl_context(settings)  # reads the same files, so that all libraries report a bad file in the same words
        config["ssl.endpoint.identification.algorithm"] = "https" if settings.ssl_check_hostname else ""
        if settings.ssl_ca_file is not None:
            config |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _pem(settings.ssl_ca_file)}
        if settings.ssl_cert_file is not None and settings.ssl_key_file is not None:
            config |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": _pem(settings.ssl_cert_file),
                "ssl.keystore.key": _unencrypted_key(settings.ssl_key_file, settings.ssl_key_password),
            }
    if uses_sasl(settings.security_protocol):
        config |= {"sasl.mechanism": settings.sasl_mechanism, **_java_login(settings)}
    return config


def _java_login(settings: Settings) -> dict[str, str]:
    name, secret = settings.sasl_username, settings.sasl_password.reveal()
    if settings.sasl_mechanism != OAUTHBEARER:
        module = "plain.PlainLoginModule" if settings.sasl_mechanism == "PLAIN" else "scram.ScramLoginModule"
        return {"sasl.jaas.config": _jaas(module, username=name, password=secret)}
    if not settings.sasl_token_url:
        raise SettingsError(
            f"{login_tokens.source_of(settings).name} gives no tokens to Kafka's clients in Java, which Spark uses: "
            f"they ask a token endpoint themselves, that of {TOKEN_URL}"
        )
    options = {"clientId": name, "clientSecret": secret}
    if settings.sasl_token_scope:
        options["scope"] = settings.sasl_token_scope
    if settings.sasl_token_ca_file is not None:
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _pem(settings.sasl_token_ca_file)}
    options |= {f"extension_{each}": value for each, value in login_tokens.extensions(settings).items()}
    handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
    return {
        "sasl.jaas.config": _jaas("oauthbearer.OAuthBearerLoginModule", **options),
        "sasl.login.callback.handler.class": handler,
        "sasl.oauthbearer.token.endpoint.url": settings.sasl_token_url,
        "sasl.oauthbearer.header.urlencode": "true",  # as RFC 6749 says, and as the other clients do
        "sasl.login.connect.timeout.ms": "5000",
        "sasl.login.read.timeout.ms": "8000",
    }


def _jaas(module: str, **options: str) -> str:
    given = " ".join(f"{name}={_jaas_text(value)}" for name, value in options.items())
    return f"org.apache.kafka.common.security.{module} required {given};"


def _pem(path: Path) -> str:
    """The text of a PEM file. Only comments between the certificates can have characters that are not of ASCII."""
    return path.read_text("ascii", "replace")


def _unencrypted_key(path: Path, password: Secret) -> str:
    """The private key as unencrypted PKCS#8, which every Java reads. Java 17 cannot decrypt keys of OpenSSL 3."""
    from cryptography.hazmat.primitives import serialization  # installed with the extra for Spark only

    text = path.read_bytes()
    try:
        key = serialization.load_pem_private_key(text, password.reveal().encode() if password else None)
    except TypeError:  # there is a password, but the key is not encrypted; OpenSSL ignores such a password too
        key = serialization.load_pem_private_key(text, None)
    except ValueError as error:
        raise _file_error("TIMERS_SSL_KEY_FILE", path, "a file of a PEM private key", OSError(0, str(error))) from None
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def _jaas_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


@lru_cache(maxsize=4)
def ssl_context(settings: Settings) -> ssl.SSLContext:
    """A TLS context with OpenSSL's defaults, TLS 1.2 or later, whose files may be renewed. Cached, because loading the
    system's CAs is slow.

    Raises:
        SettingsError: certificates or key cannot be used.
    """
    return RenewedContext.reading(ssl.PROTOCOL_TLS_CLIENT, tls_files(settings), partial(_load, settings))


def tls_files(settings: Settings) -> list[Path]:
    """The files of certificates, keys and authorities."""
    files = settings.ssl_ca_file, settings.ssl_cert_file, settings.ssl_key_file
    return [file for file in files if file is not None]


def _load(settings: Settings, context: ssl.SSLContext) -> None:
    """Load the certificates of the settings, and OpenSSL's defaults for clients."""
    try:
        defaults = ssl.create_default_context(cafile=settings.ssl_ca_file)
        context.options, context.verify_flags = defaults.options, defaults.verify_flags
        if settings.ssl_ca_file is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(settings.ssl_ca_file)
    except (ssl.SSLError, OSError) as error:
        raise _file_error("TIMERS_SSL_CA_FILE", settings.ssl_ca_file, "a file of PEM certificates", error) from None
    context.check_hostname = settings.ssl_check_hostname
    if settings.ssl_cert_file is not None:
        try:
            # The password is a function: without any password OpenSSL would ask for one on the terminal.
            context.load_cert_chain(settings.ssl_cert_file, settings.ssl_key_file, settings.ssl_key_password.reveal)
        except (ssl.SSLError, OSError) as error:
            expected = (
                f"a PEM certificate that goes with TIMERS_SSL_KEY_FILE={quoted(str(settings.ssl_key_file))} and "
                "TIMERS_SSL_KEY_PASSWORD"
            )
            raise _file_error("TIMERS_SSL_CERT_FILE", settings.ssl_cert_file, expected, error) from None


def _file_error(env: str, value: object, expected: str, error: OSError) -> SettingsError:
    reason = getattr(error, "reason", None) or error.strerror
    return SettingsError(f"{env}={quoted(str(value))} is not {expected} ({reason})")


def principal(settings: Settings) -> str:
    """The principal that ACLs must name, as far as the settings show. Brokers may map names differently."""
    if uses_sasl(settings.security_protocol) and settings.sasl_mechanism == OAUTHBEARER:
        subject = login_tokens.source_of(settings).subject
        return f"User:{subject}" if subject else f"the owner of the token of {login_tokens.source_of(settings).name}"
    if uses_sasl(settings.security_protocol):
        return f"User:{settings.sasl_username}"
    return f"the owner of {settings.ssl_cert_file}" if settings.ssl_cert_file else "User:ANONYMOUS"


class ErrorReports:
    """What one librdkafka client reports: only its callbacks get the reason of a refused login or of a quota, and calls
    time out.

    The client must be polled for the callbacks to run.

    Attributes:
        refusal: why the brokers refuse the connection; None if they have not, for ``refused_s``.
        refused_s: how long a refusal counts.
        are_down: no broker takes a connection. A broker that is slow to answer does not count.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._refused: tuple[AccessError | None, float, bool] = None, -math.inf, False
        """The refusal, when it came, and whether there was no token: then it ends as soon as there is one."""
        self.refused_s = _REFUSED_S
        self._former: login_tokens.Answer = ()
        """The last answer of the application's ``oauth_cb``."""
        self._no_token: AccessError | None = None
        """Why the application gave no token the last time."""
        self.are_down = False
        self.serve: Callable[[], object] = int
        """Lets a client that nothing polls make its reports now."""
        self._throttled_until_s = 0.0
        self._unreached: dict[str, tuple[str, float]] = {}
        """Address of a broker that the others have named -> why no connection to it could be opened, and when."""

    @property
    def refusal(self) -> AccessError | None:
        refusal, refused_at, is_by_token = self._refused
        is_over = monotonic() - refused_at > self.refused_s
        return None if is_over or (is_by_token and not login_tokens.troubles(self._settings)) else refusal

    @refusal.setter
    def refusal(self, refusal: AccessError | None) -> None:
        is_by_token = refusal is not None and bool(login_tokens.troubles(self._settings))
        self._refused = refusal, monotonic(), is_by_token

    def refused(self, kind: type[TimersError]) -> TimersError | None:
        """The refusal as an error of a call that would raise ``kind`` without it. After a request was sent, it is an
        :class:`UnacknowledgedError`, whose cause is the refusal."""
        refusal = self.refusal
        if refusal is None or not issubclass(kind, UnacknowledgedError):
            return refusal
        error = kind(f"{refusal}. What was already sent may still be taken")
        error.__cause__ = refusal
        return error

    def note_backoff(self, longest_s: float) -> None:
        """Let a refusal count for as long as a client needs that tries again after up to ``longest_s``."""
        self.refused_s = max(_REFUSED_S, _REPEATED_S + 2 * longest_s)

    @property
    def is_outage(self) -> bool:
        """Whether the refusal is for want of a token, although there was one before: then waiting may help."""
        if self.refusal is None or not self._refused[2]:
            return False
        return login_tokens.source_of(self._settings).left_s is not None

    def __call__(self, error: KafkaError) -> None:
        """Store the refusal, if the report is one."""
        reason = _short_reason(error.str())
        settings = self._settings
        if error.code() == KafkaError._AUTHENTICATION:
            self.refusal = self._no_token or _refused_login(settings, reason)
        elif error.code() == KafkaError._SSL:
            self.refusal = AccessError(
                f"the brokers at {settings.brokers} cannot be trusted ({reason}): does TIMERS_SSL_CA_FILE contain the "
                "authority that signed their certificate, and does the certificate name this host?"
            )
        elif "ssl/tls alert" in reason:
            self.refusal = AccessError(
                f"the brokers at {settings.brokers} refuse the client's certificate ({reason}): set "
                "TIMERS_SSL_CERT_FILE and TIMERS_SSL_KEY_FILE to one that they trust"
            )
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.are_down = True
        elif found := _NOT_CONNECTED.match(error.str()):
            self._throttled_until_s = 0.0  # a client that is held back keeps its connections
            if found[1] not in settings.brokers.split(","):
                self._unreached[found[1]] = found[2].removeprefix("Connect to "), monotonic()

    def token_of_application(self, callback: Callable[[str], login_tokens.Answer], config: str) -> login_tokens.Answer:
        """The ``oauth_cb`` of a client of an application that has one of its own, by :func:`functools.partial`. As
        :func:`timers.kafka.login_tokens.for_librdkafka` it never fails."""
        return login_tokens.uncollected(partial(self._token_of, callback), config)

    def _token_of(self, callback: Callable[[str], login_tokens.Answer], config: str) -> login_tokens.Answer:
        try:
            answer = callback(config)
        except Exception as error:
            logger.exception("oauth_cb of the application failed")
            now_s = Clock().now_s()
            match self._former:  # a renewal failed: the token is good until its end
                case (token, int() | float() as end_s, *more) if end_s > now_s:
                    return token, min(end_s, now_s + login_tokens.ASK_AGAIN_S), *more
            self._no_token = self.refusal = AccessError(
                f"oauth_cb of producer_config gives no token ({type(error).__name__}, see the log): try again later"
            )
            return login_tokens.no_token()
        if self._no_token is not None:
            self._no_token = self.refusal = None
        self._former = answer
        return answer

    def _note_throttle(self, event: Any) -> None:
        """A quota of the brokers delays what they answer the client; 0 s: no longer."""
        if event.throttle_time:
            self._throttled_until_s = monotonic() + event.throttle_time + _RECENT_S

    @property
    def callbacks(self) -> dict[str, Callable[[Any], None]]:
        """Properties of the client that makes these reports."""
        return {"error_cb": self, "throttle_cb": self._note_throttle}

    @property
    def _is_throttled(self) -> bool:
        return monotonic() < self._throttled_until_s

    def _unreached_now(self) -> dict[str, str]:
        """Brokers to which no connection could be opened lately, and why: others may be back."""
        now_s = monotonic()
        return {at: reason for at, (reason, since) in self._unreached.items() if now_s - since < _RECENT_S}

    def causes(self) -> str:
        """The possible causes when no broker answers, as questions."""
        if self._is_throttled:
            return f"{_HELD_BACK}: try again later, or raise it."
        if unreached := self._unreached_now():
            address, reason = next(iter(unreached.items()))
            more = f" ({len(unreached) - 1} others, too)" if len(unreached) > 1 else ""
            return (
                f"this machine cannot reach the broker at {address}{more}, which the brokers at "
                f"{self._settings.brokers} have named ({reason}): is it running, and does its advertised.listeners "
                "name an address that this machine can reach?"
            )
        return (
            "is it running, is TIMERS_BROKERS right, and do the brokers speak TIMERS_SECURITY_PROTOCOL="
            f"{self._settings.security_protocol!r}? (`timers broker start` runs a broker on this machine)"
        )

    def user_error(self, error: KafkaException, failed: str, kind: type[TimersError] = TimersError) -> TimersError:
        """An error with a sentence for users. If the brokers refuse the connection, it is that of :meth:`refused`.

        Args:
            error: raised by a call of the client.
            failed: what did not work, such as "topic 'orders' cannot be read".
            kind: class of the error. An AccessError instead of a TimersError, if the login lacks a right.
        """
        reason: KafkaError = error.args[0]
        if code_of(error) in UNREACHABLE:
            self.serve()
            return self.refused(kind) or kind(
                f"{failed}: {self.causes()}"
                if self._unreached_now() or self._is_throttled
                else f"no broker answers at {self._settings.brokers}: {self.causes()}"
            )
        if code_of(error) == KafkaError.INVALID_TIMESTAMP:
            return kind(
                f"{failed}: the clock of this machine is too far from the brokers': correct it, or set "
                "message.timestamp.type=LogAppendTime on the topic, as workers do on their own topics"
            )
        if kind is TimersError and code_of(error) in _LACKS_RIGHT:
            kind = AccessError
        return kind(f"{failed}: {limit_of(code_of(error)) or f'{reason.str()} ({reason.name()})'}")

    def reason(self, error: KafkaError) -> object:
        """What a log says of an error of the client: a quota or a limit of the brokers, if that is the cause."""
        is_held_back = self._is_throttled and error.code() in UNREACHABLE
        return _HELD_BACK if is_held_back else limit_of(error.code()) or error

    @contextmanager
    def explained(self, failed: str, kind: type[TimersError] = TimersError) -> Iterator[None]:
        """Errors of the client in the block become sentences; see :meth:`user_error`."""
        try:
            yield
        except KafkaException as error:
            explained = self.user_error(error, failed, kind)
            raise explained from explained.__cause__ or error  # the cause may be a refusal


def _refused_login(settings: Settings, reason: str) -> AccessError:
    if settings.sasl_mechanism == OAUTHBEARER:
        for trouble in login_tokens.troubles(settings):
            return AccessError(trouble)
        name = login_tokens.source_of(settings).name
        return AccessError(
            f"the brokers at {settings.brokers} refuse the token of {name} ({reason}): do they take "
            f"TIMERS_SASL_MECHANISM={settings.sasl_mechanism!r}, and tokens with its issuer, audience and scope?"
        )
    return AccessError(
        f"the brokers at {settings.brokers} refuse the login of TIMERS_SASL_USERNAME={settings.sasl_username!r} "
        f"({reason}): check that name, its password and TIMERS_SASL_MECHANISM={settings.sasl_mechanism!r}"
    )


_NOT_CONNECTED = re.compile(r"(?:\w+://)?(\S+:\d+)/\d+: (.*?) ?\(after \S+ in state CONNECT[,)]")
"""librdkafka's report of a broker that it knows from another one: it has a number. Bootstrap addresses have none."""


def _short_reason(text: str) -> str:
    """librdkafka's text without the address, the timing, and the advice on librdkafka's own properties."""
    text = re.sub(r"^\S+://\S+: ", "", text)
    return re.sub(r"(, verify that ssl\.ca\.location.*)? ?\(after .*$", "", text)


class _Client(Protocol):
    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any: ...
    def poll(self, timeout: float = -1) -> Any: ...


def metadata(
    client: _Client,
    reports: ErrorReports,
    timeout_s: float,
    topic: str | None = None,
    is_over: Callable[[float], bool] = lambda _: False,
) -> Any:
    """``client.list_topics`` that ends at once when the brokers refuse the login, instead of after ``timeout_s``.

    Args:
        is_over: asked after each attempt, of which each takes twice as long, with the seconds since the call: whether
            to wait no longer.

    Raises:
        AccessError: the brokers refuse the login, or their certificate cannot be trusted.
        KafkaException: no broker answers within ``timeout_s``.
    """
    began_s = monotonic()
    deadline = began_s + timeout_s
    reports.are_down = False
    attempt_s = _FIRST_ATTEMPT_S
    while True:
        remaining_s = deadline - monotonic()
        try:
            found = client.list_topics(topic, timeout=max(0.1, min(attempt_s, remaining_s)))
            reports.refusal = None
            return found
        except KafkaException as error:
            client.poll(0)
            if reports.refusal is not None and not reports.is_outage:
                raise reports.refusal from None
            if code_of(error) not in UNREACHABLE or monotonic() >= deadline:
                raise
            if is_over(monotonic() - began_s):
                raise
        attempt_s *= 2


def give_up_at(timeout_s: float = CALL_TIMEOUT_S) -> float:
    """Until when :func:`answer` waits if a question is asked now with a time for the answer: a monotonic time."""
    return monotonic() + timeout_s + GRACE_S


def answer(asked: Future[_T], until: float) -> _T:
    """The answer to a question of an admin client. Blocks.

    Args:
        until: one time for all parts of a question: see :func:`give_up_at`.

    Raises:
        KafkaException: what the brokers answer, or librdkafka; also if that has forgotten the question, as it may.
    """
    try:
        return asked.result(max(0.0, until - monotonic()))
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None


def while_moving(call: Callable[[], _T], timeout_s: float) -> _T:
    """The result of a call to the brokers, which is repeated while leaders move or no broker answers.

    Raises:
        KafkaException: the last error when ``timeout_s`` is over; any other error at once.
    """
    deadline = monotonic() + timeout_s
    while True:
        try:
            return call()
        except KafkaException as error:
            if code_of(error) not in MOVING | UNREACHABLE or monotonic() > deadline:
                raise
        sleep(CALL_RETRY_S)


def partitions_of(
    client: _Client,
    reports: ErrorReports,
    topic: str,
    timeout_s: float | None = None,
    is_over: Callable[[float], bool] = lambda _: False,
) -> int:
    """Number of partitions of a topic; 0 if the topic does not exist. The request does not create it.

    Raises:
        AccessError: the brokers refuse the login, or their certificate cannot be trusted.
        KafkaException: no broker answers within ``timeout_s`` (10 s by default) or before ``is_over``, or the topic may
            not be described.
    """
    found = metadata(client, reports, CALL_TIMEOUT_S if timeout_s is None else timeout_s, topic, is_over).topics[topic]
    if found.error is not None and found.error.code() in NO_TOPIC:
        return 0
    if found.error is not None and found.error.code() not in MOVING:
        raise KafkaException(found.error)
    return len(found.partitions)
