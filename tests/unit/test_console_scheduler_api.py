"""The paths of kafka-message-scheduler: JSON, parameters and order as in its source."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.harness.console_users import USERS, bearer
from tests.harness.constants import Constants
from tests.harness.sim_console import SimCluster, answer_of, console
from timers.client.request import TimerRequest
from timers.console import scheduler_api
from timers.console.kafka_cluster import WorkerAnswer
from timers.wire import query as wire

SETTINGS = {
    "TIMERS_CONSOLE_SCHEDULER_API": "1",
    "TIMERS_SCHEDULE_TOPICS": "schedules,more",
    "TIMERS_APP_ID": "app",
}


@pytest.fixture
def cluster() -> SimCluster:
    cluster = SimCluster()
    for number, id in enumerate(("vid1-online", "vid2-online", "vid1-offline")):
        cluster.timers[id] = TimerRequest("online-videos", f"key{number}", b"video", 1893456000 + number, id=id)
        cluster.sources[id] = f"schedules/0/{number}"
        cluster.written_s[f"schedules/0/{number}"] = 1607918336 - number
    cluster.timers["other"] = TimerRequest("t", None, b"", 1893456000, id="other")
    return cluster


ONE = {
    "epoch": 1893456000,
    "id": "vid1-online",
    "target-key": "key0",
    "target-topic": "online-videos",
    "timestamp": 1607918336,
    "topic": "schedules",
    "value": None,
}


async def test_the_scheduler_answers_as_it_did(cluster: SimCluster) -> None:
    async with console(cluster, **SETTINGS) as client:
        async with client.get("/liveness") as response:
            assert (response.status, await response.read()) == (200, b"")
        _, info = await answer_of(client, "GET", "/info")
        assert info["kafka"] == {"bootstrap_servers": "nowhere:1", "topics": ["schedules", "more"], "history_topic": ""}
        assert info.keys() == {"hostname", "address", "server_address", "kafka"}
        async with client.get("/schedules") as response:
            text = await response.text()
            assert len(await response.json()) == 3
        start = '{"epoch":1893456000,"id":"vid1-online","target-key":"key0","target-topic":'
        assert start in text, "Go writes the keys of a map in order"
        assert ONE in (await answer_of(client, "GET", "/schedules"))[1]


class Retrying(SimCluster):
    """A cluster whose worker says that the second of each id is over: all timers wait for a retry."""

    async def ask(self, path: str, parameters: Mapping[str, str]) -> WorkerAnswer:
        answer = await super().ask(path, parameters)
        for timer in answer.body["timers"] if path == wire.FIND_PATH else ():
            timer["state"] = wire.FIRED
        return answer


@pytest.fixture
def retrying() -> SimCluster:
    cluster = Retrying()
    for id in ("vid1", "vid10"):
        cluster.timers[id] = TimerRequest("online-videos", "k", b"video", 1893456000, id=id)
        cluster.sources[id] = "schedules/0/1"
    return cluster


async def test_a_schedule_that_waits_for_a_retry_is_found_by_its_id(retrying: SimCluster) -> None:
    async with console(retrying, **SETTINGS) as client:
        status, found = await answer_of(client, "GET", "/api/scheduler/app/schedule/vid1")
        assert (status, [each["schedule"]["id"] for each in found]) == (200, ["vid1"])
        async with client.get("/api/scheduler/app/schedule/vid") as response:
            assert response.status == 404


async def test_a_schedule_that_was_not_found_in_time_is_not_missing(retrying: SimCluster, constants: Constants) -> None:
    constants(scheduler_api, MAX_READING_S=-1.0)
    constants(wire, MAX_LIMIT=1)
    async with console(retrying, **SETTINGS) as client:
        status, answer = await answer_of(client, "GET", "/api/scheduler/app/schedule/vid")
        assert (status, answer["code"]) == (503, "busy")


async def ids(client: Any, query: str, kind: str = "") -> list[str]:
    status, answer = await answer_of(client, "GET", f"/api{kind}/scheduler/app/schedules?{query}")
    assert status == 200 and answer.keys() == {"found", "schedules"}
    assert {each["scheduler"] for each in answer["schedules"]} <= {"app"}
    return [each["schedule"]["id"] for each in answer["schedules"]]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", ["vid1-online", "vid2-online", "vid1-offline"]),
        ("sort-by=timestamp%20asc", ["vid1-offline", "vid2-online", "vid1-online"]),
        ("sort-by=asc", ["vid1-offline", "vid2-online", "vid1-online"]),
        ("sort-by=id%20asc", ["vid1-offline", "vid1-online", "vid2-online"]),
        ("sort-by=epoch", ["vid1-offline", "vid2-online", "vid1-online"]),
        ("sort-by=nonsense%20nonsense", ["vid1-online", "vid2-online", "vid1-offline"]),
        ("schedule-id=vid1-online", ["vid1-online"]),
        ("schedule-id=vid1*", ["vid1-online", "vid1-offline"]),
        ("schedule-id=vid1*%20-*offline", ["vid1-online"]),
        ("schedule-id=vid[12]-online", []),
        ("schedule-id=vid?-online", []),
        ("epoch-from=1893456001", ["vid2-online", "vid1-offline"]),
        ("epoch-to=1893456001", ["vid1-online", "vid2-online"]),
        ("epoch-to=tomorrow&max=x", ["vid1-online", "vid2-online", "vid1-offline"]),
        ("max=1", ["vid1-online"]),
        ("max=-1", ["vid1-online", "vid2-online", "vid1-offline"]),
    ],
)
async def test_a_search_is_as_the_admin_asks_and_orders_it(cluster: SimCluster, query: str, found: list[str]) -> None:
    async with console(cluster, **SETTINGS) as client:
        assert await ids(client, query) == await ids(client, query, "/live") == found
        assert await ids(client, query, "/history") == []


async def test_the_other_paths_of_the_admin(cluster: SimCluster) -> None:
    async with console(cluster, **SETTINGS) as client:
        stats = [{"scheduler": "app", "total_live": 3, "total_history": 0, "total": 3}]
        assert await answer_of(client, "GET", "/api/stats") == (200, stats)
        _, (scheduler,) = await answer_of(client, "GET", "/api/schedulers")
        assert (scheduler["name"], scheduler["http_port"]) == ("app", "6067")
        assert scheduler["instances"][0].keys() == {"ip", "hostname", "topics", "history_topic", "bootstrap_servers"}
        one = [{"scheduler": "app", "schedule": ONE}]
        assert await answer_of(client, "GET", "/api/scheduler/app/schedule/vid1-online") == (200, one)
        assert await answer_of(client, "GET", "/api/live/scheduler/app/schedule/vid1-online") == (200, one)
        for path in ("app/schedule/none", "app/schedule/other", "another/schedule/vid1-online"):
            async with client.get(f"/api/scheduler/{path}") as response:
                assert (response.status, await response.read()) == (404, b"")
        assert (await answer_of(client, "GET", "/api/scheduler/another/schedules"))[1]["found"] == 0


async def test_they_are_off_by_default_and_behind_the_login(cluster: SimCluster, tmp_path: Path) -> None:
    async with console(cluster) as client:
        assert (await answer_of(client, "GET", "/schedules"))[0] == 404
    path = tmp_path / "users.toml"
    path.write_text(USERS)
    async with console(cluster, **SETTINGS, TIMERS_CONSOLE_USERS_FILE=str(path)) as client:
        assert (await answer_of(client, "GET", "/schedules"))[0] == 401
        assert len((await answer_of(client, "GET", "/schedules", headers=bearer("rob")))[1]) == 3
        assert (await answer_of(client, "GET", "/schedules", headers=bearer("tenant")))[1] == []


async def test_a_schedule_is_found_behind_many_others_and_by_its_seconds(cluster: SimCluster) -> None:
    async with console(cluster, **SETTINGS) as client:
        assert (await answer_of(client, "GET", "/api/scheduler/app/schedule/vid1-online"))[0] == 200
        assert cluster.questions == [("/timer", {"id": "vid1-online", "value": "0"})], "it is looked up, not listed"
        await ids(client, "epoch-from=1893456001&epoch-to=1893456001")
        path, parameters = cluster.questions[-1]
        assert (path, parameters["from"], parameters["to"]) == ("/timers", "1893456001", "1893456002")


async def test_a_partition_that_does_not_answer_is_no_proof_that_there_is_no_schedule(cluster: SimCluster) -> None:
    missing = [{"partition": "schedules/0", "reason": "the group is rebalancing"}]
    cluster.answer = WorkerAnswer(200, {"timers": [], "missing": missing, "next": None})
    async with console(cluster, **SETTINGS) as client:
        for path in ("/schedules", "/api/stats", "/api/scheduler/app/schedules", "/api/scheduler/app/schedule/vid1"):
            status, answer = await answer_of(client, "GET", path)
            assert (status, answer["code"]) == (503, "worker-unreachable"), path


async def test_a_search_ends_at_a_size_of_values_and_a_word_count(cluster: SimCluster, constants: Constants) -> None:
    shown = cluster._shown("vid1-online")
    page = {"timers": [{**shown, "value": "v" * 1000}] * 10, "missing": [], "next": "1/schedules/0/1"}
    cluster.answer = WorkerAnswer(200, page)
    constants(scheduler_api, MAX_VALUES_BYTES=25_000)
    async with console(cluster, **SETTINGS) as client:
        assert len((await answer_of(client, "GET", "/schedules"))[1]) == 25
        words = "%20".join(["-none"] * 1000 + ["none"])
        assert len(await ids(client, f"schedule-id={words}")) == 25, "the words after the twentieth are ignored"
