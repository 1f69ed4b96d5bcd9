"""The chart of deploy/helm, rendered: with Helm, or as it was rendered last, for tests that need no Helm.

``python -m tests.deploy.chart`` (``make chart``) writes ``tests/deploy/rendered``; a test says if a file is older than
the chart.
"""

import copy
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.harness.go_tools import tool
from timers.kafka.own_topics import MIN_IN_SYNC, own_topics
from timers.kafka.rights import rights
from timers.kafka.topic_admin import IN_SYNC
from timers.process.config.settings import Settings

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "timers"
RENDERED = Path(__file__).parent / "rendered"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SIZES = tuple(sorted(CHART.glob("values-*.yaml")))

LEAST: dict[str, Any] = {
    "image": {"repository": "registry/timers"},
    "kafka": {"brokers": "kafka-bootstrap:9093"},
    "console": {"workers": "10.244.0.0/16"},
    "networkPolicy": {
        "consoleFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}]
    },
}
"""What must be said, beside secrets."""

SPARK: dict[str, Any] = {
    **LEAST,
    "engine": "spark",
    "spark": {"image": {"repository": "registry/timers-spark"}, "checkpoint": "s3a://timers/engine"},
}
EXAMPLES: dict[str, dict[str, Any]] = {
    "workers": {
        **LEAST,
        "console": {**LEAST["console"], "url": "https://timers.example/console"},
        "provision": {"by": "strimzi", "callbackTopics": ["orders"]},
        "monitoring": {"podMonitor": True},
    },
    "spark": {**SPARK, "provision": {"by": "job", "callbackTopics": ["orders"]}},
}
"""What tests look at without Helm. Alerts and dashboard are not among it: they change more often than the chart."""

Manifests = dict[tuple[str, str], Any]
"""Kind and name -> manifest."""


def render(values: Mapping[str, Any], *files: Path, release: str = "timers") -> str:
    """What Helm makes of the chart with these values.

    Args:
        files: of values, which ``values`` override.

    Raises:
        ValueError: Helm refuses the values; its text.
    """
    command = [str(tool("helm")), "template", release, str(CHART), "--namespace", "shop"]
    command += [word for path in (*files, "-") for word in ("--values", str(path))]
    done = subprocess.run(command, input=yaml.safe_dump(dict(values)), capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise ValueError(done.stderr)
    return re.sub(r"(?m)^[ \t]*\n", "", done.stdout)


def manifests(text: str) -> Manifests:
    """The manifests of a text, which has each but once."""
    found = [each for each in yaml.safe_load_all(text) if each]
    named = {(each["kind"], each["metadata"]["name"]): each for each in found}
    assert len(named) == len(found)
    return named


def last_rendered(name: str) -> Manifests:
    """One of :data:`EXAMPLES`, as the repository has it."""
    return manifests((RENDERED / f"{name}.yaml").read_text())


def merged(*values: dict[str, Any]) -> dict[str, Any]:
    """Values as Helm merges them, the last wins."""
    result = copy.deepcopy(values[0])
    for more in values[1:]:
        for key, value in more.items():
            both = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merged(result[key], value) if both else copy.deepcopy(value)
    return result


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


def strimzi_is_right(
    found: Manifests, parts: Iterable[str], callback_topics: Iterable[str], id_partitions: int = 0
) -> None:
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
        topic.name: (
            {**topic.config, MIN_IN_SYNC: str(IN_SYNC)},
            id_partitions if topic.name == settings.id_topic and id_partitions else settings.partitions,
            settings.replication,
        )
        for topic in own_topics(settings)
        if not topic.must_exist
    }


if __name__ == "__main__":
    for _name, _values in EXAMPLES.items():
        (RENDERED / f"{_name}.yaml").write_text(render(_values))
