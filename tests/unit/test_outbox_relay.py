"""What a relay does when partitions do not answer, when brokers refuse rows, and when it was paused."""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Message as KafkaMessage

from tests.harness.constants import Constants
from tests.harness.scrape import get
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.client import SqlOutbox
from timers.client.outbox import DEFAULT_TABLE, schema
from timers.errors import InvalidTimerError, TimersError, UnacknowledgedError
from timers.outbox import databases, monitoring
from timers.outbox import relay as relays
from timers.outbox.databases import Sqlite
from timers.outbox.relay import Found
from timers.outbox.rows import Row, names_of, request_of, row_of
from timers.process.clock import Clock
from timers.process.config.settings import Settings
from timers.wire.key_partition import partition_of

DUE_S = 1_900_000_000
SILENT = UnacknowledgedError("no broker acknowledged within 10 s")


class SimPublisher:
    """Answers at once, but for the partitions that are silent, and for what it refuses."""

    partitions = 2

    def __init__(self) -> None:
        self.silent: set[int] = set()
        self.refuses: Callable[[bytes, int], bool] = lambda key, sent: False
        self.sent: list[bytes] = []
        self.open: list[tuple[bytes, Callable[[str | TimersError], None]]] = []

    def submit_record(self, topic: str, key: bytes, value: Any, headers: Any, on_result: Any, partition: int) -> None:
        assert partition == partition_of(key, self.partitions)
        self.sent.append(key)
        if partition in self.silent:
            self.open.append((key, on_result))
        else:
            refused = self.refuses(key, len(self.sent))
            on_result(InvalidTimerError("refused") if refused else f"{topic}/{partition}/1")

    def answer(self, answer: str | TimersError) -> None:
        """Answer what is open."""
        waiting, self.open = self.open, []
        for _, on_result in waiting:
            on_result(answer)


class SimSearch:
    """The log has no request of the rows.

    Attributes:
        asked: the rows of all searches.
        pieces: how many are to be read before the answer.
    """

    asked: ClassVar[list[str]] = []
    pieces: ClassVar[int] = 0
    sent: ClassVar[set[int]] = set()
    is_read: ClassVar[bool] = False

    def __init__(self, settings: Settings, rows: Sequence[Row], now_ms: int) -> None:
        self.rows = rows
        self.left = self.pieces
        SimSearch.asked += [row.aggregateid for row in rows]

    def go_on(self, now_ms: int) -> Found | None:
        self.left -= 1
        return None if self.left >= 0 else Found({row.number for row in self.rows} & self.sent, set(), set())


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> type[SimSearch]:
    monkeypatch.setattr(relays, "Search", SimSearch)
    for name, value in (("asked", []), ("pieces", 0), ("sent", set())):
        monkeypatch.setattr(SimSearch, name, value)
    return SimSearch


class PausedClock(Clock):
    """Jumps by 8 s at each reading while ``is_paused``."""

    is_paused = False
    boot = 0.0

    def boot_s(self) -> float:
        self.boot += 8.0 * self.is_paused
        return self.boot


class SimRelay(relays.Relay):
    def __init__(self, rows: Sqlite, clock: Clock) -> None:
        super().__init__(rows, Settings.load({"TIMERS_BROKERS": "nowhere:1"}), clock)
        self.publisher = SimPublisher()

    def _opened(self) -> Any:
        return self.publisher


