"""A real API server of Kubernetes, with etcd and nothing else, on which the chart is installed, changed and removed."""

import json
import re
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from tests.deploy.chart import CHART, LEAST, SIZES, SPARK, manifests, render
from tests.harness.command_line import need
from tests.harness.go_tools import TOOLS, tool
from tests.harness.process import Process, clean_environment
from tests.harness.waiting import wait_until
from timers.cli.broker.embedded import free_port

pytestmark = [pytest.mark.long, pytest.mark.timeout(4000)]

ROOT = Path(__file__).parents[2]
TOKEN = "an-administrator"
CUSTOM = {
    "PodMonitor": ("monitoring.coreos.com", "v1", "podmonitors"),
    "PrometheusRule": ("monitoring.coreos.com", "v1", "prometheusrules"),
    "KafkaTopic": ("kafka.strimzi.io", "v1", "kafkatopics"),
    "KafkaUser": ("kafka.strimzi.io", "v1", "kafkausers"),
}
"""Kind -> group, version and plural name. Their operators define what is in them; here they may hold anything."""


class ApiServer:
    """An API server on a port of this machine."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        client, peer, self.port = free_port(), free_port(), free_port()
        etcd, peers = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        tokens, keys = directory / "tokens.csv", directory / "accounts.key"
        tokens.write_text(f'{TOKEN},admin,1,"system:masters"\n')
        keys.write_bytes(trustme.CA(key_type=trustme.KeyType.RSA).private_key_pem.bytes())
        store = ["--data-dir", str(directory / "etcd"), "--listen-client-urls", etcd, "--advertise-client-urls", etcd]
        options = {
            "etcd-servers": etcd,
            "cert-dir": directory / "certificates",
            "bind-address": "127.0.0.1",
            "secure-port": self.port,
            "service-account-key-file": keys,
            "service-account-signing-key-file": keys,
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-cluster-ip-range": "10.0.0.0/24",
            "token-auth-file": tokens,
            "authorization-mode": "RBAC",
            # It waits for accounts that a controller makes, which there is none of.
            "disable-admission-plugins": "ServiceAccount",
        }
        server = [str(tool("kube-apiserver")), *(f"--{name}={value}" for name, value in options.items())]
        self._processes = [
            Process(name, command, clean_environment(), directory, directory / f"{name}.log")
            for name, command in (
                (
                    "etcd",
                    [
                        need("etcd"),
                        *store,
                        "--listen-peer-urls",
                        peers,
                        "--initial-advertise-peer-urls",
                        peers,
                        "--initial-cluster",
                        f"default={peers}",
                    ],
                ),
                ("api-server", server),
            )
        ]

    def start(self) -> None:
        for process in self._processes:
            process.start()
        wait_until(self._is_ready, "the API server is ready", 120)
        for kind, (group, version, plural) in CUSTOM.items():
            schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
            versions = [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}]
            spec = {
                "group": group,
                "names": {"kind": kind, "plural": plural},
                "scope": "Namespaced",
                "versions": versions,
            }
            made = {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": f"{plural}.{group}"},
                "spec": spec,
            }
            self.ask("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", made)
        for group, version, plural in CUSTOM.values():
            path = f"/apis/{group}/{version}/namespaces/shop/{plural}"
            wait_until(partial(self._serves, path), f"{path} is served")

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.clean_up()

    def ask(self, path: str, body: Any = None, method: str | None = None) -> Any:
        """The answer to a request; with a body it is a POST.

        Raises:
            OSError: there is none, or it is an error.
        """
        request = urllib.request.Request(
            f"https://127.0.0.1:{self.port}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
            method=method,
        )
        context = ssl._create_unverified_context()  # its certificate is made at its start
        with urllib.request.urlopen(request, timeout=10, context=context) as reply:
            text = reply.read()
        return json.loads(text) if text.startswith(b"{") else text

    def _is_ready(self) -> bool:
        try:
            return bool(self.ask("/readyz") == b"ok")
        except OSError:
            return False

    def _serves(self, path: str) -> bool:
        try:
            return bool(self.ask(path))
        except urllib.error.HTTPError:
            return False

    def helm(self, *arguments: str, values: dict[str, Any] | None = None) -> str:
        """What a command of Helm prints."""
        login = ["--kube-apiserver", f"https://127.0.0.1:{self.port}", "--kube-token", TOKEN]
        command = [str(tool("helm")), *login, "--kube-insecure-skip-tls-verify", "--namespace", "shop", *arguments]
        done = subprocess.run(
            [*command, "--values", "-"] if values is not None else command,
            input=None if values is None else yaml.safe_dump(values),
            capture_output=True,
            text=True,
            timeout=120,
            env=clean_environment(HOME=str(self.directory)),
        )
        said = "\n".join(line for line in done.stderr.splitlines() if "found symbolic link" not in line)
        assert done.returncode == 0, said
        assert not re.search("warning|unknown field|deprecated", said, re.IGNORECASE), said
        return str(done.stdout)

    def names(self, path: str) -> list[str]:
        return [each["metadata"]["name"] for each in self.ask(path)["items"]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    made = ApiServer(tmp_path_factory.mktemp("api-server"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


SETS = "/apis/apps/v1/namespaces/shop/statefulsets"


def test_the_chart_is_installed_changed_and_removed(server: ApiServer) -> None:
    everything = {
        **LEAST,
        "provision": {"by": "strimzi", "callbackTopics": ["orders"]},
        "monitoring": {"podMonitor": True, "rules": True, "dashboard": True},
    }
    said = server.helm("install", "timers", str(CHART), "--create-namespace", values=everything)
    assert "Image: registry/timers:0.1.0. No registry has one" in said
    assert server.names(SETS) == ["timers"]
    topics = "/apis/kafka.strimzi.io/v1/namespaces/shop/kafkatopics"
    made = server.names(topics)
    assert made == sorted(name for kind, name in manifests(render(everything)) if kind == "KafkaTopic") != []
    # Each upgrade keeps what may not change, such as selectors.
    upgrade = ("upgrade", "timers", str(CHART))
    disk = {"worker": {"disk": {"size": "20Gi"}}}
    for size in SIZES:
        server.helm(*upgrade, "--values", str(size), values={**LEAST, **disk})
    assert server.names(topics) == made, "topics hold timers: they stay"
    server.helm(*upgrade, values={**LEAST, "provision": {"by": "job"}})
    (job,) = server.names("/apis/batch/v1/namespaces/shop/jobs")
    server.helm(*upgrade, values={**LEAST, "provision": {"by": "job", "callbackTopics": ["orders"]}})
    assert server.names("/apis/batch/v1/namespaces/shop/jobs") != [job], "it runs again"
    server.helm(*upgrade, values=SPARK)
    assert server.names(SETS) == []
    assert server.names("/apis/apps/v1/namespaces/shop/deployments") == ["timers-console", "timers-spark"]
    server.helm(*upgrade, values=LEAST)
    assert server.names(SETS) == ["timers"]
    server.helm("uninstall", "timers")
    assert server.names(SETS) == [] and server.names(topics) == made
    assert [name for name in server.names("/api/v1/namespaces/shop/services") if name.startswith("timers")] == []


def test_an_upgrade_never_changes_the_partitions_of_the_topic_of_ids(server: ApiServer) -> None:
    strimzi = {**LEAST, "provision": {"by": "strimzi"}}
    small, medium = (str(CHART / f"values-{size}.yaml") for size in ("small", "medium"))
    server.helm("install", "ids", str(CHART), "--create-namespace", "--values", small, values=strimzi)
    topics = "/apis/kafka.strimzi.io/v1/namespaces/shop/kafkatopics?labelSelector=app.kubernetes.io/instance=ids"

    def partitions() -> dict[str, int]:
        specs = (each["spec"] for each in server.ask(topics)["items"])
        return {each["topicName"]: each["partitions"] for each in specs}

    before = partitions()
    larger = ("upgrade", "ids", str(CHART), "--values", medium, "--set", "worker.disk.size=10Gi")
    with pytest.raises(AssertionError, match=r"timer-request-by-id has 4 partitions, and 12 .* kafka.idPartitions=4"):
        server.helm(*larger, values=strimzi)
    assert partitions() == before and set(before.values()) == {4}
    server.helm(*larger, "--set", "kafka.idPartitions=4", values=strimzi)
    assert partitions() == {**dict.fromkeys(before, 12), "timer-request-by-id": 4}
    server.helm("uninstall", "ids")
    assert partitions() != {}, "topics hold timers: they stay"
    server.ask(topics, method="DELETE")


def test_an_upgrade_keeps_the_number_of_workers_that_others_chose(server: ApiServer) -> None:
    path, chosen = f"{SETS}/scaled-timers", {**LEAST, "worker": {"replicas": None}}

    def workers() -> int:
        return int(server.ask(path)["spec"]["replicas"])

    def upgraded(values: dict[str, Any]) -> int:
        server.helm("upgrade", "scaled", str(CHART), values=values)
        return workers()

    server.helm("install", "scaled", str(CHART), "--create-namespace", values=LEAST)
    assert workers() == 3
    for count in (6, 4, 0):
        scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": count}}
        server.ask(f"{path}/scale", {**scale, "metadata": {"name": "scaled-timers", "namespace": "shop"}}, "PUT")
        assert upgraded(chosen) == count
    assert upgraded(LEAST) == 3
    server.helm("uninstall", "scaled")
    server.helm("install", "scaled", str(CHART), values=chosen)
    assert workers() == 1, "docs/kubernetes.md#a-number-of-workers-that-others-choose"
    server.helm("uninstall", "scaled")


def test_a_larger_disk_needs_the_step_of_the_page(server: ApiServer) -> None:
    server.helm("install", "shop", str(CHART), "--create-namespace", values=LEAST)
    larger = {**LEAST, "worker": {"disk": {"size": "40Gi"}}}
    with pytest.raises(AssertionError, match="updates to statefulset spec"):
        server.helm("upgrade", "shop", str(CHART), values=larger)
    assert "--cascade=orphan" in (ROOT / "docs" / "kubernetes.md").read_text()
    # Orphans are a matter of the garbage collector, which is not here; nor are pods.
    server.ask(f"{SETS}/shop-timers?propagationPolicy=Background", method="DELETE")
    server.helm("upgrade", "shop", str(CHART), values=larger)
    (claim,) = server.ask(f"{SETS}/shop-timers")["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "40Gi"


def test_the_version_is_that_of_the_program(server: ApiServer) -> None:
    assert server.ask("/version")["gitVersion"] == TOOLS["kube-apiserver"].version
