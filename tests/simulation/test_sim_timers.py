"""Tests of :class:`timers.testing.SimTimers`, with which users test their own timers."""

import asyncio
import re
import sqlite3
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from timers.client import Backoff, Repeat, SqlOutbox, TimerRequest, TimersClient
from timers.client.outbox import schema
from timers.client.tokens import MappingTokens, Timeouts
from timers.errors import InvalidTimerError, PublishError, TimerTooLargeError
from timers.process.config.settings import Settings
from timers.testing import AsyncSimTimers, Fired, SimTimers, sim_timers
from timers.wire import future, topics


def test_the_example_in_the_docstring() -> None:
    """Run the code in the docstring of the module."""
    _, _, example = (sim_timers.__doc__ or "").partition("::\n")
    code = textwrap.dedent(re.split(r"\n(?=\S)", example)[0])
    names: dict[str, Any] = {}
    exec(code, names)
    names["test_an_order_expires_unless_paid"]()


def test_a_callback_has_the_id_of_its_timer() -> None:
    timers = SimTimers(now_s=1_000.25)
    timer_id = timers.schedule("t", "k", "v", delay=2, headers=[("a", None), ("a", b"\xff")])
    [fired] = timers.advance(10)
    assert fired.timer_id == timer_id
    assert fired.due_s == 1_003  # 1002.25 is rounded up
    assert fired.at_ms == 1_003_000
    assert fired.headers[:2] == [("a", None), ("a", b"\xff")]
    assert [name for name, _ in fired.headers[2:]] == ["timer-id", "timer-due", "timer-fired"]


@pytest.mark.parametrize("key", [b"\xff", None])
def test_a_callback_has_the_key_that_was_asked_for(key: bytes | None) -> None:
    timers = SimTimers()
    timers.schedule("orders", key, b"x", delay=1)
    [callback] = timers.advance(1)
    assert callback.key == key


def test_timers_fire_in_the_order_of_their_due_seconds() -> None:
    timers = SimTimers()
    start_s = timers.clock.now_s
    for delay in (timedelta(days=365), 5, timedelta(days=3), 5):
        timers.schedule("t", "k", "v", delay=delay)
    fired = timers.advance(timedelta(days=400))
    assert [f.due_s - start_s for f in fired] == [5, 5, 3 * 86_400, 365 * 86_400]
    assert [f.at_ms for f in fired] == [f.due_s * 1000 for f in fired]
    assert timers.clock.now_s == start_s + 400 * 86_400


def test_an_overdue_timer_fires_at_once() -> None:
    timers = SimTimers()
    timers.schedule("t", "k", "v", at=datetime(2001, 1, 1, tzinfo=UTC))
    assert len(timers.fired) == 1


@pytest.mark.parametrize("lose_disk", [False, True])
def test_a_restart_changes_nothing(lose_disk: bool) -> None:
    timers = SimTimers()
    for delay in (10, 20, 30):
        timers.schedule("t", "k", str(delay), delay=delay)
    timers.advance(15)
    timers.restart(lose_disk=lose_disk)
    assert timers.pending == 2
    timers.advance(100)
    assert [f.value for f in timers.fired] == [b"10", b"20", b"30"]


def test_bad_input_is_refused_or_becomes_a_dead_letter() -> None:
    timers = SimTimers(missing_topics=["nowhere"])
    with pytest.raises(InvalidTimerError, match="did you mean"):
        timers.schedule("t", "k", "v", at=1_700_000_000_000)
    source = timers.produce(b"soon", future.encode("t", "k", b"v"))
    timers.schedule("nowhere", "k", "v", delay=1)
    timers.advance(1)
    assert [(letter.code, letter.source == source) for letter in timers.dead_letters] == [
        ("key-not-a-number", True),
        ("topic-unknown", False),
    ]
    assert timers.fired == []
    with pytest.raises(InvalidTimerError, match="time passes forward"):
        timers.advance(-1)


def test_the_retry_topic_refuses_no_timer_that_was_accepted() -> None:
    """The value of its record has the name of the callback topic, which the request may have had in a header."""
    timers = SimTimers(missing_topics=["nowhere"])
    value = b"x" * Settings().max_request_bytes
    timers.produce(b"0", value, [("timer-topic", b"nowhere")])
    timers.advance(1)
    assert [(letter.code, letter.value == value) for letter in timers.dead_letters] == [("topic-unknown", True)]


