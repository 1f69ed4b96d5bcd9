"""A release: what its packages say and hold, the steps of its workflow, and what an installed wheel runs.

The tests with the marker ``long`` build the packages, and need the package index.
"""

import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import yaml

from timers.cli.broker.embedded import free_port

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
README = (ROOT / "README.md").read_text()
WORKFLOW = yaml.load((ROOT / ".github" / "workflows" / "release.yml").read_text(), Loader=yaml.BaseLoader)
SOURCE = "https://example.org/owner/timers/tree/v0.1.0"
LINK = re.compile(r"\]\(([^)]*)\)")
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
"""Of Python, which the project supports."""


@pytest.fixture(scope="module")
def setup_py() -> Any:
    spec = spec_from_file_location("setup_py", ROOT / "setup.py")
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- what the packages say -------------------------------------------------------------------------------------------


def test_each_link_of_the_index_page_leads_to_a_file_of_the_version(setup_py: Any) -> None:
    targets = LINK.findall(setup_py.index_page(README, SOURCE))
    assert len(targets) == len(LINK.findall(README)) > 30
    assert all(target.startswith(("https://", "http://")) for target in targets)
    ours = [target for target in targets if target.startswith(SOURCE.partition("/tree/")[0])]
    for target in ours:
        path = target.partition("/v0.1.0/")[2].partition("#")[0]
        assert (ROOT / path).exists(), target
    assert f"{SOURCE}/README.md#numbers" in targets, "an index does not know the anchors of headings"
    assert "https://example.org/owner/timers/raw/v0.1.0/docs/pictures/flow.svg" in targets


def test_without_a_repository_links_to_its_files_become_text(setup_py: Any) -> None:
    page = setup_py.index_page(README, "")
    assert all(target.startswith(("https://", "http://")) for target in LINK.findall(page))
    assert "**Next: First steps**" in page and "(A request waits in timer-request" in page
    assert setup_py.links("") == {}


def test_the_links_beside_the_page_are_of_the_version(setup_py: Any) -> None:
    found = setup_py.links(SOURCE)
    assert found["Source"] == "https://example.org/owner/timers" and found["Changelog"] == f"{SOURCE}/CHANGELOG.md"
    assert all((ROOT / page).exists() for page in setup_py.PAGES.values())


@pytest.mark.parametrize("compiled", [True, False])
def test_the_sbom_names_what_of_others_is_in_a_wheel(setup_py: Any, compiled: bool) -> None:
    document = setup_py.bill_of_materials("kafka-timers", "0.1.0", compiled)
    found = {part["purl"].partition("@")[0] for part in document["components"]}
    of_cython = {"pkg:pypi/cython"} if compiled else set()
    assert found == {"pkg:npm/htmx.org", "pkg:npm/swagger-ui-dist", "pkg:npm/uplot"} | of_cython
    licenses = {part["licenses"][0]["license"]["id"] for part in document["components"]}
    assert licenses <= set(PROJECT["project"]["license"].split(" AND "))
    (root,) = document["dependencies"]
    assert root["ref"] == document["metadata"]["component"]["bom-ref"]
    assert root["dependsOn"] == [part["bom-ref"] for part in document["components"]]


def test_classifiers_wheels_and_what_pip_asks_are_of_the_same_versions_of_python() -> None:
    stated = re.findall(r"'Programming Language :: Python :: (3\.\d+)'", str(PROJECT["project"]["classifiers"]))
    built = re.findall(r"cp3(\d+)-\*", PROJECT["tool"]["cibuildwheel"]["build"])
    assert stated == [f"3.{minor}" for minor in built] == list(VERSIONS)
    assert PROJECT["project"]["requires-python"] == f">={VERSIONS[0]}"


# ---- the workflow, as far as this machine can run it -----------------------------------------------------------------


def commands(job: str) -> list[str]:
    """The commands of a job."""
    return [step["run"].partition(" #")[0] for step in WORKFLOW["jobs"][job]["steps"] if "run" in step]


def test_the_workflow_checks_the_wheels_of_all_machines_and_publishes_them_last() -> None:
    jobs = WORKFLOW["jobs"]
    machines = jobs["compiled"]["strategy"]["matrix"]["machine"]
    assert [re.sub(r"-?[0-9.]+", "", each) for each in machines] == ["ubuntu", "ubuntu-arm", "macos"]
    assert commands("check") == [f"make dist-check WHEELS={1 + len(machines) * len(VERSIONS)}"]
    assert [jobs[name].get("needs") for name in ("source", "compiled", "check", "publish")] == [
        None,
        "source",
        ["source", "compiled"],
        ["check", "tests"],
    ]
    assert jobs["tests"]["uses"] == "./.github/workflows/ci.yml"
    assert WORKFLOW["env"]["KAFKA_TIMERS_SOURCE"].endswith("/tree/${{ github.ref_name }}")


