"""Changes with the pages of the console, over a cluster in memory: who may make them, and what they do."""

import re
import time
from html import unescape
from typing import Any

import pytest

from tests.harness.console_pages import HOSTILE, HTML, IDS, PART, SCREENS, cluster_with, letter, text_of
from tests.harness.constants import Constants
from tests.harness.sim_console import SimCluster, console
from timers.console import timer_pages
from timers.errors import PublishError, TimersError

pytestmark = pytest.mark.usefixtures("patient_pages")


async def test_a_timer_is_set_and_cancelled_by_the_rules_of_the_api() -> None:
    cluster = cluster_with()
    form = {
        "topic": "timeouts",
        "key": "",
        "value": "a\r\nb",
        "when": "delay",
        "delay": "15m",
        "id": "order-7",
        "token": "",
    }
    async with console(cluster, **IDS) as client:
        async with client.post("/timers/new", data=form, headers=PART) as response:
            assert response.status == 201 and "/timer?id=order-7" in await response.text()
        request = cluster.timers["order-7"]
        assert (request.key, request.value, request.token) == (None, "a\nb", None)
        async with client.post("/timers/new", data={**form, "topic": "a b"}, headers=PART) as response:
            assert response.status == 422 and "topic-invalid" in await response.text()
        for due, status in (("2h", 200), ("soon", 400), ("", 400)):
            async with client.post("/timer/move?id=order-7", data={"due": due}, headers=PART) as response:
                assert response.status == status, await response.text()
        assert 7100 < cluster.timers["order-7"].at - time.time() < 7300  # type: ignore[operator]
        async with client.post("/timer/cancel?id=order-7", data={}, headers=PART) as response:
            assert response.status == 200 and "cancelled" in await response.text()
        async with client.post("/timer/cancel?id=order-7", data={}, headers=PART) as response:
            assert response.status == 404 and "not-found" in await response.text()
    operations = ["setTimer", "setTimer", "moveTimer", "cancelTimer", "cancelTimer"]
    assert [entry["operation"] for entry in cluster.recorded] == operations


async def test_all_that_match_are_cancelled_in_steps(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> None:
    constants(timer_pages, AT_ONCE=20, MAX_STEP_S=-1.0)
    cluster = cluster_with("keep", HOSTILE, *(f"order-{number:03}" for number in range(50)))

    async def post(client: Any, form: dict[str, str], status: int = 200) -> str:
        async with client.post("/timers/cancel", data=form, headers=PART) as response:
            text: str = await response.text()
            assert response.status == status, text
            return text

    async def sim_count(*_: Any) -> dict[str, Any]:
        return {"matching": 0, "at_least": True, "left_out": 7, "sample": [], "missing": []}

    async with console(cluster, **IDS) as client:
        assert "Cancel all that match" not in await text_of(client, "/timers")
        assert "Cancel all that match" in await text_of(client, "/timers?prefix=order-")
        text = await post(client, {"prefix": "<"})
        assert "<strong>1</strong> timer would" in text and "&lt;script&gt;" in text and "<script>" not in text
        assert "<strong>0</strong>" in await post(client, {"prefix": "no"})
        with monkeypatch.context() as patch:
            patch.setattr(timer_pages, "_count_matching", sim_count)
            text = await post(client, {"prefix": "order-"})
            assert "None was found so far" in text and "data-steps" not in text
        text = await post(client, {"prefix": "order-", "to": "3h"})
        assert "<strong>50</strong> timers would" in text and len(cluster.timers) == 52
        for cancelled in ("20 of 50", "40 of 50", None):
            form = {name: unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', text)}
            if cancelled == "40 of 50":
                cluster.worker_fails = True
                failed = await post(client, form)
                assert (
                    "worker-unreachable" in failed
                    and "<strong>20</strong>" in failed
                    and "data-next-step" not in failed
                )
                cluster.worker_fails = False
            text = await post(client, form)
            assert ("data-next-step" in text) == (cancelled is not None)
            assert re.sub("<.*?>", "", text).strip().startswith(cancelled or "50 timers are cancelled")
        assert set(cluster.timers) == {"keep", HOSTILE}
        cluster.timers["order-1"] = cluster.timers["order-2"] = cluster.timers["keep"]
        cancel = cluster.cancel

        async def fail(id: str, **named: Any) -> Any:
            if id == "order-2":
                raise PublishError("the brokers refuse it")
            return await cancel(id, **named)

        cluster.cancel = fail  # type: ignore[method-assign]
        failed = await post(client, form)
        assert "publish-refused" in failed and "<strong>41</strong>" in failed, "what was cancelled is counted"
        del cluster.timers["order-2"]
        await post(client, {"prefix": "keep", "confirm": form["confirm"]})
    assert set(cluster.timers) == {"keep", HOSTILE}, "a confirmation counts for its own filter only"
    async with console(cluster, **IDS, TIMERS_CONSOLE_WRITE="0") as client:
        assert "read-only" in await post(client, {"prefix": "keep"}, 403)
        assert "Cancel all that match" not in await text_of(client, "/timers?prefix=order-")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "cross-site"),
        ({**PART, "Origin": "https://evil.example"}, "cross-site"),
        ({**PART, "Origin": "null"}, "cross-site"),
        ({**PART, "Sec-Fetch-Site": "cross-site"}, "cross-site"),
        ({**PART, "Sec-Fetch-Site": "same-site"}, "cross-site"),
        ({**PART, "Host": "evil.example"}, "misdirected"),
    ],
)
async def test_a_form_of_another_site_changes_nothing(headers: dict[str, str], code: str) -> None:
    cluster = cluster_with("order-1")
    async with console(cluster, **IDS) as client:
        for path, form in (
            ("/timers/new", {"topic": "t", "delay": "1h"}),
            ("/timer/cancel?id=order-1", {}),
            ("/timer/move?id=order-1", {"due": "1h"}),
        ):
            async with client.post(path, data=form, headers={**HTML, **headers}) as response:
                assert response.status in (403, 421) and code in await response.text()
    assert cluster.recorded == [] and list(cluster.timers) == ["order-1"]