def test_a_receiver_with_tokens() -> None:
    timers, timeouts = SimTimers(), Timeouts(MappingTokens({}))
    for order in ("paid", "unpaid"):
        timers.schedule("timeouts", order, "", delay=60, token=timeouts.arm(order))
    timeouts.cancel("paid")
    expired = [order for fired in timers.advance(60) if timeouts.accept(order := (fired.key or b"").decode(), fired)]
    assert expired == ["unpaid"]


def test_a_retried_callback_with_a_token_is_accepted_again() -> None:
    timers, timeouts = SimTimers(), Timeouts(MappingTokens({}))
    timers.schedule("timeouts", "order", "", delay=60, token=timeouts.arm("order"))
    [failed] = timers.advance(60)
    assert timeouts.accept("order", failed)
    timers.retry_later(failed)
    [lost] = timers.advance(60)
    assert not timeouts.accept("order", lost), "so the receiver restores the token first"
    assert timeouts.restore("order", lost)
    timers.retry_later(lost)
    [again] = timers.advance(600)
    assert timeouts.accept("order", again)


def test_timers_with_an_id() -> None:
    timers = SimTimers()
    now_s = timers.clock.now_s
    timers.schedule("t", "k", "without", delay=10)
    assert timers.schedule("t", "k", "first", delay=10, id="order-1") == "order-1"
    timers.schedule("t", "k", "cancelled", delay=10, id="order-2")
    assert timers.pending == 3
    assert timers.update("order-1", "t", "k", "second", delay=20, headers={"a": "b"})[:3] == (
        "order-1",
        "replaced",
        now_s + 10,
    )
    assert timers.update("order-3", "t", "k", "new", delay=10).verdict == "unknown"
    assert timers.cancel("order-2", timeout_s=5)[:3] == ("order-2", "cancelled", now_s + 10)
    assert timers.cancel("order-2").verdict == "unknown"
    assert timers.pending == 3
    timers.restart(lose_disk=True)
    fired = timers.advance(15)
    assert sorted(each.value for each in fired) == [b"new", b"without"]
    assert timers.cancel("order-3")[:3] == ("order-3", "already-fired", now_s + 10)
    [second] = timers.advance(60)
    assert (second.timer_id, second.value, second.due_s, second.headers[0]) == (
        "order-1",
        b"second",
        now_s + 20,
        ("a", b"b"),
    )
    assert timers.schedule("t", "k", "late", at=now_s, id="order-4") == "order-4"
    assert timers.fired[-1].timer_id == "order-4"
    assert (timers.pending, timers.dead_letters) == (0, [])
    for call in (timers.cancel, lambda id: timers.schedule("t", "k", "v", delay=1, id=id)):
        with pytest.raises(InvalidTimerError, match="id"):
            call("")


@pytest.mark.parametrize("lose_disk", [False, True])
def test_timers_that_repeat(lose_disk: bool) -> None:
    timers = SimTimers(now_s=datetime(2027, 3, 26, 12, tzinfo=UTC).timestamp())  # clocks change on the 28th
    daily = Repeat.cron("30 2 * * *", zone="Europe/Berlin")
    assert timers.schedule("reports", "k", b"daily", id="a", repeat=daily) == "a"
    fired = timers.advance(timedelta(days=1))
    timers.restart(lose_disk=lose_disk)
    fired += timers.advance(timedelta(days=2))
    hours = [datetime.fromtimestamp(each.due_s, UTC).strftime("%d %H:%M") for each in fired]
    assert hours == ["27 01:30", "28 01:00", "29 00:30"]
    assert {(each.topic, each.key, each.value, each.timer_id) for each in fired} == {("reports", b"k", b"daily", "a")}
    again = timers.update("a", "reports", "k", b"daily", repeat=daily)
    other = timers.update("a", "reports", "k", b"daily", repeat=Repeat.every(60))
    assert (again.verdict, other.verdict) == ("unchanged", "replaced")
    assert again.version != other.version
    assert timers.schedule("reports", None, b"", id="a", repeat=daily, if_absent=True).verdict == "exists"
    assert len(timers.advance(180)) == 3
    assert timers.cancel("a").verdict == "cancelled"
    assert timers.advance(timedelta(days=2)) == []
    for wrong in ({"id": None}, {"id": "b", "delay": 5}, {"id": "b", "topic": "timer-request"}):
        with pytest.raises(InvalidTimerError):
            timers.schedule(**{"topic": "reports", "key": None, "value": b"", "repeat": daily, **wrong})  # type: ignore[arg-type]


