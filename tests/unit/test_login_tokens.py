"""Tokens for logins: where they come from, when they are renewed, and what is said when none comes."""

import asyncio
import gc
import logging
import pickle
import shlex
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.harness.constants import Constants
from tests.harness.oauth import CLIENT, SECRET, OAuthServer, claims_of, jwt, oauth_server
from tests.harness.secure import Certificates
from timers.client.config import Connection
from timers.errors import AccessError, UnreachableError
from timers.kafka import connection, login_tokens
from timers.kafka.login_tokens import RENEW_AT, Token, TokenSource, for_librdkafka, source_of
from timers.kafka.lost_brokers import LostBrokers
from timers.process.config.settings import Settings

OAUTH = {
    "TIMERS_BROKERS": "a:1",
    "TIMERS_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
    "TIMERS_SASL_MECHANISM": "OAUTHBEARER",
}
LIBRDKAFKA_WAITS_S = 10.0
"""For the first token of a client."""
LONG = "a-very-long-secret-of-forty-characters-xx"


@pytest.fixture(autouse=True)
def _no_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_tokens, "_sources", {})


@pytest.fixture(scope="module")
def started() -> Iterator[OAuthServer]:
    with oauth_server() as running:
        yield running


@pytest.fixture
def server(started: OAuthServer) -> OAuthServer:
    started.life_s, started.fails, started.answer = 60.0, False, None
    return started


def token_of(**changes: str) -> Token:
    """The token that these settings give."""
    return source_of(Settings.load(OAUTH | changes)).get()


def error_of(**changes: str) -> str:
    """The sentence when these settings give none."""
    with pytest.raises(AccessError) as error:
        token_of(**changes)
    assert "\n" not in str(error.value)
    return str(error.value)


def by_url(server: OAuthServer, **changes: str) -> dict[str, str]:
    return {
        "TIMERS_SASL_TOKEN_URL": f"{server.url}/token",
        "TIMERS_SASL_USERNAME": CLIENT,
        "TIMERS_SASL_PASSWORD": SECRET,
        **changes,
    }


def running(program: str) -> dict[str, str]:
    return {"TIMERS_SASL_TOKEN_COMMAND": shlex.join([sys.executable, "-S", "-c", program])}


def module(monkeypatch: pytest.MonkeyPatch, function: Callable[[], Any]) -> dict[str, str]:
    """The settings for a function of a module of the user."""
    monkeypatch.setattr(sys.modules[__name__], "of_the_user", function, raising=False)
    return {"TIMERS_SASL_TOKEN_MODULE": f"{__name__}:of_the_user"}


# ---- where tokens come from ------------------------------------------------------------------------------------------


def test_a_server_gives_a_token_for_client_credentials(server: OAuthServer) -> None:
    token = token_of(**by_url(server))
    assert token.text == server.given[-1] and token.subject == CLIENT
    assert 30 < token.left_s <= 60
    assert token.text not in repr(token)


