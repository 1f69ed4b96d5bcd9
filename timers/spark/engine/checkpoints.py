"""Where the checkpoint of a query is. Each number of buckets, and each format of the state, has a directory of its own.

A checkpoint is a cache of the request log: with another number of buckets the engine reads the log again.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pyspark.sql import SparkSession

from timers.errors import SettingsError
from timers.spark.engine.bucket import FORMAT
from timers.spark.jvm import on_storage
from timers.spark.storage import ENDED, PLANNED, check_shared, children, numbers

_NAME = re.compile(r"state-([0-9]+)-([0-9]+)")
"""Format of the state, and number of buckets."""

_OWNER = "owner-"
"""Begins the name of the empty file that says whose directory it is: a file that is complete when it exists."""


class Checkpoint(NamedTuple):
    """The checkpoint of a query."""

    path: str
    buckets: int
    is_new: bool
    """Whether the query reads the log from its start."""
    replaced: tuple[str, ...] = ()
    """Directories that are of no use once the log has proved to have all that they have."""


def claim(spark: SparkSession, directory: str, app_id: str, cluster_id: str) -> None:
    """Write into a directory whose checkpoints it has, so that no other app uses it.

    A start after ``kill -9`` finds its own file. If two apps claim a directory at once, both may be refused.

    Raises:
        SettingsError: it cannot have checkpoints of this engine, another app has claimed it, or this app of another
            Kafka cluster.
    """
    check_shared(spark, "--checkpoint", directory)
    if children(spark, directory).keys() & {PLANNED, ENDED}:
        raise SettingsError(f"--checkpoint {directory!r} has a checkpoint of another query: use another directory")
    own = f"{_OWNER}{app_id}@{cluster_id}"

    def others() -> list[str]:
        return sorted({name for name in children(spark, directory) if name.startswith(_OWNER)} - {own})

    mine, files = on_storage(spark, f"{directory.rstrip('/')}/{own}")
    is_new = not others() and files.createNewFile(mine)
    if found := others():
        if is_new:
            files.delete(mine, False)
        app, _, cluster = found[0].removeprefix(_OWNER).rpartition("@")
        raise SettingsError(
            f"--checkpoint {directory!r} is of TIMERS_APP_ID={app!r} on the Kafka cluster {cluster!r}, and this is "
            f"{app_id!r} on {cluster_id!r}: use another directory, or if that engine will never run again, delete "
            f"{found[0]!r} there"
        )


def choose_checkpoint(
    spark: SparkSession, directory: str, asked: int | None, default: int, *, anew: bool = False
) -> Checkpoint:
    """Choose the checkpoint of a query.

    Args:
        directory: that the user chose; :func:`claim` has claimed it.
        asked: number of buckets that the user chose; None: that of the checkpoint, or ``default``.
        default: number for a new checkpoint.
        anew: the existing checkpoint cannot be used.
    """
    listed = children(spark, directory)
    names = sorted(listed, key=lambda name: -listed[name].getModificationTime())
    found = {name: tuple(map(int, parts.groups())) for name in names if (parts := _NAME.fullmatch(name))}
    same_format = [buckets for version, buckets in found.values() if version == FORMAT]
    buckets = asked or (same_format[0] if same_format else default)
    chosen = f"state-{FORMAT}-{buckets}"
    root = directory.rstrip("/")
    # Without a planned micro-batch it has nothing, whatever Spark has noted about the starts of topics.
    is_new = anew or chosen not in found or not numbers(spark, f"{root}/{chosen}/{PLANNED}")
    replaced = tuple(f"{root}/{name}" for name in sorted(found) if is_new or name != chosen)
    return Checkpoint(f"{root}/{chosen}", buckets, is_new, replaced)


def delete(spark: SparkSession, directory: str) -> None:
    """Delete a checkpoint."""
    path, files = on_storage(spark, directory)
    files.delete(path, True)


def forget_planned(spark: SparkSession, checkpoint: str) -> None:
    """Let the query plan the micro-batch again that has not ended: it may be too large.

    A repeated micro-batch need not be the same one: what has fired is in the progress.
    """
    ended = numbers(spark, f"{checkpoint}/{ENDED}")
    for number in numbers(spark, f"{checkpoint}/{PLANNED}"):
        if number > max(ended, default=-1):
            delete(spark, f"{checkpoint}/{PLANNED}/{number}")
