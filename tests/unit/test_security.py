"""Credentials: valid combinations of settings, hidden secrets, and the configuration of each library."""

import json
import logging
import pickle
import ssl
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, KafkaException, Producer, ThrottleEvent
from cryptography.hazmat.primitives import serialization

from tests.harness.secure import Certificates
from timers.cli.main import cli
from timers.client import TimersClient
from timers.client.config import Connection
from timers.errors import AccessError, PublishError, SettingsError, UnacknowledgedError, UnreachableError
from timers.kafka import aiokafka_clients, connection
from timers.kafka.lost_brokers import LostBrokers
from timers.process.config.settings import Settings
from timers.process.config.variables import Secret
from timers.worker.service import TimersApp

PASSWORD = "pa55-w0rd"
KEY_PASSWORD = "k3y-pa55"
SASL = {
    "TIMERS_BROKERS": "a:1,b:2",
    "TIMERS_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
    "TIMERS_SASL_USERNAME": "ada",
    "TIMERS_SASL_PASSWORD": PASSWORD,
}
OAUTH = {
    "TIMERS_BROKERS": "a:1,b:2",
    "TIMERS_SECURITY_PROTOCOL": "SASL_SSL",
    "TIMERS_SASL_MECHANISM": "OAUTHBEARER",
    "TIMERS_SASL_TOKEN_URL": "https://login.example/token",
    "TIMERS_SASL_USERNAME": "ada",
    "TIMERS_SASL_PASSWORD": PASSWORD,
}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("unit") / "certificates")


@pytest.fixture(scope="module")
def secured(certificates: Certificates) -> dict[str, str]:
    """Settings with TLS, a client certificate and a password."""
    chain, key = certificates.issue("ada", KEY_PASSWORD)
    return SASL | {
        "TIMERS_SECURITY_PROTOCOL": "SASL_SSL",
        "TIMERS_SSL_CA_FILE": str(certificates.ca),
        "TIMERS_SSL_CERT_FILE": str(chain),
        "TIMERS_SSL_KEY_FILE": str(key),
        "TIMERS_SSL_KEY_PASSWORD": KEY_PASSWORD,
    }


