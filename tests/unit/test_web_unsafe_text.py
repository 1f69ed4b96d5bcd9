"""Text of others on the pages of the console, and on the page of an audit: it cannot change the direction of a page."""

import base64
import json
import re
import time
from html import unescape
from pathlib import Path

import pytest
from yarl import URL

import timers
from tests.harness.console_pages import HTML, IDS, PART, cluster_with, text_of
from tests.harness.sim_console import TOPIC, SimCluster, console
from tests.harness.unsafe_text import HOSTILE, SHOWN, WHOLE, assert_safe
from timers.client.request import TimerRequest
from timers.console.kafka_cluster import WorkerAnswer
from timers.console.web import page
from timers.core.fired import Command
from timers.core.printable import UNSAFE_CHARACTERS
from timers.core.timer import Rejected
from timers.offline.dead_letters.letters import Letter
from timers.queue.inspection import PartitionStats, QueueStats
from timers.wire import dead_letter, future
from timers.wire.formats import RequestRecord
from timers.wire.targets import Target

pytestmark = pytest.mark.usefixtures("patient_pages")

SCREENS = {
    "/": {},
    "/timers": {"prefix": HOSTILE[:1]},
    "/timers/new": {"topic": HOSTILE, "key": HOSTILE, "value": HOSTILE, "id": HOSTILE, "token": HOSTILE},
    "/timer": {"id": HOSTILE},
    "/timer/history": {"id": HOSTILE},
    "/due": {"topic": HOSTILE},
    "/lag": {"topic": HOSTILE},
    "/live": {"topics": HOSTILE.replace(" ", "")},
    "/workers": {},
    "/dead-letters": {"code": "topic-denied"},
    "/dead-letter": {"name": "0/0"},
    "/dead-letter/request": {"name": "0/0"},
    "/targets": {},
    "/queues": {},
    "/queue": {"name": "jobs"},
}
"""Path of a page -> its parameters."""

FIELD = re.compile(r'<input [^>]*\bvalue="[^"]*"[^>]*>|<textarea[^>]*>.*?</textarea>', re.DOTALL)
"""Fields of forms hold what they send, and text beside them says what it is."""

TEMPLATES = sorted(Path(timers.__file__).parent.rglob("*.html"))


def hostile_cluster() -> SimCluster:
    """A cluster with this text wherever a sender, a worker or a broker can choose it."""
    cluster = cluster_with(topic=HOSTILE)
    timer = TimerRequest(HOSTILE, HOSTILE, HOSTILE.encode(), int(time.time()) + 900, None, [], None, HOSTILE)
    cluster.timers[HOSTILE], cluster.sources[HOSTILE] = timer, f"{TOPIC}\u202e/0/7"
    ready = {"pending": 7, "ready": False, "reasons": [HOSTILE], "stopped": {"t/0": HOSTILE}}
    cluster.pages["/health/ready"] = (503, json.dumps(ready).encode())
    cluster.pages["/health/partitions"] = (200, json.dumps({"red": {"t\u202e/0": HOSTILE}}).encode())
    record = dead_letter.encode(
        Rejected(0, "topic-denied", HOSTILE, HOSTILE.encode(), future.encode(HOSTILE, HOSTILE, HOSTILE.encode()), ()),
        f"{TOPIC}\u202e/0/7",
        10_000,
    )
    decoded = dead_letter.decode(record.headers)
    assert decoded is not None
    request = RequestRecord(0, record.key, record.value, [(HOSTILE, HOSTILE.encode())], 0)
    cluster.dead_letters.append(Letter("timer-dead-letter", 0, 0, 1000, request, decoded))
    cluster.known_targets["mails"] = Target(Command(1, "mails", True), HOSTILE, HOSTILE)
    part = PartitionStats(HOSTILE, 0, 5, 12, 7, 0)
    cluster.queue_stats["jobs"] = QueueStats("jobs", HOSTILE, 7, 3, False, None, 75.0, 0, (part,), (f"{HOSTILE}/1",))
    cluster.queues_missing[HOSTILE] = HOSTILE
    return cluster


@pytest.mark.parametrize("path", SCREENS)
async def test_a_page_shows_marks_of_direction_escaped_and_emoji_and_persian_whole(path: str) -> None:
    async with console(hostile_cluster(), **IDS) as client:
        text = await text_of(client, path, params=SCREENS[path])
        assert_safe(FIELD.sub("", text))
        shown = unescape(re.sub("<wbr>|</?span[^>]*>", "", FIELD.sub("", text)))
        if path not in ("/due", "/lag", "/live", "/timer/history"):  # here it is in fields and addresses only
            assert r"\u202egpj.exe\u2066\u200f" in shown and WHOLE in shown


