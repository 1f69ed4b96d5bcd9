"""The HTTP API for timers, over a cluster in memory: what it sets, shows, changes and refuses."""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.constants import Constants
from tests.harness.sim_console import SimCluster, answer_of, console
from timers.client import Repeat
from timers.console import kafka_cluster
from timers.console.kafka_cluster import KafkaCluster, WorkerAnswer
from timers.console.problems import Problem
from timers.console.routes import ROUTES
from timers.console.schemas import SCHEMAS
from timers.console.web import server as server_module
from timers.errors import (
    AccessError,
    NoVerdictError,
    PublishError,
    SettingsError,
    TimersError,
    UnacknowledgedError,
    UnreachableError,
)
from timers.process.config.settings import Settings
from timers.wire import future
from timers.wire.formats import RequestRecord

TIMER = {"topic": "timeouts", "key": "k", "value": "unpaid", "delay": "15m"}
REPEATING = {"topic": "t", "value": "v", "id": "r", "repeat": {"cron": "0 9 * * 1-5", "zone": "Europe/Paris"}}


async def test_a_timer_has_the_trace_context_of_its_http_request() -> None:
    cluster = SimCluster()
    asked = {"traceparent": f"00-{7:032x}-{9:016x}-01", "tracestate": "a=1", "baggage": "tenant=acme"}
    expected = [(name, value.encode()) for name, value in asked.items()]
    async with console(cluster) as client:
        _, answer = await answer_of(client, "POST", "/v1/timers", json=TIMER, headers=asked)
        assert cluster.headers[answer["id"]] == expected
        await answer_of(client, "POST", "/v1/timers/batch", json={"timers": [TIMER, TIMER]}, headers=asked)
        assert list(cluster.headers.values()) == [expected] * 3
        own = TIMER | {"headers": {"traceparent": "mine"}}
        _, answer = await answer_of(client, "POST", "/v1/timers", json=own, headers=asked)
        assert cluster.headers[answer["id"]] == [("traceparent", b"mine"), expected[-1]]
        ids = f"{7:032x}-{9:016x}"
        for wrong in ("", "00-0-0-01", f"00-{0:032x}-{9:016x}-01", f"ff-{ids}-01", f"00-{ids}-1g", f"00-{ids}-01-x"):
            given = asked | {"traceparent": wrong}
            _, answer = await answer_of(client, "POST", "/v1/timers", json=TIMER, headers=given)
            assert cluster.headers[answer["id"]] == expected[-1:]
        _, answer = await answer_of(client, "POST", "/v1/timers", json=TIMER)
        assert cluster.headers[answer["id"]] == []
        _, document = await answer_of(client, "GET", "/v1/openapi.json")
    named = {
        operation["operationId"]: {each["name"] for each in operation.get("parameters", ()) if each["in"] == "header"}
        for path in document["paths"].values()
        for operation in path.values()
    }
    routes = {name for name, headers in named.items() if headers & asked.keys()}
    assert routes == {"setTimer", "setTimers", "putTimer", "moveTimer"}
    assert all(asked.keys() <= named[name] for name in routes)


