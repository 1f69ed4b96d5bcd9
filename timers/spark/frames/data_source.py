"""``format("timers")``: rows of any DataFrame, batch or stream, become timers, and what is pending is a DataFrame.

Spark finds the source by the top-level package ``pyspark_timers``, without a registration. Spark makes the objects of
this module anew in processes of the driver, and pickles writers and readers for the tasks. So they hold the settings,
which only the driver reads.

Each request has an id and the condition ``absent``. So a task, a micro-batch or a whole job that runs again sets no
timer twice, and there is nothing to commit or to take back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType, VariantType

from timers.client.config import Connection
from timers.client.publish import Publisher
from timers.client.request import TimerRequest
from timers.core.operation import ABSENT
from timers.core.printable import quoted
from timers.errors import InvalidTimerError, SettingsError, TimersError
from timers.kafka.connection import ErrorReports
from timers.process.clock import Clock
from timers.process.config.declarations import SETTINGS
from timers.process.config.settings import Settings
from timers.process.counted import counted

if TYPE_CHECKING:
    import pyarrow as pa

    from timers.spark.frames.timer_columns import RowOptions, TimerColumns

logger = logging.getLogger(__name__)

NAME = "timers"

_ROW_OPTIONS = ("topic", "name", "zone", "past", "began")
_BROKERS = "brokers"
_SETTING = "TIMERS_"
_OF_SPARK = ("checkpointlocation", "queryname")
"""Options of Spark that it gives to each sink. Spark's names of options have no case."""


class TimersSource(DataSource):
    """The data source ``timers``."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """The columns that a read has."""
        from timers.spark.frames.pending_rows import PENDING_SCHEMA

        return PENDING_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        from timers.spark.frames.pending_rows import PENDING_SCHEMA

        settings, rest = _settings(self.options)
        if rest:
            raise SettingsError(f"option {quoted(min(rest))} has no effect on a read: leave it out")
        if schema != PENDING_SCHEMA:
            raise SettingsError("a read of timers has columns of its own: leave out schema(...)")
        return PendingTimers(settings)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _writer(self.options, schema, overwrite, is_stream=False)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        return _writer(self.options, schema, overwrite, is_stream=True)


def _settings(options: Mapping[str, str]) -> tuple[Settings, dict[str, str]]:
    """The settings that options name, on top of those of the driver's environment, and the other options."""
    given, rest = {}, {}
    known = {setting.env for setting in SETTINGS.values()}
    for name, value in options.items():
        setting = "TIMERS_BROKERS" if name == _BROKERS else name.upper()
        if setting.startswith(_SETTING):
            if setting not in known:
                nearest = get_close_matches(setting, known, n=1)
                meant = f"did you mean {nearest[0]}?" if nearest else "`timers settings` lists all settings"
                raise SettingsError(f"option {quoted(name)} is no setting: {meant}")
            if setting in given:
                raise SettingsError("the options brokers and TIMERS_BROKERS are one: leave one of them out")
            given[setting] = value
        elif name not in _OF_SPARK:
            rest[name] = value
    return Settings.load(given=given), rest


# ---- write ----------------------------------------------------------------------------------------------------------


def _writer(options: Mapping[str, str], schema: StructType, overwrite: bool, *, is_stream: bool) -> TimersWriter:
    """The writer of a query. All that needs no row is checked here, on the driver.

    Raises:
        SettingsError: an option, a column or the mode is wrong.
        TimersError: the brokers do not answer, or the topic of timers with ids does not exist.
    """
    from timers.spark.frames.timer_columns import RowOptions, TimerColumns

    settings, rest = _settings(options)
    for name in sorted(rest.keys() - {*_ROW_OPTIONS}):
        if name == "path":
            raise SettingsError("timers are not written to a path: write save(), or start(), without one")
        known = ", ".join((*_ROW_OPTIONS, _BROKERS, "TIMERS_..."))
        raise SettingsError(f"there is no option {quoted(name)}: the options are {known}")
    if overwrite:
        mode = 'outputMode("append")' if is_stream else 'mode("append")'
        raise SettingsError(f"timers cannot be overwritten: use {mode}")
    # A stream that starts again writes rows again that were set before, and may be past by now.
    texts: dict[str, Any] = {"past": "fire" if is_stream else "refuse", **rest}
    row_options = RowOptions(**texts)
    TimerColumns(_arrow_schema(schema), row_options)
    if is_stream:  # Spark makes a writer for each commit, too, which must not fail while no broker answers
        return TimersWriter(settings, row_options, row_options.began_ns())
    _check_topic(settings)
    return TimersWriter(settings, row_options, row_options.began_ns() or _now_ns())


def _check_topic(settings: Settings) -> None:
    """Check that the brokers answer, and that the topic of timers with ids exists.

    Raises:
        TimersError: they do not, or it does not.
    """
    publisher = Publisher(Connection.of(settings).for_ids(), thread="timers-spark")
    try:
        publisher.open()
    finally:
        publisher.close()


