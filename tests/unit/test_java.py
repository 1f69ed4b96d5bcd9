"""The Java version that Spark needs, and the error for other versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from timers import java
from timers.errors import SparkError


def runtime(home: Path, answer: str) -> Path:
    """Make a ``java`` program that prints a version."""
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
    path.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ('openjdk version "17.0.15" 2025-04-15', None),
        ('openjdk version "21" 2023-09-19', None),
        ('java version "1.8.0_402"', "is Java 8: install one"),
        ('openjdk version "25.0.1" 2025-10-21', "is Java 25: install one"),
        ("no runtime present", "java does not run: install one"),
    ],
)
def test_spark_runs_on_some_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, expected: str | None
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(runtime(tmp_path / "home", answer)))
    if expected is None:
        java.check_for_spark()
        return
    with pytest.raises(SparkError, match=expected):
        java.check_for_spark()


def test_a_machine_without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        SparkError,
        match=r"^Spark needs Java 17 to 21, and no Java was found: install one .*apt install openjdk-17-jre-headless",
    ):
        java.check_for_spark()
