"""Describes the machine, the commit and the versions of a benchmark."""

import os
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from tests.harness import kafka_version
from tests.harness.process import ROOT
from timers.process import java

PACKAGES = ("faust-streaming", "aiokafka", "confluent-kafka", "rocksdict", "protobuf")


def _output_of(*command: str, root: Path = ROOT) -> str:
    """The output of a command; empty if it fails or does not exist."""
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout or done.stderr).strip() if done.returncode == 0 else ""


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def commit(root: Path = ROOT) -> tuple[str, bool]:
    """(short commit hash of a checkout, whether files other than results are changed)."""
    changed = _output_of("git", "status", "--porcelain", "--", ".", ":!bench/results", root=root)
    return _output_of("git", "rev-parse", "--short=10", "HEAD", root=root) or "no-commit", bool(changed)


def describe() -> dict[str, Any]:
    """Commit, time, machine and versions."""
    short, dirty = commit()
    return {
        "commit": short,
        "dirty": dirty,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": platform.platform(terse=True),
        "load_before": [round(value, 2) for value in psutil.getloadavg()],
        "python": platform.python_version(),
        "java": (_output_of(str(java.for_broker()), "-version").splitlines() or ["unknown"])[0],
        "kafka": kafka_version.chosen(),
        "packages": {name: version(name) for name in PACKAGES},
    }


def sentence(machine: dict[str, Any]) -> str:
    """The description as one line of text."""
    packages = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    return (
        f"commit {machine['commit']}{' with uncommitted changes' if machine['dirty'] else ''}, {machine['date']}, "
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gb']} GB, Python {machine['python']}, "
        f"{machine['java']}, Kafka {machine['kafka']}, {packages}"
    )