def test_many_timers_are_scheduled_and_a_wrong_one_is_named_by_its_place() -> None:
    timers = SimTimers()
    ids = timers.schedule_many(TimerRequest("t", f"k{number}", b"v", delay=number) for number in (1, 2, 3))
    assert [fired.timer_id for fired in timers.advance(3)] == ids
    with pytest.raises(
        InvalidTimerError, match=r"^request 1: callback topic 'a b' is not .*the 1 before it are scheduled"
    ) as error:
        timers.schedule_many([TimerRequest("t", None, b"", delay=1), TimerRequest("a b", None, b"", delay=1)])
    assert len(error.value.ids) == 1
    assert timers.schedule_many([TimerRequest("t", None, b"", delay=1)], ids=False) == 1
    assert timers.pending == 2


def test_a_callback_is_retried_until_it_becomes_a_dead_letter() -> None:
    timers, backoff = SimTimers(), Backoff(first_s=10, retries=1)
    timers.schedule("t", "k", b"v", delay=1)
    [first] = timers.advance(1)
    retried = timers.retry_later(first, backoff=backoff)
    [second] = timers.advance(11)
    assert (second.timer_id, second.key, second.value) == (retried, b"k", b"v")
    assert dict(second.headers)["retry-attempt"] == b"1"
    assert timers.retry_later(second, backoff=backoff) is None
    [letter] = timers.dead_letters
    assert letter.code == "retries-exhausted"


def test_if_absent_returns_an_id_that_says_whether_it_was_set() -> None:
    timers = SimTimers()
    first = timers.schedule("t", "k", b"v", delay=60, id="order-17", if_absent=True)
    second = timers.schedule("t", "k", b"v", delay=90, id="order-17", if_absent=True)
    plain = timers.schedule("t", "k", b"v", delay=60)
    assert (first, first.verdict, first.is_set) == ("order-17", "set", True)
    assert (second, second.verdict, second.is_set) == ("order-17", "exists", False)
    assert second.version == first.version and second.due_s == timers.clock.now_s + 60
    assert (plain.verdict, plain.is_set, plain.version) == (None, True, None)


def test_code_that_awaits_a_client_can_use_simulated_timers() -> None:
    async def place_order(client: Any) -> str:
        async with client:
            await client.schedule_many([TimerRequest("t", "many", b"", delay=5)])
            told = await client.schedule("t", "id", b"", delay=5, id="a", if_absent=True)
            await client.update("a", "t", "id", b"", delay=7)
            await client.schedule("t", "cancelled", b"", delay=5, id="b")
            await client.cancel("b")
            assert told.is_set
            return str(await client.send_later("later", b"", "t", timedelta(seconds=6)))

    timers = AsyncSimTimers()
    later = asyncio.run(place_order(timers))
    assert [fired.key for fired in timers.sim.advance(10)] == [b"many", b"later", b"id"]
    assert timers.sim.fired[1].timer_id == later


def test_a_request_without_protobuf_is_accepted_as_in_a_new_app() -> None:
    timers = SimTimers()
    timers.produce(b"%d" % (timers.clock.now_s + 60), b"{}", [("timer-topic", b"orders")])
    [fired] = timers.advance(60)
    assert (fired.topic, fired.value, timers.dead_letters) == ("orders", b"{}", [])


