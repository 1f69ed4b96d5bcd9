"""The pages of the console, over a cluster in memory: what they show, escape, change and refuse."""

import asyncio
import hashlib
import json
import re
import time
from collections import Counter
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import timers.console.web
from tests.harness.console_pages import (
    HOSTILE,
    HTML,
    IDS,
    PART,
    READY,
    SCREENS,
    cluster_with,
    letter,
    text_of,
)
from tests.harness.console_users import USERS, bearer
from tests.harness.constants import Constants
from tests.harness.sim_console import SimCluster, answer_of, console
from tests.harness.waiting import DEADLINE_S
from timers.console.kafka_cluster import WorkerAnswer
from timers.console.letter_box import FoundLetters
from timers.console.web import page
from timers.console.web.board import Board, Recent
from timers.console.web.page import FIRST_PAINT_S
from timers.offline.fired import CallbackRecord, PastFirings
from timers.queue.inspection import PartitionStats, QueueStats

pytestmark = pytest.mark.usefixtures("patient_pages")

STATIC = Path(timers.console.web.__file__).parent / "static"


@pytest.mark.parametrize("path", [*SCREENS, "/try", "/timer?id=order-1", "/lag?topic=timeouts"])
@pytest.mark.parametrize("base", ["", "/ops/timers"])
async def test_each_screen_loads_only_files_of_the_console(path: str, base: str) -> None:
    settings = {"TIMERS_CONSOLE_URL": f"http://127.0.0.1{base}"} if base else {}
    async with console(cluster_with("order-1"), **IDS, **settings) as client:
        text = await text_of(client, base + path)
        loaded = re.findall(r"<(?:script|link)\b[^>]*?(?:src|href)=\"([^\"]+)\"", text)
        assert len(loaded) >= 5
        for url in loaded:
            assert url.startswith(f"{base}/static/")
            async with client.get(url) as response:
                assert response.status == 200 and "immutable" in response.headers["Cache-Control"], url
        links = {
            link for link in re.findall(r"(?:href|action|hx-get|hx-post)=\"(/[^\"]*)\"", text) if "/static/" not in link
        }
        assert links and all(link.startswith(f"{base}/") for link in links), links
        assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:|<script>", text), "the policy forbids these"


async def test_each_screen_links_the_report_of_the_audit_if_there_is_one() -> None:
    link = "https://files.example.com/audits/report.html"
    for settings, count in (({}, 0), ({"TIMERS_CONSOLE_REPORTS_URL": "https://files.example.com/audits/"}, 1)):
        async with console(cluster_with("order-1"), **settings) as client:
            assert (await text_of(client, "/")).count(f'<a href="{link}">Audit report</a>') == count


async def test_what_senders_choose_is_shown_as_text() -> None:
    cluster = cluster_with(HOSTILE)
    async with console(cluster, **IDS) as client:
        for path in ("/", "/timers", "/timer", "/timers/new", "/nothing"):
            query = {"id": HOSTILE, "topic": "t", "prefix": "<", "key": HOSTILE, "value": HOSTILE}
            given = {name: query[name] for name in {"/timer": ("id",), "/timers": ("prefix",)}.get(path, ())}
            if path == "/timers/new":
                given = {"key": HOSTILE, "value": HOSTILE, "topic": HOSTILE}
            status = 404 if path == "/nothing" else 200
            text = await text_of(client, path, status, params=given)
            assert "<img" not in text and "<script>alert" not in text and "49" not in re.findall(r"&\{\{.*?\}\}", text)
            if given or path == "/":
                assert "&lt;" in text, path
        async with client.get("/timer", params={"id": "<b>x"}, headers=HTML) as response:
            assert response.status == 404 and "<b>x" not in await response.text()


async def test_the_page_of_a_cancelled_timer_says_what_happened() -> None:
    cluster = cluster_with()
    cluster.sources["order-1"] = "sim-requests/0/7"
    async with console(cluster, **IDS) as client:
        text = await text_of(client, "/timer?id=order-1")
        assert 'class="badge amber">cancelled</span>' in text and "verdict: cancelled" in text
        assert "Cancel this timer" not in text
        assert "there is no timer" in unescape(await text_of(client, "/timer?id=order-2", 404))


