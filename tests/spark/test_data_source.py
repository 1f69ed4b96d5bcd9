"""``format("timers")``: DataFrames, batch and stream, as timers, and what is pending as a DataFrame."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.harness.records import Record, Request
from tests.harness.system import System
from tests.harness.waiting import due_in, wait_until
from timers.spark.frames.data_source import TimersWriter
from timers.spark.frames.timer_columns import RowOptions
from timers.wire.formats import RequestRecord, future_by_id

pytestmark = pytest.mark.spark

DUE = 1_893_456_000
ROOT = Path(__file__).parents[2]


@pytest.fixture
def system(broker_address: str, tmp_path: Path) -> Iterator[System]:
    ids = f"frames-{tmp_path.parent.name}-{tmp_path.name}"
    system = System(broker_address, tmp_path, TIMERS_ID_TOPIC=ids, TIMERS_VERDICT_TOPIC=f"{ids}-verdicts")
    yield system
    system.close()


def write(rows: DataFrame, system: System, **options: str) -> None:
    rows.write.format("timers").options(**{**system.environment, **options}).mode("append").save()


def written(system: System) -> list[Record]:
    return system.reader(system.settings.id_topic).rest()


def timers(records: list[Record]) -> dict[str, tuple[Any, ...]]:
    """Id -> due second, topic, key, value and headers; each record has the condition."""
    found = {}
    for record in records:
        decoded = future_by_id.decode([RequestRecord(0, record.key, record.value, record.headers, 0)], 10_000)
        assert [*decoded.conditions.values()] == ["absent"], "a second request of an id must not count"
        [(due_s, [row])] = decoded.rows.items()
        found[(record.key or b"").decode()] = (due_s, *row[1:4], row[4] or [])
    return found


def test_a_frame_becomes_timers_and_the_same_frame_none(spark: SparkSession, system: System) -> None:
    system.create_own_topics()
    rows = spark.range(50).select(
        F.timestamp_seconds(F.lit(DUE) + F.col("id") - 0.5).alias("due"),
        F.lit("orders").alias("topic"),
        F.expr("unhex('ff00')").alias("key"),
        F.struct("id", F.lit("ä").alias("name")).alias("value"),
        F.create_map(F.lit("trace"), F.lit("x")).alias("headers"),
        F.concat(F.lit("order-"), "id").alias("id"),
    )
    write(rows, system)
    assert timers(written(system)) == {
        f"order-{n}": (DUE + n, "orders", b"\xff\x00", f'{{"id":{n},"name":"ä"}}'.encode(), [("trace", b"x")])
        for n in range(50)
    }
    plain = spark.createDataFrame([(float(DUE), "a"), (float(DUE), "a"), (float(DUE), "b")], "due double, value string")
    write(plain, system, name="plain", topic="orders")
    write(plain.select("value", F.col("due").cast("decimal(20,3)").alias("at")), system, name="plain", topic="orders")
    found = [each for each in written(system) if (each.key or b"").startswith(b"plain-")]
    assert (len(found), len(timers(found))) == (6, 2), "equal rows are one timer, in whatever types"


def test_what_is_wrong_is_said_before_a_row_is_sent(spark: SparkSession, system: System) -> None:
    good = spark.createDataFrame([(DUE, "orders", "a")], "due long, topic string, id string")
    with pytest.raises(PySparkException, match=r"topic .* does not exist"):
        write(good, system)
    system.create_own_topics()
    naive = good.withColumn("due", F.timestamp_seconds("due").cast("timestamp_ntz"))
    for rows, options, sentence in (
        (good.withColumnRenamed("topic", "Topic"), {}, "did you mean 'topic'"),
        (good.drop("id"), {}, "there is no column id"),
        (good.withColumn("due", F.current_date()), {}, "a date: the option zone"),
        (naive, {}, "a timestamp without a zone: the option zone"),
        (good.withColumn("value", F.parse_json(F.lit("1"))), {}, "column 'value' is of type variant: cast it"),
        (good, {"nmae": "x"}, "there is no option 'nmae'"),
        (good, {"past": "no"}, "is not one of refuse and fire"),
        (good, {"TIMERS_SESSION_TIMEOUT_S": "x"}, "TIMERS_SESSION_TIMEOUT_S='x' is not"),
    ):
        with pytest.raises(PySparkException, match=sentence):
            write(rows, system, **options)
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        good.write.format("timers").options(**system.environment).mode("overwrite").save()
    with pytest.raises(PySparkException, match="not written to a path"):
        good.write.format("timers").options(**system.environment).mode("append").save("somewhere")
    for rows, sentence in (
        (good.withColumn("due", F.lit(1_700_000_000)), "2023-11-14T22:13:20Z is in the past"),
        (good.withColumn("due", F.col("due") * 1000), "looks like milliseconds.*did you mean 1893456000"),
    ):
        with pytest.raises(PySparkException, match=sentence):
            write(rows, system)
    assert written(system) == []
    write(naive, system, zone="Europe/Berlin")
    write(good.withColumn("due", F.lit(1_700_000_000)).withColumn("id", F.lit("b")), system, past="fire")
    assert {id: timer[0] for id, timer in timers(written(system)).items()} == {"a": DUE - 3600, "b": 1_700_000_000}


def test_a_stream_becomes_timers_and_a_new_checkpoint_none(spark: SparkSession, system: System, tmp_path: Path) -> None:
    """A micro-batch that was sent, and not noted, runs again when its rows are past: it does not block the stream."""
    system.worker().start().ready()
    target, due_s = system.target(), due_in(30)
    rows = tmp_path / "rows"
    rows.mkdir()  # by Python: a job of Spark may take half of the seconds until the rows are due
    for part in range(3):
        lines = ({"due": due_s, "topic": target, "value": str(number)} for number in range(part, 200, 3))
        (rows / f"{part}.json").write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    def run(checkpoint: str, **more: str) -> None:
        stream = spark.readStream.schema("due INT, topic STRING, value STRING").option("maxFilesPerTrigger", "1")
        options = {**system.environment, "name": "stream", "checkpointLocation": str(tmp_path / checkpoint), **more}
        writer = stream.json(str(rows)).writeStream
        query = writer.format("timers").options(**options).trigger(availableNow=True).start()
        query.awaitTermination()

    run("first")
    run("first")
    assert len(written(system)) == 200
    system.wait_past(due_s)
    commits = sorted(each for each in (tmp_path / "first" / "commits").iterdir() if each.name.isdigit())
    for left in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        left.unlink(missing_ok=True)
    run("first")
    assert 200 < len(written(system)) < 400
    run("second")
    assert len(timers(written(system))) == 200
    with pytest.raises(PySparkException, match=r"row 0 of a task.* is in the past.*the option began="):
        run("third", past="refuse")
    fence_s = due_in(5)
    system.wait_past(fence_s)
    assert sorted(int(each.value) for each in system.reader(target).rest() if each.value) == [*range(200)]


def test_a_task_that_runs_again_sets_the_same_timers(system: System) -> None:
    system.create_own_topics()
    columns = {"due": [DUE] * 100, "topic": ["orders"] * 100, "key": [str(n) for n in range(100)]}
    batch = pa.RecordBatch.from_pydict(columns)
    writer = TimersWriter(system.settings, RowOptions(name="n"), 1_800_000_000 * 10**9)

    def batches(fails: bool) -> Iterator[pa.RecordBatch]:
        yield batch.slice(0, 60)
        if fails:
            raise ZeroDivisionError
        yield batch.slice(60)

    with pytest.raises(ZeroDivisionError):
        writer.write(batches(fails=True))
    assert len(written(system)) == 60
    assert writer.write(batches(fails=False)).timers == 100
    assert len(written(system)) == 160 and len(timers(written(system))) == 100


def test_what_is_pending_is_a_frame(spark: SparkSession, system: System) -> None:
    system.worker().start().ready()
    target, due_s = system.target(), due_in(7200)
    plain = system.send(*(Request(target, due_s + n, f"key-{n}") for n in range(5)))
    write(
        spark.range(20).select(
            F.lit(due_s).alias("due"), F.lit(target).alias("topic"), F.concat(F.lit("o-"), "id").alias("id")
        ),
        system,
    )
    pending = spark.read.format("timers").options(**system.environment).load().where(F.col("topic") == target)
    wait_until(lambda: pending.count() == 25, "all are accepted", 120)
    rows = pending.collect()
    assert {row.id for row in rows if row.id} == {f"o-{n}" for n in range(20)}
    assert {(row.due_s, bytes(row.key)) for row in rows if row.id is None} == {
        (due_s + n, b"key-%d" % n) for n in range(5)
    }
    assert {row.source for row in rows} >= {each.source for each in plain}
    assert all(row.due.timestamp() == row.due_s for row in rows)  # Spark gives it in the zone of this process
    with pytest.raises(PySparkException, match="option 'nmae' has no effect"):
        spark.read.format("timers").options(**system.environment, nmae="x").load().count()


def test_the_notebook_does_what_it_says(spark: SparkSession, system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**system.environment, "MPLBACKEND": "Agg"}.items():
        monkeypatch.setenv(name, value)
    system.worker().start().ready()
    cells = json.loads((ROOT / "examples" / "dataframes.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names: dict[str, Any] = {}
    for cell in code[:-2]:
        exec(cell, names)
    exec(code[-3], names)  # a second time, as its text says
    pending = spark.read.format("timers").options(**system.environment).load()
    wait_until(lambda: pending.count() == 100, "all are accepted", 120)
    for cell in code[-2:]:
        exec(cell, names)
    hours = names["hours"]
    assert hours["count"].sum() == 100 and set(hours["topic"]) == {"reminders"} and len(hours) == 5
    assert {row.due_s // 3600 % 24 for row in pending.select("due_s").distinct().collect()} <= {7, 8}
