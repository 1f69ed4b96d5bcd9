"""What stands in deploy/spark is valid by the schemas of those who read it, and says what the command understands."""

import json
import os
import re
import subprocess
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from tests.deploy.chart import CHART, last_rendered
from timers.cli.spark import launch
from timers.cli.spark_jobs import engine

ROOT = Path(__file__).parents[2]
SPARK = ROOT / "deploy" / "spark"
MANIFESTS = last_rendered("spark")
DRIVER = MANIFESTS["Deployment", "timers-spark"]["spec"]["template"]
(CONTAINER,) = DRIVER["spec"]["containers"]
SCRIPT = SPARK / "standalone.sh"
ENTRYPOINT = SPARK / "entrypoint.sh"
DOCKERFILE = (SPARK / "Dockerfile").read_text()
EXECUTOR = yaml.safe_load(MANIFESTS["ConfigMap", "timers-spark-executor"]["data"]["pod.yaml"])
SETTINGS = MANIFESTS["ConfigMap", "timers"]["data"]
SERVICE = MANIFESTS["Service", "timers-spark-driver"]


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
    assert {re.split("[<>=]", each)[0].replace(".", "-") for each in extra} <= locked
    assert "-r requirements-spark.txt" in DOCKERFILE


def test_both_images_are_built_where_a_c_compiler_is() -> None:
    """Without one the modules that are compiled are installed as Python, and no step fails."""
    of_worker = (SPARK.parent / "Dockerfile").read_text()
    for text in (DOCKERFILE, of_worker):
        assert re.findall(r"^FROM (.*) AS build$", text, re.MULTILINE) == ["${BUILD_BASE}"]
        bases = dict(re.findall(r"^ARG (\w+_BASE)=(.*)$", text, re.MULTILINE))
        assert bases == {"BUILD_BASE": "python:3.11.14-bookworm", "RUN_BASE": "python:3.11.14-slim-bookworm"}
        assert re.findall(r'^ENTRYPOINT \["/usr/bin/tini", "--", ', text, re.MULTILINE), "it handles SIGTERM at once"


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
    assert conf["spark.driver.host"] == SERVICE["metadata"]["name"]
    assert SERVICE["spec"]["publishNotReadyAddresses"], "the driver is ready after they have called it"
    ports = {port["name"]: str(port["port"]) for port in SERVICE["spec"]["ports"]}
    assert (ports["driver"], ports["blocks"]) == (conf["spark.driver.port"], conf["spark.blockManager.port"])
    assert ports["metrics"] == str(options["metrics_port"])
    policy = MANIFESTS["NetworkPolicy", "timers"]["spec"]["ingress"][1]
    assert {str(port["port"]) for port in policy["ports"]} == {ports["driver"], ports["blocks"]}
    (executors,) = policy["from"]
    assert executors["podSelector"]["matchLabels"] == EXECUTOR["metadata"]["labels"]
    assert conf["spark.kubernetes.container.image"] == CONTAINER["image"]
    cores = int(conf["spark.executor.instances"]) * int(conf["spark.executor.cores"])
    assert options["buckets"] == cores


def test_the_driver_is_probed_and_scraped_at_its_metrics_port() -> None:
    options = parsed(CONTAINER["args"][3:])
    assert {"name": "metrics", "containerPort": options["metrics_port"]} in CONTAINER["ports"]
    assert options["metrics_host"] == "0.0.0.0" and str(options["log_file"]) == "-"
    probes = {name: CONTAINER[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: (probe["path"], probe["port"]) for name, probe in probes.items()} == {
        "startup": ("/health/live", "metrics"),
        "liveness": ("/health/live", "metrics"),
        "readiness": ("/health/ready", "metrics"),
    }
    annotations = DRIVER["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(options["metrics_port"])


def test_secrets_reach_driver_and_executors() -> None:
    """Each file that a setting names is mounted in both, and the executors have the keys of the storage."""
    named = {Path(value).parent for key, value in SETTINGS.items() if key.endswith("_FILE")}
    assert {str(path) for path in named} == {"/etc/timers/sasl", "/etc/timers/ca", "/etc/timers/query"}
    (executor,) = EXECUTOR["spec"]["containers"]
    for container, pod in ((CONTAINER, DRIVER["spec"]), (executor, EXECUTOR["spec"])):
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert {str(path) for path in named} <= mounts.keys()
        assert set(mounts.values()) == {volume["name"] for volume in pod["volumes"]}
    keys = [each for each in CONTAINER["env"] if "secretKeyRef" in each.get("valueFrom", {})]
    assert executor["env"] == keys and len(keys) == 2
    assert executor["securityContext"] == CONTAINER["securityContext"]
    conf = dict(each.removeprefix("--conf=").split("=", 1) for each in CONTAINER["args"] if each.startswith("--conf="))
    (mount,) = [each for each in CONTAINER["volumeMounts"] if each["name"] == "executor"]
    assert conf["spark.kubernetes.executor.podTemplateFile"] == f"{mount['mountPath']}/pod.yaml"
    assert conf["spark.kubernetes.executor.podTemplateContainerName"] == executor["name"]


def test_no_driver_is_killed_before_it_ends_itself() -> None:
    pytest.importorskip("pyspark", reason="needs the extra 'spark'")
    from timers.spark.engine.query import STOP_S

    schema = json.loads((CHART / "values.schema.json").read_text())
    least = schema["properties"]["spark"]["properties"]["terminationGracePeriodSeconds"]["minimum"]
    assert least >= STOP_S + 10


def test_there_is_never_more_than_one_driver() -> None:
    spec = MANIFESTS["Deployment", "timers-spark"]["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")


def test_the_driver_may_do_what_it_must_and_is_found() -> None:
    account = DRIVER["spec"]["serviceAccountName"]
    assert ("ServiceAccount", account) in MANIFESTS
    executors = EXECUTOR["spec"]["serviceAccountName"]
    assert ("ServiceAccount", executors) in MANIFESTS and executors != account
    (binding,) = [each for (kind, _), each in MANIFESTS.items() if kind == "RoleBinding"]
    assert [subject["name"] for subject in binding["subjects"]] == [account]
    assert ("Role", binding["roleRef"]["name"]) in MANIFESTS
    assert SERVICE["spec"]["selector"].items() <= DRIVER["metadata"]["labels"].items()


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
