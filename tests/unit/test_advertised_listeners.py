"""Brokers that answer at their bootstrap address, but advertise one that clients cannot reach: each error names it."""

import asyncio
import contextlib
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from timers.client import AsyncTimersClient, TimerRequest, TimersClient
from timers.errors import TimersError
from timers.kafka import connection
from timers.process.config.settings import Settings
from timers.queue import Queue

_PRODUCE, _FETCH, _LIST_OFFSETS, _METADATA, _OFFSET_FETCH, _FIND_COORDINATOR = 0, 1, 2, 3, 9, 10
_API_VERSIONS, _CREATE_TOPICS, _INIT_PRODUCER_ID, _DESCRIBE_CONFIGS, _DESCRIBE_CLUSTER = 18, 19, 22, 32, 60
_VERSIONS = {
    **dict.fromkeys((_PRODUCE, _FETCH), 4),
    **dict.fromkeys((_LIST_OFFSETS, _OFFSET_FETCH, _FIND_COORDINATOR, _CREATE_TOPICS, _DESCRIBE_CONFIGS), 1),
    _API_VERSIONS: 3,
    _METADATA: 4,
    _INIT_PRODUCER_ID: 0,
    _DESCRIBE_CLUSTER: 0,
}
"""API -> its highest version. Only the answers of two of them are written; all others wait for the broker."""


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _api_versions() -> bytes:
    """Version 0 of the answer, which clients read also if they asked with a later version."""
    rows = b"".join(struct.pack(">hhh", api, 0, highest) for api, highest in _VERSIONS.items())
    return struct.pack(">hi", 35, len(_VERSIONS)) + rows


def _topics_of(request: bytes) -> list[bytes]:
    """The topics that a metadata request asks for."""
    (length,) = struct.unpack_from(">h", request, 8)
    (count,) = struct.unpack_from(">i", request, place := 10 + max(0, length))
    names, place = [], place + 4
    for _ in range(count):
        (length,) = struct.unpack_from(">h", request, place)
        names.append(request[place : (place := place + 2 + length)])
    return names


def _metadata(host: str, port: int, names: list[bytes]) -> bytes:
    broker = struct.pack(">ii", 1, 1) + _text(host) + struct.pack(">i", port) + _text("")
    partition = struct.pack(">hii", 0, 0, 1) + struct.pack(">ii", 1, 1) * 2
    topic = struct.pack(">?i", False, 1) + partition
    topics = struct.pack(">i", len(names)) + b"".join(struct.pack(">h", 0) + name + topic for name in names)
    return struct.pack(">i", 0) + broker + _text("cluster") + struct.pack(">i", 1) + topics


