"""Chains of timers that repeat, whole and broken ones, as an engine would write them: for the tests of the audit."""

from __future__ import annotations

import time
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import Producer

from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S
from timers.core.levels import REPEATS_LEVEL
from timers.core.ports import Follower, NextOccurrence
from timers.core.progress import FEATURE_LEVEL, Progress
from timers.core.timer import Headers, Origin, Rejected
from timers.machines.firing.followers import NO_RULE
from timers.spark.audit.chains import CHAIN, ZONE
from timers.wire import dead_letter
from timers.wire import headers as h
from timers.wire import progress as progress_record
from timers.wire.dead_letter import REPEAT_LOST
from timers.wire.occurrences import encode_occurrences
from timers.wire.repeat import Repeat
from timers.wire.topics import source

STEP_S = 600
"""Between two occurrences. The definitions are appended in the first of these: the broker sets their times."""


class ChainLog:
    """What senders, an engine and receivers see of the timers of one partition, on a broker. The audit reads it as if a
    day had passed."""

    def __init__(self, system: System) -> None:
        self.settings = system.settings
        self.place = self.settings.id_topic, 0
        self.target = system.target(message_timestamp_type="CreateTime")
        self.begin_s = begin_s = int(time.time())
        self.every = b"every=%d; from=%d" % (STEP_S, begin_s)
        self.first, self.second, self.third, self.fourth = (begin_s + STEP_S * number for number in range(1, 5))
        self.far = begin_s + 10**6 * STEP_S
        self.far_rule = b"every=%d; from=%d" % (10**6 * STEP_S, begin_s)
        self._producer: Any = Producer({"bootstrap.servers": system.address, "acks": "all", "linger.ms": 0})
        self.offsets: dict[str, list[int]] = defaultdict(list)
        """Id -> offsets of its records that are no cancels."""
        at_level = Progress(0).with_setting(FEATURE_LEVEL, REPEATS_LEVEL)
        value = progress_record.encode(at_level, b"")
        self._write(self.settings.progress_topic, progress_record.encode_key(*self.place), value, [])

    def add(self, id: str, value: bytes | None, headers: Headers) -> int:
        """Write a request, or a cancel. Returns its offset."""
        offset = self._write(self.place[0], id.encode(), value, headers)
        if value is not None:
            self.offsets[id].append(offset)
        return offset

    def tell(self, key: str, value: bytes, headers: list[h.Header]) -> None:
        """Write to the topic of verdicts."""
        self._write(self.settings.verdict_topic, key.encode(), value, headers)

    def end_lost(self, chain: Chain) -> None:
        """Write the dead letter of a timer whose chain cannot go on."""
        rejected = Rejected(chain.version, REPEAT_LOST, "lost", chain.id.encode(), b"value", ())
        letter = dead_letter.encode(rejected, self.source(chain.version), 10_000)
        self._write(self.settings.dead_letter_topic, letter.key, letter.value, letter.headers)

    def send(self, offset: int, id: str, due_s: int, at_s: int) -> None:
        """Write the callback of an occurrence, by a tick of second ``at_s``."""
        own = h.identity(id.encode(), self.source(offset).encode())
        headers = [(h.TIMER_VERSION, b"by-id/0/0"), (h.TIMER_NOMINAL, b"0"), *own]
        tick_ms = at_s * 1000 + 20
        self._write(self.target, None, b"value", [*headers, *h.firing(due_s, b"%d" % tick_ms)], tick_ms)

    def _write(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers, time_ms: int = 0) -> int:
        """Write a record. Returns its offset."""
        places: list[int] = []

        def delivered(error: object, message: Any) -> None:
            assert error is None, error
            places.append(message.offset())

        self._producer.produce(topic, value, key, headers=[*headers], timestamp=time_ms, on_delivery=delivered)
        assert self._producer.flush(DEADLINE_S) == 0
        return places[0]

    def source(self, offset: int) -> str:
        return source(*self.place, offset)

    def until(self, second: int) -> bytes:
        """A rule that ends."""
        return self.every + b"; until=%d" % second

    def define(self, id: str, rule: bytes, verdict: str | None = "set", *more: h.Header) -> Chain:
        offset = self.add(id, b"value", [(h.TIMER_TOPIC, self.target.encode()), (h.TIMER_REPEAT, rule), *more])
        if verdict:
            self._answer(offset, id, verdict)
        return Chain(self, id, rule, offset)

    def cancel(self, id: str) -> None:
        self._answer(self.add(id, None, []), id, "cancelled")

    def tell_missed(self, chain: Chain, first_s: int, last_s: int, number: int) -> None:
        value = b'{"id": "%s", "missed": %d, "first": %d, "last": %d, "reason": "late"}'
        said = value % (chain.id.encode(), number, first_s, last_s)
        self.tell(chain.id, said, [(h.TIMER_VERSION, self.source(chain.version).encode())])

    def _answer(self, offset: int, id: str, verdict: str) -> None:
        said = b'{"id": "%s", "verdict": "%s", "due": null}' % (id.encode(), verdict.encode())
        self.tell(id, said, [(h.TIMER_SOURCE, self.source(offset).encode())])


