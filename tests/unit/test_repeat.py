"""The header ``timer-repeat``: what is read, what is refused, and what senders check."""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness.repeats import TOPIC, Losing
from timers.console.figures import DO_NOT_FIRE, judged
from timers.core.counters import MAX_COUNTED_ZONES, OTHER_ZONES, Counters
from timers.core.progress import Progress
from timers.kafka.topics import Cluster
from timers.process.config.settings import Settings
from timers.wire import zones
from timers.wire.repeat import Repeat, RepeatError
from timers.wire.zones import UnknownZone, zone, zone_data_version
from timers.worker import health
from timers.worker import web as worker_pages
from timers.worker.consumer.group_watch import UnownedPartitions

NOW_S = int(datetime(2026, 11, 29, 12, tzinfo=UTC).timestamp())
PARIS = "zone=Europe/Paris"

WRONG_HEADERS = {
    "": "has a part ''",
    "every": "has a part 'every'",
    "interval=5": "parts are every, cron, zone, from, until, catch-up, spread and except",
    "every=5; every=6": "has every twice: '5' and '6'",
    "every=": "every without a value",
    "every=0": "every=0 is less than a second (try every=1)",
    "every=1.5": "every=1.5 is not a whole number of seconds",
    "every=-5": "every=-5 is not a whole number",
    "every=15m": "every=15m is not a whole number",
    "every=١٥": "is not a whole number",
    "every=5; zone=Europe/Paris": "every has no zone",
    "zone=Europe/Paris": "one of cron and every",
    f"every=5; cron=0 9 * * *; {PARIS}": "one of cron and every",
    "cron=0 9 * * *": "has no zone (try zone=Europe/Berlin)",
    "every=60; from=2; until=1": "until=1 is before from=2",
    "every=60; from=1795000000000": "from=1795000000000 is not a whole number of seconds",
    "every=60; catch-up=newest": "catch-up=newest is none of latest, all, none (try latest)",
    "every=60; spread=60": "spread=60 is not less than every=60",
    "every=60; except=24.12.2026": "except has '24.12.2026', which is no date (try 2026-12-24,2026-12-25)",
    "every=60; except=2026-02-30": "except has '2026-02-30'",
    "every=60; except=2026-12-24,": "except has ''",
    "every=60; except=" + ",".join(str(date(2027, 1, 1) + timedelta(each)) for each in range(51)): "51 dates",
    "every=60; zone=" + "x" * 1_000: "more than 1000",
    f"cron=0 0 9 * * *; {PARIS}": "has six fields: there is none for seconds or years (try '0 9 * * *'",
    f"cron=0 9 * *; {PARIS}": "has 4 fields, not five: minute, hour, day of month, month, day of week",
    f"cron=@daily; {PARIS}": "write '0 0 * * *'",
    f"cron=0 9 15W * *; {PARIS}": "day of month '15W': W, the nearest working day, is not supported",
    f"cron=0 9 ? * MON; {PARIS}": "day of month '?' has a ?, which only Quartz knows: write *",
    f"cron=60 9 * * *; {PARIS}": "minute '60' is not *, a number from 0 to 59",
    f"cron=0 24 * * *; {PARIS}": "hour '24' is not *, a number from 0 to 23",
    f"cron=0 9 0 * *; {PARIS}": "day of month '0' is not *, a number from 1 to 31",
    f"cron=0 9 * 13 *; {PARIS}": "month '13' is not *, a number from 1 to 12 or JAN to DEC",
    f"cron=0 9 * * 8; {PARIS}": "day of week '8' is not *, a number from 0 to 7 or SUN to SAT",
    f"cron=0 9 * * FRI-SUN; {PARIS}": "runs backwards: the number of Sunday at the end of a range is 7",
    f"cron=0 17-9 * * *; {PARIS}": "hour '17-9' runs backwards",
    f"cron=0 9 * * FRIL; {PARIS}": "write 5L",
    f"cron=0 9 * * MON#6; {PARIS}": "day of week 'MON#6'",
    f"cron=*/0 9 * * *; {PARIS}": "minute '*/0'",
    f"cron=1,,2 9 * * *; {PARIS}": "minute ''",
    f"cron=1-2-3 9 * * *; {PARIS}": "minute '1-2-3'",
    f"cron=5/ 9 * * *; {PARIS}": "minute '5/'",
    f"cron=٥ 9 * * *; {PARIS}": "minute '٥'",
    f"cron=0 9 31 2 *; {PARIS}": "names no day: none of its months has such a day of month and day of week (try L",
    f"cron=0 9 31 4,6,SEP,NOV *; {PARIS}": "names no day",
    f"cron=0 0 */30 4 MON#2; {PARIS}": "names no day",
    f"cron=0 0 */31 * MON#5; {PARIS}": "names no day",
    f"cron={'1,' * 100}1 9 * * *; {PARIS}": "more than 200 bytes",
    f"cron=0 9 * * *; zone={'x' * 65}": "is no name of a zone",
    "cron=0 9 * * *; zone=Europe/Zürich": "zone 'Europe/Zürich' is no name of a zone (try zone=Europe/Berlin)",
}


