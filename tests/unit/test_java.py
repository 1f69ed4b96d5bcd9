"""The Java version that Spark needs, and the error for other versions."""

from pathlib import Path

import pytest

from timers.cli.broker.process import main_error
from timers.errors import SettingsError, SparkError
from timers.process import jars, java
from timers.process.config.settings import Settings


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


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "java.net.UnknownHostException: build-7: build-7: Name or service not known",
            "the host name build-7 does not resolve: if it is the name of this machine, add it to /etc/hosts",
        ),
        (
            "javax.security.auth.login.LoginException: java.lang.NullPointerException: invalid null input: name\n"
            "\tat com.sun.security.auth.UnixPrincipal.<init>(UnixPrincipal.java:71)",
            "the user id of this process has no entry in /etc/passwd",
        ),
        (
            "java.lang.IllegalArgumentException: basedir must be absolute: ?/.ivy2/local",
            "the user id of this process has no entry in /etc/passwd",
        ),
    ],
)
def test_a_cause_that_java_does_not_name_is_named(text: str, sentence: str) -> None:
    assert (java.cause(text) or "").startswith(sentence)
    assert main_error(["2026-11-27 10:00:00,000 ERROR it ended", *text.splitlines()[:1]]).startswith(sentence)


def test_other_failures_of_java_stay_as_they_are() -> None:
    assert java.cause("java.lang.OutOfMemoryError: Java heap space") is None


def test_a_process_without_a_home_directory_is_told_to_set_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_entry(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", no_entry)
    with pytest.raises(SettingsError, match=r"TIMERS_DATA_DIR='~/data' is not a path without ~.*set HOME"):
        Settings.load({"TIMERS_DATA_DIR": "~/data"})
    with pytest.raises(SettingsError, match="set HOME, or XDG_CACHE_HOME"):
        jars.cache_dir()
