"""The cold tier's tables: what goes in comes back once, and nothing that is not near is looked at."""

import re
import shutil
from datetime import date
from pathlib import Path
from threading import Event

import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.spark.cold_rows import NOW_S, fill
from tests.spark.sim_engine import SimEngine, SimLogs, as_frame
from timers.core.progress import COLD_SEAL
from timers.errors import NameTakenError, SettingsError, SparkError
from timers.process.config.settings import Settings
from timers.spark import cold
from timers.spark.cold import BATCHES, HELD_SCHEMA, PROMOTED_SCHEMA, ColdTables
from timers.spark.columns import RECORD_SCHEMA
from timers.spark.jobs import promote
from timers.spark.jobs.promote import Promote, promote_chunk, record_interrupted
from timers.spark.storage import KNOWN_LAYOUT, LAYOUT_PROPERTY
from timers.wire import cold as wire
from timers.wire import headers as h
from timers.wire.headers import Header

pytestmark = pytest.mark.spark

DAY_S = cold.DAY_S
TOPICS = ("timer-request", "timer-request-by-id")


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> ColdTables:
    made = ColdTables((tmp_path / "cold").as_uri())
    made.create(spark)
    return made


def take_in(spark: SparkSession, tables: ColdTables, engine: SimEngine, start: int = 0) -> int:
    """What `hold` does with one micro-batch."""
    new = engine.on("timer-cold")[start:]
    cold.append(cold.hold(as_frame(spark, new), F.lit(engine.log.clock.now_ms)), tables.held, HELD_SCHEMA)
    return start + len(new)


# ---- reading --------------------------------------------------------------------------------------------------------

GOOD: list[Header] = [
    (h.TIMER_SOURCE, b"timer-request/3/17"),
    (h.TIMER_DUE, b"1700172800"),
    (h.TIMER_APPENDED, b"1700000000123"),
    (h.TIMER_SEAL, b"0" * 32),
]


def changed(name: str, value: bytes | None) -> list[Header]:
    return [(each, value if each == name else data) for each, data in GOOD]


SAID: list[list[Header]] = [
    list(GOOD),
    [("a", b"1"), ("a", None), ("timer-due", b"5"), *GOOD],
    [*GOOD, ("a", b"1")],
    GOOD[1:],
    [],
    [GOOD[1], GOOD[0], *GOOD[2:]],
    changed(h.TIMER_SOURCE, b"timer-request/3"),
    changed(h.TIMER_SOURCE, b"no-setting-names-it/3/17"),
    changed(h.TIMER_SOURCE, b"timer-request/99999999999/17"),
    changed(h.TIMER_SOURCE, None),
    changed(h.TIMER_DUE, b"soon"),
    changed(h.TIMER_DUE, None),
    changed(h.TIMER_DUE, b"-1"),
    changed(h.TIMER_DUE, b"1" * 12),
    changed(h.TIMER_APPENDED, b"then"),
    changed(h.TIMER_APPENDED, b"1" * 19),
    changed(h.TIMER_SOURCE, b"timer-request/3/17\n"),
]


def test_cold_requests_are_read_as_the_engine_writes_them(spark: SparkSession) -> None:
    rows: list[tuple[object, ...]] = [
        *(("timer-cold", 0, at, 0, 1, b"k", b"v%d" % at, headers) for at, headers in enumerate(SAID)),
        ("timer-cold", 0, 99, 0, 1, None, None, None),
    ]
    frame = cold.hold(spark.createDataFrame(rows, RECORD_SCHEMA), F.lit(7).cast("long"))
    assert [field.name for field in frame.schema] == HELD_SCHEMA.names
    assert [field.dataType for field in frame.schema] == [field.dataType for field in HELD_SCHEMA]
    found = {row.value and bytes(row.value): row for row in frame.collect()}
    assert len(found) == len(rows), "nothing is left out, good or bad"
    for at, headers in enumerate(SAID):
        row, told = found[b"v%d" % at], wire.decode_cold(headers)
        readable = told is not None and told.source.endswith("/3/17")
        assert (row.due_day is not None, row.source is not None) == (readable, readable), headers
        if readable and told is not None:
            assert (row.due_s, row.source, row.append_ms, row.seal) == (
                told.due_s,
                told.source,
                told.append_ms,
                told.seal,
            )
            assert (row.topic, row.partition, row.due_day) == (told.source[:-5], 3, date(2023, 11, 16))
            assert [(name, data and bytes(data)) for name, data in row.headers] == told.headers