async def test_a_value_is_shown_on_demand_and_escaped() -> None:
    async with console(cluster_with("order-1"), **IDS) as client:
        assert "Show the value" in await text_of(client, "/timer?id=order-1")
    async with console(cluster_with("order-1"), TIMERS_ID_TOPIC="sim-requests") as client:
        assert "TIMERS_QUERIES=values" in await text_of(client, "/timer?id=order-1")
        await text_of(client, "/timer/value?id=order-1", 403)
    cluster = cluster_with("order-1")
    found = {
        "id": "order-1",
        "due": 7,
        "topic": "t",
        "key": None,
        "source": "sim-requests/0/1",
        "value": "PGI+eyJhIjoxfQ==",
    }
    cluster.answer = WorkerAnswer(200, {"timers": [found], "missing": []})
    async with console(cluster, **IDS) as client:
        text = await text_of(client, "/timer/value?id=order-1")
        assert "&lt;b&gt;" in text and "<b>" not in text
        assert "3c 62 3e" in await text_of(client, "/timer/value?id=order-1&as=hex")
        assert "It is not JSON" in await text_of(client, "/timer/value?id=order-1&as=json")


async def test_pages_ask_for_a_login(tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    users.write_text('[[user]]\nname = "ada"\ntoken_sha256 = "' + hashlib.sha256(b"secret").hexdigest() + '"\n')
    async with console(cluster_with("order-1"), **IDS, TIMERS_CONSOLE_USERS_FILE=str(users)) as client:
        async with client.get("/", headers=HTML) as response:
            assert response.status == 401 and "Basic" in response.headers["WWW-Authenticate"]
            assert "order-1" not in await response.text()
        async with client.get("/", headers={**HTML, "Authorization": "Bearer secret"}) as response:
            assert response.status == 200 and "order-1" in await response.text()


async def test_a_form_that_takes_a_topic_is_completed_with_those_that_the_user_may_see(tmp_path: Path) -> None:
    users, cluster = tmp_path / "users.toml", cluster_with("order-1")
    secret = hashlib.sha256(b"secret").hexdigest()
    users.write_text(f'[[user]]\nname = "ada"\ntoken_sha256 = "{secret}"\ntopics = ["orders-*"]\n')
    cluster.topic_names = {"orders-2", "orders-1", "salaries"}
    async with console(cluster, **IDS, TIMERS_CONSOLE_USERS_FILE=str(users)) as client:
        client.session.headers["Authorization"] = "Bearer secret"
        for path in ("/timers", "/timers/new", "/due", "/live", "/lag", "/dead-letters"):
            text = await text_of(client, path)
            assert 'list="topics"' in text and 'id="topics" hx-get="/topics"' in text, path
        text = await text_of(client, "/topics")
    assert text.strip() == '<option value="orders-1"><option value="orders-2">'


async def test_each_cell_of_a_list_has_the_label_of_its_column() -> None:
    """On a phone its heading is not seen."""
    cluster = with_letters("rejected")
    cluster.queue_stats["mails"] = QueueStats("mails", "jobs", 7, 3, False, None, 75.0, 0, ())
    cluster.past = PastFirings([firing("timeouts", 1, int(time.time()))], {})
    async with console(cluster, **IDS) as client:
        for path in ("/timers", "/dead-letters", "/queues", "/fired"):
            (table,) = re.findall(r'<table class="dense list".*?</table>', await text_of(client, path), re.DOTALL)
            columns = re.findall(r"<th [^>]*>([^<]+)", table)
            boxes = ["Choose"] if "data-choose-all" in table else []  # this column has a box in place of a name
            assert columns and re.findall(r'<td role="cell" data-label="([^"]+)"', table) == boxes + columns, path


async def test_broken_and_partial_answers_are_said_in_words() -> None:
    cluster = cluster_with("order-1")
    cluster.worker_fails = True
    async with console(cluster, **IDS) as client:
        assert "worker-unreachable" in await text_of(client, "/timers", 503)
        text = await text_of(client, "/")
        assert "no worker answers" in text and "worker-unreachable" in text
    missing = [{"partition": "t/3", "reason": "it is <recovering>"}]
    cluster = cluster_with()
    cluster.answer = WorkerAnswer(200, {"timers": [], "missing": missing, "next": None})
    async with console(cluster, **IDS) as client:
        assert "it is &lt;recovering&gt;" in await text_of(client, "/timers")
    async with console(cluster_with(), **IDS) as client:
        assert "No timer is pending" in await text_of(client, "/timers")
        assert "No pending timer matches" in await text_of(client, "/timers?topic=other")
        assert "is no time" in unescape(await text_of(client, "/timers?from=someday", 400))
        assert "id" in await text_of(client, "/timer", 400)


async def test_a_page_does_not_wait_for_a_worker_that_hangs(constants: Constants) -> None:
    constants(page, FIRST_PAINT_S=FIRST_PAINT_S)
    cluster = cluster_with("order-1")
    hang, answer = asyncio.Event(), cluster.ask

    async def ask(*arguments: Any) -> WorkerAnswer:
        await hang.wait()
        return await answer(*arguments)

    cluster.ask = ask  # type: ignore[assignment, method-assign]
    assert FIRST_PAINT_S < 0.3
    async with console(cluster, **IDS) as client:
        for path in ("/", "/timers", "/timer?id=order-1"):
            assert "data-soon" in await text_of(client, path)
        constants(page, PART_S=0.01)
        async with client.get("/timers", headers=PART) as response:
            assert response.status == 503 and "no answer came" in await response.text()
        constants(page, PART_S=DEADLINE_S)
        hang.set()
        async with client.get("/timers", headers=PART) as response:
            assert "order-1" in await response.text()


HIDING = {"contains", "closest", "matches", "submit", "reset", "elements", "append", "children", "style", "action"}
"""Names of fields that would hide what scripts call of their form."""


async def test_no_field_hides_what_scripts_call_of_a_form() -> None:
    cluster = cluster_with("order-17")
    async with console(cluster, **IDS) as client:
        for path in (*SCREENS, "/timers?part=o&topic=timeouts", "/timer?id=order-17", "/dead-letters?code=rejected"):
            text = await text_of(client, path)
            fields = set(re.findall(r'<(?:input|select|textarea|button)[^>]* name="([^"]+)"', text))
            assert not fields & HIDING, path


async def test_a_part_of_an_id_or_a_key_finds_timers() -> None:
    cluster = cluster_with("order-17", "order-18", "mail-17")
    async with console(cluster, **IDS) as client:
        text = await text_of(client, "/timers?part=er-17")
        assert "order-17" in text and "order-18" not in text and 'value="er-17"' in text
        answer = await answer_of(client, "GET", "/v1/timers?contains=-17")
        assert [each["id"] for each in answer[1]["timers"]] == ["mail-17", "order-17"]
        counted = (await answer_of(client, "POST", "/v1/timers/cancel", json={"contains": "-18"}))[1]
        assert [each["id"] for each in counted["sample"]] == ["order-18"]


async def test_pages_of_a_list_have_the_same_filter() -> None:
    cluster = cluster_with(*(f"order-{number:03}" for number in range(150)))
    async with console(cluster, **IDS) as client:
        text = await text_of(client, "/timers?prefix=order-&from=-1h&to=2h")
        (following,) = re.findall(r'rel="next" href="([^"]+)"', text)
        assert re.search(r"from=\d+&amp;to=\d+", following)
        shown = re.findall(r">(order-\d+)</span></a>", text + await text_of(client, unescape(following)))
    assert shown == [f"order-{number:03}" for number in range(150)]


async def test_the_overview_has_figures_of_all_workers() -> None:
    async with console(cluster_with("order-1"), **IDS) as client:
        text = await text_of(client, "/?wait=1")
        assert re.search(r'Pending</h2><p class="figure">7<', text)
        assert "98 ms" in text, "the p99 of the histogram"
        assert "is not among TIMERS_CONSOLE_WORKERS" in text and "order-1" in text


async def test_the_overview_counts_the_dead_letters_of_queues() -> None:
    cluster = cluster_with("order-1")
    codes = ("rejected", "topic-unknown", "crashed")
    written_ms = [int(time.time() * 1000) - hours * 3_600_000 for hours in (1, 1, 25)]
    cluster.dead_letters = [
        replace(letter(offset, code, "jobs"), timestamp_ms=at_ms)
        for offset, (code, at_ms) in enumerate(zip(codes, written_ms, strict=True))
    ]
    async with console(cluster, **IDS) as client:
        text = await text_of(client, "/?wait=1")
        assert re.search(r'Dead letters of queues</h2><p class="figure">1<', text), "a day old, and of a queue"
        assert "/dead-letters?code=rejected&amp;code=attempts-exhausted&amp;" in text
        cluster.dead_letters.clear()
        assert re.search(r'of queues</h2><p class="figure">1<', await text_of(client, "/?wait=1")), "for a minute"


async def test_two_users_who_open_the_overview_together_keep_their_counts_of_letters(tmp_path: Path) -> None:
    (tmp_path / "users.toml").write_text(USERS)
    both_ask = asyncio.Barrier(2)
    asked = 0

    class Cluster(SimCluster):
        async def letters(self, *arguments: Any) -> FoundLetters:
            nonlocal asked
            asked += 1
            if asked <= 2:
                await both_ask.wait()
            return await super().letters(*arguments)

    async with console(Cluster(), **IDS, TIMERS_CONSOLE_USERS_FILE=str(tmp_path / "users.toml")) as client:
        for _ in range(2):
            users = (text_of(client, "/?wait=1", headers={**HTML, **bearer(name)}) for name in ("ada", "rob"))
            for text in await asyncio.gather(*users):
                assert re.search(r'of queues</h2><p class="figure">0<', text)
    assert asked == 2, "each of them reads the topic once a minute"


async def test_a_long_count_of_the_letters_of_queues_goes_on_for_the_next_page(constants: Constants) -> None:
    constants("timers.console.web.worker_screens", SILENT_AFTER_S=0.2)
    may_answer = asyncio.Event()
    asked = 0

    class Cluster(SimCluster):
        async def letters(self, *arguments: Any) -> FoundLetters:
            nonlocal asked
            asked += 1
            await may_answer.wait()
            return await super().letters(*arguments)

    async with console(Cluster(), **IDS) as client:
        for _ in range(2):
            assert re.search(r'of queues</h2><p class="figure">–<', await text_of(client, "/?wait=1"))
        may_answer.set()
        assert re.search(r'of queues</h2><p class="figure">0<', await text_of(client, "/?wait=1"))
    assert asked == 1, "it was not begun anew"


async def test_a_first_paint_of_the_overview_shows_the_next_timers_of_the_last_seconds(constants: Constants) -> None:
    cluster = cluster_with("order-1")
    async with console(cluster, **IDS) as client:
        assert "order-1" in await text_of(client, "/?wait=1")
        cluster.timers["order-2"] = cluster.timers["order-1"]._replace(id="order-2")

        async def hang(*_: Any) -> Any:
            await asyncio.Event().wait()

        answers, cluster.ask = cluster.ask, hang  # type: ignore[method-assign, assignment]
        constants(page, FIRST_PAINT_S=FIRST_PAINT_S)
        text = await text_of(client, "/")
        constants(page, FIRST_PAINT_S=DEADLINE_S)
        assert "order-1" in text and "order-2" not in text, "the worker is not waited for"
        cluster.ask = answers  # type: ignore[method-assign]
        assert "order-2" in await text_of(client, "/", headers=PART), "the script of the page asks at once"
        assert "order-2" in await text_of(client, "/")


def firing(topic: str, offset: int, at_s: int) -> CallbackRecord:
    headers = [("timer-id", b"<id>"), ("timer-due", b"%d" % (at_s - 1)), ("timer-fired", b"%d" % (at_s * 1000))]
    return CallbackRecord(topic, 0, offset, at_s * 1000, b"<key>", b"secret", [*headers])


async def test_a_record_with_the_time_of_a_wrong_clock_is_shown() -> None:
    cluster = cluster_with()
    cluster.past = PastFirings([replace(firing("timeouts", 1, 5), timestamp_ms=253_402_300_800_000)], {})
    async with console(cluster, **IDS) as client:
        for path in ("/fired", "/lag?topic=timeouts"):
            assert "after 9999" in await text_of(client, path), path


async def test_what_has_fired_in_the_last_hour_is_shown_and_what_was_left_out() -> None:
    cluster, now_s = cluster_with(), int(time.time())
    recent = [firing("timeouts", number, now_s - number) for number in range(300)]
    cluster.past = PastFirings([*recent, firing("longago", 1, now_s - 4000)], {"mails": "it cannot be read (<b>)"})
    async with console(cluster, **IDS) as client:
        text = await text_of(client, "/fired")
        assert "The newest 200 of 300 callbacks" in text and text.count("&lt;key&gt;") == 200
        assert "&lt;id&gt;" in text and "longago" not in text and "secret" not in text
        assert "mails" in text and "it cannot be read (&lt;b&gt;)" in text
        status, answer = await answer_of(client, "GET", f"/v1/fired?since={now_s - 5000}&limit=10000")
        assert (status, answer["found"], len(answer["fired"])) == (200, 301, 301)
        assert answer["fired"][0]["lag_ms"] == 1000 and "value" not in answer["fired"][0]
        assert answer["left_out"] == [{"topic": "mails", "reason": "it cannot be read (<b>)"}]
        assert (await answer_of(client, "GET", "/v1/fired?limit=10001"))[0] == 400
        cluster.past = PastFirings([], {})
        assert "Nothing has fired since" in await text_of(client, "/fired")


async def test_overview_and_lag_have_the_line_of_the_last_half_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = {"waited": Counter({0.1: 5, float("inf"): 5})}
    async with console(cluster_with("order-1"), **IDS) as client:
        for path in ("/", "/lag"):
            assert "The line begins when the workers have counted for 15 s." in await text_of(client, path)
        monkeypatch.setattr(Board, "line", lambda _: [Recent(at_s, 4, 2.5, ways) for at_s in (100.0, 104.0)])
        for path in ("/", "/lag"):
            text = await text_of(client, path)
            assert '"columns": [[100, 104], [50.0, 50.0], [99.0, 99.0], [2.5, 2.5]]' in text, path


async def test_the_runbook_of_a_finding_is_a_link_away() -> None:
    cluster = cluster_with("order-1")
    cluster.pages["/health/ready"] = (200, READY.replace(b'"tick_age_s": 0.1', b'"tick_age_s": 9.0'))
    async with console(cluster, **IDS, TIMERS_CONSOLE_URL="http://127.0.0.1/ops") as client:
        for path in ("/ops/", "/ops/workers"):
            assert 'href="/ops/runbook?name=timersnotick"' in await text_of(client, path)
        text = await text_of(client, "/ops/runbook?name=timersnotick")
        assert "<h1>TimersNoTick</h1>" in text and "All workers write ticks." in text
        assert "### " not in text and "Prometheus scrapes no worker" not in text, "it is this section only"
        for name in re.findall(r'href="/ops/runbook\?name=([^"]+)"', text):
            await text_of(client, f"/ops/runbook?name={name}")
        assert "no section" in await text_of(client, "/ops/runbook?name=<b>", 404)


async def test_lags_of_a_topic_are_shown() -> None:
    async with console(cluster_with("order-1"), **IDS) as client:
        text = await text_of(client, "/lag?topic=timeouts")
        assert "The newest 50 callbacks" in text and "longest 49 ms" in text
        assert (
            text.index(">&lt;49&gt;</span></a>") < text.index(">&lt;0&gt;</span></a>") and "/timer?id=%3C49%3E" in text
        )
        assert "does not exist" in await text_of(client, "/lag", params={"topic": "other"})
        assert "&lt;b&gt;" in await text_of(client, "/lag", params={"topic": "<b>"})
        assert "Punctual: the timer waited" in text and "100 callbacks" in text


@pytest.mark.parametrize(
    ("query", "cells", "target"),
    [
        ("from=2030-01-28", 7 * 24, "/due?day=2030-01-31&amp;topic=t"),
        ("day=2030-01-31", 24 * 60, "/due?minute=2030-01-31T12%3A34&amp;topic=t"),
        ("minute=2030-01-31T12:34", 60, "/timers?topic=t&amp;from=1896093245&amp;to=1896093246"),
    ],
)
async def test_due_times_are_shown_by_hour_minute_and_second(query: str, cells: int, target: str) -> None:
    async with console(cluster_with("order-1"), **IDS) as client:
        text = await text_of(client, f"/due?{query}&topic=t")
        assert text.count("data-from=") == cells and f'href="{target}"' in text
        for wrong in ("day=2030-02-30", "minute=2030-01-31", "from=now", "day=9999-01-01"):
            await text_of(client, f"/due?{wrong}", 400)


def test_vendored_files_are_those_of_their_packages() -> None:
    named: dict[str, str] = {}
    for package in json.loads((STATIC / "vendor" / "vendor.json").read_text()):
        assert package["license"] in ("0BSD", "Apache-2.0", "MIT") and package["integrity"].startswith("sha512-")
        assert any("LICENSE" in name for name in package["files"])
        named |= package["files"]
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (STATIC / "vendor").iterdir()}
    del found["vendor.json"]
    assert found == named


