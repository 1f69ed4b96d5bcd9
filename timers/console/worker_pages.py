"""The handlers of ``/v1/workers``, ``/v1/lateness`` and ``/v1/pending``."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from itertools import pairwise
from time import monotonic
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from timers.console.call import Call, Handler, Reply
from timers.console.cluster import FoundWorker
from timers.console.problems import Problem
from timers.console.timer_pages import CURSOR_S, ask
from timers.errors import TimersError
from timers.wire import query as wire

_READY, _METRICS = "/health/ready", "/metrics"
_LAG = "timers_lag_seconds"

MAX_COUNTING_S = 2.0
MAX_GROUPS = 2000

GROUPS_S = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}


def handlers() -> dict[str, Handler]:
    """Name of a route -> its handler."""
    return {"workers": workers, "lateness": lateness, "pending": pending}


# ---- workers --------------------------------------------------------------------------------------------------------


class _Asked(NamedTuple):
    worker: FoundWorker
    status: int
    body: bytes
    why_not: str


async def _ask_all(call: Call, path: str) -> list[_Asked]:
    """A page of each worker."""
    try:
        found = await call.console.cluster.workers()
    except TimersError as error:
        raise Problem("brokers-unreachable", str(error)) from None

    async def ask_one(worker: FoundWorker) -> _Asked:
        if not worker.may_be_asked:
            why = f"its address {worker.url or '(none)'} is not among TIMERS_CONSOLE_WORKERS"
            return _Asked(worker, 0, b"", why)
        try:
            status, body = await call.console.cluster.worker_page(worker.url, path)
        except TimersError as error:
            return _Asked(worker, 0, b"", str(error))
        return _Asked(worker, status, body, "")

    return await asyncio.gather(*map(ask_one, found))


async def workers(call: Call) -> Reply:
    """``GET /v1/workers``"""
    asked = await _ask_all(call, _READY)
    return Reply({"workers": [_shown(each) for each in sorted(asked, key=lambda each: each.worker.id)]})


def _shown(asked: _Asked) -> dict[str, Any]:
    worker = asked.worker
    counts = Counter(topic for topic, _ in worker.partitions)
    shown: dict[str, Any] = {"id": worker.id, "url": worker.url, "partitions": dict(sorted(counts.items()))}
    state = _object(asked.body)
    if state is None:
        return {**shown, "ready": None, "why": asked.why_not or "what answers at its address is no worker of timers"}
    fields = ("ready", "reasons", "stopped", "pending", "tick_age_s")
    return {**shown, **{name: state.get(name) for name in fields}, "why": None}


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(body)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


# ---- lateness -------------------------------------------------------------------------------------------------------


async def lateness(call: Call) -> Reply:
    """``GET /v1/lateness``"""
    asked = await _ask_all(call, _METRICS)
    buckets: defaultdict[str, Counter[float]] = defaultdict(Counter)
    missing = []
    for each in asked:
        why = each.why_not or ("" if each.status == 200 else f"it answered {each.status}")
        if why:
            missing.append({"worker": each.worker.id, "reason": why})
            continue
        for way, bound_s, count in _lag_buckets(each.body):
            buckets[way][bound_s] += count
    ways = {way: {**summary(counts), "buckets": _shown_buckets(counts)} for way, counts in sorted(buckets.items())}
    return Reply({"ways": ways, "missing": missing})


def _lag_buckets(page: bytes) -> list[tuple[str, float, int]]:
    """(way, upper bound, timers up to this lag) from the metrics of a worker."""
    try:
        return [
            (sample.labels["way"], float(sample.labels["le"]), int(sample.value))
            for family in text_string_to_metric_families(page.decode())
            if family.name == _LAG
            for sample in family.samples
            if sample.name == f"{_LAG}_bucket"
        ]
    except (ValueError, KeyError):
        return []


def _shown_buckets(counts: Counter[float]) -> list[tuple[float | None, int]]:
    """Upper bounds and cumulative counts; the bound of the last bucket is None: JSON has no infinity."""
    return [(None if bound_s == float("inf") else bound_s, count) for bound_s, count in sorted(counts.items())]


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


# ---- pending --------------------------------------------------------------------------------------------------------


async def pending(call: Call) -> Reply:
    """``GET /v1/pending``"""
    given = call.parameters
    topic, group_s = given.get("topic"), GROUPS_S[given["by"]]
    if topic is not None and not call.user.may_use_topic(topic):
        raise Problem("topic-forbidden", f"you may not see timers of topic {topic!r}")
    selection = {"topic": topic, "from": given.get("from"), "to": given.get("to")}
    parameters = {name: str(value) for name, value in selection.items() if value is not None}
    purpose, now_s = f"cursor of counts {given['by']} {selection}", call.console.now_s()
    following = call.console.signer.open(purpose, call.user, given["cursor"], now_s) if "cursor" in given else None
    counts: Counter[int] = Counter()
    missing: dict[str, str] = {}
    end_s = monotonic() + MAX_COUNTING_S
    while True:
        cursor = {"cursor": following} if following else {}
        answer = await ask(call, wire.LIST_PATH, {**parameters, **cursor, "limit": str(wire.MAX_LIMIT)})
        missing |= {each["partition"]: each["reason"] for each in answer.body["missing"]}
        for timer in answer.body["timers"]:
            if call.user.may_use_topic(timer["topic"]):
                counts[timer["due"] // group_s * group_s] += 1
        following = answer.body["next"]
        if following is None or monotonic() > end_s or len(counts) >= MAX_GROUPS:
            break
    return Reply(
        {
            "counts": [{"from": second, "timers": count} for second, count in sorted(counts.items())],
            "next": following and call.console.signer.sign(purpose, call.user, following, now_s + CURSOR_S),
            "complete": following is None and not missing,
            "missing": [{"partition": name, "reason": why} for name, why in missing.items()],
        }
    )