# ---- there and back -------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_two_days_ahead_with_a_minutes_horizon(spark: SparkSession, tables: ColdTables, tmp_path: Path) -> None:
    """Goes cold, comes back once, fires once: through crashes of the promoter, a lost disk and other horizons."""
    due_s = NOW_S + 2 * DAY_S
    engine = SimEngine(NOW_S, horizon_s=60)
    logs = SimLogs(spark, engine, tmp_path / "copies")
    job = Promote(tables, lead_s=60)
    plain = engine.ask(due_s, b"plain", [("a", b"1"), ("a", None)])
    crashed = engine.ask(due_s + 1000, b"crashed")
    blind = engine.ask(due_s + 2000, b"blind")
    engine.ask_by_id(b"cancelled", due_s, b"never")
    engine.ask_by_id(b"moved", due_s, b"never")
    engine.ask_by_id(b"moved", due_s + 5, b"moved")
    engine.ask_by_id(b"kept", due_s, b"kept")
    held = take_in(spark, tables, engine)
    assert (held, engine.fired) == (7, [])
    engine.restart(3600, lose_disk=True)
    hot = engine.ask(engine.log.clock.now_s + 100, b"hot")
    engine.advance_to(NOW_S + DAY_S)
    engine.cancel(b"cancelled")
    assert promote_chunk(spark, job, logs, NOW_S + DAY_S).promoted == 0, "nothing is near"

    engine.advance_to(due_s - 30)
    assert promote_chunk(spark, job, logs, due_s - 30).promoted == 5  # of ids, also versions that are no more
    assert promote_chunk(spark, job, logs, due_s - 30).promoted == 0
    assert logs.deliver() == 5
    engine.restart(0, lose_disk=True)
    assert [value for value, _ in engine.fired] == [b"hot"]
    engine.advance_to(due_s + 10)
    expected = [(b"hot", hot.source), (b"kept", "kept"), (b"moved", "moved"), (b"plain", plain.source)]
    assert sorted(engine.fired) == sorted(expected)
    assert [each for each in engine.on("orders")[1].headers if each[0] == "a"] in ([("a", b"1"), ("a", None)], [])

    # Killed between writing back and noting it, before it fires; what it did is found in the log.
    engine.advance_to(due_s + 990)
    logs.dies = True
    with pytest.raises(Exception, match="killed after the commit"):
        promote_chunk(spark, job, logs, due_s + 990)
    logs.dies = False
    assert logs.deliver() == 1
    logs.fence()
    assert record_interrupted(spark, tables, logs) == 1
    assert record_interrupted(spark, tables, logs) == 0
    assert promote_chunk(spark, job, logs, due_s + 990).promoted == 0
    engine.advance_to(due_s + 1010)
    expected.append((b"crashed", crashed.source))
    assert sorted(engine.fired) == sorted(expected)

    # Killed there once more, and it is not found: repeated before it fires, and after, on an empty disk.
    for now_s, lose_disk in ((due_s + 1990, False), (due_s + 1995, True), (due_s + 2010, True), (due_s + 2020, False)):
        engine.advance_to(now_s)
        logs.dies = logs.blind = True
        logs.fence()
        record_interrupted(spark, tables, logs)
        with pytest.raises(Exception, match="killed after the commit"):
            promote_chunk(spark, job, logs, now_s)
        assert logs.deliver() == 1
        engine.restart(60 if lose_disk else 5, lose_disk=lose_disk)
        engine.advance_to(now_s + 1)
    expected.append((b"blind", blind.source))
    assert sorted(engine.fired) == sorted(expected)
    assert engine.on("timer-dead-letter") == []
    assert engine.worker.runners[engine.settings.request_topic, 0].machine.progress.setting_at(COLD_SEAL, 0, 0)