def objects_of(schema: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """All schemas of objects in a part of the document, with where they are."""
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield where, schema
        for name, each in schema.items():
            yield from objects_of(each, f"{where}/{name}")
    elif isinstance(schema, list):
        for number, each in enumerate(schema):
            yield from objects_of(each, f"{where}/{number}")


ANY_JSON = {"NewTimer/properties/value/anyOf/2", "TimerVersion/properties/value/anyOf/2"}
"""The value of a callback may be any JSON."""


def test_the_document_says_what_each_object_has() -> None:
    found = dict(pair for name, schema in SCHEMAS.items() for pair in objects_of(schema, name))
    untold = {where for where, schema in found.items() if not schema.get("properties")}
    maps = {where for where in untold if isinstance(found[where].get("additionalProperties"), dict)}
    assert untold - maps == ANY_JSON and len(found) > 50


async def test_a_timer_is_set_found_moved_and_cancelled() -> None:
    cluster = SimCluster()
    async with console(cluster) as client:
        status, answer = await answer_of(client, "POST", "/v1/timers", json={**TIMER, "id": "a/b ü"})
        assert (status, answer["id"]) == (201, "a/b ü")
        assert 890 < answer["due"] - time.time() <= 901
        async with client.get("/v1/timer", params={"id": "a/b ü"}) as response:
            assert response.status == 200
            assert response.headers["ETag"] == '"sim-requests/0/1"'
            assert (await response.json())["timers"][0]["key"] == "k"
            assert (await response.text()).endswith("}\n")  # so that answers in a terminal are lines
        status, answer = await answer_of(client, "GET", "/v1/timer/history", params={"id": "a/b ü"})
        assert (status, answer["events"][0]["what"], answer["unread"][0]["topic"]) == (200, "set", "t")
        status, answer = await answer_of(client, "PUT", "/v1/timer", params={"id": "a/b ü"}, json=TIMER)
        assert (status, answer["verdict"]) == (200, "replaced")
        assert (await answer_of(client, "DELETE", "/v1/timer", params={"id": "a/b ü"}))[0] == 200
        assert (await answer_of(client, "DELETE", "/v1/timer", params={"id": "a/b ü"}))[0] == 404
        assert (await answer_of(client, "GET", "/v1/timer", params={"id": "a/b ü"}))[0] == 404
        status, answer = await answer_of(client, "GET", "/v1/timer/history", params={"id": "a/b ü"})
        assert (status, answer["timer"], [each["what"] for each in answer["events"]]) == (200, None, ["cancelled"])
        assert (await answer_of(client, "GET", "/v1/timer/history", params={"id": "never set"}))[0] == 404
        status, answer = await answer_of(client, "PUT", "/v1/timer", params={"id": "new"}, json=TIMER)
        assert (status, answer["verdict"]) == (201, "unknown")


async def test_brokers_and_workers_are_asked_once_for_all_that_ask_for_health(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SimCluster()
    asked, now_s = 0, 0.0

    async def problems() -> tuple[list[str], list[str]]:
        nonlocal asked, now_s
        asked += 1
        await asyncio.sleep(0.2)  # the other requests come meanwhile
        now_s += 2 * server_module.READY_S  # longer than the result is shown
        return ["no broker answers"], []

    cluster.problems = problems  # type: ignore[method-assign]
    monkeypatch.setattr(server_module, "monotonic", lambda: now_s)
    async with console(cluster) as client:
        answers = await asyncio.gather(*(answer_of(client, "GET", "/v1/health/ready") for _ in range(5)))
    assert {status for status, _ in answers} == {503}
    assert asked == 1


async def test_a_list_says_how_far_it_has_searched() -> None:
    cluster = SimCluster()
    async with console(cluster) as client:
        cluster.answer = WorkerAnswer(200, {"timers": [], "missing": [], "next": "1896091200/t/0/7"})
        _, answer = await answer_of(client, "GET", "/v1/timers?topic=rare")
        assert answer["searched_to"] == 1896091200
        cluster.answer = WorkerAnswer(200, {"timers": [], "missing": [], "next": None})
        assert (await answer_of(client, "GET", f"/v1/timers?topic=rare&cursor={answer['next']}"))[1][
            "searched_to"
        ] is None


async def test_a_long_wrong_name_is_cut() -> None:
    async with console(SimCluster()) as client:
        name = "x" * 100_000
        for path in ("/v1/timers", "/v1/timers/cancel"):
            status, answer = await answer_of(client, "POST", path, json={**TIMER, name: 1})
            assert status in (400, 422) and len(answer["detail"]) < 1000


async def test_a_new_due_time_changes_nothing_else() -> None:
    cluster = SimCluster()
    sent = {**TIMER, "key": {"base64": "/wA="}, "headers": [["n", "1"], ["n", None]], "token": "tok"}
    async with console(cluster, TIMERS_ID_TOPIC="sim-requests") as client:
        assert (await answer_of(client, "POST", "/v1/timers", json={**sent, "id": "a"}))[0] == 201
        before = cluster.timers["a"]
        path = "/v1/timer?id=a"
        status, answer = await answer_of(client, "PATCH", path, json={"at": 1_900_000_000})
        assert (status, answer["verdict"], answer["due"]) == (200, "replaced", before.at)
        assert cluster.timers["a"] == before._replace(at=1_900_000_000)
        for body, code in (
            ({}, "due-invalid"),
            ({"delay": 1, "value": "v"}, "field-invalid"),
            ({"delay": -1}, "due-invalid"),
        ):
            assert (await answer_of(client, "PATCH", path, json=body))[1]["code"] == code
        assert (await answer_of(client, "PATCH", "/v1/timer?id=b", json={"delay": 1}))[1]["code"] == "not-found"
        cluster.sources["a"] = "other-requests/0/1"
        assert (await answer_of(client, "PATCH", path, json={"delay": 1}))[1]["code"] == "not-found"
        fired = {"id": "a", "state": "fired", "due": 7, "source": "sim-requests/0/1"}
        cluster.answer = WorkerAnswer(200, {"timers": [fired], "missing": []})
        assert (await answer_of(client, "PATCH", path, json={"delay": 1}))[1]["code"] == "already-fired"
    assert cluster.timers["a"].at == 1_900_000_000


async def test_all_fields_reach_the_request() -> None:
    cluster = SimCluster()
    at = "2030-01-31T12:00:00.5+02:00"
    sent = {"topic": "t", "key": {"base64": "/wA="}, "value": {"base64": "AAE="}, "at": at, "token": "tok"}
    async with console(cluster) as client:
        async with client.post("/v1/timers", json={**sent, "headers": [["n", "1"], ["n", None]]}) as response:
            assert response.status == 201
            location = response.headers["Location"]
        assert (await answer_of(client, "GET", location))[1]["timers"][0]["due_at"] == "2030-01-31T10:00:01Z"
    (request,) = cluster.timers.values()
    assert (request.key, request.value, request.token) == (b"\xff\x00", b"\x00\x01", "tok")
    assert list(request.headers or ()) == [("n", "1"), ("n", None)]


async def test_a_repeating_timer_is_set_and_its_first_due_second_is_said() -> None:
    cluster = SimCluster()
    async with console(cluster) as client:
        status, answer = await answer_of(client, "POST", "/v1/timers", json=REPEATING)
        rule = {"cron": "0 9 * * 1-5", "zone": "Europe/Paris", "count": "1"}
        _, shown = await answer_of(client, "GET", "/v1/next", params=rule)
        assert (status, answer["due"]) == (201, shown["occurrences"][0]["due"])
        assert cluster.timers["r"].repeat == Repeat.cron("0 9 * * 1-5", zone="Europe/Paris")
        body = {name: part for name, part in REPEATING.items() if name != "id"}
        status, answer = await answer_of(client, "PUT", "/v1/timer", params={"id": "r"}, json=body)
        assert (status, answer["verdict"]) == (200, "replaced")
        batch = {"timers": [{**REPEATING, "id": "s", "repeat": "every=60"}]}
        assert (await answer_of(client, "POST", "/v1/timers/batch", json=batch))[0] == 201


async def test_the_next_occurrences_of_a_rule_are_shown() -> None:
    async with console(SimCluster()) as client:
        rule = {"cron": "30 2 * * *", "zone": "America/New_York", "from": "2035-03-10T12:00:00Z", "count": "2"}
        status, answer = await answer_of(client, "GET", "/v1/next", params=rule)
        assert status == 200
        assert [(each["local"], each.get("note")) for each in answer["occurrences"]] == [
            ("2035-03-11T03:00:00-04:00", "in place of 02:30, which clocks skip"),
            ("2035-03-12T02:30:00-04:00", None),
        ]
        assert "which skips 02:30" in answer["words"][0]
        for wrong in ({"cron": "30 2 * * *"}, {"every": "soon"}, {}, {"cron": "0 0 31 2 *", "zone": "UTC"}):
            status, answer = await answer_of(client, "GET", "/v1/next", params=wrong)
            assert (status, answer["code"]) == (422, "field-invalid")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({**TIMER, "topic": "a b"}, 422, "topic-invalid"),
        ({**TIMER, "topic": ""}, 422, "topic-missing"),
        ({**TIMER, "topic": 7}, 422, "topic-invalid"),
        ({"value": "v", "delay": 1}, 422, "topic-missing"),
        ({"topic": "t", "delay": 1}, 422, "value-missing"),
        ({**TIMER, "value": 5}, 422, "field-invalid"),
        ({"topic": "t", "value": "v"}, 422, "due-invalid"),
        ({**TIMER, "at": 1896091200}, 422, "due-invalid"),
        ({**TIMER, "delay": "soon"}, 422, "due-invalid"),
        ({**TIMER, "delay": -1}, 422, "due-invalid"),
        ({**TIMER, "delay": {"a": 1}}, 422, "due-invalid"),
        ({"topic": "t", "value": "v", "at": 1896091200000}, 422, "due-invalid"),
        ({**TIMER, "id": ""}, 422, "id-missing"),
        ({**TIMER, "id": 7}, 422, "id-missing"),
        ({**TIMER, "id": "x" * 513}, 422, "id-too-long"),
        ({**TIMER, "headers": {"timer-id": "x"}}, 422, "field-invalid"),
        ({**TIMER, "headers": "x"}, 422, "field-invalid"),
        ({**TIMER, "token": 7}, 422, "field-invalid"),
        ({**TIMER, "value": "x" * 1_000_001}, 422, "value-too-large"),
        ({**TIMER, "colour": "red"}, 422, "field-invalid"),
        ({**TIMER, "id": "a", "repeat": {"every": 60}}, 422, "field-invalid"),  # it has a delay
        ({**REPEATING, "repeat": {"cron": "0 9 * * *"}}, 422, "field-invalid"),
        ({**REPEATING, "repeat": "every=60; zone=UTC"}, 422, "field-invalid"),
        ({**REPEATING, "id": None}, 422, "id-missing"),
        ({**REPEATING, "value": "x" * 65_536}, 422, "value-too-large"),
        ([TIMER], 400, "parameter-invalid"),
    ],
)
async def test_what_would_be_a_dead_letter_is_refused_with_its_code(body: Any, status: int, code: str) -> None:
    cluster = SimCluster()
    async with console(cluster) as client:
        async with client.post("/v1/timers", json=body) as response:
            answer = await response.json(content_type=None)
            assert response.content_type == "application/problem+json"
            assert (await response.text()).endswith("}\n")
        assert (response.status, answer["code"]) == (status, code), answer
        assert len(answer["detail"]) > 10
    assert cluster.timers == {}


