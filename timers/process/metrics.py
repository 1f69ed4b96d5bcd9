"""Metrics as a catalog, and the catalog in the form of the Prometheus client library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, TypeAlias, TypeVar

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from timers.core.counters import Histogram

State = TypeVar("State")
Labels: TypeAlias = tuple[str, ...]
Samples: TypeAlias = Iterable[tuple[Labels, float | Histogram]]

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"


@dataclass(frozen=True)
class Entry(Generic[State]):
    """One metric, and the function that reads its value at a scrape."""

    name_and_labels: str
    """``name{label,label}``; a histogram without ``_bucket``, ``_sum`` and ``_count``."""
    help: str
    read: Callable[[State], Samples]
    histogram: bool = False

    @property
    def name(self) -> str:
        """Name of the metric in Prometheus."""
        return self.name_and_labels.partition("{")[0]

    @property
    def labels(self) -> Labels:
        """Names of the labels."""
        labels = self.name_and_labels.partition("{")[2].rstrip("}")
        return tuple(labels.split(",")) if labels else ()

    @property
    def kind(self) -> str:
        """Histogram, counter or gauge; the names of counters, and no others, end in ``_total``."""
        return HISTOGRAM if self.histogram else COUNTER if self.name.endswith("_total") else GAUGE


class _CatalogCollector(Collector, Generic[State]):
    """Reads a catalog at each scrape."""

    def __init__(self, catalog: Sequence[Entry[State]], state: Callable[[], State]) -> None:
        self._catalog = catalog
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """One family for each entry."""
        state = self._state()
        for entry in self._catalog:
            yield _family(entry, list(entry.read(state)))


def _family(entry: Entry[State], samples: Samples) -> Metric:
    if entry.kind == HISTOGRAM:
        histograms = HistogramMetricFamily(entry.name, entry.help, labels=entry.labels)
        for labels, value in samples:
            assert isinstance(value, Histogram)
            bounds = [*map(str, map(float, value.bounds)), "+Inf"]
            buckets = list(zip(bounds, accumulate(list(value.counts)), strict=True))
            histograms.add_metric(labels, buckets, value.sum)
        return histograms
    kind = CounterMetricFamily if entry.kind == COUNTER else GaugeMetricFamily
    family = kind(entry.name, entry.help, labels=entry.labels)
    for labels, value in samples:
        assert not isinstance(value, Histogram)
        family.add_metric(labels, float(value))
    return family


def registry(catalog: Sequence[Entry[State]], state: Callable[[], State]) -> CollectorRegistry:
    """The metrics of a catalog, and those of this process.

    Args:
        state: called once for each scrape.
    """
    metrics = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=metrics)
    metrics.register(_CatalogCollector(catalog, state))
    return metrics


def encoder(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    """How metrics are encoded for a request with this header ``Accept``, and the content type of the page."""
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # it asks for a version that is no number
        return choose_encoder("")
