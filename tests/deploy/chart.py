"""The chart of deploy/helm, rendered: with Helm, or as it was rendered last, for tests that need no Helm.

``python -m tests.deploy.chart`` (``make chart``) writes ``tests/deploy/rendered``; a test says if a file is older than
the chart.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.harness.go_tools import tool

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


if __name__ == "__main__":
    for _name, _values in EXAMPLES.items():
        (RENDERED / f"{_name}.yaml").write_text(render(_values))