class Chain:
    """A definition, and what follows it."""

    def __init__(self, log: ChainLog, id: str, rule: bytes, version: int) -> None:
        self.log, self.id, self.rule, self.version, self.latest = log, id, rule, version, version

    def follow(self, nominal_s: int | None, *, decided_s: int = 0, **more: Any) -> Chain:
        """Append an occurrence, or a waypoint."""
        due_s = more.get("due_s", self.log.first if nominal_s is None else nominal_s)
        row = (more.get("follows", self.latest), self.log.target, None, b"value", None, Origin(self.id, due_s, 0))
        rule, is_last = more.get("rule", self.rule), more.get("is_last", False)
        following = NextOccurrence(due_s, nominal_s, decided_s, None, rule, is_last)
        said = Follower(row, self.log.source(self.version).encode(), following)
        ((id, value, headers),) = encode_occurrences([said], lambda offset: "")
        self.latest = self.log.add(id.decode(), value, headers)
        return self

    def fire(self, due_s: int, at_s: int | None = None, offset: int | None = None) -> Chain:
        """Fire the latest occurrence."""
        self.log.send(self.latest if offset is None else offset, self.id, due_s, due_s if at_s is None else at_s)
        return self

    def end(self, nominal_s: int) -> Chain:
        """Append the last occurrence, and fire it."""
        return self.follow(nominal_s, is_last=True).fire(nominal_s)


Became = tuple[str, list[str]]
"""Status and faults of a record."""

FOLLOWED: Became = ("followed", [])
FIRED: Became = ("fired", [])
PENDING: Became = ("pending", [])