# ---- dead letters and queues ----------------------------------------------------------------------------------------


def with_letters(*codes: str) -> SimCluster:
    """A cluster with a dead letter of each of these codes."""
    cluster = cluster_with("order-1")
    for offset, code in enumerate(codes):
        cluster.dead_letters.append(letter(offset, code, "orders"))
    return cluster


async def test_dead_letters_are_listed_by_code_with_what_it_means() -> None:
    cluster = with_letters("topic-unknown", "topic-denied", "rejected")
    async with console(cluster, **IDS) as client:
        text = await text_of(client, "/dead-letters")
        assert len(re.findall(r"/dead-letter\?name=", text)) == 3
        text = await text_of(client, "/dead-letters?code=rejected&since=-100000d")
        assert len(re.findall(r"/dead-letter\?name=", text)) == 1 and "The receiver called reject" in text
        assert "No dead letter matches" in await text_of(client, "/dead-letters?topic=other")
        assert "No dead letter matches" in await text_of(client, "/dead-letters?part=other")
        text = await text_of(client, "/dead-letters?part=a+sentence")
        assert len(re.findall(r"/dead-letter\?name=", text)) == 3 and 'value="a sentence"' in text
        text = await text_of(client, "/dead-letter?name=0/0")
        assert "does not exist when the timer is due" in text and "Retry this one" in text and "secret" not in text
        assert "secret" in await text_of(client, "/dead-letter/request?name=0/0")
        await text_of(client, "/dead-letter?name=0/9", 404)
    async with console(SimCluster(), **IDS) as client:
        assert "There are no dead letters" in await text_of(client, "/dead-letters")