@pytest.mark.parametrize(
    "text", ["", "{", '{"topic": "t", "topic": "u"}', "[" * 100_000, '{"delay": ' + "9" * 5000 + "}"]
)
async def test_a_body_that_is_no_object_is_refused(text: str) -> None:
    async with console(SimCluster()) as client:
        headers = {"Content-Type": "application/json"}
        status, answer = await answer_of(client, "POST", "/v1/timers", data=text, headers=headers)
        assert (status, answer["code"]) == (400, "parameter-invalid")
        status, answer = await answer_of(client, "POST", "/v1/timers", data=json.dumps(TIMER))
        assert (status, answer["code"]) == (415, "body-not-json")
        status, answer = await answer_of(client, "POST", "/v1/timers", data=b"x" * 3_000_000, headers=headers)
        assert (status, answer["code"]) == (413, "body-too-large")
        assert str(1_000_000 * 4 // 3 + 256 * 1024) in answer["detail"]


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (UnacknowledgedError("no answer"), 504, "unknown"),
        (AccessError("refused before it was sent"), 502, "publish-refused"),
        (UnreachableError("no broker"), 503, "brokers-unreachable"),
        (PublishError("no ACL"), 502, "publish-refused"),
        (SettingsError("TIMERS_ID_TOPIC is empty"), 501, "ids-off"),
    ],
)
async def test_a_time_out_is_unknown_and_never_failed(failure: TimersError, status: int, code: str) -> None:
    cluster = SimCluster()
    cluster.failure = failure
    async with console(cluster) as client:
        for method, path, more in (
            ("POST", "/v1/timers", {"json": TIMER}),
            ("PUT", "/v1/timer?id=x", {"json": TIMER}),
            ("DELETE", "/v1/timer?id=x", {}),
        ):
            found, answer = await answer_of(client, method, path, **more)
            assert (found, answer["code"]) == (status, code)
            with_id = code == "unknown" and "?id=" in path
            assert ("sets it again if it has fired meanwhile" in answer["detail"]) == with_id
            assert (answer.get("outcome") == "unknown") == (status == 504)
        cluster.failure = NoVerdictError("none came")
        for method, more in (("PUT", {"json": TIMER}), ("DELETE", {})):
            found, answer = await answer_of(client, method, "/v1/timer?id=x&wait=0", **more)
            assert (found, answer["verdict"]) == (202, "undecided")