class World:
    """A table, and its relay."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path)
        self.connection.executescript(schema("sqlite"))
        self.rows = Sqlite(path, DEFAULT_TABLE)
        self.rows.connect()
        self.clock = PausedClock()
        self.relay = SimRelay(self.rows, self.clock)
        self.publisher = self.relay.publisher

    def put(self, *ids: str) -> None:
        for id in ids:
            SqlOutbox().schedule(self.connection, "orders", "k", "v", at=DUE_S, id=id)
        self.connection.commit()

    def left(self) -> list[str]:
        return [id for (id,) in self.connection.execute("SELECT aggregateid FROM timer_outbox ORDER BY number")]


@pytest.fixture
def world(tmp_path: Path, constants: Constants) -> Iterator[World]:
    constants(relays, _PATIENCE_S=0.0, RETRY_S=0.0)  # what is answered at once counts all the same
    world = World(tmp_path / "shop.db")
    with closing(world.connection):
        yield world
    world.rows.close()


def ids_on(partition: int, count: int) -> list[str]:
    names = (f"o-{number}" for number in range(1000))
    return [name for name in names if partition_of(name.encode(), 2) == partition][:count]


def test_a_relay_whose_database_is_silent_is_not_ready_and_not_active(world: World, constants: Constants) -> None:
    """Its server is frozen: the kernel goes on acknowledging, so the connection does not end."""
    constants(relays, UNREADY_S=0.05, UNLIVE_S=0.2)
    constants(monitoring, UNREADY_S=0.05, UNLIVE_S=0.2)
    goes_on, stop = threading.Event(), threading.Event()

    def hang(number: int) -> int:
        goes_on.wait(DEADLINE_S)
        return number

    world.put("o-1")
    thread = threading.Thread(target=world.relay.run, args=[stop])
    try:
        with monitoring.monitor(world.relay, 0, "127.0.0.1") as port:
            thread.start()
            wait_until(lambda: world.relay.counters.is_first and not world.left(), "it sends")
            assert get(port, "/health/ready")[0] == 200
            statement = world.rows._sql.waiting
            assert world.rows._connection is not None
            world.rows._connection.create_function("hang", 1, hang)
            world.rows._sql.waiting = statement.replace("number >", "hang(number) >", 1)
            world.put("o-2")
            said = wait_until(lambda: [p for s, p in [get(port, "/health/ready")] if s == 503], "it is not ready")
            assert "the database has not answered a statement for" in said[0]
            _, page = get(port, "/metrics")
            assert f'timers_outbox_active{{table="{DEFAULT_TABLE}"}} 0.0' in page and world.relay.counters.is_first
            wait_until(lambda: get(port, "/health/live")[0] == 503, "it must be started again")
            goes_on.set()
            wait_until(lambda: get(port, "/health/ready")[0] == 200 and not world.left(), "it goes on")
    finally:
        goes_on.set()
        stop.set()
        thread.join(DEADLINE_S)


def test_a_row_that_was_begun_before_partitions_were_added_waits_for_an_operator(world: World) -> None:
    begun, later = ids_on(0, 2)
    world.publisher.silent = {0}
    world.put(begun)
    SqlOutbox().schedule(world.connection, "orders", "k", "v", at=DUE_S)  # if absent: else it would be sent again
    world.connection.commit()
    absent = world.left()[-1]
    world.publisher.silent = {0, 1}
    world.relay.look()
    world.publisher.silent, world.publisher.partitions = set(), 3
    world.publisher.answer(SILENT)
    world.put(later)
    sent = len(world.publisher.sent)
    for _ in range(2):
        world.relay.look()
    assert world.publisher.sent[sent:] == [later.encode()], "it goes by the new number"
    assert world.left() == [begun, absent]
    reasons = world.connection.execute("SELECT DISTINCT reason FROM timer_outbox").fetchall()
    assert [("partitions were added" in reason) for (reason,) in reasons] == [True]


def test_an_old_mark_is_looked_for_in_the_log_however_long_ids_are_known(world: World, search: type[SimSearch]) -> None:
    search.sent = {1}
    for _ in range(2):
        SqlOutbox().schedule(world.connection, "orders", "k", "v", at=DUE_S)
    minutes_ago = [int(world.clock.now_s() * 1000) - minutes * 60_000 for minutes in (15, 5)]
    for number, marked_ms in enumerate(minutes_ago, 1):
        world.connection.execute("UPDATE timer_outbox SET sent_ms = ? WHERE number = ?", (marked_ms, number))
    world.connection.commit()
    older, newer = world.left()
    world.relay.look()
    assert (search.asked, world.publisher.sent) == ([], [newer.encode()]), "it waits until no relay can send it"
    world.clock.boot += relays.SETTLED_S
    world.relay.look()
    assert search.asked == [older] and world.left() == []
    assert older.encode() not in world.publisher.sent


def test_a_partition_that_does_not_answer_delays_no_other_one(world: World) -> None:
    silent, others = ids_on(0, 3), ids_on(1, 20)
    world.publisher.silent = {0}
    world.put(*silent, *others[:10])
    assert world.relay.look()
    assert world.left() == silent
    assert world.relay.counters.error == "no answer yet from partitions 0"
    world.put(*others[10:])
    world.put(ids_on(0, 4)[3])
    world.relay.look()
    assert world.left() == ids_on(0, 4), "the one that was written later is not sent"
    assert len(world.publisher.open) == 3
    world.publisher.answer(SILENT)
    world.relay.look()
    world.relay.look()
    assert [key.decode() for key, _ in world.publisher.open] == [ids_on(0, 4)[3]], "one row tries the partition"
    world.publisher.silent = set()
    world.publisher.answer("topic/0/1")
    world.relay.look()
    assert world.left() == silent, "they may have been sent: they wait"


def test_rows_that_wait_for_a_partition_do_not_hide_the_others(world: World, constants: Constants) -> None:
    constants(relays, _MOST_ROWS=5)
    world.publisher.silent = {0}
    world.put(*ids_on(0, 12), *ids_on(1, 12))
    for _ in range(12):
        world.relay.look()
    assert world.left() == ids_on(0, 12)
    world.put("late-1", "late-2", "late-3")
    for _ in range(4):
        world.relay.look()
    assert {id for id in world.left() if id.startswith("late")} == {
        id for id in ("late-1", "late-2", "late-3") if partition_of(id.encode(), 2) == 0
    }


def test_a_look_sends_one_row_of_a_timer(world: World) -> None:
    world.put("a", "a", "b")
    SqlOutbox().cancel(world.connection, "a")
    world.connection.commit()
    world.publisher.refuses = lambda key, sent: sent in (1, 2)  # the whole first batch
    world.relay.look()
    assert world.publisher.sent == [b"a", b"b"]
    world.relay.look()
    assert world.publisher.sent == [b"a", b"b", b"a", b"b", b"a"], "alone, and then the next one"
    world.relay.look()
    assert world.publisher.sent[5:] == [b"a"]
    assert not world.left()
    assert not world.relay.counters.refused


def test_a_row_that_is_refused_alone_stays(world: World) -> None:
    world.put("a", "b")
    world.publisher.refuses = lambda key, sent: key == b"a"
    world.relay.look()
    world.relay.look()
    assert world.left() == ["a"]
    assert world.relay.counters.refused == world.rows.refused() == 1
    assert not world.relay.look()


def test_a_row_of_wrong_types_stops_no_other_one(world: World) -> None:
    world.connection.execute("INSERT INTO timer_outbox (aggregateid, timer_topic, payload) VALUES (x'00', 5, 7)")
    world.connection.execute(
        "INSERT INTO timer_outbox (aggregateid, timer_topic, payload, timer_repeat) VALUES ('x', x'00', 'a', 1)"
    )
    world.put("a")
    world.relay.look()
    assert len(world.left()) == 2
    assert world.relay.counters.refused == 2


def test_what_was_marked_before_a_pause_is_not_sent_after_it(world: World) -> None:
    world.put("a")
    world.clock.is_paused = True
    world.relay.look()
    assert not world.publisher.sent
    assert world.rows.waiting(0, 1)[0].sent_ms is not None


def test_a_cancel_does_not_overtake_a_request_that_is_passed_over(world: World, constants: Constants) -> None:
    """Its partition answers again before the first rows of the table are read again."""
    constants(relays, _MOST_ROWS=3)
    id, *others = ids_on(0, 6)
    world.publisher.silent = {0}
    world.put(id, *others[:2])
    SqlOutbox().cancel(world.connection, id)
    world.put(*others[2:])
    world.relay.look()
    world.publisher.answer(SILENT)
    world.publisher.silent = set()
    for _ in range(4):
        world.relay.look()
    assert world.publisher.sent.count(id.encode()) == 1, "the request, which waits for its answer in the log"
    assert world.left().count(id) == 2, "it and its cancel"


def test_begun_rows_do_not_hide_the_others(world: World, constants: Constants, search: type[SimSearch]) -> None:
    """More of them than a look reads. Each waits the same time from when it was first seen, and then all are sent."""
    constants(relays, _MOST_ROWS=3)
    begun = [f"begun-{number}" for number in range(7)]
    world.put(*begun)
    world.connection.execute("UPDATE timer_outbox SET sent_ms = ?", (int(world.clock.now_s() * 1000),))
    world.put("new-1", "begun-2", "new-2", "new-3", "new-4")
    while world.relay.look():
        pass
    assert world.publisher.sent == [b"new-1", b"new-2", b"new-3", b"new-4"]
    assert world.left() == [*begun, "begun-2"]
    world.put("new-5")
    assert world.relay.look(), "and what is committed meanwhile"
    world.clock.boot += relays.SETTLED_S - 1
    world.relay._floor_until = 0.0
    while world.relay.look():
        pass
    assert world.left() == [*begun, "begun-2"]
    world.clock.boot += 1
    world.relay._floor_until = 0.0
    while world.relay.look():
        pass
    assert world.left() == [], "none of them waits longer because it was not among the first rows"


def test_rows_are_sent_while_a_day_of_the_log_is_read(world: World, search: type[SimSearch]) -> None:
    """A relay that was away has much to read; the end of its process waits for one piece of it."""
    search.pieces = 3
    world.put("begun", "found")
    world.connection.execute("UPDATE timer_outbox SET sent_ms = ?", (int(world.clock.now_s() * 1000) - 86_400_000,))
    world.connection.commit()
    search.sent = {2}
    assert not world.relay.look()
    world.clock.boot += relays.SETTLED_S
    for number in range(3):
        world.put(f"new-{number}")
        assert world.relay.look(), "the next piece follows at once"
        assert world.publisher.sent[number:] == [f"new-{number}".encode()]
    assert world.left() == ["begun", "found"]
    world.relay.look()
    assert world.left() == []
    assert (world.publisher.sent[3:], world.relay.counters.found) == ([b"begun"], 1)
    assert search.asked == ["begun", "found"], "once"


def test_a_search_that_fails_begins_anew_and_stops_no_other_row(
    world: World, search: type[SimSearch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition whose leader goes during the search takes the whole time-out, at each attempt."""

    def wait_in_vain(*_: Any) -> Found | None:
        world.clock.boot += 30.0
        raise TimersError("no leader")

    go_on = search.go_on
    monkeypatch.setattr(search, "go_on", wait_in_vain)
    world.put("begun")
    world.connection.execute("UPDATE timer_outbox SET sent_ms = ?", (int(world.clock.now_s() * 1000) - 86_400_000,))
    world.connection.commit()
    world.relay.look()
    world.clock.boot += relays.SETTLED_S
    world.relay.look()
    waited_to = world.clock.boot
    world.put("new")
    world.relay.look()
    assert (world.clock.boot, world.publisher.sent) == (waited_to, [b"new"]), "no attempt at once"
    assert search.asked == ["begun"]
    monkeypatch.setattr(search, "go_on", go_on)
    world.clock.boot += relays.SETTLED_S
    world.relay.look()
    assert search.asked == ["begun", "begun"], "with who leads now"
    world.relay.look()
    assert (world.left(), world.publisher.sent) == ([], [b"new", b"begun"])


