"""Which accepted requests have fired: those up to one key, and those in a hole, without those that a hold holds.

A hold [I33] is about the timers of one callback topic, its *target*. Held rows stay in the store where they are, and
only progress says which ones are held. So nothing is moved, copied or written to Kafka, and a replay finds them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from timers.core.keys import NOTHING_FIRED, OrderKey
from timers.core.timer import CLOCK_STEP_BACK_S, Row

MOVED_HOLE_S = 2**56 - 1
"""Second in the key of a hole whose requests were moved to another app; above every due second."""


class Hole(NamedTuple):
    """Requests that do not fire any more although the present ``fired_through`` is below their keys [I24].

    A wrong clock set ``fired_through`` too far ahead, and an operator took it back. If it were only lowered, a replay
    would fire again what has fired. Or all that was pending was moved to another app.
    """

    before_offset: int
    """The requests below this offset,"""
    through: OrderKey
    """with a key up to this one."""


def reached(fired_through: OrderKey, holes: Sequence[Hole], offset: int) -> OrderKey:
    """Returns the key up to which an accepted request at ``offset`` has fired, if no hold holds it."""
    for hole in holes:
        if offset < hole.before_offset:
            fired_through = max(fired_through, hole.through)
    return fired_through


# ---- holds -----------------------------------------------------------------------------------------------------------

PAUSE = "pause"
"""An operator paused the target."""
NOISY = "noisy"
"""The target has so many due timers that the timers of others would wait for them."""

MAX_PAUSES = 32
"""Most pauses in the progress of a machine, with those whose timers are being released. Each transaction commits all
holds: about 60 bytes each, and the name of the target."""
MOST_NOISY = 16
"""Most noisy holds beside them."""


def is_over(until_s: int, second: int) -> bool:
    """Whether a pause has ended by itself. ``until_s``: the tick second of its end; 0: it has none."""
    return 0 < until_s <= second


class Moment(NamedTuple):
    """What a machine had accepted, and up to where it had fired, when a hold began or ended."""

    next_offset: int
    fired_through: OrderKey
    holes: int
    """Number of its holes."""

    def had_passed(self, key: OrderKey, holes: Sequence[Hole]) -> bool:
        """Whether a request with this key was accepted at that moment, and its due second was over.

        Args:
            holes: those of the machine now; the first ones are those that it had.
        """
        offset = key[1]
        if offset >= self.next_offset:
            return False
        return key <= (reached(self.fired_through, holes[: self.holes], offset) if holes else self.fired_through)


class Hold(NamedTuple):
    """The timers of a target that came due after one moment, until another one, and are not sent yet."""

    target: str
    """Callback topic."""
    reason: str
    """:data:`PAUSE` or :data:`NOISY`."""
    number: int
    """Number of the command that began, changed or ended the pause; of a noisy hold, the second in which it began."""
    begin: Moment
    since_s: int
    """Tick second in which it began."""
    end: Moment | None = None
    """When a pause was resumed: what comes due later is not held. None: the pause goes on, or it is a noisy hold."""
    released: OrderKey = NOTHING_FIRED
    """Key of the last row that was released: those up to it are not held any more."""
    until_s: int = 0
    """Tick second in which a pause ends by itself; 0: none."""
    over_s: int = 0
    """Seconds that a release takes; 0: as long as it needs."""
    resumed_s: int = 0
    """Tick second in which the release began."""
    rows: int = 0
    """Number of rows that were held then, with versions that were replaced or cancelled."""
    gone: int = 0
    """Number of them that were released since."""

    @property
    def is_paused(self) -> bool:
        """Whether it is a pause that goes on."""
        return self.reason == PAUSE and self.end is None

    def holds(self, key: OrderKey, holes: Sequence[Hole]) -> bool:
        """Whether it holds a row of its target whose due second is over."""
        if key <= self.released or self.begin.had_passed(key, holes):
            return False
        return self.end is None or self.end.had_passed(key, holes)

    def quota(self, second: int) -> int | None:
        """Returns how many more rows may be released in a tick second; None: all."""
        after_s = second - self.resumed_s + 1
        if after_s <= 0:
            return 0
        return None if after_s >= self.over_s else max(0, self.rows * after_s // self.over_s - self.gone)

    @property
    def next_s(self) -> int:
        """Tick second from which on more rows may be released: the first one whose :meth:`quota` is not 0."""
        share = -(-(self.gone + 1) * self.over_s // self.rows) if self.gone < self.rows else self.over_s
        return self.resumed_s + max(1, min(share, self.over_s)) - 1

    def shortened(self, next_offset: int) -> Hold:
        """Returns the hold after the log has lost the records from ``next_offset`` on: it gives these offsets again."""
        begin, end = (
            each and each._replace(next_offset=min(each.next_offset, next_offset)) for each in (self.begin, self.end)
        )
        return self._replace(begin=begin or self.begin, end=end)


class Command(NamedTuple):
    """What an operator wants of a target."""

    number: int
    """Commands with higher numbers are newer. Each one has its own."""
    target: str
    is_paused: bool
    until_s: int = 0
    """Of a pause: the tick second in which it ends by itself; 0: none."""
    over_s: int = 0
    """Seconds that the release takes, when a pause ends; 0: as long as it needs."""


class Holds(tuple[Hold, ...]):
    """The holds of a machine, oldest first. What each row asks of them is found once."""

    by_target: dict[str, tuple[Hold, ...]]

    def __new__(cls, holds: Iterable[Hold] = ()) -> Holds:
        found = super().__new__(cls, holds)
        found.by_target = {}
        for hold in found:
            found.by_target[hold.target] = (*found.by_target.get(hold.target, ()), hold)
        return found

    def of(self, key: OrderKey, target: str, holes: Sequence[Hole]) -> Hold | None:
        """Returns the hold that holds a row whose due second is over; None: it may fire. No row has two."""
        for hold in self.by_target.get(target, ()):
            if hold.holds(key, holes):
                return hold
        return None

    def of_group(self, due_s: int, target: str, first: int, last: int, holes: Sequence[Hole]) -> Hold | None:
        """Returns the hold that holds all rows of one target and one second, which is over; None: no hold does.

        Args:
            first: the lowest of their offsets. Between two offsets that a hold holds it holds all.
        """
        for hold in self.by_target.get(target, ()):
            if hold.holds((due_s, first), holes) and (first == last or hold.holds((due_s, last), holes)):
                return hold
        return None

    def held(self, due_s: int, rows: list[Row], holes: Sequence[Hole]) -> list[Row]:
        """Returns those that are held of rows of one second, which is over. Of most groups a hold holds all rows of its
        target, so that not each row is looked at: 20 µs for 512 rows in place of 350."""
        targets = {row[1] for row in rows}
        found = self.by_target.keys() & targets
        if not found:
            return []
        first, last = rows[0][0], rows[-1][0]
        if all(self.of_group(due_s, target, first, last, holes) for target in found):
            return rows if len(targets) == 1 else [row for row in rows if row[1] in found]
        return [row for row in rows if self.of((due_s, row[0]), row[1], holes) is not None]

    def pauses(self, target: str) -> bool:
        """Whether a pause of a target goes on."""
        return any(hold.is_paused for hold in self.by_target.get(target, ()))

    def may_hold(self, key: OrderKey, holes: Sequence[Hole]) -> bool:
        """Whether a row with this key may be held, whatever its target is."""
        return any(hold.holds(key, holes) for hold in self)

    def released_in(self, second: int) -> list[Hold]:
        """Returns the holds of which rows may be released in a tick second."""
        paused = {hold.target for hold in self if hold.is_paused}
        return [hold for hold in self if hold.target not in paused and hold.quota(second) != 0]

    def with_time(self, second: int) -> Holds:
        """Returns them at a tick second. A release that began at a wrong time, which is to come, goes on from now: else
        it would wait until then."""
        holds = self
        for hold in self:
            if hold.resumed_s > second + CLOCK_STEP_BACK_S:
                left = max(0, hold.rows - hold.gone)
                holds = holds.changed(hold, hold._replace(resumed_s=second, rows=left, gone=0))
        return holds

    def changed(self, old: Hold, new: Hold | None) -> Holds:
        """Returns them with a hold in the place of another one; None: without it."""
        return Holds(each for hold in self if (each := new if hold is old else hold) is not None)

    def resumed(
        self, target: str, now: Moment, second: int, over_s: int, rows_of: Callable[[Hold], int], number: int
    ) -> Holds:
        """Returns them after the end of a pause, or with another speed of a release. What earlier holds of the target
        still hold is released with it.

        Args:
            over_s: seconds that the release takes; 0: as long as it needs.
            rows_of: counts the rows that a hold holds.
        """

        def resumed(hold: Hold) -> Hold:
            begun = hold._replace(number=number, resumed_s=second, over_s=over_s)
            return begun._replace(end=hold.end or now, rows=rows_of(hold), gone=0)

        return Holds(resumed(hold) if hold.target == target else hold for hold in self)

    def has_pause(self, target: str, before: int) -> bool:
        """Whether a pause of a target, also one that is being released, is older than a command with this number."""
        return any(hold.reason == PAUSE and hold.number < before for hold in self.by_target.get(target, ()))

    def paused(self, command: Command, now: Moment, second: int) -> Holds:
        """Returns them after the begin of a pause, or the change of one; the same if there is no room."""
        for hold in self.by_target.get(command.target, ()):
            if hold.is_paused and hold.number >= command.number:
                return self
            if hold.is_paused:
                until_s, over_s = command.until_s, command.over_s
                return self.changed(hold, hold._replace(number=command.number, until_s=until_s, over_s=over_s))
        if sum(hold.reason == PAUSE for hold in self) >= MAX_PAUSES:
            return self
        # A noisy hold ends where the pause begins: the pause does not hold what the noisy hold holds.
        others = (
            hold._replace(end=now) if hold.target == command.target and hold.end is None else hold for hold in self
        )
        begun = Hold(command.target, PAUSE, command.number, now, second)
        return Holds((*others, begun._replace(until_s=command.until_s, over_s=command.over_s)))

    def may_be_noisy(self, target: str) -> bool:
        """Whether a target may get a noisy hold: it has none, is not paused, and there is room."""
        has_hold = any(hold.end is None for hold in self.by_target.get(target, ()))
        return not has_hold and sum(hold.reason == NOISY for hold in self) < MOST_NOISY

    def with_noisy(self, target: str, now: Moment, second: int) -> Holds:
        """Returns them with a noisy hold of a target, if it may get one."""
        return Holds((*self, Hold(target, NOISY, second, now, second))) if self.may_be_noisy(target) else self
