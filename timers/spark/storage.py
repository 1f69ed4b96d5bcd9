"""What a job keeps on storage: DataFrames, and a table of its steps; which directories all executors reach; and commits
to tables that others change too."""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

from delta.exceptions import DeltaConcurrentModificationException
from delta.tables import DeltaTable
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from timers.errors import SettingsError
from timers.spark import jvm
from timers.spark.jvm import on_storage

logger = logging.getLogger(__name__)

T = TypeVar("T")

COMMIT_TRIES = 10
"""How often a commit to a table is tried, if other commits come between."""

_CONFLICT = re.compile(r"\[DELTA_(CONCURRENT_\w+|METADATA_CHANGED|PROTOCOL_CHANGED)\b")
"""Delta's names of conflicts, where one is the cause of another error, such as that of a stream."""

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:/")
"""How a URI begins: a file may have a colon in its name. ``file:///...`` says that the machines share this disk."""


def is_uri(directory: str) -> bool:
    """Whether a directory has a scheme. If not, it is a path."""
    return _SCHEME.match(directory) is not None


def check_shared(spark: SparkSession, option: str, directory: str, *, always_local: bool = False) -> None:
    """Check that all executors reach a directory: each would write its files to a disk of its own.

    Args:
        directory: as the user gave it.
        always_local: a path without a scheme is on the local disk, whatever Spark's default file system is.

    Raises:
        SettingsError: it is on the local disk, and the master is a cluster.
    """
    master = spark.sparkContext.master or ""
    if master.startswith("local") or is_uri(directory):
        return
    if always_local or on_storage(spark, directory)[1].getScheme() == "file":
        raise SettingsError(
            f"{option} is {directory!r}, on the disk of one machine, and {master!r} is a cluster: choose storage that "
            "driver and executors reach (hdfs://..., s3a://..., file:///... of a shared disk)"
        )


PLANNED_DIRECTORY = "offsets"
"""Spark's directory in a checkpoint, with a file for each planned micro-batch."""

ENDED_DIRECTORY = "commits"
"""The same for each micro-batch that has ended."""


def children(spark: SparkSession, directory: str) -> dict[str, Any]:
    """Name -> Hadoop's status of what is in a directory; empty if it does not exist."""
    path, files = on_storage(spark, directory)
    return {each.getPath().getName(): each for each in files.listStatus(path)} if files.exists(path) else {}


def numbers(spark: SparkSession, directory: str) -> list[int]:
    """The numbers of the micro-batches that a directory has files for."""
    return [int(name) for name in children(spark, directory) if name.isdecimal()]


BEGUN, DONE = "begun", "done"
"""Values of the column ``state``."""


def table_at(directory: str, name: str) -> str:
    """Location of a Delta table in a directory, which is a path or a URI.

    Delta treats ``file:/a`` and ``file:///a`` as two locations, and refuses to create a table at the second one.
    """
    return f"{directory.rstrip('/').replace('file:///', 'file:/', 1)}/{name}"


LAYOUT_PROPERTY = "timers.layout"
"""Property of a table of the jobs: the number of its layout, which a change raises that this version would spoil."""

KNOWN_LAYOUT = 1
"""The layout that this version writes. A table without the property has this one, too."""


def properties_of(spark: SparkSession, path: str) -> dict[str, str]:
    """The properties of a Delta table of the jobs.

    Raises:
        SettingsError: a newer version has made it.
    """
    (about,) = DeltaTable.forPath(spark, path).detail().select("properties").collect()
    properties: dict[str, str] = about.properties
    layout = properties.get(LAYOUT_PROPERTY, str(KNOWN_LAYOUT))
    if not layout.isdecimal() or int(layout) > KNOWN_LAYOUT:
        raise SettingsError(
            f"the table {path!r} has the layout {layout}, and this version of kafka-timers knows {KNOWN_LAYOUT}: run "
            "the version that has made the table, or a newer one"
        )
    return properties


def retried(action: Callable[[], T]) -> T:
    """Do what commits once, again if another commit to the table came between: nothing of it was committed then."""
    for tried in range(1, COMMIT_TRIES):
        try:
            return action()
        except jvm.ERRORS as error:
            if not is_conflict(error):
                raise
            logger.info("another program has changed the table, try %d: %s", tried + 1, str(error).partition("\n")[0])
            # A random pause: the other program would retry at the same moments.
            time.sleep(random.uniform(0.5, 1.0) * min(10.0, 0.2 * 2**tried))
    return action()


def is_conflict(error: Exception) -> bool:
    """Whether a commit to a Delta table failed because another one came first, such as an OPTIMIZE or ALTER TABLE."""
    return isinstance(error, DeltaConcurrentModificationException) or bool(_CONFLICT.search(str(error)))


class Steps:
    """The steps of a job, in a Delta table with one row when a step begins and one when it is done. Its columns: the
    name of the step, ``state``, and columns of the job."""

    def __init__(self, spark: SparkSession, path: str, schema: StructType) -> None:
        self._spark, self._path, self._schema = spark, path, schema

    def add(self, *row: Any) -> None:
        frame = self._spark.createDataFrame([row], self._schema)
        retried(lambda: frame.write.format("delta").mode("append").save(self._path))

    def unfinished(self) -> list[Row]:
        """The first row of each step that began and is not done."""
        name = self._schema.names[0]
        steps = self._spark.read.format("delta").load(self._path)
        done = steps.where(F.col("state") == DONE).select(name)
        return self.begun().join(done, name, "left_anti").select(self._schema.names).collect()

    def begun(self) -> DataFrame:
        """The first row of each step."""
        return self._spark.read.format("delta").load(self._path).where(F.col("state") == BEGUN)


class Kept(ExitStack):
    """Keeps DataFrames until its ``with`` block ends.

    Spark compares each later query of a session with the plan of each DataFrame that it keeps, and holds these plans in
    the driver's memory.
    """

    def on_disk(self, frame: DataFrame) -> DataFrame:
        """Keep a DataFrame on the executors' disks, once it is computed."""
        frame = frame.persist(StorageLevel.DISK_ONLY)
        self.callback(_forget, frame)
        return frame


class Cut(Kept):
    """Keeps DataFrames as rows without the plan that made them, until nothing refers to them any more.

    Spark looks through the whole plan of a DataFrame for each one that is made of it: after a dozen joins of tables
    with themselves this takes minutes. If an executor is lost, so are its rows, and the query fails: for steps that can
    be repeated.
    """

    def on_disk(self, frame: DataFrame) -> DataFrame:
        return frame.localCheckpoint(eager=False, storageLevel=StorageLevel.DISK_ONLY)


def _forget(frame: DataFrame) -> None:
    with suppress(*jvm.ERRORS, OSError):  # Java has died, which another call reports
        frame.unpersist()
