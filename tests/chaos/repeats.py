"""Timers that repeat, among the others of a round: they are set before its storm, and each occurrence must come once.

What must come follows from the definitions alone, by :mod:`tests.simulation.repeat_rules`: each second that a rule
names is sent, or is in one record about missed occurrences, without a gap up to the end of the timer.
"""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import KafkaError, Message

from tests.harness.records import Headers, Publisher, Record
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S, wait_until
from tests.simulation.kit.faults import Violation
from tests.simulation.kit.log import SimRecord
from tests.simulation.repeat_log import Event, Version
from tests.simulation.repeat_rules import SimRule
from timers.wire import headers as h
from timers.wire import verdict

VALUE = b"payload " * 12
BYTES_A_SECOND = 200
"""That one timer writes to the brokers, about: a record and a callback each four seconds."""
CATCH_UPS = ("latest", "all", "none")
LINES = (("* * * * *", "Europe/Paris"), ("*/2 * * * *", "Australia/Lord_Howe"), ("1-59/3 * * * *", "America/New_York"))
ENDLESS = SimRule.of("every=1", 0).until_s
SETTLED_S = 8
"""What goes on has sent, or missed, all that was due so many seconds ago."""


def rule_of(number: int, storm_end_s: int, storm_s: int) -> str:
    """Returns the rule of a timer. One of ten has a cron line, one of four ends in the second half of the storm, one of
    eight is spread; each kind of catch-up is as frequent."""
    every_s = 2 + number % 6
    parts = [f"every={every_s}"]
    if number % 10 == 9:
        line, zone = LINES[number // 10 % len(LINES)]
        parts = [f"cron={line}; zone={zone}"]
    parts.append(f"catch-up={CATCH_UPS[number // 2 % 3]}")
    if number % 4 == 1:
        parts.append(f"until={storm_end_s - storm_s * (number % 17) // 34}")
    if number % 8 == 5:
        parts.append(f"spread={every_s - 1}")
    return "; ".join(parts)


class _Place(NamedTuple):
    """Where the broker has put a record."""

    partition: int
    offset: int
    append_ms: int


@dataclass
class Found:
    """What became of the timers of a round."""

    sent: int = 0
    missed: Counter[str] = field(default_factory=Counter)
    """Reason -> number of occurrences."""
    worst_lag_ms: int = 0
    worst_after_faults_ms: int = 0
    """The longest wait of an occurrence, from the end of the last fault or from its due second if that was later."""
    failures: list[str] = field(default_factory=list)

    def line(self) -> str:
        """For the report of a round."""
        missed = ", ".join(f"{number:,} {reason}" for reason, number in sorted(self.missed.items()))
        return (
            f"{self.sent:,} occurrences sent, missed: {missed or 'none'}; worst lag {self.worst_lag_ms:,} "
            f"ms; after the last fault {self.worst_after_faults_ms:,} ms; broken promises: {len(self.failures)}"
        )


class RepeatTraffic:
    """The timers that repeat of one round.

    Args:
        system: its topic of timers with ids exists.
        number: how many.
        partitions: of their callback topic.
        may_be_held: whether the callback topic may be paused.
    """

    def __init__(self, system: System, number: int, partitions: int, *, may_be_held: bool) -> None:
        self.target = system.target(partitions)
        self._system = system
        self._number = number
        self._may_be_held = may_be_held
        self._versions: dict[str, Version] = {}
        """Source of a definition -> what becomes of it."""
        self._ended_ms: dict[str, int] = {}
        """Source of a definition -> when its cancel was appended."""
        self._broken: set[str] = set()
        self._sources: Counter[str] = Counter()
        self._told = 0

    def set(self, storm_end_s: int, storm_s: int) -> None:
        """Set all, and wait for the acknowledgements."""
        rules = {b"repeats-%d" % number: rule_of(number, storm_end_s, storm_s) for number in range(self._number)}
        target = (h.TIMER_TOPIC, self.target.encode())
        places = self._send((id, VALUE, [target, (h.TIMER_REPEAT, rule.encode())]) for id, rule in rules.items())
        for id, rule in rules.items():
            partition, offset, append_ms = places[id]
            record = SimRecord(self._system.settings.id_topic, partition, offset, id, VALUE, (), append_ms, 0)
            self._versions[record.source] = Version(
                record, SimRule.of(rule, append_ms // 1000), covered_s=append_ms // 1000
            )

    def end(self, found: Found, faults_over_ms: int, deadline_s: float) -> None:
        """Wait until all that was due was sent or missed, cancel what goes on, and judge all.

        Args:
            found: is filled.
            faults_over_ms: epoch milliseconds at which the last fault was over.
            deadline_s: seconds from now within which all that was due must have been sent or missed.
        """
        fired = self._system.reader(self.target)
        verdicts = self._system.reader(self._system.settings.verdict_topic, append_time=False)

        def read() -> None:
            for record in fired.rest():
                self._take_callback(record, found, faults_over_ms)
            for record in verdicts.rest():
                self._take_verdict(record, found)

        def lost() -> list[str]:
            until_s = int(time.time()) - SETTLED_S
            read()
            self._judge(found)
            whole = (each for source, each in self._versions.items() if source not in self._broken)
            return [f"{failure}" for each in whole if (failure := _uncovered(each, until_s))]

        give_up = time.monotonic() + deadline_s
        while missing := lost():
            if time.monotonic() > give_up:
                found.failures += missing
                break
        going_on = {
            version.record.key: source
            for source, version in self._versions.items()
            if version.rule.until_s == ENDLESS and version.record.key is not None
        }
        for id, place in self._send((id, None, []) for id in going_on).items():
            self._ended_ms[going_on[id]] = place.append_ms
        verdicts_expected = self._number + len(going_on)

        def all_are_told() -> bool:
            read()
            return self._told >= verdicts_expected

        try:
            wait_until(all_are_told, "each definition and each cancel has a verdict", 2 * DEADLINE_S)
        except AssertionError as error:
            found.failures.append(f"{error}; {self._told} of {verdicts_expected}")
        read()
        self._judge(found, is_whole=True)
        found.failures += [
            f"{source} was sent {number} times" for source, number in self._sources.items() if number > 1
        ]

    def _judge(self, found: Found, *, is_whole: bool = False) -> None:
        """Check what was read since the last time.

        Args:
            found: gets the failures; a timer with one is not looked at again.
            is_whole: all was read. Else what stands behind a gap waits: two topics are not read in the same moment.
        """
        for source, version in self._versions.items():
            if source in self._broken:
                continue
            events = sorted(version.new)
            version.new.clear()
            try:
                while events and (is_whole or events[0].first_s <= (version.rule.next(version.covered_s) or 0)):
                    version.new.append(events.pop(0))
                    version.take(int(time.time()), self._may_be_held)
                version.new += events
            except Violation as failure:
                self._broken.add(source)
                found.failures.append(f"{failure}")

    def _send(self, requests: Iterable[tuple[bytes, bytes | None, Headers]]) -> dict[bytes, _Place]:
        """Write records with ids, and wait for the acknowledgements. Returns id -> where its record is."""
        places: dict[bytes, _Place] = {}
        publisher = Publisher(self._system.address, self._system.settings.id_topic)

        def appended(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            id, partition, offset = message.key(), message.partition(), message.offset()
            assert isinstance(id, bytes) and partition is not None and offset is not None
            places[id] = _Place(partition, offset, message.timestamp()[1])

        for number, (id, value, headers) in enumerate(requests):
            publisher.producer.produce(publisher.topic, value, id, on_delivery=appended, headers=[*headers])
            if not number % 10_000:
                publisher.flush()  # the client holds 100,000
        publisher.flush()
        return places

    def _take_callback(self, record: Record, found: Found, faults_over_ms: int) -> None:
        source, nominal_s = record.text(h.TIMER_VERSION), int(record.text(h.TIMER_NOMINAL))
        self._sources[record.text(h.TIMER_SOURCE)] += 1
        version = self._versions.get(source)
        if version is None:
            found.failures.append(f"a callback of {source}, which is no definition: {record}")
            return
        next_s = version.rule.next(nominal_s)
        said = {name: value for name, value in record.headers if name == h.TIMER_NEXT}
        expected = {} if next_s is None else {h.TIMER_NEXT: b"%d" % next_s}
        sent = record.timer_id.encode(), record.value, record.due_s, said
        if sent != (version.record.key, VALUE, nominal_s + version.share_s, expected):
            found.failures.append(f"{source} was sent as {record}, and {next_s} comes next")
        if record.lag_ms < 0:
            found.failures.append(f"{source} was sent {-record.lag_ms} ms early: {record}")
        if source in self._ended_ms and record.due_s * 1000 > self._ended_ms[source]:
            found.failures.append(f"{source} was sent for {record.due_s}, and was cancelled before")
        version.new.append(Event(nominal_s, nominal_s, 1, ""))
        found.sent += 1
        found.worst_lag_ms = max(found.worst_lag_ms, record.lag_ms)
        waited_ms = record.append_ms - max(record.due_s * 1000, faults_over_ms)
        found.worst_after_faults_ms = max(found.worst_after_faults_ms, waited_ms)

    def _take_verdict(self, record: Record, found: Found) -> None:
        missed = verdict.missed_of(record.value or b"", record.headers)
        if missed is None:
            self._told += 1
            return
        if (version := self._versions.get(record.text(h.TIMER_VERSION))) is not None:
            event = Event(missed["first"] or 0, missed["last"] or 0, missed["missed"], missed["reason"])
            version.new.append(event)
        found.missed[missed["reason"]] += missed["missed"] or 1


def _uncovered(version: Version, until_s: int) -> Violation | None:
    """Returns the failure if not all that was due by ``until_s`` was sent or missed."""
    try:
        version.check_covered(until_s)
    except Violation as failure:
        return failure
    return None
