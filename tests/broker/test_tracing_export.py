"""Spans that a collector of OpenTelemetry has got over OTLP: a chain in Python, and receivers in each language."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.docs.markdown import ROOT
from tests.harness.example_programs import BUILD_S, PRODUCERS, TOOLS, copied, need_tools, printed, receiver
from tests.harness.go_tools import tool
from tests.harness.ids import Ids
from tests.harness.process import Process, clean_environment, python
from tests.harness.system import System
from tests.harness.waiting import due_in, wait_until
from timers.cli.broker.embedded import free_port
from timers.client import Repeat, TimersClient


class Span(NamedTuple):
    """A span as the collector has it. Contexts are ``<trace id>-<span id>``, in hexadecimal."""

    name: str
    context: str
    is_root: bool
    links: tuple[str, ...]
    attributes: dict[str, str | int]


class Collector:
    """The collector of OpenTelemetry on a port of this machine: it takes spans over OTLP and writes a file of them."""

    def __init__(self, directory: Path) -> None:
        self._port, self._file = free_port(), directory / "spans.json"
        protocols = {"http": {"endpoint": f"127.0.0.1:{self._port}"}}
        config = {
            "receivers": {"otlp": {"protocols": protocols}},
            "exporters": {"file": {"path": str(self._file), "flush_interval": "100ms"}},
            "service": {
                "telemetry": {"metrics": {"level": "none"}},
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["file"]}},
            },
        }
        (directory / "config.yaml").write_text(json.dumps(config))
        command = [str(tool("collector")), "--config", f"file:{directory / 'config.yaml'}"]
        self._process = Process("the collector", command, clean_environment(), directory, directory / "collector.log")
        self._process.start()
        wait_until(lambda: "Everything is ready" in self._process.log, "the collector is ready")

    def environment(self, service: str) -> dict[str, str]:
        """Variables with which an SDK sends all its spans here, under the name of a service."""
        return {
            "OTEL_SERVICE_NAME": service,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
        }

    def spans(self, service: str) -> list[Span]:
        """The spans that a service has sent, in the order of their contexts."""
        return sorted(span for line in self._lines() for span in _spans(json.loads(line), service))

    def _lines(self) -> list[str]:
        text = self._file.read_text() if self._file.exists() else ""
        return text[: text.rfind("\n") + 1].splitlines()

    def close(self) -> None:
        self._process.clean_up()


def _spans(batch: dict[str, Any], service: str) -> Iterator[Span]:
    for resource in batch["resourceSpans"]:
        if _values(resource["resource"])["service.name"] != service:
            continue
        for each in (each for scope in resource["scopeSpans"] for each in scope["spans"]):
            links = tuple(_context(link) for link in each.get("links", ()))
            yield Span(each["name"], _context(each), not each.get("parentSpanId"), links, _values(each))


def _context(part: dict[str, str]) -> str:
    return f"{part['traceId']}-{part['spanId']}"


def _values(part: dict[str, Any]) -> dict[str, str | int]:
    """The attributes of a part. OTLP writes an integer as a text, because JSON in browsers has 53 bits."""
    found = {each["key"]: each["value"] for each in part.get("attributes", ())}
    return {
        name: int(value["intValue"]) if "intValue" in value else str(next(iter(value.values())))
        for name, value in found.items()
    }


pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(4000)]

SDKS = ROOT / "tests" / "harness" / "sdks"
TIMERS = 200
GO_MODULES = "sdk@v1.38.0 exporters/otlp/otlptrace/otlptracehttp@v1.38.0"
"""Below ``go.opentelemetry.io/otel/``."""
JAR = "opentelemetry-javaagent-2.21.0.jar"
AGENT = "io.opentelemetry.javaagent:opentelemetry-javaagent:2.21.0"
NODE_PACKAGE = "@opentelemetry/sdk-node@0.301.0"


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    collector = Collector(tmp_path_factory.mktemp("collector"))
    yield collector
    collector.close()


@pytest.mark.parametrize("kind", ["plain", "instrumented"])
def test_a_collector_gets_each_span_of_a_chain(kind: str, here: System, collector: Collector) -> None:
    """A request, its callback, two retries, the dead letter, and what was sent again: as the program has them."""
    target = here.target()
    here.create_topic(f"{target}-queue")
    done = subprocess.run(
        [sys.executable, "-m", "tests.harness.traced_chain", target, kind, here.address],
        env=clean_environment(**here.environment, **collector.environment(target)),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    made = sorted(as_sent(span) for span in json.loads(done.stdout.splitlines()[-1])["spans"])
    wait_until(lambda: len(collector.spans(target)) >= len(made), "the collector has them")
    assert collector.spans(target) == made
    ours = [span for span in made if "timers.attempt" in span.attributes]
    assert ours and all(span.is_root and len(span.links) == 1 for span in ours)


def as_sent(shown: dict[str, Any]) -> Span:
    """A span of a program as the collector shows it."""
    context, *links = (each[3:-3] for each in (shown["self"], *shown["links"]))  # without version and flags
    return Span(shown["name"], context, shown["is_root"], tuple(links), shown["attributes"])


@pytest.fixture(scope="module")
def running(broker_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A system with a worker, whose timers may have ids."""
    system = Ids(broker_address, tmp_path_factory.mktemp("ids")).system
    system.worker().start()
    yield system
    system.close()