def test_a_pull_request_that_changes_what_a_release_reads_gets_a_dry_run() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = "\n".join(re.findall(r"^(?:RELEASED? =|dist-|\$\(RELEASE\)/).*\n(?:\t.*\n)*", makefile, re.MULTILINE))
    read = set(re.findall(r"deploy/[\w.-]+", targets))
    assert len(read) == 3, read
    read |= {
        "Makefile",
        "pyproject.toml",
        "setup.py",
        "README.md",
        *PROJECT["project"]["license-files"],
    }
    assert read | {".github/workflows/release.yml"} == set(WORKFLOW["on"]["pull_request"]["paths"])


def test_all_compiled_wheels_are_built_by_the_pinned_packages() -> None:
    """cibuildwheel evaluates these in the folder of the source distribution, of which a copy is in the container."""
    environment = PROJECT["tool"]["cibuildwheel"]["environment"]
    for name in ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"):
        assert environment[name] == "$(pwd)/deploy/build-requirements.txt"
    pinned = dict(
        re.findall(r"^([a-z-]+)==(\S+)$", (ROOT / "deploy" / "build-requirements.txt").read_text(), re.MULTILINE)
    )
    required = {re.split("[>=<]", each)[0] for each in PROJECT["build-system"]["requires"]}
    assert required <= pinned.keys()