@contextlib.contextmanager
def bootstrap_server(host: str, port: int) -> Iterator[str]:
    """The address of a server whose metadata name one broker, at ``host:port``, as the leader of each topic."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError, struct.error):
                while True:
                    (size,) = struct.unpack(">i", self._read(4))
                    request = self._read(size)
                    api, version, correlation_id = struct.unpack_from(">hhi", request)
                    if api == _API_VERSIONS:
                        body = _api_versions() if version else struct.pack(">h", 0) + _api_versions()[2:]
                    elif api == _METADATA:
                        body = _metadata(host, port, _topics_of(request))
                    else:
                        continue
                    self.request.sendall(struct.pack(">ii", len(body) + 4, correlation_id) + body)

        def _read(self, size: int) -> bytes:
            data = b""
            while len(data) < size:
                more = self.request.recv(size - len(data))
                if not more:
                    raise OSError("closed")
                data += more
            return data

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=[0.02], daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


TOPIC = "timer-request"


def schedule(brokers: str, limit_s: float) -> None:
    with TimersClient(brokers, timeout_s=2 * limit_s) as client:
        client.schedule("t", "k", b"v", delay=5)


def schedule_many(brokers: str, limit_s: float) -> None:
    with TimersClient(brokers, timeout_s=2 * limit_s) as client:
        client.schedule_many([TimerRequest("t", "k", b"v", delay=5)])


def schedule_with_id(brokers: str, limit_s: float) -> None:
    with TimersClient(brokers, timeout_s=2 * limit_s) as client:
        client.schedule("t", "k", b"v", delay=5, id="a")


def schedule_with_a_limit(brokers: str, limit_s: float) -> None:
    with TimersClient(brokers, timeout_s=3 * limit_s) as client:
        client.schedule("t", "k", b"v", delay=5, timeout_s=limit_s)


def schedule_in_a_task(brokers: str, limit_s: float) -> None:
    async def schedule() -> None:
        async with AsyncTimersClient(brokers, timeout_s=3 * limit_s) as client:
            await client.schedule("t", "k", b"v", delay=5, timeout_s=limit_s)

    asyncio.run(schedule())


def send_to_a_queue(brokers: str, limit_s: float) -> None:
    with Queue(TOPIC, brokers=brokers, timeout_s=2 * limit_s) as queue:
        queue.send(b"v")


CALLS = [schedule_with_a_limit, schedule_in_a_task, schedule, schedule_many, schedule_with_id, send_to_a_queue]


@pytest.mark.parametrize("host", ["127.0.0.1", "kafka.invalid"])
def test_each_error_names_the_address_that_cannot_be_reached(host: str) -> None:
    """Within a second, if a client has tried the address by then: on a busy machine it gets ten."""

    def failure(call: Callable[[str, float], object]) -> tuple[str, float]:
        for limit_s in (1, 10):
            with pytest.raises(TimersError) as error:
                call(brokers, limit_s)
            if named in str(error.value):
                break
        return str(error.value), limit_s

    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))  # nothing listens there, and nothing else can
        port = unheard.getsockname()[1]
        with bootstrap_server(host, port) as brokers, ThreadPoolExecutor(len(CALLS)) as threads:
            named = f"cannot reach the broker at {host}:{port}, which the brokers at {brokers} have named"
            failures = list(threads.map(failure, CALLS))
    assert all(f"acknowledged within {limit_s} s: " in failure for failure, limit_s in failures[:2])
    assert [said for said, _ in failures if named not in said or "advertised.listeners" not in said] == []


@pytest.mark.parametrize("more", ["", ", 30 identical error(s) suppressed"])
def test_a_report_that_stands_for_several_is_one_too(more: str) -> None:
    """librdkafka says the same at most once in 30 s, and then how often: a longer call sees only this."""
    reports = connection.ErrorReports(Settings.load({"TIMERS_BROKERS": "kafka:9092"}))
    text = f"b2.invalid:9092/2: Failed to resolve 'b2.invalid:9092': Name not known (after 3ms in state CONNECT{more})"
    reports(SimpleNamespace(code=lambda: KafkaError._RESOLVE, str=lambda: text))  # type: ignore[arg-type]
    assert "cannot reach the broker at b2.invalid:9092" in reports.causes()


def test_a_client_that_is_held_back_is_told_so_and_not_that_no_broker_runs() -> None:
    """As where many topics are made, with controller_mutation_rate: the brokers then read nothing from the client."""
    reports = connection.ErrorReports(Settings.load({"TIMERS_BROKERS": "kafka:9092"}))
    reports.callbacks["throttle_cb"](SimpleNamespace(throttle_time=40.0))
    failure = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    said = str(reports.user_error(failure, "topic 'orders' cannot be created"))
    assert said.startswith("topic 'orders' cannot be created: a quota of the brokers holds this client back")
    assert "consumer_byte_rate" in said, "a reader may be what is held back"


def test_an_old_report_is_not_the_cause_of_a_later_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(connection, "monotonic", lambda: now_s)
    reports = connection.ErrorReports(Settings.load({"TIMERS_BROKERS": "kafka:9092"}))
    text = "b2:9092/2: Connect to ipv4#10.0.0.2:9092 failed: Connection refused (after 0ms in state CONNECT)"
    error: Any = SimpleNamespace(code=lambda: KafkaError._TRANSPORT, str=lambda: text)
    reports(error)
    assert "cannot reach the broker at b2:9092" in reports.causes()
    now_s = 60.0  # it is back
    assert reports.causes().startswith("is it running, is TIMERS_BROKERS right")