def test_the_secret_is_read_again_from_its_file(server: OAuthServer, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("former-secret\n")
    settings = by_url(server, TIMERS_SASL_PASSWORD="", TIMERS_SASL_PASSWORD_FILE=str(path))
    source = source_of(Settings.load(OAUTH | settings))
    with pytest.raises(AccessError, match=r"invalid_client: not \*\*\*"):
        source.get()
    path.write_text(f"{SECRET}\n")
    source._again_at = 0.0
    assert source.get().text == server.given[-1]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((503, {}, b"try later"), "it answers 503"),
        ((302, {"Location": "http://127.0.0.1:1/"}, b""), "it answers 302 with a redirection, which is not followed"),
        ((400, {}, b'{"error": "invalid_scope"}'), "it answers 400 (invalid_scope): check TIMERS_SASL_USERNAME"),
        ((401, {}, b'{"error": ["' + b"x" * 100_000), "it answers 401"),
        ((400, {}, b"[" * 50_000), "it answers 400: check"),
        ((200, {}, b"[" * 50_000), "its answer is no JSON with access_token"),
        ((200, {}, b'{"access_token": ""}'), "what it gives is empty"),
        ((200, {}, b'{"access_token": 7}'), "its answer is no JSON with access_token"),
        ((200, {}, b'{"access_token": "a.b", "expires_in": "soon"}'), "its answer is no JSON with access_token"),
        ((200, {}, b'{"access_token": "a.b"}'), "gives a token without an end"),
        ((200, {}, b'{"access_token": "a.b", "expires_in": 0}'), "gives a token that ended at"),
        ((200, {}, b'{"access_token": "a.b", "expires_in": NaN}'), "gives a token that ended: "),
        ((200, {}, b'{"access_token": "a\\u0001b", "expires_in": 9}'), "or no token"),
        ((200, {}, b" " * 70_000), "its answer is longer than 65536 bytes"),
    ],
)
def test_an_answer_without_a_token_is_named(server: OAuthServer, answer: Any, said: str) -> None:
    server.answer = answer
    sentence = error_of(**by_url(server))
    assert sentence.startswith(f"TIMERS_SASL_TOKEN_URL='{server.url}/token' gives ")
    assert said in sentence and len(sentence) < 500


def test_a_server_that_is_not_there_is_named() -> None:
    settings = {
        "TIMERS_SASL_TOKEN_URL": "http://127.0.0.1:1/",
        "TIMERS_SASL_USERNAME": "a",
        "TIMERS_SASL_PASSWORD": "b",
    }
    assert "Connection refused): is it right, and does this machine reach it?" in error_of(**settings)


def test_a_slow_answer_is_given_up(server: OAuthServer, monkeypatch: pytest.MonkeyPatch, constants: Constants) -> None:
    constants(login_tokens, ANSWER_S=0.2)
    over = threading.Event()
    monkeypatch.setattr(server, "answer_to", lambda *_: over.wait(5) and (200, {}, b""))
    assert "gives no token within 0.2 s" in error_of(**by_url(server))
    over.set()


def test_a_secret_is_not_shown_if_the_server_repeats_it(server: OAuthServer) -> None:
    sentence = error_of(**by_url(server, TIMERS_SASL_PASSWORD="wrong-s3cret"))
    assert "invalid_client: not ***" in sentence
    assert "s3cret" not in sentence


def test_https_is_verified_by_the_authority_of_the_setting(tmp_path: Path) -> None:
    certificates = Certificates.make(tmp_path / "certificates")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificates.issue("127.0.0.1"))
    with oauth_server(context) as server:
        assert token_of(**by_url(server, TIMERS_SASL_TOKEN_CA_FILE=str(certificates.ca))).subject == CLIENT
        for other in ("", str(certificates.other_ca)):
            sentence = error_of(**by_url(server, TIMERS_SASL_TOKEN_CA_FILE=other))
            assert "does TIMERS_SASL_TOKEN_CA_FILE contain the authority that signed its certificate?" in sentence
        wrong = tmp_path / "wrong.pem"
        wrong.write_text("none")
        assert "is not a file of PEM certificates" in error_of(**by_url(server, TIMERS_SASL_TOKEN_CA_FILE=str(wrong)))


