"""The pages of the cluster, of changes and of runbooks, and the links to runbooks in sentences. No brokers."""

import asyncio
import json
import re
from collections.abc import Callable

import pytest
from aiokafka.errors import KafkaConnectionError
from confluent_kafka import KafkaError, KafkaException

from tests.harness.console_pages import HOSTILE, IDS, LAGS, PART, cluster_with, text_of
from tests.harness.constants import Constants
from tests.harness.sim_console import answer_of, console
from timers.console.changes import change_of
from timers.console.kafka_cluster import WorkerAnswer
from timers.console.web.page import iso, linked, name_of, runbooks, section_links
from timers.console.web.site import WAYS_OUT
from timers.errors import AccessError, TimersError
from timers.kafka.aiokafka_internals.open_transactions import Looked, OpenTransaction
from timers.kafka.connection import ErrorReports
from timers.offline import app_state
from timers.offline.app_state import AppState, LevelsInUse, TopicState
from timers.process.config.settings import Settings
from timers.queue.inspection import QueueStats

pytestmark = pytest.mark.usefixtures("patient_pages")

ONGOING = OpenTransaction("timeouts", 0, 17, 1_900_000_000_000, 4, "billing-1", "Ongoing", 60_000)
UNNAMED = OpenTransaction("timeouts", 1, 18, 1_900_000_000_000, 5)
LEVELS = LevelsInUse(10, {"w1": 11, HOSTILE: 11}, {"t/0": 9, "t/1": 10})
BEHIND = AppState(
    LEVELS,
    [
        TopicState("requests", "TIMERS_REQUEST_TOPIC", 4, [1, 2], [], ["it has retention.ms=1"], True),
        TopicState("verdicts", "TIMERS_VERDICT_TOPIC", 4, [], [3], [], True),
        TopicState("gone", "TIMERS_ID_TOPIC", 0, [], [], [], False),
        TopicState("users", "TIMERS_SCHEDULE_TOPICS", 0, [], [], [], False),
        TopicState("hidden", "TIMERS_MARKER_TOPIC", None, [], [], [], False),
        TopicState("unread", "TIMERS_COLD_TOPIC", 1, [], [], [], False),
    ],
    Looked([ONGOING, UNNAMED], [f"broker 7 {HOSTILE} (docs/operations.md#a-failing-partition)"]),
    {},
)
WAITING = "/cluster?wait=1"


async def test_the_cluster_page_names_what_is_wrong_and_what_to_do() -> None:
    cluster = cluster_with("order-1")
    async with console(cluster, **IDS, TIMERS_SCHEDULE_TOPICS="users") as client:
        text = await text_of(client, WAITING)
        assert "No transaction has been open" in text and '<span class="badge green">0</span>' in text
        cluster.app_state = BEHIND
        text = await text_of(client, WAITING)
    for said in (
        *("timers levels --raise 11", "9 to 10", "billing-1", "producer 5", "no leader", "copies are missing"),
        *("Partitions 1–2", "Partitions 3", "retention.ms=1", "missing", "The brokers abort it"),
        *("may not read its configuration", "may not describe it", "Its users create it", "when it starts, if it may"),
    ):
        assert said in text, said
    assert (
        "find-hanging --max-transaction-timeout 1 --topic timeouts --partition 1" in text
        and "</script>alert" not in text
    )
    assert " abort --topic" not in text, "it may lose timers, and whether it hangs is not known"
    linked_to = set(re.findall(r'href="/runbook\?name=([^"]+)"', text))
    assert linked_to >= {"a-hanging-transaction", "feature-levels", "a-deleted-topic", "a-failing-partition"}
    assert linked_to <= runbooks().keys()


async def test_what_is_not_known_is_never_a_green_zero() -> None:
    cluster = cluster_with("order-1")
    async with console(cluster, **IDS) as client:
        cluster.app_state = BEHIND._replace(transactions=Looked([], ["broker 2 did not answer"]))
        text = await text_of(client, WAITING)
        assert 'class="badge amber">at least 0<' in text and "broker 2 did not answer" in text
        assert "No transaction has been open" not in text and 'class="badge green">0<' not in text
        cluster.app_state = AppState(None, None, None, {"open transactions": "no broker answers"})
        text = await text_of(client, WAITING)
        assert "Not known: open transactions." in text
        assert not any(card in text for card in ("open-h", "levels-h", "topics-h"))
        cluster.failure = TimersError("others look")
        text = await text_of(client, WAITING)
        assert "others look" in text and "Held timers" in text, "the workers' figures are shown all the same"


