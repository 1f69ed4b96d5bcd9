"""The pages of the cluster, of changes and of runbooks, and the links to runbooks in sentences. No brokers."""

from __future__ import annotations

import json
import re

from tests.harness.console_pages import HOSTILE, IDS, cluster_with, text_of
from tests.harness.sim_console import answer_of, console
from timers.console.history import change_of
from timers.console.web.page import linked, runbooks, section_links
from timers.console.web.site import WAYS_OUT
from timers.kafka.aiokafka_internals.open_transactions import OpenTransaction
from timers.offline.app_state import AppState, LevelsInUse, TopicState
from timers.queue.inspection import QueueStats

ONGOING = OpenTransaction("timeouts", 0, 17, 1_900_000_000_000, 4, "billing-1", "Ongoing", 60_000)
HANGING = OpenTransaction("timeouts", 1, 18, 1_900_000_000_000, 5)
BEHIND = AppState(
    LevelsInUse(10, {"w1": 11, HOSTILE: 11}, {"t/0": 9, "t/1": 10}),
    [
        TopicState("requests", "TIMERS_REQUEST_TOPIC", 4, [1, 2], [], ["it has retention.ms=1"], True),
        TopicState("verdicts", "TIMERS_VERDICT_TOPIC", 4, [], [3], [], True),
        TopicState("gone", "TIMERS_ID_TOPIC", 0, [], [], [], False),
        TopicState("unread", "TIMERS_COLD_TOPIC", 1, [], [], [], False),
    ],
    [ONGOING, HANGING],
    {"broker 7": f"{HOSTILE} (docs/operations.md#a-failing-partition)"},
)


async def test_the_cluster_page_names_what_is_wrong_and_what_to_do() -> None:
    cluster = cluster_with("order-1")
    async with console(cluster, **IDS) as client:
        assert "No transaction has been open" in await text_of(client, "/cluster")
        cluster.app_state = BEHIND
        text = await text_of(client, "/cluster")
    for said in (
        *("timers levels --raise 11", "9 to 10", "billing-1", "producer 5", "no leader", "copies are missing"),
        *("Partitions 1–2", "Partitions 3", "retention.ms=1", "missing", "The brokers abort it"),
        *("abort --topic timeouts --partition 1 --start-offset 18", "may not read its configuration"),
    ):
        assert said in text, said
    assert "<script>alert" not in text
    linked_to = set(re.findall(r'href="/runbook\?name=([^"]+)"', text))
    assert linked_to >= {"a-hanging-transaction", "feature-levels", "a-deleted-topic", "a-failing-partition"}
    assert linked_to <= runbooks().keys()


async def test_who_may_use_some_topics_only_sees_transactions_on_these(tmp_path) -> None:  # type: ignore[no-untyped-def]
    users = tmp_path / "users.toml"
    users.write_text(
        '[[user]]\nname = "ann"\ntopics = ["mails"]\ntoken_sha256 = '
        '"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"\n'
    )
    cluster = cluster_with("order-1")
    cluster.app_state = BEHIND
    cluster.recorded = [entry(user="bob"), entry(user="ann", id="hers")]
    mine = {"Authorization": "Bearer test", "Accept": "text/html"}
    async with console(cluster, **IDS, TIMERS_CONSOLE_USERS_FILE=str(users)) as client:
        async with client.get("/cluster", headers=mine) as answer:
            assert "billing-1" not in await answer.text()
        async with client.get("/changes?user=bob", headers=mine) as answer:
            text = await answer.text()
    assert "hers" in text and "bob" not in text, "she sees her own changes, whatever she asks for"


def entry(user: str = "local", id: str = "order-1", **more: object) -> dict[str, object]:
    """An entry of the log of changes."""
    parts: dict[str, object] = {"parameters": {"id": id}, "body": {}, "operation": "cancelTimer", "address": "1.1.1.1"}
    return {"at": "2030-01-01T00:00:00Z", "at_ms": 1, "user": user, **parts, **more}


async def test_each_change_shows_who_asked_for_it() -> None:
    cluster = cluster_with("order-1", "order-2")
    async with console(cluster, **IDS) as client:
        assert "No change is in the log" in await text_of(client, "/changes")
        for id in ("order-1", "order-2"):
            assert (await answer_of(client, "DELETE", f"/v1/timer?id={id}"))[0] == 200
        text = await text_of(client, "/changes")
        assert text.index("id=order-2") < text.index("id=order-1") and "cancelled a timer" in text and "local" in text
        text = await text_of(client, "/changes?id=order-2&part=1")
        assert "id=order-2" in text and "id=order-1" not in text and "<html" not in text
        assert "/changes?id=order-2&amp;part=1" in await text_of(client, "/timer?id=order-2")


def test_a_record_that_is_no_entry_is_left_out() -> None:
    """Any program with Write on the topic may have written it."""
    for value in (None, b"", b"{}", b"[1]", b"\xff", b'{"body": 1}', json.dumps(entry(at_ms="x")).encode()):
        assert change_of(value, "", "") is None
    assert change_of(json.dumps(entry(id="x" * 9000)).encode(), "", "").about == f"id={'x' * 297}"  # type: ignore[union-attr]
    batch = {"timers": {"listed": [{"id": "a"}, {"id": "b"}, {"topic": "t"}], "json_sha256": "0"}}
    found = change_of(json.dumps(entry(parameters={}, body=batch)).encode(), "b", "")
    assert found is not None and found.ids == 2
    assert change_of(json.dumps(entry(ids=["step"])).encode(), "step", "local") is not None
    assert change_of(json.dumps(entry()).encode(), "order-1", "ann") is None


async def test_a_problem_and_an_idle_queue_lead_to_what_to_do() -> None:
    cluster = cluster_with("order-1")
    cluster.worker_fails = True
    for sentence in WAYS_OUT.values():
        assert all(name in runbooks() for name in re.findall(r"operations\.md#([\w-]+)", sentence)), sentence
    async with console(cluster, **IDS) as client:
        assert 'href="/runbook?name=timersnoworker"' in await text_of(client, "/timers?wait=1", 503)
        cluster.queue_stats["mails"] = QueueStats("mails", "mails", 3, 0, False, 0, 9.0, 0, ())
        for path in ("/queues", "/queue?name=mails"):
            assert 'href="/runbook?name=timersqueueold"' in await text_of(client, path)


async def test_all_runbooks_are_listed_and_an_alert_leads_to_its_own() -> None:
    async with console(cluster_with(), **IDS) as client:
        text = await text_of(client, "/runbook")
        assert set(re.findall(r'href="/runbook\?name=([^"]+)"', text)) == runbooks().keys()
        assert "<h1>TimersNoTick</h1>" in await text_of(client, "/runbook?name=TimersNoTick")
    assert all("](" not in section_links(text, "") for _, text in runbooks().values())


def test_a_reference_in_a_sentence_becomes_a_link_and_nothing_else_does() -> None:
    assert linked("<b> (docs/operations.md#clocks)", "/ops") == (
        '&lt;b&gt; (<a href="/ops/runbook?name=clocks">What to do: Clocks</a>)'
    )
    assert linked("docs/operations.md#nowhere \x1b", "") == "docs/operations.md#nowhere \\x1b"


def test_lines_of_a_paragraph_are_joined_and_code_is_kept() -> None:
    text = "A line\ngoes on, `timers\n  --raise`.\n\n* one\n  item\n* two\n\n```sh\na <b\n  c\n```\n"
    joined = "A line goes on, <code>timers --raise</code>.\n\n* one item\n* two"
    assert section_links(text, "") == f"{joined}<pre>a &lt;b\n  c\n</pre>"
