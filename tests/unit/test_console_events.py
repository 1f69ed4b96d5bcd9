"""Server-sent events: what is sent, the ids by which a stream goes on, and its end."""

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import ClientError, web
from confluent_kafka import KafkaError, KafkaException

from tests.harness.console_users import USERS, bearer
from tests.harness.constants import Constants
from tests.harness.sim_console import SimCluster, answer_of, console
from tests.harness.waiting import DEADLINE_S
from timers.console import event_pages, topics_follower
from timers.console.topics_follower import MAX_RECORDS, TopicsFollower
from timers.errors import TimersError
from timers.offline.fired import CallbackRecord


def record(offset: int, *, due: bool = True, partition: int = 0, value: bytes = b"secret") -> CallbackRecord:
    headers: list[tuple[str, bytes | None]] = [("timer-id", b"t/0/1"), ("timer-due", b"1000")] if due else []
    return CallbackRecord("orders", partition, offset, 1_000_050, b"k", value, headers)


async def events_of(response: Any) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream, as fields."""
    fields: dict[str, Any] = {}
    async for line in response.content:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = json.loads(value) if name == "data" else value
        elif fields:
            yield fields
            fields = {}


async def test_firings_are_sent_and_a_stream_goes_on_after_the_last_one() -> None:
    cluster = SimCluster()
    async with console(cluster) as client:
        async with client.get("/v1/events?topic=orders") as response:
            assert response.content_type == "text/event-stream"
            events = events_of(response)
            assert await anext(events) == {"retry": "1000", "id": "0,0", "event": "began", "data": {}}
            cluster.follower.queue.put_nowait(([record(5), record(6, due=False), record(2, partition=1)], 7))
            assert await anext(events) == {"event": "dropped", "data": {"count": 7}}
            first, second = await anext(events), await anext(events)
        assert (first["id"], second["id"]) == ("6,0", "7,3"), "another record on the topic is passed, and not shown"
        assert (first["event"], first["data"]["lag_ms"], first["data"]["key"]) == ("fired", 50, "k")
        assert "secret" not in json.dumps(first) and first["data"]["value_bytes"] == 6
        async with client.get("/v1/events?topic=orders", headers={"Last-Event-ID": "7,3"}) as response:
            assert (await anext(events_of(response)))["id"] == "7,3"
            assert cluster.follower.positions == [[7, 3]]
        for id in ("x", "1,", "1;;2", "-1", "9" * 7000):
            headers = {"Last-Event-ID": id}
            status, answer = await answer_of(client, "GET", "/v1/events?topic=orders", headers=headers)
            assert (status, answer["code"]) == (400, "cursor-invalid"), id
        for query in ("", "topic=a%20b", "topic=timer-request", "&".join(f"topic=t{n}" for n in range(11))):
            assert (await answer_of(client, "GET", f"/v1/events?{query}"))[0] in (400, 403), query


async def test_topics_that_cannot_be_read_are_not_said_to_be_missing() -> None:
    cluster = SimCluster()
    async with console(cluster) as client:
        assert (await answer_of(client, "GET", "/v1/fired?topic=orders"))[1]["code"] == "not-found"
        cluster.failure = TimersError("no broker answers")
        for path in ("fired", "events"):
            status, answer = await answer_of(client, "GET", f"/v1/{path}?topic=orders")
            assert (status, answer["code"]) == (503, "brokers-unreachable")


async def test_a_reader_may_want_only_some_firings_of_a_second() -> None:
    cluster = SimCluster()
    async with console(cluster) as client, client.get("/v1/events?topic=orders&per_s=2") as response:
        events = events_of(response)
        await anext(events)
        cluster.follower.queue.put_nowait(([record(offset) for offset in range(5)], 0))
        assert [(await anext(events))["id"] for _ in range(2)] == ["1,0", "2,0"]
        told = await anext(events)
        assert (told["id"], told["event"], told["data"]) == ("5,0", "skipped", {"count": 3, "worst_ms": 50})
        cluster.follower.queue.put_nowait(([record(5)], 0))
        assert (await anext(events))["event"] == "fired"


async def test_streams_of_a_user_are_limited_and_closed(constants: Constants) -> None:
    constants(event_pages, MAX_STREAMS_OF_A_USER=1, CHECK_S=1e9)  # a client that went is noticed without writing to it
    cluster = SimCluster()
    async with console(cluster) as client:
        async with client.get("/v1/events?topic=orders") as response:
            await anext(events_of(response))
            assert (await answer_of(client, "GET", "/v1/events?topic=orders"))[1]["code"] == "busy"
            first = cluster.follower
        response.close()
        while True:  # the server notices the end of the connection
            async with client.get("/v1/events?topic=orders") as response:
                if response.status == 200:
                    break
        assert first.closed


async def test_a_stream_ends_with_its_login(tmp_path: Path, constants: Constants) -> None:
    constants(event_pages, CHECK_S=0.05)
    path = tmp_path / "users.toml"
    path.write_text(USERS)
    async with console(SimCluster(), TIMERS_CONSOLE_USERS_FILE=str(path)) as client:
        assert (await answer_of(client, "GET", "/v1/events?topic=orders", headers=bearer("tenant")))[0] == 403
        async with client.get("/v1/events?topic=orders", headers=bearer("rob")) as response:
            events = events_of(response)
            await anext(events)
            path.write_text(USERS.replace('name = "rob"', 'name = "rob"\ntopics = ["other"]'))
            found = [event async for event in events]
        assert found[-1]["event"] == "ended" and "rights" in found[-1]["data"]["reason"]


async def test_a_long_batch_ends_with_its_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "users.toml"
    path.write_text(USERS)
    cluster = SimCluster()
    async with console(cluster, TIMERS_CONSOLE_USERS_FILE=str(path)) as client:
        async with client.get("/v1/events?topic=orders", headers=bearer("rob")) as response:
            events = events_of(response)
            await anext(events)
            path.write_text(USERS.replace('name = "rob"', 'name = "rob"\ntopics = ["other"]'))
            times = itertools.count(1_000_000, 6)
            monkeypatch.setattr(event_pages, "monotonic", lambda: next(times))
            cluster.follower.queue.put_nowait(([record(offset) for offset in range(100)], 0))
            found = [event["event"] async for event in events]
        assert found[-1] == "ended" and len(found) < 10


async def test_a_client_that_takes_nothing_loses_its_place(constants: Constants) -> None:
    constants(event_pages, STALLED_S=0.2)
    cluster = SimCluster()
    async with console(cluster, TIMERS_QUERIES="values") as client, asyncio.timeout(DEADLINE_S):
        async with client.get("/v1/events?topic=orders") as response:
            for offset in range(30):
                cluster.follower.queue.put_nowait(([record(offset, value=b"x" * 2**20)], 0))
            while not cluster.follower.closed:
                await asyncio.sleep(0.01)
            with pytest.raises(ClientError):  # it is disconnected, and not only forgotten
                await response.read()
        assert cluster.follower.queue.qsize() > 0, "it was not sent everything"


async def test_a_client_that_went_is_fine(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    cluster = SimCluster()
    write = web.StreamResponse.write

    async def fail(self: web.StreamResponse, data: bytes) -> None:
        if lost in data:
            raise ConnectionResetError
        await write(self, data)

    monkeypatch.setattr(web.StreamResponse, "write", fail)
    async with console(cluster) as client, asyncio.timeout(DEADLINE_S):
        for lost in (b"event: began", b"event: ended"):
            async with client.get("/v1/events?topic=orders") as response:
                if lost == b"event: ended":
                    cluster.follower.failure = TimersError("the topics cannot be read")
                    cluster.follower.queue.put_nowait(([], 0))
                assert b"ended" not in await response.read()
            while not cluster.follower.closed:
                await asyncio.sleep(0.01)
        async with client.get("/metrics") as response:
            assert 'route="events",status="500"' not in await response.text()
    assert not [entry for entry in caplog.records if entry.levelname == "ERROR"]


async def test_a_slow_reader_loses_the_oldest_and_learns_how_many(constants: Constants) -> None:
    follower = TopicsFollower.__new__(TopicsFollower)
    follower.forget_all()
    for offset in range(MAX_RECORDS + 50):
        follower.add(record(offset, value=b""))
    records, dropped = follower.take()
    assert (len(records), records[0].offset, dropped) == (MAX_RECORDS, 50, 50)
    constants(topics_follower, MAX_BYTES=4000)
    for offset in range(3):
        follower.add(record(offset, value=b"x" * 2000))
    records, dropped = follower.take()
    assert ([each.offset for each in records], dropped) == ([2], 2)
    for offset in range(20):
        follower.add(replace(record(offset, value=b""), key=b"x" * 1000, headers=[("h", b"x" * 1000)]))
    records, dropped = follower.take()
    assert ([each.offset for each in records], dropped) == ([19], 19), "keys and headers are counted too"


def test_a_stream_that_goes_on_asks_no_longer_than_its_opening_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 partitions may have one leader, which is silent."""
    now_s, asked = 0.0, list[float]()

    def ask(place: Any, timeout: float, cached: bool) -> tuple[int, int]:
        nonlocal now_s
        asked.append(timeout)
        now_s += timeout
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    monkeypatch.setattr(topics_follower, "monotonic", lambda: now_s)
    follower = TopicsFollower.__new__(TopicsFollower)
    follower._consumer = SimpleNamespace(get_watermark_offsets=ask)  # type: ignore[assignment]
    end_s = topics_follower.OPENING_S
    assert [follower._begin("orders", end_s, number, 7) for number in range(256)] == [7] * 256
    assert asked and now_s < end_s + 1


def test_the_size_of_a_record_counts_what_is_unpacked() -> None:
    small = replace(record(0, value=b""), key=None, headers=[])
    assert small.size == 0
    assert replace(small, key=b"xx", value=b"yyy").size == 5
    many = replace(small, headers=[("", None)] * 1000)
    assert many.size > 1000 * sys.getsizeof(("", None)), "a header takes more memory than its bytes"