def run(folder: Path, *command: str, **variables: str) -> str:
    """Output of a command that must not fail."""
    hidden = ("TIMERS_", "KAFKA_TIMERS_", "MAKE", "MFLAGS", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)} | variables
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, f"{' '.join(command)}\n{(done.stdout + done.stderr)[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def clone() -> Path:
    """A clone with a tag, and in ``dist`` the packages that this machine can build, as the workflow would.

    The processes of one run share it, and later runs of the same commit.
    """
    tools = ROOT / "build" / "release"
    tools.mkdir(parents=True, exist_ok=True)
    folder = ROOT / "build" / f"release-{run(ROOT, 'git', 'rev-parse', '--short', 'HEAD').strip()}"
    with (ROOT / "build" / "release.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            for former in (ROOT / "build").glob("release-*"):
                shutil.rmtree(former)
            run(ROOT, "git", "clone", "--quiet", "--shared", str(ROOT), str(folder))
            run(folder, "git", "tag", "v0.9.1")
            for command in [*commands("source"), "make dist-compiled", "make dist-check WHEELS=2"]:
                settings = [f"PYTHON={sys.executable}", f"RELEASE={tools}"]
                run(folder, *command.split(), *settings, KAFKA_TIMERS_SOURCE=SOURCE)
            (folder / "done").touch()
    return folder


@pytest.fixture(scope="module")
def dist(clone: Path) -> Path:
    return clone / "dist"


def the(dist: Path, pattern: str) -> Path:
    (found,) = dist.glob(pattern)
    return found


@pytest.mark.long
@pytest.mark.timeout(1800)
class TestPackages:
    """Built in a clone that has the tag ``v0.9.1``."""

    def test_the_version_is_that_of_the_tag(self, dist: Path) -> None:
        assert the(dist, "*.tar.gz").name == "kafka_timers-0.9.1.tar.gz"
        assert the(dist, "*-py3-none-any.whl").name == "kafka_timers-0.9.1-py3-none-any.whl"
        tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
        assert the(dist, f"*-{tag}-{tag}-*{platform.machine()}.whl").name.startswith("kafka_timers-0.9.1-")

    def test_both_wheels_have_the_same_page_and_files(self, dist: Path) -> None:
        pages, files = [], []
        for wheel in dist.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                names = archive.namelist()
                metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
                pages.append(message_from_bytes(archive.read(metadata)).as_string())
                files.append({name for name in names if not name.endswith((".so", "/", "/RECORD", "/WHEEL"))})
        assert pages[0] == pages[1] and f"Source, {SOURCE.partition('/tree/')[0]}" in pages[0]
        assert files[0] == files[1], files[0] ^ files[1]

    def test_the_sbom_of_a_wheel_is_of_its_modules(self, dist: Path) -> None:
        for wheel in dist.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                (name,) = [each for each in archive.namelist() if each.endswith(".cdx.json")]
                document = json.loads(archive.read(name))
            assert name == "kafka_timers-0.9.1.dist-info/sboms/kafka-timers.cdx.json"
            assert document["metadata"]["component"]["version"] == "0.9.1"
            assert any(each["name"] == "cython" for each in document["components"]) == ("-none-any" not in wheel.name)

    def test_the_source_distribution_has_what_its_build_reads(self, dist: Path) -> None:
        with tarfile.open(the(dist, "*.tar.gz")) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
        assert {"setup.py", "PKG-INFO", "LICENSE", "docs/operations.md", "timers/console/web/operations.md"} <= names
        assert "deploy/build-requirements.txt" in names
        assert not {name for name in names if name.endswith((".so", ".c")) or name.startswith((".venv", "build/"))}

    @pytest.mark.parametrize("system", ["linux-x86_64", "linux-aarch64", "macos-arm64"])
    def test_cibuildwheel_would_build_each_version_for_each_machine(self, dist: Path, system: str) -> None:
        assert commands("compiled") == ["make dist-matrix"]
        kind, machine = system.split("-")
        cibuildwheel = [str(ROOT / "build" / "release" / "bin" / "python"), "-m", "cibuildwheel"]
        options = ["--platform", kind, "--archs", machine, "--print-build-identifiers"]
        found = run(dist, *cibuildwheel, *options, str(the(dist, "*.tar.gz"))).split()
        on = f"manylinux_{machine}" if kind == "linux" else f"macosx_{machine}"
        assert found == [f"cp{version.replace('.', '')}-{on}" for version in VERSIONS]


# ---- what an installed wheel runs ------------------------------------------------------------------------------------

FIRED = re.compile(r"fired topic=timers-demo key=\S+ due=\d+ lag_ms=\d+")


@pytest.fixture(scope="module")
def environment(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An environment that had nothing, and got the wheel for each system, with the packages of the lock."""
    folder = tmp_path_factory.mktemp("installed")
    pins = re.findall(r"^\S+==[^\\\n]+", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    (folder / "lock.txt").write_text("\n".join(pins))
    run(folder, sys.executable, "-m", "venv", "venv")
    wheel = f"{the(dist, '*-py3-none-any.whl')}[worker,broker,console]"
    run(folder, "venv/bin/python", "-m", "pip", "install", "--quiet", "--constraint", "lock.txt", wheel)
    yield folder / "venv"
    shutil.rmtree(folder)


@pytest.fixture(scope="module", params=["*-py3-none-any.whl", "*-cp3*.whl"], ids=["interpreted", "compiled"])
def installed(request: pytest.FixtureRequest, dist: Path, environment: Path) -> Path:
    """``bin`` of the environment with one of the wheels."""
    how = ["--quiet", "--no-deps", "--force-reinstall"]
    run(environment, "bin/python", "-m", "pip", "install", *how, str(the(dist, request.param)))
    return environment / "bin"


@pytest.mark.long
@pytest.mark.timeout(1800)
class TestInstalled:
    """A wheel in an empty environment."""

    def test_commands(self, installed: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
        assert run(tmp_path, f"{installed}/timers", "--version").split()[-1] == "0.9.1"
        assert "Run the worker" in run(tmp_path, f"{installed}/timers", "worker", "--help")
        assert "timers run" in run(tmp_path, f"{installed}/python", "-m", "timers.cli.main", "--help")
        code = "from timers.machines.machine_parts import IS_COMPILED; print(IS_COMPILED)"
        is_compiled = run(tmp_path, f"{installed}/python", "-c", code).strip()
        assert is_compiled == str("interpreted" not in request.node.name)

    def test_broker_worker_and_console_start_and_a_timer_fires(self, installed: Path, tmp_path: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TIMERS_")}
        environment |= {"TIMERS_WEB_PORT": str(free_port()), "TIMERS_CONSOLE_PORT": str(free_port())}
        environment.pop("PYTHONPATH", None)
        (tmp_path / ".timers").mkdir()
        process = subprocess.Popen(
            [f"{installed}/timers", "run"],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout
        try:
            line = process.stdout.readline()
            assert FIRED.match(line), line
        finally:
            process.terminate()
            errors = process.communicate(timeout=120)[1]
        assert "console" in errors and "Traceback" not in errors, errors[-3000:]