def test_a_file_is_read_again_before_its_token_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    first, second = (jwt(claims_of(name, life_s)) for name, life_s in (("ada", 60), ("ada2", 120)))
    path.write_text(f"{first}\n")
    source = source_of(Settings.load(OAUTH | {"TIMERS_SASL_TOKEN_FILE": str(path)}))
    assert source.get().text == first
    path.write_text(second)
    assert source.get().text == first, "it is good for three quarters of its life"
    now = time.monotonic
    monkeypatch.setattr(login_tokens, "monotonic", lambda: now() + 60 * RENEW_AT)
    assert source.get().text == second


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (jwt(claims_of("ada", -5)), "gives a token that ended at 20"),
        (jwt({"sub": "ada"}), "gives a token without an end: a JWT has the claim exp"),
        (jwt({"exp": "soon"}), "gives a token without an end"),
        (jwt({"exp": True}), "gives a token without an end"),
        ("a.W10.c", "gives a token without an end"),
        ("opaque", "gives a token without an end"),
        ("", "what it gives is empty"),
        ("two words", "no token"),
        ("é", "no token"),
        ("x" * 70_000, "longer than 65536 bytes"),
    ],
)
def test_a_file_without_a_token_is_named(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    sentence = error_of(TIMERS_SASL_TOKEN_FILE=str(path))
    assert sentence.startswith(f"TIMERS_SASL_TOKEN_FILE='{path}' gives ") and said in sentence


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("")
    source = source_of(Settings.load(OAUTH | {"TIMERS_SASL_TOKEN_FILE": str(path)}))
    path.unlink()
    with pytest.raises(AccessError, match=r"TIMERS_SASL_TOKEN_FILE='.*' cannot be read \(No such file or directory\)"):
        source.get()


@pytest.mark.parametrize("program", ["print({!r})", 'print("""{{"access_token": "{}", "expires_in": 60}}""")'])
def test_a_command_prints_a_token(program: str) -> None:
    text = jwt(claims_of("ada", 60))
    assert token_of(**running(program.format(text))).text == text


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import sys; sys.exit('no such role')", "it ends with exit code 1 (no such role): run it by hand"),
        (f"import sys; sys.exit('{LONG}')", "exit code 1 (***)"),
        ("import sys; sys.exit('\\x1b[31m')", "exit code 1 (\\x1b[31m)"),
        ("print(end='x' * 70_000)", "prints more than 65536 bytes"),
        ("print(1, 2)", "or no token"),
        ("while True: pass", "gives no token within 0.5 s"),
        ("import os, time; os.fork() or time.sleep(60)", "gives no token within 0.5 s"),
        ("import sys; sys.stderr.write('x' * 900_000); sys.exit(3)", "exit code 3 ("),
    ],
)
def test_a_command_without_a_token_is_named(program: str, said: str, constants: Constants) -> None:
    if "0.5 s" in said:
        constants(login_tokens, ANSWER_S=0.5)
    sentence = error_of(**running(program))
    assert sentence.startswith(f"TIMERS_SASL_TOKEN_COMMAND ('{sys.executable}') ") and said in sentence
    assert LONG not in sentence and program not in sentence


def test_what_a_command_leaves_behind_does_not_keep_the_next_token_from_coming(constants: Constants) -> None:
    """It has the files of the command, and a session of its own: it is not killed."""
    constants(login_tokens, ANSWER_S=0.5)
    left_behind = running("import os, time; os.fork() or (os.setsid(), time.sleep(15))")
    source = source_of(Settings.load(OAUTH | left_behind))
    with pytest.raises(AccessError, match=r"gives no token within 0\.5 s"):
        source.get()
    assert source._renewing is not None and source._renewing.done()


def test_a_command_that_cannot_be_run_is_named_without_its_arguments() -> None:
    sentence = error_of(TIMERS_SASL_TOKEN_COMMAND="/no/such/program --secret pa55")
    assert sentence == "TIMERS_SASL_TOKEN_COMMAND ('/no/such/program') cannot be run: No such file or directory"


def test_a_function_gives_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    text = jwt(claims_of("ada", 60))
    assert token_of(**module(monkeypatch, lambda: text)).text == text
    login_tokens._sources.clear()
    token = token_of(**module(monkeypatch, lambda: ("opaque", time.time() + 900)))
    assert (token.text, token.subject) == ("opaque", "") and 870 < token.left_s <= 900


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda: 1 / 0, "gives no token: ZeroDivisionError (division by zero)"),
        (lambda: exec(f"raise ValueError('{LONG}')"), "gives no token: ValueError (***)"),
        (lambda: None, "returns a value of type NoneType: return the text of a token, or a tuple"),
        (lambda: ("a", "b"), "returns a value of type tuple"),
        (lambda: ("a", float("nan")), "gives a token that ended"),
        (lambda: "a b", "or no token"),
    ],
)
def test_a_function_without_a_token_is_named(
    monkeypatch: pytest.MonkeyPatch, function: Callable[[], Any], said: str
) -> None:
    assert said in error_of(**module(monkeypatch, function))


