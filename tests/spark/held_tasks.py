"""Tasks of Spark that wait, so that something else comes first. Workers of Spark import this module."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Event, Thread

import pyarrow as pa
from pyspark.sql import DataFrame

from tests.harness.waiting import wait_until


def forever(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    Event().wait()
    yield from batches


class Gate:
    """Holds the tasks of a DataFrame, and with them the commit, until it is open: another commit comes first."""

    def __init__(self, directory: Path) -> None:
        self._reached, self._open = directory / "reached", directory / "open"

    def holds(self, frame: DataFrame) -> DataFrame:
        return frame.mapInArrow(self._through, frame.schema)

    def _through(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self._reached.touch()
        wait_until(self._open.exists, "the other commit is done")
        yield from batches

    def then(self, change: Callable[[], object]) -> Thread:
        """Do a change while tasks are held, and let them go."""

        def run() -> None:
            wait_until(self._reached.exists, "a task is held")
            try:
                change()
            finally:
                self._open.touch()

        thread = Thread(target=run)
        thread.start()
        return thread
