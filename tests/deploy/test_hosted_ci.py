"""The hosted workflows are valid and may only read; the hook before a commit is `make lint`, and local."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner

from tests.harness.kafka_version import OTHERS

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").iterdir())
CI = ROOT / ".github" / "workflows" / "ci.yml"


def load(path: Path) -> Any:
    # The base loader keeps every value as text: otherwise the key `on` is read as true.
    return yaml.load(path.read_text(), Loader=yaml.BaseLoader)


HOOKS = [hook for repository in load(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repository["hooks"]]


def workflow_errors(path: Path) -> str:
    # The schema is part of the package: nothing is fetched.
    done = CliRunner().invoke(check_jsonschema, ["--builtin-schema", "vendor.github-workflows", str(path)])
    return "" if done.exit_code == 0 else done.output


# ---- hosted workflows -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_each_workflow_is_valid(path: Path) -> None:
    assert workflow_errors(path) == ""


def test_a_wrong_workflow_would_be_found(tmp_path: Path) -> None:
    broken = tmp_path / "ci.yml"
    broken.write_text(CI.read_text().replace("runs-on:", "run-on:"))
    assert "runs-on" in workflow_errors(broken)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_only_read_and_always_ends(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in workflow["on"], "it runs what a stranger sent, with our rights"
    assert workflow["concurrency"]["group"]
    for name, job in workflow["jobs"].items():
        if "uses" in job:
            assert job["uses"] == f"./{CI.relative_to(ROOT)}" and "permissions" not in job, (
                "a workflow that is tested here"
            )
            continue
        assert 0 < int(job["timeout-minutes"]) <= 60
        if (path.stem, name) == ("release", "publish"):
            assert job["permissions"] == {"contents": "read", "id-token": "write", "attestations": "write"}
            assert "github.ref_type == 'tag'" in job["if"] and job["environment"] == "pypi"
            assert not any("run" in step for step in job["steps"]), "what may publish runs nothing of ours"
            assert {"check", "tests"} == set(job["needs"]), "only what was tested is published"
            used = [step["uses"] for step in job["steps"]]
            assert all(re.fullmatch(r"[a-z-]+/[a-z-]+@[0-9a-f]{40}", each) for each in used), "tags can be moved"
        else:
            assert "permissions" not in job


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_each_action_has_a_major_version(path: Path) -> None:
    used = [step["uses"] for job in load(path)["jobs"].values() for step in job.get("steps", ()) if "uses" in step]
    assert used
    for action in used:
        # Those of the host itself; another one is pinned by what is in it.
        assert re.fullmatch(r"actions/[a-z-]+@v[0-9]+|[a-z-]+/[a-z-]+@[0-9a-f]{40}", action), action


def test_ci_runs_what_runs_on_any_machine() -> None:
    job = load(CI)["jobs"]["test"]
    given = {step["uses"].split("@")[0]: step["with"] for step in job["steps"] if "uses" in step}
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert given["actions/checkout"]["persist-credentials"] == "false"
    assert given["actions/setup-java"]["java-version"] == "17"
    oldest = re.findall(r'^requires-python = ">=([0-9.]+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert [given["actions/setup-python"]["python-version"]] == oldest


@pytest.mark.parametrize(("user_id", "before"), [("0", ""), ("1001", "sudo ")])
def test_ci_installs_kcat_as_root_on_a_machine_without_it(tmp_path: Path, user_id: str, before: str) -> None:
    for name, does in {
        "id": f"echo {user_id}",
        "sudo": 'echo sudo "$@"',
        "apt-get": "echo apt-get $@",
        "make": ":",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    for name in ("bash", "dirname", "sh"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    run = subprocess.run(
        [ROOT / ".ci" / "run"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines() == [f"{before}apt-get update -qq", f"{before}apt-get install -y -qq kcat"]


def test_ci_runs_on_each_version_of_python_and_of_kafka() -> None:
    """That of the whole run, and those of the two further jobs."""
    jobs = load(CI)["jobs"]
    classifiers = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert jobs["python"]["strategy"]["matrix"]["python"] == classifiers[1:]
    assert jobs["kafka"]["strategy"]["matrix"]["kafka"] == sorted(OTHERS)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name in ("python", "kafka"):
        made = [step["run"].split()[1] for step in jobs[name]["steps"] if step.get("run", "").startswith("make ")]
        assert "test-kafka" in made and set(made) <= targets


# ---- hooks before a commit ------------------------------------------------------------------------------------------


def test_no_hook_comes_from_a_remote_repository() -> None:
    repositories = load(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [repository["repo"] for repository in repositories] == ["local"]
    assert HOOKS
    for hook in HOOKS:
        assert hook["language"] == "system", "any other language installs packages"
        assert "additional_dependencies" not in hook
        assert hook["pass_filenames"] == "false", "each command looks at the whole project"
    assert len({hook["id"] for hook in HOOKS}) == len(HOOKS)


def test_the_hook_is_make_lint() -> None:
    assert [hook["entry"] for hook in HOOKS] == ["make lint"]
    assert {"python", "toml", "proto"} <= set(HOOKS[0]["types_or"]), "it looks at files of these kinds"
