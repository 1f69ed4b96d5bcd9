"""Checks for a Java that Spark can run on. ``python -m timers.spark.java`` prints what is missing."""

from __future__ import annotations

import sys

from timers import java
from timers.errors import SparkError

OLDEST, NEWEST = 17, 21
"""Spark 4.0 is released for Java 17 and 21."""

_HOW = (
    "install one (Debian, Ubuntu: apt install openjdk-17-jre-headless; Fedora: dnf install java-21-openjdk-headless; "
    "macOS: brew install openjdk@17), and set JAVA_HOME if another Java is the first one on the PATH"
)


def require() -> None:
    """Check that Spark finds a suitable Java: in ``JAVA_HOME``, otherwise the first one on the ``PATH``."""
    runtime = next(java.candidates(), None)
    found = 0 if runtime is None else java.version(runtime)
    if not OLDEST <= found <= NEWEST:
        what = f"{runtime} is Java {found}" if found else f"{runtime} does not run" if runtime else "no Java was found"
        raise SparkError(f"Spark needs Java {OLDEST} to {NEWEST}, and {what}: {_HOW}")


if __name__ == "__main__":
    try:
        require()
    except SparkError as error:
        sys.exit(str(error))
