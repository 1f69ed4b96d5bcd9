"""The chart: its values and their schema, sizes by the formulas of the pages, rights and topics, and what Helm renders.

Tests without the marker ``long`` need no Helm: they look at values, and at what was rendered last.
"""

from __future__ import annotations

import copy
import ipaddress
import json
import math
import re
import subprocess
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.chart import (
    CHART,
    EXAMPLES,
    LEAST,
    RENDERED,
    SIZES,
    SPARK,
    VALUES,
    Manifests,
    last_rendered,
    manifests,
    render,
)
from tests.harness.go_tools import tool
from timers.cli.topics import acls, create
from timers.console.web.page import runbooks
from timers.kafka.own_topics import MIN_IN_SYNC, own_topics
from timers.kafka.rights import CONSOLE, ENGINE, WORKER, rights
from timers.kafka.topic_admin import IN_SYNC
from timers.process.config import variables
from timers.process.config.declarations import SETTINGS
from timers.process.config.settings import Settings
from timers.worker.machines.pool import HANDOVER_S

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
CUSTOM = {"PodMonitor", "PrometheusRule", "KafkaTopic", "KafkaUser"}
"""Not Kubernetes' own: no schema there."""
SCHEMAS = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
CHUNK_MB = Settings.chunk_bytes / 2**20