@pytest.mark.parametrize(("header", "sentence"), WRONG_HEADERS.items(), ids=[text[:40] for text in WRONG_HEADERS])
def test_a_wrong_rule_is_refused_with_the_part_that_is_wrong(header: str, sentence: str) -> None:
    with pytest.raises(RepeatError) as error:
        Repeat.of_header(header.encode())
    assert sentence in str(error.value)


def test_a_rule_that_is_no_text_is_refused() -> None:
    with pytest.raises(RepeatError, match="not UTF-8"):
        Repeat.of_header(b"every=\xff")


@pytest.mark.parametrize(
    ("header", "sentence"),
    {
        "cron=0 9 * * *; zone=Europe/Bern": "there is no zone 'Europe/Bern' in the zone data",
        "cron=0 9 * * *; zone=Paris": "did you mean Europe/Paris?",
        "cron=0 9 * * *; zone=Europe/Pariss": "did you mean Europe/Paris?",
        "cron=0 9 * * *; zone=/etc/passwd": "there is no zone",
        "cron=0 9 * * *; zone=Europe": "there is no zone",
        "every=60; until=1700000000": "until=1700000000 has passed",
        f"cron=0 9 * * *; {PARIS}; until={NOW_S + 60}": "never comes again up to until=",
        f"cron=*/30 2 * 3 0L; {PARIS}": "never comes again",  # only where clocks skip it
        f"cron=0,20 9 * * *; {PARIS}; spread=1200": "spread=1200 is not less than 1200",
        f"cron=*/15 * * * *; {PARIS}; spread=900": "(try spread=450)",
        f"cron=15 2,3 * * *; {PARIS}; spread=1000": "is not less than 900",  # 28 March: 02:15 is at 03:00
    }.items(),
)
def test_senders_refuse_what_cannot_come(header: str, sentence: str) -> None:
    repeat = Repeat.of_header(header.encode())  # by its record alone it is a rule
    with pytest.raises(RepeatError) as error:
        repeat.check(NOW_S)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    "header",
    [
        "every=900",
        "every=1; from=1795000000; until=1798761600; catch-up=all",
        "cron=0 9 * * 1-5; zone=Europe/Paris; until=1798761600; catch-up=none; spread=60; except=2026-12-24,2026-12-25",
        "cron=0 9 LW JAN-DEC/3 MON#1,5L; zone=UTC",
    ],
)
def test_a_rule_is_written_as_it_was_read(header: str) -> None:
    repeat = Repeat.of_header(header.encode())
    repeat.check(NOW_S)
    assert repeat.to_header() == header.encode()
    assert Repeat.of_header(repeat.to_header()) == repeat


def test_what_follows_is_looked_for_up_to_a_limit() -> None:
    new_year = Repeat.cron("0 0 1 1 *", zone="UTC")
    assert new_year.next_nominal(NOW_S, NOW_S + 40 * 86_400) == 1_798_761_600
    assert new_year.next_nominal(NOW_S, 1_798_761_600) == 1_798_761_600
    assert new_year.next_nominal(NOW_S, 1_798_761_599) is None
    assert Repeat.every(60, from_=NOW_S, until=0 + NOW_S).next_nominal(NOW_S) is None
    assert Repeat.every(60, from_=0, until=0).next_nominal(60) is None
    # A Sunday; 2100 has no 29 February.
    rare = Repeat.cron("0 0 29 2 */7", zone="UTC", from_=datetime(2088, 3, 1, tzinfo=UTC))
    assert rare.next_nominal(NOW_S) == datetime(2128, 2, 29, tzinfo=UTC).timestamp()