@pytest.mark.parametrize("condition", [{}, {"Idempotency-Key": "k"}, {"If-None-Match": "*"}])
async def test_an_id_of_halves_of_characters_sets_no_timer(condition: dict[str, str]) -> None:
    """Those of Python's ``surrogateescape`` make UTF-8, and could not be part of an answer."""
    cluster = SimCluster()
    async with console(cluster) as client:
        for method, path in (("POST", "/v1/timers"), ("POST", "/v1/timers/batch")):
            body: Any = {**TIMER, "id": "\udcc3\udca9"}
            body = {"timers": [body]} if path.endswith("batch") else body
            status, answer = await answer_of(client, method, path, json=body, headers=condition)
            assert status >= 400 and answer["code"] in ("id-not-text", "condition-unsupported")
    assert not cluster.timers


@pytest.mark.parametrize("name", ["setTimer", "setTimers", "putTimer", "moveTimer", "cancelTimer"])
async def test_only_what_asks_a_worker_says_that_none_answers(name: str) -> None:
    """What is written without a worker takes effect when one starts. OpenAPI names no answer that cannot come."""
    cluster = SimCluster()
    cluster.worker_fails = True
    route = next(each for each in ROUTES if each.name == name)
    body = {"id": "x", **TIMER} if name == "setTimer" else {"timers": [TIMER]} if name == "setTimers" else TIMER
    body = {"delay": "9m"} if name == "moveTimer" else {} if name == "cancelTimer" else body
    path = route.path + ("?id=x" if route.path == "/v1/timer" else "")
    codes = set()
    async with console(cluster) as client:
        for headers in ({}, {"Idempotency-Key": "k"}, {"If-None-Match": "*"}, {"If-Match": '"a/0/1"'}):
            _, answer = await answer_of(client, route.method, path, json=body, headers=headers)
            codes.add(answer.get("code"))
    assert ("worker-unreachable" in codes) == ("worker-unreachable" in route.problems)