@pytest.mark.parametrize("lose_disk", [None, False, True])
def test_a_paused_topic_gets_nothing_until_it_is_resumed(lose_disk: bool | None) -> None:
    timers = SimTimers()
    timers.pause("mails")
    ids = [timers.schedule("mails", f"order-{number}", b"", delay=1 + number) for number in range(4)]
    by_id = timers.schedule("mails", "order-9", b"", delay=2, id="nine")
    timers.schedule("orders", "order-5", b"", delay=2)
    assert [each.topic for each in timers.advance(10)] == ["orders"]
    if lose_disk is not None:
        timers.restart(lose_disk=lose_disk)
    assert [(each.topic, each.timer_id) for each in timers.held] == [
        ("mails", id) for id in (ids[0], ids[1], by_id, ids[2], ids[3])
    ]
    assert (timers.pending, timers.held[0].key) == (5, b"order-0")
    assert timers.cancel("nine").verdict == "cancelled"
    timers.resume("mails", over_s=2)
    assert [each.timer_id for each in timers.fired[1:]] == ids[:2]
    assert [each.timer_id for each in timers.advance(timedelta(seconds=1))] == ids[2:]
    assert (timers.held, timers.pending) == ([], 0)


def test_time_jumps_over_seconds_in_which_nothing_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    timers = SimTimers()
    timers.pause("mails")
    for _ in range(4):
        timers.schedule("mails", "k", b"", delay=1)
    timers.advance(10)
    timers.resume("mails", over_s=timedelta(days=1))
    ticks, tick = [], timers._tick

    def counted() -> None:
        ticks.append(timers.clock.now_s)
        tick()

    monkeypatch.setattr(timers, "_tick", counted)
    assert len(timers.advance(timedelta(hours=12))) == 2
    assert len(ticks) < 6
    timers.pause("mails")
    assert timers.advance(timedelta(days=9)) == []
    assert len(ticks) < 9


