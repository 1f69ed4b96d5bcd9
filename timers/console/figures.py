"""What workers say of themselves: the figures of their metrics, and whether all timers of an app fire. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias

from prometheus_client.parser import text_string_to_metric_families

from timers.wire.topics import partition_name

FIRE, DO_NOT_FIRE, NOT_KNOWN = "fire", "do-not-fire", "not-known"

SILENT_AFTER_S = 2.0
"""What has said nothing for this long is not known. A tick comes every second, and a worker answers in milliseconds."""


class FiringState(NamedTuple):
    """Whether all timers fire, and why not or why that is not known, in a sentence."""

    timers: str
    """:data:`FIRE`, :data:`DO_NOT_FIRE` or :data:`NOT_KNOWN`."""
    why: str = ""


def judged(workers: Iterable[Mapping[str, Any]], taken: str = "") -> FiringState:
    """Whether all timers fire.

    Each partition must be one that a worker fires that has just answered and has had a tick within
    :data:`SILENT_AFTER_S`.

    Args:
        workers: all members of the group, as ``/v1/workers`` shows them.
        taken: who has the group, if it is another program.
    """
    if taken:
        return FiringState(NOT_KNOWN, taken)
    workers = list(workers)
    if not workers:
        return FiringState(DO_NOT_FIRE, "no worker runs")
    answered = [worker for worker in workers if worker["ready"] is not None]
    for worker in answered:
        closed = [name for name in worker.get("red") or () if name not in (worker.get("lossy") or ())]
        if waiting := [*closed, *(worker.get("stopped") or ())]:
            zoneless = worker.get("zoneless") or ()
            name = min(waiting, key=zoneless.__contains__)  # rather one of which no timer fires
            why = f"{name}: {worker['red'][name]}" if name in zoneless else f"the timers of {name} wait"
            return FiringState(DO_NOT_FIRE, why)
    lively = [worker for worker in answered if not is_silent(worker)]
    if not lively:
        return FiringState(NOT_KNOWN, f"worker {workers[0]['id']} {silence(workers[0])}")
    firing = {name for worker in lively for name in worker.get("firing") or ()}
    missing = partitions_of(workers) - firing
    if not missing:
        return FiringState(FIRE)
    shown = min(missing)
    names = f"{shown} and {len(missing) - 1} more" if len(missing) > 1 else shown
    holders = [each for each in workers if each not in lively and missing & assigned(each)]
    if holders:
        return FiringState(NOT_KNOWN, f"worker {holders[0]['id']}, which has {names}, {silence(holders[0])}")
    unready = [reason for worker in lively for reason in worker.get("reasons") or ()]
    if unready:
        return FiringState(DO_NOT_FIRE, f"{names}: {unready[0]}")
    return FiringState(NOT_KNOWN, f"no worker says that it fires {names}")


def is_silent(worker: Mapping[str, Any]) -> bool:
    """Whether it is not known what a worker fires now: it did not answer, or has had no tick for a while."""
    return worker["ready"] is None or (worker.get("tick_age_s") or 0.0) > SILENT_AFTER_S


def silence(worker: Mapping[str, Any]) -> str:
    """Why it is not known what a worker fires, as the end of a sentence."""
    if worker["ready"] is None:
        return "does not answer"
    return f"has had no tick for {worker['tick_age_s']:.1f} s: its brokers may not answer"


def partitions_of(workers: Iterable[Mapping[str, Any]]) -> set[str]:
    """All partitions of the app's request topics, as far as a worker or the group names them."""
    found = set()
    for worker in workers:
        found |= assigned(worker)
        for topic, count in (worker.get("request_partitions") or {}).items():
            found |= {partition_name(topic, partition) for partition in range(count)}
    return found


def assigned(worker: Mapping[str, Any]) -> set[str]:
    """The partitions that the group has given to a worker."""
    return {partition_name(topic, each) for topic, numbers in worker.get("assigned", {}).items() for each in numbers}


class Point(NamedTuple):
    """What a worker, or several, counted in a step of time.

    Attributes:
        at_s: the end of the step.
        ways: the lags of what fired in it.
    """

    at_s: int
    seconds: float
    fired: int
    dead_lettered: int
    ways: Ways


def points(said: Mapping[str, Any]) -> Iterator[Point]:
    """The steps of a worker, as ``/v1/figures`` has them."""
    bounds = [*said["bounds_s"], math.inf]
    for point in said["points"]:
        numbers = {str(name): int(number) for name, number in point["counts"].items()}
        dead = sum(number for name, number in numbers.items() if name.startswith("dead-lettered/"))
        ways: Ways = {}
        for way in {name.split("/")[1] for name in numbers if name.startswith("lag/")}:
            steps = accumulate(numbers.get(f"lag/{way}/{place}", 0) for place in range(len(bounds)))
            ways[way] = Counter(dict(zip(bounds, steps, strict=True)))
        yield Point(int(point["at"]), float(point["s"]), numbers.get("fired", 0), dead, ways)


LAG = "timers_lag_seconds"

Samples: TypeAlias = Mapping[str, list[tuple[dict[str, str], float]]]
"""Name of a sample -> labels and value of each."""

Ways: TypeAlias = dict[str, Counter[float]]
"""Way of firing -> upper bound of lags -> callbacks up to this lag."""

