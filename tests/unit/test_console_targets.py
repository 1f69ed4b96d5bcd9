"""The HTTP API and the pages of paused callback topics."""

from pathlib import Path
from typing import Any

import pytest

from tests.harness.console_pages import HTML, PART
from tests.harness.console_users import USERS, bearer
from tests.harness.constants import Constants
from tests.harness.sim_console import SimCluster, answer_of, console
from timers.client.request import TimerRequest
from timers.console import target_pages
from timers.errors import AccessError, TimersError, UnacknowledgedError

PAUSE, RESUME, CREATE = (f"/v1/targets/{name}" for name in ("pause", "resume", "create"))


@pytest.fixture
def cluster() -> SimCluster:
    cluster = SimCluster()
    cluster.topic_names = {"mails", "tenant-mails"}
    cluster.timers["a"] = TimerRequest("mails", None, "", at=1_900_000_000)
    return cluster


async def listed(client: Any) -> dict[str, Any]:
    _, answer = await answer_of(client, "GET", "/v1/targets")
    return {each["topic"]: each for each in answer["targets"]}


async def test_a_topic_is_paused_looked_at_and_resumed(cluster: SimCluster) -> None:
    async with console(cluster) as client:
        status, answer = await answer_of(client, "POST", PAUSE, json={"topic": "mails", "for": "1h", "why": "down"})
        assert status == 200
        until_s = cluster.now_s + 3600
        command = {"topic": "mails", "number": 1, "paused": True, "until_s": until_s, "over_s": 600}
        assert answer == command | {"replaced": None, "changed_since": False}
        shown = (await listed(client))["mails"]
        assert (shown["state"], shown["held"], shown["until_s"], shown["why"]) == ("paused", 1, until_s, "down")
        status, answer = await answer_of(client, "POST", RESUME, json={"topic": "mails", "over": "10m"})
        assert (status, answer["number"], answer["paused"], answer["over_s"]) == (200, 2, False, 600)
        assert (answer["replaced"]["until_s"], answer["replaced"]["why"]) == (until_s, "down")
        shown = (await listed(client))["mails"]
        assert (shown["state"], shown["why"]) == ("going-on", "down")
    assert [entry["operation"] for entry in cluster.recorded] == ["pauseTarget", "resumeTarget"]


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "says"),
    [
        (PAUSE, {"topic": "mail"}, 422, "target-refused", "did you mean 'mails'? "),
        (PAUSE, {"topic": "mail*"}, 400, "parameter-invalid", "the name of one callback topic, without a pattern"),
        (PAUSE, {"topic": "timers-progress"}, 422, "target-refused", "is internal"),
        (PAUSE, {"topic": "mails", "for": "soon"}, 400, "parameter-invalid", "such as 1h30m"),
        (PAUSE, {"topic": "mails", "for": "0s"}, 422, "target-refused", "a pause lasts 1 s to 366 days"),
        (RESUME, {"topic": "mails"}, 422, "target-refused", "'mails' is not paused"),
        (RESUME, {"topic": "mails", "over": "31d"}, 422, "target-refused", "a release takes up to 30 days"),
    ],
)
async def test_what_is_wrong_is_named(
    cluster: SimCluster, path: str, body: dict[str, str], status: int, code: str, says: str
) -> None:
    async with console(cluster) as client:
        found, answer = await answer_of(client, "POST", path, json=body)
    assert (found, answer["code"]) == (status, code)
    assert says in answer["detail"]
    assert not cluster.known_targets


async def test_a_topic_is_created_unless_it_exists(cluster: SimCluster) -> None:
    async with console(cluster, TIMERS_CALLBACK_DENY="secret-*") as client:
        for status, is_new in ((201, True), (200, False)):
            assert await answer_of(client, "POST", CREATE, json={"topic": "sms"}) == (
                status,
                {"topic": "sms", "created": is_new},
            )
        for name in ("timers-progress", "secret-1"):
            status, answer = await answer_of(client, "POST", CREATE, json={"topic": name})
            assert (status, answer["code"]) == (422, "target-refused"), answer
            assert "so no timer would fire there" in answer["detail"]
        for name in ("queue.jobs-returns", "timers-canary"):
            status, answer = await answer_of(client, "POST", CREATE, json={"topic": name})
            assert (status, answer["code"]) == (422, "target-refused"), answer
            assert "the configuration that it needs" in answer["detail"]
        cluster.failure = AccessError("ops may not create topics")
        status, answer = await answer_of(client, "POST", CREATE, json={"topic": "faxes"})
        assert (status, answer["code"]) == (502, "access-refused")
    assert cluster.topic_names == {"mails", "tenant-mails", "sms"}
    assert {entry["operation"] for entry in cluster.recorded} == {"createTarget"}


