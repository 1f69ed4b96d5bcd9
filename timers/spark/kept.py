"""DataFrames that a job keeps on disk, and that Spark forgets when the job ends."""

from __future__ import annotations

from contextlib import ExitStack, suppress

from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame


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


def _forget(frame: DataFrame) -> None:
    with suppress(PySparkException, Py4JError, OSError):  # Java has died, which another call reports
        frame.unpersist()