_FIGURES: dict[str, tuple[str, Callable[[Iterable[float]], float]]] = {
    "fired": ("timers_fired_total", sum),
    "accepted": ("timers_accepted_total", sum),
    "dead_lettered": ("timers_dead_lettered_total", sum),
    "overdue_s": ("timers_oldest_overdue_seconds", max),
    "recovering": ("timers_recovering", sum),
    "recovery_remaining": ("timers_recovery_remaining_offsets", sum),
    "unread": ("timers_request_unread_offsets", sum),
    "unstable": ("timers_request_unstable_offsets", sum),
    "clock_skew_s": ("timers_clock_skew_seconds", max),
    "disk_free_bytes": ("timers_data_disk_free_bytes", min),
    "disk_size_bytes": ("timers_data_disk_size_bytes", min),
    "store_bytes": ("timers_store_bytes", sum),
    "paused_targets": ("timers_paused_targets", max),
    "held": ("timers_held", sum),
    "occurrences": ("timers_occurrences_total", sum),
    "occurrences_mended": ("timers_occurrences_mended_total", sum),
    "zone_unknown": ("timers_zone_unknown_total", sum),
    "open_circuits": ("timers_open_circuits", sum),
    "brokers_held": ("timers_brokers_held", sum),
    "clock_back": ("timers_broker_clock_back", max),
    "feature_level": ("timers_feature_level", min),
    "started_at": ("process_start_time_seconds", min),
}
"""Field of the API -> metric, and how its samples become one number."""

METRICS = {name: metric for name, (metric, _) in _FIGURES.items()}
"""Field of the API -> metric."""


_BY_LABEL = {
    "dead_letters": ("timers_dead_lettered_total", "code"),
    "occurrences_missed": ("timers_occurrences_missed_total", "reason"),
    "waiting": ("timers_partitions_waiting", "reason"),
}
"""Field of the API -> metric, and the label by which its samples are summed."""

_BUILD, _BUCKETS = "timers_build_info", f"{LAG}_bucket"
_READ = {name.encode() for name, _ in (*_FIGURES.values(), *_BY_LABEL.values())} | {_BUILD.encode(), _BUCKETS.encode()}


def samples(page: bytes) -> Samples:
    """The samples of a page that are used; none of a page that is wrong.

    The page of a worker with 150 partitions has 3,000 lines, for which the parser takes 50 ms: so it gets those that
    are used.
    """
    found: defaultdict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
    used = [line for line in page.split(b"\n") if line.partition(b"{")[0].partition(b" ")[0] in _READ]
    try:
        for family in text_string_to_metric_families(b"\n".join(used).decode()):
            for sample in family.samples:
                if math.isfinite(sample.value):
                    found[sample.name].append((sample.labels, sample.value))
    except (ValueError, KeyError):
        return {}
    return found


def figures(said: Samples) -> dict[str, Any]:
    """The figures of a worker; None for those that it does not have."""
    found: dict[str, Any] = {}
    for name, (metric, combine) in _FIGURES.items():
        values = [value for _, value in said.get(metric, ())]
        found[name] = round(combine(values), 3) if values else None
    builds = [labels.get("version") for labels, _ in said.get(_BUILD, ())]
    counts = {name: by_label(said, *of) for name, of in _BY_LABEL.items()}
    return {**found, **counts, "version": builds[0] if builds else None}


def by_label(said: Samples, metric: str, label: str) -> dict[str, int]:
    """Value of a label -> sum of its samples, without those that are 0."""
    totals: Counter[str] = Counter()
    for labels, value in said.get(metric, ()):
        totals[labels.get(label, "")] += int(value)
    return {name: total for name, total in sorted(totals.items()) if total}


def lags(said: Samples) -> Ways:
    """The histogram of lags."""
    ways: Ways = {}
    for labels, value in said.get(_BUCKETS, ()):
        if "way" in labels and "le" in labels:
            ways.setdefault(labels["way"], Counter())[float(labels["le"])] += int(value)
    return ways


def added(all_ways: Iterable[Ways]) -> Ways:
    """The histogram of several workers."""
    total: Ways = {}
    for ways in all_ways:
        for way, counts in ways.items():
            total.setdefault(way, Counter()).update(counts)
    return dict(sorted(total.items()))


def shown(ways: Ways) -> dict[str, dict[str, Any]]:
    """A histogram for JSON, with quantiles. The bound of the last bucket is None: JSON has no infinity."""
    infinity = {float("inf"): None}
    return {
        way: {**summary(counts), "buckets": [(infinity.get(le, le), count) for le, count in sorted(counts.items())]}
        for way, counts in ways.items()
    }


def parsed(ways: Mapping[str, Mapping[str, Any]]) -> Ways:
    """The histogram in JSON. Inverse: :func:`shown`."""
    return {
        way: Counter({float("inf") if bound is None else bound: count for bound, count in said["buckets"]})
        for way, said in ways.items()
    }


def summary(counts: Counter[float]) -> dict[str, Any]:
    """Number and quantiles of lags, from cumulative buckets: upper bound -> count."""
    total = max(counts.values(), default=0)
    return {"timers": total, **{f"p{percent}_s": quantile(counts, percent / 100) for percent in (50, 99)}}


def quantile(counts: Counter[float], share: float) -> float | None:
    """The lag below which a share of the timers is, as Prometheus estimates it; None: there are none."""
    total = max(counts.values(), default=0)
    for (low_s, before), (high_s, upto) in pairwise([(0.0, 0), *sorted(counts.items())]):
        if upto and upto >= share * total:
            if high_s == float("inf"):
                return low_s
            return round(low_s + (high_s - low_s) * (share * total - before) / max(1, upto - before), 4)
    return None
