"""What stands in deploy/ is valid by the schemas of those who read it, and speaks of the worker that there is."""

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner

from tests.deploy.chart import EXAMPLES, last_rendered
from timers.console.access import Users, check_settings
from timers.process.config.declarations import SETTINGS
from timers.process.config.settings import Settings
from timers.worker.machines.openings import CLOSE_TIMEOUT_S
from timers.worker.machines.pool import HANDOVER_S

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES_VERSIONS = ("1.31", kubernetes_validate.latest_version())
"""From the oldest that is still in use to the newest that there is a schema for."""
CUSTOM = {"PodMonitor", "KafkaTopic", "KafkaUser"}
"""Not Kubernetes' own: no schema there."""

VARIABLES = {setting.env for setting in SETTINGS.values()}
PORT = Settings.web_port
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def scripts(name: str) -> str:
    return str(Path(sysconfig.get_path("scripts")) / name)


COMPOSE = load(DEPLOY / "compose.yaml")
MANIFESTS = last_rendered("workers")
STATEFUL_SET = MANIFESTS["StatefulSet", "timers"]
SETTINGS_MAP = MANIFESTS["ConfigMap", "timers"]["data"]
POD = STATEFUL_SET["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]
CONSOLE_POD = MANIFESTS["Deployment", "timers-console"]["spec"]["template"]
WORKER_LABELS = {
    "app.kubernetes.io/name": "timers",
    "app.kubernetes.io/instance": "timers",
    "app.kubernetes.io/component": "worker",
}
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


# ---- by the schemas of those who read it ----------------------------------------------------------------------------


def test_the_linter_finds_nothing_in_the_dockerfile() -> None:
    done = subprocess.run([scripts("hadolint"), DEPLOY / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_linter_would_find_something(tmp_path: Path) -> None:
    broken = tmp_path / "Dockerfile"
    broken.write_text("FROM python\nRUN cd /x && pip install y\nUSER root\n")
    done = subprocess.run([scripts("hadolint"), broken], capture_output=True, text=True)
    assert done.returncode == 1 and "DL3006" in done.stdout


def compose_errors(path: Path) -> str:
    # A built-in schema: nothing is fetched.
    done = CliRunner().invoke(check_jsonschema, ["--builtin-schema", "vendor.compose-spec", str(path)])
    return "" if done.exit_code == 0 else done.output


@pytest.mark.filterwarnings("ignore:The metaschema specified:DeprecationWarning")
def test_the_compose_file_is_valid(tmp_path: Path) -> None:
    assert compose_errors(DEPLOY / "compose.yaml") == ""
    broken = tmp_path / "compose.yaml"
    broken.write_text((DEPLOY / "compose.yaml").read_text().replace("depends_on:", "depend_on:"))
    assert "depend_on" in compose_errors(broken)


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("example", EXAMPLES)
def test_each_manifest_is_valid(example: str, version: str) -> None:
    for (kind, _), manifest in last_rendered(example).items():
        if kind not in CUSTOM:
            kubernetes_validate.validate(manifest, version, strict=True)


def test_a_wrong_manifest_would_be_found() -> None:
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**STATEFUL_SET, "spec": {"replica": 3}}, KUBERNETES_VERSIONS[0], strict=True)


def test_no_manifest_chooses_a_namespace() -> None:
    assert not [name for name, manifest in MANIFESTS.items() if "namespace" in manifest["metadata"]]


# ---- by the worker that there is ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_variable_named_is_a_setting(path: Path) -> None:
    assert set(re.findall(r"TIMERS_[A-Z_]+[A-Z]", path.read_text())) <= VARIABLES


def worker_environments() -> Iterator[tuple[str, dict[str, str]]]:
    image = dict(re.findall(r"(TIMERS_[A-Z_]+)=(\S+)", DOCKERFILE))
    for name, service in COMPOSE["services"].items():
        if name.startswith("worker"):
            yield name, {**image, **service["environment"]}
    pod = {"metadata.name": "timers-0", "status.podIP": "10.1.2.3"}
    fixed: dict[str, str] = {}
    for each in CONTAINER["env"]:
        said = each["value"] if "value" in each else pod[each["valueFrom"]["fieldRef"]["fieldPath"]]
        # As the kubelet does: by what stands before it in the list.
        fixed[each["name"]] = re.sub(r"\$\((\w+)\)", lambda name: fixed[name[1]], said)
    assert fixed.pop("POD_IP")
    yield "kubernetes", {**image, **SETTINGS_MAP, **fixed}


@pytest.mark.parametrize(("name", "environment"), list(worker_environments()), ids=lambda value: str(value)[:12])
def test_the_worker_takes_these_settings(name: str, environment: dict[str, str], tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("a secret of 32 characters or more\n")
    given = {key: str(password) if key.endswith("_FILE") else str(value) for key, value in environment.items()}
    settings = Settings.load(given)
    assert settings.web_port == PORT
    assert settings.web_bind == "0.0.0.0", "probes and scrapes come from outside the container"
    assert settings.query_secret, "without it the web port of such a worker answers no queries"
    assert all(isinstance(value, str) for value in environment.values()), "YAML would make a number of it"
    assert settings.worker_id != "" and "TIMERS_WORKER_ID" in environment, "a container's host name may change"


def test_each_worker_tells_the_others_an_address_of_its_own() -> None:
    """All bind to every address, which is none to call."""
    told = {
        name: Settings.load(
            {key: value for key, value in given.items() if not re.search("SASL|SECURITY|SECRET|SSL", key)}
        ).canonical_url
        for name, given in worker_environments()
    }
    assert told == {
        "worker-1": f"http://worker-1:{PORT}",
        "worker-2": f"http://worker-2:{PORT}",
        "kubernetes": f"http://10.1.2.3:{PORT}",
    }
    assert told.keys() - {"kubernetes"} <= COMPOSE["services"].keys(), "the name that others know it by"


def test_workers_of_the_compose_file_differ_in_name_and_disk() -> None:
    workers = [service for name, service in COMPOSE["services"].items() if name.startswith("worker")]
    assert len(workers) == 2
    assert len({worker["environment"]["TIMERS_WORKER_ID"] for worker in workers}) == 2
    assert len({tuple(worker["volumes"]) for worker in workers}) == 2


def test_every_file_that_a_container_mounts_is_there() -> None:
    mounted = [
        volume.split(":")[0]
        for service in COMPOSE["services"].values()
        for volume in service.get("volumes", ())
        if volume.startswith(".")
    ]
    assert mounted and all((DEPLOY / path).exists() for path in mounted), mounted
    named = {
        volume.split(":")[0]
        for service in COMPOSE["services"].values()
        for volume in service.get("volumes", ())
        if not volume.startswith(".")
    }
    assert named == COMPOSE["volumes"].keys()


def test_prometheus_scrapes_every_worker() -> None:
    prometheus = load(DEPLOY / "prometheus" / "prometheus.yml")
    (job,) = prometheus["scrape_configs"]
    targets = {target for group in job["static_configs"] for target in group["targets"]}
    assert targets == {f"{name}:{PORT}" for name in COMPOSE["services"] if name.startswith("worker")}
    (endpoint,) = MANIFESTS["PodMonitor", "timers"]["spec"]["podMetricsEndpoints"]
    assert endpoint["path"] == job["metrics_path"]
    assert "prometheus.io/scrape" not in POD["metadata"]["annotations"], "nothing is scraped twice"
    assert {"path": endpoint["path"], "port": endpoint["port"]} == {"path": "/metrics", "port": "web"}


def test_ports_and_paths_are_those_of_the_worker() -> None:
    (port,) = CONTAINER["ports"]
    assert port == {"name": "web", "containerPort": PORT}
    assert MANIFESTS["Service", "timers"]["spec"]["ports"] == [{"name": "web", "port": PORT, "targetPort": "web"}]
    assert f"EXPOSE {PORT}\n" in DOCKERFILE and f"TIMERS_WEB_PORT={PORT}\n" in DOCKERFILE
    probes = {name: CONTAINER[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startup": "/health/live",
        "liveness": "/health/live",
        "readiness": "/health/ready",
    }
    assert all(probe["port"] == "web" for probe in probes.values())
    pages = set(re.findall(r'@page\("([^"]+)"\)', (ROOT / "timers" / "worker" / "web.py").read_text()))
    named = {path for file in FILES for path in re.findall(r"(?<=[ '}])/(?:health/\w+|metrics)\b", file.read_text())}
    assert named == {"/health/live", "/health/ready", "/health/partitions", "/metrics"} <= pages


def test_one_set_of_labels_joins_the_manifests() -> None:
    labels = POD["metadata"]["labels"]
    selectors = [
        STATEFUL_SET["spec"]["selector"]["matchLabels"],
        MANIFESTS["Service", "timers"]["spec"]["selector"],
        MANIFESTS["PodDisruptionBudget", "timers"]["spec"]["selector"]["matchLabels"],
        MANIFESTS["PodMonitor", "timers"]["spec"]["selector"]["matchLabels"],
        *(rule["labelSelector"]["matchLabels"] for rule in POD["spec"]["topologySpreadConstraints"]),
    ]
    assert all(selector == labels == WORKER_LABELS for selector in selectors)
    assert ("Service", STATEFUL_SET["spec"]["serviceName"]) in MANIFESTS


def test_a_worker_is_given_the_time_it_takes_to_stop() -> None:
    assert POD["spec"]["terminationGracePeriodSeconds"] == 3 * HANDOVER_S > HANDOVER_S + 2 * CLOSE_TIMEOUT_S
    for name, service in COMPOSE["services"].items():
        if name.startswith("worker"):
            assert int(service["stop_grace_period"].removesuffix("s")) > HANDOVER_S + 2 * CLOSE_TIMEOUT_S


# ---- what the container may, and holds ------------------------------------------------------------------------------


def test_the_container_runs_as_nobody_and_writes_to_its_data_alone() -> None:
    user = int(re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)[-1])
    assert POD["spec"]["securityContext"]["runAsUser"] == user > 0
    assert POD["spec"]["securityContext"]["runAsNonRoot"] is True
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    data_dir = dict(re.findall(r"(TIMERS_[A-Z_]+)=(\S+)", DOCKERFILE))["TIMERS_DATA_DIR"]
    writable = {mount["mountPath"] for mount in CONTAINER["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {data_dir, "/tmp"}


def test_services_of_the_namespace_set_no_variables_of_workers() -> None:
    assert POD["spec"]["enableServiceLinks"] is False


@pytest.mark.parametrize("setting", ["TIMERS_SASL_PASSWORD_FILE", "TIMERS_QUERY_SECRET_FILE", "TIMERS_SSL_CA_FILE"])
@pytest.mark.parametrize("pod", [POD, CONSOLE_POD], ids=["worker", "console"])
def test_each_secret_is_a_file_of_a_volume(pod: dict[str, Any], setting: str) -> None:
    path = Path(SETTINGS_MAP[setting])
    (container,) = pod["spec"]["containers"]
    (mount,) = [mount for mount in container["volumeMounts"] if mount["mountPath"] == str(path.parent)]
    (volume,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == mount["name"]]
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    assert re.search(
        rf"create secret generic {volume['secret']['secretName']} --from-(file|literal)={path.name}=", page
    )


# ---- the console ----------------------------------------------------------------------------------------------------


def console_environments() -> Iterator[tuple[str, dict[str, str]]]:
    yield "compose", COMPOSE["services"]["console"]["environment"]
    (container,) = CONSOLE_POD["spec"]["containers"]
    yield "kubernetes", {**SETTINGS_MAP, **{each["name"]: each["value"] for each in container["env"]}}


@pytest.mark.parametrize(("name", "environment"), list(console_environments()), ids=lambda value: str(value)[:12])
def test_the_console_takes_these_settings_and_its_users_log_in(
    name: str, environment: dict[str, str], tmp_path: Path
) -> None:
    password = tmp_path / "password"
    password.write_text("a secret of 32 characters or more\n")
    given = {key: str(password) if key.endswith("_FILE") else value for key, value in environment.items()}
    given["TIMERS_CONSOLE_USERS_FILE"] = str(DEPLOY / "console" / "users.toml")
    settings = Settings.load(given)
    check_settings(settings)
    assert settings.console_bind == "0.0.0.0" and settings.console_workers, "it may ask workers of other containers"
    users = Users.read(DEPLOY / "console" / "users.toml").by_name
    known = users["operator"].password
    assert known is not None and known.matches("timers-try-it-out") and len(users) == 1


def test_the_console_answers_where_the_manifests_look_for_it() -> None:
    (container,) = CONSOLE_POD["spec"]["containers"]
    assert container["ports"] == [{"name": "console", "containerPort": Settings.console_port}]
    assert COMPOSE["services"]["console"]["ports"] == [f"127.0.0.1:{Settings.console_port}:{Settings.console_port}"]
    service = MANIFESTS["Service", "timers-console"]["spec"]
    assert service["ports"] == [{"name": "https", "port": 443, "targetPort": "console"}]
    assert service["selector"] == CONSOLE_POD["metadata"]["labels"]
    assert container["securityContext"] == CONTAINER["securityContext"]


def test_only_workers_console_and_monitoring_may_call_a_worker() -> None:
    policy = MANIFESTS["NetworkPolicy", "timers"]["spec"]
    assert policy["podSelector"]["matchLabels"] == POD["metadata"]["labels"]
    (rule,) = policy["ingress"]
    (pods,) = [each["podSelector"]["matchLabels"] for each in rule["from"] if "podSelector" in each]
    assert (
        pods.items() <= POD["metadata"]["labels"].items() and pods.items() <= CONSOLE_POD["metadata"]["labels"].items()
    )
    assert rule["ports"] == [{"protocol": "TCP", "port": CONTAINER["ports"][0]["name"]}]


def test_what_the_image_copies_is_not_ignored() -> None:
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    }
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    of_spark = {"requirements-spark.txt", "deploy/spark/entrypoint.sh"}  # deploy/spark/Dockerfile
    assert copied == allowed - of_spark
    assert all((ROOT / source).exists() for source in copied)


def test_what_is_built_from_source_is_built_by_packages_of_the_lock() -> None:
    """On arm64, which has no wheel of faust-streaming."""
    lock = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE))
    builders = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", (DEPLOY / "build-requirements.txt").read_text(), re.MULTILINE))
    assert builders.keys() == {"cython", "setuptools", "setuptools-scm", "wheel"}
    assert {name: builders[name] for name in builders.keys() & lock.keys()}.items() <= lock.items()


def test_the_worker_needs_no_java_runtime() -> None:
    removed = re.findall(r"pip uninstall --yes (.*?) \\", DOCKERFILE)[0].split()
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in removed)
    code = f"import sys; {blocked}from timers.cli.main import main; import timers.app; main(['worker', '--help'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "TIMERS_BROKERS": "127.0.0.1:9092", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0 and "Run the worker" in done.stdout, done.stderr