def test_old_missed_occurrences_are_not_counted() -> None:
    """A year and more of them are never sent, and counting those of 50 years would hold up a machine."""
    newest, count = Repeat.cron("0 0 * * *", zone="UTC").newest(0, NOW_S, 2)
    assert newest == [NOW_S - 43_200 - 86_400, NOW_S - 43_200]
    assert count == 400
    assert Repeat.every(86_400, from_=0).newest(0, 86_400 * 20_000, 1) == ([86_400 * 20_000], 20_000)


def test_parts_come_in_any_order_and_with_spaces() -> None:
    written = b" until = 1798761600 ;zone=Europe/Paris; catch-up=latest;cron = 0  9 * * mon-fri "
    repeat = Repeat.cron("0  9 * * mon-fri", zone="Europe/Paris", until=datetime(2027, 1, 1, tzinfo=UTC))
    assert Repeat.of_header(written) == repeat


def test_a_rule_in_python() -> None:
    repeat = Repeat.every(
        timedelta(minutes=15), from_=NOW_S, spread=timedelta(seconds=30), except_=[date(2026, 12, 25), "2026-12-24"]
    )
    assert repeat.to_header() == f"every=900; from={NOW_S}; spread=30; except=2026-12-24,2026-12-25".encode()
    for wrong in (1.5, True, "15m", timedelta(milliseconds=1500)):
        with pytest.raises(RepeatError, match="every"):
            Repeat.every(wrong)  # type: ignore[arg-type]
    with pytest.raises(RepeatError, match="has no zone: give an aware datetime"):
        Repeat.every(60, from_=datetime(2027, 1, 1))  # noqa: DTZ001


def test_a_part_cannot_bring_another_one() -> None:
    makers: list[Callable[[], Repeat]] = [
        lambda: Repeat.cron("0 9 * * *; until=5", zone="Europe/Paris"),
        lambda: Repeat.cron("0 9 * * *", zone="Europe/Paris; until=5"),
        lambda: Repeat.every(60, except_="2026-12-24; until=5"),
        lambda: Repeat.every(60, catch_up="latest; until=5"),
        lambda: Repeat.cron("0 9 * * *", zone="\ud800"),
    ]
    for make in makers:
        with pytest.raises(RepeatError):
            make()


def test_the_share_of_an_id_is_the_same_for_ever() -> None:
    repeat = Repeat.every(3600, spread=600)
    assert [repeat.share_s(id) for id in (b"o-1", b"o-2", b"o-3")] == [522, 194, 152]
    shares = [repeat.share_s(b"%d" % each) for each in range(6_000)]
    assert min(shares) == 0
    assert max(shares) == 599
    assert Repeat.every(3600).share_s(b"o-1") == 0


def test_a_zone_comes_from_the_package_alone() -> None:
    """The new rule of 2026; the zone files of most systems have the old one."""
    january = datetime(2027, 1, 15, 9, tzinfo=zone("America/Vancouver"))
    assert january.timestamp() == 1_800_028_800
    assert zone("America/Vancouver") is zone("America/Vancouver")
    assert zone_data_version() >= "2026b"
    with pytest.raises(UnknownZone, match="write a region and a city"):
        zone("")


def test_a_zone_whose_file_cannot_be_read_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zones, "zone_names", lambda: {"Europe/Gone"})
    with pytest.raises(UnknownZone, match="the file of zone Europe/Gone cannot be read: install"):
        zone("Europe/Gone")
    with pytest.raises(UnknownZone, match="there is no zone 'Europe/Berlin'"):
        zone("Europe/Berlin")


# ---- rules that were accepted once -----------------------------------------------------------------------------------


GOLDEN = json.loads((Path(__file__).parent / "golden" / "repeat_rules.json").read_text())
FROM_S = 1_795_953_600
"""29 November 2026, 12:00 UTC."""


@pytest.mark.parametrize("header", GOLDEN["accepted"])
def test_an_accepted_rule_names_the_same_seconds(header: str) -> None:
    repeat = Repeat.of_header(header.encode())
    found: list[int | None] = []
    after_s: int | None = FROM_S
    while after_s is not None and len(found) < 4:
        after_s = repeat.next_nominal(after_s)
        found.append(after_s)
    assert found == GOLDEN["accepted"][header]


