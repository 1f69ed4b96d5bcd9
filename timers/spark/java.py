"""The Java that Spark runs on. ``python -m timers.spark.java`` says whether it is there."""

from __future__ import annotations

import sys

from timers import java
from timers.errors import SparkError

OLDEST, NEWEST = 17, 21
"""Spark 4.0 is released for Java 17 and 21."""

_HOW = (
    "install one (Debian, Ubuntu: apt install openjdk-17-jre-headless; Fedora: dnf install java-21-openjdk-headless; "
    "macOS: brew install openjdk@17), and set JAVA_HOME if it is not the first"
)


def require() -> None:
    """Make sure that Spark finds a Java it can run on: that of ``JAVA_HOME``, else the first of the ``PATH``.

    Raises:
        SparkError: there is none, or one of another version.
    """
    runtime = next(java.installed(), None)
    found = 0 if runtime is None else java.version(runtime)
    if not OLDEST <= found <= NEWEST:
        what = f"{runtime} is Java {found}" if found else f"{runtime} does not run" if runtime else "there is none here"
        raise SparkError(f"Spark needs Java {OLDEST} to {NEWEST}, and {what}: {_HOW}")


if __name__ == "__main__":
    try:
        require()
    except SparkError as error:
        sys.exit(str(error))
