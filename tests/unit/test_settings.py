"""Settings: a wrong value ends the start with a sentence that names the variable, the value and the expected form."""

import re
import socket
from pathlib import Path

import pytest

from timers.errors import SettingsError
from timers.process.config.declarations import SETTINGS
from timers.process.config.settings import Settings, default_worker_id, describe
from timers.process.config.variables import Setting
from timers.wire.topics import ID_REQUEST

ALL: list[Setting] = list(SETTINGS.values())
BROKERS = {"TIMERS_BROKERS": "broker:9092"}

WRONG = [
    ("TIMERS_BROKERS", "localhost", "host:port"),
    ("TIMERS_BROKERS", "a:1,::1:9092", "an IPv6 address in brackets"),
    ("TIMERS_BROKERS", "::1", "in brackets"),
    ("TIMERS_BROKERS", "fe80::1%eth0", "in brackets"),
    ("TIMERS_BROKERS", "http://127.0.0.1:9092", "try 127.0.0.1:9092"),
    ("TIMERS_BROKERS", "a:1 b:2", "try 127.0.0.1:9092"),
    ("TIMERS_BROKERS", ":9092", "host:port"),
    ("TIMERS_BROKERS", "a:1,b", "host:port"),
    ("TIMERS_BROKERS", "a:65536", "ports 1 to 65535"),
    ("TIMERS_BROKERS", "a:0", "ports 1 to 65535"),
    ("TIMERS_BROKERS", "a:９０９２", "host:port"),
    ("TIMERS_APP_ID", "my app", "letters, digits"),
    ("TIMERS_APP_ID", "ä", "letters, digits"),
    ("TIMERS_APP_ID", "x" * 201, "1 to 200"),
    ("TIMERS_WORKER_ID", "a/b", "letters, digits"),
    ("TIMERS_DATA_DIR", __file__, "a directory"),
    ("TIMERS_WEB_PORT", "0", "between 1 and 65535"),
    ("TIMERS_WEB_PORT", "http", "try 6066"),
    ("TIMERS_WEB_BIND", "a b", "host name or address"),
    ("TIMERS_WEB_BIND", "http://x", "host name or address"),
    ("TIMERS_ADVERTISED_URL", "worker-1:6066", "try http://127.0.0.1:6066"),
    ("TIMERS_ADVERTISED_URL", "http://worker-1:6066/timers", "http://host:port"),
    ("TIMERS_ADVERTISED_URL", "http://me:secret@worker-1", "http://host:port"),
    ("TIMERS_WORKER_URL", "ftp://worker-1", "http://host:port"),
    ("TIMERS_WORKER_URL", "http://", "http://host:port"),
    ("TIMERS_WORKER_URL", "http://worker-1:65536", "http://host:port"),
    ("TIMERS_QUERIES", "on", "one of off, timers, values"),
    ("TIMERS_QUERY_SECRET_FILE", "/no/such/file", "a file that can be read"),
    ("TIMERS_CONSOLE_BIND", "a/b", "host name or address"),
    ("TIMERS_CONSOLE_PORT", "65536", "between 1 and 65535"),
    ("TIMERS_CONSOLE_URL", "timers.example.com", "try https://timers.example.com/console"),
    ("TIMERS_CONSOLE_URL", "https://timers.example.com/a b", "http://host:port/path"),
    ("TIMERS_CONSOLE_URL", "ftp://timers.example.com", "http://host:port"),
    ("TIMERS_CONSOLE_REPORTS_URL", "javascript:alert(1)", "http://host:port/path"),
    ("TIMERS_CONSOLE_WRITE", "yes", "0 or 1"),
    ("TIMERS_TRACING", "off", "0 or 1"),
    ("TIMERS_CONSOLE_USERS_FILE", "/no/such/file", "a file that can be read"),
    ("TIMERS_CONSOLE_CERT_FILE", "/no/such/file", "a file that can be read"),
    ("TIMERS_CONSOLE_KEY_FILE", "/no/such/file", "a file that can be read"),
    ("TIMERS_CONSOLE_CLIENT_CA_FILE", "/no/such/file", "a file that can be read"),
    ("TIMERS_CONSOLE_PROXIES", "10.0.0.0/33", "try 10.0.0.7,10.1.0.0/16"),
    ("TIMERS_WEB_HOSTS", "timers.example.com,http://a", "'http://a' is not one"),
    ("TIMERS_CONSOLE_PROXIES", "proxy.example.com", "addresses and networks"),
    ("TIMERS_CONSOLE_SCHEDULER_API", "yes", "0 or 1"),
    ("TIMERS_CONSOLE_WORKERS", "worker-1", "addresses and networks"),
    ("TIMERS_CONSOLE_PROXY_HEADER", "X_User", "the name of an HTTP header"),
    ("TIMERS_CONSOLE_OIDC_ISSUER", "login.example.com", "(try https://login.example.com/realms/company)"),
    ("TIMERS_CONSOLE_OIDC_CLIENT_ID", "two\nlines", "printable ASCII characters"),
    ("TIMERS_CONSOLE_OIDC_CLIENT_SECRET_FILE", "/no/such/file", "a file that can be read"),
    ("TIMERS_CONSOLE_OIDC_SCOPES", "openid\tprofile", "printable ASCII characters"),
    ("TIMERS_CONSOLE_OIDC_NAME_CLAIM", " ", "printable ASCII characters"),
    ("TIMERS_CONSOLE_OIDC_GROUPS_CLAIM", "ö", "printable ASCII characters"),
    ("TIMERS_CONSOLE_OIDC_AUDIENCE", "x" * 301, "printable ASCII characters"),
    ("TIMERS_CONSOLE_OIDC_CA_FILE", "/no/such/file", "a file that can be read"),
    ("TIMERS_CONSOLE_OIDC_SESSION_S", "59", "between 60 and 604800"),
    ("TIMERS_CONSOLE_RATE_PER_S", "0", "between 1 and 1000000"),
    ("TIMERS_CONSOLE_SECRET_FILE", "/no/such/file", "a file that can be read"),
    ("TIMERS_SECURITY_PROTOCOL", "sasl_ssl", "one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
    ("TIMERS_TRANSACTION_VERSION", "2", "one of 1, auto"),
    ("TIMERS_SASL_MECHANISM", "GSSAPI", "one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"),
    ("TIMERS_SASL_TOKEN_URL", "login.example.com", "the URL of a token endpoint (try https://login.example.com/oauth2"),
    ("TIMERS_SASL_TOKEN_URL", "http://login.example.com/token", "a URL with https"),
    ("TIMERS_SASL_TOKEN_URL", "https://login.example.com/a b", "the URL of a token endpoint"),
    ("TIMERS_SASL_TOKEN_URL", "file:///etc/token", "the URL of a token endpoint"),
    ("TIMERS_SASL_TOKEN_SCOPE", "a\nb", "text in one line"),
    ("TIMERS_SASL_TOKEN_CA_FILE", "/no/such/file", "a file that can be read"),
    ("TIMERS_SASL_TOKEN_FILE", "/no/such/file", "a file that can be read"),
    ("TIMERS_SASL_TOKEN_MODULE", "company.login", "module:function (try company.kafka_login:token)"),
    ("TIMERS_SASL_TOKEN_MODULE", "company/login.py:token", "module:function"),
    ("TIMERS_SASL_EXTENSIONS", "logicalCluster", "a list of SASL extensions"),
    ("TIMERS_SASL_EXTENSIONS", "auth=x", "a list of SASL extensions"),
    ("TIMERS_SASL_EXTENSIONS", "a=\x01", "a list of SASL extensions"),
    ("TIMERS_SASL_USERNAME", "a\nb", "text in one line"),
    ("TIMERS_SASL_PASSWORD_FILE", "/no/such/file", "a file that can be read (No such file or directory)"),
    ("TIMERS_SASL_PASSWORD_FILE", "/", "a file that can be read (Is a directory)"),
    ("TIMERS_SSL_CA_FILE", "/no/such/file", "a file that can be read"),
    ("TIMERS_SSL_CERT_FILE", "/no/such/file", "a file that can be read"),
    ("TIMERS_SSL_KEY_FILE", "/no/such/file", "a file that can be read"),
    ("TIMERS_SSL_KEY_PASSWORD_FILE", "/no/such/file", "a file that can be read"),
    ("TIMERS_SSL_CHECK_HOSTNAME", "no", "0 or 1"),
    ("TIMERS_PARTITIONS", "0", "between 1 and 10000"),
    ("TIMERS_PARTITIONS", "4.0", "a whole number"),
    ("TIMERS_PARTITIONS", "+4", "a whole number"),
    ("TIMERS_PARTITIONS", " 4", "a whole number"),
    ("TIMERS_PARTITIONS", "４", "a whole number"),
    ("TIMERS_PARTITIONS", "1_0", "a whole number"),
    ("TIMERS_PARTITIONS", "9" * 5000, "a whole number"),
    ("TIMERS_REPLICATION", "-1", "between 0 and 100"),
    ("TIMERS_REQUEST_TOPIC", "a/b", "legal topic name"),
    ("TIMERS_OSCILLATOR_TOPIC", "..", "legal topic name"),
    ("TIMERS_DEAD_LETTER_TOPIC", "x" * 250, "legal topic name"),
    ("TIMERS_ID_TOPIC", "by id", "legal topic name"),
    ("TIMERS_COUNTDOWN_TOPIC", "count down", "legal topic name"),
    ("TIMERS_VERDICT_TOPIC", "a/b", "legal topic name"),
    ("TIMERS_VERDICT_RETENTION_S", "1d", "a whole number"),
    ("TIMERS_HOT_HORIZON_S", "1d", "a whole number"),
    ("TIMERS_COLD_TOPIC", "a/b", "legal topic name"),
    ("TIMERS_SESSION_TIMEOUT_S", "5", "between 6 and 1800"),
    ("TIMERS_SESSION_TIMEOUT_S", "10s", "a whole number"),
    ("TIMERS_SCHEDULE_TOPICS", "schedules,", "'' is not one"),
    ("TIMERS_SCHEDULE_OVERDUE", "drop", "one of fire, reject"),
    ("TIMERS_MARKER_TOPIC", "a/b", "legal topic name"),
    ("TIMERS_MESSAGE_TOPIC", "a/b", "legal topic name"),
    ("TIMERS_CALLBACK_ALLOW", "orders-?", "'orders-?' is not one"),
    ("TIMERS_CALLBACK_ALLOW", "a,,b", "'' is not one"),
    ("TIMERS_CALLBACK_DENY", "a b", "a list of topic names"),
    ("TIMERS_MAX_DEPTH", "0", "between 1 and 1000"),
    ("TIMERS_CREATE_TARGET_TOPICS", "yes", "0 or 1"),
    ("TIMERS_MAX_REQUEST_BYTES", "1023", "between 1024"),
    ("TIMERS_CHUNK_TIMERS", "99", "between 100"),
    ("TIMERS_CHUNK_BYTES", "1e6", "a whole number"),
    ("TIMERS_STORE_MEMORY_MB", "15", "between 16"),
    ("TIMERS_CATCH_UP_PER_S", "-1", "between 0"),
    ("TIMERS_LOG_KEEP_S", "7d", "a whole number of seconds, or never"),
    ("TIMERS_LOG_KEEP_S", "-1", "a whole number of seconds, or never"),
    ("TIMERS_TRIM_TOPICS", "a,", "'' is not one"),
    ("TIMERS_DATA_DIR", '"/var/lib/timers"', "a path without quotes around it"),
    ("TIMERS_DATA_DIR", "'data'", "a path without quotes around it"),
    ("TIMERS_DATA_DIR", "/var/lib/timers\r", "a path without quotes around it, and without line ends"),
    ("TIMERS_SSL_CA_FILE", '"ca.pem"', "a path without quotes around it"),
    ("TIMERS_TRIM_PAST_GROUPS", "a,", "'' is not one"),
    ("TIMERS_SNAPSHOT_FACTOR", "101", "between 0 and 100"),
    ("TIMERS_SNAPSHOT_RECORDS", "9", "between 10"),
    ("TIMERS_SNAPSHOT_MB_PER_S", "0", "between 1"),
    ("TIMERS_RETRY_ATTEMPTS", "0", "between 1 and 1000"),
    ("TIMERS_ACCEPT_LOSS", "timer-request 0", "topic/partition"),
    ("TIMERS_MAX_CLOCK_LEAP_S", "9", "between 10"),
    ("TIMERS_ACCEPT_TIME", "1", "an instant"),
    ("TIMERS_ACCEPT_TIME", "2030-01-31T12:00:00", "with its offset from UTC"),
    ("TIMERS_CANARY_INTERVAL_S", "-1", "between 0 and 3600"),
    ("TIMERS_LOG_FORMAT", "xml", "console, json"),
    ("TIMERS_CLOCK_OFFSET", "soon", "a number of seconds"),
    ("TIMERS_CLOCK_OFFSET", "nan", "a number of seconds"),
    ("TIMERS_CLOCK_OFFSET", "inf", "a number of seconds"),
]


def test_an_instant_has_an_offset_from_utc() -> None:
    at_noon = 1_896_091_200
    assert Settings.load(BROKERS | {"TIMERS_ACCEPT_TIME": "2030-01-31T12:00:00Z"}).accept_time_s == at_noon
    assert Settings.load(BROKERS | {"TIMERS_ACCEPT_TIME": "2030-01-31T13:59:59.1+02:00"}).accept_time_s == at_noon


SECRETS = ["TIMERS_SASL_PASSWORD", "TIMERS_SSL_KEY_PASSWORD", "TIMERS_QUERY_SECRET"]


@pytest.mark.parametrize(("env", "value", "expected"), WRONG)
def test_a_wrong_value_is_named(env: str, value: str, expected: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(expected)) as error:
        Settings.load(BROKERS | {env: value})
    assert str(error.value).startswith(f"{env}={value!r} is not ")
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2


@pytest.mark.parametrize("env", SECRETS)
def test_a_wrong_secret_is_named_and_not_shown(env: str) -> None:
    for ending in ("\n", "\udcff"):  # the second one is how Python reads a byte that is not UTF-8
        with pytest.raises(SettingsError) as error:
            Settings.load(BROKERS | {env: f"hunter2{ending}" * 5})
        assert str(error.value).startswith(f"{env}='***' is not a password in one line")
        assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("value", ["get-token --secret 'hunter2", "get-token hunter2\nmore", " "])
def test_a_wrong_command_line_is_not_shown(value: str) -> None:
    with pytest.raises(SettingsError, match=r"^TIMERS_SASL_TOKEN_COMMAND='\*\*\*' is not a command line") as error:
        Settings.load(BROKERS | {"TIMERS_SASL_TOKEN_COMMAND": value})
    assert "hunter2" not in str(error.value)


def test_a_password_in_the_url_of_a_token_endpoint_is_not_shown() -> None:
    with pytest.raises(SettingsError, match=r"^TIMERS_SASL_TOKEN_URL='\*\*\*' is not the URL") as error:
        Settings.load(BROKERS | {"TIMERS_SASL_TOKEN_URL": "https://ada:hunter2@login.example.com/"})
    assert "hunter2" not in str(error.value)


def test_credentials_in_an_address_are_refused_and_not_shown() -> None:
    with pytest.raises(SettingsError, match=r"TIMERS_BROKERS holds an '@'.* TIMERS_SASL_PASSWORD") as error:
        Settings.load({"TIMERS_BROKERS": "ada:hunter2@broker:9092"})
    assert "hunter2" not in str(error.value)


def test_each_setting_is_tested_with_a_wrong_value() -> None:
    tested = {env for env, _, _ in WRONG} | {*SECRETS, "TIMERS_SASL_TOKEN_COMMAND"}
    assert tested == {setting.env for setting in ALL}


@pytest.mark.parametrize("setting", ALL, ids=lambda setting: setting.env)
def test_each_setting_has_a_description(setting: Setting) -> None:
    assert re.fullmatch(r"TIMERS_[A-Z]+(_[A-Z]+)*", setting.env)
    assert len(setting.why) > 20
    assert setting.why.endswith(".")


def test_no_two_settings_share_a_variable() -> None:
    assert len({setting.env for setting in ALL}) == len(ALL)


@pytest.mark.parametrize(
    ("environ", "attribute", "value"),
    [
        ({"TIMERS_BROKERS": "a:1, b.example:65535"}, "brokers", "a:1,b.example:65535"),
        ({"TIMERS_BROKERS": "[::1]:9092"}, "brokers", "[::1]:9092"),
        ({"TIMERS_APP_ID": "-._x9"}, "app_id", "-._x9"),
        ({"TIMERS_DATA_DIR": "/nowhere/yet"}, "data_dir", Path("/nowhere/yet")),
        ({"TIMERS_PARTITIONS": "007"}, "partitions", 7),
        ({"TIMERS_CREATE_TARGET_TOPICS": "1"}, "create_target_topics", True),
        ({"TIMERS_CLOCK_OFFSET": "-3600.5"}, "clock_offset_s", -3600.5),
        ({"TIMERS_PARTITIONS": ""}, "partitions", 4),
        ({}, "id_topic", ID_REQUEST),
        ({"TIMERS_REQUEST_TOPIC": "shop"}, "id_topic", "shop-by-id"),
        ({"TIMERS_REQUEST_TOPIC": "shop", "TIMERS_ID_TOPIC": ""}, "id_topic", ""),
        ({"TIMERS_REQUEST_TOPIC": "shop", "TIMERS_ID_TOPIC": "ids"}, "id_topic", "ids"),
    ],
)
def test_a_valid_value_is_read(environ: dict[str, str], attribute: str, value: object) -> None:
    assert getattr(Settings.load(BROKERS | environ), attribute) == value


@pytest.mark.parametrize(
    "environ",
    [
        {"TIMERS_REQUEST_TOPIC": "x", "TIMERS_OSCILLATOR_TOPIC": "x"},
        {"TIMERS_DEAD_LETTER_TOPIC": "timer-request"},
        {"TIMERS_REQUEST_TOPIC": "timers-progress"},
        {"TIMERS_APP_ID": "mine", "TIMERS_DEAD_LETTER_TOPIC": "mine-timer-retry"},
    ],
)
def test_two_settings_may_not_name_one_topic(environ: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="give each its own name"):
        Settings.load(BROKERS | environ)


def test_of_the_engines_topics_only_the_request_topic_may_be_allowed() -> None:
    assert Settings.load(BROKERS | {"TIMERS_CALLBACK_ALLOW": "*, timer-request"}).callback_allow == (
        "*",
        "timer-request",
    )
    with pytest.raises(SettingsError, match="names 'timers-progress', which is the engine's own"):
        Settings.load(BROKERS | {"TIMERS_CALLBACK_ALLOW": "orders,timers-progress"})


def test_names_of_internal_topics_contain_the_app_id() -> None:
    settings = Settings.load(BROKERS | {"TIMERS_APP_ID": "mine"})
    assert (settings.progress_topic, settings.retry_topic) == ("mine-progress", "mine-timer-retry")


def test_the_default_worker_id_contains_the_web_port() -> None:
    unset = Settings.load(BROKERS | {"TIMERS_WEB_PORT": "7000"})
    assert unset.worker_id == default_worker_id(7000)
    assert unset.with_web_port(7001).worker_id == default_worker_id(7001) != unset.worker_id
    given = Settings.load(BROKERS | {"TIMERS_WORKER_ID": "ada"})
    assert (given.with_web_port(7001).worker_id, given.with_web_port(7001).web_port) == ("ada", 7001)


def test_a_request_topic_without_room_for_the_topic_of_ids_is_refused() -> None:
    long = {"TIMERS_REQUEST_TOPIC": "x" * 244}
    with pytest.raises(SettingsError, match=r"^TIMERS_ID_TOPIC='x{244}-by-id' is not a legal topic name"):
        Settings.load(BROKERS | long)
    assert Settings.load(BROKERS | long | {"TIMERS_ID_TOPIC": ""}).id_topic == ""


def test_describe_names_the_source_of_each_value() -> None:
    environ = BROKERS | {"TIMERS_PARTITIONS": "9", "TIMERS_ID_TOPIC": "", "TIMERS_COLD_TOPIC": ""}
    shown = {setting.env: (text, given) for setting, text, given in describe(Settings.load(environ), environ)}
    assert shown["TIMERS_PARTITIONS"] == ("9", True)
    assert shown["TIMERS_REPLICATION"] == ("0", False)
    assert (shown["TIMERS_ID_TOPIC"], shown["TIMERS_COLD_TOPIC"]) == (("", True), ("timer-cold", False))
    assert shown["TIMERS_CREATE_TARGET_TOPICS"] == ("0", False)
    assert len(shown) == len(ALL)


@pytest.mark.parametrize(
    ("given", "own_url", "query_url"),
    [
        ({}, "http://127.0.0.1:6066", "http://127.0.0.1:6066"),
        ({"TIMERS_WEB_BIND": "::1", "TIMERS_WEB_PORT": "7"}, "http://[::1]:7", "http://[::1]:7"),
        ({"TIMERS_WEB_BIND": "[::1]", "TIMERS_WEB_PORT": "7"}, "http://[::1]:7", "http://[::1]:7"),
        ({"TIMERS_WEB_BIND": "0.0.0.0"}, f"http://{socket.gethostname()}:6066", "http://127.0.0.1:6066"),
        ({"TIMERS_WEB_BIND": "::"}, f"http://{socket.gethostname()}:6066", "http://[::1]:6066"),
        ({"TIMERS_ADVERTISED_URL": "http://[fd00::1]:8/"}, "http://[fd00::1]:8", "http://127.0.0.1:6066"),
        ({"TIMERS_WORKER_URL": "https://timers.example"}, "http://127.0.0.1:6066", "https://timers.example"),
    ],
)
def test_the_urls_of_a_worker(given: dict[str, str], own_url: str, query_url: str) -> None:
    settings = Settings.load({**BROKERS, **given})
    assert (settings.canonical_url, settings.query_url) == (own_url, query_url)


def test_a_changed_web_port_is_in_the_url() -> None:
    assert Settings.load(BROKERS).with_web_port(7007).canonical_url == "http://127.0.0.1:7007"


def test_a_misspelt_name_is_warned_of_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    injected = {
        "TIMERS_WORKER_PORT": "tcp://10.0.0.1:6066",
        "TIMERS_WORKER_PORT_6066_TCP": "tcp://10.0.0.1:6066",
        "TIMERS_WORKER_PORT_6066_TCP_ADDR": "10.0.0.1",
        "TIMERS_WORKER_SERVICE_HOST": "10.0.0.1",
        "TIMERS_WORKER_SERVICE_PORT_WEB": "6066",
    }
    for name, value in {**injected, **BROKERS, "TIMERS_BROKER": "b:1", "TIMERS_ZQX": "1"}.items():
        monkeypatch.setenv(name, value)
    Settings.load()
    Settings.load()
    assert [record.getMessage() for record in caplog.records] == [
        "TIMERS_BROKER is not a setting and has no effect: did you mean TIMERS_BROKERS?",
        "TIMERS_ZQX is not a setting and has no effect: `timers settings` lists all settings",
    ]


def test_topics_of_users_are_trimmed_only_by_name() -> None:
    topics = {"TIMERS_COUNTDOWN_TOPIC": "countdowns", "TIMERS_SCHEDULE_TOPICS": "schedules"}
    own = {"timer-request", "timer-request-by-id", "timers-timer-retry"}
    assert Settings.load(topics).trimmed_topics == own
    assert Settings.load({**topics, "TIMERS_TRIM_TOPICS": "countdowns"}).trimmed_topics == {*own, "countdowns"}
    assert Settings.load({**topics, "TIMERS_LOG_KEEP_S": "never"}).trimmed_topics == frozenset()
    with pytest.raises(SettingsError, match="'schedules' is a compacted topic, which is never trimmed"):
        Settings.load({**topics, "TIMERS_TRIM_TOPICS": "schedules"})
    with pytest.raises(SettingsError, match="'orders' is none of them"):
        Settings.load({**topics, "TIMERS_TRIM_TOPICS": "orders"})


def test_the_time_for_which_requests_are_kept_is_shown_as_it_was_given() -> None:
    for given in ("0", "60", "never"):
        settings = Settings.load({"TIMERS_LOG_KEEP_S": given})
        assert (given, True) in [
            (text, is_given) for _, text, is_given in describe(settings, {"TIMERS_LOG_KEEP_S": given})
        ]
