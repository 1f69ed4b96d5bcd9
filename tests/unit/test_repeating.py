"""Timers that repeat: what each firing sends, and what follows it [I37]."""

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from tests.harness.repeats import NOW_S, TOPIC, Sim, after
from timers.client import TimerRequest
from timers.core.fired import NOISY, PAUSE, Hold, Moment
from timers.core.keys import NOTHING_FIRED
from timers.core.levels import HOLDS_LEVEL, REPEATS_LEVEL
from timers.core.operation import defined, repeated, repeating, request_of
from timers.core.ports import Output
from timers.core.repeating import WAYPOINT_AFTER_S, ZONE_RETRY_S, Repeats, ZoneUnknown, occurrence_row
from timers.core.timer import Decoded, Origin, Row
from timers.errors import InvalidTimerError
from timers.kafka.request_formats import enabled_formats
from timers.machines.store.layout import pack_entry, unpack_entry
from timers.process.config.settings import Settings
from timers.testing import SimTimers
from timers.wire import headers as h
from timers.wire.formats import RequestRecord, future_by_id
from timers.wire.repeat import Repeat
from timers.wire.verdict import VerdictMessage

BY_ID = enabled_formats(Settings(id_topic=TOPIC))[TOPIC]


def test_each_firing_sets_the_next_one() -> None:
    sim = Sim()
    assert sim.define("a", "every=10", ("mine", b"1")).verdict == "set"
    fired = sim.advance(35)
    assert after(fired) == [10, 20, 30]
    assert [each.at_ms for each in fired] == [each.due_s * 1000 for each in fired]
    headers = dict(fired[0].headers)
    assert headers["mine"] == b"1"
    assert headers[h.TIMER_NOMINAL] == headers[h.TIMER_DUE] == b"%d" % (NOW_S + 10)
    assert headers[h.TIMER_NEXT] == b"%d" % (NOW_S + 20)
    assert headers[h.TIMER_VERSION] == f"{TOPIC}/0/0".encode()
    assert h.TIMER_REPEAT not in headers
    sources = [dict(each.headers)[h.TIMER_SOURCE] for each in fired]
    assert len(set(sources)) == 3, "receivers tell callbacks apart by their source"
    assert sim.pending == 1


def test_senders_set_it_by_the_client() -> None:
    sim = SimTimers()
    sim.schedule(topic="out", key="k", value=b"v", id="a", repeat=Repeat.every(10))
    assert after(sim.advance(35)) == [10, 20, 30]
    request = TimerRequest("out", "k", b"v", id="a", repeat=Repeat.every(10))
    assert sim.update_if(request, None).verdict == "unchanged"
    with pytest.raises(InvalidTimerError, match="one of the engine"):
        sim.schedule(topic="timer-request", key="k", value=b"v", id="b", repeat=Repeat.every(10))
    with pytest.raises(InvalidTimerError, match="needs an id"):
        sim.schedule(topic="out", key="k", value=b"v", repeat=Repeat.every(10))


def test_a_worker_without_a_disk_goes_on_with_the_same_occurrence() -> None:
    sim = Sim()
    sim.define("a", "every=10")
    sim.advance(15)
    sim.restart(lose_disk=True)
    assert after(sim.advance(20)) == [20, 30]


def test_a_definition_that_asks_for_the_same_changes_nothing() -> None:
    sim = Sim()
    sim.define("a", "every=10")
    sim.advance(12)
    assert sim.define("a", "every=10") == VerdictMessage("a", "unchanged", NOW_S + 20, f"{TOPIC}/0/0")
    assert sim.define("a", "every=10", (h.TIMER_IF, b"absent")).verdict == "unchanged"
    assert after(sim.advance(10)) == [20]
    assert sim.define("a", "every=10", value=b"other") == VerdictMessage("a", "replaced", NOW_S + 30)
    assert after(sim.advance(20)) == [32, 42]


def test_the_same_definition_leaves_the_last_occurrence_alone() -> None:
    sim = Sim()
    rule = f"every=10; until={NOW_S + 15}"
    sim.define("a", rule)
    sim.advance(8)
    assert sim.define("a", rule).verdict == "unchanged"
    assert after(sim.advance(20)) == [10]
    sim.define("b", f"every=10; until={NOW_S + 60}")
    assert sim.define("b", f"every=10; until={NOW_S + 60}", (h.TIMER_REQUEST_HASH, b"x")).verdict == "unchanged"