class SimOffsets:
    """Offsets of a topic whose two partitions have 5 records each, and have lost none."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def existing(self, topics: list[str]) -> list[str]:
        return topics

    def partitions(self, topic: str) -> range:
        return range(2)

    def at_time(self, topics: list[str], time_ms: int) -> Any:
        return {topics[0]: {0: 0, 1: 0}}

    whole_since = (0, 0)
    """Time since which each partition has all records, in epoch milliseconds; None: its leader does not answer."""

    def whole_since_ms(self, topics: list[str], as_of_ms: int, within: Any) -> Any:
        return {topics[0]: {number: ms for number, ms in enumerate(self.whole_since) if ms is not None}}

    def high_watermarks(self, topics: list[str]) -> Any:
        return {topics[0]: {0: 5, 1: 5}}


def test_a_search_reads_in_pieces_and_a_batch_that_cannot_be_read_stops_its_partition_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read: list[tuple[int, int]] = []
    named = {(1, 3): b"7/id-7", (0, 4): b"4/id-4"}
    damaged = (0, 2)
    ids = [*ids_on(0, 1), *ids_on(1, 1)]

    def records(consumer: Any, topic: str, partition: int, start: int, end: int, *, timeout_s: float) -> Any:
        for offset in range(start, end):
            if (partition, offset) == damaged:
                raise KafkaException(KafkaError(KafkaError._BAD_COMPRESSION, "Decompression (codec 0x2) failed"))
            read.append((partition, offset))
            sent_by: list[tuple[str, str | bytes | None]] = (
                [("timer-row", named[partition, offset])] if (partition, offset) in named else []
            )
            yield KafkaMessage(topic=topic, partition=partition, offset=offset, headers=sent_by)

    monkeypatch.setattr(relays, "TopicOffsets", SimOffsets)
    monkeypatch.setattr(relays, "read", records)
    monkeypatch.setattr(relays, "_PIECE_S", 0.0)
    now_ms = 1_900_000_000_000
    blank = Row(0, "", "", "cancel", None, None, None, None, None, None, None, 0, now_ms)
    given = ((4, ids[0]), (7, ids[1]))
    rows = [blank._replace(number=number, id=f"id-{number}", aggregateid=id) for number, id in given]
    search = relays.Search(Settings.load({"TIMERS_BROKERS": "nowhere:1"}), rows, now_ms)
    pieces = 0
    while (found := search.go_on(now_ms)) is None:
        pieces += 1
    assert found == Found(sent={7}, unknown=set(), unread={4})
    assert read == [(0, 0), (0, 1), *((1, offset) for offset in range(5))], "nothing twice"
    assert pieces == len(read) - 1 or pieces == len(read)
    assert "rows of partition 0 of timer-request-by-id wait" in caplog.text


MARKED_MS = 1_900_000_000_000


def marked(number: int, id: str, partition: int = 0) -> Row:
    """A row that a relay had begun to send, whose timer belongs to a partition."""
    aggregateid = ids_on(partition, number + 1)[number]
    return Row(number, id, aggregateid, "cancel", None, None, None, None, None, None, None, 0, MARKED_MS)


def search_of(
    rows: list[Row],
    names: dict[int, list[str | None]],
    monkeypatch: pytest.MonkeyPatch,
    asks_for: Sequence[Row] = (),
) -> relays.Search:
    """A search in a log with these names of rows, by partition. None: the request of another program.

    Args:
        asks_for: the first records are the requests of these rows, in this order. Others have neither key nor value.
    """

    def records(consumer: Any, topic: str, partition: int, *_: int, timeout_s: float) -> Any:
        for offset, name in enumerate(names.get(partition, [])):
            headers: list[tuple[str, str | bytes | None]] = [] if name is None else [("timer-row", name.encode())]
            key, value = None, None
            if offset < len(asks_for):
                key, value, own = request_of(asks_for[offset], 0, 1000)
                headers += [("traceparent", b"of the producer"), *own[:-1]]
            yield KafkaMessage(topic=topic, partition=partition, offset=offset, key=key, value=value, headers=headers)

    monkeypatch.setattr(relays, "TopicOffsets", SimOffsets)
    monkeypatch.setattr(relays, "read", records)
    monkeypatch.setattr(SimOffsets, "whole_since", (0, 0))
    return relays.Search(Settings.load({"TIMERS_BROKERS": "nowhere:1"}), rows, MARKED_MS)


def test_what_the_log_loses_while_it_is_read_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second request could set a timer again that has fired."""
    search = search_of([marked(1, "a"), marked(2, "b"), marked(3, "c", 1)], {0: ["2/b"]}, monkeypatch)
    monkeypatch.setattr(SimOffsets, "whole_since", (MARKED_MS, None))
    assert search.go_on(MARKED_MS) == Found(sent={2}, unknown={1}, unread={3})


