"""``If-Match``, ``If-None-Match`` and ``Idempotency-Key`` of the HTTP API, over a cluster in memory."""

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness.sim_console import SimCluster, answer_of, console
from timers.client.request import TimerRequest
from timers.console import timer_pages
from timers.console.kafka_cluster import RequestDeletedError
from timers.errors import NoVerdictError, TimersError, UnacknowledgedError
from timers.wire.verdict import VerdictMessage

TIMER: dict[str, Any] = {"topic": "timeouts", "key": "k", "value": "unpaid", "delay": "15m"}
ONE = "/v1/timer?id=one"
NEW = {"If-None-Match": "*"}


async def tag_of(client: Any, path: str = ONE) -> dict[str, str]:
    async with client.get(path) as response:
        return {"If-Match": response.headers["ETag"]}


async def test_a_change_is_made_only_to_the_version_that_its_sender_has_seen() -> None:
    cluster = SimCluster()
    async with console(cluster, TIMERS_ID_TOPIC="sim-requests") as client:
        assert (await answer_of(client, "PUT", ONE, json=TIMER, headers={"If-Match": '"t/0/1"'}))[0] == 412
        assert cluster.timers == {}
        async with client.put(ONE, json=TIMER, headers=NEW) as response:
            assert (response.status, (await response.json())["verdict"]) == (201, "set")
            first = {"If-Match": response.headers["ETag"]}
        assert first == await tag_of(client)
        async with client.put(ONE, json=TIMER, headers=NEW) as response:
            answer = await response.json(content_type=None)
            assert (response.status, answer["code"]) == (412, "exists")
            assert response.headers["ETag"] == first["If-Match"] == f'"{answer["version"]}"' and answer["due"]
        assert (await answer_of(client, "POST", "/v1/timers", json={**TIMER, "id": "one"}, headers=NEW))[0] == 412
        assert (await answer_of(client, "PUT", ONE, json=TIMER, headers=first))[0] == 200
        second = await tag_of(client)
        assert second != first
        for method, more in (("PUT", {"json": TIMER}), ("PATCH", {"json": {"delay": 9}}), ("DELETE", {})):
            for wrong in (first["If-Match"], f"W/{second['If-Match']}", '"x"', '""'):
                status, answer = await answer_of(client, method, ONE, headers={"If-Match": wrong}, **more)
                assert (status, answer["code"]) == (412, "changed")
        assert (await answer_of(client, "PATCH", ONE, json={"delay": 900}, headers=second))[0] == 200
        second = await tag_of(client)
        assert (await answer_of(client, "DELETE", ONE, headers=second))[0] == 200
        assert (await answer_of(client, "DELETE", ONE, headers=second))[1]["code"] == "not-found"
        assert (await answer_of(client, "PUT", ONE, json=TIMER, headers=second))[1]["code"] == "changed"
        async with client.post("/v1/timers", json={**TIMER, "id": "two"}, headers=NEW) as response:
            assert response.status == 201
            two = {"If-Match": response.headers["ETag"]}
        cluster.fired.add(int(cluster.timers["two"].at))  # type: ignore[arg-type]
        for method, more in (("PUT", {"json": TIMER}), ("DELETE", {})):
            status, answer = await answer_of(client, method, "/v1/timer?id=two", headers=two, **more)
            assert (status, answer["code"]) == (409, "already-fired")


async def test_a_timer_is_not_moved_if_another_request_comes_in_between_and_moved_if_workers_judge_nothing() -> None:
    cluster = SimCluster()
    async with console(cluster, TIMERS_ID_TOPIC="sim-requests") as client:
        assert (await answer_of(client, "PUT", ONE, json=TIMER))[0] == 201
        stored = cluster.stored_request

        async def replaced_now(id: str, source: str, topic: str | None) -> TimerRequest | None:
            request = await stored(id, source, topic)
            cluster.sources[id] = "sim-requests/0/99"
            return request

        cluster.stored_request = replaced_now  # type: ignore[method-assign]
        status, answer = await answer_of(client, "PATCH", ONE, json={"delay": 9})
        assert (status, answer["code"], answer["version"]) == (412, "changed", "sim-requests/0/99")