def _arrow_schema(schema: StructType) -> pa.Schema:
    """The schema of the batches that Spark will give.

    Raises:
        SettingsError: a column has a type that Python does not get.
    """
    import pyarrow as pa

    from timers.spark.columns import arrow_schema

    fields = []
    for field in schema.fields:
        kind = None
        if not isinstance(field.dataType, VariantType):  # which Python gets as two columns of bytes
            with suppress(Exception):  # PySpark's errors for types that Arrow does not have are of several classes
                kind = arrow_schema(StructType([field])).field(0).type
        if kind is None:
            shown = field.dataType.simpleString()
            raise SettingsError(f"column {quoted(field.name)} is of type {shown}: cast it, such as to string")
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


@dataclass
class Sent(WriterCommitMessage):
    """What a task has sent."""

    timers: int


_StreamWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter)
"""Spark 4.0 gives batches of Arrow to each writer that takes them."""


class TimersWriter(DataSourceArrowWriter, _StreamWriter):  # type: ignore[misc]
    """Writes batches and streams: the calls of Spark differ in the number of a micro-batch only.

    Args:
        now_ns: when the write began, from which delays count and before which a row is past, so that a task that runs
            again takes the same rows; None: when the task begins, as a stream has no begin.
    """

    def __init__(self, settings: Settings, options: RowOptions, now_ns: int | None) -> None:
        self._settings, self._options, self._now_ns = settings, options, now_ns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Send the rows of a task, and wait until the brokers have all of them.

        Raises:
            InvalidTimerError: a row is no timer. Those before it are sent.
            PublishError: the brokers did not take all.
        """
        publisher = _publisher(self._settings)
        now_ns = _now_ns() if self._now_ns is None else self._now_ns
        try:
            count = publisher.publish_many(self._requests(iterator, now_ns), ids=False, condition=ABSENT)
        except InvalidTimerError:
            raise
        except TimersError:
            _publisher.cache_clear()  # the producer of this publisher may be useless now
            raise
        assert isinstance(count, int)
        return Sent(count)

    def _requests(self, batches: Iterator[pa.RecordBatch], now_ns: int) -> Iterator[TimerRequest]:
        from timers.spark.frames.timer_columns import TimerColumns

        columns: TimerColumns | None = None
        before = 0
        for batch in batches:
            if columns is None:
                columns = TimerColumns(batch.schema, self._options)
            for index, row in enumerate(columns.rows(batch, now_ns)):
                if isinstance(row, InvalidTimerError):
                    sentence = f"row {before + index} of a task{_named(batch, index)}: {row}"
                    raise InvalidTimerError(f"{sentence} ({_again(now_ns)})") from None
                yield row.request
            before += len(batch)

    def commit(self, messages: Sequence[Any], batchId: int | None = None) -> None:
        """Do nothing: what a task has sent counts."""

    def abort(self, messages: Sequence[Any], batchId: int | None = None) -> None:
        """Say in the log what was sent. Spark calls it after failed tasks, and after a commit that failed."""
        sent = sum(each.timers for each in messages if each is not None)
        logger.warning(
            "the write has failed; %s and perhaps more were sent and count. Write the same rows again: an id that is "
            "there is not set twice%s",
            counted(sent, "timer"),
            "" if self._now_ns is None else f" ({_again(self._now_ns)})",
        )


@lru_cache(maxsize=1)
def _publisher(settings: Settings) -> Publisher:
    """The publisher of a process. Spark uses a process for many tasks, and a connection costs more than a small one."""
    return Publisher(Connection.of(settings).for_ids(), thread="timers-spark")


def _named(batch: pa.RecordBatch, index: int) -> str:
    """The id of a row, for a sentence. Spark writes it to its logs and its UI, and a key may name a person."""
    from timers.spark.frames.timer_columns import values_of

    if "id" not in batch.schema.names:
        return ""
    (id,) = values_of(batch.column("id").slice(index, 1))
    return "" if id is None or isinstance(id, InvalidTimerError) else f" (id {quoted(id):.100})"


def _again(now_ns: int) -> str:
    """How a write is repeated, of which rows may be past by then."""
    return f"the option began={now_ns // 10**9} judges by the time of this write when it is repeated"


def _now_ns() -> int:
    return int(Clock().now_s() * 10**9)


# ---- read -----------------------------------------------------------------------------------------------------------


class PendingTimers(DataSourceReader):
    """Reads what is pending, as of the newest commit of each partition."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def partitions(self) -> list[InputPartition]:
        """The partitions of the app: a task each."""
        from timers.kafka.topics import existing
        from timers.spark.frames.pending_rows import places

        reports = ErrorReports(self._settings)
        with reports.explained(f"what is pending of {self._settings.app_id!r} cannot be read"):
            cluster = existing(self._settings, reports)
        found = places(self._settings, cluster)
        if not found:
            raise TimersError(f"no topic of requests of {self._settings.app_id!r} exists: nothing can be read")
        return [_Place((cluster, tp)) for tp in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        from timers.spark.frames.pending_rows import read_places

        cluster, tp = partition.value
        yield from read_places(self._settings, cluster, [tp])


class _Place(InputPartition):
    """A partition, and the cluster it is in."""
