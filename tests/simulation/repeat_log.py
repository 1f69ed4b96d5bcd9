"""The requests of one partition whose timers may repeat, and what follows from them alone.

Two oracles stand side by side. :class:`RepeatLog` folds the records in the order of their offsets, with the occurrences
that the engine appends: so it knows what the store must hold, and that each occurrence has one outcome and one
follower. :class:`Version` knows nothing of occurrences: it compares what was sent and missed with the seconds of the
rule, from the second of its definition to the record that ended it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import NamedTuple, TypeAlias

from tests.simulation.id_oracle import IdOracle, Request, Step
from tests.simulation.kit.faults import Violation
from tests.simulation.kit.log import SimRecord
from tests.simulation.machine_log import MachineLog
from tests.simulation.repeat_rules import NO_ZONES, SimRule
from timers.core.keys import OrderKey
from timers.core.mending import STANDS_S
from timers.core.operation import (
    ABSENT,
    ALREADY_FIRED,
    CANCELLED,
    CHANGED,
    EXISTS,
    REPLACED,
    SET,
    TOO_LATE,
    UNCHANGED,
    UNKNOWN,
    Entry,
    cancelled,
    defined,
    is_cancelled,
    repeated,
    repeating,
    request_of,
)
from timers.core.progress import Progress
from timers.core.timer import Decoded, TopicPartition
from timers.wire import headers as h
from timers.wire.verdict import VerdictMessage

ON_TIME_S, STALE_S, MOST_SENT = 10, 60, 100
"""What is late by so many seconds is sent in any case, or if only what is stale is left out; and how many at once."""


class Decision(NamedTuple):
    """When it was decided what became of an occurrence, as the committed progress says."""

    second: int
    """The second that fired, or that of ``fired_through`` when a late occurrence was accepted."""
    noisy_s: int | None
    """When the noisy hold began that has held the occurrence; None: none has."""
    is_owed: bool
    """Whether its record says that it is sent, however late."""


Zones: TypeAlias = tuple[Mapping[str, str], Mapping[str, str]]


class Event(NamedTuple):
    """What became of nominal seconds of a version: sent, or missed."""

    first_s: int
    last_s: int
    number: int
    reason: str
    """Why they were missed; empty: the only one was sent, or has a dead letter."""
    transaction: int = 0
    """Tells apart the transactions in which it was decided."""
    decision: Decision | None = None
    """None: it is not known."""
    asked: Zones = NO_ZONES, NO_ZONES
    """By which zone data the occurrence was found, and what came of it was decided."""

    def is_of_same_decision(self, other: Event) -> bool:
        """Whether both are of one occurrence."""
        return self.transaction == other.transaction


@dataclass(eq=False)
class Version:
    """A definition that counted, and what became of the seconds of its rule."""

    record: SimRecord
    rule: SimRule
    covered_s: int
    """All nominal seconds up to this one were sent or missed."""
    end: Step | None = None
    """The next record of a sender with the same id that counts."""
    new: list[Event] = field(default_factory=list)
    """What happened since the last check."""
    owed: set[int] = field(default_factory=set)
    """Nominal seconds that are to be sent, however late, because it was decided so."""
    is_known: bool = True
    """Whether all that is owed is known: not after a decision of which the second is not known."""
    judged: int = 0
    """Number of events that were compared with what was to be decided."""

    @property
    def append_s(self) -> int:
        return self.record.timestamp // 1000

    @property
    def share_s(self) -> int:
        return self.rule.share_s(self.record.key or b"")

    def take(self, newest_s: int, held: bool) -> None:
        """Check what happened since the last check: no second of the rule is left out, and none comes twice.

        Args:
            newest_s: the newest second of which a worker may know.
            held: whether the target was paused or noisy at some time.
        """
        skipped: Event | None = None
        for event in sorted(self.new, key=lambda each: each.first_s):
            if event.reason == "never":
                if self.rule.next(self.append_s) is not None or self.covered_s != self.append_s:
                    raise Violation(f"{self.record.source} is said to have no occurrence, by {self.rule}")
                continue
            if skipped is not None and not skipped.is_of_same_decision(event):
                skipped = None
            rule = self.rule.by(event.asked[0] if skipped is None else event.asked[1])
            expected = rule.next(self.covered_s)
            if expected != event.first_s:
                what = "twice or early" if event.first_s <= self.covered_s else "skipped"
                raise Violation(f"{self.record.source} has {event}, and {expected} comes next: {what}, by {rule}")
            later = self.rule.by(event.asked[1]).after(event.first_s)
            number = 1 + sum(1 for _ in takewhile(event.last_s.__ge__, later))
            if number != event.number:
                raise Violation(f"{self.record.source} has {event}, in which there are {number} occurrences")
            if event.reason:
                self._check_missed(event, newest_s, held)
            self._check_decision(event, event.first_s if skipped is None else skipped.first_s)
            skipped = event if event.reason else None
            self.covered_s = event.last_s
        self.new.clear()

    def _check_decision(self, event: Event, first_s: int) -> None:
        """Check that what was to be sent is sent, and nothing else.

        Args:
            first_s: nominal second of the occurrence that was decided about.
        """
        is_missed = bool(event.reason)
        if is_missed and event.reason != "held" and (left := [n for n in self.owed if n <= event.last_s]):
            raise Violation(f"{self.record.source} has {event}, and {min(left)} was to be sent")
        was_owed = event.last_s in self.owed
        self.owed = {each for each in self.owed if each > event.last_s}
        if event.decision is None:
            self.is_known = False
            return
        if was_owed or (event.decision.is_owed and not self.is_known):
            return
        self.is_known = True
        rule = self.rule.by(event.asked[1])
        due = [first_s, *takewhile((event.decision.second - self.share_s).__ge__, rule.after(first_s))]
        wanted = self._wanted(due, event.decision)
        self.judged += 1
        is_right = event.last_s not in wanted if is_missed else wanted[:1] == [event.first_s]
        if not is_right or (is_missed and not wanted and event.last_s != due[-1]):
            raise Violation(f"{self.record.source} has {event}, and {wanted} were to be sent, by {rule}")
        self.owed = self.owed if is_missed else set(wanted[1:])

    def _wanted(self, due: list[int], decision: Decision) -> list[int]:
        """Returns which nominal seconds are sent, of an occurrence and those after it that are due."""
        through_s = decision.second - self.share_s
        if through_s <= due[0]:
            return due[:1]
        if self.rule.catch_up == "all":
            return due[-MOST_SENT:]
        limit_s = STALE_S if self.rule.catch_up == "none" else ON_TIME_S
        # A noisy hold makes nothing late; a downtime before it does.
        late_at_s = through_s if decision.noisy_s is None else min(through_s, decision.noisy_s - self.share_s)
        in_time = [each for each in due if late_at_s - each <= limit_s]
        return (in_time or (due[-1:] if self.rule.catch_up == "latest" else []))[-MOST_SENT:]

    def _check_missed(self, event: Event, newest_s: int, held: bool) -> None:
        """Check that a second was missed for a reason that the docs give."""
        late_s = newest_s - event.last_s - self.share_s
        rule = {"superseded": ("latest", 10), "late": ("none", 60), "over-cap": ("", 100), "held": ("", 10)}
        if event.reason not in rule:
            raise Violation(f"{self.record.source} has {event}, for no reason of the docs")
        kind, least_s = rule[event.reason]
        if (kind and self.rule.catch_up != kind) or late_s <= (least_s if event.reason != "over-cap" else 0):
            raise Violation(f"{self.record.source} has {event}, late by {late_s} s only, with {self.rule}")
        if event.reason == "held" and not held:
            raise Violation(f"{self.record.source} has {event}, and its target was not held")

    def check_covered(self, until_s: int) -> None:
        """Check that all occurrences due by ``until_s`` were sent or missed, if none has ended it."""
        following = self.rule.next(self.covered_s)
        if self.end is None and following is not None and following + self.share_s <= until_s:
            raise Violation(f"lost: {self.record.source} at {following}, after {self.covered_s}, by {self.rule}")


class _Read(NamedTuple):
    """A record as a machine at some feature level reads it."""

    level: int
    decoded: Decoded
    request: Request
    """Its row is None if it is rejected, or no timer of its own."""


@dataclass
class RepeatLog(MachineLog):
    """The records of one partition. ``requests`` of the base class stays empty."""

    place: TopicPartition = ("", 0)
    decode: Callable[[SimRecord, int], Decoded] = lambda record, level: Decoded()
    records: dict[int, SimRecord] = field(default_factory=dict)
    versions: dict[int, Version] = field(default_factory=dict)
    """Offset of a definition that counted at some time -> what became of it."""
    followers: dict[int, list[int]] = field(default_factory=dict)
    """Offset of a record -> offsets of the occurrences that name it."""
    occurrences: dict[tuple[bytes, int], int] = field(default_factory=dict)
    """Version and nominal second -> offset of the newest occurrence for it."""
    is_new: bool = False
    """Whether a record was added since the last whole fold: it may have ended what was there, or be an occurrence of
    what had ended before."""
    _read: dict[int, _Read] = field(default_factory=dict)
    _timers: tuple[object, list[tuple[int, Request]]] = field(default=((), []))

    def read(self, record: SimRecord) -> _Read:
        """Returns a record as it is read at the level of its offset."""
        level, known = self.level_at(record.offset), self._read.get(record.offset)
        if known is None or known.level != level:
            decoded = self.decode(record, level)
            key, row = None, None
            for due_s, rows in decoded.rows.items():
                key, row = (due_s, record.offset), rows[0]
            timer_id = (record.key or b"").decode(errors="replace") if row is not None else record.source
            known = _Read(level, decoded, Request(record, key, row, record.source, -1, timer_id))
            self._read[record.offset] = known
        return known

    def add(self, record: SimRecord) -> Request:
        """Add a visible record."""
        self.changed = True
        self.records[record.offset] = record
        if (follows := h.number(h.last(record.headers, h.TIMER_FOLLOWS))) is not None:
            self.followers.setdefault(follows, []).append(record.offset)
            version, nominal_s = (h.last(record.headers, name) for name in (h.TIMER_VERSION, h.TIMER_NOMINAL))
            self.occurrences[version or b"", h.number(nominal_s) or 0] = record.offset
        self.is_new = True
        return self.read(record).request

    def followers_of(self, offset: int) -> int:
        """Returns how many occurrences follow a record. One that is not readable for a minute is appended again: it
        may stand behind the open transaction of another producer. The first one counts."""
        times = [self.records[each].timestamp // 1000 for each in self.followers.get(offset, ())]
        return len(times) - sum(not 0 <= later - former < STANDS_S for former, later in pairwise(times))

    def version_at(self, offset: int) -> Version:
        """Returns the definition at an offset."""
        if offset not in self.versions:
            self.oracle.fold(self.progress)
        if offset not in self.versions:
            raise Violation(f"{self.place} at {offset} is no definition that counts, and has occurrences")
        return self.versions[offset]

    @property
    def oracle(self) -> RepeatOracle:
        assert isinstance(self.id_oracle, RepeatOracle)
        return self.id_oracle

    def timers(self) -> list[tuple[int, Request]]:
        if self.is_new:
            self.oracle.fold(self.progress)
        known = len(self.records), self.progress.settings
        if self._timers[0] != known:
            found = ((offset, self.read(record)) for offset, record in sorted(self.records.items()))
            self._timers = known, [(offset, each.request) for offset, each in found if each.request.row is not None]
        return self._timers[1]

    def pending(self, progress: Progress, next_offset: int) -> list[OrderKey]:
        current = self.oracle.fold(self.progress, next_offset)
        requests = [self.read(self.records[each.offset]).request for each in current.values() if each.offset >= 0]
        return sorted(each.key for each in requests if each.key is not None and not each.has_fired(progress))

    def entries(self, applied: int) -> dict[bytes, Entry | None]:
        return {id: each.entry for id, each in self.oracle.fold(self.progress, applied).items()}


class State(NamedTuple):
    """The latest record of an id that counts."""

    entry: Entry
    offset: int
    """Of its row, if it has one; -1: it was cancelled."""
    version: int | None
    """Offset of the definition of a timer that repeats."""


class RepeatOracle(IdOracle):
    """Folds the records of a :class:`RepeatLog`, and checks their verdicts."""

    log: RepeatLog

    def __init__(self, log: RepeatLog) -> None:
        super().__init__(log.cold.first_copy, log.cold.is_cold, has_conditions=True)
        self.log = log
        self.verdicts: dict[int, VerdictMessage] = {}
        self.allowed: dict[int, list[tuple[str, int | None] | None]] = {}
        self.versions: list[Version] = []
        """Those that count, by the last whole fold."""
        self._folded_for: tuple[Progress | None, int] = None, 0
        self._folded: dict[int, dict[bytes, State]] = {}

    def commit(self, before: Progress, after: Progress, log_start: int) -> None:
        left = {each for each in before.late_changes if each >= log_start} - set(after.late_changes)
        if left:
            raise Violation(f"the log has the late changes {left}, and the progress has forgotten them")
        self._progress = after

    def judge(self, progress: Progress, accepted: range = range(0)) -> None:
        self._progress = progress

    def fold(self, progress: Progress, below: int = 2**62) -> dict[bytes, State]:
        """Returns id -> state after the records below an offset.

        It notes which requests are ended by which record, and which are refused, if ``below`` is not given.
        """
        if self._folded_for[0] is not progress or self._folded_for[1] != len(self.log.records):
            self._folded_for = progress, len(self.log.records)
            self._folded.clear()
        if below not in self._folded:
            self._folded[below] = self._fold(progress, below)
        return self._folded[below]

    def _fold(self, progress: Progress, below: int) -> dict[bytes, State]:
        self._progress = progress
        is_whole, log, time_s = below == 2**62, self.log, 0
        if is_whole:
            self.versions.clear()
            log.is_new = False
        states: dict[bytes, State] = {}
        lives: dict[bytes, list[Request | Version]] = {}
        """Id -> what the next record of a sender ends."""
        for offset, record in sorted(log.records.items()):
            if offset >= below:
                break
            _, decoded, request = log.read(record)
            if not decoded.operations:
                continue
            ((id, _, due_s, append_s),) = decoded.operations
            time_s = max(time_s, append_s)
            known = states.get(id)
            if is_whole:
                request.end, request.refused = None, False
            if (follows := decoded.follows.get(offset)) is not None:
                chain = repeating(None if known is None else known.entry)
                if chain is None or known is None or (chain[1], known.version) != (follows.offset, follows.version):
                    request.refused = request.refused or is_whole
                    continue
                assert due_s is not None
                entry = repeated(due_s, offset, append_s, chain, is_last=follows.is_last)
                states[id] = State(entry, offset, known.version)
                lives[id].append(request)
                continue
            former = known if known is not None and not self._is_over(known.entry, time_s) else None
            refusal = self._refused(record, decoded, former, append_s, progress)
            if is_whole:
                self.allowed[offset] = self._verdicts(refusal, decoded, known, former, due_s)
            if refusal is not None:
                request.refused = is_whole or request.refused
                continue
            if is_whole:
                end = Step((id, offset, None, 0), record.source, None)
                for each in lives.pop(id, ()):
                    each.end = end
            if (definition := decoded.definitions.get(offset)) is not None:
                states[id] = State(defined(offset, append_s, definition.digest), offset, offset)
                lives[id] = []
                if is_whole:
                    lives[id] = [self._version_at(record)]
            elif due_s is not None:
                states[id] = State((due_s, offset, append_s), offset, None)
                lives[id] = [request]
            elif former is None:
                states.pop(id, None)
            elif not is_cancelled(former.entry):
                states[id] = State(cancelled(offset, time_s), -1, None)
        return states

    def _version_at(self, record: SimRecord) -> Version:
        known = self.log.versions.get(record.offset)
        if known is None:
            append_s = record.timestamp // 1000
            rule = SimRule.of((h.last(record.headers, h.TIMER_REPEAT) or b"").decode(), append_s)
            known = self.log.versions[record.offset] = Version(record, rule, append_s)
        known.end = None
        self.versions.append(known)
        return known

    def _is_over(self, entry: Entry, time_s: int) -> bool:
        return repeating(entry) is None and self.is_past(entry, time_s)

    def _refused(
        self, record: SimRecord, decoded: Decoded, former: State | None, append_s: int, progress: Progress
    ) -> str | None:
        """Returns why a record of a sender changes nothing; None: it counts."""
        condition, refusal = h.last(record.headers, h.TIMER_IF), None
        entry = None if former is None else former.entry
        if condition is not None and condition.decode() == ABSENT:
            refusal = None if former is None else EXISTS
        elif condition is not None:
            place, partition = self.log.place
            if entry is None or condition.decode() != f"{place}/{partition}/{request_of(entry)}":
                refusal = CHANGED
            elif repeating(entry) is None and not is_cancelled(entry) and entry[0] <= append_s:
                refusal = TOO_LATE
        if record.offset in decoded.definitions and former is not None and former.version is not None:
            asked = self.log.records[former.version]
            holes = any(former.version < hole.before_offset <= record.offset for hole in progress.holes)
            has_ended = repeating(former.entry) is None and append_s >= former.entry[0]
            if not holes and not has_ended and _asks(asked) == _asks(record):
                refusal = UNCHANGED
        if refusal is None and condition is not None and record.offset in progress.late_changes:
            refusal = TOO_LATE
        return refusal

    def _verdicts(
        self, refusal: str | None, decoded: Decoded, known: State | None, former: State | None, due_s: int | None
    ) -> list[tuple[str, int | None] | None]:
        """Returns the verdicts that are allowed.

        Args:
            known: the state before it.
            former: the same, if it is not over.
        """
        asked_s = [None if each is None or is_cancelled(each.entry) else each.entry[0] for each in (former, known)]
        if refusal is not None:
            return [(refusal, asked_s[0])]
        answers = bool(decoded.conditions or decoded.definitions)
        alone = (UNKNOWN, None) if due_s is None else (SET, None) if answers else None
        if known is None or is_cancelled(known.entry):
            return [alone]
        in_time = (CANCELLED if due_s is None else REPLACED, asked_s[1])
        if repeating(known.entry) is not None:
            return [in_time]
        return [in_time, alone if former is None else (ALREADY_FIRED, asked_s[1])]

    def add_verdict(self, source: str, key: bytes | None, verdict: VerdictMessage) -> None:
        offset = int(source.rpartition("/")[2])
        if offset not in self.log.records or offset in self.verdicts:
            raise Violation(f"a verdict on {source}, which needs none: {verdict}")
        if (self.log.records[offset].key or b"").decode() != verdict.id or key != verdict.id.encode():
            raise Violation(f"a verdict on {source} for another id: {verdict}")
        self.verdicts[offset] = verdict

    def check(self, progress: Progress, retention_s: int) -> None:
        self.fold(progress)
        for offset, allowed in self.allowed.items():
            verdict = self.verdicts.get(offset)
            found = None if verdict is None else (verdict.verdict, verdict.due_s)
            expected = allowed if offset < progress.next_offset else [None]
            if found not in expected:
                raise Violation(f"{self.log.records[offset].source} has the verdict {found}, not one of {expected}")

    def time_s(self, applied: int) -> int:
        reads = (self.log.read(record).decoded for offset, record in self.log.records.items() if offset < applied)
        return max((each.operations[0][3] for each in reads if each.operations), default=0)


def _asks(record: SimRecord) -> tuple[object, ...]:
    """What a definition asks for."""
    return record.value, [each for each in record.headers if each[0] != h.TIMER_IF]