async def test_a_change_that_cannot_be_recorded_is_not_made() -> None:
    cluster = SimCluster()
    cluster.log_failure = PublishError("no broker")
    async with console(cluster) as client:
        status, answer = await answer_of(client, "POST", "/v1/timers", json=TIMER)
        assert (status, answer["code"]) == (503, "not-recorded")
        cluster.log_failure = None
        assert (await answer_of(client, "POST", "/v1/timers", json={**TIMER, "headers": {"h": "secret-h"}}))[0] == 201
        assert (await answer_of(client, "DELETE", "/v1/timer?id=x"))[0] == 404
        large = {**TIMER, "key": "k" * 500_000, "x" * 300_000: 1}
        assert (await answer_of(client, "POST", "/v1/timers", json=large))[0] == 422
    assert len(cluster.timers) == 1
    posted, deleted, wrong = cluster.recorded
    assert len(json.dumps(wrong)) < 5000, "the log does not grow with what is sent"
    assert (posted["user"], posted["operation"], posted["body"]["topic"]) == ("local", "setTimer", "timeouts")
    assert "unpaid" not in json.dumps(posted) and "secret-h" not in json.dumps(posted)
    assert (deleted["operation"], deleted["parameters"]["id"]) == ("cancelTimer", "x")


async def test_pages_follow_each_other_and_a_cursor_belongs_to_its_filter() -> None:
    cluster = SimCluster()
    async with console(cluster) as client:
        for number in range(5):
            await answer_of(client, "POST", "/v1/timers", json={**TIMER, "id": f"a{number}"})
        await answer_of(client, "POST", "/v1/timers", json={**TIMER, "id": "b"})
        seen: list[str] = []
        cursor: Any = None
        last: Any = None
        while True:
            parameters: dict[str, Any] = {"prefix": "a", "limit": 2} | ({"cursor": cursor} if cursor else {})
            status, answer = await answer_of(client, "GET", "/v1/timers", params=parameters)
            assert status == 200 and answer["complete"] is True
            seen += [timer["id"] for timer in answer["timers"]]
            last, cursor = cursor, answer["next"]
            if cursor is None:
                break
        assert seen == ["a0", "a1", "a2", "a3", "a4"]
        for wrong in ({"prefix": "b", "cursor": last}, {"prefix": "a", "cursor": f"{last}x"}, {"cursor": "1/x/0/1"}):
            status, answer = await answer_of(client, "GET", "/v1/timers", params=wrong)
            assert (status, answer["code"]) == (400, "cursor-invalid")