def merged(*values: dict[str, Any]) -> dict[str, Any]:
    """Values as Helm merges them, the last wins."""
    result = copy.deepcopy(values[0])
    for more in values[1:]:
        for key, value in more.items():
            both = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merged(result[key], value) if both else copy.deepcopy(value)
    return result


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
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert blocks and [refused(yaml.safe_load(block)) for block in blocks] == [[]] * len(blocks)
    named = re.findall(r"`((?:[a-z]+\.)+[A-Za-z]+)(?:: [^`]*)?`", page)
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
    assert all(re.fullmatch(names["pattern"], name) for name in known)
    set_by_the_chart = {name for path in (CHART / "templates").rglob("*.yaml") for name in _set_in(path.read_text())}
    assert set_by_the_chart - {"TIMERS_SASL_USERNAME", "TIMERS_SASL_PASSWORD_FILE"} <= set(names["not"]["enum"]), (
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


# ---- topics and rights ----------------------------------------------------------------------------------------------

Given = dict[tuple[str, str, bool], set[str]]


def given(user: dict[str, Any]) -> Given:
    """Resource type, name, whether it is a prefix -> the operations that a KafkaUser may do."""
    found: Given = {}
    for acl in user["spec"]["authorization"]["acls"]:
        resource = acl["resource"]
        key = (resource["type"], resource["name"], resource.get("patternType") == "prefix")
        found.setdefault(key, set()).update(acl["operations"])
    return found


def needed(settings: Settings, parts: Iterable[str], callback_topics: Iterable[str]) -> Given:
    kinds = {"topic": "topic", "group": "group", "transactional-id": "transactionalId"}
    return {
        (kinds[right.words[0]], right.name, right.prefixed): set(right.words[1])
        for right in rights(settings, parts, callback_topics)
    }


def strimzi_is_right(found: Manifests, parts: Iterable[str], callback_topics: Iterable[str]) -> None:
    """Topics and rights are those of the settings."""
    data = found["ConfigMap", "timers"]["data"]
    settings = Settings.load({key: value for key, value in data.items() if not re.search("SASL|SEC|SSL", key)})
    (user,) = [each for (kind, _), each in found.items() if kind == "KafkaUser"]
    assert given(user) == needed(settings, parts, callback_topics)
    made = {
        each["spec"]["topicName"]: (each["spec"]["config"], each["spec"]["partitions"], each["spec"]["replicas"])
        for (kind, _), each in found.items()
        if kind == "KafkaTopic"
    }
    assert made == {
        topic.name: ({**topic.config, MIN_IN_SYNC: str(IN_SYNC)}, settings.partitions, settings.replication)
        for topic in own_topics(settings)
        if not topic.must_exist
    }


def test_topics_and_user_of_strimzi_are_those_that_workers_and_console_need() -> None:
    strimzi_is_right(last_rendered("workers"), (WORKER, CONSOLE), ["orders"])


def test_workers_may_see_whether_an_engine_on_spark_runs() -> None:
    found = last_rendered("workers")
    assert "Describe" in given(found["KafkaUser", "timers"])["group", "timers-engine", False]


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


# ---- what Helm renders ----------------------------------------------------------------------------------------------

CONSOLE_OFF: dict[str, Any] = {**LEAST, "console": {"enabled": False}}
VARIANTS: dict[str, dict[str, Any]] = {
    "least": LEAST,
    "without console": CONSOLE_OFF,
    "plaintext": merged(LEAST, {"kafka": {"securityProtocol": "PLAINTEXT"}, "query": {"secret": ""}}),
    "certificate": merged(
        LEAST, {"kafka": {"securityProtocol": "SSL", "clientCertificateSecret": "client", "ca": {"secret": ""}}}
    ),
    "secrets in values": merged(
        LEAST,
        {
            "kafka": {"sasl": {"password": 'a"b'}, "ca": {"certificate": "-----BEGIN\nX\n-----END\n"}},
            "query": {"value": "q" * 32},
        },
    ),
    "monitored": merged(
        LEAST,
        {"monitoring": {"podMonitor": True, "rules": True, "dashboard": True, "labels": {"release": "prometheus"}}},
    ),
    "placed": merged(
        LEAST,
        {
            "imagePullSecrets": ["pull"],
            "worker": {
                "nodeSelector": {"disk": "ssd"},
                "tolerations": [{"key": "timers", "operator": "Exists"}],
                "priorityClassName": "high",
                "podAnnotations": {"team": "shop"},
                "disk": {"storageClass": "fast"},
                "maxUnavailable": "30%",
            },
            "console": {
                "tlsSecret": "",
                "signingSecret": "signing",
                "replicas": 2,
                "oidcSecret": "oidc",
                "oidcCa": True,
            },
            "settings": {"TIMERS_CONSOLE_OIDC_ISSUER": "https://login.example", "TIMERS_CONSOLE_OIDC_CLIENT_ID": "t"},
            "networkPolicy": {"consoleFrom": [{"namespaceSelector": {}}], "monitoringNamespace": ""},
        },
    ),
    "job": merged(LEAST, {"provision": {"by": "job"}}),
    "job without acls": merged(LEAST, {"provision": {"by": "job", "job": {"acls": False}}}),
    "spark": SPARK,
    "spark with roles": merged(
        SPARK,
        {
            "console": {"enabled": False},
            "image": {"repository": ""},
            "spark": {
                "s3Secret": "",
                "serviceAccountAnnotations": {"role": "timers"},
                "arguments": ["--max-requests=5"],
            },
            "networkPolicy": {"enabled": False},
            "monitoring": {"podMonitor": True},
        },
    ),
}


@pytest.mark.long
@pytest.mark.timeout(2400)
class TestRendered:
    """With Helm. The first of these tests builds it."""

    @pytest.mark.parametrize("name", EXAMPLES)
    def test_what_other_tests_look_at_is_what_helm_renders_now(self, name: str) -> None:
        assert (RENDERED / f"{name}.yaml").read_text() == render(EXAMPLES[name]), "run `make chart`"

    def test_the_linter_of_helm_finds_nothing(self, tmp_path: Path) -> None:
        values = tmp_path / "values.yaml"
        values.write_text(yaml.safe_dump(LEAST))
        command = [str(tool("helm")), "lint", "--strict", str(CHART), "--values", str(values)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    @pytest.mark.parametrize("name", [*VARIANTS, *(path.stem for path in SIZES)])
    def test_all_manifests_are_valid(self, name: str, tmp_path: Path) -> None:
        sizes = [path for path in SIZES if path.stem == name]
        conforms(render(VARIANTS.get(name, LEAST), *sizes), tmp_path)

    def test_kubeconform_would_find_something(self, tmp_path: Path) -> None:
        broken = render(LEAST).replace("  replicas: 3", "  replica: 3")
        with pytest.raises(AssertionError, match="replica"):
            conforms(broken, tmp_path)

    @pytest.mark.parametrize(
        ("values", "said"),
        [
            ({"kafka": {"brokers": "k:1"}}, "image.repository is empty"),
            ({"image": {"repository": "r"}}, "kafka.brokers is empty"),
            (merged(LEAST, {"console": {"workers": ""}}), "console.workers is empty"),
            (merged(LEAST, {"networkPolicy": {"consoleFrom": []}}), "networkPolicy.consoleFrom is empty"),
            (merged(LEAST, {"console": {"replicas": 2}}), "console.signingSecret is empty"),
            (merged(SPARK, {"ipFamily": "IPv6"}), "engine=spark needs pods with IPv4"),
            (merged(SPARK, {"spark": {"checkpoint": ""}}), "spark.checkpoint is empty"),
            (merged(SPARK, {"spark": {"image": {"repository": ""}}}), "spark.image.repository is empty"),
            (merged(LEAST, {"worker": {"replica": 2}}), "replica"),
        ],
        ids=lambda value: str(value)[:30],
    )
    def test_helm_says_what_is_missing(self, values: dict[str, Any], said: str) -> None:
        with pytest.raises(ValueError, match=said):
            render(values)

    @pytest.mark.parametrize(("family", "address"), [("IPv4", "10.244.1.5"), ("IPv6", "fd00:10:244::5")])
    def test_a_worker_is_asked_at_the_address_of_its_pod(self, family: str, address: str) -> None:
        found = manifests(render(merged(LEAST, {"ipFamily": family})))
        (container,) = found["StatefulSet", "timers"]["spec"]["template"]["spec"]["containers"]
        env = {
            each["name"]: each["value"].replace("$(POD_IP)", address) for each in container["env"] if "value" in each
        }
        settings = Settings.load({"TIMERS_BROKERS": "kafka:9093", **env})
        asked = urlsplit(settings.advertised_url)
        assert (asked.hostname, asked.port) == (address, 6066)
        listened = ipaddress.ip_address(settings.web_bind)
        assert listened.is_unspecified and listened.version == ipaddress.ip_address(address).version
        (console,) = found["Deployment", "timers-console"]["spec"]["template"]["spec"]["containers"]
        assert {"name": "TIMERS_CONSOLE_BIND", "value": settings.web_bind} in console["env"]

    def test_the_console_changes_nothing_unless_the_values_say_so(self) -> None:
        assert VALUES["console"]["write"] is False

    def test_each_alert_links_to_its_section(self) -> None:
        rules = manifests(render(VARIANTS["monitored"]))["PrometheusRule", "timers"]
        alerts = yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text())
        links = {}
        for group in rules["spec"]["groups"]:
            for rule in group["rules"]:
                links[rule["alert"]] = rule["annotations"].pop("runbook_url")
        assert rules["spec"] == alerts, "nothing else differs"
        assert rules["metadata"]["labels"]["release"] == "prometheus"
        for alert, link in links.items():
            page, name = link.split("?name=")
            assert page == f"{VALUES['console']['url']}/runbook" and runbooks()[name][0] == alert
        elsewhere = merged(VARIANTS["monitored"], {"monitoring": {"runbookUrl": "https://wiki/x#"}})
        text = render(elsewhere)
        assert "runbook_url: https://wiki/x#timersnotick" in text

    def test_the_dashboard_is_whole(self) -> None:
        dashboard = manifests(render(VARIANTS["monitored"]))["ConfigMap", "timers-dashboard"]
        assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
        source = json.loads((ROOT / "deploy" / "grafana" / "timers.json").read_text())
        assert json.loads(dashboard["data"]["timers.json"]) == source

    def test_secrets_are_made_only_of_what_the_values_hold(self) -> None:
        def secrets(values: dict[str, Any]) -> dict[str, dict[str, str]]:
            found = manifests(render(values))
            return {name: each["stringData"] for (kind, name), each in found.items() if kind == "Secret"}

        assert secrets(LEAST) == {}
        assert secrets(VARIANTS["secrets in values"]) == {
            "timers-sasl": {"password": 'a"b'},
            "timers-ca": {"ca.crt": "-----BEGIN\nX\n-----END\n"},
            "timers-query": {"secret": "q" * 32},
        }

    @pytest.mark.parametrize(
        "name", ["least", "plaintext", "certificate", "secrets in values", "placed", "spark"], ids=str
    )
    def test_each_file_that_a_setting_names_is_mounted(self, name: str) -> None:
        found = manifests(render(VARIANTS[name]))
        data = found["ConfigMap", "timers"]["data"]
        files = {str(Path(value).parent) for key, value in data.items() if key.endswith("_FILE")}
        for pod in pods(found):
            for container in pod["containers"]:
                names = {volume["name"] for volume in pod["volumes"]} | {"data"}
                mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
                own = {each["value"] for each in container["env"] if each["name"].endswith("_FILE")}
                assert files | {str(Path(path).parent) for path in own} <= mounts.keys()
                assert set(mounts.values()) <= names

    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"TIMERS_CANARY_INTERVAL_S": "30", "TIMERS_LOG_KEEP_S": "never", "TIMERS_MAX_REQUEST_BYTES": "5000000"},
            {"TIMERS_REQUEST_TOPIC": "Shop_request", "TIMERS_VERDICT_TOPIC": "v", "TIMERS_LOG_KEEP_S": "0"},
            {"TIMERS_ID_TOPIC": "", "TIMERS_DEAD_LETTER_TOPIC": "letters", "TIMERS_OSCILLATOR_TOPIC": "ticks"},
            {"TIMERS_ID_TOPIC": "", "TIMERS_COUNTDOWN_TOPIC": "countdown", "TIMERS_TRIM_TOPICS": "countdown"},
            {"TIMERS_HOT_HORIZON_S": "86400", "TIMERS_LOG_KEEP_S": "3600"},
            {"TIMERS_SCHEDULE_TOPICS": "one,two", "TIMERS_COLD_TOPIC": "far", "TIMERS_HOT_HORIZON_S": "60"},
            {"TIMERS_MARKER_TOPIC": "markers", "TIMERS_MESSAGE_TOPIC": "messages"},
        ],
        ids=lambda settings: next(iter(settings), "none"),
    )
    def test_topics_and_rights_of_strimzi_follow_from_the_settings(self, settings: dict[str, str]) -> None:
        more = {"settings": settings, "provision": {"by": "strimzi", "callbackTopics": ["a", "b"]}}
        strimzi_is_right(manifests(render(merged(LEAST, more))), (WORKER, CONSOLE), ["a", "b"])
        strimzi_is_right(manifests(render(merged(CONSOLE_OFF, more))), (WORKER,), ["a", "b"])
        strimzi_is_right(manifests(render(merged(SPARK, more))), (ENGINE, CONSOLE), ["a", "b"])

    def test_two_releases_share_no_name_and_select_no_pod_of_the_other(self) -> None:
        one, other = (manifests(render(VARIANTS["monitored"], release=name)) for name in ("timers", "shop"))
        assert not one.keys() & other.keys()
        assert ("StatefulSet", "shop-timers") in other
        text = json.dumps(list(other.values()))
        assert '"app.kubernetes.io/instance": "timers"' not in text and '"name": "timers"' in json.dumps(
            list(one.values())
        )

    def test_new_settings_restart_pods_and_a_new_number_of_workers_does_not(self) -> None:
        def template(values: dict[str, Any]) -> Any:
            return manifests(render(values))["StatefulSet", "timers"]["spec"]["template"]

        before = template(LEAST)
        assert template(merged(LEAST, {"worker": {"replicas": 5}})) == before
        assert template(merged(LEAST, {"settings": {"TIMERS_CANARY_INTERVAL_S": "5"}})) != before

    def test_the_job_has_another_name_when_it_does_something_else(self) -> None:
        def name(values: dict[str, Any]) -> str:
            (found,) = [name for kind, name in manifests(render(values)) if kind == "Job"]
            return found

        before = name(VARIANTS["job"])
        assert name(VARIANTS["job"]) == before
        assert name(merged(VARIANTS["job"], {"provision": {"callbackTopics": ["more"]}})) != before
        assert name(merged(VARIANTS["job"], {"settings": {"TIMERS_ID_TOPIC": ""}})) != before

    @pytest.mark.parametrize("name", ["least", "spark", "spark with roles", "plaintext"])
    def test_the_notes_say_where_the_image_comes_from(self, name: str, tmp_path: Path) -> None:
        """Helm shows notes only with a cluster, so here they are a value of a manifest."""
        text = notes(VARIANTS[name], tmp_path)
        image = "registry/timers-spark:0.1.0" if "spark" in name else "registry/timers:0.1.0"
        assert f"Image: {image}. No registry has one" in text
        assert "helm uninstall" in text and ("query secret" in text) == (name == "plaintext")
        assert ("timers status" in text) == ("spark" not in name)


