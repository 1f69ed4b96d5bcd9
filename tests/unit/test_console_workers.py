"""Workers, lateness and counts: who is asked, what is added up, and what is said about the rest."""

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.harness.constants import Constants
from tests.harness.sim_console import SimCluster, answer_of, console
from timers.cli.broker.embedded import free_port
from timers.console import figures, kafka_cluster, worker_pages
from timers.console.figures import quantile
from timers.console.kafka_cluster import KafkaCluster, find_group, may_be_asked
from timers.errors import QueryError
from timers.kafka import group_access, topic_admin
from timers.kafka.aiokafka_internals.group import STABLE, DescribedGroup, Member
from timers.process.config.settings import Settings

READY = {"ready": True, "reasons": [], "stopped": {}, "pending": 7, "tick_age_s": 0.4}

METRICS = b"""# TYPE timers_lag_seconds histogram
timers_lag_seconds_bucket{le="0.01",way="waited"} 50
timers_lag_seconds_bucket{le="0.1",way="waited"} 100
timers_lag_seconds_bucket{le="+Inf",way="waited"} 100
timers_lag_seconds_count{way="waited"} 100
timers_lag_seconds_sum{way="waited"} 1
"""


async def test_workers_and_their_lags_are_shown_and_strangers_are_not_asked() -> None:
    cluster = SimCluster()
    sound = {
        "/health/ready": (200, json.dumps(READY).encode()),
        "/health/partitions": (200, b'{"red": {}}'),
        "/metrics": (200, METRICS),
    }
    cluster.pages = sound
    async with console(cluster) as client:
        status, answer = await answer_of(client, "GET", "/v1/workers")
        known, stranger = answer["workers"]
        assert (status, known["ready"], known["pending"], known["partitions"]) == (200, True, 7, {"t": 2})
        assert stranger["ready"] is None and "TIMERS_CONSOLE_WORKERS" in stranger["why"]
        _, answer = await answer_of(client, "GET", "/v1/lateness")
        (buckets,) = [way.pop("buckets") for way in answer["ways"].values()]
        assert answer["ways"] == {"waited": {"timers": 100, "p50_s": 0.01, "p99_s": 0.0982}}
        assert buckets[0] == [0.01, 50] and buckets[-1] == [None, 100]
        assert [each["worker"] for each in answer["missing"]] == ["w2"]
        cluster.pages = {"/health/ready": (200, b"<html>"), "/metrics": (500, b"\xff")}
        assert (await answer_of(client, "GET", "/v1/workers"))[1]["workers"][0]["ready"] is None
        assert len((await answer_of(client, "GET", "/v1/lateness"))[1]["missing"]) == 2
        for strange in (b"[" * 10**5, b"{}", b'{"ready": true, "reasons": []}'):
            cluster.pages = {"/health/ready": (200, strange), "/metrics": (200, b"a NaN\n")}
            known, _ = (await answer_of(client, "GET", "/v1/workers"))[1]["workers"]
            assert known["ready"] is None and "no worker of timers" in known["why"]
        for path in ("/health/partitions", "/metrics"):
            for strange in (b"<html>", b"{}", b""):
                cluster.pages = sound | {path: (200, strange)}
                known, _ = (await answer_of(client, "GET", "/v1/workers"))[1]["workers"]
                assert (known["ready"], known["why"]) == (None, f"its page {path} cannot be read")
        for strange in (b'{"red": {}, "firing": 1}', b'{"red": {}, "machines": []}', b'{"red": {}, "notes": null}'):
            cluster.pages = sound | {"/health/partitions": (200, strange)}
            known, _ = (await answer_of(client, "GET", "/v1/workers"))[1]["workers"]
            assert (known["ready"], known["why"]) == (None, "its page /health/partitions cannot be read")
        cluster.pages = sound | {"/metrics": (200, b"")}
        missing = (await answer_of(client, "GET", "/v1/lateness"))[1]["missing"]
        assert missing[0] == {"worker": "w1", "reason": "its page /metrics cannot be read"}
        cluster.pages, cluster.worker_is_foreign = sound, True
        known, _ = (await answer_of(client, "GET", "/v1/workers"))[1]["workers"]
        assert known["ready"] is None and "of another cluster" in known["why"] and "pending" not in known
        lateness = (await answer_of(client, "GET", "/v1/lateness"))[1]
        assert lateness["ways"] == {} and "of another cluster" in lateness["missing"][0]["reason"]
        cluster.worker_is_foreign, cluster.worker_fails = False, True
        assert (await answer_of(client, "GET", "/v1/workers"))[1]["workers"][0]["why"] == "no worker answers"