def test_what_is_owed_is_judged_anew_after_a_pause() -> None:
    sim = Sim()
    sim.define("a", "every=10; catch-up=none")
    sim.pause("out")
    sim.advance(365)
    sim.resume("out", over_s=3600)  # the first one goes, and the next ones are owed
    sim.advance(1)
    sim.pause("out")
    sim.advance(86_400)
    sim.fired.clear()
    sim.resume("out")
    assert all(each.at_ms / 1000 - each.due_s <= 60 for each in sim.fired)


def test_a_cancel_ends_it_and_conditions_name_the_definition() -> None:
    sim = Sim()
    sim.define("a", "every=10")
    sim.advance(25)
    assert sim.cancel("a", if_source=f"{TOPIC}/0/1").verdict == "changed"
    assert sim.cancel("a", if_source=f"{TOPIC}/0/0").verdict == "cancelled"
    assert sim.advance(100) == []
    assert sim.pending == 0
    assert sim.define("a", "every=10", (h.TIMER_IF, b"absent")).verdict == "exists", "as after any cancel"
    assert sim.schedule(topic="out", key="k", value=b"v", delay=5, id="a")
    assert after(sim.advance(50)) == [25 + 100 + 5]


def test_the_last_occurrence_has_none_after_it() -> None:
    sim = Sim()
    sim.define("a", f"every=7; until={NOW_S + 15}")
    fired = sim.advance(60)
    assert after(fired) == [7, 14]
    assert [dict(each.headers).get(h.TIMER_NEXT) for each in fired] == [b"%d" % (NOW_S + 14), None]
    assert sim.pending == 0
    assert sim.cancel("a").verdict == "already-fired"


def test_one_without_any_occurrence_says_so() -> None:
    sim = Sim()
    sim.define("a", f"every=1000; from={NOW_S}; until={NOW_S + 15}")
    assert sim.missed() == [("never", 0)]
    assert sim.advance(3000) == []


def test_a_cron_line_follows_the_clocks_of_its_zone() -> None:
    sim = Sim(datetime(2026, 10, 23, tzinfo=UTC).timestamp())
    sim.define("a", "cron=0 9 * * *; zone=Europe/Paris")
    fired = sim.advance(4 * 86_400)
    assert [f"{datetime.fromtimestamp(each.due_s, UTC):%d %H}" for each in fired] == [
        "23 07",
        "24 07",
        "25 08",
        "26 08",
    ]


@pytest.mark.parametrize(
    ("catch_up", "sent", "missed"),
    [
        ("latest", [360], [("superseded", 35)]),
        ("all", [*range(10, 361, 10)], []),
        ("none", [310, 320, 330, 340, 350, 360], [("late", 30)]),
    ],
)
def test_after_a_downtime_the_catch_up_decides(catch_up: str, sent: list[int], missed: list[tuple[str, int]]) -> None:
    sim = Sim()
    sim.define("a", f"every=10; catch-up={catch_up}")
    fired = sim.sleep(365)
    assert after(fired) == sent
    assert sim.missed() == missed
    assert len({dict(each.headers)[h.TIMER_SOURCE] for each in fired}) == len(sent)
    assert after(sim.advance(10)) == [370]


def test_no_more_than_a_hundred_are_caught_up() -> None:
    sim = Sim()
    sim.define("a", "every=10; catch-up=all")
    assert after(sim.sleep(2005)) == [*range(1010, 2001, 10)]
    assert sim.missed() == [("over-cap", 100)]


def test_what_a_short_drain_has_delayed_is_not_late() -> None:
    sim = Sim()
    sim.define("a", "every=1; catch-up=none")
    assert after(sim.sleep(8)) == [*range(1, 9)]
    assert sim.missed() == []


