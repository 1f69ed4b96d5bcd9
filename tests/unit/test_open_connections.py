"""Half-sent requests keep no other caller out of a server: of the worker, the console, queues and jobs on Spark."""

import asyncio
import contextlib
import logging
import socket
import ssl
import urllib.request
from collections.abc import AsyncIterator, Callable

import pytest
import trustme
from aiohttp import web
from prometheus_client import CollectorRegistry

from tests.harness.clock import SimClock
from tests.harness.half_open import HALF, half_open, has_ended
from tests.harness.waiting import wait_until
from timers.cli.broker.embedded import free_port
from timers.process.http.metrics_server import MetricsServer
from timers.process.http.open_connections import HEAD_S, LOG_S, MAX_CONNECTIONS, OpenConnections, most_connections
from timers.process.http.web_site import LimitedSite, limited

WHOLE = b"GET /page HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
def closed() -> list[int]:
    return []


@pytest.fixture
def opening(clock: SimClock, closed: list[int]) -> Callable[[OpenConnections, int], None]:
    def opened(connections: OpenConnections, number: int) -> None:
        connections.opened(number, lambda: closed.append(number))

    return opened


Opening = Callable[[OpenConnections, int], None]


def test_one_too_many_closes_the_oldest_without_a_head(clock: SimClock, closed: list[int], opening: Opening) -> None:
    connections = OpenConnections("the server", 4, clock)
    for number in range(4):
        opening(connections, number)
    connections.answering(0)
    opening(connections, 4)
    assert closed == [1]
    connections.answered(0)  # it is idle now, and waited less long than the others
    for number in (5, 6, 7, 8):
        opening(connections, number)
    assert closed == [1, 2, 3, 4, 0]
    connections.lost(5)
    opening(connections, 9)
    assert closed == [1, 2, 3, 4, 0]


def test_if_all_are_being_answered_the_oldest_is_closed(clock: SimClock, closed: list[int], opening: Opening) -> None:
    connections = OpenConnections("the server", 2, clock)
    for number in range(2):
        opening(connections, number)
        connections.answering(number)
    opening(connections, 2)
    assert closed == [0]


def test_slow_requests_leave_half_of_the_connections_free(clock: SimClock, closed: list[int], opening: Opening) -> None:
    connections = OpenConnections("the server", 8, clock)
    for number in range(8):
        opening(connections, number)
        connections.answering(number)
    for number in range(8, 16):
        opening(connections, number)
    assert closed == [0, 1, 2, 3, 8, 9, 10, 11]


def test_a_head_has_a_time_limit_and_idleness_has_none(clock: SimClock, closed: list[int], opening: Opening) -> None:
    connections = OpenConnections("the server", 9, clock)
    for number in range(3):
        opening(connections, number)
    connections.answering(1)
    connections.answering(2)
    connections.answered(2)
    clock.now_s += HEAD_S + 1
    connections.received(0)  # a byte now and then does not help
    connections.close_late()
    assert closed == [0]
    connections.received(2)
    clock.now_s += HEAD_S + 1
    connections.received(2)
    connections.close_late()
    assert closed == [0, 2]


