"""The file of pending timers: what is written is read, and a file that is not whole is refused."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from timers.cli import pending as cli
from timers.core.operation import VerdictName
from timers.core.progress import Progress
from timers.core.repeating import occurrence_row
from timers.core.timer import Origin, Row
from timers.errors import TimersError
from timers.offline import pending
from timers.offline.pending import Head, Moves, Reader, Writer, export
from timers.process.config.settings import Settings
from timers.wire import headers as h
from timers.wire.formats import RequestRecord, future_by_id
from timers.wire.verdict import VerdictMessage, as_json

HEAD = Head(2**63 - 1, "orders", "cluster", True)
SOURCE = "timer-request/0/7"

ROWS: list[tuple[Row, Origin]] = [
    ((7, "t", "key", b"value", None, None), Origin(SOURCE, 900, 0, SOURCE)),
    ((7, "t", None, b"\xff\x00", [("h", b"1"), ("h", None), ("b", b"\xfe")], None), Origin(SOURCE, 0, 0, SOURCE)),
    ((7, "t", "", b"", None, None), Origin("id-1", 99_999_999_999, 0, SOURCE)),
]


def written(*rows: tuple[Row, Origin]) -> bytes:
    file = io.BytesIO()
    writer = Writer(file, HEAD)
    for row, origin in rows:
        writer.add(row, origin)
    writer.end()
    return file.getvalue()


def read(data: bytes) -> list[tuple[Row, Origin]]:
    reader = Reader(io.BytesIO(data))
    assert reader.head == HEAD
    return [(timer.row, timer.origin) for timer in reader]


def test_what_is_written_is_read() -> None:
    read_back = read(written(*ROWS))
    assert [origin for _, origin in read_back] == [origin for _, origin in ROWS]
    assert [row[1:4] for row, _ in read_back] == [row[1:4] for row, _ in ROWS]
    assert [row[4] for row, _ in read_back] == [[], [("h", b"1"), ("h", None), ("b", b"\xfe")], []]


def test_a_timer_that_has_failed_has_no_id() -> None:
    """In its app it could not be replaced any more, and the id may be that of a newer timer."""
    ((_, origin),) = read(written((ROWS[2][0], Origin("id-1", 900, 3, SOURCE))))
    assert origin == Origin(SOURCE, 900, 3, SOURCE)
    assert not origin.has_id


@pytest.mark.parametrize("own", [{h.TIMER_NOMINAL: b"900"}, {h.TIMER_WAYPOINT: b"800"}])
def test_a_timer_that_repeats_is_set_as_one_again(own: dict[str, bytes | None]) -> None:
    """Also if its next occurrence is far: such a row has no topic."""
    rule = b"cron=0 9 * * *; zone=Europe/Paris"
    own = {h.TIMER_REPEAT: rule, h.TIMER_VERSION: b"by-id/0/3", **own}
    callback: Row = (7, "out", b"k", b"v", [("mine", b"1")], Origin("id-1", 900, 0))
    line = written((occurrence_row(callback, own), Origin("id-1", 900, 0, "by-id/0/7")))
    (timer,) = Reader(io.BytesIO(line))
    assert timer.row[1] == "out"
    request = requested(timer)
    assert [*(request.headers or ())][-1] == (h.TIMER_IF, b"absent")
    decoded = future_by_id.decode([request], 1000, repeats=True)
    assert (decoded.rejected, decoded.rows) == ([], {})
    definition = decoded.definitions[0]
    assert definition.row[1:5] == ("out", "k", b"v", [("mine", b"1")])
    assert definition.rule == rule, "a deploy that sets the same rule again changes nothing"
    assert definition.decided_s == (800 if h.TIMER_WAYPOINT in own else 899)


def requested(timer: pending.PendingTimer, now_s: int = 1_000) -> RequestRecord:
    sent = pending._record(timer, 0, 4, Settings(id_topic="by-id"), now_s)
    headers = [(name, data.encode() if isinstance(data, str) else data) for name, data in sent.headers]
    return RequestRecord(0, sent.key, sent.value, headers, now_s * 1000)


@pytest.mark.parametrize(("now_s", "is_single"), [(900, False), (992, True), (2_000, True)])
def test_what_a_timer_has_not_sent_at_its_last_second_is_set_as_a_single_one(now_s: int, is_single: bool) -> None:
    own = {h.TIMER_REPEAT: b"every=100; from=0; until=1000", h.TIMER_VERSION: b"by-id/0/3", h.TIMER_NOMINAL: b"900"}
    callback: Row = (7, "out", b"k", b"v", [("mine", b"1")], Origin("id-1", 905, 0))
    timer = pending.PendingTimer(occurrence_row(callback, own), Origin("id-1", 905, 0, "by-id/0/7"))
    decoded = future_by_id.decode([requested(timer, now_s)], 1000, repeats=True)
    assert not decoded.rejected
    assert bool(decoded.definitions) != is_single
    assert [(due_s, [row[1:5] for row in rows]) for due_s, rows in decoded.rows.items()] == (
        [(905, [("out", b"k", b"v", [("mine", b"1")])])] if is_single else []
    )


def test_a_rule_is_judged_by_the_time_at_which_its_request_is_made() -> None:
    """A large file takes minutes: the last second of a rule may be over in the middle of an import."""
    own = {h.TIMER_REPEAT: b"every=100; from=0; until=1000", h.TIMER_VERSION: b"by-id/0/3", h.TIMER_NOMINAL: b"900"}
    callback: Row = (7, "out", b"k", b"v", [], Origin("id-1", 905, 0))
    data = written(*[(occurrence_row(callback, own), Origin("id-1", 905, 0, "by-id/0/7"))] * 3)
    times_s, cluster = iter([900, 989, 991]), cast(Any, SimpleNamespace(partitions={"by-id": 4}))
    made = pending._records(Reader(io.BytesIO(data)), 0, Settings(id_topic="by-id"), cluster, lambda: next(times_s))
    repeats = [any(name == h.TIMER_REPEAT for name, _ in record.headers) for record in made]
    assert repeats == [True, True, False]


class Verdicts:
    """The topic of verdicts: (source, verdict) of its records; then it is silent."""

    def __init__(self, *records: tuple[bytes | None, VerdictName | None]) -> None:
        self._records = records
        self.closed = False

    def assign_partitions(self) -> None: ...

    def __iter__(self) -> Iterator[Any]:
        for source, outcome in self._records:
            value = None if outcome is None else as_json(VerdictMessage("id", outcome, None)).encode()
            headers = [("timer-source", source)]
            yield SimpleNamespace(headers=lambda headers=headers: headers, value=lambda value=value: value)
        while True:
            yield None

    def __exit__(self, *_: object) -> None:
        self.closed = True


def test_the_verdicts_on_an_import_are_counted_also_after_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of partition 1 are behind a cut, whose number their producer does not know."""
    of_others: list[tuple[bytes | None, VerdictName | None]] = [
        (b"by-id/0/6", "set"), (b"by-id/2/5", "set"), (b"other/0/5", "set"), (b"\xff", "set"), (None, "set"),
    ]  # fmt: skip
    log = Verdicts((b"by-id/0/5", "set"), *of_others, (b"by-id/1/5~1", "exists"), (b"by-id/1/7~1", None))
    monkeypatch.setattr(pending, "TopicReader", lambda *_, **__: log)
    monkeypatch.setattr(pending, "SILENT_S", 0.1)
    with pending.Answers(Settings()) as answers:
        answers.begin()
        answers.expect(["by-id/0/5", "by-id/1/5", "by-id/1/7", "by-id/0/7"])
        assert answers.wait() == ({"set": 1, "exists": 1}, 2)
    assert log.closed


