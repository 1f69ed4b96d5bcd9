"""Progress: the state of a machine that each transaction commits. A new owner needs only progress and log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from timers.core.fired import MOVED_HOLE_S, Command, Hold, Holds, Hole, Moment, is_over, reached
from timers.core.keys import MAX_OFFSET, NOTHING_FIRED, OrderKey
from timers.core.levels import FIRST_LEVEL, HOLDS_LEVEL, TRIMMED_LEVELS
from timers.core.lineage import Lineage
from timers.core.timer import Row

# Names in the settings history. Never change these strings: progress records hold them.
MAX_REQUEST_BYTES = "TIMERS_MAX_REQUEST_BYTES"
"""Maximum bytes of a request value."""
REJECT_OVERDUE = "reject-overdue"
"""1: requests that were due before they were sent are rejected; 0: they fire."""
PARTITION_COUNT = "partitions"
"""Number of partitions of a topic of timers with ids. The partition of an id depends on it, so a change must be
noticed. Acceptance does not depend on it."""
HOT_HORIZON = "TIMERS_HOT_HORIZON_S"
"""The horizon in seconds; 0: no timer goes cold."""
COLD_SEAL = "cold-seal"
"""Secret of the partition's seals. Drawn when the partition first has a horizon."""
VERDICT_RETENTION = "TIMERS_VERDICT_RETENTION_S"
"""Seconds after its end for which an id is not absent (:mod:`timers.core.only_if`)."""
FEATURE_LEVEL = "feature-level"
"""The feature level of the machine (:mod:`timers.core.levels`). It only rises."""
LOG_TRIMMED = "log-trimmed"
"""1: the log may begin late, because it was compared with its snapshots: what no pending timer needs is deleted
[I31]."""
HOLE_DUE_S = "hole-due-s"
HOLE_OFFSET = "hole-offset"
"""Order key of a :class:`Hole`. The two changes of one hole have the same offset."""

LOG_CUT = "log-cut"
"""Number of the newest cut: the log lost its records from this offset on, and an operator accepted that [I28]."""

CUT_FIRED, CUT_HELD = "log-cut-fired-s", "log-cut-held-s"
"""Second up to which everything had fired before a cut, but for what was held; and, if there were holds, before they
began. Both changes have the offset of the cut."""

PASSED_OVER = "passed-over"
"""The offset after a range of records that no consumer can read; the change is valid from the first one on. An operator
accepted that they are passed over: no replay accepts one of them, also if a later version could read it."""

MAX_PASSED_OVER = 100
"""Largest number of such ranges in one history, which each transaction commits: 30 bytes each."""


Cuts: TypeAlias = tuple[tuple[int, int], ...]
"""(offset, number) of each cut of a log, ascending by number."""


def cut_suffix(cuts: Cuts, offset: int) -> str:
    """Returns what follows the offset in the source of a record: ``~`` and the number of the last cut below it [I28].

    The source is the identity of a timer, and a log that was cut gives its offsets a second time.
    """
    number = max((number for cut, number in cuts if cut <= offset), default=0)
    return f"~{number}" if number else ""


class Rescue(NamedTuple):
    """What only the store holds, after a loss of records was accepted, becomes dead letters [I28].

    A log may lose more before all of them are written. Then there are several: each is about the requests from its
    ``from_offset`` on that the earlier ones, which begin at higher offsets, are not about.
    """

    from_offset: int
    """The rows and entries of requests from this offset on are rescued."""
    next_offset: int
    """``next_offset`` before the cut: what was accepted above it cannot have fired."""
    fired_through: OrderKey
    """``fired_through`` before the cut."""
    through: bytes = b""
    """Key of the store up to which they are; empty at the beginning."""
    holds: tuple[Hold, ...] = ()
    """The holds before the cut: what they held had not fired."""


class Doubt(NamedTuple):
    """Brokers may have deleted pending requests while a configuration of their topic was wrong [I29]."""

    before_offset: int
    """All that was accepted below this offset may be missing in the log; a store that was written up to it is whole."""
    worker: str
    """Id of the worker whose store is whole; empty: not known."""