def test_a_module_that_is_not_there_is_named() -> None:
    sentence = error_of(TIMERS_SASL_TOKEN_MODULE="no_such_module:token")
    assert sentence == (
        "TIMERS_SASL_TOKEN_MODULE=no_such_module:token gives no token: ModuleNotFoundError (No module named "
        "'no_such_module')"
    )


# ---- renewal ---------------------------------------------------------------------------------------------------------


class _Reading:
    """Gives tokens of 60 s, or fails. The clock is moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self.fails = False
        self.reads = 0
        monkeypatch.setattr(login_tokens, "monotonic", lambda: self.now_s)
        self.source = TokenSource("TIMERS_SASL_TOKEN_FILE", self.read)

    def read(self) -> Token:
        self.reads += 1
        if self.fails:
            raise AccessError("TIMERS_SASL_TOKEN_FILE gives no token: for a test")
        return Token(f"token-{self.reads}", self.now_s + 60, "ada")


def test_a_failed_renewal_is_tried_again_and_the_former_token_is_good_until_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reading = _Reading(monkeypatch)
    source = reading.source
    with caplog.at_level(logging.INFO, login_tokens.__name__):
        assert (source.get().text, source.left_s, source.trouble) == ("token-1", 60, None)
        reading.now_s += 45
        reading.fails = True
        assert source.get().text == "token-1" and reading.reads == 2
        assert source.get().text == "token-1" and reading.reads == 2, "it is not tried again at once"
        reading.now_s += 1
        assert source.get().text == "token-1" and reading.reads == 3
        assert source.trouble is None
        reading.now_s += 14
        for _ in range(2):
            with pytest.raises(AccessError, match="for a test"):
                source.get()
        assert reading.reads == 4
        assert source.trouble is not None and "for a test" in source.trouble
        reading.now_s += 5
        reading.fails = False
        assert source.get().text == "token-5"
    assert (source.failure, source.trouble, source.failures) == (None, None, 0)
    assert caplog.messages == [
        "the token for the brokers is not renewed, and ends in 15 s: TIMERS_SASL_TOKEN_FILE gives no token: for a test",
        "TIMERS_SASL_TOKEN_FILE gives tokens again",
    ]


def test_a_bug_in_a_source_shows_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    def read() -> Token:
        raise KeyError("s3cret")

    with pytest.raises(AccessError) as error:
        TokenSource("TIMERS_SASL_TOKEN_URL", read).get()
    assert str(error.value) == "TIMERS_SASL_TOKEN_URL: KeyError in this program"


def test_threads_and_loops_that_ask_at_one_time_share_a_renewal() -> None:
    begin, reads = threading.Event(), []

    def read() -> Token:
        begin.wait(5)
        reads.append(1)
        return Token("one", time.monotonic() + 60, "")

    source = TokenSource("TIMERS_SASL_TOKEN_FILE", read)
    got: list[str] = []
    asking = [threading.Thread(target=lambda: got.append(source.get().text)) for _ in range(8)]
    for each in asking:
        each.start()

    async def ask() -> tuple[Token, Token]:
        both = asyncio.gather(source.get_soon(), source.get_soon())
        await asyncio.sleep(0)
        begin.set()
        return await both

    assert [token.text for token in asyncio.run(ask())] == ["one", "one"]
    for each in asking:
        each.join()
    assert (got, reads) == (["one"] * 8, [1])


def test_librdkafka_gets_the_end_by_the_wall_clock_and_extensions(monkeypatch: pytest.MonkeyPatch) -> None:
    more = {"TIMERS_SASL_EXTENSIONS": "logicalCluster=lkc-1,identityPoolId=pool-2"}
    login = module(monkeypatch, lambda: ("opaque", time.time() + 900)) | more
    settings = pickle.loads(pickle.dumps(Settings.load(OAUTH | login)))
    text, ends_s, subject, extensions = for_librdkafka(settings, "")
    assert (text, subject, extensions) == ("opaque", "", {"logicalCluster": "lkc-1", "identityPoolId": "pool-2"})
    assert 870 < ends_s - time.time() <= 900


def test_librdkafka_gets_no_error_in_place_of_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings.load(OAUTH | module(monkeypatch, lambda: 1 / 0))
    text, ends_s, subject, extensions = for_librdkafka(settings, "")
    assert (text, subject, extensions) == ("none", "", {}) and 0 < ends_s - time.time() <= 5
    monkeypatch.setattr(source_of(settings), "failure", None)
    assert "ZeroDivisionError" in login_tokens.troubles(settings)[0], "as long as the client has none"


def test_no_garbage_is_collected_in_a_thread_of_librdkafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could free a client that is part of a cycle, and librdkafka would end the process."""
    seen: list[bool] = []

    def token() -> tuple[str, float]:
        seen.append(gc.isenabled())
        return "opaque", time.time() + 60

    assert gc.isenabled()
    assert for_librdkafka(Settings.load(OAUTH | module(monkeypatch, token)), "")[0] == "opaque"
    assert (seen, gc.isenabled()) == ([False], True)