def without(environ: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


# ---- combinations of settings ---------------------------------------------------------------------------------------


def test_settings_that_exclude_each_other_are_refused_with_advice(secured: dict[str, str], tmp_path: Path) -> None:
    some_file = tmp_path / "file"
    some_file.write_text("x")
    wrong: list[tuple[dict[str, str], str]] = [
        (without(SASL, "TIMERS_SASL_USERNAME"), "'SASL_PLAINTEXT' needs TIMERS_SASL_USERNAME, which is not set"),
        (without(SASL, "TIMERS_SASL_PASSWORD"), "needs TIMERS_SASL_PASSWORD or TIMERS_SASL_PASSWORD_FILE, and neither"),
        (SASL | {"TIMERS_SASL_PASSWORD_FILE": str(some_file)}, "are both set: keep one of them"),
        (without(SASL, "TIMERS_SECURITY_PROTOCOL"), "TIMERS_SASL_PASSWORD is set, but TIMERS_SECURITY_PROTOCOL="),
        (SASL | {"TIMERS_SSL_CA_FILE": str(some_file)}, "does not use it: set TIMERS_SECURITY_PROTOCOL=SSL or SASL"),
        (
            without(secured, "TIMERS_SSL_KEY_FILE", "TIMERS_SSL_KEY_PASSWORD"),
            "CERT_FILE needs TIMERS_SSL_KEY_FILE",
        ),
        (without(secured, "TIMERS_SSL_CERT_FILE"), "TIMERS_SSL_KEY_FILE needs TIMERS_SSL_CERT_FILE"),
        (
            without(secured, "TIMERS_SSL_CERT_FILE", "TIMERS_SSL_KEY_FILE"),
            "KEY_PASSWORD needs TIMERS_SSL_KEY_FILE",
        ),
        (
            without(OAUTH, "TIMERS_SASL_TOKEN_URL"),
            "'OAUTHBEARER' needs one of TIMERS_SASL_TOKEN_URL, TIMERS_SASL_",
        ),
        (OAUTH | {"TIMERS_SASL_TOKEN_COMMAND": f"x {PASSWORD}"}, "_URL and TIMERS_SASL_TOKEN_COMMAND are set"),
        (without(OAUTH, "TIMERS_SASL_USERNAME"), "TIMERS_SASL_MECHANISM='OAUTHBEARER' needs TIMERS_SASL_USERNAME"),
        (
            without(OAUTH, "TIMERS_SASL_PASSWORD"),
            "needs TIMERS_SASL_PASSWORD or TIMERS_SASL_PASSWORD_FILE, and neither",
        ),
        (
            without(OAUTH, "TIMERS_SASL_TOKEN_URL") | {"TIMERS_SASL_TOKEN_FILE": str(some_file)},
            "TIMERS_SASL_USERNAME is set, but TIMERS_SASL_MECHANISM='OAUTHBEARER' with TIMERS_SASL_TOKEN_FILE does not",
        ),
        (SASL | {"TIMERS_SASL_TOKEN_FILE": str(some_file)}, "TIMERS_SASL_TOKEN_FILE is set, but TIMERS_SECURITY_PROT"),
        (
            SASL | {"TIMERS_SASL_EXTENSIONS": "a=b"},
            "TIMERS_SASL_EXTENSIONS is set, but TIMERS_SECURITY_PROTOCOL='S",
        ),
    ]
    for environ, expected in wrong:
        with pytest.raises(SettingsError) as error:
            Settings.load(environ)
        assert expected in str(error.value)
        assert "\n" not in str(error.value)
        assert PASSWORD not in str(error.value)


@pytest.mark.parametrize("content", [PASSWORD, f"{PASSWORD}\n", f"{PASSWORD}\r\n", f"\ufeff{PASSWORD}"])
def test_a_password_may_come_from_a_file(tmp_path: Path, content: str) -> None:
    file = tmp_path / "password"
    file.write_bytes(content.encode())
    environ = without(SASL, "TIMERS_SASL_PASSWORD") | {"TIMERS_SASL_PASSWORD_FILE": str(file)}
    assert Settings.load(environ).sasl_password == Secret(PASSWORD)


def test_an_endless_password_file_is_refused() -> None:
    environ = without(SASL, "TIMERS_SASL_PASSWORD") | {"TIMERS_SASL_PASSWORD_FILE": "/dev/zero"}
    with pytest.raises(
        SettingsError, match=r"^TIMERS_SASL_PASSWORD_FILE='/dev/zero' is not a file that holds a password"
    ):
        Settings.load(environ)


@pytest.mark.parametrize("content", ["", "\n", f"{PASSWORD}\nmore\n", f"{PASSWORD}\0", f"{PASSWORD}\udcfc"])
def test_a_file_that_holds_no_password_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "password"
    file.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(SettingsError, match=r"^TIMERS_SASL_PASSWORD_FILE=.* a file that holds a password") as error:
        Settings.load(without(SASL, "TIMERS_SASL_PASSWORD") | {"TIMERS_SASL_PASSWORD_FILE": str(file)})
    assert PASSWORD not in str(error.value)


def test_the_embedded_broker_is_only_for_plaintext(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timers.process.config.settings.project_broker", lambda: "127.0.0.1:20001")
    assert Settings.load({}).brokers == "127.0.0.1:20001"
    assert Settings.load(without(SASL, "TIMERS_BROKERS")).brokers == "127.0.0.1:9092"


# ---- configuration of the libraries ---------------------------------------------------------------------------------


def test_plaintext_needs_no_credentials() -> None:
    settings = Settings.load({"TIMERS_BROKERS": "a:1,b:2"})
    assert connection.librdkafka(settings) == {"bootstrap.servers": "a:1,b:2", "security.protocol": "PLAINTEXT"}
    assert aiokafka_clients.arguments(settings) == {
        "bootstrap_servers": ["a:1", "b:2"],
        "security_protocol": "PLAINTEXT",
        "ssl_context": None,
    }


def test_librdkafka_gets_all_settings(secured: dict[str, str]) -> None:
    config = connection.librdkafka(Settings.load(secured))
    assert config == {
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "SASL_SSL",
        "ssl.endpoint.identification.algorithm": "https",
        "ssl.ca.location": secured["TIMERS_SSL_CA_FILE"],
        "ssl.certificate.location": secured["TIMERS_SSL_CERT_FILE"],
        "ssl.key.location": secured["TIMERS_SSL_KEY_FILE"],
        "ssl.key.password": KEY_PASSWORD,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "ada",
        "sasl.password": PASSWORD,
    }
    Producer(config)  # it refuses unknown properties
    lax = connection.librdkafka(Settings.load(secured | {"TIMERS_SSL_CHECK_HOSTNAME": "0"}))
    assert lax == config | {"ssl.endpoint.identification.algorithm": "none"}


def test_java_gets_the_settings_with_certificates_as_text(secured: dict[str, str]) -> None:
    settings = Settings.load(secured | {"TIMERS_SASL_PASSWORD": 'a "quoted" \\ one'})
    assert settings.ssl_ca_file and settings.ssl_cert_file and settings.ssl_key_file
    text = settings.ssl_ca_file.read_text()
    settings.ssl_ca_file.write_bytes("\u00dcber\n".encode("latin-1") + text.encode())
    config = connection.java(settings)
    assert config == {
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "SASL_SSL",
        "ssl.endpoint.identification.algorithm": "https",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": f"\ufffdber\n{text}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": settings.ssl_cert_file.read_text(),
        "ssl.keystore.key": config["ssl.keystore.key"],
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        r'username="ada" password="a \"quoted\" \\ one";',
    }
    lax = connection.java(Settings.load(secured | {"TIMERS_SSL_CHECK_HOSTNAME": "0"}))
    assert lax["ssl.endpoint.identification.algorithm"] == ""
    plain = connection.java(Settings.load(SASL | {"TIMERS_SASL_MECHANISM": "PLAIN"}))
    assert plain["sasl.jaas.config"].startswith("org.apache.kafka.common.security.plain.PlainLoginModule required ")
    assert connection.java(Settings.load({"TIMERS_BROKERS": "a:1"})) == {
        "bootstrap.servers": "a:1",
        "security.protocol": "PLAINTEXT",
    }


@pytest.mark.parametrize("form", ["PKCS8", "TraditionalOpenSSL"])
@pytest.mark.parametrize("password", ["", KEY_PASSWORD])
def test_java_gets_each_key_as_plain_pkcs8(secured: dict[str, str], tmp_path: Path, form: str, password: str) -> None:
    pem = Path(secured["TIMERS_SSL_KEY_FILE"]).read_bytes()
    private = serialization.load_pem_private_key(pem, KEY_PASSWORD.encode())
    lock = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
    given = tmp_path / "given.key"
    given.write_bytes(
        private.private_bytes(serialization.Encoding.PEM, getattr(serialization.PrivateFormat, form), lock)
    )
    changes = {
        "TIMERS_SSL_KEY_FILE": str(given),
        "TIMERS_SSL_KEY_PASSWORD": KEY_PASSWORD,
    }  # a password that is not needed
    text = connection.java(Settings.load(secured | changes))["ssl.keystore.key"]
    assert text.startswith("-----BEGIN PRIVATE KEY-----\n")
    same = serialization.load_pem_private_key(text.encode(), None)
    assert same.private_numbers() == private.private_numbers()  # type: ignore[union-attr]


def test_aiokafka_gets_all_settings(secured: dict[str, str]) -> None:
    settings = Settings.load(secured | {"TIMERS_SASL_MECHANISM": "SCRAM-SHA-256"})
    arguments = aiokafka_clients.arguments(settings)
    assert {name: value for name, value in arguments.items() if name != "ssl_context"} == {
        "bootstrap_servers": ["a:1", "b:2"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "ada",
        "sasl_plain_password": PASSWORD,
    }
    context = arguments["ssl_context"]
    assert context.check_hostname and context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    lax = aiokafka_clients.arguments(replace(settings, ssl_check_hostname=False))["ssl_context"]
    assert not lax.check_hostname and lax.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"TIMERS_SSL_CA_FILE": __file__}, "^TIMERS_SSL_CA_FILE='.*' is not a file of PEM certificates"),
        ({"TIMERS_SSL_KEY_PASSWORD": "wrong"}, "^TIMERS_SSL_CERT_FILE='.*' is not a PEM certificate that goes with"),
        ({"TIMERS_SSL_KEY_PASSWORD": ""}, "^TIMERS_SSL_CERT_FILE='.*' is not a PEM certificate that goes with"),
        ({"TIMERS_SSL_KEY_FILE": __file__}, "^TIMERS_SSL_CERT_FILE='.*' is not a PEM certificate that goes with"),
    ],
)
def test_unusable_files_are_named(secured: dict[str, str], changes: dict[str, str], expected: str) -> None:
    settings = Settings.load(secured | changes)
    for configure in (connection.librdkafka, aiokafka_clients.arguments, TimersApp):
        with pytest.raises(SettingsError, match=expected) as error:
            configure(settings)
        assert "\n" not in str(error.value)