@pytest.mark.parametrize("header", GOLDEN["refused"])
def test_a_refused_rule_stays_refused(header: str) -> None:
    with pytest.raises(RepeatError):
        Repeat.of_header(header.encode())


def test_an_id_keeps_its_share_of_a_spread() -> None:
    repeat = Repeat.of_header(b"every=86400; spread=86399")
    assert {id: repeat.share_s(id.encode()) for id in GOLDEN["shares"]} == GOLDEN["shares"]


# ---- zones that a worker does not know -------------------------------------------------------------------------------


PLACE = TOPIC, 0


def zoneless(sim: Losing) -> dict[str, str]:
    machine = sim._loops[PLACE].machine
    pool = SimpleNamespace(
        runners={PLACE: SimpleNamespace(machine=machine), ("timer-request", 0): None},
        partition_metrics={
            PLACE: SimpleNamespace(counters=machine.counters),
            ("timer-request", 0): SimpleNamespace(counters=Counters()),
        },
    )
    status: Any = SimpleNamespace(pool=pool)
    return health.zoneless(status)


def page_of(sim: Losing) -> dict[str, Any]:
    """``/health/partitions`` of a worker with this one partition."""
    machine = sim._loops[PLACE].machine
    pool = SimpleNamespace(
        owned={PLACE: SimpleNamespace(machine=machine)},
        partition_metrics={PLACE: SimpleNamespace(counters=machine.counters, opened_at=None)},
        partitions={TOPIC: 1},
        waiting={},
        stopped={},
        unreadable=SimpleNamespace(sentences={}),
    )
    pool.runners = pool.owned
    status: Any = SimpleNamespace(
        settings=Settings(id_topic="none"),
        pool=pool,
        group_watch=SimpleNamespace(unowned=UnownedPartitions()),
        target_watch=SimpleNamespace(problems={}),
        log_watch=SimpleNamespace(cluster=Cluster("", {}, {TOPIC: 1}), made_anew={}),
        lost_snapshots=dict,
    )
    handlers: dict[str, Any] = {}
    worker_pages.register(lambda path: lambda handler: handlers.setdefault(path, handler), status)
    answer = SimpleNamespace(json=lambda body, status: {**body, "status": status})
    page: dict[str, Any] = asyncio.run(handlers["/health/partitions"](answer, None))
    return page


def test_timers_whose_zone_is_not_known_are_red_and_all_others_fire(caplog: pytest.LogCaptureFixture) -> None:
    sim, name = Losing(), f"{TOPIC}/0"
    for number in range(3):
        sim.define(f"lost-{number}", "cron=* * * * *; zone=Nowhere/City")
    sim.define("other", "cron=* * * * *; zone=Europe/Paris")
    assert {each.timer_id for each in sim.advance(600)} == {"other"}
    assert len([line for line in caplog.messages if "the zone 'Nowhere/City' wait" in line]) == 1
    assert sim._loops[PLACE].machine.counters.zone_unknown == pytest.approx(30, abs=6)
    assert list(zoneless(sim)) == [name]
    page = page_of(sim)
    assert (page["status"], page["zoneless"], page["lossy"], page["firing"]) == (503, [name], [], [name])
    worker = {"ready": True, "tick_age_s": 0.1, "assigned": {TOPIC: [0]}, **page}
    assert judged([worker]) == (DO_NOT_FIRE, f"{name}: {zoneless(sim)[name]}")
    assert "does not know the zone of 3 repeating timers ('Nowhere/City')" in zoneless(sim)[name]
    for number in range(3):
        sim.define(f"lost-{number}", "cron=* * * * *; zone=Europe/Paris")
    sim.advance(240)
    assert zoneless(sim) == {}


def test_a_hostile_client_does_not_fill_the_memory() -> None:
    counters = Counters()
    for number in range(3 * MAX_COUNTED_ZONES):
        counters.transaction.lacking[f"Nowhere/{number}"] = 1
        counters.count_committed(Progress(fired_through=(600, 0)))
    assert len(counters.lacking) == MAX_COUNTED_ZONES + 1
    assert counters.lacking[OTHER_ZONES] == (10, 2 * MAX_COUNTED_ZONES, 0)
    assert counters.zone_unknown == 3 * MAX_COUNTED_ZONES