async def test_many_open_transactions_are_cut() -> None:
    cluster = cluster_with("order-1")
    cluster.app_state = BEHIND._replace(transactions=Looked([ONGOING] * 300, []))
    async with console(cluster, **IDS) as client:
        text = await text_of(client, WAITING)
    assert text.count("billing-1") == 200 and ">300</span>" in text and "the oldest 200" in text


@pytest.mark.parametrize(
    ("levels", "said", "not_said"),
    [
        (LEVELS, "All workers support level 11", "Nothing is left to upgrade"),
        (LEVELS._replace(workers={}), "not known: none runs.", "timers levels --raise"),
        (LEVELS._replace(workers={}, taken="others have it"), "not known: others have it.", "timers levels --raise"),
        (LEVELS._replace(workers={"w1": 9}), "does not support level 10", "Nothing is left to upgrade"),
        (LEVELS._replace(workers={"w1": 10}), "Below level 10: t/0.", "Nothing is left to upgrade"),
        (LEVELS._replace(workers={"w1": 10}, partitions={"t/0": 10}), "Nothing is left to upgrade", "Below level"),
    ],
)
async def test_no_level_is_offered_above_that_of_workers(levels: LevelsInUse, said: str, not_said: str) -> None:
    cluster = cluster_with("order-1")
    cluster.app_state = BEHIND._replace(levels=levels)
    async with console(cluster, **IDS) as client:
        text = await text_of(client, WAITING)
    assert said in text and not_said not in text


def test_without_workers_no_level_may_be_allowed() -> None:
    assert LEVELS.next == 11 and LEVELS._replace(workers={}).next == LEVELS.allowed


async def test_figures_that_a_worker_has_not_said_count_as_unknown() -> None:
    cluster = cluster_with("order-1")
    cluster.pages["/metrics"] = (200, LAGS + b"timers_held 5\n")
    async with console(cluster, **IDS) as client:
        text = await text_of(client, WAITING)
    # The second worker may not be asked.
    assert re.search(r"Held timers</dt><dd>at least 5", text) and re.search(r"Occurrences</dt><dd>–", text)
    assert 'id="held" data-part class="card old"' in text


async def test_a_page_asks_the_brokers_once_for_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    cluster = cluster_with("order-1")

    async def state(may_see: Callable[[str], bool], now_s: float) -> AppState:
        asked.append(now_s)
        return BEHIND

    monkeypatch.setattr(cluster, "state", state)
    async with console(cluster, **IDS) as client:
        assert "Asking the brokers" in await text_of(client, "/cluster") and asked == []
        assert "Asking the brokers" not in await text_of(client, "/cluster", headers=PART) and len(asked) == 1


async def test_each_part_of_the_state_has_a_time_of_its_own(constants: Constants) -> None:
    constants(app_state, PART_S=0.1)

    async def run(call: Callable[..., object], *given: object) -> object:
        if call is app_state.levels_in_use:
            raise TimersError("the levels cannot be read")
        if call is app_state.topics_in_use:
            await asyncio.sleep(60)
        return Looked([ONGOING], [])

    found = await app_state.look(Settings.load({}), lambda _: True, 0, run, lambda: None)
    assert (found.levels, found.topics, found.transactions) == (None, None, Looked([ONGOING], []))
    assert found.unknown.keys() == {"feature levels", "topics of the app"}


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
        async with client.get(WAITING, headers=mine) as answer:
            assert "billing-1" not in await answer.text()
        async with client.get(CHANGES + "&user=bob", headers=mine) as answer:
            text = await answer.text()
        async with client.get(CHANGES + "&part=1", headers=mine) as answer:
            assert "You see your own." in await answer.text()
    assert "hers" in text and "bob" not in text, "she sees her own changes, whatever she asks for"
    async with console(cluster, **IDS) as client:
        assert "billing-1" not in await text_of(client, WAITING + "&topic=mails")


def entry(user: str = "local", id: str = "order-1", **more: object) -> dict[str, object]:
    """An entry of the log of changes."""
    parts: dict[str, object] = {"parameters": {"id": id}, "body": {}, "operation": "cancelTimer", "address": "1.1.1.1"}
    return {"at": "2030-01-01T00:00:00Z", "at_ms": 1, "user": user, **parts, **more}


CHANGES = "/changes?wait=1"