@pytest.mark.parametrize(("catch_up", "sent"), [("latest", [3600]), ("none", [3540, 3600])])
def test_a_pause_holds_one_occurrence_and_its_end_decides(catch_up: str, sent: list[int]) -> None:
    sim = Sim()
    sim.define("a", f"every=60; catch-up={catch_up}")
    sim.pause("out")
    assert sim.advance(3600) == []
    assert len(sim.held) == 1
    sim.resume("out")
    assert after(sim.fired) == sent
    assert sim.missed() == [("held", 60 - len(sent))]
    assert after(sim.advance(60)) == [3660]


def test_a_waypoint_sends_nothing_also_to_a_paused_target() -> None:
    sim = Sim()
    sim.define("a", "cron=0 0 1 1 *; zone=UTC")
    sim.advance(100)
    sim.pause("out")
    sim.sleep(86_400 * 400)  # the waypoint, and what it leads to, have passed
    assert sim.fired == []
    assert len(sim.held) == 1
    sim.resume("out")
    assert [f"{datetime.fromtimestamp(each.due_s, UTC):%Y-%m-%d}" for each in sim.fired] == ["2024-01-01"]


def test_far_occurrences_are_reached_by_waypoints() -> None:
    sim = Sim()
    sim.define("a", "cron=0 0 29 2 *; zone=UTC")
    fired = sim.advance(86_400 * 2000)
    assert [f"{datetime.fromtimestamp(each.due_s, UTC):%Y-%m-%d}" for each in fired] == ["2024-02-29", "2028-02-29"]
    due = [int(h.last(each.headers, h.TIMER_DUE) or 0) for each in sim._kafka.records if each.topic == TOPIC][1:]
    assert max(b - a for a, b in itertools.pairwise(due)) <= WAYPOINT_AFTER_S + 1


def test_the_spread_delays_each_id_by_its_own_share() -> None:
    sim = Sim()
    for number in range(20):
        sim.define(f"id-{number}", f"every=100; from={NOW_S + 100}; spread=50")
    fired = sim.advance(250)
    assert len(fired) == 40
    shares = {each.timer_id: each.due_s - int(dict(each.headers)[h.TIMER_NOMINAL] or 0) for each in fired}
    assert len(set(shares.values())) > 10
    assert set(shares.values()) <= set(range(50))
    assert all(shares[each.timer_id] == each.due_s - int(dict(each.headers)[h.TIMER_NOMINAL] or 0) for each in fired)


@pytest.mark.parametrize("is_last", [False, True])
def test_the_store_keeps_what_the_index_knows_of_it(is_last: bool) -> None:
    entry = repeated(NOW_S + 10, 12, NOW_S, defined(11, NOW_S, b"12345678"), is_last=is_last)
    assert unpack_entry(pack_entry(entry)) == entry
    with pytest.raises(ValueError, match="too short"):
        unpack_entry(pack_entry(entry)[:40])
    assert (repeating(entry) is None) == is_last
    assert request_of(entry) == 11


# ---- reading --------------------------------------------------------------------------------------------------------


def read(headers: Sequence[tuple[str, bytes]], level: int = REPEATS_LEVEL, value: bytes | None = b"x") -> Decoded:
    record = RequestRecord(7, b"a", value, [(h.TIMER_TOPIC, b"out"), *headers], NOW_S * 1000, 1)
    return BY_ID.decoder(level, rejects_overdue=False)([record], 1_000_000)


OCCURRENCE = [
    (h.TIMER_REPEAT, b"every=10; from=%d" % NOW_S),
    (h.TIMER_DUE, b"%d" % (NOW_S + 10)),
    (h.TIMER_FOLLOWS, b"3"),
    (h.TIMER_VERSION, f"{TOPIC}/0/2".encode()),
    (h.TIMER_NOMINAL, b"%d" % (NOW_S + 10)),
]


def changed(name: str, value: bytes | None) -> list[tuple[str, bytes]]:
    others = [each for each in OCCURRENCE if each[0] != name]
    return others if value is None else [*others, (name, value)]


def test_an_occurrence_is_read() -> None:
    decoded = read(OCCURRENCE)
    assert decoded.follows == {7: (3, 2, False)}
    assert [each[0] for each in decoded.rows[NOW_S + 10][0][4] or ()] == [
        h.TIMER_REPEAT,
        h.TIMER_VERSION,
        h.TIMER_NOMINAL,
    ]


