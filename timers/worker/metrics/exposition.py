"""The worker's metrics in the form of the Prometheus client library."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from timers.core.counters import Histogram
from timers.worker.metrics.catalog import COUNTER, HISTOGRAM, METRICS, Entry
from timers.worker.metrics.samples import Samples
from timers.worker.status import WorkerStatus


class WorkerCollector(Collector):
    """Reads :data:`METRICS` at each scrape."""

    def __init__(self, status: WorkerStatus) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """One family for each entry."""
        for entry in METRICS:
            yield _family(entry, list(entry.read(self._status)))


def _family(entry: Entry, samples: Samples) -> Metric:
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


def registry(status: WorkerStatus) -> CollectorRegistry:
    """The worker's metrics and those of its process."""
    metrics = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=metrics)
    metrics.register(WorkerCollector(status))
    return metrics