async def test_what_a_worker_does_not_answer_is_said(constants: Constants) -> None:
    cluster = SimCluster()
    missing = [{"partition": "timer-request/1", "reason": "no worker owns it"}]
    async with console(cluster) as client:
        cluster.answer = WorkerAnswer(200, {"timers": [], "missing": missing, "next": None})
        status, answer = await answer_of(client, "GET", "/v1/timers")
        assert (status, answer["complete"], answer["missing"]) == (200, False, missing)
        cluster.answer = WorkerAnswer(503, {"id": "x", "timers": [], "missing": missing})
        status, answer = await answer_of(client, "GET", "/v1/timer?id=x")
        assert (status, answer["code"], answer["missing"]) == (503, "worker-unreachable", missing)
        for worker_status, expected in ((403, "queries-off"), (503, "worker-unreachable"), (400, "parameter-invalid")):
            cluster.answer = WorkerAnswer(worker_status, {"error": "why"})
            status, answer = await answer_of(client, "GET", "/v1/timers")
            assert (answer["code"], answer["detail"]) == (expected, "why")
        cluster.answer = WorkerAnswer(429, {"error": "too many"})
        async with client.get("/v1/timers") as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "1")
            assert (await response.json(content_type=None))["code"] == "busy"
        cluster.answer, cluster.worker_fails = None, True
        constants(server_module, READY_S=-1.0)
        assert (await answer_of(client, "GET", "/v1/timers"))[0] == 503
        ready = await answer_of(client, "GET", "/v1/health/ready")
        assert ready == (200, {"ready": True, "reasons": ["no worker answers"]}), "it stays in its service"
        cluster.brokers_fail = True
        ready = await answer_of(client, "GET", "/v1/health/ready")
        assert ready == (503, {"ready": False, "reasons": ["no broker answers", "no worker answers"]})
        assert (await answer_of(client, "GET", "/v1/health/live"))[0] == 200


@pytest.mark.parametrize(
    "query",
    [
        *("topic=a%20b", "topic=a%0A", "from=-1", "to=x", "from=99999999999999", "limit=0", "limit=1001"),
        *("limit=1&limit=2", "value=yes", "prefix=", "colour=red"),
    ],
)
async def test_a_wrong_parameter_is_refused(query: str) -> None:
    cluster = SimCluster()
    async with console(cluster) as client:
        status, answer = await answer_of(client, "GET", f"/v1/timers?{query}")
        assert (status, answer["code"]) == (400, "parameter-invalid")
        for path in ("/v1/timer", "/v1/timer?id=", "/v1/timer?id=x&wait=1"):
            assert (await answer_of(client, "GET", path))[0] == 400
        for path in ("/v1/timer?id=x&wait=31", "/v1/timer?id=x&wait=-1", "/v1/timer?id=x&wait=nan"):
            assert (await answer_of(client, "DELETE", path))[0] == 400
    assert cluster.questions == []