def test_the_record_of_an_occurrence_is_found_when_it_sends_a_later_one() -> None:
    """A dead letter has the record as it is in the log, also after a downtime."""
    record = RequestRecord(7, b"a", b"x", [(h.TIMER_TOPIC, b"out"), *OCCURRENCE], NOW_S * 1000, 1)
    sent = Origin("a", NOW_S + 350, 0, f"{TOPIC}/0/7")
    assert BY_ID.is_request_of(record, (7, "out", None, b"x", None, None), sent)
    assert not BY_ID.is_request_of(record, (7, "out", None, b"y", None, None), sent)


@pytest.mark.parametrize(
    "headers",
    [
        changed(h.TIMER_REPEAT, b"every=10"),
        changed(h.TIMER_REPEAT, b"every=0"),
        changed(h.TIMER_NOMINAL, b"%d" % (NOW_S + 9)),
        changed(h.TIMER_NOMINAL, None),
        changed(h.TIMER_NOMINAL, b"soon"),
        [*OCCURRENCE, (h.TIMER_WAYPOINT, b"5")],
        [*changed(h.TIMER_NOMINAL, None), (h.TIMER_WAYPOINT, b"%d" % (NOW_S + 11))],
        changed(h.TIMER_FOLLOWS, b"-1"),
        changed(h.TIMER_FOLLOWS, b"9" * 30),
        changed(h.TIMER_VERSION, None),
        changed(h.TIMER_VERSION, b"\xff"),
        changed(h.TIMER_DUE, b"99999999999999"),
        [(h.TIMER_REPEAT, b"every=10"), (h.TIMER_DUE, b"%d" % NOW_S)],
        [(h.TIMER_REPEAT, b"every=10; until=%d" % NOW_S)],
        [(h.TIMER_REPEAT, b"cron=0 9 * * *")],
        [(h.TIMER_REPEAT, b"every=10"), ("large", b"x" * 5000)],
    ],
)
def test_what_the_engine_does_not_write_is_a_dead_letter(headers: list[tuple[str, bytes]]) -> None:
    decoded = read(headers)
    (rejected,) = decoded.rejected
    if all(name in dict(headers) for name in (h.TIMER_REPEAT, h.TIMER_DUE, h.TIMER_FOLLOWS)):
        assert rejected.code in ("repeat-invalid", "key-not-a-number", "key-in-milliseconds")
    assert not decoded.rows
    assert not decoded.definitions
    assert not decoded.operations


def test_the_reason_is_in_the_code() -> None:
    over = [(h.TIMER_REPEAT, b"every=10; until=%d" % NOW_S)]
    assert [each.code for each in read(over).rejected] == ["repeat-over"]
    assert [each.code for each in read(changed(h.TIMER_FOLLOWS, b"-1")).rejected] == ["repeat-invalid"]


def test_below_the_level_records_are_read_as_before() -> None:
    definition = [(h.TIMER_REPEAT, b"every=10")]
    assert read(definition, HOLDS_LEVEL).rejected[0].code == "level-too-low"
    due = [*definition, (h.TIMER_DUE, b"%d" % (NOW_S + 5))]
    assert [*read(due, HOLDS_LEVEL).rows] == [NOW_S + 5], "unknown headers were dropped"
    own = [(h.TIMER_REPEAT, b"every=10")]
    cancel = RequestRecord(7, b"a", None, own, NOW_S * 1000, 1)
    for level, operations in ((HOLDS_LEVEL, 1), (REPEATS_LEVEL, 0)):
        assert len(BY_ID.decoder(level, rejects_overdue=False)([cancel], 1000).operations) == operations


def test_a_definition_without_append_time_is_refused() -> None:
    record = RequestRecord(7, b"a", b"x", [(h.TIMER_TOPIC, b"out"), (h.TIMER_REPEAT, b"every=10")], NOW_S * 1000, 0)
    decoded = BY_ID.decoder(REPEATS_LEVEL, rejects_overdue=False)([record], 1000)
    assert [each.code for each in decoded.rejected] == ["repeat-without-append-time"]