async def test_a_reader_sees_no_button_that_changes_something() -> None:
    cluster = cluster_with("order-1")
    async with console(cluster, **IDS, TIMERS_CONSOLE_WRITE="0") as client:
        for path in (*SCREENS, "/timer?id=order-1"):
            text = await text_of(client, path)
            assert "read only" in text
            assert (
                "Set the timer" not in text
                and "Cancel this timer" not in text
                and "Change the due" not in text
                and ">New timer</span>" not in text
            )
        async with client.post("/timer/cancel?id=order-1", data={}, headers=PART) as response:
            assert response.status == 403 and "read-only" in await response.text()
        async with client.post("/timer/move?id=order-1", data={"due": "1h"}, headers=PART) as response:
            assert response.status == 403 and "read-only" in await response.text()
    assert list(cluster.timers) == ["order-1"]


RULE_FORM = {"topic": "reports", "value": "daily", "id": "daily", "when": "cron", "delay": "15m", "cron": "0 9 * * 1-5"}


async def test_a_timer_that_repeats_is_previewed_and_set() -> None:
    cluster = SimCluster()
    form = {
        **RULE_FORM,
        "zone": "Europe/Paris",
        "spread": "10m",
        "except": "2030-12-24, 2030-12-25",
        "catch_up": "none",
    }
    async with console(cluster, **IDS) as client:
        text = await text_of(client, "/timers/new", params={"cron": "0 9 * * 1-5", "zone": "Europe/Paris"})
        assert 'id="n-cron-c" name="when" value="cron" checked' in text and 'value="Europe/Paris"' in text
        async with client.post("/timers/new/next", data=form, headers=PART) as response:
            text = await response.text()
            assert response.status == 200 and text.count("<li>") == 10
            assert "09:00:00+0" in text and "clocks: " in text
        async with client.post("/timers/new/next", data={**form, "when": "delay"}, headers=PART) as response:
            assert "<li>" not in await response.text()
        async with client.post("/timers/new/next", data={**form, "cron": "0 9 31 2 *"}, headers=PART) as response:
            assert response.status == 422 and "names no day" in await response.text()
        async with client.post("/timers/new/program", data=form, headers=PART) as response:
            text = unescape(await response.text())
            rule = (
                "'0 9 * * 1-5', zone='Europe/Paris', spread=600, except_=['2030-12-24', '2030-12-25'], catch_up='none'"
            )
            python = f"repeat=Repeat.cron({rule})"
            assert python in text and "import Repeat, TimersClient" in text
        async with client.post("/timers/new", data=form, headers=PART) as response:
            assert response.status == 201, await response.text()
        async with client.post("/timers/new", data={**form, "id": ""}, headers=PART) as response:
            assert response.status == 422 and "needs an id" in await response.text()
    repeat = cluster.timers["daily"].repeat
    assert repeat is not None
    assert repeat.to_header() == (
        b"cron=0 9 * * 1-5; zone=Europe/Paris; catch-up=none; spread=600; except=2030-12-24,2030-12-25"
    )


