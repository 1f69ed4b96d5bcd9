"""Reads the pages ``/metrics`` and ``/health`` of a worker."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.harness.waiting import DEADLINE_S, wait_until

Sample = tuple[str, frozenset[tuple[str, str]]]


class Scrape:
    """The samples of one response of ``/metrics``."""

    def __init__(self, text: str) -> None:
        self.samples: dict[Sample, float] = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.samples}

    def total(self, name: str, **labels: str) -> float:
        """Sum of the samples of ``name`` that have these labels; there must be at least one."""
        found = [
            value
            for (sample, have), value in self.samples.items()
            if sample == name and labels.items() <= dict(have).items()
        ]
        assert found, f"no {name} with {labels}"
        return sum(found)

    def by(self, name: str, label: str) -> dict[str, float]:
        """Values of the samples of ``name`` that are not 0, by one label."""
        totals: dict[str, float] = {}
        for (sample, labels), value in self.samples.items():
            if sample == name and value:
                key = dict(labels)[label]
                totals[key] = totals.get(key, 0) + value
        return totals


def get(port: int, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
    """HTTP status and body of one page of a worker."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=dict(headers or {}))
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as answer:
        return answer.code, answer.read().decode()


def scrape(port: int) -> Scrape:
    """The metrics of a worker."""
    status, text = get(port, "/metrics")
    assert status == 200, text
    return Scrape(text)


def health(port: int, kind: str) -> tuple[int, dict[str, Any]]:
    """HTTP status and JSON body of a page ``/health/<kind>``."""
    status, body = get(port, f"/health/{kind}")
    return status, json.loads(body)


def is_ready(port: int) -> bool:
    """Whether a worker says that it is ready; False while it does not listen yet."""
    with suppress(OSError):
        return health(port, "ready")[0] == 200
    return False


def wait_equal(look: Callable[[], Any], wanted: Any, deadline_s: float = DEADLINE_S) -> None:
    """Wait until ``look()`` returns ``wanted``; at the deadline the error has both values."""
    last: list[Any] = []

    def equal() -> bool:
        last[:] = [look()]
        return bool(last[0] == wanted)

    try:
        wait_until(equal, "the wanted value", deadline_s)
    except AssertionError:
        raise AssertionError(f"found {last[0]}, wanted {wanted}") from None