def test_a_name_of_a_former_relay_that_several_rows_have_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It named a row by its id alone. Rows that ask for the same cannot be told apart then."""
    first = marked(1, "order")
    rows = [first, marked(2, "order"), first._replace(number=3), marked(4, "alone")]
    log: dict[int, list[str | None]] = {0: ["order", "alone", "2/order"]}
    search = search_of(rows, log, monkeypatch, asks_for=[first, rows[3]])
    assert search.go_on(MARKED_MS) == Found(sent={2, 4}, unknown={1, 3}, unread=set())


CANCEL = marked(2, "order")
SET = CANCEL._replace(number=1, type="schedule", payload=b"", timer_topic="orders", timer_due=DUE_S)


@pytest.mark.parametrize(
    ("row", "log", "found"),
    [
        (CANCEL, [SET], Found(set(), set(), set())),
        (SET, [CANCEL], Found(set(), set(), set())),
        (SET, [SET._replace(timer_due=DUE_S + 1)], Found(set(), set(), set())),
        (SET, [SET._replace(headers='{"a": "b"}')], Found({1}, set(), set())),
        (SET._replace(headers='{"a": "b"}'), [SET], Found(set(), set(), set())),
        (CANCEL, [SET, CANCEL], Found({2}, set(), set())),
        (SET, [SET, CANCEL], Found(set(), {1}, set())),
        (SET, [SET, CANCEL, SET], Found({1}, set(), set())),
        (SET, [SET, marked(5, "order")], Found({1}, set(), set())),
        (SET._replace(type="no type"), [SET], Found(set(), set(), set())),
    ],
)
def test_a_row_is_not_taken_for_a_deleted_one_with_its_id(
    row: Row, log: list[Row], found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A former relay has sent the rows of the log, named by the id alone, and the others are deleted."""
    search = search_of([row], {0: ["order"] * len(log)}, monkeypatch, asks_for=log)
    assert search.go_on(MARKED_MS) == found