async def test_an_interval_is_set_and_shown_on_the_page_of_the_timer() -> None:
    cluster = SimCluster()
    form = {**RULE_FORM, "when": "every", "every": "15m"}
    async with console(cluster, **IDS) as client:
        async with client.post("/timers/new/program", data=form, headers=PART) as response:
            assert "repeat=Repeat.every(900)" in unescape(await response.text())
        async with client.post("/timers/new", data=form, headers=PART) as response:
            assert response.status == 201
        text = await text_of(client, "/timer", params={"id": "daily"})
        assert 'href="/timers/new?id=daily&amp;topic=reports&amp;every=900s">' in text
        assert "every=900" in text and 'hx-get="/timer/next?id=daily"' in text and "Change the due time" not in text
        text = await text_of(client, "/timer/next", params={"id": "daily"})
        assert text.count("<li>") == 10


async def test_a_form_sets_headers_and_says_that_a_topic_does_not_exist() -> None:
    cluster = cluster_with()
    fields = {"topic": "nowhere", "value": "v", "when": "delay", "delay": "1h", "headers": "a: b: c\r\n\r\nx:"}
    async with console(cluster, **IDS) as client:
        async with client.post("/timers/new", data=fields, headers=PART) as answer:
            text = await answer.text()
            assert answer.status == 201 and "timers topics create nowhere" in text and 'value="nowhere"' in text
        async with client.post("/targets/create", data={"topic": "nowhere"}, headers=PART) as answer:
            assert answer.status == 200 and "<strong>nowhere exists now</strong>" in await answer.text()
        async with client.post("/timers/new", data=fields, headers=PART) as answer:
            assert "topics create" not in await answer.text()
        del cluster.timers[next(iter(cluster.timers))]
        (sent,) = cluster.timers.values()
        assert [tuple(pair) for pair in sent.headers or ()] == [("a", "b: c"), ("x", "")]
        async with client.post("/timers/new", data={**fields, "topic": "timeouts"}, headers=PART) as answer:
            assert "topics create" not in await answer.text()
        async with client.post("/timers/new", data={**fields, "headers": "no colon"}, headers=PART) as answer:
            assert answer.status == 422 and "name: value" in await answer.text()
        async with client.post("/timers/new/program", data={**fields, "headers": ":"}, headers=PART) as answer:
            assert answer.status == 200 and "is not of the form" in await answer.text()


async def test_the_rows_that_are_chosen_are_cancelled_and_each_verdict_is_said() -> None:
    cluster = cluster_with("order-1", "order-2", "order-3")
    async with console(cluster, **IDS) as client:
        text = await text_of(client, "/timers")
        assert text.count("data-choose ") == 3 and 'value="order-2" form="chosen"' in text
        fields = [("id", "order-1"), ("id", "order-3"), ("id", "gone")]
        async with client.post("/timers/cancel-chosen", data=fields, headers=PART) as answer:
            text = await answer.text()
            assert answer.status == 200 and "2 cancelled" in text and "1 not pending any more" in text
        assert list(cluster.timers) == ["order-2"]
        assert [each["parameters"]["id"] for each in cluster.recorded] == ["order-1", "order-3", "gone"]
        for fields in ([], [("id", f"order-{number}") for number in range(101)]):
            async with client.post("/timers/cancel-chosen", data=fields, headers=PART) as answer:
                assert answer.status == 400 and "choose between 1 and 100" in await answer.text()
        async with client.post("/timers/cancel-chosen", data=[("id", "order-2")]) as answer:
            assert answer.status == 403, "a page of another site cannot send it"
        cluster.failure = TimersError("no broker")
        async with client.post("/timers/cancel-chosen", data=[("id", "order-2")], headers=PART) as answer:
            assert "no broker" in await answer.text()
    async with console(cluster, **IDS, TIMERS_CONSOLE_WRITE="") as client:
        assert "data-choose" not in await text_of(client, "/timers")
        async with client.post("/timers/cancel-chosen", data=[("id", "order-2")], headers=PART) as answer:
            assert "read-only" in await answer.text() and list(cluster.timers) == ["order-2"]


async def test_the_dead_letters_that_are_chosen_are_retried() -> None:
    cluster = cluster_with()
    cluster.dead_letters = [letter(offset, "topic-unknown", "mails") for offset in range(3)]
    async with console(cluster, **IDS) as client:
        text = await text_of(client, "/dead-letters")
        assert text.count("data-choose ") == 3
        first, second, _ = (each.position for each in cluster.dead_letters)
        fields = [("name", first), ("name", second)]
        async with client.post("/dead-letters/retry-chosen", data=fields, headers=PART) as answer:
            assert answer.status == 200 and "<strong>2</strong> dead letters were retried" in await answer.text()
        assert cluster.retried == [first, second]
