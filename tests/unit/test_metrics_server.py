"""The port of metrics and health of queues and of jobs on Spark: wrong requests neither fill its log nor stop it."""

import contextlib
import logging
import socket
import struct
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from timers.errors import SettingsError
from timers.process.http.metrics_server import MetricsServer
from timers.process.metrics import encoder

HOST = b"Host: 127.0.0.1\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[MetricsServer]:
    server = MetricsServer(CollectorRegistry(), list, list, 0, "127.0.0.1")
    yield server
    server.close()


def answer(server: MetricsServer, sent: bytes, *, reset: bool = False) -> bytes:
    """What the server answers to these bytes, until it closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as caller:
        caller.sendall(sent)
        if reset:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return b""
        with contextlib.suppress(OSError):
            caller.shutdown(socket.SHUT_WR)
        found = b""
        with contextlib.suppress(ConnectionError):  # it need not read all that was sent
            while more := caller.recv(65_536):
                found += more
        return found


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        bytes(range(256)) * 100,
        b"GET /metrics",
        b"GET /metrics HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"X: a\r\n" * 1000 + b"\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: \xff\x1b[2J\r\nno colon\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + HOST + b"Accept: application/openmetrics-text;version=x\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + HOST + b"Accept: text/plain;version=\xff;escaping=\xff\r\n\r\n",
    ],
)
def test_a_wrong_request_writes_nothing_to_the_log(
    sent: bytes, server: MetricsServer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(3):
        answer(server, sent)
        answer(server, sent, reset=True)
    assert answer(server, b"GET /health/live HTTP/1.1\r\n" + HOST + b"\r\n").startswith(b"HTTP/1.0 200 ")
    assert caplog.records == [] and capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "accept",
    ["application/openmetrics-text;version=x", "text/plain;version=1.x", "application/openmetrics-text;version="],
)
def test_metrics_are_shown_whatever_version_is_asked_for(accept: str, server: MetricsServer) -> None:
    encode, content_type = encoder(accept)
    assert isinstance(encode(CollectorRegistry()), bytes) and "version=" in content_type
    request = b"GET /metrics HTTP/1.1\r\n" + HOST + b"Accept: " + accept.encode() + b"\r\n\r\n"
    assert answer(server, request).startswith(b"HTTP/1.0 200 ")


def test_a_page_that_fails_is_said_in_the_log_and_answered(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> list[str]:
        raise ValueError("the reason")

    server = MetricsServer(CollectorRegistry(), fails, list, 0, "127.0.0.1")
    try:
        assert answer(server, b"GET /health/live HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.0 500 ")
        assert answer(server, b"GET /health/ready HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.0 200 ")
    finally:
        server.close()
    (line,) = caplog.records
    assert line.getMessage() == "the page /health/live could not be made" and line.exc_info is not None


def test_without_a_file_for_a_caller_another_connection_is_closed(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept, failures = socket.socket.accept, iter(range(3))

    def without_files(listener: socket.socket) -> object:
        if next(failures, None) is not None:
            raise OSError(24, "Too many open files")
        return accept(listener)

    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as half:
        half.sendall(b"GET /health")
        answer(server, b"GET /health/live HTTP/1.1\r\n\r\n")  # the first connection was accepted before this one
        monkeypatch.setattr(socket.socket, "accept", without_files)
        assert answer(server, b"GET /health/live HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.0 200 ")
        assert half.recv(100) == b""
    assert len(caplog.records) == 1 and "connections closed: 1" in caplog.text


@pytest.mark.parametrize("path", [b"/health/live", b"/health/ready", b"/nowhere"])
def test_head_is_get_without_a_body(path: bytes, server: MetricsServer) -> None:
    got, head = (answer(server, method + b" " + path + b" HTTP/1.0\r\n\r\n") for method in (b"GET", b"HEAD"))
    lines, _, body = got.partition(b"\r\n\r\n")
    assert body
    assert [each for each in head.split(b"\r\n") if not each.startswith(b"Date")] == [
        each for each in (lines + b"\r\n\r\n").split(b"\r\n") if not each.startswith(b"Date")
    ]


def has_ipv6() -> bool:
    """Whether this machine has the address ::1."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_it_listens_on_an_ipv6_address() -> None:
    server = MetricsServer(CollectorRegistry(), list, list, 0, "[::1]")
    try:
        with socket.create_connection(("::1", server.port), timeout=30) as caller:
            caller.sendall(b"HEAD /health/live HTTP/1.0\r\n\r\n")
            assert caller.recv(100).startswith(b"HTTP/1.0 200 ")
        with pytest.raises(SettingsError, match=rf"\[::1\]:{server.port} cannot be listened on"):
            MetricsServer(CollectorRegistry(), list, list, server.port, "::1")
    finally:
        server.close()