def whole_chains(log: ChainLog) -> dict[str, list[Became]]:
    """Id -> what becomes of its records, in their order: no faults."""
    first, second, third, fourth, far = log.first, log.second, log.third, log.fourth, log.far
    expected: dict[str, list[Became]] = {}
    log.define("lives", log.far_rule).follow(far)
    expected["lives"] = [FOLLOWED, PENDING]
    log.define("ends", log.until(second)).follow(first).fire(first).end(second)
    expected["ends"] = [FOLLOWED, FIRED, FIRED]
    log.define("cancelled", log.every).follow(first).fire(first).follow(second)
    log.cancel("cancelled")
    expected["cancelled"] = [FOLLOWED, FIRED, ("cancelled", [])]
    # The cancel was appended while the transaction of the firing was open: the follower does not count.
    overtaken = log.define("overtaken", log.every).follow(first).fire(first)
    log.cancel("overtaken")
    overtaken.follow(second)
    expected["overtaken"] = [FOLLOWED, FIRED, ("replaced", [])]
    # Catch-up: the newest of three, and none of three.
    latest = log.define("latest", log.until(fourth)).follow(first).fire(third, third + 1)
    log.tell_missed(latest, first, second, 2)
    latest.end(fourth)
    expected["latest"] = [FOLLOWED, FIRED, FIRED]
    none = log.define("none", log.until(fourth)).follow(first)
    log.tell_missed(none, first, third, 3)
    none.end(fourth)
    expected["none"] = [FOLLOWED, ("missed", []), FIRED]
    log.define("waits", log.until(first)).follow(None, decided_s=log.begin_s).end(first)
    expected["waits"] = [FOLLOWED, FOLLOWED, FIRED]
    log.define("set-again", log.far_rule).follow(far)
    log.define("set-again", log.far_rule, "unchanged")
    expected["set-again"] = [FOLLOWED, PENDING, ("unchanged", [])]
    # It comes from another app, which has sent what was due until then.
    begun = (h.TIMER_WAYPOINT, b"%d" % log.begin_s)
    moved = log.define("moved", log.until(fourth), "set", begun).follow(first).fire(first, second + 1)
    moved.follow(second).fire(second, second + 1).follow(third).fire(third).end(fourth)
    expected["moved"] = [FOLLOWED, FIRED, FIRED, FIRED, FIRED]
    # The verdict on the same request is not visible any more.
    silent = log.define("no-verdict", log.until(second)).follow(first)
    log.define("no-verdict", log.until(second), None)
    silent.fire(first).end(second)
    expected["no-verdict"] = [FOLLOWED, FIRED, ("undecided", []), FIRED]
    log.define("changed", log.every).follow(first)
    log.define("changed", log.far_rule, "replaced").follow(far)
    expected["changed"] = [FOLLOWED, ("replaced", []), FOLLOWED, PENDING]
    share_s = Repeat.of_header(spread := log.until(second) + b"; spread=%d" % (STEP_S - 1)).share_s(b"spread")
    late = log.define("spread", spread).follow(first, due_s=first + share_s).fire(first + share_s)
    late.follow(second, due_s=second + share_s, is_last=True).fire(second + share_s)
    expected["spread"] = [FOLLOWED, FIRED, FIRED]
    return expected


def broken_chains(log: ChainLog) -> dict[str, list[Became]]:
    """The same, with twenty faults: what is skipped, doubled, late, at the second of another zone, or not followed."""
    return _skipped(log) | _doubled(log) | _late(log) | _elsewhere(log) | _unfollowed(log)


BROKEN: Became = ("fired", [CHAIN])
BEGINS: Became = ("followed", [CHAIN])
"""It is followed, but not as the rule says."""

LOST: Became = ("lost", ["lost"])


def _skipped(log: ChainLog) -> dict[str, list[Became]]:
    """Seconds that are left out."""
    first, second, third, fourth = log.first, log.second, log.third, log.fourth
    expected: dict[str, list[Became]] = {}
    log.define("begins-late", log.until(second)).end(second)
    expected["begins-late"] = [BEGINS, FIRED]
    log.define("skips", log.until(third)).follow(first).fire(first).end(third)
    expected["skips"] = [FOLLOWED, BROKEN, FIRED]
    not_sent = log.define("not-sent", log.until(third)).follow(first).follow(second).fire(second)
    not_sent.end(third)
    expected["not-sent"] = [FOLLOWED, LOST, FIRED, FIRED]
    too_few = log.define("missed-too-few", log.until(fourth)).follow(first)
    log.tell_missed(too_few, first, first, 1)
    too_few.end(fourth)
    expected["missed-too-few"] = [FOLLOWED, LOST, FIRED]
    return expected


def _doubled(log: ChainLog) -> dict[str, list[Became]]:
    """Seconds that come twice, or although the timer was cancelled."""
    first, second, third = log.first, log.second, log.third
    expected: dict[str, list[Became]] = {}
    twice = log.define("twice", log.until(second)).follow(first).fire(first).fire(first)
    twice.end(second)
    expected["twice"] = [FOLLOWED, ("fired", ["duplicate"]), FIRED]
    doubled = log.define("followed-twice", log.until(second)).follow(first).fire(first).follow(second, is_last=True)
    doubled.fire(second).follow(second, follows=doubled.latest - 1, is_last=True)
    expected["followed-twice"] = [FOLLOWED, FIRED, FIRED, ("replaced", [CHAIN])]
    again = log.define("sent-again", log.until(second)).follow(first).fire(first).follow(first).fire(first)
    again.end(second)
    expected["sent-again"] = [FOLLOWED, BROKEN, FIRED, FIRED]
    too_many = log.define("missed-and-sent", log.until(third)).follow(first).fire(first)
    log.tell_missed(too_many, first, second, 2)
    too_many.end(second)
    expected["missed-and-sent"] = [FOLLOWED, BROKEN, FIRED]
    log.define("revoked", log.every).follow(first).fire(first).follow(second).fire(second)
    log.cancel("revoked")
    expected["revoked"] = [FOLLOWED, FIRED, ("fired", ["revoked"])]
    return expected


