"""The package index has a wheel of each locked package, for each machine and each Python that the project supports.

pip is asked for all of them, as on such a machine. It judges markers by the Python that it runs on
(findings/pip-markers-of-another-python.sh), so they are judged here, and the lock must have what the packages need
there.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSIONS = re.findall(r"'Programming Language :: Python :: (3\.\d+)'", str(PROJECT["classifiers"]))
EXTRAS = ("worker", "broker", "console", "oidc")
"""What requirements.txt has."""

GLIBC = 36
"""The C library of Debian 12, whose Python the image has, is 2.36: pip takes wheels for it and for older ones."""


class Machine(NamedTuple):
    """A kind of machine.

    Attributes:
        system: as ``platform_system`` says it.
        machine: as ``platform_machine`` says it.
        built: packages that have no wheel for it, and are built from their source.
    """

    system: str
    machine: str
    built: frozenset[str]

    @property
    def platforms(self) -> list[str]:
        if self.system == "Darwin":
            return [f"macosx_{release}_0_{self.machine}" for release in range(11, 16)]
        glibc = [f"manylinux_2_{minor}_{self.machine}" for minor in range(5, GLIBC + 1)]
        return [*glibc, f"manylinux2014_{self.machine}", f"manylinux2010_{self.machine}", f"manylinux1_{self.machine}"]

    def environment(self, version: str) -> dict[str, str]:
        """Values of markers."""
        return {
            **{name: str(value) for name, value in default_environment().items()},
            "python_version": version,
            "python_full_version": f"{version}.0",
            "platform_system": self.system,
            "platform_machine": self.machine,
            "sys_platform": self.system.lower(),
            "extra": "",
        }


MACHINES = [
    Machine("Linux", "x86_64", frozenset()),
    # docs/install.md and deploy/Dockerfile say so.
    Machine("Linux", "aarch64", frozenset({"faust-streaming"})),
    Machine("Darwin", "arm64", frozenset()),
]


def locked() -> list[Requirement]:
    """The pins of the lock."""
    lines = re.findall(r"^[a-z0-9._\[\]-]+==[^\\\n]+", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    return [Requirement(line) for line in lines]


def wheels(machine: Machine, version: str, pins: list[str], scratch: Path) -> list[dict[str, Any]]:
    """What pip would install there: one entry of its report for each pin, with the metadata of the wheel."""
    report = scratch / "report.json"
    # "--ignore-installed": what this environment has would not be asked for.
    how = ["--dry-run", "--ignore-installed", "--no-deps", "--only-binary", ":all:", "--report", str(report), "--quiet"]
    number = version.replace(".", "")
    there = ["--target", str(scratch), "--implementation", "cp", "--python-version", version]
    there += [option for abi in (f"cp{number}", "abi3", "none") for option in ("--abi", abi)]
    there += [option for platform in machine.platforms for option in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *how, *there, *pins]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(report.read_text())["install"]
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: f"{machine.system}-{machine.machine}")
def test_each_locked_package_has_a_wheel_or_is_named(machine: Machine, version: str, tmp_path: Path) -> None:
    environment = machine.environment(version)
    there = [each for each in locked() if not each.marker or each.marker.evaluate(environment)]
    pins = {canonicalize_name(each.name): f"{each.name}{each.specifier}" for each in there}
    found = wheels(machine, version, [pin for name, pin in pins.items() if name not in machine.built], tmp_path)
    assert {canonicalize_name(each["metadata"]["name"]) for each in found} == pins.keys() - machine.built

    lock = (ROOT / "requirements.txt").read_text()
    for each in found:
        assert each["download_info"]["archive_info"]["hashes"]["sha256"] in lock, each["download_info"]["url"]

    # A package may need others on another Python or machine than the one on which the lock was made.
    ours = [*PROJECT["dependencies"], *(each for extra in EXTRAS for each in PROJECT["optional-dependencies"][extra])]
    needed = [("kafka-timers", each) for each in ours]
    needed += [
        (each["metadata"]["name"], requirement)
        for each in found
        for requirement in each["metadata"].get("requires_dist", [])
    ]
    for name, text in needed:
        requirement = Requirement(text)
        if not requirement.marker or requirement.marker.evaluate(environment):
            pin = pins.get(canonicalize_name(requirement.name))
            assert pin, f"{name} needs {text} there, which the lock lacks"
            assert requirement.specifier.contains(pin.partition("==")[2], prereleases=True), f"{name}: {text}, {pin}"


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_named_really_has_no_wheel(version: str, tmp_path: Path) -> None:
    """When it gets one, deploy/Dockerfile need not build it any more."""
    for machine in MACHINES:
        for each in locked():
            if each.name in machine.built:
                with pytest.raises(AssertionError, match="No matching distribution found"):
                    wheels(machine, version, [f"{each.name}{each.specifier}"], tmp_path)
