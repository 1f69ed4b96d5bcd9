"""The cold tier on a real broker: a worker with a horizon, `hold` and `promote`, and a promoter that is killed."""

import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.harness.planted import ByteWriter
from tests.harness.records import Headers, Request
from tests.harness.system import System
from tests.harness.waiting import due_in, wait_until
from tests.spark.sim_engine import Dying
from timers.errors import NameTakenError, SettingsError
from timers.kafka import connection
from timers.kafka.records import Record, TransactionalWriter
from timers.spark import cold
from timers.spark.audit import report
from timers.spark.audit.gaps import Scope
from timers.spark.audit.outcomes import Moment
from timers.spark.cold import ColdTables
from timers.spark.jobs import audit, hold, promote
from timers.spark.jobs.promote import KafkaPort, Logs, Promote, copies_of
from timers.wire import headers as h

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

COUNT = 200


def now_s() -> int:
    return int(time.time())


@pytest.fixture
def system(broker_address: str, tmp_path: Path) -> Iterator[System]:
    """One with a horizon."""
    system = System(broker_address, tmp_path, TIMERS_HOT_HORIZON_S="5", TIMERS_COLD_TOPIC=f"cold-{tmp_path.name}")
    yield system
    system.close()


def test_hold_without_a_cold_topic_is_one_sentence(spark: SparkSession, system: System, tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"TIMERS_COLD_TOPIC='cold-.* does not exist .* start a worker .* on Spark\) with TIMERS_"
    ):
        hold.run(spark, system.settings, ColdTables(str(tmp_path / "cold")), print)


def test_hold_counts_the_records_that_are_no_cold_requests(spark: SparkSession, system: System, tmp_path: Path) -> None:
    system.create_own_topics()
    writer, settings, said = ByteWriter(system), system.settings, list[str]()
    writer.put_cold(writer.ask("orders", now_s() + cold.DAY_S, now_s() * 1000))
    foreign: list[Headers] = [[], [("timer-source", b"timer-request/0/5")]]
    for headers in foreign:
        writer.write(settings.cold_topic, b"key", b"value", headers, now_s() * 1000)
    tables, logs = ColdTables((tmp_path / "cold").as_uri()), Logs(spark, settings)
    later_s = now_s() + 2 * 3600
    assert (logs.unheld(tables, now_s()), logs.unheld(tables, later_s)) == (0, 3), "without those of the last hour"
    assert hold.run(spark, settings, tables, said.append) == 1
    assert logs.unheld(tables, later_s) == 0
    assert said[0].startswith("hold: 1 held, ") and said[0].endswith("/s, 1 since the start")
    why = "the headers of a cold request are missing"
    assert said[1:] == [f"hold: 2 records of {settings.cold_topic} will not be promoted: {why}"]


@pytest.mark.long
def test_hold_reads_again_what_a_restored_half_lost_or_new_log_would_hide(
    spark: SparkSession, system: System, tmp_path: Path
) -> None:
    """Spark goes on at the offsets of its checkpoint, and Delta skips micro-batches by their number."""
    system.create_own_topics()
    writer, settings = ByteWriter(system), system.settings
    tables = ColdTables((tmp_path / "cold").as_uri())
    checkpoint, backup = tmp_path / "cold" / "held" / "_checkpoint", tmp_path / "backup"
    asked: list[str] = []

    def ask(count: int) -> None:
        for _ in range(count):
            sent = writer.ask("orders", now_s() + cold.DAY_S, now_s() * 1000)
            writer.put_cold(sent)
            asked.append(sent.source)

    def hold_all() -> list[str]:
        said: list[str] = []
        hold.run(spark, settings, tables, said.append)
        rows = spark.read.format("delta").load(tables.held).select("source").distinct().collect()
        assert {row.source for row in rows} >= {*asked}
        return [line for line in said if "held, " not in line]

    for _ in range(3):
        ask(2)
        assert hold_all() == []
        if not backup.exists():
            shutil.copytree(checkpoint, backup)
    assert hold_all() == []
    shutil.rmtree(checkpoint)
    shutil.copytree(backup, checkpoint)  # it was copied before the table was
    ask(1)
    older = "hold: the checkpoint is older than the table: some requests are read once more"
    assert hold_all() == [older]
    shutil.rmtree(checkpoint)
    shutil.copytree(backup, checkpoint)
    assert (hold_all(), hold_all()) == ([older], []), "also if there is nothing to read"
    ask(1)
    assert hold_all() == []

    topic, anew = settings.cold_topic, f"so {settings.cold_topic} is read from its start"
    for damage in (
        lambda: spark.sql(f"RESTORE TABLE delta.`{tables.held}` TO VERSION AS OF 2"),
        lambda: shutil.rmtree(checkpoint / "offsets"),
        lambda: (checkpoint / "metadata").write_text(""),
    ):
        damage()
        ask(1)
        assert hold_all() == [f"hold: table and checkpoint do not fit together, {anew}"]
        assert hold_all() == []

    system.create_anew(topic, len(system.cluster.partitions(topic)))
    asked.clear()
    ask(60)  # more than before
    assert hold_all() == [f"hold: {topic} was made anew, {anew}"]
    assert hold_all() == []