def test_a_search_that_has_read_all_asks_only_again_what_the_log_has_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [TimersError("no broker answers")]
    reads: list[int] = []
    asked: list[Any] = []

    def whole_since_ms(_: Any, topics: list[str], as_of_ms: int, within: Any) -> Any:
        asked.append(set(within))
        if failures:
            raise failures.pop()
        return {topics[0]: {0: 0}}

    def records(consumer: Any, topic: str, partition: int, *_: int, timeout_s: float) -> Any:
        reads.append(partition)
        headers: list[tuple[str, str | bytes | None]] = [("timer-row", b"1/row")]
        yield KafkaMessage(topic=topic, partition=partition, offset=0, headers=headers)

    monkeypatch.setattr(relays, "TopicOffsets", SimOffsets)
    monkeypatch.setattr(relays, "read", records)
    monkeypatch.setattr(SimOffsets, "whole_since_ms", whole_since_ms)
    world.put(*ids_on(0, 1))
    marked_ms = int(world.clock.now_s() * 1000)
    world.connection.execute("UPDATE timer_outbox SET id = 'row', sent_ms = ?", (marked_ms,))
    world.connection.commit()
    world.relay.look()
    world.clock.boot += relays.SETTLED_S
    assert not world.relay.look(), "the next look is not at once"
    assert not world.relay.look()
    assert (reads, asked) == ([0], [{0}])
    world.clock.boot += relays.SETTLED_S
    world.relay.look()
    assert (reads, asked, world.left()) == ([0], [{0}, {0}], []), "nothing is read twice"