def test_quantiles_of_buckets() -> None:
    assert quantile(Counter(), 0.5) is None
    assert quantile(Counter({0.1: 0, float("inf"): 0}), 0.5) is None
    assert quantile(Counter({0.1: 10, float("inf"): 10}), 0.5) == 0.05
    assert quantile(Counter({0.1: 10, float("inf"): 1000}), 0.99) == 0.1


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://127.0.0.1:6066", True),
        ("http://localhost:1", True),
        ("http://[::1]:1", True),
        ("http://worker-0.timers:6066", True),
        ("http://10.1.2.3:6066/", True),
        ("http://10.2.2.3:6066", False),
        ("http://169.254.169.254", False),
        ("http://localhost.evil.example", False),
        ("http://127.0.0.1@evil.example", False),
        ("http://user@127.0.0.1", False),
        ("http://127.0.0.1:1/secret", False),
        ("http://127.0.0.1:1?x=", False),
        ("http://127.0.0.1:1/#x", False),
        ("http://127.0.0.1\\@evil.example", False),
        ("http://127.0.0.1\n.evil.example", False),
        ("http://:x@127.0.0.1", False),
        ("//127.0.0.1", False),
        ("file:///etc/passwd", False),
        ("http://[::1", False),
        ("http://127.0.0.1:99999999", False),
        ("", False),
    ],
)
def test_only_addresses_that_the_operator_trusts_are_asked(url: str, allowed: bool) -> None:
    settings = Settings.load(
        {
            "TIMERS_BROKERS": "b:1",
            "TIMERS_WORKER_URL": "http://worker-0.timers:6066",
            "TIMERS_CONSOLE_WORKERS": "10.1.0.0/16",
        }
    )
    assert may_be_asked(settings, url) is allowed


async def test_counts_are_taken_page_by_page_for_a_time(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> None:
    cluster = SimCluster()
    constants(worker_pages, FIRST_COUNT_S=1000.0)
    async with console(cluster) as client:
        for number in range(150):
            body = {"topic": "t", "value": "", "at": 1_900_000_000 + number, "id": f"{number:05}"}
            monkeypatch.setattr("timers.console.access.Rates.wait_s", lambda *_: 0.0)
            assert (await answer_of(client, "POST", "/v1/timers", json=body))[0] == 201
        _, whole = await answer_of(client, "GET", "/v1/pending?by=hour")
        assert whole["complete"] and sum(each["timers"] for each in whole["counts"]) == 150
        assert all(each["from"] % 3600 == 0 for each in whole["counts"])
        constants(worker_pages, FIRST_COUNT_S=-1.0)
        _, first = await answer_of(client, "GET", "/v1/pending?by=hour")
        assert first["complete"] is False and sum(each["timers"] for each in first["counts"]) == 100
        _, second = await answer_of(client, "GET", f"/v1/pending?by=hour&cursor={first['next']}")
        assert second["complete"] and sum(each["timers"] for each in second["counts"]) == 50
        assert (await answer_of(client, "GET", f"/v1/pending?by=day&cursor={first['next']}"))[0] == 400


async def test_the_console_is_ready_if_a_broker_and_a_worker_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_admin, "exists", lambda *_: True)
    monkeypatch.setattr(topic_admin, "cluster_id", lambda _: "c-1")
    own = {"app": "timers", "cluster": "c-1"}
    answers: list[dict[str, Any]] = [
        {"live": True, "reasons": [], **own},
        {"live": False, "reasons": ["stuck"], **own},
        {"live": True, "reasons": [], **own, "cluster": ""},
        {"live": True, "reasons": [], **own, "cluster": "c-2"},
        {},
    ]
    pages = iter(answers)

    async def live(_: web.Request) -> web.Response:
        return web.json_response(next(pages))

    application = web.Application()
    application.router.add_get("/health/live", live)
    async with TestServer(application) as server:
        cluster = KafkaCluster(
            Settings.load({"TIMERS_BROKERS": "b:1", "TIMERS_WORKER_URL": str(server.make_url("")).rstrip("/")})
        )
        for _ in range(3):
            assert await cluster.problems() == ([], []), "a worker that starts does not know its cluster yet"
        assert "is of app 'timers' and cluster c-2" in (await cluster.problems())[1][0]
        assert "is no worker of timers" in (await cluster.problems())[1][0]
    assert "no worker answers" in (await cluster.problems())[1][0]
    await cluster.close()


