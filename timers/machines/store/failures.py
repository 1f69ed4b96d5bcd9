"""Errors of RocksDB: what each one means, and what a user can do.

An error of the system, such as a full disk, ends the worker with a sentence, and the store stays as it is. Any other
error means that the store is damaged: it is emptied, and filled again from a snapshot or the request log.
"""

from __future__ import annotations

import errno
import os
import traceback
from collections import deque
from pathlib import Path
from time import monotonic

from timers.core.backoff import Pauses
from timers.core.ports import Lost
from timers.errors import StoreError, StoreInUse

UNREADABLE, INCOMPLETE, WRITE_REFUSED, STALE = "unreadable", "incomplete", "write-refused", "stale"
"""Why a store is condemned: a read failed; files are missing; RocksDB takes no more writes; the store has not
kept up with a compacted log."""

_SPACE = "make space there"
_INODES = "delete files there, as all inodes of this file system are used (df -i), though it has space"
_RIGHTS = "let the worker's user write there"
_FILES = "raise the limit of open files (ulimit -n)"
REMEDIES = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: _RIGHTS,
    errno.ENOMEM: "give the worker more memory",
}
"""Error of the system -> what to do. RocksDB reports it as text that ends with the system's own message."""

_FILLED = "it is filled again from a snapshot or the request log"

_STALLED = "Write stall"
_LOCKED_HERE, _LOCKED = "lock hold by current process", "While lock file"

PAUSE_AFTER = 3
"""If one store was condemned this many times within :data:`WINDOW_S`, each rebuild waits."""
PAUSES = Pauses(10.0, 600.0)
WINDOW_S = 86_400.0
"""Seconds; longer than the longest rebuild."""


class StoreDamaged(Lost):
    """A store cannot be read or written. It is condemned: the next opening begins with an empty one.

    Attributes:
        pause_s: seconds to wait before the store is opened again.
    """

    def __init__(self, message: str, pause_s: float) -> None:
        super().__init__(message)
        self.pause_s = pause_s


class StoreWaits(Lost):
    """A store cannot be opened now, and is tried again: nothing is damaged, and other partitions go on."""


class Condemnations:
    """Counts the condemned stores of one worker, and computes how long each rebuild must wait.

    Attributes:
        by_reason: reason -> stores condemned since the worker started.
    """

    def __init__(self) -> None:
        self.by_reason = dict.fromkeys((UNREADABLE, INCOMPLETE, WRITE_REFUSED, STALE), 0)
        self._times: dict[Path, deque[float]] = {}

    def count(self, path: Path, reason: str) -> float:
        """Count one store; returns the seconds to wait before it is rebuilt: 0 unless it was condemned repeatedly."""
        self.by_reason[reason] += 1
        times, now = self._times.setdefault(path, deque(maxlen=20)), monotonic()
        while times and times[0] < now - WINDOW_S:
            times.popleft()
        times.append(now)
        again = len(times) - PAUSE_AFTER + 1
        return PAUSES.after(again) if again > 0 else 0.0

    def damaged(self, path: Path, reason: str, why: object) -> StoreDamaged:
        pause_s = self.count(path, reason)
        message = f"the store in {path} is damaged, {reason}: {_one_line(why)}. It is emptied, and "
        if pause_s:
            message += (
                f"after {pause_s:.0f} s {_FILLED}; this happened {len(self._times[path])} times "
                "within a day: check the disk and the memory of this machine, or set TIMERS_DATA_DIR to another disk"
            )
        else:
            message += _FILLED
        return StoreDamaged(message, pause_s)


def refusal(path: Path, error: object) -> StoreError | StoreWaits | None:
    """The error for a refusal of the system, or for a store that is open elsewhere; None for any other error."""
    text = str(error)
    if _LOCKED_HERE in text:
        return StoreWaits(
            f"the store in {path} is still open in this worker; it is opened again when the former opening has ended"
        )
    if _STALLED in text:
        return StoreWaits(f"the disk of the store in {path} is too slow; the store is opened again when it is closed")
    if _LOCKED in text:
        return StoreInUse(_sentence(path, f"another process has it open: {_one_line(text)}", "end that process"))
    for code, remedy in REMEDIES.items():
        if os.strerror(code) in text:
            if code == errno.ENOSPC and _has_no_inodes(path):
                remedy = _INODES
            return StoreError(_sentence(path, os.strerror(code), f"{remedy}, or set TIMERS_DATA_DIR to another disk"))
    return None


def _has_no_inodes(path: Path) -> bool:
    """Whether the file system has no room for another file."""
    there = next(each for each in (path, *path.absolute().parents) if each.exists())
    room = os.statvfs(there)
    return room.f_files > 0 and room.f_favail == 0  # btrfs has no limit, and says 0 files


def failure(path: Path, error: object) -> StoreError | StoreWaits:
    """The error for a store that cannot be made, emptied or closed, for any reason."""
    remedy = "replace the disk, or set TIMERS_DATA_DIR to another disk"
    return refusal(path, error) or StoreError(_sentence(path, _one_line(error), remedy))


def _sentence(path: Path, what: str, remedy: str) -> str:
    return (
        f"the store in {path} does not work: {what}. Nothing was deleted: {remedy}, and start the worker again; what "
        "the store lacks comes from a snapshot or the request log"
    )


def forget_frames(error: BaseException) -> None:
    """Clear the local variables of the frames of an error and of its causes.

    An iterator over a store keeps its files locked after its close, until the iterator is freed.
    """
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__


def _one_line(error: object) -> str:
    return " ".join(str(error).split())
