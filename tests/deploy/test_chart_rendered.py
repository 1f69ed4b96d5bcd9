"""What Helm renders of the chart, for values of many kinds."""

import ipaddress
import json
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

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
    manifests,
    merged,
    render,
    strimzi_is_right,
)
from tests.harness.go_tools import tool
from timers.console.web.page import runbooks
from timers.kafka.rights import CONSOLE, ENGINE, WORKER
from timers.process.config.settings import Settings

ROOT = Path(__file__).parents[2]
CUSTOM = {"PodMonitor", "PrometheusRule", "KafkaTopic", "KafkaUser"}
"""Not Kubernetes' own: no schema there."""
SCHEMAS = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"

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
            "provision": {"by": "job"},
            "pods": {
                "labels": {"azure.workload.identity/use": "true", "app.kubernetes.io/instance": "another"},
                "annotations": {"team": "all"},
                "nodeSelector": {"kubernetes.io/arch": "arm64"},
                "tolerations": [{"key": "arm64", "operator": "Exists"}],
                "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
            },
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
    "strimzi with certificates": merged(
        LEAST,
        {"kafka": {"securityProtocol": "SSL", "clientCertificateSecret": "timers"}, "provision": {"by": "strimzi"}},
    ),
    "certificate of other keys": merged(
        LEAST,
        {
            "kafka": {
                "securityProtocol": "SSL",
                "clientCertificateSecret": "client",
                "clientCertificateKeys": {"certificate": "chain.pem", "key": "key.pem"},
            },
            "settings": {"TIMERS_SSL_KEY_PASSWORD_FILE": "/etc/timers/client/password"},
        },
    ),
    "more in pods": merged(
        LEAST,
        {
            "kafka": {"sasl": {"mechanism": "OAUTHBEARER", "username": "", "secret": ""}},
            "settings": {"TIMERS_SASL_TOKEN_FILE": "/var/run/kafka/token"},
            "pods": {
                "serviceAccountName": "kafka",
                "securityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
                "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
                "extraVolumes": [
                    {
                        "name": "kafka-token",
                        "projected": {"sources": [{"serviceAccountToken": {"path": "token", "audience": "kafka"}}]},
                    }
                ],
                "extraVolumeMounts": [{"name": "kafka-token", "mountPath": "/var/run/kafka", "readOnly": True}],
            },
        },
    ),
    "job": merged(LEAST, {"provision": {"by": "job"}}),
    "job for a user of the settings": merged(
        LEAST,
        {
            "kafka": {"sasl": {"username": ""}},
            "settings": {"TIMERS_SASL_USERNAME": "other"},
            "provision": {"by": "job"},
        },
    ),
    "job without acls": merged(LEAST, {"provision": {"by": "job", "job": {"acls": False}}}),
    "job with certificates": merged(
        LEAST,
        {
            "kafka": {"securityProtocol": "SSL", "clientCertificateSecret": "client"},
            "provision": {"by": "job", "job": {"clientCertificateSecret": "admin", "principal": "User:timers"}},
        },
    ),
    "job without logins": merged(
        LEAST,
        {"kafka": {"securityProtocol": "PLAINTEXT"}, "provision": {"by": "job", "job": {"acls": False}}},
    ),
    "job with tokens": merged(
        LEAST,
        {
            "kafka": {"sasl": {"mechanism": "OAUTHBEARER"}},
            "settings": {"TIMERS_SASL_TOKEN_URL": "https://login.example/token"},
            "provision": {"by": "job"},
        },
    ),
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
            (merged(LEAST, {"console": {"oidcCa": True}}), "console.oidcSecret is empty"),
            (merged(SPARK, {"ipFamily": "IPv6"}), "engine=spark needs pods with IPv4"),
            (merged(SPARK, {"spark": {"checkpoint": ""}}), "spark.checkpoint is empty"),
            (merged(SPARK, {"spark": {"image": {"repository": ""}}}), "spark.image.repository is empty"),
            (merged(LEAST, {"worker": {"replica": 2}}), "replica"),
            (merged(VARIANTS["more in pods"], {"provision": {"by": "job"}}), "TIMERS_SASL_TOKEN_FILE is set"),
            (
                merged(VARIANTS["job with certificates"], {"provision": {"job": {"clientCertificateSecret": ""}}}),
                "provision.job.clientCertificateSecret is empty",
            ),
            (
                merged(VARIANTS["job with certificates"], {"provision": {"job": {"principal": ""}}}),
                "provision.job.principal is empty",
            ),
            (
                merged(VARIANTS["job"], {"kafka": {"sasl": {"username": ""}}}),
                "provision.job.principal is empty",
            ),
            (merged(VARIANTS["job without logins"], {"provision": {"job": {"acls": True}}}), "needs a login"),
            (
                merged(VARIANTS["strimzi with certificates"], {"kafka": {"clientCertificateSecret": ""}}),
                "kafka.clientCertificateSecret is empty",
            ),
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

    @pytest.mark.parametrize("name", VARIANTS)
    def test_each_pod_has_settings_that_go_together_and_the_files_that_they_name(
        self, name: str, tmp_path: Path
    ) -> None:
        found = manifests(render(VARIANTS[name]))
        data = found["ConfigMap", "timers"]["data"]
        for pod in pods(found):
            names = {volume["name"] for volume in pod["volumes"]} | {"data"}
            for container in (*pod.get("initContainers", ()), *pod["containers"]):
                own = {each["name"]: each["value"] for each in container["env"] or () if "value" in each}
                given = {key: value for key, value in (data | own).items() if key.startswith("TIMERS_")}
                given = {key: value.replace("$(POD_IP)", "10.244.1.5") for key, value in given.items()}
                mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
                assert set(mounts.values()) <= names
                for key, value in given.items():
                    if key.endswith("_FILE"):
                        assert str(Path(value).parent) in mounts, key
                        file = given[key] = tmp_path / value[1:]
                        file.parent.mkdir(parents=True, exist_ok=True)
                        file.write_text("x" * 40)
                Settings.load({key: str(value) for key, value in given.items()})

    def test_strimzi_has_other_names_for_a_certificate_and_its_key(self) -> None:
        def names(variant: str, **more: Any) -> list[str]:
            data = manifests(render(merged(VARIANTS[variant], more)))["ConfigMap", "timers"]["data"]
            return [Path(data[f"TIMERS_SSL_{each}_FILE"]).name for each in ("CERT", "KEY")]

        assert names("certificate") == ["tls.crt", "tls.key"]
        assert names("strimzi with certificates") == ["user.crt", "user.key"]
        assert names("certificate of other keys") == ["chain.pem", "key.pem"]
        with_password = {"securityProtocol": "SASL_SSL"}
        assert names("strimzi with certificates", kafka=with_password) == ["tls.crt", "tls.key"], "not Strimzi's own"
        user = manifests(render(VARIANTS["strimzi with certificates"]))["KafkaUser", "timers"]
        assert user["spec"]["authentication"] == {"type": "tls"}

    def test_all_pods_have_what_the_values_add(self) -> None:
        found = manifests(render(VARIANTS["more in pods"]))
        added = VARIANTS["more in pods"]["pods"]
        for pod in pods(found):
            assert pod["serviceAccountName"] == "kafka" and pod["securityContext"]["runAsNonRoot"] is True
            assert not {"runAsUser", "runAsGroup", "fsGroup"} & pod["securityContext"].keys()
            assert added["extraVolumes"][0] in pod["volumes"]
            for container in pod["containers"]:
                assert added["extraEnv"][0] in container["env"]
                assert added["extraVolumeMounts"][0] in container["volumeMounts"]
        spark = merged(SPARK, {"pods": {"extraEnv": added["extraEnv"]}})
        for values, names in ((spark, ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "HTTPS_PROXY"]), (SPARK, None)):
            executor = yaml.safe_load(
                manifests(render(values))["ConfigMap", "timers-spark-executor"]["data"]["pod.yaml"]
            )
            given = [each["name"] for each in executor["spec"]["containers"][0]["env"]]
            assert given == (names or ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])

    def test_all_pods_are_placed_and_labelled_as_the_values_say(self) -> None:
        """The executors of Spark are pods, too. Selectors see no label of the values."""
        added = VARIANTS["placed"]["pods"]
        placed = merged(SPARK, {"pods": added, "provision": {"by": "job"}})
        for values in (VARIANTS["placed"], placed):
            found = manifests(render(values))
            templates = [each["spec"]["template"] for each in found.values() if "template" in each.get("spec", {})]
            if values is placed:
                templates.append(yaml.safe_load(found["ConfigMap", "timers-spark-executor"]["data"]["pod.yaml"]))
            assert len(templates) == 3 + (values is placed)
            for template in templates:
                labels, spec = template["metadata"]["labels"], template["spec"]
                assert labels["azure.workload.identity/use"] == "true"
                assert labels["app.kubernetes.io/instance"] == "timers"
                own = values["worker"] if labels["app.kubernetes.io/component"] == "worker" else added
                assert (
                    template["metadata"]["annotations"]["team"]
                    == own.get("podAnnotations", added["annotations"])["team"]
                )
                assert spec["nodeSelector"] == own["nodeSelector"] and spec["tolerations"] == own["tolerations"]
                assert spec["affinity"] == added["affinity"]

    def test_driver_and_executors_have_the_roles_of_the_values_and_only_the_driver_has_rights(self) -> None:
        found = manifests(render(VARIANTS["spark with roles"]))
        executor = yaml.safe_load(found["ConfigMap", "timers-spark-executor"]["data"]["pod.yaml"])["spec"]
        driver = found["Deployment", "timers-spark"]["spec"]["template"]["spec"]
        accounts = [pod["serviceAccountName"] for pod in (driver, executor)]
        for account in accounts:
            assert found["ServiceAccount", account]["metadata"]["annotations"] == {"role": "timers"}
        (binding,) = [each for (kind, _), each in found.items() if kind == "RoleBinding"]
        assert [each["name"] for each in binding["subjects"]] == accounts[:1] != accounts[1:]

    def test_rights_are_for_the_user_by_whom_workers_log_in(self) -> None:
        values = VARIANTS["job for a user of the settings"]
        (job,) = [each for (kind, _), each in manifests(render(values)).items() if kind == "Job"]
        assert "--principal=User:other" in job["spec"]["template"]["spec"]["containers"][0]["args"]
        assert ("KafkaUser", "other") in manifests(render(merged(values, {"provision": {"by": "strimzi"}})))

    def test_an_autoscaler_may_choose_the_number_of_workers(self) -> None:
        spec = manifests(render(merged(LEAST, {"worker": {"replicas": None}})))["StatefulSet", "timers"]["spec"]
        assert "replicas" not in spec
        none = manifests(render(merged(LEAST, {"worker": {"replicas": 0}})))["StatefulSet", "timers"]["spec"]
        assert none["replicas"] == 0

    def test_the_disk_of_a_worker_outlives_it(self) -> None:
        """After a log has lost its end, it may be the only place that has acknowledged timers."""
        for chosen, expected in (({}, "Retain"), ({"worker": {"disk": {"whenRemoved": "Delete"}}}, "Delete")):
            spec = manifests(render(merged(LEAST, chosen)))["StatefulSet", "timers"]["spec"]
            assert spec["persistentVolumeClaimRetentionPolicy"] == dict.fromkeys(
                ("whenDeleted", "whenScaled"), expected
            )

    def test_nodes_of_workers_that_are_not_ready_can_be_drained(self) -> None:
        budget = manifests(render(LEAST))["PodDisruptionBudget", "timers"]["spec"]
        assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"

    def test_a_console_answers_for_a_moment_after_it_was_told_to_end(self) -> None:
        pod = manifests(render(LEAST))["Deployment", "timers-console"]["spec"]["template"]["spec"]
        assert pod["containers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}

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
            {"TIMERS_CREATE_TARGET_TOPICS": "1", "TIMERS_MESSAGE_TOPIC": "messages", "TIMERS_MARKER_TOPIC": "markers"},
        ],
        ids=lambda settings: next(iter(settings), "none"),
    )
    def test_topics_and_rights_of_strimzi_follow_from_the_settings(self, settings: dict[str, str]) -> None:
        more = {"settings": settings, "provision": {"by": "strimzi", "callbackTopics": ["a", "b"]}}
        strimzi_is_right(manifests(render(merged(LEAST, more))), (WORKER, CONSOLE), ["a", "b"])
        strimzi_is_right(manifests(render(merged(CONSOLE_OFF, more))), (WORKER,), ["a", "b"])
        strimzi_is_right(manifests(render(merged(SPARK, more))), (ENGINE, CONSOLE), ["a", "b"])

    def test_the_topic_of_ids_keeps_its_partitions_when_others_get_more(self) -> None:
        more = {"provision": {"by": "strimzi"}, "kafka": {"partitions": 12, "idPartitions": 4}}
        strimzi_is_right(manifests(render(merged(LEAST, more))), (WORKER, CONSOLE), [], 4)

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

    def test_a_secret_that_the_chart_makes_restarts_pods_when_it_changes(self) -> None:
        values = VARIANTS["secrets in values"]
        for changed in ({"kafka": {"sasl": {"password": "other"}}}, {"query": {"value": "r" * 32}}):
            for workload in (("StatefulSet", "timers"), ("Deployment", "timers-console")):
                before, after = (
                    manifests(render(each))[workload]["spec"]["template"] for each in (values, merged(values, changed))
                )
                assert before != after
        said = before["metadata"]["annotations"]["checksum/secrets"]
        assert len(said) == 4, "more digits would tell which password it is"

    def test_the_job_has_another_name_when_it_does_something_else(self) -> None:
        def name(values: dict[str, Any]) -> str:
            (found,) = [name for kind, name in manifests(render(values)) if kind == "Job"]
            return found

        before = name(VARIANTS["job"])
        assert name(VARIANTS["job"]) == before
        assert name(merged(VARIANTS["job"], {"provision": {"callbackTopics": ["more"]}})) != before
        assert name(merged(VARIANTS["job"], {"settings": {"TIMERS_ID_TOPIC": ""}})) != before

    @pytest.mark.parametrize("name", ["least", "spark", "spark with roles", "plaintext", "job"])
    def test_the_notes_say_where_the_image_comes_from(self, name: str, tmp_path: Path) -> None:
        """Helm shows notes only with a cluster, so here they are a value of a manifest."""
        text = notes(VARIANTS[name], tmp_path)
        image = "registry/timers-spark:0.1.0" if "spark" in name else "registry/timers:0.1.0"
        assert f"Image: {image}. No registry has one" in text
        assert "helm uninstall" in text and ("query secret" in text) == (name == "plaintext")
        assert ("timers status" in text) == ("spark" not in name)
        assert ("kubectl delete job" in text) == (name == "job")


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