def test_a_key_of_another_certificate_is_refused(secured: dict[str, str], certificates: Certificates) -> None:
    _, other_key = certificates.issue("eve", KEY_PASSWORD)
    with pytest.raises(SettingsError, match=r"KEY_VALUES_MISMATCH"):
        connection.ssl_context(Settings.load(secured | {"TIMERS_SSL_KEY_FILE": str(other_key)}))


# ---- the client library ---------------------------------------------------------------------------------------------


def given_to_librdkafka(monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> dict[str, Any]:
    """The configuration with which ``TimersClient`` makes its producer."""
    seen: dict[str, Any] = {}
    monkeypatch.setattr("timers.client.config.Producer", lambda config, logger: seen.update(config))
    values = {"brokers": None, "request_topic": None, "producer_config": None, "timeout_s": 1.0} | arguments
    Connection.resolve(**values, max_request_bytes=None).producer(linger_ms=1)
    return seen


def test_the_client_gets_credentials_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SASL.items():
        monkeypatch.setenv(name, value)
    seen = given_to_librdkafka(monkeypatch, brokers="c:3")
    assert seen["bootstrap.servers"] == "c:3"
    assert (seen["security.protocol"], seen["sasl.username"], seen["sasl.password"]) == (
        "SASL_PLAINTEXT",
        "ada",
        PASSWORD,
    )


def test_the_client_never_mixes_credentials_of_argument_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SASL.items():
        monkeypatch.setenv(name, value)
    seen = given_to_librdkafka(monkeypatch, producer_config={"security.protocol": "SSL"})
    assert seen["security.protocol"] == "SSL"
    assert not [name for name in seen if name.startswith("sasl.")]


@pytest.mark.parametrize("name", ["error_cb", "throttle_cb"])
def test_a_callback_of_the_application_is_also_called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs: list[Any] = []
    event: Any = KafkaError(KafkaError._AUTHENTICATION, "sasl_ssl://c:3/bootstrap: no (after 3ms)")
    if name == "throttle_cb":
        event = ThrottleEvent("c:3", 1, 40.0)
    seen = given_to_librdkafka(monkeypatch, brokers="c:3", producer_config={name: theirs.append})
    seen[name](event)
    assert theirs == [event]


@pytest.mark.parametrize("name", ["stats_cb", "error_cb", "throttle_cb"])
def test_a_callback_of_the_application_that_raises_is_logged(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def export(event: Any) -> None:
        raise KeyError("brokers")

    event: Any = "{}" if name == "stats_cb" else ThrottleEvent("c:3", 1, 40.0)
    if name == "error_cb":
        event = KafkaError(KafkaError._TRANSPORT)
    given_to_librdkafka(monkeypatch, brokers="c:3", producer_config={name: export})[name](event)
    assert caplog.messages == [f"{name} of the application failed"]


def test_what_reads_verdicts_reaches_the_brokers_as_the_producer_does(caplog: pytest.LogCaptureFixture) -> None:
    reach = {
        "security.protocol": "SSL",
        "enable.ssl.certificate.verification": False,
        "enable.sasl.oauthbearer.unsecure.jwt": True,
        "https.ca.location": "probe",
        "broker.address.family": "v4",
        "client.dns.lookup": "resolve_canonical_bootstrap_servers_only",
        "client.id": "shop",
        "socket.connection.setup.timeout.ms": 2000,
        "reconnect.backoff.max.ms": 2000,
    }
    own = {"linger.ms": 9, "compression.type": "lz4", "stats_cb": print, "statistics.interval.ms": 1}
    kafka = Connection.resolve("127.0.0.1:1", None, reach | own, 1.0, None)
    asking = kafka._asking()
    assert reach.items() <= asking.items() and not own.keys() & asking.keys()
    with caplog.at_level(logging.DEBUG, "timers.client"):
        kafka.consumer(LostBrokers()).close()
        kafka.admin()
    assert not [text for text in caplog.messages if "CONFWARN" in text], "librdkafka knows each of them for both"


# ---- refused credentials --------------------------------------------------------------------------------------------


class SimClient:
    """A librdkafka client whose brokers refuse its credentials at the second call."""

    def __init__(self, reports: connection.ErrorReports, error: KafkaError | None) -> None:
        self._reports = reports
        self._error = error
        self.looks = 0

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        self.looks += 1
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "Failed to get metadata"))

    def poll(self, timeout: float = -1) -> Any:
        if self._error is not None and self.looks == 2:
            self._reports(self._error)