def test_a_request_of_another_program_is_that_of_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    assert search_of([marked(1, "")], {0: [None]}, monkeypatch).go_on(MARKED_MS) == Found(set(), set(), set())


def test_two_rows_with_one_id_are_two_rows() -> None:
    """A program that fills the column may give an order's rows the id of the order."""
    rows = [Row(number, "order-17", "o", "cancel", None, None, None, None, None, None, None, 0, 1) for number in (1, 2)]
    names = [row_of(request_of(row, 0, 1000).headers) for row in rows]
    assert [[name in names_of(row) for name in names] for row in rows] == [[True, False], [False, True]]


def test_large_rows_that_wait_do_not_hide_the_others(world: World, constants: Constants) -> None:
    constants(databases, MOST_BYTES=250)
    world.rows = world.relay._rows = Sqlite(world.rows.path, DEFAULT_TABLE)
    world.rows.connect()
    world.publisher.silent = {0}
    for id in (*ids_on(0, 12), *ids_on(1, 4)):
        SqlOutbox().schedule(world.connection, "orders", "k", "v" * 40, at=DUE_S, id=id)
    world.connection.commit()
    for _ in range(8):
        world.relay.look()
    assert world.left() == ids_on(0, 12)


def test_one_row_of_many_tries_a_partition(world: World) -> None:
    world.publisher.silent = {0}
    world.put(*ids_on(0, 1))
    world.relay.look()
    world.publisher.answer(SILENT)
    world.put(*ids_on(0, 30)[1:])
    assert world.relay.look()
    for _ in range(5):
        assert not world.relay.look(), "it waits for an answer"
    assert len(world.publisher.open) == 1
    world.publisher.silent = set()
    world.publisher.answer("topic/0/1")
    world.relay.look()
    assert world.left() == ids_on(0, 1)


