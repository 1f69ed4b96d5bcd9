"""What the HTTP server of the console does before a route is found."""

import asyncio
import hashlib
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession, web
from yarl import URL

from tests.harness.constants import Constants
from tests.harness.sim_console import SimCluster, answer_of, console
from timers.console import call
from timers.console.kafka_cluster import WorkerAnswer
from timers.console.web.server import Server
from timers.process.config.settings import Settings
from timers.process.logs import make_safe


@asynccontextmanager
async def serving(**environment: str) -> AsyncIterator[int]:
    """The port of a console that runs as the command runs it."""
    runner = Server(Settings.load({"TIMERS_BROKERS": "nowhere:1", **environment}), SimCluster()).runner()
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def status_of(port: int, *lines: bytes, body: bytes = b"") -> int:
    """The status of the answer to a request, which is sent as it is."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"\r\n".join((*lines, b"Connection: close", b"", body)))
    answer = await asyncio.wait_for(reader.readline(), 30)
    writer.close()
    return int(answer.split(b" ", 2)[1])


async def test_an_address_that_is_too_long_gets_an_answer_of_the_api() -> None:
    """The HTTP parser alone would refuse lines from 8,190 bytes on, as text."""
    async with serving() as port, ClientSession() as session:
        async with session.get(f"http://localhost:{port}/v1/timers?prefix={'a' * 20_000}") as response:
            assert (response.status, (await response.json())["code"]) == (414, "address-too-long")
        async with session.get(f"http://localhost:{port}/v1/timers?prefix={'a' * 70_000}") as response:
            assert (response.status, response.content_type) == (400, "text/plain"), "as docs/http-api.md says"
        async with session.get(f"http://localhost:{port}/v1/timers?cursor={'%41' * 2000}") as response:
            assert (response.status, (await response.json())["code"]) == (400, "cursor-invalid")


async def test_many_cookies_of_other_programs_are_no_error() -> None:
    """The HTTP parser alone would refuse them, and show a piece of them in its answer."""
    async with serving() as port:
        cookies = b"Cookie: " + b"; ".join(b"c%d=%s" % (index, b"x" * 4000) for index in range(12))
        assert await status_of(port, b"GET /v1/health/live HTTP/1.1", OWN, cookies) == 200


@pytest.mark.parametrize("path", ["/v1/timers", "/health/live", "/metrics", "/timers", "/v1/nowhere"])
async def test_head_is_get_without_a_body(path: str) -> None:
    async with serving() as port, ClientSession() as session:
        url = f"http://localhost:{port}{path}"
        async with session.get(url) as got, session.head(url) as head:
            assert (head.status, head.content_type) == (got.status, got.content_type)
            assert (await head.read(), len(await got.read()) > 0) == (b"", True)


async def test_a_stream_is_not_asked_for_with_head() -> None:
    """It would have no end."""
    async with (
        serving() as port,
        ClientSession() as session,
        session.head(f"http://localhost:{port}/v1/events?topic=t") as answer,
    ):
        assert answer.status == 405


OWN = b"Host: localhost"


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([b"GET /v1/timers HTTP/1.1", OWN, b"Authorization: Bearer \xff\xfe"], 401),
        ([b"GET /v1/timers HTTP/1.1", OWN, b"Authorization: Basic \xff\xfe"], 401),
        ([b"GET /v1/timers HTTP/1.1", OWN, b"Authorization: \xff\xfe"], 401),
        ([b"GET /v1/timers HTTP/1.1", OWN, b"Authorization: Bearer t", b"X-User: \xff"], 200),
        ([b"GET /v1/timers HTTP/1.1", OWN, b"Authorization: Bearer t", b"X-Forwarded-For: \xff"], 200),
        ([b"GET /v1/timers HTTP/1.1", OWN, b"Authorization: Bearer t", b"Accept: \xff"], 200),
        ([b"GET /v1/timers HTTP/1.1", b"Host: \xff\xfe", b"Authorization: Bearer t"], 421),
        ([b"GET /v1/timers HTTP/1.1", OWN, b"Sec-Fetch-Site: \xff", b"Authorization: Bearer t"], 403),
        ([b"GET /v1/timers?prefix=%FF HTTP/1.1", OWN, b"Authorization: Bearer t"], 400),
        ([b"GET /v1/timer?id=%FF HTTP/1.1", OWN, b"Authorization: Bearer t"], 400),
        ([b"DELETE /v1/timer?id=a%FF HTTP/1.1", OWN, b"Authorization: Bearer t"], 400),
        ([b"GET /v1/timers?%FF=1 HTTP/1.1", OWN, b"Authorization: Bearer t"], 400),
        ([b"GET /timer?id=%FF HTTP/1.1", OWN, b"Authorization: Bearer t", b"Accept: text/html"], 400),
        ([b"GET /v1/events?topic=t HTTP/1.1", OWN, b"Authorization: Bearer t", b"Last-Event-ID: \xff"], 400),
        ([b"POST /v1/timers HTTP/1.1", OWN, b"Authorization: Bearer t", b"Origin: \xff"], 403),
        ([b"POST /v1/timers HTTP/1.1", OWN, b"Authorization: Bearer t", b"Content-Type: \xff"], 415),
        ([b"POST /v1/timers HTTP/1.1", OWN, b"Authorization: Bearer t", b"Idempotency-Key: \xff"], 415),
        ([b"DELETE /v1/timer?id=x HTTP/1.1", OWN, b"Authorization: Bearer t", b"If-Match: \xff"], 400),
    ],
)
async def test_bytes_that_are_not_utf8_are_no_failure_of_the_console(
    lines: list[bytes], status: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    users = tmp_path / "users.toml"
    token = hashlib.sha256(b"t").hexdigest()
    users.write_text(f'[[user]]\nname = "ada"\nrole = "operator"\ntoken_sha256 = "{token}"\n')
    settings = {"TIMERS_CONSOLE_USERS_FILE": str(users), "TIMERS_CONSOLE_PROXIES": "10.0.0.0/8"}
    async with serving(**settings, TIMERS_CONSOLE_WRITE="1") as port:
        assert await status_of(port, *lines) == status
    assert [each.message for each in caplog.records if each.levelno >= logging.ERROR] == []


SECRET = b"secret-of-ada"


@pytest.mark.parametrize(
    "lines",
    [
        [b"GET /v1/timers HTTP/1.1", OWN, b"Authorization: Bearer " + SECRET + b"\x01"],
        [b"GET /v1/timers HTTP/1.1", OWN, b"Authorization : Bearer " + SECRET],
        [b"GET /v1/timers?token=" + SECRET + b"\xff HTTP/1.1", OWN],
        [b"GET /v1/timers HTTP/" + SECRET, OWN],
        [SECRET + b"\x1b[2J /v1/timers HTTP/1.1", OWN],
        [b"POST /v1/timers HTTP/1.1", OWN, b"Transfer-Encoding: chunked", b"", SECRET, b""],
        [b"POST /v1/timers HTTP/1.1", OWN, b"Content-Length: " + SECRET],
    ],
)
async def test_a_request_that_is_not_http_writes_one_line_without_its_content(
    lines: list[bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    handler = logging.StreamHandler()
    make_safe([handler])
    server = logging.getLogger("aiohttp.server")
    server.addHandler(handler)
    try:
        async with serving() as port:
            for _ in range(5):
                assert await status_of(port, *lines) == 400
    finally:
        server.removeHandler(handler)
    written = capfd.readouterr().err
    assert SECRET.decode() not in written
    assert len(written.splitlines()) <= 1
    assert written.removesuffix("\n").isprintable()


async def test_a_body_has_a_limit_of_time(constants: Constants) -> None:
    constants(call, BODY_S=0.05)
    async with serving(TIMERS_CONSOLE_WRITE="1") as port:
        assert await status_of(port, API, OWN, JSON, b"Content-Length: 100", body=b"{") == 400


JSON, PART = b"Content-Type: application/json", b"HX-Request: true"
FORM = b"Content-Type: application/x-www-form-urlencoded"
MULTIPART = b"Content-Type: multipart/form-data"
GZIP, ZSTD = b"Content-Encoding: gzip", b"Content-Encoding: zstd"
API, PAGE = b"POST /v1/timers HTTP/1.1", b"POST /timers/new HTTP/1.1"


@pytest.mark.parametrize(
    ("lines", "body", "status"),
    [
        ([API, OWN, JSON, GZIP], b"abcde", 400),
        ([API, OWN, JSON, ZSTD], b"abcde", 400),
        ([API, OWN, JSON + b"; charset=none"], b"{}", 422),
        ([API, OWN, JSON], b"[" * 100_000, 400),
        ([API, OWN, JSON], b'{"at": %s}' % (b"9" * 50_000), 400),
        ([PAGE, OWN, PART, FORM, GZIP], b"abcde", 400),
        ([PAGE, OWN, PART, FORM + b"; charset=none"], b"a=%ff", 400),
        ([PAGE, OWN, PART, FORM + b"; charset=utf-16"], b"a=b", 422),
        ([PAGE, OWN, PART, FORM], b"a=\xff", 400),
        ([PAGE, OWN, PART, FORM], b"a=b&" * 1000, 400),
        ([PAGE, OWN, PART, MULTIPART], b"a=b", 400),
        ([PAGE, OWN, PART, MULTIPART + b"; boundary=x"], b"--x\r\nno header\r\n\r\nb\r\n--x--", 400),
    ],
)
async def test_a_body_that_cannot_be_read_is_no_failure_of_the_console(
    lines: list[bytes], body: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    make_safe([caplog.handler])
    length = b"Content-Length: %d" % len(body)
    async with serving(TIMERS_CONSOLE_WRITE="1") as port:
        assert await status_of(port, *lines, length, body=body) == status
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\r\n".join((*lines, b"Content-Length: 1000", b"Expect: 100-continue", b"", b"a")))
        assert b" 100 " in await reader.readline()
        writer.transport.abort()  # the rest of the body does not come
        assert await status_of(port, b"GET /v1/health/live HTTP/1.1", OWN) == 200
    assert "Traceback" not in caplog.text and " failed" not in caplog.text


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "127.0.0.1.evil.example", "", "localhost.", "a b", "[::1"),
        *("127.0.0.1:99999", "127.0.0.1:a", "127.0.0.1:1:2", "evil@127.0.0.1", "127.0.0.1/evil", "127.0.0.1\\evil"),
    ],
)
async def test_another_host_is_refused(host: str) -> None:
    async with console(SimCluster()) as client:
        status, answer = await answer_of(client, "GET", "/v1/timers", headers={"Host": host})
        assert (status, answer["code"]) == (421, "misdirected")
        for own in ("localhost:8080", "127.0.0.1", "[::1]:80", "10.0.0.7"):
            assert (await answer_of(client, "GET", "/v1/timers", headers={"Host": own}))[0] == 200
        page = {"Host": host, "Accept": "text/html"}
        async with client.get("/timers/new", headers=page) as response:
            assert response.status == 421
        for path in ("/v1/health/live", "/v1/health/ready", "/metrics"):
            async with client.get(path, headers={"Host": host}) as response:
                assert response.status == 200, "a probe may ask by any name"


async def test_a_console_answers_to_its_url_and_to_further_names() -> None:
    names = {"TIMERS_CONSOLE_URL": "https://timers.example.com", "TIMERS_WEB_HOSTS": "build-7,timers.local"}
    async with console(SimCluster(), **names) as client:
        for own in ("timers.example.com", "build-7:6067", "Timers.Local"):
            assert (await answer_of(client, "GET", "/v1/timers", headers={"Host": own}))[0] == 200
        assert (await answer_of(client, "GET", "/v1/timers", headers={"Host": "build-8"}))[0] == 421


async def test_the_type_of_a_problem_is_an_address_that_the_console_serves() -> None:
    async with console(SimCluster(), TIMERS_CONSOLE_URL="http://127.0.0.1/ops/timers") as client:
        asked = await client.get("/ops/timers/v1/timer?id=none", headers={"Request-Id": "my-1"})
        problem = await asked.json()
        assert asked.headers["Request-Id"] == problem["request_id"] == "my-1"
        assert (problem["code"], problem["urn"]) == ("not-found", "urn:timers:problem:not-found")
        assert problem["type"] == "/ops/timers/v1/problem?code=not-found"
        served = await (await client.get(problem["type"])).json()
        assert served == {name: problem[name] for name in ("type", "title", "status", "code", "urn")}
        assert "no such path" in served["title"]
        assert (await client.get("/ops/timers/v1/problem?code=strange")).status == 404


@pytest.mark.parametrize("given", ["", "a b", "x" * 65, "\u00fc", "<b>"])
async def test_a_request_without_a_legal_id_gets_one(given: str) -> None:
    async with console(SimCluster()) as client:
        made = [(await client.get("/v1/timers", headers={"Request-Id": given})).headers["Request-Id"] for _ in range(2)]
        assert len(set(made)) == 2 and all(re.fullmatch("[0-9a-f]{16}", each) for each in made)


async def test_options_says_which_methods_a_path_has() -> None:
    async with console(SimCluster()) as client:
        asked = await client.options("/v1/timer")
        assert (asked.status, asked.headers["Allow"]) == (204, "DELETE, GET, HEAD, OPTIONS, PATCH, PUT")
        assert (await client.options("/v1/nowhere")).status == 404


async def test_a_page_of_a_list_links_to_the_next_one() -> None:
    cluster = SimCluster()
    cluster.answer = WorkerAnswer(200, {"timers": [], "missing": [], "next": "1896091200/t/0/7"})
    async with console(cluster) as client:
        first = await client.get("/v1/timers?limit=7&topic=orders")
        link, body = URL(str(first.links["next"]["url"])), await first.json()
        asked = {"limit": "7", "topic": "orders", "cursor": body["next"]}
        assert (link.path, dict(link.query)) == ("/v1/timers", asked)
        cluster.answer = WorkerAnswer(200, {"timers": [], "missing": [], "next": None})
        assert "Link" not in (await client.get(link.relative())).headers
