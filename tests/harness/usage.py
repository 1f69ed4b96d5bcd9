"""CPU seconds and memory of running processes, sampled while a benchmark runs."""

import contextlib
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil


def _cpu_s(process: psutil.Process, children: Iterable[psutil.Process]) -> float:
    """User and system seconds of a process and its running children, and of children that it has waited for."""
    total = 0.0
    for one in (process, *children):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.system + (times.children_user + times.children_system if one is process else 0)
    return total


COMPILERS = ("C1 CompilerThre", "C2 CompilerThre")
"""Names of the threads in which a Java virtual machine compiles, as Linux cuts them."""


class _Compiling:
    """CPU seconds that Java processes have compiled for. After its start a broker compiles for minutes, as much as its
    work takes: this says nothing of its load, and the system that is measured first would bear most of it."""

    def __init__(self) -> None:
        self._threads: dict[int, list[Path]] = {}
        self._seconds: dict[Path, float] = {}

    def look(self, pid: int) -> None:
        """Look for the threads of a process; without /proc it has none."""
        found = []
        for thread in Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(OSError):
                if (thread / "comm").read_text().strip() in COMPILERS:
                    found.append(thread)
        self._threads[pid] = found

    def cpu_s(self, pid: int) -> float:
        """Those of a process, up to now."""
        for thread in self._threads.get(pid, ()):
            with contextlib.suppress(OSError):
                fields = (thread / "stat").read_text().rpartition(")")[2].split()
                self._seconds[thread] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return sum(seconds for thread, seconds in self._seconds.items() if thread.parts[2] == str(pid))


def _peak_bytes(process: psutil.Process) -> int:
    """Peak resident memory of one process as the kernel counts it; without /proc, the memory it has now."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return int(process.memory_info().rss)


class UsageSampler:
    """Samples named groups of processes every :data:`EVERY_S` from its start until it is closed.

    CPU seconds between two moments are interpolated from the samples around them, so their error is small. Those in
    which Java compiles do not count.

    Args:
        groups: name of a group -> its process ids.
    """

    EVERY_S = 0.2
    CHILDREN_EVERY = 10
    """Child processes are listed in one of this many samples, because that reads all processes of the machine."""

    def __init__(self, groups: Mapping[str, Iterable[int]]) -> None:
        self._groups = {name: [psutil.Process(pid) for pid in pids] for name, pids in groups.items()}
        self._family: dict[int, list[psutil.Process]] = {}
        self._compiling = _Compiling()
        self._own = psutil.Process()
        self._at: list[float] = []
        self._cpu: dict[str, list[float]] = {name: [] for name in (*self._groups, "bench", "machine")}
        self._peak: dict[int, int] = {}
        self._close = threading.Event()
        self._thread = threading.Thread(target=self._run, name="usage sampler", daemon=True)
        self._sample()
        self._thread.start()

    def _run(self) -> None:
        while not self._close.wait(self.EVERY_S):
            self._sample()

    def _sample(self) -> None:
        now = time.time()
        look = len(self._at) % self.CHILDREN_EVERY == 0
        for name, processes in self._groups.items():
            total = 0.0
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    if look:
                        self._compiling.look(process.pid)
                        self._family[process.pid] = process.children(recursive=True)
                    children = self._family.get(process.pid, [])
                    total += _cpu_s(process, children) - self._compiling.cpu_s(process.pid)
                    for one in (process, *children):
                        with contextlib.suppress(psutil.NoSuchProcess):
                            self._peak[one.pid] = max(self._peak.get(one.pid, 0), _peak_bytes(one))
            series = self._cpu[name]
            series.append(max(total, series[-1] if series else 0.0))  # an ended process keeps its last value
        own, machine = self._own.cpu_times(), psutil.cpu_times()
        self._cpu["bench"].append(own.user + own.system)
        self._cpu["machine"].append(sum(machine) - machine.idle - getattr(machine, "iowait", 0.0))
        self._at.append(now)

    def cpu_s(self, group: str, since: float | None = None, until: float | None = None) -> float:
        """CPU seconds of a group between two epoch times; None: from its start, or until now."""
        return self._value(group, until) - (0.0 if since is None else self._value(group, since))

    def others_cpu_s(self, since: float, until: float) -> float:
        """CPU seconds of all other programs of the machine between two epoch times, a measure of noise."""
        ours = sum(self.cpu_s(name, since, until) for name in (*self._groups, "bench"))
        return max(0.0, self.cpu_s("machine", since, until) - ours)

    def _value(self, group: str, at: float | None) -> float:
        times, values = self._at, self._cpu[group]
        if at is None:
            return values[-1]
        right = min(bisect_left(times, at), len(times) - 1)
        left = max(0, right - 1)
        span = times[right] - times[left]
        share = 0.0 if span <= 0 else min(1.0, max(0.0, (at - times[left]) / span))
        return values[left] + share * (values[right] - values[left])

    def peak_mb(self, group: str) -> float:
        """Peak resident memory of a group in MB: the sum of the peaks of its processes."""
        pids = {process.pid for process in self._groups[group]}
        return sum(peak for pid, peak in self._peak.items() if pid in pids) / 1e6

    def rss_mb(self, group: str) -> float:
        """Resident memory of a group's processes now, in MB; 0 for one that has ended."""
        total = 0
        for process in self._groups[group]:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total / 1e6

    def close(self) -> None:
        """Take a last sample and end the thread."""
        self._close.set()
        self._thread.join(5)
        self._sample()
