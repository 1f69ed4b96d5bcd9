"""An installation without extras is small, the client and its commands work, and other commands name their extra."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import resources
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement

from timers.cli import lazy
from timers.errors import MissingExtraError

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MOST_BYTES = 40_000_000


def canonical(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


def names(requirements: list[str]) -> set[str]:
    """The packages that are named, without those of extras."""
    return {canonical(re.split(r"[<>=; \[]", each)[0]) for each in requirements if "extra ==" not in each}


def with_dependencies(requirements: list[str]) -> set[str]:
    """The packages of requirements, and of their requirements."""
    found: set[str] = set()
    waiting = names(requirements)
    while waiting:
        name = waiting.pop()
        found.add(name)
        needed = map(Requirement, distribution(name).requires or [])
        waiting |= {canonical(each.name) for each in needed if not each.marker or each.marker.evaluate()} - found
    return found


BASE = with_dependencies(PROJECT["dependencies"])


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the packages of an installation without extras."""
    directory = tmp_path_factory.mktemp("light")
    (directory / "timers").symlink_to(ROOT / "timers")
    for name in BASE:
        installed = distribution(name)
        for top in {file.parts[0] for file in installed.files or [] if file.parts[0] != ".."}:
            (directory / top).symlink_to(Path(str(installed.locate_file(top))))
    return directory


def run(light: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these packages only."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIMERS_")}
    # An empty cache, without the jars of the embedded broker.
    environment |= {"PYTHONPATH": str(light), "XDG_CACHE_HOME": str(light / "cache"), **variables}
    command = [sys.executable, "-S", *arguments]
    return subprocess.run(command, cwd=light, env=environment, capture_output=True, text=True)


def test_it_is_small() -> None:
    installed = [distribution(name) for name in BASE]
    files = {Path(str(each.locate_file(file))) for each in installed for file in each.files or []}
    files |= {path for path in (ROOT / "timers").rglob("*") if "__pycache__" not in path.parts}
    size = sum(path.stat().st_size for path in files if path.is_file())
    assert size < MOST_BYTES, f"{size} bytes in {sorted(BASE)}"


def test_all_commands_can_be_listed_and_client_and_queue_imported(light: Path) -> None:
    program = """
from timers.cli.main import cli
from timers.client import AsyncTimersClient, TimersClient
from timers.offline.dead_letters.retrying import Retry
from timers.queue import AsyncQueue, Queue
for name in cli.list_commands(None):
    assert cli.get_command(None, name) is not None
"""
    assert run(light, "-c", program).stderr == ""


def test_simulated_timers_need_no_extra(light: Path) -> None:
    program = """
from timers.testing import SimQueue, SimTimers
queue = SimQueue()
queue.send(b"v", delay=5)
queue.advance(5)
assert queue.run(print) == 1
timers = SimTimers()
timers.schedule("t", "k", b"v", delay=5)
timers.schedule("t", "k", b"v", delay=5, id="a", if_absent=True)
timers.restart(lose_disk=True)
assert len(timers.advance(6)) == 2
"""
    done = run(light, "-c", program)
    assert (done.returncode, done.stderr) == (0, "")


def test_local_times_ignore_the_zone_files_of_the_machine(light: Path, tmp_path: Path) -> None:
    """Minimal images have none, and others have old ones: zoneinfo reads them first, unless it is told not to."""
    wrong = tmp_path / "America" / "Vancouver"
    wrong.parent.mkdir()
    wrong.write_bytes(resources.files("tzdata.zoneinfo").joinpath("UTC").read_bytes())
    program = """
from datetime import datetime
from zoneinfo import ZoneInfo
from timers.wire.instants import parse_local
assert not datetime(2027, 1, 15, tzinfo=ZoneInfo("America/Vancouver")).utcoffset()
print(parse_local("2027-01-15T09:00 America/Vancouver"))
"""
    done = run(light, "-c", program, PYTHONTZPATH=str(tmp_path))
    assert (done.stdout, done.stderr) == ("(1800028800, '')\n", "")


def test_a_command_names_the_extra_that_it_needs(light: Path) -> None:
    commands = ["worker"], ["run"], ["broker", "start"], ["spark", "audit"], ["spark", "engine"]
    program = f"from timers.cli.main import main\nassert [main(each) for each in {commands}] == [1] * {len(commands)}"
    done = run(light, "-c", program)
    sentence = rf"timers: the package \w+ is not installed: pip install '{re.escape(str(ROOT))}\[(\w+)\]'"
    found = [re.fullmatch(sentence, line) for line in done.stderr.splitlines()]
    extras = [each and each[1] for each in found]
    assert extras == ["worker", "worker", "broker", "spark", "spark"], done.stderr


def test_each_module_of_an_extra_belongs_to_a_package_of_this_extra() -> None:
    packages = {**packages_distributions(), "py4j": ["pyspark"]}
    for extra, modules in lazy.MODULES.items():
        for module in modules:
            assert canonical(packages[module][0]) in names(PROJECT["optional-dependencies"][extra]), module


def test_the_generated_code_works_with_an_older_protobuf_than_the_one_that_generated_it() -> None:
    """``make test-lowest`` runs it with the lower bound. Two major versions later, protobuf may refuse it."""
    generated = [*(ROOT / "timers/v1").glob("*_pb2.py")]
    assert generated and not [each.name for each in generated if "runtime_version" in each.read_text()]
    assert "protobuf>=5.26,<9" in PROJECT["dependencies"]


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'kafka-timers[worker]'"),
        ({"url": "file:///a%20b", "dir_info": {}}, "pip install '/a b[worker]'"),
        ({"url": "file:///src", "dir_info": {"editable": True}}, "pip install -e '/src[worker]'"),
        (
            {"url": "https://git.example/timers.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'kafka-timers[worker] @ git+https://git.example/timers.git@abc'",
        ),
        (
            {"url": "https://x.example/t-0.1.0.whl", "archive_info": {}},
            "pip install 'kafka-timers[worker] @ https://x.example/t-0.1.0.whl'",
        ),
    ],
)
def test_the_command_installs_from_where_the_installation_came(
    origin: dict[str, Any] | None, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = None if origin is None else json.dumps(origin)
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: SimpleNamespace(read_text=lambda _: text))
    assert str(MissingExtraError("faust", "worker")) == f"the package faust is not installed: {command}"