def test_an_application_s_callback_that_fails_keeps_no_caller(caplog: pytest.LogCaptureFixture) -> None:
    """confluent-kafka would keep the caller of each constructor for 10 s, and raise an error of its own."""
    fails = True

    def oauth_cb(config: str) -> tuple[str, float]:
        if fails:
            raise ValueError("the token server restarts")
        return "token", time.time() + 60

    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "OAUTHBEARER", "oauth_cb": oauth_cb}
    kafka = Connection.resolve("127.0.0.1:1", None, login, 1.0, None)
    began = time.monotonic()
    kafka.producer(linger_ms=1)
    kafka.consumer(LostBrokers()).close()
    kafka.admin()
    assert time.monotonic() - began < LIBRDKAFKA_WAITS_S
    assert "oauth_cb of the application failed" in caplog.messages
    kafka.reports(KafkaError(KafkaError._AUTHENTICATION, "sasl_plaintext://a:1/1: no (after 1ms)"))
    refusal = str(kafka.reports.refusal)
    assert refusal == "oauth_cb of producer_config gives no token (ValueError, see the log): try again later"
    fails = False
    assert kafka.reports.token_of_application(oauth_cb, "")[0] == "token"
    assert kafka.reports.refusal is None
    kafka.producer(linger_ms=1)


def test_an_application_s_callback_that_fails_at_a_renewal_takes_no_token_away(monkeypatch: pytest.MonkeyPatch) -> None:
    began_s, answers = time.time(), [("token", time.time() + 60, "ada", {"a": "b"})]
    reports = Connection.resolve("127.0.0.1:1", None, None, 1.0, None).reports

    def ask() -> tuple[Any, ...]:
        return reports.token_of_application(lambda _: answers.pop(), "")

    assert ask()[0] == "token"
    token, end_s, *more = ask()
    assert (token, more) == ("token", ["ada", {"a": "b"}]) and reports.refusal is None
    assert began_s < end_s < began_s + 60, "librdkafka asks again soon"
    monkeypatch.setattr(connection, "Clock", lambda: SimpleNamespace(now_s=lambda: began_s + 61))
    assert ask()[0] == login_tokens.NO_TOKEN
    assert "gives no token (IndexError" in str(reports.refusal)


def test_a_callback_whose_answer_is_no_token_is_no_wrong_setting() -> None:
    """It may be one that waits for too long: the next call may have one."""
    kafka = Connection.resolve("127.0.0.1:1", None, None, 1.0, None)
    error = KafkaException(KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED, "OAuth token not set within 10 seconds"))

    def make() -> None:
        raise error

    with pytest.raises(UnreachableError, match="no Kafka client can be made now: OAuth token not set"):
        kafka._made(make)
