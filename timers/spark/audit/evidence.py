"""What was requested, beside what receivers saw: from topics, or from a table of their history."""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from timers.spark.audit import findings as figures
from timers.spark.audit import gaps, outcomes
from timers.spark.audit.findings import FAULTY
from timers.spark.audit.gaps import Unplaced
from timers.spark.audit.outcomes import UNASKED, Moment
from timers.spark.requests import TIMER
from timers.spark.storage import Kept


class Facts(NamedTuple):
    """What the topics of an engine have said."""

    requests: DataFrame
    """In the shape of :data:`timers.spark.requests.REQUEST_SCHEMA`, with the complete history of each id."""
    letters: DataFrame
    """As :func:`timers.spark.audit.outcomes.letters_of` returns them."""
    verdicts: DataFrame
    """As :func:`timers.spark.audit.outcomes.verdicts_of` returns them."""
    missed: DataFrame | None
    """As :func:`timers.spark.audit.chains.missed_of` returns them; None: no timer repeats."""


class RequestTopics(NamedTuple):
    """The topics of requests, by what their timers have."""

    without_ids: Collection[str]
    with_ids: Collection[str]
    schedules: Collection[str]
    retry: str
    """The internal topic of timers that are tried again."""


class Evidence:
    """Finds the outcome of each request.

    Args:
        is_in_scope: condition on requests of :data:`timers.spark.requests.REQUEST_SCHEMA`. Others are only read because
            they may close one in scope.
        is_audited: condition: the callback topic is audited.
    """

    def __init__(
        self, facts: Facts, topics: RequestTopics, is_in_scope: Column, is_audited: Column, moment: Moment, kept: Kept
    ) -> None:
        self._requests, self._topics, self._moment, self._kept = facts.requests, topics, moment, kept
        self._letters = kept.on_disk(facts.letters)
        self._plain = outcomes.without_ids(self._of_topics(topics.without_ids)).where(is_audited)
        self._with_ids = self._schedules = None
        if topics.with_ids:
            asked = self._of_topics(topics.with_ids)
            of = outcomes.with_ids(asked, facts.verdicts, self._letters, facts.missed)
            if facts.missed is not None:
                of = kept.on_disk(of)
            self._with_ids = of.where(is_audited & is_in_scope)
        if topics.schedules:
            of = outcomes.of_schedules(self._of_topics(topics.schedules))
            self._schedules = of.where(is_audited & is_in_scope)

    def _of_topics(self, topics: Collection[str]) -> DataFrame:
        return self._requests.where(F.col("topic").isin(list(topics)))

    def _named(self) -> list[DataFrame]:
        return [each for each in (self._with_ids, self._schedules) if each is not None]

    def versions(self) -> DataFrame:
        """The requests in scope, as :data:`timers.spark.audit.outcomes.VERSION_COLUMNS`."""
        return reduce(DataFrame.unionByName, self._named(), self._plain)

    def add_firings(self, firings: DataFrame, *, counted: bool = True) -> int:
        """Add what receivers saw (:data:`timers.spark.audit.outcomes.FIRING`), and return how many there are.

        Args:
            counted: False: their number is not needed, and 0 is returned if no timer has an id.
        """
        self._firings = firings = self._kept.on_disk(firings)
        if not counted and not self._named():
            return 0
        counts = firings.agg(F.count(F.lit(1)), F.count_if(outcomes.names_no_request())).first()
        assert counts is not None
        count, without_request = counts
        if without_request and self._named():
            if self._schedules is not None:
                firings = outcomes.without_compacted(firings, self._schedules)
            # A firing may name only its id, and several request topics may have versions of it: one join compares all.
            named = reduce(DataFrame.unionByName, self._named())
            self._firings = self._kept.on_disk(outcomes.with_requests(firings, named, self._letters))
        return int(count)

    def outcomes(self, waiting: DataFrame | None = None) -> DataFrame:
        """The outcome of each request, and the firings that belong to none: see
        :func:`timers.spark.audit.outcomes.outcomes`."""
        moved = outcomes.moved(self._of_topics([self._topics.retry]))
        return outcomes.outcomes(self.versions(), self._letters, moved, self._firings, self._moment, waiting)

    def also(self, requests: DataFrame) -> None:
        """Add requests that are not in scope, but that callbacks name."""
        new = requests.join(self._requests.select("request"), "request", "left_anti").select(requests.columns)
        self._requests = self._requests.unionByName(self._kept.on_disk(new))

    def unplaced_callbacks(self, found: DataFrame, log: gaps.Log) -> DataFrame:
        """The callbacks that belong to no request in scope, each with its ``reason``."""
        requests = self._requests.where(F.col("topic") != self._topics.retry)
        return self._kept.on_disk(gaps.unplaced_callbacks(found, requests, log))

    def offenders(self, found: DataFrame, callbacks: DataFrame | None) -> DataFrame:
        """Each fault of each timer, with the records that show it. Without ``callbacks``, each has a request."""
        faults = figures.offenders(found)
        if callbacks is not None:
            missing = callbacks.where(F.col("reason") == UNASKED).withColumnRenamed("reason", "fault")
            faults = faults.unionByName(missing.withColumn("verdict", F.lit(FAULTY)).drop("faults", "why"))
        return figures.with_positions(faults, self._firings)

    def not_judged(self, log: gaps.Log, *, has_retries: bool) -> list[Unplaced]:
        """The dead letters and retries that belong to no request.

        Args:
            has_retries: whether the retry topic has records; if not, all records need not be read to find its rows.
        """
        is_moved = (F.col("topic") == self._topics.retry) & (F.col("kind") == TIMER)
        moved = self._requests.where(is_moved).groupBy("request").agg(F.count(F.lit(1)).alias("records"))
        outputs = self._letters.select(F.lit(gaps.LETTERS).alias("what"), "request", F.col("letters").alias("records"))
        if has_retries:
            outputs = outputs.unionByName(moved.withColumn("what", F.lit(gaps.RETRIES)))
        if outputs.isEmpty():
            return []
        others = gaps.unplaced_others(outputs, self._requests.where(~is_moved), log)
        return gaps.count_unplaced(others.withColumn("example", F.col("request")))