def _late(log: ChainLog) -> dict[str, list[Became]]:
    """What is due, or is sent, at another second."""
    first, second = log.first, log.second
    expected: dict[str, list[Became]] = {}
    delayed = log.define("due-late", log.until(second)).follow(first).fire(first)
    delayed.follow(second, due_s=second + 1, is_last=True).fire(second + 1)
    rejected: Became = LOST  # a worker cannot read it, and there is no dead letter
    expected["due-late"] = [FOLLOWED, BROKEN, rejected]
    log.define("no-share", log.until(first) + b"; spread=%d" % (STEP_S - 1)).end(first)
    expected["no-share"] = [LOST, rejected]
    early = log.define("early", log.until(second)).follow(first).fire(first).follow(second, is_last=True)
    early.fire(second, second - 1)
    expected["early"] = [FOLLOWED, FIRED, ("fired", ["early"])]
    off_beat = log.define("off-beat", log.until(second)).follow(first).fire(first)
    off_beat.follow(second - 1, is_last=True).fire(second - 1)
    expected["off-beat"] = [FOLLOWED, BROKEN, FIRED]
    return expected


def _elsewhere(log: ChainLog) -> dict[str, list[Became]]:
    """What is due at the second of another zone, or on a date that is left out: days later."""
    expected: dict[str, list[Became]] = {}
    rule = b"cron=0 9 * * *; zone=Europe/Paris; from=%d" % (log.begin_s + 10 * 86_400)
    nine_s = Repeat.of_header(rule).next_nominal(log.begin_s) or 0
    begins_elsewhere: Became = ("followed", [ZONE])
    log.define("utc", rule).follow(nine_s + 3600)
    log.define("half-hour", rule).follow(nine_s + 1800)
    date = f"{datetime.fromtimestamp(nine_s, UTC):%Y-%m-%d}".encode()
    log.define("left-out", rule + b"; except=" + date).follow(nine_s)
    expected |= {key: [begins_elsewhere, PENDING] for key in ("utc", "half-hour", "left-out")}
    return expected


def _unfollowed(log: ChainLog) -> dict[str, list[Became]]:
    """What is not followed, or not as the rule says; and what the engine has ended with a dead letter, twice."""
    first, second, far = log.first, log.second, log.far
    expected: dict[str, list[Became]] = {}
    log.define("never-begins", log.every)
    expected["never-begins"] = [LOST]
    log.define("not-followed", log.every).follow(first).fire(first)
    expected["not-followed"] = [FOLLOWED, BROKEN]
    log.define("waits-for-ever", log.every).follow(None, decided_s=log.begin_s)
    expected["waits-for-ever"] = [FOLLOWED, LOST]
    log.define("ends-early", log.every).end(first)
    expected["ends-early"] = [BEGINS, FIRED]
    log.define("outlives", log.until(first)).follow(first).fire(first).end(second)
    expected["outlives"] = [FOLLOWED, BROKEN, FIRED]
    changes = log.define("other-rule", log.every).follow(first).fire(first)
    changes.follow(far, rule=log.far_rule)
    expected["other-rule"] = [FOLLOWED, BROKEN, PENDING]
    cancelled = log.define("lost", log.every).follow(first).fire(first)
    log.cancel("lost")
    log.end_lost(cancelled)
    expected["lost"] = [("dead-lettered", []), FIRED]
    ended = log.define("gone", log.every).follow(first).fire(first)
    ended.follow(None, decided_s=first + 1, due_s=first + 1, is_last=True, rule=NO_RULE)
    log.end_lost(ended)
    expected["gone"] = [("dead-lettered", []), FIRED, FOLLOWED]
    return expected
