"""Finds the Java runtimes of this machine, for the embedded broker and for Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

_ANSWER_TIMEOUT_S = 20


def candidates() -> Iterator[Path]:
    """Yield the ``java`` of ``JAVA_HOME``, then that of the ``PATH``. It is not checked whether they run."""
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)


def version(java: Path) -> int:
    """Return the major version of a runtime; 0 if it does not run, such as the placeholder of macOS."""
    try:
        answer = subprocess.run(
            [java, "-version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWER_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?([0-9]+)', answer.stderr)
    return int(found[1]) if found and answer.returncode == 0 else 0