def test_rows_that_are_too_large_hold_up_no_other_row(world: World) -> None:
    for number in range(3):
        world.connection.execute(
            "INSERT INTO timer_outbox (aggregateid, timer_topic, payload) VALUES (?, 't', zeroblob(?))",
            (f"large-{number}", databases.MOST_BYTES + 1),
        )
    world.put("small")
    assert world.relay.look()
    assert world.publisher.sent == [b"small"]
    while world.relay.look():
        pass
    assert world.relay.counters.refused == 3, "with no wait in between"


def test_after_a_look_that_only_refuses_rows_the_next_one_follows_at_once(world: World, constants: Constants) -> None:
    constants(relays, _MOST_ROWS=2)
    for id in ("wrong-1", "wrong-2"):
        world.connection.execute("INSERT INTO timer_outbox (aggregateid, type) VALUES (?, 'wrong')", (id,))
    world.put("right")
    looks = 0
    while world.relay.look():
        looks += 1
    assert world.publisher.sent == [b"right"]
    assert looks == 2, "each but the last one has done something"


def test_rows_that_another_program_holds_wait_without_a_look_after_the_other(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As PostgreSQL does it: their marks and their reasons are not written."""
    world.connection.execute("INSERT INTO timer_outbox (aggregateid, type) VALUES ('wrong', 'wrong')")
    SqlOutbox().schedule(world.connection, "orders", "k", "v", at=DUE_S)
    marked_ms = int(world.clock.now_s() * 1000)
    world.connection.execute("UPDATE timer_outbox SET sent_ms = ? WHERE timer_if = 'absent'", (marked_ms,))
    world.connection.commit()
    with monkeypatch.context() as patch:
        patch.setattr(world.rows, "refuse", lambda number, reason: False)
        patch.setattr(world.rows, "mark", lambda rows, now_ms: set())
        assert not world.relay.look()
    counters = world.relay.counters
    assert (counters.refused, counters.again, world.publisher.sent, caplog.text) == (0, 0, [], "")
    assert world.relay.look()
    assert (counters.refused, counters.again, len(world.publisher.sent)) == (1, 1, 1)


def test_a_row_that_another_relay_has_deleted_is_not_sent(world: World) -> None:
    world.put("o-1", "o-2")
    read = world.rows.waiting

    def late(above: int, most: int, largest_bytes: int = databases.MOST_BYTES) -> Any:
        rows = read(above, most, largest_bytes)
        world.connection.execute("DELETE FROM timer_outbox WHERE aggregateid = 'o-1'")
        world.connection.commit()
        return rows

    world.rows.waiting = late  # type: ignore[method-assign]
    world.relay.look()
    assert world.publisher.sent == [b"o-2"]


def test_times_of_wrong_types_stop_no_row(world: World) -> None:
    world.put("o-1", "o-2", "o-3")
    world.connection.execute("UPDATE timer_outbox SET created_ms = '2026-11-30' WHERE aggregateid = 'o-1'")
    world.connection.execute("UPDATE timer_outbox SET sent_ms = 'now' WHERE aggregateid = 'o-2'")
    world.connection.commit()
    world.relay.look()
    assert "o-3" not in world.left() and "o-1" not in world.left()


def test_a_relay_locks_its_table_by_whichever_name_of_the_file(world: World, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(world.rows.path)
    assert world.rows.is_first()
    same, other = Sqlite(link, DEFAULT_TABLE), Sqlite(world.rows.path, "other_outbox")
    assert not same.is_first()
    assert other.is_first()
    for each in (same, other):
        each.close()
