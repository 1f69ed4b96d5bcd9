"""What stands in deploy/spark is valid by the schemas of those who read it, and says what the command understands."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from timers.cli.spark.engine import engine
from timers.cli.spark.options import launch

SPARK = Path(__file__).parents[2] / "deploy" / "spark"
MANIFESTS: dict[str, Any] = {
    path.stem: yaml.safe_load(path.read_text()) for path in sorted((SPARK / "kubernetes").glob("*.yaml"))
}
DRIVER = MANIFESTS["deployment"]["spec"]["template"]
(CONTAINER,) = DRIVER["spec"]["containers"]
SCRIPT = SPARK / "standalone.sh"


@pytest.mark.parametrize("version", ("1.31", kubernetes_validate.latest_version()))
@pytest.mark.parametrize("name", MANIFESTS)
def test_each_manifest_is_valid(name: str, version: str) -> None:
    kubernetes_validate.validate(MANIFESTS[name], version, strict=True)


def parsed(arguments: list[str]) -> dict[str, Any]:
    """Options of ``timers spark engine``, as Click reads them; what it does not know fails."""
    return engine.make_context("engine", list(arguments)).params


def test_the_driver_is_started_with_options_that_there_are() -> None:
    assert CONTAINER["command"] == ["timers", "spark", "engine"]
    options = parsed(CONTAINER["args"])
    assert options["master"].startswith("k8s://")
    with pytest.raises(click.UsageError):
        parsed(["--checkpiont=x"])
    pytest.importorskip("pyspark", reason="needs the extra 'spark'")
    conf = dict(launch(options["master"], options["conf"], options["log_file"], "engine").conf)
    # Executors call the driver by its service.
    assert conf["spark.driver.host"] == MANIFESTS["service"]["metadata"]["name"]
    ports = {str(port["port"]) for port in MANIFESTS["service"]["spec"]["ports"]}
    assert ports == {conf["spark.driver.port"], conf["spark.blockManager.port"]}
    assert conf["spark.kubernetes.container.image"] == CONTAINER["image"]
    cores = int(conf["spark.executor.instances"]) * int(conf["spark.executor.cores"])
    assert options["buckets"] == cores


def test_there_is_never_more_than_one_driver() -> None:
    spec = MANIFESTS["deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")


def test_the_driver_may_do_what_it_must_and_is_found() -> None:
    account = DRIVER["spec"]["serviceAccountName"]
    assert account == MANIFESTS["serviceaccount"]["metadata"]["name"]
    binding = MANIFESTS["rolebinding"]
    assert [subject["name"] for subject in binding["subjects"]] == [account]
    assert binding["roleRef"]["name"] == MANIFESTS["role"]["metadata"]["name"]
    assert MANIFESTS["service"]["spec"]["selector"].items() <= DRIVER["metadata"]["labels"].items()


def test_the_script_calls_the_command_with_options_that_there_are(tmp_path: Path) -> None:
    fake = tmp_path / "timers"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    given = {"SPARK_MASTER": "spark://m:7077", "TIMERS_BROKERS": "b:9092", "CHECKPOINT": "hdfs:///x"}
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **given}
    done = subprocess.run([str(SCRIPT), "--max-requests", "5"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    spark, name, *arguments = done.stdout.splitlines()
    assert (spark, name) == ("spark", "engine")
    options = parsed(arguments)
    assert (options["master"], options["checkpoint"], options["max_requests"]) == ("spark://m:7077", "hdfs:///x", 5)
    for missing in given:
        less = {key: value for key, value in environment.items() if key != missing}
        done = subprocess.run([str(SCRIPT)], env=less, capture_output=True, text=True)
        assert done.returncode != 0 and re.search(missing, done.stderr)