def test_what_has_not_fired_is_rebuilt_as_a_definition_and_what_has_as_a_single_timer() -> None:
    (row,) = read(OCCURRENCE).rows[NOW_S + 10]
    assert row[5] is not None
    _, value, headers = future_by_id.rebuild_request(row, row[5])
    assert dict(headers)[h.TIMER_REPEAT] == OCCURRENCE[0][1]
    assert h.TIMER_DUE not in dict(headers)
    assert dict(headers)[h.TIMER_WAYPOINT] == b"%d" % (int(OCCURRENCE[-1][1]) - 1), "up to here all is decided"
    again = RequestRecord(9, b"a", value, [*headers, (h.TIMER_AGAIN, b"5")], NOW_S * 1000, 1)
    assert [*BY_ID.decoder(REPEATS_LEVEL, rejects_overdue=False)([again], 1000).definitions] == [9]
    published = RequestRecord(
        9, b"a", b"x", [(h.TIMER_TOPIC, b"out"), *OCCURRENCE, (h.TIMER_AGAIN, b"5")], (NOW_S + 60) * 1000, 1
    )
    decoded = BY_ID.decoder(REPEATS_LEVEL, rejects_overdue=False)([published], 1000)
    assert not decoded.follows
    assert decoded.rows[NOW_S + 10][0][5] is None, "a single timer without an id"


@pytest.mark.parametrize(
    ("catch_up", "sent", "missed"),
    [
        ("latest", [-100, 200], [("superseded", 2)]),
        ("all", [-700, -400, -100, 200], []),
        ("none", [200], [("late", 3)]),
    ],
)
def test_a_timer_from_another_app_catches_up_with_what_that_one_has_not_sent(
    catch_up: str, sent: list[int], missed: list[tuple[str, int]]
) -> None:
    sim = Sim()
    sim.advance(1)
    rule = f"every=300; from={NOW_S - 1000}; catch-up={catch_up}"
    moved = (h.TIMER_WAYPOINT, b"%d" % (NOW_S - 701))
    sim.define("a", rule, moved)
    sim.advance(300)
    assert after(sim.fired) == sent
    assert sim.missed() == missed
    assert sim.define("a", rule).verdict == "unchanged", "a deploy sets it again"


@pytest.mark.parametrize("told", [b"", b"x", b"-5", b"9" * 19, b"9" * 20, b"0"])
def test_what_another_app_says_is_bounded(told: bytes) -> None:
    sim = Sim()
    sim.define("a", f"every=1; from={NOW_S + 5}; catch-up=all", (h.TIMER_WAYPOINT, told))
    assert after(sim.advance(10)) == [5, 6, 7, 8, 9, 10]
    assert not sim.dead_letters


# ---- zones that are not known ----------------------------------------------------------------------------------------


class Lost:
    """A rule whose zone is not known here."""

    catch_up, until_s = "latest", None

    def share_s(self, id: bytes) -> int:
        return 0

    def next_nominal(self, after_s: int, limit_s: int) -> int | None:
        raise ZoneUnknown

    def newest(self, after_s: int, through_s: int, most: int) -> tuple[list[int], int]:
        raise ZoneUnknown


def row_of(second: int, rule: Repeat) -> Row:
    headers = [(h.TIMER_REPEAT, rule.to_header()), (h.TIMER_VERSION, b"t/0/1"), (h.TIMER_NOMINAL, b"%d" % second)]
    row: Row = (7, "out", "k", b"v", headers, None)
    return (*row[:5], Origin("a", second, 0))


def test_where_the_zone_is_not_known_the_occurrence_is_sent_and_a_waypoint_follows() -> None:
    rule = Repeat(cron_line="0 9 * * *", zone="Mars/Base")
    output = Repeats(lambda _: Lost()).fire([(NOW_S, [row_of(NOW_S, rule)])], NOW_S + 100)
    assert [due_s for due_s, _ in output.due] == [NOW_S]
    (follower,) = output.followers
    following = follower.next
    assert (following.due_s, following.nominal_s, following.decided_s) == (NOW_S + 100 + ZONE_RETRY_S, None, NOW_S)
    assert output.lacking == {"": 1}


def hold_of(reason: str, since_s: int = NOW_S) -> Hold | None:
    return Hold("out", reason, 7, Moment(0, NOTHING_FIRED, 0), since_s) if reason else None