def conforms(text: str, directory: Path) -> None:
    """kubeconform finds nothing, with the oldest and the newest schemas."""
    file = directory / "all.yaml"
    file.write_text(text)
    for version in ("1.31.0", kubernetes_validate.latest_version()):
        schemas = directory / version
        schemas.mkdir()
        for name in {schema_name(each) for each in yaml.safe_load_all(text) if each and each["kind"] not in CUSTOM}:
            (schemas / f"{name}.json").write_text(json.dumps(whole_schema(version, name)))
        location = f"{schemas}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
        command = [str(tool("kubeconform")), "-strict", "-skip", ",".join(sorted(CUSTOM)), "-summary"]
        done = subprocess.run([*command, "-schema-location", location, str(file)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert int(re.findall(r"Valid: (\d+)", done.stdout)[0]) >= 5


def schema_name(manifest: dict[str, Any]) -> str:
    group, _, version = manifest["apiVersion"].rpartition("/")
    return "-".join(filter(None, (manifest["kind"].lower(), group.split(".")[0], version)))


@cache
def definitions(version: str) -> dict[str, Any]:
    file = SCHEMAS / f"v{version}-local-strict" / "_definitions.json"
    found: dict[str, Any] = json.loads(file.read_text())["$defs"]
    return found


def whole_schema(version: str, name: str) -> dict[str, Any]:
    """A schema with the definitions that it refers to: kubeconform would ask the network for them."""
    text = (SCHEMAS / f"v{version}-local-strict" / f"{name}.json").read_text()
    schema: dict[str, Any] = json.loads(text.replace('"/api/_definitions.json#', '"#'))
    del schema["$id"]
    needed: dict[str, Any] = {}
    unseen = [schema]
    while unseen:
        for each in set(re.findall(r'"#/\$defs/([^"]+)"', json.dumps(unseen.pop()))) - needed.keys():
            needed[each] = definitions(version)[each]
            unseen.append(needed[each])
    return {**schema, "$defs": needed}


def pods(found: Manifests) -> list[dict[str, Any]]:
    return [
        each["spec"]["template"]["spec"]
        for (kind, _), each in found.items()
        if kind in {"StatefulSet", "Deployment", "Job"}
    ]


def notes(values: dict[str, Any], directory: Path) -> str:
    copied = directory / "timers"
    subprocess.run(["cp", "-rL", str(CHART), str(copied)], check=True)
    (copied / "templates" / "NOTES.txt").rename(copied / "notes.txt")
    shown = 'kind: Notes\nmetadata: {name: notes}\ntext: {{ tpl (.Files.Get "notes.txt") . | quote }}\n'
    (copied / "templates" / "notes.yaml").write_text(shown)
    command = [
        str(tool("helm")),
        "template",
        "timers",
        str(copied),
        "--values",
        "-",
        "--show-only",
        "templates/notes.yaml",
    ]
    done = subprocess.run(command, input=yaml.safe_dump(values), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return str(yaml.safe_load(done.stdout)["text"])
