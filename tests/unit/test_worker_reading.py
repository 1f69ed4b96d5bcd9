"""The state of a timer that a query gets: pending, replaced, fired, forgotten, cold, or promoted."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from threading import Event
from time import sleep
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.harness.constants import Constants
from tests.harness.machines import BY_ID, LIMITS, ColdOutbox, MachineRig
from tests.harness.waiting import wait_until
from tests.simulation.kit.log import SimRecord
from timers.core.keys import NOTHING_FIRED, OrderKey
from timers.core.levels import HOLDS_LEVEL
from timers.core.listing import LIST_START, NoAnswer
from timers.core.machine import Machine
from timers.core.progress import FEATURE_LEVEL, History, Progress, SettingChange
from timers.kafka.request_formats import NATIVE
from timers.kafka.request_reader import RequestReader
from timers.machines.queries import reading
from timers.machines.queries.answers import LocalSource, Lookup, Pace
from timers.machines.queries.reading import Place, Turns
from timers.machines.store.memory import MemoryStore
from timers.wire import cold, future
from timers.wire.formats import RequestRecord, future_by_id
from timers.wire.query import Query

RETENTION_S = 20
ANY = Query()


@pytest.fixture(autouse=True)
def slices_without_an_end_in_time(constants: Constants) -> None:
    """A slice also ends after some time, which on a busy machine is after any row."""
    constants(reading, SLICE_S=float("inf"))


class Rig(MachineRig):
    """A machine with a horizon of 100 s."""

    def __init__(self, *, indexed: bool) -> None:
        limits = replace(LIMITS, max_request_bytes=40_000)
        super().__init__(
            BY_ID if indexed else NATIVE, limits, outbox=ColdOutbox(), hot_horizon_s=100, retention_s=RETENTION_S
        )
        self.place = Place(self.topic, 0, moved=False, hidden_topic="canary")
        self.tick(0)

    def ask(self, due_s: int, id: str = "", value: bytes | None = b"v") -> SimRecord:
        request = None if value is None else future.encode("t", "k", value)
        headers = [] if not id or value is None else future_by_id.encode_headers(due_s)
        sent = self.log.append(self.topic, id.encode() or b"%d" % due_s, request, headers, partition=0)
        self.read()
        return sent

    def promote(self, sent: SimRecord) -> SimRecord:
        decoded = next(each for each in self.outbox.cold if each.source == sent.source)
        copy = self.log.append(self.topic, sent.key, sent.value, cold.encode_promoted(decoded), partition=0)
        self.read()
        return copy

    def of_record(self, sent: SimRecord) -> str | None:
        """The state of a request's record, which is decoded as in a worker."""
        decoded = self.spec.request_format.read(
            RequestRecord(sent.offset, sent.key, sent.value, sent.headers, sent.timestamp_ms)
        )
        ((due_s, (row,)),) = decoded.rows.items()
        timer_id, append_s = None if row[5] is None else row[5].timer_id, sent.timestamp_ms // 1000
        found = reading.find_record(self.machine, self.place, row[0], timer_id, due_s, append_s)
        if found is None:
            return None
        state, stored = found
        timer = reading.with_state(stored or row, due_s, self.place, state, False, None)
        assert (timer["due"], timer["source"]) == (due_s, sent.source)
        return state

    def of_id(self, id: str) -> str | None:
        found = reading.find_by_id(self.machine, self.place, id, with_value=False)
        return None if found is None else str(found["state"])

    @property
    def listed(self) -> list[str]:
        page = reading.page(self.machine, self.place, ANY, LIST_START, 100)
        assert page.through is None
        return [each.timer["source"] for each in page.listed]


