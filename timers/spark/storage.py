"""Hadoop's view of a directory, and which directories executors on other machines reach."""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import SparkSession

from timers.errors import SettingsError

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:/")
"""How a URI begins: a file may have a colon in its name. ``file:///...`` says that the machines share this disk."""


def is_uri(directory: str) -> bool:
    """Whether a directory has a scheme. If not, it is a path."""
    return _SCHEME.match(directory) is not None


def on_storage(spark: SparkSession, directory: str) -> tuple[Any, Any]:
    """Hadoop's path of a directory, and its file system."""
    jvm: Any = spark.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path(directory)
    return path, path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())


def check_shared(spark: SparkSession, option: str, directory: str, *, always_local: bool = False) -> None:
    """Check that all executors reach a directory: each would write its files to a disk of its own.

    Args:
        option: its name in the message.
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