async def test_one_or_all_that_match_are_retried_after_a_confirmation() -> None:
    cluster = with_letters("topic-unknown", "topic-denied", "topic-denied")
    async with console(cluster, **IDS) as client:
        async with client.post("/dead-letter/retry?name=0/0", data={}, headers=PART) as response:
            assert response.status == 200 and "published again" in await response.text()
        assert cluster.retried == ["timer-dead-letter/0/0"]
        filter_ = {"code": "topic-denied", "topic": "orders"}
        async with client.post("/dead-letters/retry", data=filter_, headers=PART) as response:
            text = await response.text()
        assert "<strong>2</strong> dead letters would be" in text and len(cluster.retried) == 1
        (confirm,) = re.findall(r'name="confirm" value="([^"]+)"', text)
        wrong = {**filter_, "topic": "other", "confirm": confirm}
        async with client.post("/dead-letters/retry", data=wrong, headers=PART) as response:
            assert response.status == 400 and "cursor-invalid" in await response.text()
        async with client.post("/dead-letters/retry", data={**filter_, "confirm": confirm}, headers=PART) as response:
            assert "<strong>2</strong> dead letters were retried" in await response.text()
        assert len(cluster.retried) == 3
        for kept, shown in (("7", 9), ("x", 2), ("9" * 5000, 2), ("-1", 2)):
            step = {**filter_, "confirm": confirm, "published": kept}
            async with client.post("/dead-letters/retry", data=step, headers=PART) as response:
                assert f"<strong>{shown}</strong> dead letters were retried" in await response.text(), kept
        async with client.post("/dead-letters/retry", data=filter_, headers=HTML) as response:
            assert response.status == 403


async def test_queues_are_shown_and_lead_to_their_dead_letters() -> None:
    cluster = cluster_with("order-1")
    part = PartitionStats("jobs", 0, 5, 12, 7, 0)
    cluster.queue_stats["jobs"] = QueueStats("jobs", "jobs", 7, 3, False, None, 75.0, 0, (part,), ("jobs/1",))
    cluster.queues_missing["old"] = "its metadata is <newer>"
    async with console(cluster, **IDS) as client:
        text = await text_of(client, "/queues")
        assert "nothing works on it" in text and "1 min 15 s" in text and "its metadata is &lt;newer&gt;" in text
        text = await text_of(client, "/queue?name=jobs")
        assert "jobs/0" in text and "/dead-letters?queue=jobs" in text
        assert "did not answer" in text and "<code>jobs/1</code>" in text
        assert "No dead letter matches" in await text_of(client, "/dead-letters?queue=jobs")
        await text_of(client, "/queue?name=none", 404)
        assert "there is no queue" in unescape(await text_of(client, "/dead-letters?queue=none", 404))
    async with console(SimCluster(), **IDS) as client:
        assert "There is no queue" in await text_of(client, "/queues")
