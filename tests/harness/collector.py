"""The collector of OpenTelemetry, built from its Go modules: it takes spans over OTLP, and writes them into a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.harness.go_tools import tool
from tests.harness.process import Process, clean_environment
from tests.harness.waiting import wait_until
from timers.cli.broker.embedded import free_port


class Span(NamedTuple):
    """A span as the collector has it. Contexts are ``<trace id>-<span id>``, in hexadecimal."""

    name: str
    context: str
    is_root: bool
    links: tuple[str, ...]
    attributes: dict[str, str | int]


class Collector:
    """A collector on a port of this machine."""

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