def test_what_has_no_verdict_is_not_said_to_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    """It may be a dead letter."""
    cli._say_outcome(10, 2, 3)
    said = capsys.readouterr().err
    assert (
        "5 timers set\n" in said and "2 timers not set: this app has" in said and "3 timers without a verdict" in said
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda data: data[: data.rindex(b'{"timers"')], "cut off after 3 timers"),
        (lambda data: data[:-40], "line 5 of the file is no timer"),
        (lambda data: data.replace(b'"at":900', b'"at":901'), "was changed"),
        (lambda data: b"".join(line for line in data.splitlines(True) if b"id-1" not in line), "was changed"),
        (lambda data: data.replace(b'"at":900', b'"at":"now"'), "line 2 of the file is no timer"),
        (lambda data: data.replace(b'"at":900,', b""), "line 2 of the file is no timer"),
        (lambda data: data.replace(b'"timers-export":1', b'"timers-export":2'), "has version 2"),
        (lambda data: data.split(b"\n", 1)[1], "no file of `timers export`"),
        (lambda data: b"", "no file of `timers export`"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(change, sentence: str) -> None:  # type: ignore[no-untyped-def]
    changed = change(written(*ROWS))
    with pytest.raises(TimersError, match=sentence):
        read(changed)


def test_a_line_is_plain_json() -> None:
    line = json.loads(written(ROWS[0]).splitlines()[1])
    assert line == {"topic": "t", "key": "key", "value": "value", "at": 900, "source": SOURCE}


# ---- what an interrupted export has moved ----------------------------------------------------------------------------


TPS = [("timer-request", partition) for partition in range(3)]
CLUSTER: Any = SimpleNamespace(topic_ids={"timer-request": b"0123456789abcdef"}, partitions={}, cluster_id="cluster")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the moves. Each machine has committed something."""

    def commit(settings: Any, cluster: Any, tp: Any, change: Any) -> None:
        change(Progress(10 + tp[1]))

    monkeypatch.setattr(pending, "commit_change", commit)
    (tmp_path / "pending.part").mkdir()
    return tmp_path / "pending.part" / "moves"


def begun(path: Path) -> Moves:
    moves = Moves(path)
    moves.begin()
    moves.move(Settings(), CLUSTER, TPS[0])
    return moves


@pytest.mark.parametrize("cut", [1, 5, 60])
def test_a_line_that_was_not_written_whole_is_taken_away_before_the_next_one(path: Path, cut: int) -> None:
    begun(path).move(Settings(), CLUSTER, TPS[1])
    path.write_bytes(path.read_bytes()[:-cut])
    again = Moves(path)
    assert again.former == {TPS[0]: Progress(10)}
    again.move(Settings(), CLUSTER, TPS[2])
    assert Moves(path).former == {TPS[0]: Progress(10), TPS[2]: Progress(12)}


def test_a_number_that_was_not_written_whole_is_chosen_again(path: Path) -> None:
    path.write_bytes(b"123")
    moves = Moves(path)
    assert moves.number == 0
    moves.begin()
    assert Moves(path).number == moves.number > 0


def test_another_export_does_not_delete_what_was_moved(path: Path) -> None:
    """The app fires these timers no more, and no file has them yet."""
    begun(path)
    (path.parent / "timers").touch()
    target = path.parent.with_name("pending")
    with pytest.raises(TimersError, match="is the only place of timers that an interrupted export has moved"):
        export(Settings(), CLUSTER, target, move=False, check=lambda: None, report=lambda _: None)
    assert Moves(path).former == {TPS[0]: Progress(10)}
