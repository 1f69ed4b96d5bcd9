"""The HTTP API for dead letters: pages, one, and retries in two steps."""

from pathlib import Path
from typing import Any

import pytest

from tests.harness.console_pages import letter
from tests.harness.console_users import USERS, bearer
from tests.harness.sim_console import SimCluster, answer_of, console
from timers.console.letter_box import FoundLetters
from timers.errors import PublishError, RetryRefusedError, TimersError
from timers.offline.dead_letters.letters import LetterPage

TOPIC = "timer-dead-letter"


@pytest.fixture
def cluster() -> SimCluster:
    cluster = SimCluster()
    for offset in range(5):
        code = "topic-denied" if offset % 2 else "topic-unknown"
        cluster.dead_letters.append(letter(offset, code, "tenant-a" if offset < 2 else "orders"))
    return cluster


async def test_pages_begin_with_the_newest(cluster: SimCluster) -> None:
    async with console(cluster) as client:
        seen: list[str] = []
        path = "/v1/dead-letters?limit=2"
        _, answer = await answer_of(client, "GET", path)
        while True:
            seen += [each["position"] for each in answer["dead_letters"]]
            if answer["next"] is None:
                break
            _, answer = await answer_of(client, "GET", f"{path}&cursor={answer['next']}")
        assert seen == [f"{TOPIC}/0/{offset}" for offset in (4, 3, 2, 1, 0)]
        _, answer = await answer_of(client, "GET", "/v1/dead-letters?code=topic-denied&code=topic-invalid&topic=orders")
        assert [each["position"] for each in answer["dead_letters"]] == [f"{TOPIC}/0/3"]
        for query in ("code=nonsense", "since=x", "cursor=x.y", "code=topic-denied&colour=red"):
            assert (await answer_of(client, "GET", f"/v1/dead-letters?{query}"))[0] == 400, query


async def test_one_is_found_by_each_of_its_names(cluster: SimCluster) -> None:
    async with console(cluster, TIMERS_QUERIES="values") as client:
        for name in ("0/3", f"{TOPIC}/0/3", "timer-request/1/103"):
            status, answer = await answer_of(client, "GET", f"/v1/dead-letter?name={name}")
            assert (status, answer["code"], answer["topic"]) == (200, "topic-denied", "orders")
            assert "request" not in answer
        _, answer = await answer_of(client, "GET", "/v1/dead-letter?name=0/3&value=1")
        assert "secret" in answer["request"]["value"]
        assert (await answer_of(client, "GET", "/v1/dead-letter?name=0/77"))[0] == 404
        assert (await answer_of(client, "GET", "/v1/dead-letter?name=a"))[0] == 400
    async with console(cluster) as client:
        assert (await answer_of(client, "GET", "/v1/dead-letter?name=0/3&value=1"))[0] == 403


async def retry(client: Any, **body: Any) -> tuple[int, Any]:
    return await answer_of(client, "POST", "/v1/dead-letters/retry", json=body)


async def test_named_ones_are_retried_at_once_and_a_filter_takes_two_requests(cluster: SimCluster) -> None:
    async with console(cluster) as client:
        assert (await retry(client, names=["0/3"], dry_run=True))[1]["published"] == 0
        assert cluster.retried == []
        status, answer = await retry(client, names=["0/3"])
        assert (status, answer["published"], answer["confirm"]) == (200, 1, None)
        assert cluster.retried == [f"{TOPIC}/0/3"]
        assert (await retry(client, names=["0/3", "0/99"]))[0] == 404
        selection = {"codes": ["topic-unknown"], "topic": "orders"}
        _, first = await retry(client, **selection)
        assert (first["requests"], first["published"]) == (2, 0)
        assert len(cluster.retried) == 1, "the first request only looks"
        assert (await retry(client, **selection, contains="k"))[1]["requests"] == 2
        assert (await retry(client, contains="no letter has it"))[1]["requests"] == 0
        for wrong in ({"codes": ["topic-unknown"]}, {**selection, "since": 0}, {**selection, "contains": "k"}):
            assert (await retry(client, **wrong, confirm=first["confirm"]))[1]["code"] == "cursor-invalid"
        _, second = await retry(client, **selection, confirm=first["confirm"])
        assert second["published"] == 2
        assert len(cluster.retried) == 3
        wrong_bodies: list[dict[str, Any]] = [{}, {"names": []}, {"names": "0/1"}, {"dry_run": True}]
        wrong_bodies.append({"names": ["0/1"], "topic": "orders"})
        for body in wrong_bodies:
            assert (await retry(client, **body))[0] == 400, body