def test_a_copy_that_may_have_been_deleted_is_written_again_only_while_it_is_remembered(
    spark: SparkSession, tables: ColdTables, tmp_path: Path
) -> None:
    engine = SimEngine(NOW_S, 60)
    logs, job = SimLogs(spark, engine, tmp_path / "copies"), Promote(tables, lead_s=20)
    sent = engine.ask(NOW_S + 100, b"plain")
    engine.advance_to(NOW_S + 90)
    take_in(spark, tables, engine)
    logs.dies = True
    with pytest.raises(Exception, match="killed after the commit"):
        promote_chunk(spark, job, logs, NOW_S + 90)
    logs.dies, logs.trimmed = False, True
    assert logs.deliver() == 1
    engine.advance_to(NOW_S + 200)
    assert engine.fired == [(b"plain", sent.source)]
    logs.fence()
    assert record_interrupted(spark, tables, logs) == 0, "its copy is deleted"
    forgotten_s = NOW_S + 100 + engine.settings.verdict_retention_s
    later = SimLogs(spark, engine, tmp_path / "later")
    later.trimmed = True
    later.fence()
    assert record_interrupted(spark, tables, later) == 0, "the batch is looked for in each run"
    assert promote_chunk(spark, job, later, forgotten_s).promoted == 0, "its partition has forgotten that it came back"
    assert promote_chunk(spark, job, logs, NOW_S + 200).promoted == 1
    assert logs.deliver() == 1
    engine.advance_to(NOW_S + 300)
    assert engine.fired == [(b"plain", sent.source)], "its partition ignores the second copy"


@pytest.mark.long
def test_what_was_taken_in_too_late_to_know_stays(spark: SparkSession, tables: ColdTables, tmp_path: Path) -> None:
    """The tables were lost, and the cold topic is read again: what has fired long ago must not fire again."""
    engine = SimEngine(NOW_S, 60)
    logs = SimLogs(spark, engine, tmp_path / "copies")
    engine.ask(NOW_S + 100, b"plain")
    engine.ask_by_id(b"id", NOW_S + 100, b"by id")
    late_s = NOW_S + 100 + engine.settings.verdict_retention_s
    engine.advance_to(late_s)
    take_in(spark, tables, engine)
    assert promote_chunk(spark, Promote(tables), logs, late_s).promoted == 1, "ids are remembered"
    said: list[str] = []
    stop = Event()
    stop.set()
    assert promote.run(spark, Promote(tables), logs, lambda: late_s, said.append, every_s=60, stop=stop) == 0
    assert said == []
    assert promote.run(spark, Promote(tables), logs, lambda: late_s, said.append) == 0
    assert any("1 overdue timers" in line and "--overdue" in line for line in said)
    assert promote_chunk(spark, Promote(tables, overdue=True), logs, late_s).promoted == 1
    logs.deliver()
    assert sorted(value or b"" for value, _ in engine.fired) == [b"by id", b"plain"]


