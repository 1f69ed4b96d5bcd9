"""What `hold` does when its checkpoint and its table do not fit together: the numbers of micro-batches say it."""

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from timers.errors import NameTakenError
from timers.spark import jvm
from timers.spark.cold import HELD_SCHEMA, ColdTables
from timers.spark.jobs.hold import fit

pytestmark = pytest.mark.spark

OLDER = "hold: the checkpoint is older than the table: some requests are read once more"
ANEW = "hold: table and checkpoint do not fit together, so cold is read from its start"
ID = "0" * 32


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> ColdTables:
    made = ColdTables((tmp_path / "cold").as_uri())
    made.create(spark)
    return made


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "cold" / "held" / "_checkpoint"


def leave(checkpoint: Path, planned: int, ended: int, metadata: str) -> None:
    """A checkpoint with these numbers of its last planned and its last ended micro-batch; -1: there is none."""
    for name, last in (("offsets", planned), ("commits", ended)):
        (checkpoint / name).mkdir(parents=True)
        for number in range(last + 1):
            (checkpoint / name / str(number)).write_text("v1\n{}")
    (checkpoint / "metadata").write_text(metadata)


def commit(spark: SparkSession, tables: ColdTables, query: str, number: int) -> None:
    rows = spark.createDataFrame([], HELD_SCHEMA).write.format("delta").mode("append")
    rows.option("txnAppId", query).option("txnVersion", number).save(tables.held)


def fitted(spark: SparkSession, tables: ColdTables) -> list[str]:
    said = list[str]()
    fit(spark, tables, "cold", ID, said.append)
    return said


@pytest.mark.parametrize("metadata", ["whole", ""])
def test_a_checkpoint_is_kept_went_on_with_or_left(
    spark: SparkSession, tables: ColdTables, checkpoint: Path, metadata: str
) -> None:
    whole: list[tuple[int, int, int, list[str]]] = [
        (-1, -1, -1, []),
        (0, -1, -1, []),
        (2, 1, 1, []),
        (2, 1, 2, []),
        (2, 2, 2, []),
        (1, 1, 2, [OLDER]),
        (2, 2, 1, [ANEW]),
        (2, 1, 0, [ANEW]),
        (-1, -1, 1, [ANEW]),
    ]
    damaged: list[tuple[int, int, int, list[str]]] = [(number, -1, -1, [ANEW]) for number in (-1, 0, 1)]
    for planned, ended, in_table, says in whole if metadata else damaged:
        query = str(uuid4())
        leave(checkpoint, planned, ended, json.dumps({"id": query}) if metadata else "")
        if in_table >= 0:
            commit(spark, tables, query, in_table)
        assert fitted(spark, tables) == says, (planned, ended, in_table)
        assert checkpoint.exists() == (says != [ANEW])
        assert fitted(spark, tables) == [], "the second start has nothing to mend"
        shutil.rmtree(checkpoint, ignore_errors=True)


def test_a_checkpoint_that_cannot_be_opened_is_left_alone(
    spark: SparkSession, tables: ColdTables, checkpoint: Path, unopened: Callable[[], AbstractContextManager[None]]
) -> None:
    query = str(uuid4())
    leave(checkpoint, 1, 1, json.dumps({"id": query}))
    commit(spark, tables, query, 1)
    with unopened(), pytest.raises(Py4JJavaError, match="FileNotFoundException"):
        fitted(spark, tables)
    assert checkpoint.exists()
    assert fitted(spark, tables) == []


def test_the_checkpoint_of_a_hold_that_runs_is_left_alone(
    spark: SparkSession, tables: ColdTables, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It plans and commits a micro-batch between the two looks of another one."""
    query, look = str(uuid4()), jvm.last_in_table
    leave(checkpoint, 0, 0, json.dumps({"id": query}))
    commit(spark, tables, query, 0)

    def meanwhile(*asked: Any) -> int | None:
        (checkpoint / "offsets" / "1").write_text("v1\n{}")
        commit(spark, tables, query, 1)
        return look(*asked)

    monkeypatch.setattr(jvm, "last_in_table", meanwhile)
    with pytest.raises(NameTakenError, match=r"another `timers spark hold` uses the table '.*/held': this one ends"):
        fitted(spark, tables)
    assert json.loads((checkpoint / "metadata").read_text()) == {"id": query}


def test_a_platform_whose_delta_has_other_classes_is_not_compared(
    spark: SparkSession, tables: ColdTables, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look: Callable[..., int | None] = jvm.last_in_table
    elsewhere: Any = spark._jvm
    platform = SimpleNamespace(_jvm=elsewhere.nowhere, _jsparkSession=None)
    monkeypatch.setattr(jvm, "last_in_table", lambda _, *asked: look(platform, *asked))
    leave(checkpoint, 1, 1, json.dumps({"id": str(uuid4())}))
    why = "hold: the checkpoint is not compared with the table: this Delta does not say which micro-batches it has"
    assert fitted(spark, tables) == [why]
    assert checkpoint.exists()
    (checkpoint / "metadata").write_text("")
    assert fitted(spark, tables) == [why, ANEW], "Spark would end with an error"
    assert not checkpoint.exists()

    rows = tmp_path / "rows"
    spark.createDataFrame([], HELD_SCHEMA).write.parquet(str(rows))
    stream = spark.readStream.schema(HELD_SCHEMA).parquet(str(rows)).writeStream.format("delta")
    stream = stream.option("checkpointLocation", checkpoint.as_uri()).trigger(availableNow=True)
    stream.start(tables.held).awaitTermination()
    assert fitted(spark, tables) == [why]
    spark.sql(f"RESTORE TABLE delta.`{tables.held}` TO VERSION AS OF 0")
    assert fitted(spark, tables) == [why, ANEW], "each Delta shows a RESTORE"