def test_the_log_has_one_line_a_minute(
    clock: SimClock, opening: Opening, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = OpenConnections("the server", 1, clock)
    for number in range(1000):
        opening(connections, number)
        clock.now_s += 0.01
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1 and lines[0].startswith("the server: connections closed: 1, because the head of a request")
    clock.now_s += LOG_S
    opening(connections, 1000)
    assert [record.getMessage().split(",")[0] for record in caplog.records][1:] == [
        "the server: connections closed: 999"
    ]


def test_the_number_of_connections_follows_from_the_limit_of_open_files() -> None:
    assert [most_connections(files) for files in (16, 1024, 2048, 65_536, 2**63, -1)] == [
        8,
        128,
        256,
        MAX_CONNECTIONS,
        MAX_CONNECTIONS,
        MAX_CONNECTIONS,
    ]


# ---- servers ---------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def serving(connections: OpenConnections, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server with the page ``/page``; its port."""

    async def page(request: web.Request) -> web.Response:
        return web.Response(text="a page")

    application = web.Application()
    application.router.add_get("/page", page)
    runner = web.AppRunner(limited(application, connections), access_log=None)
    await runner.setup()
    port = free_port()
    await LimitedSite(runner, "127.0.0.1", port, connections, tls).start()
    try:
        yield port
    finally:
        await runner.cleanup()


def ask(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/page", timeout=30) as answer:
        return str(answer.read().decode())


def flooded(port: int, count: int, sent: bytes = HALF) -> tuple[list[str], int]:
    """What ten callers get while half-sent requests come, and how many of these are still open afterwards."""
    answers = []
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(10):
            opened += stack.enter_context(half_open(port, count // 10, sent))
            answers.append(ask(port))
        wait_until(lambda: sum(not has_ended(each) for each in opened) <= 50, "the oldest are closed")
        return answers, sum(not has_ended(each) for each in opened)


@pytest.mark.parametrize("sent", [HALF, b"", WHOLE], ids=["half", "nothing", "whole-and-idle"])
async def test_a_caller_gets_an_answer_from_aiohttp_while_half_sent_requests_come(sent: bytes) -> None:
    async with serving(OpenConnections("the server", 50)) as port:
        answers, still_open = await asyncio.to_thread(flooded, port, 500, sent)
        assert answers == ["a page"] * 10
        assert 40 <= still_open <= 50


async def test_an_unfinished_head_is_closed_after_its_time_and_an_idle_connection_is_not(clock: SimClock) -> None:
    def read_page(connection: socket.socket) -> None:
        connection.settimeout(30)
        page = b""
        while not page.endswith(b"a page"):
            page += (more := connection.recv(10_000))
            assert more, "it is closed"

    def look(port: int) -> None:
        with half_open(port, 1) as (half,), half_open(port, 1, WHOLE) as (idle,):
            read_page(idle)
            clock.now_s += 1
            wait_until(lambda: has_ended(half), "its time is over")
            assert not has_ended(idle)
            idle.settimeout(30)
            idle.sendall(WHOLE)
            read_page(idle)
            idle.sendall(HALF)

            def is_over() -> bool:
                clock.now_s += 1
                return has_ended(idle)

            wait_until(is_over, "also a later head has its time")

    async with serving(OpenConnections("the server", 50, clock, head_s=0.2)) as port:
        await asyncio.to_thread(look, port)


@pytest.fixture(scope="module")
def tls() -> ssl.SSLContext:
    certificate = trustme.CA().issue_cert("127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


async def test_a_handshake_that_does_not_end_counts_too(tls: ssl.SSLContext) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def look(port: int) -> None:
        with half_open(port, 40, b"\x16\x03\x01") as opened:
            with urllib.request.urlopen(f"https://127.0.0.1:{port}/page", timeout=30, context=context) as answer:
                assert answer.read() == b"a page"
            wait_until(lambda: sum(not has_ended(each) for each in opened) <= 20, "the oldest are closed")

    async with serving(OpenConnections("the server", 20), tls) as port:
        await asyncio.to_thread(look, port)


def test_a_caller_gets_an_answer_from_the_port_of_metrics_while_half_sent_requests_come() -> None:
    server = MetricsServer(CollectorRegistry(), list, list, 0, "127.0.0.1")
    try:
        with half_open(server.port, 300) as opened:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health/live", timeout=30) as answer:
                assert answer.status == 200
            wait_until(lambda: sum(not has_ended(each) for each in opened) <= 64, "the oldest are closed")
    finally:
        server.close()


async def test_callers_that_cannot_be_accepted_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    loop = asyncio.get_running_loop()
    accept, failures = loop.sock_accept, iter(range(5))

    async def without_files(listener: socket.socket) -> tuple[socket.socket, object]:
        if next(failures, None) is not None:
            raise OSError(24, "Too many open files")
        return await accept(listener)

    loop.sock_accept = without_files  # type: ignore[assignment, method-assign]
    async with serving(OpenConnections("the server", 50)) as port:
        assert await asyncio.to_thread(ask, port) == "a page"
    assert caplog.records == []
