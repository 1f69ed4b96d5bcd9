"""Many timers in one request: cancels of a filter, counted first, confirmed and in steps; and batches of new timers."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness.console_users import USERS, bearer
from tests.harness.constants import Constants
from tests.harness.sim_console import TOPIC, SimCluster, answer_of, console
from timers.client.request import TimerRequest
from timers.console import timer_pages
from timers.errors import NoVerdictError, PublishError
from timers.wire.verdict import VerdictMessage


def cluster_of(count: int) -> SimCluster:
    """Timers with ids for two tenants, and two timers without an id."""
    cluster = SimCluster()
    for number in range(count):
        owner = "tenant" if number % 2 else "other"
        id = f"{owner}/{number:03}"
        cluster.timers[id] = TimerRequest(f"{owner}-a", None, b"", 1_900_000_000, id=id)
    for number in range(2):
        cluster.timers[f"plain/0/{number}"] = TimerRequest("tenant-a", None, b"", 1_900_000_000)
    return cluster


async def cancel(client: Any, headers: Any = None, **body: Any) -> tuple[int, Any]:
    return await answer_of(client, "POST", "/v1/timers/cancel", json=body, headers=headers)


async def test_all_that_match_are_cancelled_in_steps(constants: Constants) -> None:
    constants(timer_pages, AT_ONCE=7, MAX_COUNTING_S=1000.0)
    cluster = cluster_of(60)
    async with console(cluster, TIMERS_ID_TOPIC=TOPIC) as client:
        _, first = await cancel(client, topic="tenant-a")
        assert (first["matching"], first["left_out"], first["at_least"], len(first["sample"])) == (30, 2, False, 10)
        assert len(cluster.timers) == 62, "the first request only counts"
        assert (await cancel(client, topic="other-a", confirm=first["confirm"]))[1]["code"] == "cursor-invalid"
        constants(timer_pages, MAX_STEP_S=-1.0)
        _, step = await cancel(client, topic="tenant-a", confirm=first["confirm"])
        assert (step["verdicts"]["cancelled"], step["verdicts"]["left_out"]) == (5, 2) and step["next"]
        assert len(cluster.timers) == 57, "a step ends when its time is over"
        constants(timer_pages, MAX_STEP_S=1000.0)
        _, step = await cancel(client, topic="tenant-a", confirm=first["confirm"])
        assert (step["verdicts"]["cancelled"], step["next"]) == (25, None)
    assert {id.split("/")[0] for id in cluster.timers} == {"other", "plain"}
    recorded = [id for entry in cluster.recorded for id in entry.get("ids", ())]
    assert len(recorded) == 30 and all(id.startswith("tenant/") for id in recorded)


@pytest.mark.parametrize(("is_held", "verdicts"), [(False, (2, 1)), (True, (3, 0))])
async def test_a_timer_that_was_changed_meanwhile_is_not_cancelled(is_held: bool, verdicts: tuple[int, int]) -> None:
    """Its new version may go to a topic that the filter, or the user, does not have. For a held one a condition is too
    late."""
    cluster = cluster_of(6)
    listing = cluster.ask

    async def ask(path: str, parameters: Any) -> Any:
        answer = await listing(path, parameters)
        if parameters.get("limit") == str(timer_pages.AT_ONCE):
            cluster.timers["tenant/001"] = TimerRequest("other-a", None, b"", 1_950_000_000, id="tenant/001")
            cluster.sources["tenant/001"] = f"{TOPIC}/0/99"
            for timer in answer.body["timers"] if is_held else ():
                timer["held"] = {"reason": "pause", "number": 7, "since": 1}
        return answer

    cluster.ask = ask  # type: ignore[method-assign]
    async with console(cluster, TIMERS_ID_TOPIC=TOPIC) as client:
        _, first = await cancel(client, topic="tenant-a")
        _, step = await cancel(client, topic="tenant-a", confirm=first["confirm"])
    assert (step["verdicts"]["cancelled"], step["verdicts"].get("changed", 0)) == verdicts
    assert ("tenant/001" in cluster.timers) != is_held


async def test_a_user_cancels_only_what_it_may(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    path.write_text(USERS)
    cluster = cluster_of(20)
    cluster.timers["foreign/1"] = TimerRequest("tenant-a", None, b"", 1_900_000_000, id="foreign/1")
    async with console(cluster, TIMERS_ID_TOPIC=TOPIC, TIMERS_CONSOLE_USERS_FILE=str(path)) as client:
        assert (await cancel(client, bearer("rob"), topic="tenant-a"))[0] == 403
        assert (await cancel(client, bearer("tenant"), topic="other-a"))[1]["code"] == "topic-forbidden"
        _, first = await cancel(client, bearer("tenant"), to=2_000_000_000)
        assert first["matching"] == 10
        assert (await cancel(client, bearer("ada"), to=2_000_000_000, confirm=first["confirm"]))[0] == 400
        _, step = await cancel(client, bearer("tenant"), to=2_000_000_000, confirm=first["confirm"])
        assert step["verdicts"]["cancelled"] == 10
    assert "foreign/1" in cluster.timers and sum(id.startswith("other/") for id in cluster.timers) == 10


async def test_what_is_undecided_or_not_answered_is_said() -> None:
    cluster = cluster_of(4)
    async with console(cluster, TIMERS_ID_TOPIC=TOPIC) as client:
        _, first = await cancel(client, topic="tenant-a")
        cluster.failure = NoVerdictError("none came")
        _, step = await cancel(client, topic="tenant-a", confirm=first["confirm"])
        assert step["verdicts"]["undecided"] == 2
        cluster.worker_fails = True
        assert (await cancel(client, topic="tenant-a", confirm=first["confirm"]))[0] == 503
        assert (await cancel(client))[0] == 400
    async with console(cluster, TIMERS_ID_TOPIC="") as client:
        assert (await cancel(client, topic="tenant-a"))[1]["code"] == "ids-off"


async def test_a_step_that_fails_says_what_it_has_done_and_can_be_repeated(constants: Constants) -> None:
    constants(timer_pages, AT_ONCE=10, MAX_STEP_S=1000.0)
    cluster = cluster_of(60)
    cancel_one, refused = cluster.cancel, {"tenant/031"}

    async def fail(id: str, **named: Any) -> VerdictMessage:
        if id in refused:
            raise PublishError("the brokers refuse it")
        await asyncio.sleep(0)  # others of the page are answered later
        return await cancel_one(id, **named)

    cluster.cancel = fail  # type: ignore[method-assign]
    async with console(cluster, TIMERS_ID_TOPIC=TOPIC) as client:
        _, first = await cancel(client, topic="tenant-a")
        status, problem = await cancel(client, topic="tenant-a", confirm=first["confirm"])
        assert (status, problem["code"]) == (502, "publish-refused")
        left = sum(id.startswith("tenant/") for id in cluster.timers)
        assert 0 < left < 20 and problem["verdicts"]["cancelled"] == 30 - left
        refused.clear()
        cluster.worker_fails = True
        status, again = await cancel(client, topic="tenant-a", confirm=problem["next"])
        assert (status, sum(again["verdicts"].values())) == (503, 0)
        cluster.worker_fails = False
        _, step = await cancel(client, topic="tenant-a", confirm=again["next"])
        assert (step["verdicts"]["cancelled"], step["next"]) == (left, None)
        assert problem["verdicts"]["left_out"] + step["verdicts"]["left_out"] == 2, "counted once"
    assert not any(id.startswith("tenant/") for id in cluster.timers)


async def set_many(client: Any, *timers: Any, **body: Any) -> tuple[int, Any]:
    return await answer_of(client, "POST", "/v1/timers/batch", json={"timers": [*timers], **body})


def one(id: str, **fields: Any) -> dict[str, Any]:
    return {"topic": "orders", "value": {"order": id}, "delay": 60, "id": id, **fields}


async def test_a_batch_sets_up_to_a_thousand_timers_with_json_as_values() -> None:
    cluster = SimCluster()
    async with console(cluster) as client:
        status, answer = await set_many(client, *(one(f"o-{number}") for number in range(1000)))
        assert (status, answer["failed"], len(answer["timers"])) == (201, 0, 1000)
        assert [each["id"] for each in answer["timers"]] == [f"o-{number}" for number in range(1000)]
        assert cluster.timers["o-17"].value == b'{"order":"o-17"}'
        assert (await set_many(client, *(one(f"p-{number}") for number in range(1001))))[0] == 400
        assert len(cluster.timers) == 1000


@pytest.mark.parametrize(
    ("wrong", "code", "said"),
    [
        (one("b", topic="no topic"), "topic-invalid", "timers[1]: topic"),
        (one("b", delay=-1), "due-invalid", "timers[1]: "),
        (one("b", colour="red"), "field-invalid", "timers[1]: there is no field"),
        (one("b", value=None), "value-missing", "timers[1]: value is missing"),
        ("text", "parameter-invalid", "timers[1] is no object"),
    ],
)
async def test_a_batch_with_a_wrong_timer_is_refused_and_names_its_place(wrong: Any, code: str, said: str) -> None:
    cluster = SimCluster()
    async with console(cluster) as client:
        status, answer = await set_many(client, one("a"), wrong, one("c"))
        assert 400 <= status < 500
        assert (answer["code"], answer["place"]) == (code, 1) and answer["detail"].startswith(said)
        assert cluster.timers == {}
        bodies: list[dict[str, Any]] = [{"timers": []}, {"timers": {}}, {}, {"timers": [one("a")], "more": 1}]
        for body in bodies:
            given = await answer_of(client, "POST", "/v1/timers/batch", json=body)
            assert (given[0], given[1]["code"]) == (400, "parameter-invalid"), body


async def test_a_timer_of_a_batch_that_is_not_written_is_named_and_the_others_are_set() -> None:
    cluster = SimCluster()
    write = cluster.schedule_request

    async def schedule(request: Any) -> str:
        if request.id == "b":
            raise PublishError("the brokers refuse it")
        return await write(request)

    cluster.schedule_request = schedule  # type: ignore[method-assign]
    async with console(cluster) as client:
        status, answer = await set_many(client, one("a"), one("b"), one("c"))
        assert (status, answer["failed"]) == (201, 1)
        assert [each.get("id") for each in answer["timers"]] == ["a", None, "c"]
        assert answer["timers"][1]["code"] == "publish-refused"
        assert (await set_many(client, one("b")))[1]["code"] == "publish-refused"
        assert '"order"' not in json.dumps(cluster.recorded[0]), "the log of changes has no values"
        assert [each["id"] for each in cluster.recorded[0]["body"]["timers"]["listed"]] == ["a", "b", "c"]


async def test_an_error_that_no_code_expects_does_not_hide_what_else_a_batch_has_set() -> None:
    cluster = SimCluster()
    write = cluster.schedule_request

    async def schedule(request: Any) -> str:
        if request.id == "b":
            raise RuntimeError("secret")
        return await write(request)

    cluster.schedule_request = schedule  # type: ignore[method-assign]
    async with console(cluster) as client:
        status, answer = await set_many(client, one("a"), one("b"))
    assert (status, answer["failed"]) == (201, 1) and "secret" not in json.dumps(answer)
    assert (answer["timers"][0]["id"], answer["timers"][1]["code"]) == ("a", "unknown")