def test_a_request_without_an_id() -> None:
    rig = Rig(indexed=False)
    soon, later, far = rig.ask(5), rig.ask(50), rig.ask(150)
    assert [rig.of_record(each) for each in (soon, later, far)] == ["pending", "pending", "cold"]
    assert rig.listed == [soon.source, later.source]
    rig.tick(20)
    assert [rig.of_record(each) for each in (soon, later, far)] == ["fired", "pending", "cold"]
    copy = rig.promote(far)
    assert rig.of_record(far) == "pending"
    page = reading.page(rig.machine, rig.place, ANY, LIST_START, 100)
    assert [(each.timer["source"], each.timer.get("position")) for each in page.listed] == [
        (later.source, None),
        (far.source, copy.source),
    ]
    rig.tick(160)
    assert [rig.of_record(each) for each in (later, far)] == ["fired", "fired"]
    assert rig.listed == []


def test_a_timer_with_an_id() -> None:
    rig = Rig(indexed=True)
    first, second, cancelled, far = rig.ask(5, "a"), rig.ask(6, "a"), rig.ask(5, "b"), rig.ask(150, "c")
    rig.ask(0, "b", None)
    assert [rig.of_id(id) for id in "abcd"] == ["pending", None, "cold", None]
    assert [rig.of_record(each) for each in (first, second, cancelled, far)] == [
        "replaced",
        "pending",
        "replaced",
        "cold",
    ]
    assert rig.listed == [second.source]
    rig.promote(far)
    assert (rig.of_id("c"), rig.of_record(far)) == ("pending", "pending")
    rig.tick(6)
    assert (rig.of_id("a"), rig.of_record(second)) == ("fired", "fired")
    rig.tick(6 + RETENTION_S)
    rig.ask(0, "z", None)  # time goes by append times
    assert (rig.of_id("a"), rig.of_record(second), rig.of_record(first)) == (None, None, None)
    rig.tick(150)
    assert rig.of_id("c") == "fired"


def test_a_page_may_end_between_two_timers_of_one_second(constants: Constants) -> None:
    rig = Rig(indexed=False)
    sent = [rig.ask(5 + n % 2) for n in range(40)]
    constants(reading, SLICE_ROWS=6)
    for limit in (1, 4, 100):
        seen, after = [], LIST_START
        for _ in range(100):
            page = reading.page(rig.machine, rig.place, ANY, after, limit)
            assert len(page.listed) <= limit
            seen += [each.timer["source"] for each in page.listed]
            if page.through is None:
                break
            assert page.through > after
            after = page.through
        assert seen == [each.source for each in (*sent[::2], *sent[1::2])]


def test_a_page_has_only_timers_of_its_filter_and_reads_one_slice(constants: Constants) -> None:
    rig = Rig(indexed=False)
    rig.ask(5)
    rig.ask(7, value=b"x" * 3000)
    canary, place = Query("t", with_values=True), rig.place._replace(hidden_topic="t")
    assert len(reading.page(rig.machine, place, canary, LIST_START, 9).listed) == 2, "it is named"
    assert reading.page(rig.machine, place, ANY, LIST_START, 9).listed == []
    assert reading.page(rig.machine, rig.place, Query("u"), LIST_START, 9).listed == []
    (only,) = reading.page(rig.machine, rig.place, Query("t", to_s=7), LIST_START, 9).listed
    assert only.position == (5, "requests", 0, 0)
    for key, count in (("k", 2), ("other", 0), ("", 0)):
        assert len(reading.page(rig.machine, rig.place, Query("t", key=key), LIST_START, 9).listed) == count
    constants(reading, SLICE_BYTES=1)
    page = reading.page(rig.machine, place, canary, LIST_START, 9)
    assert (len(page.listed), page.through) == (1, (5, "requests", 0, 0))


def test_a_slice_ends_after_its_time_also_if_no_timer_matches(constants: Constants) -> None:
    rig = Rig(indexed=True)
    for number in range(30):
        rig.ask(5 + number, f"id-{number}")
    constants(reading, SLICE_S=-1.0)
    rare = Query(prefix="id-29")
    after, found = LIST_START, []
    for _ in range(30):
        page = reading.page(rig.machine, rig.place, rare, after, 9)
        found += [each.timer["id"] for each in page.listed]
        if page.through is None:
            break
        assert page.through > after
        after = page.through
    assert found == ["id-29"]