async def test_unknown_paths_methods_and_errors_are_problems(caplog: pytest.LogCaptureFixture) -> None:
    cluster = SimCluster()
    async with console(cluster, TIMERS_CONSOLE_URL="http://localhost:1/base/path") as client:
        assert (await answer_of(client, "GET", "/v1/timers"))[1]["code"] == "not-found"
        async with client.request("PATCH", "/base/path/v1/timers") as response:
            assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD, OPTIONS, POST")
        assert (await answer_of(client, "GET", "/base/path/v1/openapi.json"))[1]["servers"] == [{"url": "/base/path"}]
        cluster.failure = RuntimeError("secret")  # type: ignore[assignment]
        status, answer = await answer_of(client, "POST", "/base/path/v1/timers", json=TIMER)
        assert (status, answer["code"]) == (500, "failed") and "secret" not in json.dumps(answer)
        async with client.get("/base/path/metrics") as response:
            assert 'timers_console_requests_total{route="setTimer",status="500"} 1.0' in await response.text()
            assert response.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(("topic", "is_found"), [("other", True), (None, True), ("orders", False)])
async def test_a_request_is_read_if_it_is_the_one_that_a_worker_has_described(
    monkeypatch: pytest.MonkeyPatch, topic: str | None, is_found: bool
) -> None:
    source, headers = "timer-request-by-id/0/7", [("timer-due", b"1900000000"), ("timer-topic", b"other")]

    async def read(*_: Any) -> dict[str, RequestRecord]:
        return {source: RequestRecord(7, b"one", b"v", headers, 1_800_000_000_000)}

    monkeypatch.setattr(kafka_cluster._Requests, "read", read)
    cluster = KafkaCluster(Settings.load({"TIMERS_BROKERS": "b:1"}))
    found = await cluster.stored_request("one", source, topic)
    assert (found and (found.topic, found.value)) == (("other", b"v") if is_found else None)
    await cluster.close()


async def test_a_timer_that_repeats_has_no_due_time_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    source, headers = "timer-request-by-id/0/7", [("timer-repeat", b"every=60"), ("timer-topic", b"orders")]

    async def read(*_: Any) -> dict[str, RequestRecord]:
        return {source: RequestRecord(7, b"one", b"v", headers, 1_800_000_000_000)}

    monkeypatch.setattr(kafka_cluster._Requests, "read", read)
    cluster = KafkaCluster(Settings.load({"TIMERS_BROKERS": "b:1"}))
    with pytest.raises(Problem, match="repeats, so it has no due time to change"):
        await cluster.stored_request("one", source, "orders")
    await cluster.close()


async def test_a_request_that_is_larger_than_this_console_allows_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    value, source = future.encode("orders", "k", b"x" * 3000), "timer-request-by-id/0/7"
    record = RequestRecord(7, b"one", value, [("timer-due", b"1900000000")], 1_800_000_000_000)

    async def read(*_: Any) -> dict[str, RequestRecord]:
        return {source: record}

    monkeypatch.setattr(kafka_cluster._Requests, "read", read)
    for limit in (4000, 2000):
        cluster = KafkaCluster(Settings.load({"TIMERS_BROKERS": "b:1", "TIMERS_MAX_REQUEST_BYTES": str(limit)}))
        if limit > len(value):
            found = await cluster.stored_request("one", source, None)
            assert found is not None and found.value == b"x" * 3000
        else:
            with pytest.raises(Problem, match="TIMERS_MAX_REQUEST_BYTES of this console") as raised:
                await cluster.stored_request("one", source, None)
            assert raised.value.code == "value-too-large"
        await cluster.close()