async def test_each_change_shows_who_asked_for_it() -> None:
    cluster = cluster_with("order-1", "order-2")
    async with console(cluster, **IDS) as client:
        assert "No change is in the log" in await text_of(client, CHANGES)
        for id in ("order-1", "order-2"):
            assert (await answer_of(client, "DELETE", f"/v1/timer?id={id}"))[0] == 200
        assert (await answer_of(client, "DELETE", "/v1/timer?id=order-2"))[0] == 404
        text = await text_of(client, CHANGES)
        assert text.index("id=order-2") < text.index("id=order-1") and ">cancel a timer<" in text and "local" in text
        assert "cancelled" not in text, "one of them was refused, and the log does not say which"
        text = await text_of(client, CHANGES + "&id=order-2&part=1")
        assert "id=order-2" in text and "id=order-1" not in text and "<html" not in text


async def test_what_only_counts_is_no_change() -> None:
    cluster = cluster_with("order-1")
    async with console(cluster, **IDS) as client:
        found = await answer_of(client, "POST", "/v1/timers/cancel", json={"prefix": "order"})
        assert "count what this would match: cancel timers" in await text_of(client, CHANGES)
        sent = {"prefix": "order", "confirm": found[1]["confirm"]}
        assert (await answer_of(client, "POST", "/v1/timers/cancel", json=sent))[0] == 200
    made = [change_of(json.dumps(each).encode(), "", "") for each in cluster.recorded]
    assert [each.only_counts for each in made if each] == [True, False, False]
    retries = {"names": False, "confirm": False, "codes": True}
    for name, only_counts in retries.items():
        (change,) = [change_of(json.dumps(entry(operation="retryDeadLetters", body={name: "x"})).encode(), "", "")]
        assert change is not None and change.only_counts == only_counts
    dry = change_of(
        json.dumps(entry(operation="retryDeadLetters", body={"names": ["x"], "dry_run": True})).encode(), "", ""
    )
    assert dry is not None and dry.only_counts


async def test_older_changes_have_a_link() -> None:
    cluster = cluster_with("order-1")
    cluster.recorded = [entry(id=f"order-{number}") for number in range(3)]
    cluster.older_changes = [2, 0]
    async with console(cluster, **IDS) as client:
        text = await text_of(client, CHANGES + "&user=local")
        assert 'href="/changes?user=local&amp;ends=2-0">Older changes' in text
        assert "id=order-2" not in await text_of(client, CHANGES + "&ends=2-0")
        assert "ends is what" in await text_of(client, CHANGES + "&ends=x", 400)
        cluster.recorded = []
        assert "No change is among the newest 0 entries" in await text_of(client, CHANGES)


async def test_a_timer_page_looks_for_who_asked_when_it_is_told_to() -> None:
    cluster = cluster_with("order-1")
    async with console(cluster, **IDS) as client:
        text = await text_of(client, "/timer?id=order-1&wait=1")
        assert 'hx-get="/changes?id=order-1&amp;part=1" hx-target="#who"' in text
        # The source of a timer finds it too; the log has its id.
        cluster.answer = WorkerAnswer(200, {"id": "x", "timers": [found_timer(id="order-1")], "missing": []})
        assert "/changes?id=order-1&amp;part=1" in await text_of(client, "/timer?id=t%2F0%2F7&wait=1")
        cluster.answer = WorkerAnswer(200, {"id": "x", "timers": [found_timer(id="t/0/7")], "missing": []})
        text = await text_of(client, "/timer?id=t%2F0%2F7&wait=1")
        assert "/changes?id" not in text and "set without an id" in text


def found_timer(**fields: object) -> dict[str, object]:
    return {"state": "pending", "due": 2_000_000_000, "source": "t/0/7", "topic": "x", "key": "k", **fields}


async def test_the_id_that_an_idempotency_key_makes_is_in_the_log() -> None:
    cluster = cluster_with()
    body = {"topic": "t", "value": "v", "delay": "1h"}
    async with console(cluster, **IDS) as client:
        answer = await answer_of(client, "POST", "/v1/timers", json=body, headers={"Idempotency-Key": "a"})
        id = answer[1]["id"]
        assert "set a timer" in await text_of(client, f"{CHANGES}&id={id}")
        await answer_of(client, "POST", "/v1/timers", json={**body, "id": "own"}, headers={"Idempotency-Key": "a"})
    assert "ids" not in cluster.recorded[-1], "a timer with an id of its own"


