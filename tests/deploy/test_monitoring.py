"""Alerting rules and dashboard: expressions that parse, over metrics and labels that there are, explained in docs."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from timers.outbox.monitoring import METRICS as OUTBOX_METRICS
from timers.process.metrics import Entry
from timers.queue.monitoring import METRICS as QUEUE_METRICS
from timers.spark.monitoring import METRICS as SPARK_METRICS
from timers.spark.monitoring import SHARED
from timers.worker.metrics import METRICS as WORKER_METRICS

CATALOGS: tuple[tuple[Entry[Any], ...], ...] = (
    WORKER_METRICS,
    QUEUE_METRICS,
    (*SPARK_METRICS, *SHARED),
    OUTBOX_METRICS,
)
METRICS: tuple[Entry[Any], ...] = (*WORKER_METRICS, *QUEUE_METRICS, *SPARK_METRICS, *OUTBOX_METRICS)
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
ALERTS = DEPLOY / "alerts.yml"
DASHBOARD = json.loads((DEPLOY / "grafana" / "timers.json").read_text())
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()

(GROUP,) = yaml.safe_load(ALERTS.read_text())["groups"]
RULES: list[dict[str, Any]] = GROUP["rules"]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}

SCRAPED = {"job", "instance"}
"""Labels that a scrape adds."""
OF_THE_PROCESS = {"process_start_time_seconds", "process_cpu_seconds_total", "process_resident_memory_bytes"}


def known() -> dict[str, set[str]]:
    """Series that a worker, the process of a queue or a job on Spark shows -> their labels."""
    series: dict[str, set[str]] = {name: set() for name in OF_THE_PROCESS}
    for entry in METRICS:
        if entry.kind == "histogram":
            series[f"{entry.name}_bucket"] = {*entry.labels, "le"}
            series[f"{entry.name}_sum"] = series[f"{entry.name}_count"] = set(entry.labels)
        else:
            series[entry.name] = set(entry.labels)
    return {name: labels | SCRAPED for name, labels in series.items()}


KNOWN = known()


def selectors(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Each series that an expression reads, with the labels that it selects by."""
    found: list[tuple[str, set[str]]] = []

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            assert node.name is not None
            found.append((node.name, {matcher.name for matcher in node.matchers.matchers}))

    promql_parser.walk(promql_parser.parse(expression), visit)
    return iter(found)


def check(expression: str) -> set[str]:
    """The series that an expression reads; they and their labels must be there."""
    expression = expression.replace("$__rate_interval", "1m").replace("$__interval", "1m")
    read = list(selectors(expression))
    assert read, f"{expression} reads nothing"
    for name, labels in read:
        assert name in KNOWN, f"{expression}: no process shows {name}"
        assert labels <= KNOWN[name], f"{expression}: {name} has no {labels - KNOWN[name]}"
    grouped = {label.strip() for group in re.findall(r"\bby \((.*?)\)", expression) for label in group.split(",")}
    available = {label for name, _ in read for label in KNOWN[name]}
    assert grouped <= available, f"{expression}: nothing has {grouped - available}"
    return {name for name, _ in read}


# ---- alerts ---------------------------------------------------------------------------------------------------------


def about(rule: dict[str, Any]) -> str:
    """Whose metrics an alert reads."""
    read = {re.sub(r"_(bucket|sum|count)$", "", name) for name, _ in selectors(rule["expr"])} - OF_THE_PROCESS
    if all(read & {entry.name for entry in catalog} for catalog in (QUEUE_METRICS, OUTBOX_METRICS, SHARED)):
        return "all processes"
    on_spark = read & {entry.name for entry in (*SPARK_METRICS, *SHARED)}
    if read & {entry.name for entry in WORKER_METRICS}:
        return "workers and the engine on Spark" if on_spark else "workers only"
    if read & {entry.name for entry in OUTBOX_METRICS}:
        return "relays of an outbox only"
    return "jobs on Spark only" if on_spark else "queues only"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_each_alert_can_be_evaluated_and_is_explained(rule: dict[str, Any]) -> None:
    check(rule["expr"])
    assert rule["labels"]["severity"] in {"critical", "warning"}
    annotations = rule["annotations"]
    assert annotations.keys() == {"summary", "description", "about", "runbook"}
    assert annotations["about"] == about(rule)
    assert annotations["runbook"] == f"docs/operations.md#{rule['alert'].lower()}"
    assert f"\n### {rule['alert']}\n" in OPERATIONS, "the anchor that the alert links to"
    named = set(re.findall(r"\$labels\.(\w+)", " ".join(annotations.values())))
    assert named <= {label for name in check(rule["expr"]) for label in KNOWN[name]}