class NamedSnapshot(NamedTuple):
    """A whole snapshot on the topic of snapshots (:mod:`timers.core.snapshots`)."""

    topic_id: bytes
    """Id of the topic of snapshots."""
    number: int
    """In the keys of its records; other numbers in its range are other attempts."""
    first_offset: int
    end_offset: int
    """Its records are in [first_offset, end_offset) of its partition."""
    applied: int
    """It holds what a store holds that was written up to this offset of the request log."""
    keys: int
    rows: int
    digest: bytes


MOST_LATE_CHANGES = 1_000
"""Most offsets in :attr:`Progress.late_changes`: each transaction of the machine writes them, 2 to 3 bytes each."""


WITNESS_S = 5.0
"""Seconds after which the group must have the newest committed values. What fired in the last seconds before the
progress topic lost its end may fire again."""


class Witness(NamedTuple):
    """What a second copy of a progress says: a progress that says less is not the newest one [I8]."""

    next_offset: int
    fired_through: OrderKey
    level: int
    cut: int
    """Number of the last cut of the log. A cut takes ``next_offset`` back."""
    holes: int
    """Number of holes. With each one, ``fired_through`` was taken back."""
    held_from: OrderKey | None = None
    """What is above this key may be held; None: nothing is."""


def _whole_s(through: OrderKey) -> int:
    """Returns the last second of which all timers have fired, if they have up to a key."""
    return through[0] if through[1] == MAX_OFFSET else through[0] - 1


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting of acceptance, and the first offset for which it has this value."""

    name: str
    from_offset: int
    value: int


class History(tuple[SettingChange, ...]):
    """The settings history, oldest change first. What each transaction asks of it is found once.

    Who writes an entry, and from which offset on it is valid:

    ========================================  ======================================================================
    settings of acceptance, ``COLD_SEAL``          a machine when it is made, if the value is another one: from the next
                                              request on
    ``FEATURE_LEVEL``                         :meth:`Progress.first`, :meth:`timers.core.machine.Machine.raise_level`:
                                              from the next request on
    ``LOG_TRIMMED``                           :mod:`timers.machines.log_trimmer`, after a comparison. The log of levels
                                              in ``TRIMMED_LEVELS`` may begin late without it
    ``HOLE_DUE_S``, ``HOLE_OFFSET``           ``timers clock --repair`` (:meth:`Progress.without_time`) and ``timers
                                              export --move`` (:meth:`Progress.moved`): about requests below the offset
    ``LOG_CUT``, ``CUT_FIRED``, ``CUT_HELD``  an opening, after an operator accepted a loss (:meth:`Progress.shortened`,
                                              :meth:`Progress.without_end_of_store`): from the end of the log on
    ``PASSED_OVER``                           :mod:`timers.core.passed_over`: from the first record of the range on
    ========================================  ======================================================================

    :meth:`Progress.at_least` takes the level and the cut of a witness [I8].

    Attributes:
        level: the feature level that the machine was raised to, also if the log has lost the records since then.
        cuts: the cuts of the log; mostly there are none.
        holes: the holes; mostly there are none.
        cut: number of the newest cut; 0: there is none.
        passed_over: (first offset, offset after the last one) of each range that is passed over; mostly there are none.
        trims: whether the log may begin late.
        changed_at: the newest settings are valid from this offset on.
    """

    def __new__(cls, changes: Iterable[SettingChange] = ()) -> History:
        history = super().__new__(cls, changes)
        history.level = max((each.value for each in history if each.name == FEATURE_LEVEL), default=FIRST_LEVEL)
        history.cuts = tuple((each.from_offset, each.value) for each in history if each.name == LOG_CUT)
        history.cut = max((number for _, number in history.cuts), default=0)
        dues = [(each.from_offset, each.value) for each in history if each.name == HOLE_DUE_S]
        offsets = [each.value for each in history if each.name == HOLE_OFFSET]
        history.holes = tuple(
            Hole(before, (due_s, offset)) for (before, due_s), offset in zip(dues, offsets, strict=False)
        )
        history.trims = any(
            each.name == LOG_TRIMMED or (each.name == FEATURE_LEVEL and each.value in TRIMMED_LEVELS)
            for each in history
        )
        history.passed_over = tuple((each.from_offset, each.value) for each in history if each.name == PASSED_OVER)
        history.changed_at = max((each.from_offset for each in history), default=0)
        return history

    level: int
    cuts: Cuts
    cut: int
    holes: tuple[Hole, ...]
    trims: bool
    passed_over: tuple[tuple[int, int], ...]
    changed_at: int

    def passes_over(self, from_offset: int, end_offset: int) -> bool:
        """Returns whether all offsets from one on up to, and without, another one are passed over; of an empty range,
        whether its offset is."""
        return any(low <= from_offset < high and end_offset <= high for low, high in self.passed_over)

    def left_of(self, records: Sequence[Any]) -> Sequence[Any]:
        """Returns the records that are not passed over."""
        for low, high in self.passed_over:
            if records and low <= records[-1].offset and records[0].offset < high:
                records = [record for record in records if not low <= record.offset < high]
        return records


@dataclass(frozen=True, slots=True)
class Progress:
    """Committed state of one machine.

    The requests below ``next_offset`` with a key above ``fired_through`` are pending, without those in a hole, and with
    those that a hold holds.
    """

    next_offset: int = 0
    """Offset of the first request that is not yet accepted."""

    fired_through: OrderKey = NOTHING_FIRED
    """Order key of the last timer that fired."""

    settings: History = History()  # noqa: RUF009  # immutable
    """History of the settings of acceptance, oldest first. A replay decides by the value at each offset [I4]."""

    lineage: Lineage = Lineage()  # noqa: RUF009  # immutable
    """Which log was read below ``next_offset``."""

    rescues: tuple[Rescue, ...] = ()
    """One for each of the newest cuts, oldest first, if the store of some worker may hold what they have lost. It
    becomes dead letters when this worker opens the partition."""

    doubt: Doubt | None = None
    """None unless pending requests may be missing in the log."""

    snapshot: NamedSnapshot | None = None
    """The newest snapshot; None: there is none."""

    older_snapshot: NamedSnapshot | None = None
    """The one before it."""

    late_changes: tuple[int, ...] = ()
    """Offsets of requests that name a version which had fired when they were accepted, although they were appended
    before its due second: they were readable late. Ascending. A replay refuses them, as the acceptance did [I27]."""

    holds: Holds = Holds()  # noqa: RUF009  # immutable
    """The holds, oldest first; empty below the level :data:`timers.core.levels.HOLDS_LEVEL`."""

    taken: int = 0
    """Number of the newest command about targets that the machine has taken."""

    @property
    def level(self) -> int:
        """The feature level of the machine."""
        return self.settings.level

    @property
    def holes(self) -> tuple[Hole, ...]:
        """The holes; mostly there are none."""
        return self.settings.holes

    @property
    def fired_s(self) -> int | None:
        """Second up to which it has fired; None: nothing has fired.

        0: an operator took the second back [I24]. Then no tick counts only because it is soon after this second [I20].
        """
        if self.fired_through == NOTHING_FIRED:
            return 0 if len(self.moves) < len(self.holes) else None
        return self.fired_through[0]

    @property
    def moment(self) -> Moment:
        """What was accepted and fired, for a hold that begins or ends now."""
        return Moment(self.next_offset, self.fired_through, len(self.holes))

    def is_past(self, key: OrderKey) -> bool:
        """Whether the due second of an accepted request with this key is over: it has fired, or it is held."""
        return key <= reached(self.fired_through, self.holes, key[1])

    def hold_of(self, key: OrderKey, target: str) -> Hold | None:
        """Returns what holds a request that :meth:`is_past`; None: it has fired."""
        return self.holds.of(key, target, self.holes) if self.holds else None

    def held(self, due_s: int, rows: list[Row]) -> list[Row]:
        """Returns those that are held of rows of one second, which is over."""
        return self.holds.held(due_s, rows, self.holes)

    def holds_group(self, due_s: int, target: str, first: int, last: int, number: int) -> bool:
        """See :data:`timers.core.ports.IsHeld`."""
        return self.holds.of_group(due_s, target, first, last, self.holes) is not None

    def has_fired(self, key: OrderKey, target: str) -> bool:
        """Whether an accepted request with this key has fired [I33]."""
        return self.is_past(key) and self.hold_of(key, target) is None

    def with_commands(
        self, commands: Sequence[Command], second: int, rows_of: Callable[[Hold], int], *, is_drained: bool
    ) -> Progress:
        """Returns the progress after the commands that it has not taken yet, and after the end of pauses that end by
        themselves [I33]. Below the level :data:`timers.core.levels.HOLDS_LEVEL` it takes none.

        Pauses begin at once. They end when all that is due has fired or is held: else what came due while no worker
        ran would be sent at once, also if the release was to be slow.

        Args:
            commands: ascending by number.
            rows_of: counts the rows that a hold holds.
            is_drained: whether all that is due has fired or is held.
        """
        if self.level < HOLDS_LEVEL or not (commands or self.holds):
            return self
        holds, now, taken = self.holds.with_time(second), self.moment, self.taken
        has_room = True
        for command in commands:
            if command.number <= self.taken:
                continue
            if command.is_paused and (not is_over(command.until_s, second) or holds.pauses(command.target)):
                holds = holds.paused(command, now, second)
                # If there are too many pauses, the command is not taken yet: pauses that end make room.
                pauses = [hold for hold in holds.by_target.get(command.target, ()) if hold.is_paused]
                has_room &= any(hold.number >= command.number for hold in pauses)
            elif not command.is_paused and is_drained and holds.has_pause(command.target, command.number):
                holds = holds.resumed(command.target, now, second, command.over_s, rows_of, command.number)
            taken = command.number if has_room and is_drained else taken
        for hold in holds if is_drained else ():
            if hold.is_paused and is_over(hold.until_s, second):
                holds = holds.resumed(hold.target, now, second, hold.over_s, rows_of, hold.number)
        return self.with_holds(holds) if taken == self.taken else replace(self, holds=holds, taken=taken)

    def has_to_run(self, commands: Sequence[Command], second: int) -> bool:
        """Whether a machine has something to do at a tick second because of holds: it takes a command, or ends a pause,
        or releases rows."""
        if self.level < HOLDS_LEVEL:
            return False
        if commands and commands[-1].number > self.taken:
            return True
        ends = any(hold.is_paused and is_over(hold.until_s, second) for hold in self.holds)
        return ends or self.holds.with_time(second) is not self.holds or bool(self.holds.released_in(second))

    def with_holds(self, holds: Holds) -> Progress:
        return self if holds is self.holds else replace(self, holds=holds)

    def without_time(self) -> Progress:
        """Returns a progress with the same pending requests, and with a hole in place of ``fired_through``."""
        if self.fired_through == NOTHING_FIRED:
            return self
        return replace(self._with_hole(self.fired_through), fired_through=NOTHING_FIRED)

    def moved(self, number: int) -> Progress:
        """Returns a progress of which nothing is pending: all that was pending here fires elsewhere.

        Args:
            number: of this move, below 2^63. It tells this move from others of the same requests.
        """
        after = self._with_hole((MOVED_HOLE_S, number))
        # The held timers have moved too. A pause goes on for timers that are requested here from now on.
        begun = (hold._replace(begin=after.moment) for hold in self.holds if hold.is_paused)
        return replace(after, holds=Holds(begun))

    def was_moved(self, number: int) -> bool:
        """Whether this progress has followed from :meth:`moved` with this number."""
        return number in self.moves

    def is_elsewhere(self, offset: int) -> bool:
        """Whether what was pending of the request at an offset was moved to another app."""
        return any(hole.through[0] == MOVED_HOLE_S and offset < hole.before_offset for hole in self.holes)

    @property
    def moves(self) -> tuple[int, ...]:
        """The numbers of all :meth:`moved`; mostly there are none."""
        return tuple(number for due_s, number in (hole.through for hole in self.holes) if due_s == MOVED_HOLE_S)

    def _with_hole(self, through: OrderKey) -> Progress:
        names = zip((HOLE_DUE_S, HOLE_OFFSET), through, strict=True)
        hole = [SettingChange(name, self.next_offset, value) for name, value in names]
        return replace(self, settings=History((*self.settings, *hole)))

    def without_doubt(self, store: Lineage = Lineage(), applied: int = MAX_OFFSET) -> Progress:  # noqa: B008  # immutable
        """Returns a progress without its doubt. The records that the log may lack are not counted any more [I32].

        Args:
            store: lineage of the store that was written up to ``applied``: the records above are read again.
        """
        counted = self.lineage.counted and self.lineage.counted.above(applied, store.count_at(applied))
        return replace(self, doubt=None, lineage=self.lineage._replace(counted=counted))

    def with_log_start(self, start: int) -> Progress:
        """Returns a progress without what is only needed to read a log below ``start``, where it begins now."""
        if not self.late_changes or self.late_changes[0] >= start:
            return self
        return replace(self, late_changes=tuple(each for each in self.late_changes if each >= start))

    @property
    def witness(self) -> Witness:
        """The values of this progress that a second copy holds."""
        history = self.settings
        held_from = min((hold.begin.fired_through for hold in self.holds), default=None)
        return Witness(self.next_offset, self.fired_through, history.level, history.cut, len(history.holes), held_from)

    def is_behind(self, witness: Witness) -> bool:
        """Whether a later progress of the same log had the values of ``witness``."""
        whole = witness._replace(held_from=None)
        return self.at_least(whole).witness != self.witness or len(self.holes) < witness.holes

    def at_least(self, witness: Witness) -> Progress:
        """Returns a progress with the larger values of both. What a later cut or hole took back stays taken back."""
        cut, next_offset, fired_through = self.settings.cut, self.next_offset, self.fired_through
        if cut <= witness.cut:
            next_offset = max(next_offset, witness.next_offset)
        # Held rows had not fired, and only the lost part of the progress names them.
        if len(self.holes) <= witness.holes:
            held_from = witness.fired_through if witness.held_from is None else witness.held_from
            fired_through = max(fired_through, min(witness.fired_through, held_from))
        known = replace(self, next_offset=next_offset, fired_through=fired_through)
        if self.level < witness.level:
            known = known.with_setting(FEATURE_LEVEL, witness.level)
        # After the lost cut, it is not known from which offset on the log gave offsets a second time.
        if cut < witness.cut:
            known = replace(known.with_setting(LOG_CUT, witness.cut), late_changes=())
        return known

    def shortened(self, end: int) -> Progress:
        """Returns the progress for a log that has lost the records from ``end`` on. The history notes the cut [I28]."""
        return self._after_cut(end, end, self.next_offset)

    def without_end_of_store(self, end: int) -> Progress:
        """Returns the progress if only a store has records from ``end`` on that were lost, as :meth:`shortened`.

        The log is that of this progress, so ``next_offset`` stays.
        """
        return self._after_cut(end, max(self.next_offset, end), end)

    def _after_cut(self, end: int, before_offset: int, rescued_from: int) -> Progress:
        settings = [
            replace(change, from_offset=min(change.from_offset, before_offset))
            for change in self.settings
            # Above the cut, the log has other records in such a range.
            if change.name != PASSED_OVER or change.value <= before_offset
        ]
        cut = [SettingChange(LOG_CUT, end, self.settings.cut + 1)]
        cut.append(SettingChange(CUT_FIRED, end, _whole_s(self.fired_through)))
        if self.holds:
            held_s = min(_whole_s(hold.begin.fired_through) for hold in self.holds)
            cut.append(SettingChange(CUT_HELD, end, held_s))
        next_offset = min(self.next_offset, before_offset)
        rescue = Rescue(end, rescued_from, self.fired_through, holds=tuple(self.holds))
        # Whether the log now ends below the last cut: a store that took requests after that cut lacks what the cut
        # lost.
        is_below = bool(self.rescues) and end <= self.rescues[-1].from_offset
        doubt = self.doubt and self.doubt._replace(before_offset=min(before_offset, self.doubt.before_offset))
        # A snapshot above the end holds requests that the log has lost.
        snapshots = [each for each in (self.snapshot, self.older_snapshot) if each is not None and each.applied <= end]
        newest, older = (*snapshots, None, None)[:2]
        return replace(
            self,
            next_offset=next_offset,
            settings=History((*settings, *cut)),
            lineage=self.lineage.before(before_offset),
            rescues=(*self.rescues, rescue) if is_below else (rescue,),
            doubt=doubt,
            snapshot=newest,
            older_snapshot=older,
            late_changes=tuple(each for each in self.late_changes if each < before_offset),
            holds=Holds(hold.shortened(next_offset) for hold in self.holds),
        )

    @property
    def cuts(self) -> Cuts:
        """The cuts of the log; mostly there are none."""
        return self.settings.cuts

    def fired_before_cut(self, key: OrderKey) -> int:
        """Returns up to which second everything had fired when the log lost what followed a timer that had fired; -1:
        not known. It is the first of the cuts that may have done this: later ones found nothing that followed."""
        due_s, offset = key
        found: list[int] = []
        for change in (each for each in self.settings if each.from_offset > offset):
            # The cut may have come while the second `due_s` fired.
            if change.name == CUT_FIRED and change.value >= due_s - 1:
                found.append(change.value)
            elif change.name == CUT_HELD and found and due_s <= change.value:  # the timer may have been held
                found[-1] = min(found[-1], change.value)
        return min(found, default=-1)

    def rescues_of(self, history: tuple[SettingChange, ...], applied: int) -> tuple[Rescue, ...]:
        """Returns what must be rescued from a store with this history, which was written up to offset ``applied``.

        It does not hold what was lost by the cuts that it knows. Its own newest cut may have the number of this
        history's newest one: another cut, that was accepted and never committed.
        """
        cuts = ((change.value, change.from_offset) for change in history if change.name == LOG_CUT)
        known, at = max(cuts, default=(0, 0))
        newest = self.settings.cut
        if known == newest and self.rescues and at != self.rescues[-1].from_offset:
            known -= 1
        first = known - (newest - len(self.rescues))
        is_above = bool(self.rescues) and applied > self.rescues[-1].from_offset
        return self.rescues[first:] if is_above and first >= 0 else ()

    def setting_at(self, name: str, offset: int, default: int) -> int:
        """Returns the value of setting ``name`` for the record at ``offset``."""
        value = default
        for change in self.settings:
            if change.name == name and change.from_offset <= offset:
                value = change.value
        return value

    def knows(self, name: str) -> bool:
        """Returns whether the history has a value of setting ``name``."""
        return any(change.name == name for change in self.settings)

    def largest(self, name: str) -> int:
        """Returns the largest value that setting ``name`` ever had; 0 if it has no history."""
        return max((change.value for change in self.settings if change.name == name), default=0)

    def passing_over(self, from_offset: int, end_offset: int) -> Progress:
        """Returns a progress that passes over the records from one offset on up to, and without, another one."""
        change = SettingChange(PASSED_OVER, from_offset, end_offset)
        return replace(self, settings=History((*self.settings, change)))

    def with_setting(self, name: str, value: int) -> Progress:
        """Returns a progress in which setting ``name`` has ``value`` from ``next_offset`` on."""
        earlier = [change for change in self.settings if change.name == name]
        if earlier and earlier[-1].value == value:
            return self
        return replace(self, settings=History((*self.settings, SettingChange(name, self.next_offset, value))))

    @classmethod
    def first(cls, level: int) -> Progress:
        """Returns the progress of a new machine, which has this feature level from its first record on."""
        return cls().with_setting(FEATURE_LEVEL, level)

    def has_same_history(self, history: tuple[SettingChange, ...], applied: int) -> bool:
        """Whether ``history`` and this history agree on all records below ``applied``.

        Progress without settings follows a loss of the progress topic, and agrees with every history.
        """

        def below(changes: tuple[SettingChange, ...]) -> list[SettingChange]:
            return [change for change in changes if change.from_offset < applied]

        return not self.settings or below(self.settings) == below(history)

    def boundaries(self, from_offset: int, to_offset: int) -> list[int]:
        """Returns the offsets inside (from, to) at which a setting changed, in ascending order."""
        inside = {change.from_offset for change in self.settings if from_offset < change.from_offset < to_offset}
        return sorted(inside)
