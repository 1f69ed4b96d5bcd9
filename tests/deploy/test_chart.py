"""The chart: its values and their schema, sizes by the formulas of the pages, rights and topics.

These tests need no Helm: they look at values, and at what was rendered last."""

import json
import math
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
import yaml

from tests.deploy.chart import (
    CHART,
    EXAMPLES,
    SIZES,
    VALUES,
    given,
    last_rendered,
    merged,
    needed,
    strimzi_is_right,
)
from tests.harness.sim_console import SimCluster
from timers.cli.topics import acls, create
from timers.console.web.server import Server
from timers.kafka.own_topics import own_topics
from timers.kafka.rights import CONSOLE, ENGINE, WORKER
from timers.process.config import variables
from timers.process.config.declarations import SETTINGS
from timers.process.config.settings import Settings
from timers.worker.machines.pool import HANDOVER_S
from timers.worker.service import STOP_TIMEOUT_S

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
CHUNK_MB = Settings.chunk_bytes / 2**20


def refused(values: dict[str, Any]) -> list[str]:
    """What the schema has against values, each with its place."""
    found = jsonschema.Draft7Validator(SCHEMA).iter_errors(merged(VALUES, values))
    return [f"{error.json_path}: {error.message}" for error in found]


def leaves(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of each value that is no map, or an empty one."""
    if isinstance(values, dict) and values:
        for key, value in values.items():
            yield from leaves(value, (*path, key))
    else:
        yield path


def blocks_of_the_page(language: str) -> list[Any]:
    texts = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return [yaml.safe_load(text) for text in texts] if language == "yaml" else texts


# ---- values and their schema ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [None, *SIZES], ids=lambda path: path.stem if path else "values")
def test_the_schema_takes_each_file_of_values(path: Path | None) -> None:
    assert refused(yaml.safe_load(path.read_text()) if path else {}) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"worker": {"replica": 3}}, "'replica' was unexpected"),
        ({"worker": {"replicas": -1}}, "-1 is less than the minimum of 0"),
        ({"kafka": {"brokers": "user:password@k:9092"}}, "does not match"),
        ({"kafka": {"securityProtocol": "TLS"}}, "'TLS' is not one of"),
        ({"settings": {"TIMERS_CANARY_INTERVAL_S": 30}}, "30 is not of type 'string'"),
        ({"settings": {"TIMERS_WORKER_ID": "one"}}, "should not be valid"),
        ({"settings": {"CANARY": "1"}}, "does not match"),
        ({"settings": {"TIMERS_SASL_PASSWORD": "p"}}, "should not be valid"),
        ({"query": {"value": "short"}}, "does not match"),
        ({"image": {"digest": "sha256:1"}}, "does not match"),
        ({"engine": "flink"}, "is not one of"),
        ({"provision": {"by": "terraform"}}, "is not one of"),
        ({"console": {"url": "timers.example"}}, "does not match"),
        ({"worker": {"disk": {"size": "20"}}}, "does not match"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_the_schema_refuses_what_would_not_work(wrong: dict[str, Any], said: str) -> None:
    assert any(said in each for each in refused(wrong)), refused(wrong)


def test_the_page_has_values_that_the_schema_takes() -> None:
    blocks = [each for each in blocks_of_the_page("yaml") if isinstance(each, dict)]
    assert blocks and [refused(each) for each in blocks] == [[]] * len(blocks)
    named = re.findall(r"`((?:[a-z]+\.)+[A-Za-z]+)(?:: [^`]*)?`", PAGE)
    paths = {".".join(path[:length]) for path in leaves(VALUES) for length in range(1, len(path) + 1)}
    assert {name for name in named if name.split(".")[0] in VALUES} <= paths


def test_each_map_of_the_schema_names_what_it_takes() -> None:
    """Without this a name that was mistyped would have no effect, and nobody would see it."""

    def maps(schema: Any) -> Iterator[dict[str, Any]]:
        if isinstance(schema, dict):
            if "properties" in schema:
                yield schema
            for value in schema.values():
                yield from maps(value)

    assert all(each["additionalProperties"] is False for each in maps(SCHEMA))


def test_what_the_schema_says_about_settings_is_so() -> None:
    kafka = SCHEMA["properties"]["kafka"]["properties"]
    protocols = kafka["securityProtocol"]["enum"]
    assert set(protocols) == set(variables.PROTOCOLS)
    names = SCHEMA["properties"]["settings"]["propertyNames"]
    known = {setting.env for setting in SETTINGS.values()}
    assert set(names["not"]["enum"]) <= known
    assert {name.removesuffix("_FILE") for name in known if name.endswith("_FILE")} & known <= set(
        names["not"]["enum"]
    ), "who may read a ConfigMap would read a secret"
    assert all(re.fullmatch(names["pattern"], name) for name in known)
    set_by_the_chart = {name for path in (CHART / "templates").rglob("*.yaml") for name in _set_in(path.read_text())}
    of_the_administrator = {
        f"TIMERS_{name}" for name in ("SASL_USERNAME", "SASL_PASSWORD_FILE", "SSL_CERT_FILE", "SSL_KEY_FILE")
    }
    assert set_by_the_chart - of_the_administrator <= set(names["not"]["enum"]), (
        "a setting of the values would have no effect there"
    )


def _set_in(template: str) -> list[str]:
    return re.findall(r"- name: (TIMERS_\w+)", template)


def test_each_value_is_used_and_each_use_has_a_value() -> None:
    text = "\n".join(path.read_text() for path in (CHART / "templates").rglob("*.*"))
    used = {tuple(path.split(".")) for path in re.findall(r"\.Values\.([A-Za-z0-9.]+)", text)}
    there = set(leaves(VALUES))
    parents = {path[:length] for path in there for length in range(1, len(path) + 1)}
    assert used <= parents, used - parents
    unused = {path for path in there if not any(path[: len(each)] == each for each in used)}
    # Read by the name of the map that they are in: `with .Values.spark`.
    assert {path[0] for path in unused} == set()


def test_chart_and_project_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    scm = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools_scm"]
    assert f"{chart['version']}.dev0" == f"{chart['appVersion']}.dev0" == scm["fallback_version"]


# ---- sizes ----------------------------------------------------------------------------------------------------------


def memory_mb(values: dict[str, Any]) -> float:
    """Memory of a worker while one other is gone, in MB: the formula of docs/operations.md, "Memory"."""
    workers = max(1, values["worker"]["replicas"] - 1)
    partitions = math.ceil(3 * values["kafka"]["partitions"] / workers)
    firing = math.ceil(values["kafka"]["partitions"] / workers)
    return float(110 + values["worker"]["storeMemoryMb"] * 2**20 / 10**6 + 5.2 * partitions + CHUNK_MB * firing)


def megabytes(text: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", text).groups()  # type: ignore[union-attr]
    return int(number) * (2**20 if unit == "Mi" else 2**30) / 1e6


@pytest.mark.parametrize("path", SIZES, ids=lambda path: path.stem)
def test_a_size_follows_from_the_formulas_of_the_page(path: Path) -> None:
    text = path.read_text()
    values = merged(VALUES, yaml.safe_load(text))
    page = (ROOT / "docs" / "operations.md").read_text()
    assert "110 MB + TIMERS_STORE_MEMORY_MB + 1.2 MB × partitions + 4 MB × partitions that read a backlog" in page
    assert "bytes of one worker = 2 × pending timers on its partitions × (P + 12)" in page
    requests_a_second = int(re.findall(r"up to ([\d,]+) requests a second", text)[0].replace(",", ""))
    pending = requests_a_second * 86_400
    disk = 2 * pending * (500 + 12) / (values["worker"]["replicas"] - 1)
    resources = values["worker"]["resources"]
    assert memory_mb(values) <= megabytes(resources["requests"]["memory"])
    assert 1.2 * memory_mb(values) <= megabytes(resources["limits"]["memory"]) <= 2 * memory_mb(values)
    assert disk <= megabytes(values["worker"]["disk"]["size"]) * 1e6 <= 1.3 * disk
    workers = values["worker"]["replicas"]
    assert 2 <= workers <= values["kafka"]["partitions"] / 2, "two partitions or more for each worker share the load"


def test_a_worker_gets_three_times_what_a_handover_may_take() -> None:
    assert VALUES["worker"]["terminationGracePeriodSeconds"] == 3 * HANDOVER_S


def test_no_worker_is_killed_before_it_ends_itself() -> None:
    assert refused({"worker": {"terminationGracePeriodSeconds": int(STOP_TIMEOUT_S) + 10}}) == []
    assert refused({"worker": {"terminationGracePeriodSeconds": int(STOP_TIMEOUT_S)}})


# ---- topics and rights ----------------------------------------------------------------------------------------------


def test_topics_and_user_of_strimzi_are_those_that_workers_and_console_need() -> None:
    strimzi_is_right(last_rendered("workers"), (WORKER, CONSOLE), ["orders"])


async def test_kubelet_asks_the_console_for_what_it_serves() -> None:
    paths = set()
    for example in EXAMPLES:
        (container,) = last_rendered(example)["Deployment", "timers-console"]["spec"]["template"]["spec"]["containers"]
        url = next(each["value"] for each in container["env"] if each["name"] == "TIMERS_CONSOLE_URL")
        server = Server(Settings.load({"TIMERS_BROKERS": "nowhere:1", "TIMERS_CONSOLE_URL": url}), SimCluster())
        served = {resource.canonical for resource in server.application().router.resources()}
        assert {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness")} <= served, url
        paths.add(urlsplit(url).path)
    assert paths == {"", "/console"}


@pytest.mark.parametrize("example", EXAMPLES)
def test_questions_are_asked_where_they_are_answered(example: str) -> None:
    """The engine on Spark has its metrics and its answers at two ports."""
    found = last_rendered(example)
    spec = (found.get(("StatefulSet", "timers")) or found["Deployment", "timers-spark"])["spec"]["template"]
    (container,) = spec["spec"]["containers"]
    own = {
        each["name"]: each["value"].replace("$(POD_IP)", "10.244.0.7") for each in container["env"] if "value" in each
    }
    settings = Settings.load({"TIMERS_BROKERS": "kafka:9093", **own})
    asked = urlsplit(settings.advertised_url)
    assert (asked.hostname, asked.port) == ("10.244.0.7", settings.web_port)
    assert settings.web_bind == "0.0.0.0"
    (console,) = found["Deployment", "timers-console"]["spec"]["template"]["spec"]["containers"]
    worker = urlsplit(next(each["value"] for each in console["env"] if each["name"] == "TIMERS_WORKER_URL"))
    service = found["Service", str(worker.hostname)]["spec"]
    assert service["selector"].items() <= spec["metadata"]["labels"].items()
    (port,) = [each for each in service["ports"] if each["port"] == worker.port]
    assert {"name": port["targetPort"], "containerPort": settings.web_port} in container["ports"]
    reached = found["NetworkPolicy", "timers"]["spec"]["ingress"][0]["ports"]
    assert {each["port"] for each in reached} == {each["name"] for each in container["ports"]}


def test_workers_may_see_whether_an_engine_on_spark_runs() -> None:
    found = last_rendered("workers")
    assert "Describe" in given(found["KafkaUser", "timers"])["group", "timers-engine", False]


def test_workers_that_create_callback_topics_have_the_right_to() -> None:
    for value, creates in (("0", False), ("1", True)):
        settings = Settings.load({"TIMERS_CREATE_TARGET_TOPICS": value})
        assert ("Create" in needed(settings, (WORKER,), ["orders"])["topic", "orders", False]) is creates


def test_the_rights_contain_those_of_the_page_about_security() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    wanted = re.findall(r"^\$A --(topic|group|transactional-id) (\S+) (.*?)(?:#.*)?$", page, re.MULTILINE)
    assert len(wanted) > 8
    kinds = {"topic": "topic", "group": "group", "transactional-id": "transactionalId"}
    have = needed(Settings.load({}), (WORKER,), ["orders"])
    for kind, name, options in wanted:
        operations = set(re.findall(r"--operation (\w+)", options))
        assert operations <= have[kinds[kind], name, "prefixed" in options], name


def test_the_job_runs_commands_that_there_are() -> None:
    (job,) = [each for (kind, _), each in last_rendered("spark").items() if kind == "Job"]
    pod = job["spec"]["template"]["spec"]
    (topics_first,), (then_acls,) = pod["initContainers"], pod["containers"]
    assert topics_first["args"][:2] == ["topics", "create"]
    assert create.make_context("create", topics_first["args"][2:]).params["engine"] is True
    assert then_acls["args"][0] == "acls"
    params = acls.make_context("acls", then_acls["args"][1:]).params
    assert (params["create"], params["principal"]) == (True, "User:timers")
    assert (params["parts"], params["callback_topics"]) == ((ENGINE, CONSOLE), ("orders",))


# ---- what the page says ---------------------------------------------------------------------------------------------


def test_the_page_names_each_image_by_its_commit() -> None:
    """Pods restart only if the name of their image changes, and the chart's version does not from commit to commit."""
    commands = [" ".join(each.split("\\\n")) for each in blocks_of_the_page("sh")]
    lines = [line for block in commands for line in block.splitlines()]
    built = [line for line in lines if line.startswith(("docker build", "docker push"))]
    assert len(built) == 2 and all(line.split(":")[-1].split()[0] == "$TAG" for line in built)
    assert "--build-arg VERSION=" in built[0]
    installed = [line for line in lines if line.startswith(("helm install", "helm upgrade"))]
    assert len(installed) == 4 and all('--set-string image.tag="${TAG:?}"' in line for line in installed)


def test_the_page_says_how_each_app_gets_a_job_of_prometheus() -> None:
    ((rule,),) = [each for each in blocks_of_the_page("yaml") if isinstance(each, list)]
    labels = last_rendered("workers")["StatefulSet", "timers"]["spec"]["template"]["metadata"]["labels"]
    known = {"__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", label): value for label, value in labels.items()}
    found = ";".join({**known, "__meta_kubernetes_namespace": "shop"}[each] for each in rule["source_labels"])
    matched = re.fullmatch(rule["regex"], found)
    assert matched and matched.expand(re.sub(r"\$(\d)", r"\\\1", rule["replacement"])) == "shop/timers"
    assert rule["target_label"] == "job"


def test_the_page_says_how_a_job_that_has_failed_runs_again() -> None:
    (selector,) = re.findall(r"^kubectl delete job -n timers -l (\S+)$", PAGE, re.MULTILINE)
    (job,) = [each for (kind, _), each in last_rendered("spark").items() if kind == "Job"]
    assert dict(each.split("=") for each in selector.split(",")).items() <= job["metadata"]["labels"].items()


def test_the_page_names_all_topics_of_an_app_that_is_given_up() -> None:
    chosen = {"TIMERS_COUNTDOWN_TOPIC": "countdown", "TIMERS_MARKER_TOPIC": "marker", "TIMERS_MESSAGE_TOPIC": "orders"}
    features = {"TIMERS_HOT_HORIZON_S": "86400", "TIMERS_CANARY_INTERVAL_S": "30"}
    settings = Settings.load({**chosen, **features})
    text = PAGE.partition("To give the app up")[2].partition("\n\n")[0]
    for topic in own_topics(settings):
        names = [name for name, value in chosen.items() if value == topic.name] or [topic.name]
        assert f"`{names[0]}`" in text or topic.name.startswith(f"{settings.app_id}-"), topic.name
    assert "`APP_ID-`" in text