def test_every_explained_alert_is_there() -> None:
    alerts = [rule["alert"] for rule in RULES]
    assert re.findall(r"^### (Timers\w+)$", OPERATIONS, re.MULTILINE) == alerts
    assert len(set(alerts)) == len(alerts)


def test_an_expression_over_what_is_not_there_would_be_found() -> None:
    for wrong in (
        "timers_nothing > 1",
        'timers_lag_seconds_bucket{format="x"} > 1',
        "sum by (format) (timers_pending) > 1",
    ):
        with pytest.raises(AssertionError):
            check(wrong)
    with pytest.raises(ValueError):
        check("timers_pending >")


@pytest.mark.parametrize(
    "command",
    [["check", "rules", "deploy/alerts.yml"], ["test", "rules", "tests/deploy/alerts_test.yml"]],
    ids=lambda command: str(command[0]),
)
def test_promtool_says_so_too(command: list[str]) -> None:
    if shutil.which("promtool") is None:  # it is no Python package
        pytest.skip("NOT TESTED: the alerts by promtool, which this machine lacks; the tests above parse them")
    done = subprocess.run(["promtool", *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_of_the_compose_file_loads_them() -> None:
    prometheus = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    volumes = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["prometheus"]["volumes"]
    assert [f"./alerts.yml:{path}:ro" for path in prometheus["rule_files"]] == [
        volume for volume in volumes if "alerts" in volume
    ]


def test_the_chart_has_the_alerts_and_the_dashboard_that_are_tested_here() -> None:
    files = DEPLOY / "helm" / "timers" / "files"
    assert (files / "alerts.yml").resolve() == ALERTS.resolve()
    assert (files / "dashboard.json").resolve() == (DEPLOY / "grafana" / "timers.json").resolve()


# ---- dashboard ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: str(panel["title"]))
def test_each_panel_shows_what_there_is(panel: dict[str, Any]) -> None:
    assert panel["title"] and panel["description"] and panel["targets"]
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for target in panel["targets"]:
        check(target["expr"])
        (chosen,) = {*re.findall(r'(?:job|queue)=~"\$(\w+)"', target["expr"])}  # several may share a Prometheus
        (source,) = re.findall(r"label_values\((\w+), \w+\)", VARIABLES[chosen]["definition"])
        read = {re.sub(r"_(bucket|sum|count)$", "", name) for name in check(target["expr"])} - OF_THE_PROCESS
        assert any({source, *read} <= {entry.name for entry in catalog} for catalog in CATALOGS), (
            f"a process that shows {read} may have no {source}, so its name is not among those of ${chosen}"
        )


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {name for panel in PANELS for target in panel["targets"] for name in check(target["expr"])}
    missing = {entry.name for entry in METRICS} - {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown} - shown
    assert missing == set()


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not taken & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_every_variable_named_is_one_of_the_dashboard() -> None:
    variables = VARIABLES.keys()
    named = set(re.findall(r"\$\{?(?!__|\{)([a-z]+)", json.dumps(DASHBOARD)))
    assert named == variables
    for text in [variable["definition"] for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"]:
        (expression,) = re.findall(r"label_values\((.*), \w+\)", text)
        check(expression)
    for annotation in DASHBOARD["annotations"]["list"]:
        check(annotation["expr"])