def test_the_name_of_the_newest_batch_is_kept_in_kafka(system: System) -> None:
    system.create_own_topics()
    spark: Any = None
    logs = Logs(spark, system.settings)
    assert logs.noted_batch() == ""
    for name in ("first", "second"):
        logs.note_batch(name)
        assert Logs(spark, system.settings).noted_batch() == name
    newer = Logs(spark, system.settings)
    newer.take_over()
    with pytest.raises(NameTakenError):
        logs.note_batch("third")
    assert newer.noted_batch() == "second"


@pytest.mark.long
def test_cold_timers_fire_once_though_the_promoter_is_killed(
    spark: SparkSession, system: System, tmp_path: Path
) -> None:
    worker = system.worker().start().ready()
    target = system.target()
    headers: list[tuple[str, bytes | None]] = [("a", b"1"), ("a", None), ("timer-id", b"copied")]
    due_s = due_in(35)
    requests = [Request(target, due_s, f"key-{n}", b"value-%d" % n, headers) for n in range(COUNT)]
    hot = Request(target, due_in(2), "hot", b"hot")
    system.send(*requests, hot)
    said: list[str] = []
    tables = ColdTables(str(tmp_path / "cold"))
    wait_until(
        lambda: system.end(system.settings.cold_topic, committed=True) >= COUNT, "requests are on the cold topic"
    )
    assert hold.run(spark, system.settings, tables, said.append) >= 1
    assert hold.run(spark, system.settings, tables, said.append) == 0
    # As if it had been killed before Spark noted the end of the micro-batch: it repeats it.
    max(Path(tables.checkpoint, "commits").glob("[0-9]*"), key=lambda path: int(path.name)).unlink()
    hold.run(spark, system.settings, tables, said.append)
    held = spark.read.format("delta").load(tables.held)
    assert sorted(row.source for row in held.collect()) == sorted(request.source for request in requests)

    config = connection.librdkafka(system.settings)
    job = Promote(tables, lead_s=3600, rate_per_s=100_000)
    with pytest.raises(Exception, match="killed after the commit"):
        promote.run(spark, job, Dying(spark, system.settings), now_s, said.append)
    assert cold.unpromoted(spark, tables, due_s, F.lit(True)).count() == COUNT, "nothing was noted"
    assert promote.run(spark, job, Logs(spark, system.settings), now_s, said.append) == COUNT // 2
    assert any(line.startswith(f"promote: {COUNT // 2} had been written back") for line in said)
    # Whoever repeats copies, from wherever: they change nothing.
    repeat_all(spark, tables, config, system)

    fired = system.fired([*requests, hot])
    for request in requests:
        record = fired[request.source]
        assert (record.key, record.value) == (request.key.encode(), request.value)
        assert [each for each in record.headers if not each[0].startswith(h.PREFIX)] == headers[:2]
    assert promote.run(spark, job, Logs(spark, system.settings), now_s, said.append) == 0
    assert system.dead_letters().rest() == []
    worker.stop()


def repeat_all(spark: SparkSession, tables: ColdTables, config: dict[str, Any], system: System) -> None:
    port = KafkaPort(config, f"{system.app_id}-again")
    for batch in spark.read.format("delta").load(tables.held).toArrow().to_batches():
        port.write(list(copies_of(batch)))


