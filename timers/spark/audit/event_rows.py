"""Records of topics as rows of the history: :data:`timers.spark.audit.history.EVENT`."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from timers.spark.audit.history import COPY, REQUEST
from timers.spark.cold import day_of
from timers.spark.requests import COPY as _COPY


def request_rows(requests: DataFrame, *, keys: bool) -> DataFrame:
    """Decoded requests (:data:`timers.spark.requests.REQUEST_SCHEMA`) as rows of
    :data:`timers.spark.audit.history.EVENT`.

    Args:
        keys: keep the keys.
    """
    accepted_s = F.floor(F.col("timestamp_ms") / 1000)
    if not keys:
        requests = requests.drop("record_key", "callback_key")
    return requests.withColumns(
        {
            "event": F.when(F.col("kind") == _COPY, COPY).otherwise(REQUEST),
            # Of a copy, its version is the cold request.
            "request": F.when(F.col("kind") == _COPY, F.col("version")).otherwise(F.col("request")),
            "due_day": day_of(F.coalesce("due_s", accepted_s).cast("long")),
        }
    )


def rows(event: str, records: DataFrame) -> DataFrame:
    """Records of an output as rows of :data:`timers.spark.audit.history.EVENT`."""
    found = records.withColumn("event", F.lit(event))
    return found.withColumn("due_day", day_of(F.col("due_s"))) if "due_s" in records.columns else found