@pytest.mark.long
def test_requests_of_a_topic_that_is_gone_do_not_stop_the_others(
    spark: SparkSession, tables: ColdTables, tmp_path: Path
) -> None:
    engine = SimEngine(NOW_S, 60)
    logs = SimLogs(spark, engine, tmp_path / "copies")
    engine.ask_by_id(b"id", NOW_S + 100, b"by id")
    engine.ask(NOW_S + 101, b"plain")
    engine.advance_to(NOW_S + 50)
    take_in(spark, tables, engine)
    logs.gone = {TOPICS[1]}
    said: list[str] = []
    assert promote.run(spark, Promote(tables), logs, lambda: NOW_S + 110, said.append) == 1
    assert any("1 overdue timers are not written back" in line for line in said)
    logs.deliver()
    engine.advance_to(NOW_S + 120)
    assert [value for value, _ in engine.fired] == [b"plain"]
    logs.gone = set()
    assert promote_chunk(spark, Promote(tables), logs, NOW_S + 121).promoted == 1, "the topic is back"


def test_a_copy_that_is_refused_does_not_stop_the_others(
    spark: SparkSession, tables: ColdTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promote, "maintain", lambda *_: "tables maintained")
    fill(spark, tables, 7, days=1)
    logs = SimLogs(spark, SimEngine(NOW_S, 60), tmp_path / "copies")
    logs.refuses = f"{TOPICS[0]}/0/2"
    said: list[str] = []
    job = Promote(tables, rate_per_s=1_000_000, chunk=4)
    assert promote.run(spark, job, logs, lambda: NOW_S + DAY_S, said.append) == 6
    assert any("1 timer not written back" in line and f"{logs.refuses}: " in line for line in said)
    left = cold.unpromoted(spark, tables, NOW_S + DAY_S, F.lit(True)).collect()
    assert [row.source for row in left] == [logs.refuses]
    logs.refuses = ""
    assert promote_chunk(spark, job, logs, NOW_S + DAY_S).promoted == 1


def test_a_request_that_was_held_twice_is_written_once(spark: SparkSession, tables: ColdTables, tmp_path: Path) -> None:
    """As if the stream had lost its checkpoint: also if both rows are in one batch of the task."""
    for _ in range(2):
        fill(spark, tables, 6, days=1)
    logs, job = SimLogs(spark, SimEngine(NOW_S, 60), tmp_path / "copies"), Promote(tables, DAY_S, 1_000_000, chunk=4)
    first = promote_chunk(spark, job, logs, NOW_S)
    second = promote_chunk(spark, job, logs, NOW_S, (), first.left)
    assert (first.promoted, second.promoted, second.more) == (4, 2, False)
    assert logs.deliver() == 6
    assert spark.read.format("delta").load(tables.promoted).count() == 6


def assert_older_tables_repeat_nothing(
    spark: SparkSession, tables: ColdTables, tmp_path: Path, *, is_trimmed: bool, has_promoted: bool
) -> None:
    """A backup of the tables comes back days later: what was written back meanwhile has fired."""
    engine, directory = SimEngine(NOW_S, 60), tmp_path / "cold"
    logs = SimLogs(spark, engine, tmp_path / "copies")
    days = [NOW_S + day * DAY_S for day in (1, 2, 3, 4)]
    asked = [engine.ask(due_s, b"%d" % due_s) for due_s in days]
    take_in(spark, tables, engine)

    def promote_at(now_s: int, by: SimLogs = logs) -> list[str]:
        said: list[str] = []
        engine.advance_to(now_s)
        promote.run(spark, Promote(tables, lead_s=60), by, lambda: now_s, said.append)
        by.deliver()
        engine.advance_to(now_s + 60)
        return said

    if has_promoted:
        promote_at(days[0] - 30)
    shutil.copytree(directory, tmp_path / "backup")
    promote_at(days[1] - 30)
    assert len(engine.fired) == 2
    shutil.rmtree(directory)
    shutil.copytree(tmp_path / "backup", directory)

    later = SimLogs(spark, engine, tmp_path / "later")
    later.noted, later.trimmed = logs.noted, is_trimmed
    said = promote_at(days[2] + DAY_S - 7200, later)  # the third one became due while nothing ran
    assert any("the tables may be older than what was written back last" in line for line in said), said
    expected = sorted((str(due_s).encode(), sent.source) for due_s, sent in zip(days, asked, strict=True))
    assert sorted(engine.fired) == expected[:3], "the partition remembers copies of the last day"
    said = promote_at(days[3] - 30, later)
    assert not any("the tables may be older" in line for line in said), said
    assert any("1 overdue timers may have fired before" in line for line in said) == is_trimmed, said
    assert sorted(engine.fired) == expected