async def test_a_worker_that_hangs_keeps_no_console_back(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> None:
    assert kafka_cluster.READY_ANSWER_S < 5, "Kubernetes asks with this time-out"
    constants(kafka_cluster, READY_ANSWER_S=0.1)
    monkeypatch.setattr(topic_admin, "exists", lambda *_: True)
    ended = asyncio.Event()

    async def live(_: web.Request) -> web.Response:
        await ended.wait()
        return web.Response()

    application = web.Application()
    application.router.add_get("/health/live", live)
    async with TestServer(application) as server:
        url = str(server.make_url("")).rstrip("/")
        cluster = KafkaCluster(Settings.load({"TIMERS_BROKERS": "b:1", "TIMERS_WORKER_URL": url}))
        async with asyncio.timeout(5):
            brokers, workers = await cluster.problems()
        ended.set()
    assert brokers == [] and "no answer within 0 s" in workers[0]
    await cluster.close()


async def test_an_error_names_the_worker_that_was_asked(constants: Constants) -> None:
    constants(kafka_cluster, ANSWER_S=0.0)
    gone, own = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    cluster = KafkaCluster(Settings.load({"TIMERS_BROKERS": "b:1", "TIMERS_WORKER_URL": own}))
    with pytest.raises(QueryError, match=f"at {gone} ") as raised:
        await cluster.worker_page(gone, "/health/ready")
    assert own not in str(raised.value) and "TIMERS_WORKER_URL" not in str(raised.value)
    with pytest.raises(QueryError, match=f"at {own} .*TIMERS_WORKER_URL"):
        await cluster.ask("/timers", {})
    for odd in ("http://[::1", "http://127.0.0.1:99999999", "http://a b:x", "", "worker"):
        with pytest.raises(QueryError, match="is no address of a worker"):
            await cluster.worker_page(odd, "/health/ready")
    await cluster.close()


@pytest.mark.parametrize(
    ("in_workers_group", "in_engines_group", "found", "names"),
    [
        (["timers", "stranger"], ["engine"], "timers", "'timers'"),
        (["stranger"], ["engine"], "engine", ""),
        (["stranger"], [], "", "'timers'"),
        ([], ["stranger"], "", "'timers-engine'"),
        (["stranger"], ["stranger"], "", "'timers'"),
    ],
)
def test_the_engine_on_spark_is_found_if_no_worker_is_there_although_strangers_are(
    in_workers_group: list[str], in_engines_group: list[str], found: str, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = {"timers": in_workers_group, "timers-engine": in_engines_group}

    def describe(_: Settings, group_id: str) -> DescribedGroup:
        owned = (("timer-request", 0),)
        named = [Member(each, partitions=owned, is_ours=each != "stranger") for each in members[group_id]]
        return DescribedGroup(STABLE, named)

    monkeypatch.setattr(group_access, "describe", describe)
    group = find_group(Settings())
    assert [each.id for each in group.workers] == [found] * bool(found)
    assert bool(group.taken) == bool(names) and names in group.taken


async def test_while_another_program_has_the_group_it_is_not_known_whether_all_timers_fire() -> None:
    cluster = SimCluster()
    cluster.taken = "another program is in the group 'timers': client 'c' at 10.0.0.1 (protocol consumer)"
    async with console(cluster) as client:
        _, answer = await answer_of(client, "GET", "/v1/workers")
    assert answer["state"] == {"timers": "not-known", "why": cluster.taken} and answer["taken"] == cluster.taken


async def test_what_workers_counted_in_the_last_day_is_passed_on() -> None:
    cluster, point = SimCluster(), {"at": 5, "s": 5, "counts": {"fired": 2, "lag/waited/0": 2}, "pending": 0}
    kept = {"app": "a", "cluster": "c", "bounds_s": [0.1], "points": [{**point, "overdue_s": 0, "memory_bytes": 0}]}
    cluster.pages = {"/figures": (200, json.dumps(kept).encode())}
    async with console(cluster) as client:
        status, answer = await answer_of(client, "GET", "/v1/figures?since=1")
        assert status == 200
        assert answer["workers"] == [{"id": "w1", "bounds_s": [0.1], "points": kept["points"]}]
        assert [each["worker"] for each in answer["missing"]] == ["w2"]
        for strange in (b"<html>", b"{}", b'{"bounds_s": [], "points": [{"at": "x"}]}', b"[" * 10**5, b'{"points": 1}'):
            cluster.pages = {"/figures": (200, strange)}
            _, answer = await answer_of(client, "GET", "/v1/figures")
            assert answer["workers"] == [] and "cannot be read" in answer["missing"][0]["reason"], strange
        cluster.pages = {"/figures": (503, b"{}")}
        assert (await answer_of(client, "GET", "/v1/figures"))[1]["workers"] == []


def test_the_metrics_that_are_used_are_parsed_and_no_others() -> None:
    """A worker with many partitions has thousands of others."""
    used = [
        'timers_fired_total{partition="0"} 3.0',
        'timers_fired_total{partition="1"} 4.0',
        'timers_occurrences_missed_total{reason="late"} 2.0',
        'timers_dead_lettered_total{code="topic-unknown"} 1.0',
        'timers_build_info{version="1.2"} 1.0',
        "process_start_time_seconds 9.5",
        'timers_lag_seconds_bucket{le="+Inf",way="waited"} 7.0',
    ]
    others = [
        "# HELP timers_fired_total Fired.",
        "# TYPE timers_fired_total counter",
        "",
        "timers_else 1.0",
        "no metric",
    ]
    said = figures.samples("\n".join([*others, *used, *others]).encode())
    assert "timers_else" not in said and len(said) == 6
    shown = figures.figures(said)
    assert (shown["fired"], shown["started_at"], shown["version"]) == (7.0, 9.5, "1.2")
    assert (shown["occurrences_missed"], shown["dead_letters"]) == ({"late": 2}, {"topic-unknown": 1})
    assert figures.lags(said) == {"waited": {float("inf"): 7}}
    assert figures.samples(b"timers_fired_total{ 1.0\n") == {}, "a wrong page says nothing"
    assert figures.samples(b"\xff timers_fired_total 1.0") == {}
