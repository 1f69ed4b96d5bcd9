"""The limits of a process: of open files, threads, memory and garbage, and those of a queue."""

from __future__ import annotations

import contextlib
import gc
import resource
from pathlib import Path

_UNLIMITED = 2**63 - 1
_MOST_FILES = 1_048_576
"""The most that is asked for. A hard limit may be unlimited, and no system opens as many."""

_CGROUP = Path("/sys/fs/cgroup")

MAX_CONCURRENCY = 10_000
"""Maximum number of threads or tasks that run handlers of a queue in one process."""

MAX_PROCESSES = 256
"""Maximum number of child processes of a queue. Each takes about 70 MB, so many more would stop the machine."""


def raise_open_files() -> int:
    """Raise the soft limit of open files as far as the hard limit allows, and return it.

    The usual soft limit of 1,024 is meant for programs that call ``select``. This project calls ``epoll`` and ``poll``.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS refuses more than its own limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def most_threads() -> int:
    """Returns how many threads this process may have; if a group or a user has a limit, all its processes together."""
    limits = [_UNLIMITED, *_numbers("pids.max", "pids/pids.max")]
    with contextlib.suppress(AttributeError, OSError, ValueError):  # not every system has this limit
        processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        limits += [] if processes == resource.RLIM_INFINITY else [processes]
    return min(limits)


def most_memory_bytes() -> int:
    """Returns how much memory this process and the others of its group may have."""
    return min([_UNLIMITED, *_numbers("memory.max", "memory/memory.limit_in_bytes")])


def _numbers(*names: str) -> list[int]:
    """The numbers in files of the process's control group, by version 2 and 1 of Linux's groups. "max" is no number."""
    found = []
    for name in names:
        with contextlib.suppress(OSError, ValueError):
            found.append(int((_CGROUP / name).read_text()))
    return found


def collect_garbage_seldom() -> None:
    """Let the garbage collector wait for more new objects. Batches of records are many and short-lived: by default it
    scans them again and again, which takes more time than to unpack them."""
    gc.set_threshold(100_000, 50, 50)
