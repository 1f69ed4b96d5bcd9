"""One chunk of due timers: which of them fire, which are passed over because a hold holds them, and where it ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from operator import itemgetter

from timers.core.fired import Hold
from timers.core.keys import NOTHING_FIRED, OrderKey
from timers.core.limits import LARGEST_CHUNK, SMALL_CHUNK, Limits
from timers.core.ports import Store
from timers.core.progress import Progress
from timers.core.repeating import REPEAT
from timers.core.sums import count_with
from timers.core.timer import RUN_BYTES, DueRows, Row, without

MOST_PASSED = 100_000
"""About so many held rows one chunk passes over, in 10 ms: then requests are accepted, and ticks are read."""
GROUP_COST = 20
"""A whole group of a store takes as long as so many more rows."""

OCCURRENCE_COST = 12
"""An occurrence of a timer that repeats counts as so many timers: the next one is found and written, and the timers of
other machines wait for each chunk. It takes 20 times as long as a timer without an id, 3 times as long as one with an
id. It counts for less, because each transaction takes time, too."""

NOISY_PART = 10
"""A target with this part of a full chunk is noisy [I36], if it has at least :attr:`Limits.noisy_rows` of the chunk, or
half of it."""
NO_HOLD: tuple[Hold | None, OrderKey] = None, NOTHING_FIRED


class Chunk:
    """What one chunk does with the rows of a scan, which begins above the present ``fired_through``.

    Args:
        progress: before the chunk.
        most: maximum number of timers that the brokers take together.

    Attributes:
        most_rows: maximum number of timers in it.
        run_bytes: bytes of stored groups that are looked up in the index together.
        count: number of rows that are deleted, with versions that were replaced or cancelled.
        kept: held rows of groups that have others, too.
        rest: the rows behind :attr:`last` of a group that was split.
        is_full: whether it must end.
        is_cut: whether its scan has ended early.
    """

    def __init__(self, progress: Progress, limits: Limits, most: int) -> None:
        self._progress = progress
        self._limits = limits
        self.most_rows = min(most, limits.chunk_timers)
        # A chunk smaller than the largest one may end within a group of the store. The rest of the group is then stored
        # under the key of the group.
        self._splits = most < LARGEST_CHUNK
        self.run_bytes = 0 if self._splits else min(RUN_BYTES, limits.chunk_bytes)
        self.fired: list[DueRows] = []
        self.kept: list[DueRows] = []
        self.rest: list[Row] = []
        self.count = self._bytes = self._passed = self._more = 0
        self.is_full = self.is_cut = self._is_large = False
        self.last = NOTHING_FIRED
        self._whole: list[tuple[OrderKey, Hold, int]] = []
        """Of each whole group that is passed over: last key, what holds it, number of rows that are not counted yet."""
        self._held_above: dict[str, tuple[Hold | None, OrderKey]] = {
            hold.target: (hold, max(hold.released, hold.begin.fired_through))
            for hold in progress.holds
            if hold.end is None and not progress.holes
        }
        """Target -> the hold that holds all its rows above a key, if there are no holes. So each takes 0.5 µs less."""
        self._first: tuple[int, int, int, OrderKey] | None = None
        """Lengths of ``fired`` and ``kept``, ``count`` and ``last``, after its first rows. Some of them are sent: the
        transaction that was begun for them is committed."""

    def begun(self, store: Store, second: int) -> Iterator[DueRows]:
        """Returns the scan of a chunk that passes over what is held. It ends where enough was passed over."""
        for due in store.scan(self._progress.fired_through, second, self._passes):
            yield due
            if self._passed >= MOST_PASSED:
                self.is_cut = True
                return

    def _passes(self, due_s: int, target: str, first: int, last: int, number: int) -> bool:
        """See :data:`timers.core.ports.IsHeld`. A scan that has passed over enough ends with the next group."""
        if self._passed >= MOST_PASSED:
            return False
        progress = self._progress
        hold, above = self._held_above.get(target, NO_HOLD)
        if hold is None or (due_s, first) <= above:
            hold = progress.holds.of_group(due_s, target, first, last, progress.holes)
        if hold is None:
            return False
        # After `fired_through` was taken back, the rows in a hole are passed over again. They are counted already.
        is_known = bool(progress.holes) and progress.is_past((due_s, first))
        if is_known and not progress.is_past((due_s, last)):
            return False
        self._whole.append(((due_s, last), hold, 0 if is_known else number))
        self._passed += number + GROUP_COST
        return True

    def free(self, due: list[DueRows], number: int, size: int) -> list[DueRows]:
        """Returns those of the next due rows that may fire. If there are too many, ``rest`` is not empty after it.

        Args:
            number: of due rows.
            size: of them in bytes.
        """
        if self._first is None and self.fired and self.count >= self._limits.noisy_rows:
            self._first = len(self.fired), len(self.kept), self.count, self.last
        free, kept, most = due, list[DueRows](), self.most_rows - self.count
        if self._progress.holds:
            free = without_held(self._progress, due, kept)
            number = sum(len(rows) for _, rows in free)
        if self._splits and number > most:
            ((due_s, rows),), ((_, may_fire),) = due, free
            at = rows.index(may_fire[most])
            due, free, number, self.rest = [(due_s, rows[:at])], [(due_s, may_fire[:most])], most, rows[at:]
            kept = [(due_s, held) for _, each in kept if (held := [row for row in each if row[0] < rows[at][0]])]
        self.kept += kept
        self.count += number
        self._bytes += size
        self._passed += sum(len(rows) for _, rows in kept)
        self.last = due[-1][0], due[-1][1][-1][0]
        self._more += count_with(REPEAT, free) * (OCCURRENCE_COST - 1)
        self._is_large = self.count + self._more >= self.most_rows or self._bytes >= self._limits.chunk_bytes
        self.is_full = self._is_large or self._passed >= MOST_PASSED
        return free

    def noisy(self, known: Collection[str]) -> list[str]:
        """Returns the targets that have a large part of it, when it is full, and may get a hold [I36]: the rest of
        their due timers is sent when no others are due. If no other target is known, no one waits.

        Then only its first rows are sent: the others wait for them.

        Args:
            known: targets to which the machine has sent timers.
        """
        counts: Counter[str] = Counter()
        # Counts all rows (0.9 ms for 20,000): of targets that take turns, a sample could have only one.
        for _, rows in self.fired:
            counts.update(map(itemgetter(1), rows))
        least = self._limits.noisy_rows
        # A chunk is also small if brokers are slow, by a setting, or if its timers are large or repeat.
        if self._is_large:
            least = min(least, max(counts.total() // 2, SMALL_CHUNK // 2))
        least = max(least, counts.total() // NOISY_PART)
        found = [
            target
            for target, number in counts.items()
            if target and number >= least and (len(counts) > 1 or any(each != target for each in known))
        ]
        found = [target for target in found if self._progress.holds.may_be_noisy(target)]
        if found and self._first is not None:
            fired, kept, self.count, self.last = self._first
            self.rest = []
            del self.fired[fired:], self.kept[kept:]
        return found

    def whole(self, through: OrderKey) -> Iterator[tuple[Hold, int]]:
        """Yields what holds each whole group up to a key, and the number of its rows."""
        for key, hold, number in self._whole:
            if key <= through:
                yield hold, number


def with_noisy(progress: Progress, targets: Iterable[str], second: int) -> Progress:
    """Returns the progress with a hold for each noisy target.

    Args:
        progress: after the chunk.
    """
    holds = progress.holds
    for target in targets:
        holds = holds.with_noisy(target, progress.moment, second)
    return progress.with_holds(holds)


def without_held(progress: Progress, due: list[DueRows], kept: list[DueRows]) -> list[DueRows]:
    """Returns those of due rows that may fire, and adds those that are held to ``kept``."""
    free: list[DueRows] = []
    for due_s, rows in due:
        held = progress.held(due_s, rows)
        if held:
            kept.append((due_s, held))
            rows = without(rows, held)
        if rows:
            free.append((due_s, rows))
    return free
