"""Where the checkpoint of a query is. Each number of buckets, and each format of the state, has a directory of its own.

A checkpoint is a cache of the request log: with another number of buckets the engine reads the log again.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from timers.errors import SettingsError
from timers.spark.engine.bucket import FORMAT

_NAME = re.compile(r"state-([0-9]+)-([0-9]+)")
"""Format of the state, and number of buckets."""

_OF_SPARK = ("offsets", "commits")
"""Directories of a checkpoint of Spark."""


class Checkpoint(NamedTuple):
    """The checkpoint of a query."""

    path: str
    buckets: int
    is_new: bool


def choose_checkpoint(spark: SparkSession, directory: str, asked: int | None, default: int) -> Checkpoint:
    """Choose the checkpoint of a query, and delete those that are of no use any more.

    Args:
        directory: that the user chose.
        asked: number of buckets that the user chose; None: that of the checkpoint, or ``default``.
        default: number for a new checkpoint.

    Raises:
        SettingsError: the directory cannot hold a checkpoint of this query.
    """
    path, files = _on_storage(spark, directory)
    is_local_disk = files.getScheme() == "file" and not directory.startswith("file:")
    if is_local_disk and not (spark.sparkContext.master or "").startswith("local"):
        raise SettingsError(
            f"--checkpoint {directory!r} is a directory of one machine, and {spark.sparkContext.master!r} is a "
            "cluster: use storage that driver and executors reach (hdfs://..., s3a://..., file:///... of a shared disk)"
        )
    names = [each.getPath().getName() for each in files.listStatus(path)] if files.exists(path) else []
    if any(name in _OF_SPARK for name in names):
        raise SettingsError(
            f"--checkpoint {directory!r} has a checkpoint of another query, or of an engine that did not commit its "
            "progress to Kafka: use another directory (UPGRADING.md)"
        )
    found = {name: tuple(map(int, parts.groups())) for name in names if (parts := _NAME.fullmatch(name))}
    same_format = [buckets for version, buckets in found.values() if version == FORMAT]
    buckets = asked or (same_format[0] if same_format else default)
    chosen = f"state-{FORMAT}-{buckets}"
    for name in found.keys() - {chosen}:
        delete(spark, f"{directory}/{name}")
    return Checkpoint(f"{directory.rstrip('/')}/{chosen}", buckets, chosen not in found)


def delete(spark: SparkSession, directory: str) -> None:
    """Delete a checkpoint."""
    path, files = _on_storage(spark, directory)
    files.delete(path, True)


def _on_storage(spark: SparkSession, directory: str) -> tuple[Any, Any]:
    """Hadoop's path of a directory, and its file system."""
    jvm: Any = spark.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path(directory)
    return path, path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