@pytest.mark.parametrize(
    ("code", "broker_error", "expected"),
    [
        (KafkaError._AUTHENTICATION, "SASL authentication error: no", "refuse the login of TIMERS_SASL_USERNAME='ada'"),
        (KafkaError._SSL, "SSL handshake failed: certificate verify failed", "does TIMERS_SSL_CA_FILE contain"),
        (KafkaError._TRANSPORT, "Receive failed: ssl/tls alert bad certificate", "set TIMERS_SSL_CERT_FILE"),
    ],
)
def test_refused_credentials_end_the_wait_with_the_reason(code: int, broker_error: str, expected: str) -> None:
    settings = Settings.load(SASL)
    reports = connection.ErrorReports(settings)
    client = SimClient(
        reports, KafkaError(code, f"sasl_ssl://a:1/bootstrap: {broker_error} (after 3ms in state AUTH_REQ)")
    )
    with pytest.raises(AccessError, match=expected) as error:
        connection.metadata(client, reports, timeout_s=60)
    assert client.looks == 2
    assert broker_error in str(error.value)
    assert "bootstrap" not in str(error.value) and "after 3ms" not in str(error.value)


def test_a_refusal_of_a_former_time_says_nothing_about_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that restarts may break a TLS handshake, and the client goes on."""
    kafka = Connection.resolve("a:1", None, None, 1.0, None)
    over = KafkaError(KafkaError._MSG_TIMED_OUT)
    kafka.reports(KafkaError(KafkaError._SSL, "ssl://b:9093/1: SSL handshake failed: Disconnected (after 3ms)"))
    assert isinstance(kafka.unreachable_error(UnreachableError), AccessError)
    found = kafka.user_error(over, sent=True)
    assert type(found) is UnacknowledgedError and type(found.__cause__) is AccessError
    assert "TIMERS_SSL_CA_FILE" in str(found) and "may still be taken" in str(found)
    later = monotonic() + connection._REFUSED_S + 1
    monkeypatch.setattr(connection, "monotonic", lambda: later)
    found = kafka.user_error(over, sent=True)
    assert type(found) is UnacknowledgedError and "TIMERS_SSL_CA_FILE" not in str(found)
    assert type(kafka.unreachable_error(UnreachableError)) is UnreachableError


@pytest.mark.parametrize(("backoff_ms", "lasts"), [(120_000, True), ("120000", True), (10_000, False), ("a", False)])
def test_a_refusal_counts_until_librdkafka_would_repeat_it(
    monkeypatch: pytest.MonkeyPatch, backoff_ms: object, lasts: bool
) -> None:
    kafka = Connection.resolve("a:1", None, {"reconnect.backoff.max.ms": backoff_ms}, 1.0, None)
    kafka.reports(KafkaError(KafkaError._SSL, "ssl://b:9093/1: SSL handshake failed: Disconnected (after 3ms)"))
    later = monotonic() + 90
    monkeypatch.setattr(connection, "monotonic", lambda: later)
    assert (kafka.reports.refusal is not None) == lasts


def test_a_command_that_was_sent_before_a_refusal_is_not_acknowledged() -> None:
    reports = connection.ErrorReports(Settings.load(SASL))
    reports(KafkaError(KafkaError._AUTHENTICATION, "sasl_ssl://a:1/1: no (after 3ms in state AUTH_REQ)"))
    over = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    assert type(reports.user_error(over, "no answer", PublishError)) is AccessError
    found = reports.user_error(over, "no answer", UnacknowledgedError)
    assert type(found) is UnacknowledgedError and found.__cause__ is reports.refusal
    assert "TIMERS_SASL_USERNAME" in str(found) and "may still be taken" in str(found)


def test_unreachable_brokers_do_not_count_as_refused_credentials() -> None:
    reports = connection.ErrorReports(Settings.load(SASL))
    client = SimClient(reports, KafkaError(KafkaError._TRANSPORT, "a:1/bootstrap: Connect failed: Connection refused"))
    with pytest.raises(KafkaException):
        connection.metadata(client, reports, timeout_s=0.001)


# ---- secrets --------------------------------------------------------------------------------------------------------


def test_no_text_of_the_settings_shows_a_secret(secured: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in secured.items():
        monkeypatch.setenv(name, value)
    settings = Settings.load()
    shown = [
        repr(settings),
        str(settings),
        f"{settings.sasl_password} {settings.sasl_password!r}",
        str(asdict(settings)),
        repr(Connection.resolve(None, None, {"sasl.password": PASSWORD}, 1.0, None)),
        repr(TimersClient(producer_config={"sasl.password": PASSWORD})),
        *(CliRunner().invoke(cli, ["settings", *form]).output for form in ([], ["-o", "json"])),
    ]
    assert all("***" in text for text in shown[:4] + shown[-2:])
    for text in shown:
        assert PASSWORD not in text and KEY_PASSWORD not in text
    rows = map(json.loads, shown[-1].splitlines())
    (row,) = [row for row in rows if row["variable"] == "TIMERS_SASL_PASSWORD"]
    assert (row["value"], row["source"]) == ("***", "environment")


def test_an_error_about_one_property_shows_no_other_property(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"security.protocol": "sasl_plaintext", "sasl.password": PASSWORD, "no.such": "1"}
    with TimersClient("127.0.0.1:1", producer_config=extra) as client, pytest.raises(SettingsError) as error:
        client.schedule("t", "k", b"", delay=1)
    assert "no.such" in str(error.value)
    assert PASSWORD not in "".join(traceback.format_exception(error.value))


def test_secrets_can_be_compared_and_tested_for_being_set() -> None:
    assert Secret("a") == Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert bool(Secret("a")) and not Secret()
    assert (str(Secret()), hash(Secret("a"))) == ("", hash(Secret("a")))
    assert pickle.loads(pickle.dumps(Secret("a"))).reveal() == "a"


def test_java_asks_the_token_endpoint_itself(certificates: Certificates) -> None:
    more = {
        "TIMERS_SASL_PASSWORD": 'a"b\\c',
        "TIMERS_SASL_TOKEN_SCOPE": "kafka",
        "TIMERS_SASL_TOKEN_CA_FILE": str(certificates.ca),
        "TIMERS_SASL_EXTENSIONS": "logicalCluster=lkc-1",
    }
    config = connection.java(Settings.load(OAUTH | more))
    jaas = config["sasl.jaas.config"]
    assert jaas.startswith("org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required clientId=")
    assert 'clientSecret="a\\"b\\\\c" scope="kafka" ssl.truststore.type="PEM"' in jaas
    assert jaas.endswith(' extension_logicalCluster="lkc-1";') and "\n" not in jaas
    assert config["sasl.oauthbearer.token.endpoint.url"] == "https://login.example/token"


def test_java_has_no_other_tokens(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("")
    login = without(OAUTH, "TIMERS_SASL_TOKEN_URL", "TIMERS_SASL_USERNAME", "TIMERS_SASL_PASSWORD")
    with pytest.raises(SettingsError, match="TIMERS_SASL_TOKEN_FILE gives no tokens to Kafka's clients in Java"):
        connection.java(Settings.load(login | {"TIMERS_SASL_TOKEN_FILE": str(token)}))


def test_credentials_are_not_in_a_debug_log(caplog: pytest.LogCaptureFixture) -> None:
    from aiokafka.protocol.admin import SaslAuthenticateRequest, SaslHandShakeRequest

    aiokafka_clients.arguments(Settings.load(SASL))
    log = logging.getLogger("aiokafka.conn")
    with caplog.at_level(logging.DEBUG, "aiokafka.conn"):
        log.debug("Request to %s:%d %d: %s", "a", 1, 2, SaslHandShakeRequest("PLAIN"))
        log.debug("Request to %s:%d %d: %s", "a", 1, 3, SaslAuthenticateRequest(f"\0ada\0{PASSWORD}".encode()))
    assert len(caplog.messages) == 1
    assert PASSWORD not in caplog.text