async def test_a_retry_of_many_goes_on_with_the_confirmation_of_its_last_step(cluster: SimCluster) -> None:
    cluster.retry_step = 2
    async with console(cluster) as client:
        _, answer = await retry(client, topic="orders")
        cluster.dead_letters.append(letter(5, "topic-unknown", "orders"))  # after the look
        steps = []
        while answer["confirm"] is not None:
            _, answer = await retry(client, topic="orders", confirm=answer["confirm"])
            steps.append((answer["published"], answer["more"]))
            assert "rest" not in answer
    assert steps == [(0, True), (2, True), (1, False)]
    assert cluster.retried == [f"{TOPIC}/0/{offset}" for offset in (2, 3, 4)]


async def test_an_answer_says_for_which_letters_a_retry_is_not_known(cluster: SimCluster) -> None:
    cluster.unsure = {f"{TOPIC}/0/3"}
    async with console(cluster) as client:
        _, answer = await answer_of(client, "GET", "/v1/dead-letters")
        assert [each["position"] for each in answer["dead_letters"] if not each["retry_known"]] == [f"{TOPIC}/0/3"]
        assert (await answer_of(client, "GET", "/v1/dead-letter?name=0/3"))[1]["retry_known"] is False


async def test_an_answer_names_partitions_without_a_leader(cluster: SimCluster) -> None:
    cluster.missing = {f"{TOPIC}/1": "its leader does not answer"}
    named = [{"partition": f"{TOPIC}/1", "reason": "its leader does not answer"}]
    async with console(cluster) as client:
        assert (await answer_of(client, "GET", "/v1/dead-letters"))[1]["missing"] == named
        assert (await retry(client, topic="orders"))[1]["missing"] == named
        status, answer = await answer_of(client, "GET", "/v1/dead-letter?name=timer-request/1/999")
        assert (status, answer["code"]) == (503, "brokers-unreachable"), "it may be in that partition"
        page = await (await client.get("/dead-letters", headers={"Accept": "text/html"})).text()
        assert "This answer is not complete" in page


async def test_a_letter_that_could_not_be_looked_for_in_time_is_not_called_missing(cluster: SimCluster) -> None:
    async def ended(*_: object) -> FoundLetters:
        return FoundLetters(LetterPage([], {0: 4}), {}, frozenset(), {})

    cluster.letters = ended  # type: ignore[assignment, method-assign]
    async with console(cluster) as client:
        status, answer = await answer_of(client, "GET", "/v1/dead-letter?name=timer-request/1/103")
        assert (status, answer["code"]) == (503, "busy") and "by its position" in answer["detail"]


async def test_a_confirmation_to_retry_does_not_cancel_timers(cluster: SimCluster) -> None:
    async with console(cluster, TIMERS_ID_TOPIC="sim-requests") as client:
        body = {"topic": "orders"}
        retry = (await answer_of(client, "POST", "/v1/dead-letters/retry", json=body))[1]["confirm"]
        cancel = (await answer_of(client, "POST", "/v1/timers/cancel", json=body))[1]["confirm"]
        for path, confirm in (("/v1/timers/cancel", retry), ("/v1/dead-letters/retry", cancel)):
            status, answer = await answer_of(client, "POST", path, json={**body, "confirm": confirm})
            assert (status, answer["code"]) == (400, "cursor-invalid")


async def test_a_user_sees_and_retries_the_letters_of_its_topics_only(cluster: SimCluster, tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    path.write_text(USERS)
    as_tenant: dict[str, Any] = {"headers": bearer("tenant")}
    async with console(cluster, TIMERS_CONSOLE_USERS_FILE=str(path)) as client:
        _, answer = await answer_of(client, "GET", "/v1/dead-letters", **as_tenant)
        assert {each["topic"] for each in answer["dead_letters"]} == {"tenant-a"}
        assert (await answer_of(client, "GET", "/v1/dead-letters?topic=orders", **as_tenant))[0] == 403
        assert (await answer_of(client, "GET", "/v1/dead-letter?name=0/3", **as_tenant))[0] == 404
        for body, status in (
            ({"names": ["0/3"]}, 404),
            ({"names": ["0/1", "0/3"]}, 404),
            ({"codes": ["topic-denied"]}, 403),
            ({"topic": "orders"}, 403),
            ({"names": ["0/1"]}, 200),
        ):
            found, _ = await answer_of(client, "POST", "/v1/dead-letters/retry", json=body, **as_tenant)
            assert found == status, body
    assert cluster.retried == [f"{TOPIC}/0/1"]


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (PublishError("no answer"), "unknown"),
        (RetryRefusedError("cannot be retried"), "conflict"),
        (TimersError("no broker answers"), "brokers-unreachable"),
    ],
)
async def test_a_failed_retry_is_unknown_or_says_why(cluster: SimCluster, failure: TimersError, code: str) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise failure

    cluster.retry = fail  # type: ignore[assignment, method-assign]
    async with console(cluster) as client:
        assert (await retry(client, names=["0/3"]))[1]["code"] == code