@pytest.mark.long
@pytest.mark.parametrize(("is_trimmed", "has_promoted"), [(False, False), (True, True)])
def test_older_tables_that_come_back_repeat_nothing(
    spark: SparkSession,
    tables: ColdTables,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_trimmed: bool,
    has_promoted: bool,
) -> None:
    monkeypatch.setattr(promote, "maintain", lambda *_: "tables maintained")
    assert_older_tables_repeat_nothing(spark, tables, tmp_path, is_trimmed=is_trimmed, has_promoted=has_promoted)


def promote_now(spark: SparkSession, tables: ColdTables, logs: SimLogs, *, overdue: bool = False) -> list[str]:
    """A whole run at the second of the engine, and what it says."""
    said = list[str]()
    job = Promote(tables, lead_s=60, overdue=overdue)
    promote.run(spark, job, logs, lambda: logs.engine.log.clock.now_s, said.append)
    logs.deliver()
    logs.engine.run()
    return said


def test_a_backup_from_before_a_killed_run_repeats_nothing(
    spark: SparkSession, tables: ColdTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka has the name of a batch before it has a copy of it."""
    monkeypatch.setattr(promote, "maintain", lambda *_: "tables maintained")
    engine, directory, due_s = SimEngine(NOW_S, 60), tmp_path / "cold", NOW_S + DAY_S
    logs = SimLogs(spark, engine, tmp_path / "copies")
    sent = engine.ask(due_s, b"once")
    take_in(spark, tables, engine)
    shutil.copytree(directory, tmp_path / "backup")
    engine.advance_to(due_s - 30)
    logs.dies = True
    with pytest.raises(Exception, match="killed after the commit"):
        promote_chunk(spark, Promote(tables, lead_s=60), logs, due_s - 30)
    logs.dies = False
    assert logs.deliver() == 1
    engine.advance_to(due_s + 2 * DAY_S)
    shutil.rmtree(directory)
    shutil.copytree(tmp_path / "backup", directory)
    said = promote_now(spark, tables, logs)
    assert any("the tables may be older than what was written back last" in line for line in said), said
    engine.advance_to(due_s + 2 * DAY_S + 60)
    assert engine.fired == [(b"once", sent.source)], "its partition does not know any more that it came back"


def test_copies_are_looked_for_when_hold_has_read_what_may_have_one(
    spark: SparkSession, tables: ColdTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables are lost and the logs are trimmed. What `hold` took in after the search would count as never written
    back."""
    monkeypatch.setattr(promote, "maintain", lambda *_: "tables maintained")
    engine, due_s = SimEngine(NOW_S, 60), NOW_S + DAY_S
    logs = SimLogs(spark, engine, tmp_path / "copies")
    sent = engine.ask(due_s, b"once")
    take_in(spark, tables, engine)
    engine.advance_to(due_s - 30)
    promote_now(spark, tables, logs)
    engine.advance_to(due_s + 3600)
    assert engine.fired == [(b"once", sent.source)]

    shutil.rmtree(tmp_path / "cold")
    logs.trimmed, logs.unread = True, 1
    with pytest.raises(SparkError, match=r"`timers spark hold` has not read 1 record of the cold topic: run it first"):
        promote_now(spark, tables, logs)
    assert tables.steps(spark).begun().isEmpty()
    take_in(spark, tables, engine)
    logs.unread = 0
    engine.advance_to(due_s + 2 * DAY_S)
    for number in range(2):
        again = SimLogs(spark, engine, tmp_path / f"copies-{number}")
        again.noted, again.trimmed = logs.noted, True
        promote_now(spark, tables, again)
        logs.noted = again.noted
    engine.advance_to(due_s + 2 * DAY_S + 60)
    assert engine.fired == [(b"once", sent.source)]


def test_a_group_that_cannot_be_used_ends_the_start(
    spark: SparkSession, tables: ColdTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if nothing is due: only the group says whether the tables are old."""
    logs = SimLogs(spark, SimEngine(NOW_S, 60), tmp_path / "copies")
    logs.starts_nothing = True
    with pytest.raises(SparkError, match="the group cannot be used"):
        promote_now(spark, tables, logs)


def test_a_promoter_that_waits_ends_when_another_one_has_begun(
    spark: SparkSession, tables: ColdTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(_: str) -> None:
        raise NameTakenError(promote.TAKEN)

    monkeypatch.setattr(promote, "maintain", lambda *_: "tables maintained")
    logs = SimLogs(spark, SimEngine(NOW_S, 60), tmp_path / "copies")
    monkeypatch.setattr(logs, "note_batch", taken)
    with pytest.raises(NameTakenError):
        promote_now(spark, tables, logs)


def test_the_newest_batch_is_known_as_long_as_the_job_runs(
    spark: SparkSession, tables: ColdTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers keep its name for seven days. While nothing is due, a group that cannot be used ends no run."""
    monkeypatch.setattr(promote, "maintain", lambda *_: "tables maintained")
    engine = SimEngine(NOW_S, 60)
    logs = SimLogs(spark, engine, tmp_path / "copies")
    engine.ask(NOW_S + 100, b"once")
    take_in(spark, tables, engine)
    engine.advance_to(NOW_S + 50)
    assert any("1 due by" in line for line in promote_now(spark, tables, logs))
    for day in (4, 8):
        engine.advance_to(NOW_S + day * DAY_S)
        logs.notes_nothing = day == 4
        said = promote_now(spark, tables, logs)
        assert not any("the tables may be older" in line for line in said), said
        assert any("is tried again later: the group cannot be used" in line for line in said) == (day == 4), said
        if day == 4:
            logs.notes_nothing = False
            assert promote_now(spark, tables, logs)[-1] == "tables maintained"
    assert logs.searches == 0


def test_a_batch_whose_copies_are_deleted_ends_with_what_waits_for_it(
    spark: SparkSession, tables: ColdTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables of a version that noted no batch, long after their last one: its log is trimmed."""
    monkeypatch.setattr(promote, "maintain", lambda *_: "tables maintained")
    engine = SimEngine(NOW_S, 60)
    logs = SimLogs(spark, engine, tmp_path / "copies")
    logs.trimmed = True
    engine.ask(NOW_S + 100, b"first")
    engine.ask(NOW_S + 8 * DAY_S, b"second")
    take_in(spark, tables, engine)
    engine.advance_to(NOW_S + 50)
    promote_now(spark, tables, logs)

    engine.advance_to(NOW_S + 7 * DAY_S + 200)
    assert any("the tables may be older" in line for line in promote_now(spark, tables, logs))
    assert (logs.searches, tables.steps(spark).unfinished()) == (0, []), "no timer waits, so no copy is looked for"

    steps = tables.steps(spark)
    for day in (15, 23):  # the second one was not written back, and each time the name of the batch is forgotten
        engine.advance_to(NOW_S + day * DAY_S)
        before, said = logs.searches, promote_now(spark, tables, logs)
        assert any("until it has --overdue" in line for line in said), said
        assert any("1 overdue timers may have fired before" in line for line in said), said
        assert (logs.searches - before, len(steps.unfinished())) == (1, 1), "a new batch takes the place of the former"
    promote_now(spark, tables, logs, overdue=True)
    assert [value for value, _ in engine.fired] == [b"first", b"second"]
    assert steps.unfinished() == []


def test_the_documented_statement_deletes_what_was_held_too_late(spark: SparkSession, tables: ColdTables) -> None:
    fill(spark, tables, 6, days=1)
    late = "held_ms = (due_s + 86400) * 1000"
    spark.sql(f"UPDATE delta.`{tables.held}` SET {late} WHERE source LIKE '%/1' OR source LIKE '%/2'")
    spark.sql(f"UPDATE delta.`{tables.held}` SET topic = '{TOPICS[1]}' WHERE source LIKE '%/2'")
    does_no_harm = cold.does_no_harm(Settings().verdict_retention_s, [TOPICS[1]], NOW_S + DAY_S)
    rows = spark.read.format("delta").load(tables.held)
    kept = sorted(row.source for row in rows.where(does_no_harm).collect())
    assert len(kept) == 5
    page = (Path(__file__).parents[2] / "docs/cold-tier.md").read_text()
    (statement,) = re.findall(r"^(DELETE FROM .* WHERE held_ms .*);$", page, re.M)
    spark.sql(statement.replace("/data/cold/held", tables.held))
    assert sorted(row.source for row in rows.collect()) == kept


# ---- cost and care --------------------------------------------------------------------------------------------------


def files_of(spark: SparkSession, tables: ColdTables) -> int:
    return cold.files_scanned(spark.read.format("delta").load(tables.held), tables.held)


def test_files_are_few_and_what_is_not_near_is_not_looked_at(
    spark: SparkSession, tables: ColdTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upkeep clusters the files of micro-batches: a search opens one, and those that came since."""
    for _ in range(3):
        fill(spark, tables, 3000, days=3 * 365)
    assert files_of(spark, tables) == 3
    monkeypatch.setattr(cold, "_FILE_BYTES", 10_000)
    assert cold.compact(spark, tables) == 3
    assert 5 < files_of(spark, tables) <= 40
    assert cold.compact(spark, tables) == 0, "what is clustered is not rewritten"
    fill(spark, tables, 300, days=30)
    near = cold.unpromoted(spark, tables, NOW_S + DAY_S, F.lit(True))
    found = near.toArrow()
    assert 0 < found.num_rows < 20
    assert cold.files_scanned(near, tables.held) == 2
    whole = cold.whole_requests(spark, tables, found)
    assert {row.source for row in whole.collect()} == {*found.column("source").to_pylist()}
    assert cold.files_scanned(whole, tables.held) == 2


@pytest.mark.long
def test_a_new_file_costs_no_more_than_a_few_others(
    spark: SparkSession, tables: ColdTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upkeep leaves large runs as they are, until there are many of them."""
    monkeypatch.setattr(cold, "_FILE_BYTES", 4_000)
    monkeypatch.setattr(cold, "_MOST_RUNS", 2)
    merged, files = list[int](), list[int]()
    for part in range(4):
        fill(spark, tables, 1000, days=30, first=1000 * part)
        files.append(files_of(spark, tables))
        merged.append(cold._merge(spark, DeltaTable.forPath(spark, tables.held), 0))
    assert merged[:3] == [1, 1, 1], "each time the new file"
    assert merged[3] > files[3], "then all runs, after the new file was made one"
    assert spark.read.format("delta").load(tables.held).count() == 4000


@pytest.mark.long
def test_what_is_over_is_forgotten_and_files_become_few(
    spark: SparkSession, tables: ColdTables, tmp_path: Path
) -> None:
    engine = SimEngine(NOW_S, 60)
    logs = SimLogs(spark, engine, tmp_path / "copies")
    for _ in range(2):
        fill(spark, tables, 30, days=5)
    later_s = NOW_S + 3 * DAY_S
    job = Promote(tables, lead_s=0, rate_per_s=1_000_000, chunk=20)
    rounds: list[promote.Round] = []
    while not rounds or rounds[-1].more:
        rounds.append(promote_chunk(spark, job, logs, later_s))
    # Each source is there twice, as if the stream had lost its checkpoint.
    assert [each.promoted for each in rounds] == [19]
    before_s = later_s - promote.DELETE_AFTER_DUE_S
    held = spark.read.format("delta").load(tables.held)
    old = held.where(F.col("due_s") < before_s).count()
    said: list[str] = []
    assert promote.maintain(spark, tables, later_s, said.append).startswith(f"promote: {old} old timers deleted")
    assert old > 0 and said[0].startswith(f"promote: merging small files of {tables.held}: ")
    assert held.where(F.col("due_s") < before_s).isEmpty()
    assert held.count() == 60 - old
    assert files_of(spark, tables) == 1
    assert promote_chunk(spark, job, logs, later_s).promoted == 0


def test_only_what_was_promoted_is_deleted(
    spark: SparkSession, tables: ColdTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one day: a request that has no place any more, and one that `hold` adds after the deletion has looked."""
    fill(spark, tables, 3, days=1)
    rows = cold.unpromoted(spark, tables, NOW_S + DAY_S, F.lit(True)).withColumn("batch", F.lit("batch"))
    gone, kept = F.col("source").endswith("/0"), F.col("source").endswith("/1")
    late = spark.createDataFrame(
        spark.read.format("delta").load(tables.held).where(~gone & ~kept).collect(), HELD_SCHEMA
    )
    DeltaTable.forPath(spark, tables.held).delete(~gone & ~kept)
    cold.append(rows.where(gone), tables.promoted, PROMOTED_SCHEMA)
    look = cold._sources

    def look_and_hold(spark: SparkSession, path: str, before_s: int) -> DataFrame:
        found = look(spark, path, before_s)
        if path == tables.promoted:
            found = spark.createDataFrame(found.collect(), found.schema)
            cold.append(late, tables.held, HELD_SCHEMA)
        return found

    monkeypatch.setattr(cold, "_sources", look_and_hold)
    assert cold.delete_promoted(spark, tables, NOW_S + 3 * DAY_S) == 1
    left = [row.source for row in cold.unpromoted(spark, tables, NOW_S + DAY_S, F.lit(True)).collect()]
    assert sorted(left) == ["timer-request/0/1", "timer-request/0/2"]
    promoted = spark.read.format("delta").load(tables.promoted)
    assert promoted.count() == 1, "a search that began before may have found the request"
    assert cold.delete_promoted(spark, tables, NOW_S + 3 * DAY_S) == 0
    assert promoted.isEmpty()


def test_tables_have_their_schemas(spark: SparkSession, tables: ColdTables) -> None:
    tables.create(spark)
    assert_layout(spark, tables)


def test_tables_of_a_newer_version_are_refused(spark: SparkSession, tables: ColdTables) -> None:
    spark.sql(f"ALTER TABLE delta.`{tables.batches}` SET TBLPROPERTIES ('{LAYOUT_PROPERTY}' = '{KNOWN_LAYOUT + 1}')")
    with pytest.raises(SettingsError, match=r"/batches' has the layout 2, and this version of kafka-timers knows 1: "):
        tables.create(spark)


def assert_layout(spark: SparkSession, tables: ColdTables) -> None:
    for path, schema in ((tables.held, HELD_SCHEMA), (tables.promoted, PROMOTED_SCHEMA), (tables.batches, BATCHES)):
        assert spark.read.format("delta").load(path).schema == schema
        (about,) = DeltaTable.forPath(spark, path).detail().collect()
        assert (about.partitionColumns, about.clusteringColumns) == ([], ["due_s"] if path != tables.batches else [])


def test_tables_of_an_earlier_version_are_refused(spark: SparkSession, tables: ColdTables) -> None:
    rows = spark.read.format("delta").load(tables.held).drop("due")
    rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(tables.held)
    with pytest.raises(SettingsError, match=r"/held' has no column 'due': .* of commit aa3045c5 once"):
        tables.create(spark)
