"""Names of requests in the history, if their topic was deleted and made anew: its records have the offsets of others.

After the second time, the request ``topic/0/5`` is ``topic@2/0/5``, and its topic is ``topic@2``: no topic of Kafka has
such a name. So an id has no versions of two logs, and a callback belongs to the request of its own time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

Anew: TypeAlias = Mapping[str, Sequence[int]]
"""Topic of requests -> when it was made anew, each time, in ms."""


def named(topic: str, times: int) -> str:
    """The name of a topic of requests after it was made anew some times."""
    return f"{topic}@{times}" if times else topic


def told_apart(rows: DataFrame, anew: Anew, *, is_asked: bool) -> DataFrame:
    """Rows of :data:`timers.spark.audit.history.EVENT` with these names in ``request`` and ``version``. A record names
    the log that there was when it was appended. Of its own topic this is the log that has the record, whatever its time
    is, which producers may set.

    Args:
        is_asked: they are records of topics of requests, which are named in ``topic``.
    """
    changed: dict[str, Column] = {
        name: _text(name, anew, is_asked) for name in ("request", "version") if name in rows.columns
    }
    if is_asked:
        changed["topic"] = reduce(
            lambda text, each: F.when(F.col("topic") == each, named(each, len(anew[each]))).otherwise(text),
            anew,
            F.col("topic"),
        )
    return rows.withColumns(changed) if anew else rows


def _text(column: str, anew: Anew, is_asked: bool) -> Column:
    text = F.col(column)
    place = F.expr(f"substring({column}, locate('/', {column}))")
    for topic, since_ms in anew.items():
        times = reduce(add, [(F.col("timestamp_ms") >= each).cast("int") for each in since_ms])
        if is_asked:
            times = F.when(F.col("topic") == topic, len(since_ms)).otherwise(times)
        is_later = (F.substring_index(column, "/", 1) == topic) & (times > 0)
        text = F.when(is_later, F.concat(F.lit(f"{topic}@"), times.cast("string"), place)).otherwise(text)
    return text