def test_a_record_that_is_no_entry_is_left_out() -> None:
    """Any program with Write on the topic may have written it."""
    odd = [json.dumps(entry(at_ms=each)) for each in ("x", 10**30, -1, float("inf"), float("nan"))]
    for value in (None, b"", b"{}", b"[1]", b"\xff", b'{"body": 1}', *map(str.encode, odd)):
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


def test_what_was_asked_is_told_as_json() -> None:
    body = {"names": ["a"], "topic": None, "repeat": {"every": "1h"}, "value": {"json_bytes": 1, "json_sha256": "0"}}
    found = change_of(
        json.dumps(entry(parameters={"wait": 3}, body={**body, "n": 1.5, "at": 60, "to": 10**400})).encode(), "", ""
    )
    told = f'names=["a"] repeat={{"every": "1h"}} n=1.5 at=1970-01-01T00:01:00Z to=1{"0" * 400}'
    assert found is not None and found.about == told[:300]


async def test_a_right_that_is_missing_has_a_problem_of_its_own() -> None:
    cluster = cluster_with()
    error = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    found = ErrorReports(Settings.load({})).user_error(error, "topic 'x' cannot be read")
    assert isinstance(found, AccessError)
    cluster.failure = found
    async with console(cluster, **IDS) as client:
        status, answer = await answer_of(client, "GET", "/v1/fired")
        assert (status, answer["code"]) == (502, "access-refused")
        assert "timers acls --for console" in await text_of(client, "/fired?wait=1", 502)


def test_what_failed_is_said_of_each_error_of_kafka() -> None:
    with (
        pytest.raises(TimersError, match=r"^transactions cannot be looked for: .*KafkaConnectionError"),
        app_state.explained(Settings.load({}), "transactions cannot be looked for"),
    ):
        raise KafkaConnectionError("gone")


def test_a_time_that_no_calendar_has_is_shown_all_the_same() -> None:
    assert [iso(each) for each in (10**30, -(10**30), 253_402_300_800)] == ["after 9999", "before 1", "after 9999"]


async def test_all_runbooks_are_listed_and_an_alert_leads_to_its_own() -> None:
    async with console(cluster_with(), **IDS) as client:
        text = await text_of(client, "/runbook")
        assert set(re.findall(r'href="/runbook\?name=([^"]+)"', text)) == runbooks().keys()
        assert "<h1>TimersNoTick</h1>" in await text_of(client, "/runbook?name=TimersNoTick")

    for name, (_, text) in runbooks().items():
        shown = re.sub(r"<(pre|code)[ >].*?</\1>", "", section_links(text, ""), flags=re.DOTALL)
        assert not re.search(r"\]\(|\|--|##|`", shown), name
        assert set(re.findall(r'href="([^"]+)"', shown)) <= {f"/runbook?name={each}" for each in runbooks()}, name


def test_short_words_of_a_long_name_stay_whole() -> None:
    whole = '<span class="whole">{}</span>'.format
    assert name_of("a <b") == whole("a &lt;b")
    assert name_of(f'topic=mails key={{"base64": "/wA="}} id={"a-" * 20}b') == " ".join(
        (*map(whole, ("topic=mails", "key={&#34;base64&#34;:", "&#34;/wA=&#34;}")), f"id={'a-<wbr>' * 20}b")
    )


def test_a_reference_in_a_sentence_becomes_a_link_and_nothing_else_does() -> None:
    assert linked("<b> (docs/operations.md#clocks)", "/ops") == (
        '&lt;b&gt; (<a href="/ops/runbook?name=clocks">What to do: Clocks</a>)'
    )
    assert linked("docs/operations.md#nowhere \x1b", "") == "docs/operations.md#nowhere \\x1b"


def test_a_section_is_shown_as_html_and_html_in_it_as_text() -> None:
    text = "A [link](#clocks), [another page](a.md#b) `--raise` <b> `TIMERS_X<y` `a-1`\n\n"
    text += "| a | b |\n|---|---|\n| 1 | 2 |\n"
    text += "\n### More\n\n#### Still more\n\n```sh\n# a comment\n```\n"
    shown = section_links(text, "/ops")
    assert shown.startswith(
        '<p>A <a href="/ops/runbook?name=clocks">link</a>, another page <code>--raise</code> &lt;b&gt; '
        "<code>TIMERS_<wbr>X&lt;y</code> <code>a-<wbr>1</code></p>\n<table>"
    )
    assert "<td>2</td>" in shown and "# a comment" in shown
    assert "<h2>More</h2>" in shown and "<h3>Still more</h3>" in shown, "no heading level is left out"
