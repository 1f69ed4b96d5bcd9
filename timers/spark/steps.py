"""A table that records the begin and the end of each step of a job, so that a restart finds the interrupted steps."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

BEGUN, DONE = "begun", "done"
"""Values of the column ``state``."""


def table_at(directory: str, name: str) -> str:
    """Location of a Delta table in a directory, which is a path or a URI.

    Delta treats ``file:/a`` and ``file:///a`` as two locations, and refuses to create a table at the second one.
    """
    return f"{directory.rstrip('/').replace('file:///', 'file:/', 1)}/{name}"


class Steps:
    """The steps of a job, in a Delta table with one row when a step begins and one when it is done.

    Args:
        schema: its columns: first the name of the step, then ``state``, then columns of the job.
    """

    def __init__(self, spark: SparkSession, path: str, schema: StructType) -> None:
        self._spark = spark
        self._path = path
        self._schema = schema

    def add(self, *row: Any) -> None:
        self._spark.createDataFrame([row], self._schema).write.format("delta").mode("append").save(self._path)

    def unfinished(self) -> list[Row]:
        """The first row of each step that began and is not done."""
        name = self._schema.names[0]
        steps = self._spark.read.format("delta").load(self._path)
        done = steps.where(F.col("state") == DONE).select(name)
        return steps.where(F.col("state") == BEGUN).join(done, name, "left_anti").select(self._schema.names).collect()