@pytest.mark.parametrize("path", SCREENS)
async def test_a_parameter_that_is_not_utf8_is_no_failure_of_the_console(path: str) -> None:
    async with console(hostile_cluster(), **IDS) as client:
        for name in ("id", "name", "topic", "topics", "prefix", "key", "value", "code", "queue", "from", "cursor"):
            async with client.get(URL(f"{path}?{name}=a%FF%ED%A0%80", encoded=True), headers=HTML) as response:
                assert response.status < 500, (name, await response.text())


@pytest.mark.parametrize("path", ["/timer?id=none%E2%80%AE", "/nothing%E2%80%AE", "/timers?from=x%E2%80%AE"])
async def test_the_page_of_a_problem_is_safe(path: str) -> None:
    async with console(hostile_cluster(), **IDS) as client, client.get(path, headers=HTML) as response:
        text = await response.text()
        assert response.status in (400, 404) and r"\u202e" in text
        assert_safe(text)


async def test_values_are_safe_in_each_form_and_keep_their_lines() -> None:
    cluster = hostile_cluster()
    value = f'{{"a": "{HOSTILE}"}}\n\tsecond\u202eline'.encode()
    found = {**cluster._shown(HOSTILE), "value": base64.b64encode(value).decode()}
    cluster.answer = WorkerAnswer(200, {"timers": [found], "missing": []})
    async with console(cluster, **IDS) as client:
        for form in ("text", "json", "hex"):
            text = await text_of(client, "/timer/value", params={"id": HOSTILE, "as": form})
            assert_safe(text)
        text = unescape(await text_of(client, "/timer/value", params={"id": HOSTILE, "as": "text"}))
        assert f'{{"a": "{SHOWN}"}}\n\tsecond\\u202eline' in text


async def test_a_form_sends_back_exactly_what_it_was_given_and_says_what_cannot_be_seen() -> None:
    async with console(hostile_cluster(), **IDS) as client:
        text = unescape(await text_of(client, "/timers", params={"prefix": HOSTILE}))
        assert text.count(f'name="prefix" value="{HOSTILE}"') == 2
        assert f"cannot be seen: <code>{SHOWN}</code>" in text
        assert "cannot be seen" not in await text_of(client, "/timers", params={"prefix": WHOLE})
        text = unescape(await text_of(client, "/timers/new", params={"value": f"{HOSTILE}\nb"}))
        assert f"{HOSTILE}\nb</textarea>" in text and "cannot be seen" in text


async def test_programs_to_copy_are_safe_and_set_the_same_timer() -> None:
    async with console(hostile_cluster(), **IDS) as client:
        form = {"topic": "t", "key": HOSTILE, "value": HOSTILE, "delay": "15m", "when": "delay"}
        async with client.post("/timers/new/program", data=form, headers=PART) as response:
            text = unescape(await response.text())
    assert_safe(text)
    body = re.search(r"-d '(.*)'", text)
    assert body is not None and json.loads(body[1])["key"] == HOSTILE
    call = re.search(r"client\.schedule\((.*), delay", text)
    assert call is not None and eval(f"({call[1]})") == ("t", HOSTILE, HOSTILE)


async def test_scripts_follow_the_same_rule() -> None:
    async with console(hostile_cluster(), **IDS) as client:
        text = await text_of(client, "/live", params={"topics": "t"})
    rule = re.search(r'<html lang="en" data-unsafe="([^"]+)"', text)
    assert rule is not None and unescape(rule[1]) == UNSAFE_CHARACTERS and UNSAFE_CHARACTERS.isascii()
    assert text.index("printable.js") < text.index("live.js")
    script = page._files()["printable.js"].decode()
    assert f'data-whole="{page.WHOLE}"' in text and f"<= {page.WHOLE}" not in script and "dataset.whole" in script


def test_only_fields_of_forms_hold_exact_text_and_only_charts_are_markup() -> None:
    assert len(TEMPLATES) > 20
    for path in TEMPLATES:
        text = path.read_text(encoding="utf-8")
        for found in re.finditer(r"\{\{[^}]*\|\s*(exact|safe|lines)\b[^}]*\}\}", text):
            before = text[: found.start()]
            around = before[before.rfind("<") :]
            if found[1] == "exact":
                assert re.fullmatch(r'<input [^>]*value="|<textarea [^>]*>', around), (path.name, found[0])
            elif found[1] == "lines":
                assert re.fullmatch(r"<pre [^>]*>", around), (path.name, found[0])
            else:
                assert path.name == "report.html" and "_chart |" in found[0], (path.name, found[0])
