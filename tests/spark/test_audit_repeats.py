"""What became of timers that repeat: their chains, as records of the log, and the faults in them. No Kafka."""

from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.spark.audit_rows import LETTERS, MOMENT, MOVED, firings_of, said
from tests.spark.repeat_chains import FIRED, FOLLOWED, Became, ChainLog, broken_chains, whole_chains
from timers.core.levels import REPEATS
from timers.core.progress import FEATURE_LEVEL, Progress
from timers.core.timer import Headers
from timers.kafka.request_formats import enabled_formats
from timers.machines.firing.policy import NO_RULE
from timers.process.config.settings import Settings
from timers.spark import columns, requests
from timers.spark.audit import chains, outcomes
from timers.wire import headers as h
from timers.wire.dead_letter import REPEAT_LOST
from timers.wire.formats import LOG_APPEND_TIME

pytestmark = pytest.mark.spark

SETTINGS = Settings.load({"TIMERS_BROKERS": "127.0.0.1:1", "TIMERS_ID_TOPIC": "by-id"})
BEGIN = 1_699_999_200
"""A whole hour. The audit looks long after it."""
PLACE = "by-id", 0
END = (BEGIN + 86_400) * 1000


class RowLog(ChainLog):
    """Records as rows."""

    def __init__(self) -> None:
        super().__init__(PLACE, "orders", BEGIN, 60)
        self.records: list[tuple[Any, ...]] = []
        self.firings: list[dict[str, Any]] = []
        self.told: list[tuple[Any, ...]] = []

    def add(self, id: str, value: bytes | None, headers: Headers, at_s: int) -> int:
        offset = len(self.records)
        self.records.append((*PLACE, offset, at_s * 1000, LOG_APPEND_TIME, id.encode(), value, headers or None))
        return offset

    def tell(self, key: str, value: bytes, headers: list[h.Header]) -> None:
        self.told.append(("verdict", 0, len(self.told), END, LOG_APPEND_TIME, key.encode(), value, headers))

    def send(self, offset: int, id: str, due_s: int, at_s: int) -> None:
        self.firings.append(
            {
                "request": self.source(offset),
                "timer_id": id,
                "due_s": due_s,
                "callback_topic": self.target,
                "fired_ms": at_s * 1000 + 20,
                "append_ms": at_s * 1000 + 50,
                "position": f"orders/0/{len(self.firings)}",
                "content": None,
                "parts": None,
            }
        )


@pytest.mark.long
def test_each_chain_has_one_outcome_for_each_record(spark: SparkSession) -> None:
    log = RowLog()
    expected = whole_chains(log) | broken_chains(log)
    lost = log.define("lost", log.every).follow(log.first).fire(log.first)
    log.cancel("lost", log.first)  # by the engine, with a dead letter
    expected["lost"] = [("dead-lettered", []), FIRED]
    gone = log.define("gone", log.every).follow(log.first).fire(log.first)
    second = log.first + 1
    gone.follow(None, second, decided_s=second, due_s=second, is_last=True, rule=NO_RULE)  # as the engine ends it
    expected["gone"] = [("dead-lettered", []), FIRED, FOLLOWED]
    records = spark.createDataFrame(log.records, columns.RECORD).coalesce(1)
    at_level = {PLACE: Progress(0).with_setting(FEATURE_LEVEL, REPEATS)}
    asked = requests.decode(records, enabled_formats(SETTINGS), 10**6, SETTINGS.request_topic, at_level)
    asked = asked.withColumn("content", F.lit(None).cast("bigint")).localCheckpoint()
    told = spark.createDataFrame(log.told, columns.RECORD)
    ended = [(log.source(each.version), 1, REPEAT_LOST) for each in (lost, gone)]
    letters = spark.createDataFrame(ended, LETTERS)
    versions = outcomes.with_ids(asked, outcomes.verdicts(told), letters, chains.missed(told)).localCheckpoint()
    moved, firings = spark.createDataFrame([], MOVED), firings_of(spark, log.firings)
    moment = outcomes.Moment(END, MOMENT.grace_s)
    became = said(outcomes.outcomes(versions, letters, moved, firings, moment).localCheckpoint())
    found: dict[str, list[Became]] = {}
    for _, _, offset, _, _, key, value, _ in log.records:
        if value is not None:
            found.setdefault(key.decode(), []).append(became.pop(offset))
    assert found == expected
    assert not became