def test_no_state_is_known_during_a_replay() -> None:
    rig = Rig(indexed=True)
    rig.ask(50, "a")
    rig.tick(1)
    progress = rig.outbox.progress
    assert progress.next_offset == 1
    machine = rig.spec.machine(progress, MemoryStore(), rig.outbox)
    for ask in (
        lambda: reading.page(machine, rig.place, ANY, LIST_START, 1),
        lambda: reading.find_by_id(machine, rig.place, "a", with_value=False),
        lambda: reading.find_record(machine, rig.place, 0, None, 50, 0),
    ):
        with pytest.raises(NoAnswer, match="its log is being read again"):
            ask()


class CountingRunner:
    """A machine that counts its questions."""

    def __init__(self, machine: Machine) -> None:
        self.asked = 0
        self._machine = machine

    def ask(self, question: Callable[[Machine], Any]) -> Future[Any]:
        self.asked += 1
        answer = Future[Any]()
        answer.set_result(question(self._machine))
        return answer


async def test_a_record_is_looked_up_with_one_question_and_read_as_its_machine_has_read_it() -> None:
    """On Spark each question waits for a micro-batch. One machine read the record before its level was raised."""
    raised = SettingChange(FEATURE_LEVEL, 1, HOLDS_LEVEL)
    known = NATIVE._replace(
        decode=lambda records, _: future.decode(records, 0), decode_from_level={HOLDS_LEVEL: future.decode}
    )
    rig = MachineRig(known, progress=Progress(settings=History([raised])))
    sent = [rig.log.append(rig.topic, b"50", b"\xff", [("timer-topic", b"orders")], partition=0) for _ in range(2)]
    rig.observe(0)
    rig.read()
    sent.append(rig.log.append(rig.topic, b"50", future.encode("t", "k", b""), partition=0))
    records = {
        each.source: RequestRecord(each.offset, each.key, each.value, each.headers, each.timestamp_ms) for each in sent
    }
    runner, reader = CountingRunner(rig.machine), SimpleNamespace(read=lambda sources, may_wait: records)
    source = LocalSource(
        runner,
        Place(rig.topic, 0, moved=False),
        known,
        request_reader=cast(RequestReader, reader),
        turns=Turns(lambda: None),
    )
    found = []
    for each in sent:
        found.append(await source.find(Lookup(each.source, (rig.topic, 0, each.offset), with_value=False)))
    assert [[timer["state"] for timer in timers] for timers in found] == [["rejected"], ["pending"], []]
    assert found[1][0]["topic"] == "orders"
    assert runner.asked == len(sent)


async def test_a_look_up_that_fails_leaves_no_read_running() -> None:
    """The machine says at once that it cannot answer, and the record is still being read in a thread."""
    ended = Event()

    def read(_: list[str], may_wait: Callable[[], bool]) -> dict[str, RequestRecord]:
        while may_wait():
            sleep(0.01)
        ended.set()
        return {}

    def refuse(_: Callable[[Machine], Any]) -> Future[Any]:
        answer = Future[Any]()
        answer.set_exception(NoAnswer("its log is being read again"))
        return answer

    source = LocalSource(
        SimpleNamespace(ask=refuse),
        Place("requests", 0, moved=False),
        BY_ID,
        request_reader=cast(RequestReader, SimpleNamespace(read=read)),
        turns=Turns(lambda: None),
        pace=Pace(look_up_s=600.0),
    )
    with pytest.raises(NoAnswer, match="being read again"):
        await source.find(Lookup("requests/0/7", ("requests", 0, 7), with_value=False))
    wait_until(ended.is_set, "the thread has stopped reading")


