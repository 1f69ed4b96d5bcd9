"""Processes that are measured: their output with the time of each line, their CPU seconds, their peak memory."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil  # type: ignore[import-untyped]

_started: list[Process] = []


def stop_everything() -> None:
    """End whatever is still running of what was started: for the way out after an error or Ctrl-C."""
    for process in _started:
        if process.running:
            process.stop(5)


class Process:
    """One child process in its own session. Its output goes, line by line, to ``log`` and to :attr:`lines`."""

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path) -> None:
        self.name = name
        self.log = log
        self.lines: list[tuple[float, str]] = []
        self.started_at = time.time()
        self._popen = subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        _started.append(self)
        self._reader = threading.Thread(target=self._read, name=f"log of {name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def log_name(self) -> str:
        """Run and file of the log: results must not hold a path of this machine."""
        return "/".join(self.log.parts[-2:])

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def _read(self) -> None:
        assert self._popen.stdout is not None
        with self.log.open("a") as log:
            for line in self._popen.stdout:
                self.lines.append((time.time(), line.rstrip("\n")))
                log.write(line)
                log.flush()

    def wait_for(self, pattern: str, timeout_s: float) -> tuple[float, re.Match[str]]:
        """Wait until a line of the output matches; the time it came and the match.

        Raises:
            RuntimeError: the process ended, or nothing matched in time. The message carries the last lines.
        """
        regex, seen, deadline = re.compile(pattern), 0, time.monotonic() + timeout_s
        while True:
            alive = self.running
            while seen < len(self.lines):
                at, line = self.lines[seen]
                seen += 1
                if match := regex.search(line):
                    return at, match
            if not alive or time.monotonic() > deadline:
                what = (
                    f"said no /{pattern}/ within {timeout_s:.0f} s"
                    if alive
                    else f"ended, exit {self._popen.returncode}"
                )
                raise RuntimeError(f"{self.name} {what}; its last lines ({self.log_name}):\n{self.tail()}")
            time.sleep(0.05)

    def tail(self, lines: int = 15) -> str:
        """The last lines of the output."""
        return "\n".join(line for _, line in self.lines[-lines:])

    def wait(self, timeout_s: float) -> int:
        """Wait for the end of the process; its exit code."""
        code = self._popen.wait(timeout_s)
        self._reader.join(5)
        return code

    def stop(self, timeout_s: float = 30) -> int:
        """SIGTERM, and SIGKILL to what is left of its session after ``timeout_s``. The exit code."""
        family = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self.pid).children(recursive=True)
        if self.running:
            self._popen.send_signal(signal.SIGTERM)
        try:
            return self.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            return self.wait(10)
        finally:
            for child in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()


def _cpu_s(process: psutil.Process, children: Iterable[psutil.Process]) -> float:
    """User and system seconds of a process and of everything below it, ended children included."""
    total = 0.0
    for one in (process, *children):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.system + (times.children_user + times.children_system if one is process else 0)
    return total


def _peak_bytes(process: psutil.Process) -> int:
    """Peak resident memory of one process: the kernel's own high-water mark where there is one."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return int(process.memory_info().rss)


class PartitionMetrics:
    """Samples named groups of processes every :data:`EVERY_S` from its start until it is closed.

    CPU seconds between any two moments come from the samples around them, so they are as exact as that.
    """

    EVERY_S = 0.2
    FAMILY_EVERY = 10
    """Children are looked for on every so many samples: that walks all processes of the machine."""

    def __init__(self, groups: Mapping[str, Iterable[int]]) -> None:
        self._groups = {name: [psutil.Process(pid) for pid in pids] for name, pids in groups.items()}
        self._family: dict[int, list[psutil.Process]] = {}
        self._own = psutil.Process()
        self._at: list[float] = []
        self._cpu: dict[str, list[float]] = {name: [] for name in (*self._groups, "bench", "machine")}
        self._peak: dict[int, int] = {}
        self._close = threading.Event()
        self._thread = threading.Thread(target=self._run, name="partition metrics", daemon=True)
        self._sample()
        self._thread.start()

    def _run(self) -> None:
        while not self._close.wait(self.EVERY_S):
            self._sample()

    def _sample(self) -> None:
        now = time.time()
        look = len(self._at) % self.FAMILY_EVERY == 0
        for name, processes in self._groups.items():
            total = 0.0
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    if look:
                        self._family[process.pid] = process.children(recursive=True)
                    children = self._family.get(process.pid, [])
                    total += _cpu_s(process, children)
                    for one in (process, *children):
                        with contextlib.suppress(psutil.NoSuchProcess):
                            self._peak[one.pid] = max(self._peak.get(one.pid, 0), _peak_bytes(one))
            series = self._cpu[name]
            series.append(max(total, series[-1] if series else 0.0))  # an ended process keeps what it had used
        own, machine = self._own.cpu_times(), psutil.cpu_times()
        self._cpu["bench"].append(own.user + own.system)
        self._cpu["machine"].append(sum(machine) - machine.idle - getattr(machine, "iowait", 0.0))
        self._at.append(now)

    def cpu_s(self, group: str, since: float | None = None, until: float | None = None) -> float:
        """CPU seconds of a group between two epoch times; from its beginning if ``since`` is None."""
        return self._value(group, until) - (0.0 if since is None else self._value(group, since))

    def others_cpu_s(self, since: float, until: float) -> float:
        """CPU seconds that the machine spent on anything that is not part of the benchmark: how noisy it was."""
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
        """Peak resident memory of a group in MB: the sum of its processes' own peaks."""
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
        """Take a last sample and stop."""
        self._close.set()
        self._thread.join(5)
        self._sample()