async def test_after_a_cancel_there_is_no_timer_so_one_can_be_set_if_none_is(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SimCluster()
    async with console(cluster) as client:
        for _ in range(2):
            assert (await answer_of(client, "PUT", ONE, json=TIMER, headers=NEW))[1]["verdict"] == "set"
            assert (await answer_of(client, "DELETE", ONE))[0] == 200
        assert (await answer_of(client, "POST", "/v1/timers", json={**TIMER, "id": "one"}, headers=NEW))[0] == 201
        assert (await answer_of(client, "DELETE", ONE))[0] == 200
        asked: list[str | None] = []
        waits: list[float] = []
        times = itertools.count(0, 2)
        monkeypatch.setattr(timer_pages, "monotonic", lambda: next(times))

        async def cancelled_again(
            request: TimerRequest, condition: str | None, *, request_hash: bytes | None, timeout_s: float
        ) -> VerdictMessage:
            asked.append(condition)
            waits.append(timeout_s)
            return VerdictMessage("one", "changed" if len(asked) > 1 else "exists", None, f"t/0/{len(asked)}")

        cluster.update_if = cancelled_again  # type: ignore[assignment, method-assign]
        assert (await answer_of(client, "PUT", ONE, json=TIMER, headers=NEW))[0] == 412
        assert asked == ["absent", "t/0/1", "t/0/2", "t/0/3", "t/0/4"], "it ends"
        assert waits == [3, 1, 0, 0, 0], "all together wait no longer than the request says"


async def test_a_key_sets_one_timer_whose_first_answer_is_repeated() -> None:
    cluster = SimCluster()
    key = {"Idempotency-Key": '"8e03978e-40d5-43dd-bc93-6894a57f9324"'}
    async with console(cluster) as client:
        async with client.post("/v1/timers", json=TIMER, headers=key) as response:
            first = response.status, await response.json(), response.headers["Location"], response.headers["ETag"]
        assert first[0] == 201
        async with client.post("/v1/timers", json=dict(reversed(TIMER.items())), headers=key) as response:
            again = response.status, await response.json(), response.headers["Location"], response.headers["ETag"]
        assert again == first
        status, answer = await answer_of(client, "POST", "/v1/timers", json={**TIMER, "value": "x"}, headers=key)
        assert (status, answer["code"], answer["id"]) == (422, "idempotency-key-reused", first[1]["id"])
        other = await answer_of(client, "POST", "/v1/timers", json=TIMER, headers={"Idempotency-Key": "x"})
        assert other[0] == 201 and other[1]["id"] != first[1]["id"] and len(cluster.timers) == 2
        path = first[2]
        assert (await answer_of(client, "PUT", path, json=TIMER))[0] == 200
        status, answer = await answer_of(client, "POST", "/v1/timers", json=TIMER, headers=key)
        assert (status, answer["verdict"], answer["version"]) == (200, "exists", cluster.sources[first[1]["id"]])
        assert (await answer_of(client, "DELETE", path))[0] == 200
        status, answer = await answer_of(client, "POST", "/v1/timers", json=TIMER, headers=key)
        assert (status, answer["verdict"], answer["due"]) == (200, "exists", None), "what was cancelled stays so"
        assert len(cluster.timers) == 1

        named = {**TIMER, "id": "one"}
        assert (await answer_of(client, "POST", "/v1/timers", json=named, headers=key))[0] == 201
        assert (await answer_of(client, "POST", "/v1/timers", json=named, headers=key))[0] == 201
        status, answer = await answer_of(client, "POST", "/v1/timers", json=named, headers={"Idempotency-Key": "y"})
        assert (status, answer["code"]) == (412, "exists"), "another request has set this id"
    written = json.dumps(cluster.recorded)
    assert "8e03978e" in written


async def test_keys_of_two_users_are_two_keys_and_a_user_may_change_what_a_key_has_set(tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    hashed = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("ann", "bob")}
    users.write_text(
        "".join(
            f'[[user]]\nname = "{name}"\nrole = "operator"\ntoken_sha256 = "{hash}"\n'
            'topics = ["timeouts"]\nids = ["a/*"]\n'
            for name, hash in hashed.items()
        )
    )
    users.chmod(0o600)
    cluster = SimCluster()
    async with console(cluster, TIMERS_CONSOLE_USERS_FILE=str(users)) as client:
        ids = []
        for name in hashed:
            headers = {"Authorization": f"Bearer {name}", "Idempotency-Key": "1"}
            status, answer = await answer_of(client, "POST", "/v1/timers", json=TIMER, headers=headers)
            assert status == 201, answer
            ids.append(answer["id"])
        assert len(cluster.timers) == 2
        ann = {"Authorization": "Bearer ann"}
        assert (await answer_of(client, "DELETE", f"/v1/timer?id={ids[1]}", headers=ann))[1]["code"] == "id-forbidden"
        assert (await answer_of(client, "DELETE", f"/v1/timer?id={ids[0]}", headers=ann))[0] == 200


@pytest.mark.parametrize(
    ("method", "headers", "status", "code"),
    [
        ("POST", {"If-Match": '"t/0/1"'}, 501, "condition-unsupported"),
        ("POST", {"If-None-Match": "*"}, 400, "parameter-invalid"),
        ("POST", {"If-None-Match": "t/0/1"}, 400, "parameter-invalid"),
        ("PUT", {"If-Match": "t/0/1"}, 400, "parameter-invalid"),
        ("POST", {"If-Unmodified-Since": "Mon, 01 Jan 2029 00:00:00 GMT"}, 501, "condition-unsupported"),
        ("PUT", {"Idempotency-Key": "x"}, 501, "condition-unsupported"),
        ("PUT", {"If-Match": "*"}, 501, "condition-unsupported"),
        ("PUT", {"If-Match": '"t/0/1", "t/0/2"'}, 501, "condition-unsupported"),
        ("PUT", {"If-None-Match": '"t/0/1"'}, 501, "condition-unsupported"),
        ("PUT", {"If-None-Match": "*", "If-Match": '"t/0/1"'}, 400, "parameter-invalid"),
        ("DELETE", {"If-None-Match": "*"}, 501, "condition-unsupported"),
        ("POST", {"If-None-Match": "*", "Idempotency-Key": "x"}, 400, "parameter-invalid"),
        ("POST", {"Idempotency-Key": ""}, 400, "parameter-invalid"),
        ("POST", {"Idempotency-Key": "x" * 256}, 400, "parameter-invalid"),
        ("POST", {"Idempotency-Key": "ü"}, 400, "parameter-invalid"),
    ],
)
async def test_a_condition_is_kept_or_refused(method: str, headers: dict[str, str], status: int, code: str) -> None:
    cluster = SimCluster()
    async with console(cluster) as client:
        path = "/v1/timers" if method == "POST" else ONE
        body = {} if method == "DELETE" else {"json": TIMER}
        found, answer = await answer_of(client, method, path, headers=headers, **body)
        assert (found, answer["code"]) == (status, code), answer
        twice = [("Idempotency-Key", "x"), ("Idempotency-Key", "y")]
        assert (await answer_of(client, "POST", "/v1/timers", json=TIMER, headers=twice))[0] == 400
        cancelling = await answer_of(client, "POST", "/v1/timers/cancel", json={"prefix": "a"}, headers=NEW)
        assert cancelling[1]["code"] == "condition-unsupported"
    assert cluster.timers == {}


@pytest.mark.parametrize(
    ("failure", "status", "said"),
    [
        (UnacknowledgedError("no answer"), 504, "unknown"),
        (NoVerdictError("none came"), 202, "undecided"),
    ],
)
async def test_what_is_not_known_is_not_said(failure: TimersError, status: int, said: str) -> None:
    cluster = SimCluster()
    cluster.failure = failure
    async with console(cluster) as client:
        for method, path, headers in (
            ("POST", "/v1/timers", {"Idempotency-Key": "x"}),
            ("PUT", ONE, NEW),
            ("PUT", ONE, {"If-Match": '"t/0/1"'}),
            ("DELETE", ONE, {"If-Match": '"t/0/1"'}),
        ):
            body = {} if method == "DELETE" else {"json": TIMER}
            found, answer = await answer_of(client, method, path, headers=headers, **body)
            assert (found, answer.get("code", answer.get("verdict"))) == (status, said)
        cluster.failure = None
        assert (await answer_of(client, "POST", "/v1/timers", json=TIMER, headers={"Idempotency-Key": "x"}))[0] == 201
        cluster.request_hash = _no_answer  # type: ignore[method-assign]
        status, answer = await answer_of(client, "POST", "/v1/timers", json=TIMER, headers={"Idempotency-Key": "x"})
        assert (status, answer["code"]) == (503, "brokers-unreachable")
    assert len(cluster.timers) == 1


async def _no_answer(source: str) -> bytes | None:
    raise TimersError("no broker answers")


async def test_a_timer_with_a_key_may_have_null_as_its_id() -> None:
    async with console(SimCluster(), TIMERS_ID_TOPIC="sim-requests") as client:
        body, key = {**TIMER, "id": None}, {"Idempotency-Key": "null"}
        first = await answer_of(client, "POST", "/v1/timers", json=body, headers=key)
        assert first[0] == 201 and first[1]["id"].startswith("key-")
        assert await answer_of(client, "POST", "/v1/timers", json=body, headers=key) == first


async def _deleted(*_: str) -> Any:
    raise RequestDeletedError("the request t/0/1 is no longer in its log: t/0 begins at offset 9")


async def test_a_key_whose_request_is_no_longer_in_its_log_sets_nothing_and_does_not_guess() -> None:
    cluster, key = SimCluster(), {"Idempotency-Key": "x"}
    named = {**TIMER, "id": "one"}
    async with console(cluster) as client:
        first = (await answer_of(client, "POST", "/v1/timers", json=TIMER, headers=key))[1]
        assert (await answer_of(client, "POST", "/v1/timers", json=named, headers=key))[0] == 201
        cluster.request_hash = _deleted  # type: ignore[assignment,method-assign]
        status, answer = await answer_of(client, "POST", "/v1/timers", json={**TIMER, "value": "x"}, headers=key)
        assert (status, answer["verdict"], answer["id"]) == (200, "exists", first["id"]), "the bodies are not compared"
        status, answer = await answer_of(client, "POST", "/v1/timers", json=named, headers=key)
        assert (status, answer["code"]) == (409, "request-deleted")
        assert "not known whether it had this Idempotency-Key" in answer["detail"]
        assert answer["version"] == cluster.sources["one"]
    assert len(cluster.timers) == 2


@pytest.mark.parametrize("shown", ["values", "timers"])
async def test_a_timer_whose_request_is_no_longer_in_its_log_is_moved_as_its_worker_has_stored_it(shown: str) -> None:
    cluster = SimCluster()
    async with console(cluster, TIMERS_QUERIES=shown, TIMERS_ID_TOPIC="sim-requests") as client:
        body = {**TIMER, "value": {"base64": "/w=="}, "headers": [["a", "1"], ["a", None]]}
        assert (await answer_of(client, "PUT", ONE, json=body))[0] == 201
        before = cluster.timers["one"]
        cluster.stored_request = _deleted  # type: ignore[assignment,method-assign]
        status, answer = await answer_of(client, "PATCH", ONE, json={"at": 2_000_000_000})
        if shown == "timers":
            assert (status, answer["code"]) == (409, "request-deleted"), "it waits, so it is not said to be absent"
            assert "TIMERS_QUERIES=values" in answer["detail"]
            assert cluster.timers["one"] == before
        else:
            assert (status, answer["verdict"]) == (200, "replaced")
            after = cluster.timers["one"]
            assert (after.topic, after.key, after.value) == (before.topic, before.key, b"\xff")
            assert (after.at, list(after.headers or ())) == (2_000_000_000, [("a", "1"), ("a", None)])