async def test_a_key_gives_one_command(cluster: SimCluster) -> None:
    key = {"Idempotency-Key": "incident-17"}
    async with console(cluster) as client:
        for _ in range(2):
            _, answer = await answer_of(client, "POST", PAUSE, json={"topic": "mails", "for": "1h"}, headers=key)
            assert (answer["number"], answer["changed_since"]) == (1, False)
            cluster.now_s += 10
        status, answer = await answer_of(client, "POST", PAUSE, json={"topic": "mails"}, headers=key)
        assert (status, answer["code"]) == (422, "idempotency-key-reused")
        other = {"topic": "tenant-mails", "for": "1h"}
        status, answer = await answer_of(client, "POST", PAUSE, json=other, headers=key)
        assert (status, answer["code"]) == (422, "idempotency-key-reused")
        await answer_of(client, "POST", RESUME, json={"topic": "mails"})
        _, answer = await answer_of(client, "POST", PAUSE, json={"topic": "mails", "for": "1h"}, headers=key)
        changed = (answer["number"], answer["paused"], answer["changed_since"])
        assert changed == (2, False, True), "a late copy of the request does not pause it again"


@pytest.mark.parametrize(
    ("failure", "status", "code", "outcome"),
    [
        (UnacknowledgedError("no broker answers"), 504, "unknown", "unknown"),
        (TimersError("no broker answers"), 503, "brokers-unreachable", None),
        (AccessError("ops may not do that"), 502, "publish-refused", None),
    ],
)
async def test_only_what_may_have_been_given_is_unknown(
    cluster: SimCluster, failure: TimersError, status: int, code: str, outcome: str | None
) -> None:
    cluster.failure = failure
    async with console(cluster) as client:
        found, answer = await answer_of(client, "POST", PAUSE, json={"topic": "mails"})
    assert (found, answer["code"], answer.get("outcome")) == (status, code, outcome)


async def test_roles_and_topics_of_users_count(cluster: SimCluster, tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    users.write_text(USERS)
    users.chmod(0o600)
    async with console(cluster, TIMERS_CONSOLE_USERS_FILE=str(users)) as client:
        for name, topic, status in (("rob", "mails", 403), ("tenant", "mails", 403), ("tenant", "tenant-mails", 200)):
            found, _ = await answer_of(client, "POST", PAUSE, json={"topic": topic}, headers=bearer(name))
            assert found == status, (name, topic)
        await answer_of(client, "POST", PAUSE, json={"topic": "mails"}, headers=bearer("ada"))
        for name, seen in (("rob", ["mails", "tenant-mails"]), ("tenant", ["tenant-mails"])):
            _, answer = await answer_of(client, "GET", "/v1/targets", headers=bearer(name))
            assert [each["topic"] for each in answer["targets"]] == seen
    assert cluster.known_targets["mails"].by == "ada"


async def test_the_page_pauses_and_shows_what_a_release_would_do(cluster: SimCluster) -> None:
    async with console(cluster) as client:
        async with client.post(
            "/targets/pause", data={"topic": "mails", "for": "", "why": "<down>"}, headers=PART
        ) as done:
            assert done.status == 200 and "is paused" in await done.text()
        async with client.get("/targets", headers=HTML) as page:
            text = await page.text()
            assert "&lt;down&gt;" in text and "it is resumed" in text
        form = {"topic": "mails", "over": "10s"}
        async with client.post("/targets/resume", data=form, headers=PART) as preview:
            text = await preview.text()
            assert "<strong>1</strong> timer of <strong>mails</strong> is held.</p>" in text and "1 in 10 s" in text
        assert cluster.known_targets["mails"].command.is_paused
        async with client.post("/targets/resume", data={**form, "confirm": "1"}, headers=PART) as done:
            text = await done.text()
            assert "goes on" in text and "it was paused without an end" in text and "“&lt;down&gt;”" in text
        assert not cluster.known_targets["mails"].command.is_paused


async def test_a_held_timer_is_shown_as_held_and_its_release_can_be_changed(cluster: SimCluster) -> None:
    async def text_of(path: str) -> str:
        async with client.get(path, headers=HTML) as page:
            return await page.text()

    async with console(cluster) as client:
        assert "held by" not in await text_of("/timers")
        await answer_of(client, "POST", PAUSE, json={"topic": "mails", "why": "down"})
        for path in ("/timers", "/timer?id=a"):
            assert 'href="/targets">held by pause 1 since <time' in await text_of(path)
        assert "Pause again" not in await text_of("/targets")
        await answer_of(client, "POST", RESUME, json={"topic": "mails", "over": "10m"})
        page = await text_of("/targets")
        assert "being sent" in page and "Another speed" in page and "Pause again" in page
        async with client.post("/targets/pause", data={"topic": "mails", "why": "down"}, headers=PART) as done:
            assert "is paused" in await done.text()


async def test_the_form_of_the_page_has_all_that_a_pause_may_say(cluster: SimCluster) -> None:
    form = {"topic": "mails", "for": "1h", "over": "30s", "why": "down"}
    async with console(cluster) as client:
        async with client.get("/targets", headers=HTML) as page:
            text = await page.text()
            assert all(f'name="{field}"' in text for field in form)
        async with client.post("/targets/pause", data=form, headers=PART) as done:
            assert "over 30 s" in await done.text()
    assert cluster.known_targets["mails"].command.over_s == 30


async def test_all_counts_of_a_list_have_one_deadline(cluster: SimCluster, constants: Constants) -> None:
    constants(target_pages, COUNTING_TIMEOUT_S=-1.0)
    async with console(cluster) as client:
        await answer_of(client, "POST", PAUSE, json={"topic": "mails"})
        shown = (await listed(client))["mails"]
    assert (shown["state"], shown["held"], shown["held_at_least"]) == ("paused", None, False)