@pytest.mark.parametrize("indexed", [False, True])
def test_timers_are_counted_slice_by_slice(indexed: bool, constants: Constants) -> None:
    rig = Rig(indexed=indexed)
    for number in range(60):
        rig.ask(5 + number % 40, f"id-{number}" if indexed else "")
    expected = {(0, "t"): 10, (10, "t"): 20, (20, "t"): 15, (30, "t"): 10, (40, "t"): 5}
    if indexed:
        rig.ask(7, "id-1")
        rig.ask(0, "id-5", None)
        expected |= {(10, "t"): 19}
    assert len(rig.listed) == sum(expected.values())
    for rows in (1, 7, 1000):
        constants(reading, SLICE_ROWS=rows)
        counts: Counter[tuple[int, str]] = Counter()
        after: OrderKey | None = NOTHING_FIRED
        while after is not None:
            found, following = reading.count(rig.machine, rig.place, Query(by_s=10), after)
            assert following is None or following > after
            counts += found
            after = following
        assert counts == expected
    place = rig.place._replace(hidden_topic="t")
    assert reading.count(rig.machine, place, Query(by_s=10), NOTHING_FIRED)[0] == Counter()
    first = Query("t", to_s=10, by_s=10)
    assert reading.count(rig.machine, place, first, NOTHING_FIRED) == (Counter({(0, "t"): expected[0, "t"]}), None)


@pytest.mark.parametrize("indexed", [False, True])
def test_a_request_that_its_log_no_longer_has_is_found_while_it_waits(indexed: bool) -> None:
    rig = Rig(indexed=indexed)
    sent = [rig.ask(50 + number % 7, f"id-{number}" if indexed else "") for number in range(20)]
    found, _ = reading.find_offset(rig.machine, rig.place, sent[12].offset, NOTHING_FIRED, with_value=True)
    assert found is not None
    assert (found["state"], found["due"], found["source"], found["headers"]) == ("pending", 55, sent[12].source, [])
    rig.tick(55)
    assert reading.find_offset(rig.machine, rig.place, sent[12].offset, NOTHING_FIRED, with_value=True) == (None, None)
    if indexed:
        rig.ask(90, "id-13", None)
        assert reading.find_offset(rig.machine, rig.place, sent[13].offset, NOTHING_FIRED, with_value=True) == (
            None,
            None,
        )


def test_a_copy_from_the_cold_tier_is_found_by_the_source_of_its_request() -> None:
    rig = Rig(indexed=False)
    sent = rig.ask(500)
    rig.promote(sent)
    found, _ = reading.find_offset(rig.machine, rig.place, sent.offset, NOTHING_FIRED, with_value=False)
    assert found is not None
    assert (found["due"], found["source"]) == (500, sent.source)


def test_a_request_is_looked_for_in_slices(constants: Constants) -> None:
    constants(reading, SLICE_ROWS=2)
    rig = Rig(indexed=False)
    sent = [rig.ask(50 + number) for number in range(9)]
    steps, after, found = 0, NOTHING_FIRED, None
    while found is None:
        found, through = reading.find_offset(rig.machine, rig.place, sent[8].offset, after, with_value=False)
        assert through is not None
        after, steps = through, steps + 1
    assert steps > 3
    assert found["source"] == sent[8].source


@pytest.mark.parametrize(("has_ids", "sought"), [(True, [b"t", b"4711"]), (False, [b"t"])])
def test_digits_are_sought_before_timers_are_decoded_where_each_has_an_id(has_ids: bool, sought: list[bytes]) -> None:
    """Else they may be those of an offset, which stands in no row."""
    place = Place("requests", 0, moved=False, all_have_ids=has_ids)
    assert reading._sought(Query("t", contains="4711"), place) == sought
    assert reading._sought(Query("t", prefix="requests/0/4711"), place) == [b"t", *[b"requests/0/4711"] * has_ids]
