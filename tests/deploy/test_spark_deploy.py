"""What stands in deploy/spark is valid by the schemas of those who read it, and says what the command understands."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from timers.cli.spark import launch
from timers.cli.spark.jobs import engine

ROOT = Path(__file__).parents[2]
SPARK = ROOT / "deploy" / "spark"
CONFIG = ROOT / "deploy" / "kubernetes" / "configmap.yaml"
MANIFESTS: dict[str, Any] = {
    path.stem: yaml.safe_load(path.read_text()) for path in sorted((SPARK / "kubernetes").glob("*.yaml"))
}
DRIVER = MANIFESTS["deployment"]["spec"]["template"]
(CONTAINER,) = DRIVER["spec"]["containers"]
SCRIPT = SPARK / "standalone.sh"
ENTRYPOINT = SPARK / "entrypoint.sh"
DOCKERFILE = (SPARK / "Dockerfile").read_text()
CUSTOM = {"podmonitor"}
"""Not Kubernetes' own: no schema there."""


def test_the_linter_finds_nothing_in_the_dockerfile() -> None:
    linter = Path(sysconfig.get_path("scripts")) / "hadolint"
    done = subprocess.run([linter, SPARK / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_image_copies_is_not_ignored() -> None:
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(?:--chmod=\d+ )?(.*)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    }
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied <= allowed and all((ROOT / source).exists() for source in copied)


def test_the_image_has_the_locked_packages_of_the_extra() -> None:
    locked = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements-spark.txt").read_text(), re.MULTILINE))
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["spark"]
    assert {re.split("[<>=]", each)[0] for each in extra} <= locked
    assert "-r requirements-spark.txt" in DOCKERFILE


def test_both_images_are_built_where_a_c_compiler_is() -> None:
    """Without one the modules that are compiled are installed as Python, and no step fails."""
    of_worker = (SPARK.parent / "Dockerfile").read_text()
    bases = [re.findall(r"^FROM (.*) AS build$", text, re.MULTILINE) for text in (DOCKERFILE, of_worker)]
    assert bases == [["python:3.11-bookworm"]] * 2


def test_the_entrypoint_starts_commands_and_executors(tmp_path: Path) -> None:
    """Executors get their arguments in variables, as Spark on Kubernetes sets them."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    environment = {
        "PATH": os.environ["PATH"],
        "JAVA_HOME": str(tmp_path),
        "SPARK_HOME": "/spark",
        "SPARK_CONF_DIR": "/conf",
        "SPARK_DRIVER_URL": "spark://d:1",
        "SPARK_EXECUTOR_ID": "3",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_EXECUTOR_MEMORY": "2g",
        "SPARK_APPLICATION_ID": "app",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "pod",
        "SPARK_JAVA_OPT_10": "-Dlast=a b",
        "SPARK_JAVA_OPT_2": "-Dfirst=x=y",
    }
    done = subprocess.run([ENTRYPOINT, "executor"], env=environment, capture_output=True, text=True, check=True)
    options = ["-Dfirst=x=y", "-Dlast=a b", "-Xms2g", "-Xmx2g", "-cp", "/conf:/spark/jars/*:"]
    backend = ["org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend", "--driver-url", "spark://d:1"]
    backend += ["--executor-id", "3", "--cores", "2", "--app-id", "app", "--hostname", "10.0.0.7"]
    assert done.stdout.splitlines() == [*options, *backend, "--resourceProfileId", "0", "--podName", "pod"]
    done = subprocess.run([ENTRYPOINT, "echo", "a b"], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "a b\n"


@pytest.mark.parametrize("version", ("1.31", kubernetes_validate.latest_version()))
@pytest.mark.parametrize("name", sorted(MANIFESTS.keys() - CUSTOM))
def test_each_manifest_is_valid(name: str, version: str) -> None:
    kubernetes_validate.validate(MANIFESTS[name], version, strict=True)


def parsed(arguments: list[str]) -> dict[str, Any]:
    """Options of ``timers spark engine``, as Click reads them; what it does not know fails."""
    return engine.make_context("engine", list(arguments)).params


def test_the_driver_is_started_with_options_that_there_are() -> None:
    assert CONTAINER["args"][:3] == ["timers", "spark", "engine"]
    options = parsed(CONTAINER["args"][3:])
    assert options["master"].startswith("k8s://")
    with pytest.raises(click.UsageError):
        parsed(["--checkpiont=x"])
    pytest.importorskip("pyspark", reason="needs the extra 'spark'")
    conf = dict(launch(options, "engine").conf)
    # Executors call the driver by its service.
    assert conf["spark.driver.host"] == MANIFESTS["service"]["metadata"]["name"]
    assert MANIFESTS["service"]["spec"]["publishNotReadyAddresses"], "the driver is ready after they have called it"
    ports = {str(port["port"]) for port in MANIFESTS["service"]["spec"]["ports"]}
    assert ports == {conf["spark.driver.port"], conf["spark.blockManager.port"]}
    assert conf["spark.kubernetes.container.image"] == CONTAINER["image"]
    cores = int(conf["spark.executor.instances"]) * int(conf["spark.executor.cores"])
    assert options["buckets"] == cores


def test_the_driver_is_probed_and_scraped_at_its_metrics_port() -> None:
    options = parsed(CONTAINER["args"][3:])
    assert CONTAINER["ports"] == [{"name": "metrics", "containerPort": options["metrics_port"]}]
    assert options["metrics_host"] == "0.0.0.0" and str(options["log_file"]) == "-"
    probes = {name: CONTAINER[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: (probe["path"], probe["port"]) for name, probe in probes.items()} == {
        "startup": ("/health/live", "metrics"),
        "liveness": ("/health/live", "metrics"),
        "readiness": ("/health/ready", "metrics"),
    }
    annotations = DRIVER["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(options["metrics_port"])
    monitor = MANIFESTS["podmonitor"]["spec"]
    assert monitor["selector"]["matchLabels"] == DRIVER["metadata"]["labels"]
    assert monitor["podMetricsEndpoints"][0]["port"] == "metrics"


def test_secrets_reach_driver_and_executors() -> None:
    conf = dict(each.removeprefix("--conf=").split("=", 1) for each in CONTAINER["args"] if each.startswith("--conf="))
    for variable in CONTAINER["env"]:
        if "secretKeyRef" in variable.get("valueFrom", {}):
            ref = variable["valueFrom"]["secretKeyRef"]
            executors = conf[f"spark.kubernetes.executor.secretKeyRef.{variable['name']}"]
            assert executors == f"{ref['name']}:{ref['key']}"
    password = Path(yaml.safe_load(CONFIG.read_text())["data"]["TIMERS_SASL_PASSWORD_FILE"])
    (volume,) = [each for each in DRIVER["spec"]["volumes"] if "secret" in each]
    secret = volume["secret"]["secretName"]
    (mount,) = [each for each in CONTAINER["volumeMounts"] if each["name"] == volume["name"]]
    assert mount["mountPath"] == conf[f"spark.kubernetes.executor.secrets.{secret}"] == str(password.parent)


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
