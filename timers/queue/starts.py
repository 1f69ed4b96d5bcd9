"""Which messages of a partition may be started, so that one that kills its process is found. Pure."""

from __future__ import annotations

from collections import deque

from timers.queue.entry import Entry
from timers.queue.metadata import NO_START, Start

MAX_CRASHES = 2

_MIN_AHEAD = 64
_AHEAD_FACTOR = 4
_FIRST_GROUPS = 32
_MAX_IN_GROUP = 512
LEAST_SHARED_GROUP = 2
"""Size of the smallest group of messages that run beside others. The message of a group of 1 runs alone."""
_SHRINK = 8
"""After a crash, the size of a group is divided by this. Halves would need fewer commits, and more crashes until the
message is found: each commit takes milliseconds, and each crash the start of a process and a rebalance."""


class Starts:
    """The ready messages of one partition. Decides which may be started, so that one that kills its process is found.

    A message may be started only when a commit says so. So after a process ended without saying that it ends, its last
    commit names all messages that can be the cause: the *suspects*. They run before all others, in groups, and nothing
    else runs in the process meanwhile. A group whose process ends is run again in smaller groups. If the group is one
    message, the end counts as a *crash* of the message, and :data:`MAX_CRASHES` of them make it a dead letter.

    The rules, each with what happens without it:

    1. *The commit comes before the start.* Otherwise the message that killed its process is no suspect.
    2. *A crash counts only for a message that ran alone.* Otherwise its neighbours become dead letters too.
    3. *A group begins when no receiver holds a message of any partition, and the other partitions' commits say that
       nothing runs.* Otherwise a message of another partition kills the process, and the group is blamed. Messages that
       have run for the time of a lease do not count: else one long handler would stop the process. If there are such,
       a group counts as several messages, so none is blamed.
    4. *A process that gives up a partition says that nothing runs.* Otherwise each rebalance makes suspects.

    How many offsets ahead of the last start a commit allows follows from the rate of starts. So a fast queue needs no
    more commits than the one every 100 ms, and a slow one has few suspects.

    Args:
        start: what the last commit allowed.
        suspects_end: messages below it are suspects already.
        log_end: end of the log; later messages are no suspects.

    Attributes:
        start: what the last commit of this process allows.
        suspects_end: messages below it are suspects when they are read.
        crashed: offset of the message that ran alone when its process ended; None if there is none.
        is_stopped: nothing may be started any more.
        is_held_back: messages of a group run, or should run next; others may not be started.
    """

    def __init__(self, start: Start, suspects_end: int, log_end: float) -> None:
        self.start = NO_START
        self.suspects_end = int(min(max(suspects_end, start.end), log_end))
        self.crashed = start.first if start.group == 1 else None
        self.is_stopped = False
        self.is_held_back = False
        self._horizon = 0
        self._started_first = self._started_end = 0
        self._next_group = max(1, start.group // _SHRINK) if start.group else 0
        self._cause_end = start.end if start.group else 0  # the message that ended the process has an offset below this
        self._ready: deque[Entry] = deque()
        self._suspects: deque[Entry] = deque()
        self._group: deque[Entry] = deque()

    # ---- ready messages ------------------------------------------------------------------------------------------

    def add(self, entry: Entry, *, first: bool = False) -> None:
        """Add a ready message."""
        ready = self._suspects if entry.is_suspect else self._ready
        if first:
            ready.appendleft(entry)
        else:
            ready.append(entry)

    def next(self) -> Entry | None:
        """Return the next message that may be started, once; None if there is none."""
        if self._group:
            entry = self._group.popleft()
            self._started_end = max(self._started_end, entry.offset + 1)
            return entry
        ready = self._ready
        if not ready or self.is_held_back or ready[0].offset >= self._horizon:
            return None
        entry = ready.popleft()
        if entry.offset >= self._started_end:
            self._started_end = entry.offset + 1
            self._started_first = self._started_first or entry.offset
        return entry

    def remove(self, entry: Entry) -> None:
        """Remove a ready message that is no suspect."""
        self._ready.remove(entry)

    def stop(self) -> None:
        """Start nothing any more."""
        self.is_stopped = True
        self._horizon = 0
        self._suspects += self._group
        self._group.clear()

    def clear(self) -> None:
        """Forget all messages, and start nothing any more."""
        self.stop()
        self._ready.clear()
        self._suspects.clear()

    @property
    def ready_count(self) -> int:
        return len(self._ready) + len(self._suspects) + len(self._group)

    @property
    def may_start(self) -> bool:
        """Whether :meth:`next` has a message."""
        ready = self._ready
        return bool(self._group or (ready and not self.is_held_back and ready[0].offset < self._horizon))

    @property
    def has_group(self) -> bool:
        """Whether messages of a group wait for a receiver."""
        return bool(self._group)

    @property
    def has_suspects(self) -> bool:
        """Whether suspects wait for their group."""
        return bool(self._suspects) and not self.is_stopped

    @property
    def is_starved(self) -> bool:
        """Whether the next ready message waits for a commit."""
        return bool(self._ready) and self._ready[0].offset >= self._horizon and not self.is_stopped

    # ---- commits -------------------------------------------------------------------------------------------------

    def forbid(self) -> None:
        """Allow no start until another commit: the next one says that nothing runs."""
        self._horizon = 0

    def wanted(self, position: int) -> Start:
        """Return what the next commit should allow. ``position``: all messages below it were read."""
        if self.is_stopped:
            return NO_START
        base = max(self._started_end, self._ready[0].offset if self._ready else position)
        ahead = _MIN_AHEAD
        if self._started_first:
            ahead = max(ahead, _AHEAD_FACTOR * (self._started_end - self._started_first))
        return Start(0, self._horizon if self._horizon - base >= ahead // 2 else base + ahead)

    def next_group(self) -> Start:
        """Return the next group of suspects."""
        suspects = sorted(self._suspects, key=_order)
        size = self._next_group or min(max(1, len(suspects) // _FIRST_GROUPS), _MAX_IN_GROUP)
        suspects = suspects[: 1 if suspects[0].crashes else size]
        below = [entry.offset for entry in suspects if entry.offset < self._cause_end]
        offsets = below or [entry.offset for entry in suspects]
        return Start(min(offsets), max(offsets) + 1, len(offsets))

    def allow(self, start: Start) -> None:
        """Note that a commit with ``start`` succeeded."""
        self.start = start
        self._started_first = 0
        if self.is_stopped:
            return
        if start.group:
            inside: list[Entry] = []
            outside: deque[Entry] = deque()
            for entry in self._suspects:
                (inside if start.first <= entry.offset < start.end else outside).append(entry)
            self._group.extend(sorted(inside, key=_order))
            self._suspects = outside
            if start.first >= self._cause_end:
                self._next_group = min(2 * start.group, _MAX_IN_GROUP)
        else:
            self._horizon = start.end


def _order(entry: Entry) -> tuple[int, int]:
    return -entry.crashes, entry.offset