@pytest.mark.parametrize(("reason_of_hold", "sent", "reason"), [(PAUSE, NOW_S + 500, "held"), (NOISY, NOW_S, "")])
def test_a_noisy_hold_makes_nothing_late(reason_of_hold: str, sent: int, reason: str) -> None:
    rule, hold = Repeat(every_s=10, from_s=NOW_S), hold_of(reason_of_hold)
    output: Output = Repeats(Repeat.of_header).fire([(NOW_S, [row_of(NOW_S, rule)])], NOW_S + 505, hold)
    assert [due_s for due_s, _ in output.due] == [sent]
    assert [each.reason for each in output.missed] == ([reason] if reason else [])
    (follower,) = output.followers
    expected = (NOW_S + 510, None) if reason else (NOW_S + 10, NOW_S + 500)
    assert (follower.next.nominal_s, follower.next.owed_s) == expected


FACTS: list[tuple[str, dict[str, bytes]]] = [
    (f"every=10; from={NOW_S}{more}", own)
    for more in ("", "; catch-up=all", "; catch-up=none", "; spread=9", f"; until={NOW_S + 25}")
    for own in ({}, {h.TIMER_OWED: b"%d" % (NOW_S + 300)}, {h.TIMER_LAST: b"1"}, {h.TIMER_WAYPOINT: b"%d" % NOW_S})
]


@pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
def test_the_catch_up_decides_about_what_was_late_before_a_noisy_hold_began(catch_up: str) -> None:
    """After a downtime, what a timer sends does not depend on its place in a chunk."""
    repeats, rule = Repeats(Repeat.of_header), Repeat(every_s=10, from_s=NOW_S, catch_up=catch_up)
    free = repeats.fire([(NOW_S, [row_of(NOW_S, rule)])], NOW_S + 505)
    assert bool(free.missed) == (catch_up != "all")
    for second in (505, 525):
        held = repeats.fire([(NOW_S, [row_of(NOW_S, rule)])], NOW_S + second, hold_of(NOISY, NOW_S + 505))
        assert [due_s for due_s, _ in held.due] == [due_s for due_s, _ in free.due]
        assert held.missed == free.missed
    assert [each.next.owed_s for each in held.followers] == [NOW_S + 520], "what came due since then is not late"


@pytest.mark.parametrize("reason", ["", PAUSE, NOISY])
@pytest.mark.parametrize("late_s", [0, 9, 400])
def test_many_that_fire_together_do_what_each_does_alone(reason: str, late_s: int) -> None:
    hold = hold_of(reason, NOW_S + 200)
    repeats = Repeats(lambda text: Lost() if b"zone=" in text else Repeat.of_header(text))
    due: dict[int, list[Row]] = {}
    for number, (rule, more) in enumerate([*FACTS, ("cron=0 9 * * *; zone=Mars/Base", {})] * 3):
        id, nominal_s = f"id-{number}", NOW_S + 10 * (number % 2)
        share_s = Repeat.of_header(rule.encode()).share_s(id.encode())
        own: dict[str, bytes | None] = {h.TIMER_REPEAT: rule.encode(), h.TIMER_VERSION: b"t/0/%d" % number, **more}
        if h.TIMER_WAYPOINT not in more:
            own[h.TIMER_NOMINAL] = b"%d" % nominal_s
        due_s = nominal_s + share_s
        callback: Row = (100 + number, "out", None, b"v", [("user", b"1")] if number % 3 else None, None)
        row = occurrence_row((*callback[:5], Origin(id, due_s, 0)), own)
        due.setdefault(due_s, []).append(row)
    ordered, second = sorted(due.items()), max(due) + late_s
    together = repeats.fire(ordered, second, hold)
    alone = [repeats.fire([(due_s, [row])], second, hold) for due_s, rows in ordered for row in rows]
    assert together.followers == [each for one in alone for each in one.followers]
    assert together.missed == [each for one in alone for each in one.missed]
    assert together.lacking == {"": 3}
    sent = [(due_s, row) for one in alone for due_s, rows in one.due for row in rows]
    assert [(due_s, row) for due_s, rows in together.due for row in rows] == sorted(sent, key=lambda each: each[0])
    assert all(row[5] == (row[5][0], due_s, 0, None) for due_s, row in sent if row[5])