@pytest.fixture(scope="module")
def sent(running: System) -> tuple[str, set[str]]:
    """A topic whose callbacks are there, and the contexts of those who have asked for them: timers, one that repeats
    and ends, and one that is a retry."""
    target, trace = running.target(partitions=2), os.urandom(12).hex()
    asked = {f"{trace}{number:08x}-{number + 1:016x}" for number in range(TIMERS)}
    due_s = due_in(5)
    with pytest.MonkeyPatch.context() as patch:
        running.use(patch)
        with TimersClient() as client:
            for number, context in enumerate(sorted(asked)):
                headers = {"traceparent": f"00-{context}-01"} | ({"retry-attempt": "2"} if number == 1 else {})
                if number:
                    client.schedule(target, f"o-{number}" if number > 2 else None, b"v", at=due_s, headers=headers)
                else:
                    repeat = Repeat.every(60, from_=due_s, until=due_s + 1)
                    client.schedule(target, "r", b"v", id=f"{target}-r", repeat=repeat, headers=headers)
    reader = running.reader(target)
    reader.take(TIMERS)
    assert reader.rest() == []
    return target, asked


@pytest.fixture(scope="module")
def in_python(
    sent: tuple[str, set[str]], running: System, collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> list[Span]:
    """The spans of a receiver that uses our client."""
    target, asked = sent
    command = python("tests.harness.traced_receiver", target, f"python-{target}")
    spans = received("python", command, tmp_path_factory.mktemp("python"), running, collector, target)
    assert {link for span in spans for link in span.links} == asked
    assert {"timer", "repeat", "retry"} == {span.attributes["timers.way"] for span in spans}
    return spans


def received(
    language: str, command: list[str], directory: Path, running: System, collector: Collector, target: str
) -> list[Span]:
    """The spans of a receiver that has got all callbacks of a topic."""
    variables = {**collector.environment(f"{language}-{target}"), "OTEL_JAVA_GLOBAL_AUTOCONFIGURE_ENABLED": "true"}
    environment = clean_environment(TIMERS_BROKERS=running.address, **variables)
    process = Process(language, command, environment, directory, directory / "log")
    process.start()
    try:
        wait_until(lambda: process.pid and len(printed(process)) >= TIMERS, "it has got them", BUILD_S)
        wait_until(lambda: len(collector.spans(f"{language}-{target}")) >= TIMERS, "the collector has them")
        os.killpg(process.pid, signal.SIGINT)
        process.exit_code()
    finally:
        process.clean_up()
    spans = collector.spans(f"{language}-{target}")
    assert len(spans) == TIMERS
    assert all(span.is_root and len(span.links) == 1 for span in spans)
    return spans


@pytest.mark.parametrize("language", TOOLS)
def test_the_example_of_each_language_sends_the_spans_of_python(
    language: str,
    sent: tuple[str, set[str]],
    in_python: list[Span],
    running: System,
    collector: Collector,
    tmp_path: Path,
) -> None:
    """With its SDK beside it: the same links and attributes, but the name of the group."""
    need_tools(language)
    target = sent[0]
    folder = copied(language, tmp_path)
    command = receiver(language, target, f"{language}-{target}")
    if language == "go":
        shutil.copy(SDKS / "sdk.go", folder / "receive")
        modules = " ".join(f"go.opentelemetry.io/otel/{module}" for module in GO_MODULES.split())
        command = f"go get {modules} && {command}"
    elif language == "javascript":
        shutil.copy(SDKS / "sdk.mjs", folder)
        command = command.replace("npm ci", f"npm ci && npm install --no-save {NODE_PACKAGE}")
        command = command.replace("node receive", "node --import ./sdk.mjs receive")
    else:
        command = command.replace("mvn ", "mvn -Psdk ")
    spans = received(language, ["bash", "-c", command], folder, running, collector, target)

    def facts(spans: list[Span]) -> list[Any]:
        of_groups = [(span.name, span.links, span.attributes | {"messaging.consumer.group.name": ""}) for span in spans]
        return sorted(of_groups, key=lambda each: each[1])

    assert facts(spans) == facts(in_python)
    assert {span.attributes["messaging.consumer.group.name"] for span in spans} == {f"{language}-{target}"}


def test_the_agent_of_java_adds_a_context_unless_it_is_told_not_to(running: System, tmp_path: Path) -> None:
    """The variable is on docs/tracing.md: a repeating timer that is sent again shall be the same."""
    need_tools("java")
    copy = (
        f"org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy -Dartifact={AGENT} -DoutputDirectory={tmp_path}"
    )
    command = PRODUCERS["java"].replace("mvn -q", f"mvn -q {copy} && MAVEN_OPTS=-javaagent:{tmp_path}/{JAR} mvn -q", 1)
    (switch,) = re.findall(r"`(OTEL_\w+_PROPAGATION_ENABLED)=false`", (ROOT / "docs" / "tracing.md").read_text())
    folder, found = copied("java", tmp_path), []
    for value in ("true", "false"):
        target = running.target()
        environment = {"TIMERS_BROKERS": running.address, "TIMERS_REQUEST_TOPIC": running.request_topic}
        no_exporters = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")}
        done = subprocess.run(
            ["bash", "-c", command.replace("expired o-1 unpaid 5", f"{target} o-1 unpaid 1")],
            cwd=folder,
            env=clean_environment(**environment, **no_exporters, **{switch: value}),
            capture_output=True,
            text=True,
            timeout=BUILD_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (record,) = running.reader(target).take(1)
        found.append("traceparent" in {name for name, _ in record.headers})
    assert found == [True, False]