def test_a_pause_ends_by_itself_and_what_it_held_is_released_over_ten_minutes() -> None:
    timers = SimTimers()
    timers.pause("mails", for_s=timedelta(hours=1))
    for number in range(600):
        timers.schedule("mails", "k", b"%d" % number, delay=60)
    assert timers.advance(3599) == []
    fired = timers.advance(3600)
    assert [each.at_ms // 1000 - sim_timers.EPOCH_S for each in fired] == list(range(3600, 4200))
    timers.pause("mails")
    timers.schedule("mails", "k", b"", delay=1)
    timers.advance(5)
    timers.resume("mails")
    assert len(timers.fired) == 601
    with pytest.raises(InvalidTimerError, match="legal name"):
        timers.pause("no topic!")
    with pytest.raises(InvalidTimerError, match="a pause lasts for a timedelta or seconds"):
        timers.pause("mails", for_s=-1)


def test_rows_of_an_outbox_are_sent_after_their_transaction() -> None:
    timers, outbox = SimTimers(now_s=time.time()), SqlOutbox()
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(schema("sqlite"))
        with connection:
            first = outbox.schedule(connection, "t", "k", b"v", delay=900)
            second = outbox.schedule(connection, "t", None, b"v", delay=900)
            outbox.schedule(connection, "t", "k", b"v", delay=30, id="own")
            outbox.cancel(connection, second)
        outbox.schedule(connection, "t", "k", b"rolled back", delay=900)
        connection.rollback()
        assert timers.relay(connection) == [first, second, "own", second]
        assert [fired.timer_id for fired in timers.advance(60)] == ["own"]
        assert [(fired.timer_id, fired.key, fired.value) for fired in timers.advance(900)] == [(first, b"k", b"v")]
        with connection:
            outbox.schedule(connection, "t", "k", b"1", delay=30, id="before")
            connection.execute("INSERT INTO timer_outbox (aggregateid, payload) VALUES ('by hand', '')")
            outbox.schedule(connection, "t", "k", b"2", delay=30, id="behind")
        for _ in range(2):
            with pytest.raises(InvalidTimerError, match="needs timer_topic and payload"):
                timers.relay(connection)
            connection.rollback()
            assert connection.execute("SELECT aggregateid FROM timer_outbox").fetchall() == [("by hand",)]
        assert [fired.timer_id for fired in timers.fired[-2:]] == ["before", "behind"]
        sent = [record.key for record in timers._kafka.records if record.topic == topics.ID_REQUEST]
        assert sent.count(b"before") == 1


NEVER = Backoff(retries=0)

CLIENT_CALLS: dict[str, Callable[[Any], Any]] = {
    "schedule": lambda client: client.schedule("t", "k", b"", delay=1),
    "schedule an id": lambda client: client.schedule("t", "k", b"", delay=1, id="i"),
    "if_absent": lambda client: client.schedule("t", "k", b"", delay=1, id="i", if_absent=True),
    "send_later": lambda client: client.send_later("t", b"", "k", 1),
    "update": lambda client: client.update("i", "t", "k", b"", delay=1),
    "cancel": lambda client: client.cancel("i"),
    "schedule_many": lambda client: client.schedule_many([]),
    "retry_later": lambda client: client.retry_later(Fired("t", None, b"", [], "i", 1, 1000)),
    "a dead letter": lambda client: client.retry_later(Fired("t", None, b"", [], "i", 1, 1000), backoff=NEVER),
}


@pytest.mark.parametrize("call", CLIENT_CALLS)
@pytest.mark.parametrize("make", [SimTimers, lambda: TimersClient("nowhere:1", timeout_s=1)])
def test_a_client_that_is_closed_refuses_each_call(call: str, make: Callable[[], Any]) -> None:
    with make() as client:
        pass
    client.close()
    with pytest.raises(PublishError, match="this client is closed: open a new one"):
        CLIENT_CALLS[call](client)


def test_timers_outlive_their_client_and_a_block_begins_the_next_one() -> None:
    timers = SimTimers()
    with timers:
        timers.schedule("t", "k", b"", delay=1)
    with timers:
        timers.schedule("t", "k", b"", delay=1)
    assert (len(timers.advance(1)), timers.pending, timers.held) == (2, 0, [])

    async def twice(client: AsyncSimTimers) -> None:
        for _ in range(2):
            async with client:
                await client.schedule("t", "k", b"", delay=1)
        with pytest.raises(PublishError, match="is closed"):
            await client.cancel("i")

    asyncio.run(twice(AsyncSimTimers(timers)))
    assert timers.pending == 2


def test_threads_may_share_it() -> None:
    timers, interval_s = SimTimers(), sys.getswitchinterval()

    def work(thread: int) -> list[str]:
        ids = []
        for number in range(40):
            id = None if number % 2 else f"{thread}-{number}"
            ids.append(str(timers.schedule("t", f"{thread}-{number}", b"v", delay=5, id=id)))
            assert timers.pending
        return ids

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            ids = [id for part in pool.map(work, range(4)) for id in part]
    finally:
        sys.setswitchinterval(interval_s)
    assert (len(set(ids)), timers.pending) == (160, 160)
    assert {fired.timer_id for fired in timers.advance(5)} == {*ids}
    assert (len(timers.fired), timers.pending) == (160, 0)


def test_a_dead_letter_is_on_the_topic_that_its_receiver_named() -> None:
    timers = SimTimers(missing_topics=["nowhere", "no-letters"])
    timers.schedule("nowhere", "k", b"v", delay=0)
    timers.schedule("t", "k", b"v", delay=0)
    [fired] = timers.fired
    with pytest.raises(PublishError, match="'no-letters' does not exist"):
        timers.retry_later(fired, backoff=NEVER, dead_letter_topic="no-letters")
    assert timers.retry_later(fired, backoff=NEVER, dead_letter_topic="letters") is None
    assert timers.retry_later(fired, backoff=NEVER) is None
    timers.schedule("letters", "k", b"a callback", delay=0)
    assert [(letter.code, letter.topic) for letter in timers.dead_letters] == [
        ("topic-unknown", topics.DEAD_LETTER),
        ("retries-exhausted", "letters"),
        ("retries-exhausted", topics.DEAD_LETTER),
    ]
    assert [fired.topic for fired in timers.fired] == ["t", "letters"]


def test_a_request_that_is_too_large_is_named_by_its_kind() -> None:
    timers = SimTimers()
    with pytest.raises(TimerTooLargeError, match="request 1: ") as caught:
        timers.schedule_many([TimerRequest("t", None, value, delay=1) for value in (b"", b"v" * 2_000_000)])
    assert len(caught.value.ids) == 1
