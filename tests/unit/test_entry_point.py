"""The command ``timers`` names a file that Python takes for our package."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import kafka_timers

ROOT = Path(__file__).parents[2]


def start(*path: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, "-c", "import kafka_timers; kafka_timers.main()", "--version"]
    return subprocess.run(command, cwd=path[0], env=environment, capture_output=True, text=True)


def test_the_command_is_this_module() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"timers": "kafka_timers:main"}
    assert project["tool"]["setuptools"]["py-modules"] == ["kafka_timers", "pyspark_timers"]
    assert kafka_timers.not_ours() is None
    assert start(ROOT).stdout.startswith("timers ")


def test_a_file_of_the_user_is_named_and_not_run(tmp_path: Path) -> None:
    mine = tmp_path / "timers.py"
    mine.write_text("print('mine')")
    done = start(tmp_path, ROOT)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"timers: Python takes {mine} for the package timers of kafka-timers: rename this file, or take its folder out "
        "of PYTHONPATH\n"
    )


def test_a_package_of_the_user_is_named(tmp_path: Path) -> None:
    (tmp_path / "timers").mkdir()
    (tmp_path / "timers" / "__init__.py").touch()
    assert f"Python takes {tmp_path}/timers/__init__.py for" in start(tmp_path, ROOT).stderr


def test_another_distribution_that_replaced_our_file_is_named(tmp_path: Path) -> None:
    """``timers`` 0.9.2 of 2015 installs ``timers/__init__.py`` and ``timers/heap.py``."""
    (tmp_path / "timers" / "cli").mkdir(parents=True)
    (tmp_path / "timers" / "__init__.py").write_text("# Copyright (c) 2015\n")
    found = start(tmp_path, ROOT)
    assert found.returncode == 1
    assert f"another distribution has replaced {tmp_path}/timers/__init__.py: pip uninstall timers" in found.stderr
