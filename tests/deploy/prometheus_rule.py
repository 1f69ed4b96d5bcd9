"""Writes deploy/kubernetes/prometheusrule.yaml from deploy/alerts.yml; run by ``make docs``."""

from pathlib import Path
from textwrap import indent

DEPLOY = Path(__file__).parents[2] / "deploy"
RULE = DEPLOY / "kubernetes" / "prometheusrule.yaml"
HEAD = """\
# Written by `make docs` from deploy/alerts.yml, for the Prometheus Operator: change the alerts there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {name: timers}
spec:
"""


def rule() -> str:
    """The text of the file: the alerts, as the Prometheus Operator takes them."""
    return HEAD + indent((DEPLOY / "alerts.yml").read_text(), "  ")


if __name__ == "__main__":
    RULE.write_text(rule())
