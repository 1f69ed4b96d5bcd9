"""Where and on what was measured: a figure without these is worth nothing."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from tests.harness.process import ROOT
from timers.broker import jars, java

PACKAGES = ("faust-streaming", "aiokafka", "confluent-kafka", "rocksdict", "protobuf")


def _said(*command: str, root: Path = ROOT) -> str:
    """What a command prints, or nothing if there is no such command."""
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
    """Short hash of the commit of a checkout, and whether its files differ from it outside the results."""
    changed = _said("git", "status", "--porcelain", "--", ".", ":!bench/results", root=root)
    return _said("git", "rev-parse", "--short=10", "HEAD", root=root) or "no-commit", bool(changed)


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
        "java": (_said(str(java.find()), "-version").splitlines() or ["unknown"])[0],
        "kafka": jars.kafka_version(),
        "packages": {name: version(name) for name in PACKAGES},
    }


def sentence(machine: dict[str, Any]) -> str:
    """All of it in one line for a person."""
    packages = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    return (
        f"commit {machine['commit']}{' with uncommitted changes' if machine['dirty'] else ''}, {machine['date']}, "
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gb']} GB, Python {machine['python']}, "
        f"{machine['java']}, Kafka {machine['kafka']}, {packages}"
    )
