"""What became of timers that repeat: their chains, as records of the log, and the faults in them. No Kafka."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.spark.audit_rows import LETTERS, MOMENT, MOVED, VERDICTS, firings_of, said
from timers.core.levels import REPEATS
from timers.core.ports import Follower
from timers.core.progress import FEATURE_LEVEL, Progress
from timers.core.timer import Headers, Origin
from timers.kafka.request_formats import enabled_formats
from timers.process.config.settings import Settings
from timers.spark import columns, requests
from timers.spark.audit import chains, outcomes
from timers.spark.audit.chains import CHAIN, ZONE
from timers.wire import headers as h
from timers.wire.formats import LOG_APPEND_TIME, future_by_id
from timers.wire.topics import source

pytestmark = pytest.mark.spark

SETTINGS = Settings.load({"TIMERS_BROKERS": "127.0.0.1:1", "TIMERS_ID_TOPIC": "by-id"})
BEGIN = 1_699_999_200
"""A whole hour. The audit looks long after it."""
PLACE = "by-id", 0
END = (BEGIN + 86_400) * 1000


@dataclass
class Log:
    """A partition of requests by id, and what receivers and senders got."""

    records: list[tuple[Any, ...]] = field(default_factory=list)
    firings: list[dict[str, Any]] = field(default_factory=list)
    verdicts: list[tuple[str, str]] = field(default_factory=list)
    missed: list[tuple[Any, ...]] = field(default_factory=list)

    def add(self, at_s: int, id: str, value: bytes | None, headers: Headers) -> int:
        offset = len(self.records)
        self.records.append((*PLACE, offset, at_s * 1000, LOG_APPEND_TIME, id.encode(), value, headers or None))
        return offset

    def define(self, id: str, rule: bytes, at_s: int = BEGIN, verdict: str | None = "set") -> Chain:
        offset = self.add(at_s, id, b"value", [(h.TIMER_TOPIC, b"orders"), (h.TIMER_REPEAT, rule)])
        if verdict:
            self.verdicts.append((source(*PLACE, offset), verdict))
        return Chain(self, id, rule, offset, offset)

    def cancel(self, id: str, at_s: int, verdict: str = "cancelled") -> None:
        self.verdicts.append((source(*PLACE, self.add(at_s, id, None, [])), verdict))

    def tell_missed(self, chain: Chain, first_s: int, last_s: int, number: int) -> None:
        value = b'{"id": "%s", "missed": %d, "first": %d, "last": %d, "reason": "late"}'
        said = value % (chain.id.encode(), number, first_s, last_s)
        header = [(h.TIMER_VERSION, source(*PLACE, chain.version).encode())]
        self.missed.append(("verdict", 0, len(self.missed), END, LOG_APPEND_TIME, chain.id.encode(), said, header))


@dataclass
class Chain:
    log: Log
    id: str
    rule: bytes
    version: int
    latest: int

    def follow(self, nominal_s: int | None, at_s: int = BEGIN, *, decided_s: int = 0, **more: Any) -> Chain:
        """Append an occurrence, or a waypoint."""
        due_s = at_s + 60 if nominal_s is None else nominal_s
        row = (0, "orders", None, b"value", None, Origin(self.id, due_s, 0))
        rule, follows = more.get("rule", self.rule), more.get("follows", self.latest)
        version = source(*PLACE, self.version).encode()
        said = Follower(row, due_s, nominal_s, decided_s, None, rule, follows, version, more.get("is_last", False))
        id, value, headers = future_by_id.encode_occurrence(said, lambda offset: "")
        self.latest = self.log.add(at_s, id.decode(), value, headers)
        return self

    def fire(self, due_s: int, at_s: int | None = None, offset: int | None = None) -> Chain:
        """Fire the latest occurrence."""
        at_s = due_s if at_s is None else at_s
        self.log.firings.append(
            {
                "request": source(*PLACE, self.latest if offset is None else offset),
                "timer_id": self.id,
                "due_s": due_s,
                "callback_topic": "orders",
                "fired_ms": at_s * 1000 + 20,
                "append_ms": at_s * 1000 + 50,
                "position": f"orders/0/{len(self.log.firings)}",
                "content": None,
            }
        )
        return self


EVERY = b"every=60; from=%d" % BEGIN
FIRST, SECOND, THIRD, FOURTH = (BEGIN + 60 * number for number in range(1, 5))
FAR = BEGIN + 10**6 * 60


Became = tuple[str, list[str]]
FOLLOWED: Became = ("followed", [])
FIRED: Became = ("fired", [])
PENDING: Became = ("pending", [])
FAR_RULE = b"every=60000000; from=%d" % BEGIN


def whole_chains(log: Log) -> dict[str, list[Became]]:
    """Id -> what becomes of its records, in their order: no faults."""
    expected: dict[str, list[Became]] = {}
    log.define("lives", FAR_RULE).follow(FAR)
    expected["lives"] = [FOLLOWED, PENDING]
    ends = log.define("ends", b"every=60; from=%d; until=%d" % (BEGIN, SECOND))
    ends.follow(FIRST).fire(FIRST).follow(SECOND, is_last=True).fire(SECOND)
    expected["ends"] = [FOLLOWED, FIRED, FIRED]
    log.define("cancelled", EVERY).follow(FIRST).fire(FIRST).follow(SECOND)
    log.cancel("cancelled", FIRST + 1)
    expected["cancelled"] = [FOLLOWED, FIRED, ("cancelled", [])]
    # The cancel was appended while the transaction of the firing was open: the follower does not count.
    overtaken = log.define("overtaken", EVERY).follow(FIRST).fire(FIRST)
    log.cancel("overtaken", FIRST)
    overtaken.follow(SECOND)
    expected["overtaken"] = [FOLLOWED, FIRED, ("replaced", [])]
    # Catch-up: the newest of three, and none of three.
    latest = log.define("latest", EVERY).follow(FIRST).fire(THIRD, THIRD + 30)
    log.tell_missed(latest, FIRST, SECOND, 2)
    latest.follow(FOURTH, is_last=True).fire(FOURTH)
    expected["latest"] = [FOLLOWED, FIRED, FIRED]
    none = log.define("none", EVERY).follow(FIRST)
    log.tell_missed(none, FIRST, THIRD, 3)
    none.follow(FOURTH, is_last=True).fire(FOURTH)
    expected["none"] = [FOLLOWED, ("missed", []), FIRED]
    waits = log.define("waits", EVERY).follow(None, decided_s=BEGIN)
    waits.follow(FIRST, is_last=True).fire(FIRST)
    expected["waits"] = [FOLLOWED, FOLLOWED, FIRED]
    log.define("set-again", FAR_RULE).follow(FAR)
    log.define("set-again", FAR_RULE, at_s=FIRST, verdict="unchanged")
    expected["set-again"] = [FOLLOWED, PENDING, ("unchanged", [])]
    # The verdict on the same request is not visible any more.
    silent = log.define("no-verdict", EVERY).follow(FIRST)
    log.define("no-verdict", EVERY, at_s=BEGIN + 1, verdict=None)
    silent.fire(FIRST).follow(SECOND, is_last=True).fire(SECOND)
    expected["no-verdict"] = [FOLLOWED, FIRED, ("undecided", []), FIRED]
    log.define("changed", EVERY).follow(FIRST)
    log.define("changed", FAR_RULE, at_s=FIRST - 1, verdict="replaced").follow(FAR)
    expected["changed"] = [FOLLOWED, ("replaced", []), FOLLOWED, PENDING]
    return expected


def broken_chains(log: Log) -> dict[str, list[Became]]:
    """The same, with faults."""
    expected: dict[str, list[Became]] = {}
    log.define("never-begins", EVERY)
    expected["never-begins"] = [("lost", ["lost"])]
    log.define("begins-late", EVERY).follow(SECOND, is_last=True).fire(SECOND)
    expected["begins-late"] = [("followed", [CHAIN]), FIRED]
    log.define("revoked", EVERY).follow(FIRST).fire(FIRST).follow(SECOND).fire(SECOND)
    log.cancel("revoked", FIRST + 1)
    expected["revoked"] = [FOLLOWED, FIRED, ("fired", ["revoked"])]
    not_sent = log.define("not-sent", EVERY).follow(FIRST).follow(SECOND, FIRST).fire(SECOND)
    not_sent.follow(FAR, rule=FAR_RULE)
    expected["not-sent"] = [FOLLOWED, ("lost", ["lost"]), ("fired", [CHAIN]), PENDING]
    log.define("not-followed", EVERY).follow(FIRST).fire(FIRST)
    expected["not-followed"] = [FOLLOWED, ("fired", [CHAIN])]
    doubled = log.define("followed-twice", EVERY).follow(FIRST).fire(FIRST).follow(SECOND, FIRST).fire(SECOND)
    doubled.follow(SECOND, FIRST, follows=doubled.latest - 1)
    expected["followed-twice"] = [FOLLOWED, FIRED, ("fired", [CHAIN]), ("replaced", [CHAIN])]
    log.define("skips", EVERY).follow(FIRST).fire(FIRST).follow(THIRD, is_last=True).fire(THIRD)
    expected["skips"] = [FOLLOWED, ("fired", [CHAIN]), FIRED]
    twice = log.define("twice", EVERY).follow(FIRST).fire(FIRST).fire(FIRST)
    twice.follow(SECOND, is_last=True).fire(SECOND)
    expected["twice"] = [FOLLOWED, ("fired", ["duplicate"]), FIRED]
    too_few = log.define("missed-too-few", EVERY).follow(FIRST)
    log.tell_missed(too_few, FIRST, FIRST, 1)
    too_few.follow(FOURTH, is_last=True).fire(FOURTH)
    expected["missed-too-few"] = [FOLLOWED, ("lost", ["lost"]), FIRED]
    log.define("waits-for-ever", EVERY).follow(None, decided_s=BEGIN)
    expected["waits-for-ever"] = [FOLLOWED, ("lost", ["lost"])]
    nine_s = BEGIN + 33_600
    zoned = log.define("other-zone", b"cron=0 9 * * *; zone=Europe/Paris")
    zoned.follow(nine_s + 60, is_last=True).fire(nine_s + 60)
    expected["other-zone"] = [("followed", [ZONE]), FIRED]
    return expected


def test_each_chain_has_one_outcome_for_each_record(spark: SparkSession) -> None:
    log = Log()
    expected = whole_chains(log) | broken_chains(log)
    records = spark.createDataFrame(log.records, columns.RECORD).coalesce(1)
    at_level = {PLACE: Progress(0).with_setting(FEATURE_LEVEL, REPEATS)}
    asked = requests.decode(records, enabled_formats(SETTINGS), 10**6, SETTINGS.request_topic, at_level)
    asked = asked.withColumn("content", F.lit(None).cast("bigint")).localCheckpoint()
    told, letters = spark.createDataFrame(log.verdicts, VERDICTS), spark.createDataFrame([], LETTERS)
    missed = chains.missed(spark.createDataFrame(log.missed, columns.RECORD))
    versions = outcomes.with_ids(asked, told, letters, missed).localCheckpoint()
    moved, firings = spark.createDataFrame([], MOVED), firings_of(spark, log.firings)
    moment = outcomes.Moment(END, MOMENT.grace_s)
    became = said(outcomes.outcomes(versions, letters, moved, firings, moment).localCheckpoint())
    found: dict[str, list[Became]] = {}
    for _, _, offset, _, _, key, value, _ in log.records:
        if value is not None:
            found.setdefault(key.decode(), []).append(became.pop(offset))
    assert found == expected
    assert not became