@pytest.mark.long
def test_the_audit_accounts_for_what_is_cold(spark: SparkSession, system: System, tmp_path: Path) -> None:
    """By topics and tables; and still when retention has taken the requests from their topic."""
    worker = system.worker().start().ready()
    target, tables, cold_topic = system.target(), ColdTables(str(tmp_path / "cold")), system.settings.cold_topic

    def go_cold(count: int, so_far: int) -> None:
        system.send(*(Request(target, due_in(86_400), f"far-{so_far + n}") for n in range(count)))
        wait_until(lambda: system.end(cold_topic, committed=True) >= so_far + count, "requests are on the cold topic")

    system.send(*(Request(target, due_in(1)) for _ in range(5)))
    go_cold(10, so_far=0)
    hold.run(spark, system.settings, tables, print)
    job = Promote(tables, lead_s=2 * cold.DAY_S, chunk=4)
    logs = Logs(spark, system.settings)
    tables.create(spark)
    first = promote.promote_chunk(spark, job, logs, int(time.time()))
    assert first.promoted == 4 and first.left is not None
    promote.end(spark, job, first.left)  # as a promoter that is stopped
    go_cold(3, so_far=10)  # which nobody has held
    assert len(system.reader(target).take(5)) == 5
    worker.stop()

    def audited() -> tuple[dict[str, int], int | None]:
        moment = Moment(int(time.time() * 1000), 0)
        findings = audit.run(spark, audit.Audit(system.settings, Scope(), moment, cold=tables), print)
        assert findings.clean, list(report.lines(findings))
        assert sum(due.timers for due in findings.busiest) == 13
        return {status: count for status, count in findings.statuses.items() if count}, findings.from_cold

    assert audited() == ({"fired": 5, "pending": 4, "cold": 9}, 0)
    topic = system.request_topic
    system.cluster.delete_records(topic, system.cluster.ends(topic))
    assert audited() == ({"pending": 4, "cold": 9}, 13)


def test_an_interrupted_batch_is_looked_for_in_what_is_left_of_the_log(
    spark: SparkSession, system: System, tmp_path: Path
) -> None:
    """Retention took records while the promoter was down, and a topic has fewer partitions than it had."""
    system.create_own_topics()
    topic = system.request_topic
    config = connection.librdkafka(system.settings)
    port = KafkaPort(config, system.app_id)
    for number in range(3):
        port.write([Record(topic, 0, b"k", b"v", [(h.TIMER_PROMOTED, b"%s/0/%d" % (topic.encode(), number))])])
    system.cluster.delete_records(topic, {0: 2})  # each transaction has a marker
    logs = Logs(spark, system.settings)
    found = logs.copies_since({topic: {0: 0, 99: 5}, "nowhere": {0: 7}}).collect()
    assert sorted(row.source for row in found) == [f"{topic}/0/1", f"{topic}/0/2"]
    assert logs.deleted == 2
    assert logs.copies_since({"nowhere": {0: 7}}).collect() == []


def test_the_brokers_refuse_only_the_copy_that_is_too_large(system: System) -> None:
    small = system.target(1, max_message_bytes="2000")
    port, refused = KafkaPort(connection.librdkafka(system.settings), system.app_id), dict[str, str]()
    copies = [
        Record(small, 0, b"k", bytes(size), [(h.TIMER_PROMOTED, b"timer-request/0/%d" % number)])
        for number, size in enumerate((10, 10, 5000, 10))
    ]
    assert sum(promote._write(port, copies, refused)) == 3
    assert list(refused) == ["timer-request/0/2"]
    assert len(system.reader(small).take(3)) == 3


def test_a_second_promoter_ends_the_first(system: System) -> None:
    topic = system.target()
    config = connection.librdkafka(system.settings)
    first, copy = KafkaPort(config, system.app_id), Record(topic, 0, b"k", b"v", [])
    first.write([copy])
    second = KafkaPort(config, system.app_id)
    with pytest.raises(NameTakenError, match="another `timers spark promote` of the same TIMERS_APP_ID has begun"):
        first.write([copy])
    second.write([copy])
    assert len(system.reader(topic).take(2)) == 2


def test_a_promoter_whose_copy_is_refused_fences_no_newer_one(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """It opens the transactional id again after a refusal, and in each round."""
    system.create_own_topics()
    topic = system.target(1, max_message_bytes="2000")
    spark: Any = None
    first, second = (Logs(spark, system.settings) for _ in range(2))
    first.take_over()
    port, ports, send = first.port()(), list[KafkaPort](), TransactionalWriter._send

    def send_and_begin_the_second(writer: TransactionalWriter, records: Sequence[Record]) -> list[str]:
        try:
            return send(writer, records)
        finally:
            second.take_over()
            ports.append(second.port()())

    with monkeypatch.context() as patched, pytest.raises(NameTakenError):
        patched.setattr(TransactionalWriter, "_send", send_and_begin_the_second)
        port.write([Record(topic, 0, b"k", bytes(5000), [])])
    with pytest.raises(NameTakenError):
        first.port()()
    ports[0].write([Record(topic, 0, b"k", b"v", [])])
    assert len(system.reader(topic).take(1)) == 1
