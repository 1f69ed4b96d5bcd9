"""The handlers of ``/v1/workers``, ``/v1/lateness`` and ``/v1/pending``."""

from __future__ import annotations

import asyncio
from collections import Counter
from time import monotonic
from typing import Any, TypeAlias

from timers.console import figures
from timers.console.call import Call, Reply, handles
from timers.console.figures import judged
from timers.console.kafka_cluster import FoundWorker, KafkaCluster
from timers.console.problems import Problem
from timers.console.timer_pages import CURSOR_VALID_S, ask
from timers.core.printable import decode_json, quoted
from timers.errors import TimersError
from timers.wire import query as wire

_READY, _PARTITIONS, _METRICS = _PAGES = "/health/ready", "/health/partitions", "/metrics"
_OF_PARTITIONS: dict[str, type[dict[str, Any] | list[str]]] = {
    **dict.fromkeys(("red", "machines", "request_partitions"), dict),
    **dict.fromkeys(("firing", "lossy", "zoneless", "targets", "warnings", "notes"), list),
}
"""What is shown of a worker's page of partitions, and its form."""
_OK = 200

ANSWER_S = 1.5
"""What a worker has not said after this time is not known now: a page says so within 3 s, and it asks each second."""

PAST_S = 5.0
"""How long a worker may take to send the figures of a day, about 600 kB."""

FIRST_COUNT_S = 0.1
NEXT_COUNT_S = 2.0
"""Seconds for which timers are counted for the first page of an answer, and for each later page."""

MAX_GROUPS = 2000

GROUPS_S = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}


# ---- workers --------------------------------------------------------------------------------------------------------


@handles("workers")
async def workers(call: Call) -> Reply:
    return Reply(await look(call.console.cluster))


async def look(cluster: KafkaCluster) -> dict[str, Any]:
    """What the workers say now, and whether all timers fire.

    Raises:
        TimersError: the members of the group cannot be read.
    """
    group = await cluster.group()
    workers = sorted(group.workers, key=lambda each: each.id)
    said = await asyncio.gather(*(_ask(cluster, worker) for worker in workers))
    # The metrics of 100 partitions take tens of milliseconds, in which this loop would answer no other call.
    shown = (asyncio.to_thread(_shown, worker, *each) for worker, each in zip(workers, said, strict=True))
    found = await asyncio.gather(*shown)
    return {"state": judged(found, group.taken)._asdict(), "taken": group.taken, "workers": found}


_Said: TypeAlias = dict[str, tuple[int, bytes]]
"""Path -> status and body."""


async def _ask(cluster: KafkaCluster, worker: FoundWorker) -> tuple[_Said, str]:
    """The pages of a worker, or why it was not asked, or did not answer."""
    if not worker.may_be_asked:
        why = f"its address {worker.url} is not among TIMERS_CONSOLE_WORKERS"
        return {}, why if worker.url else "the group does not tell its address"
    try:
        asking = asyncio.gather(*(cluster.worker_page(worker.url, path) for path in _PAGES))
        async with asyncio.timeout(ANSWER_S):
            _, pages = await asyncio.gather(cluster.check_worker(worker.url), asking)
    except TimersError as error:
        return {}, str(error)
    except TimeoutError:
        return {}, f"it has not answered for {ANSWER_S:g} s"
    return dict(zip(_PAGES, pages, strict=True)), ""


def _shown(worker: FoundWorker, pages: _Said, why_not: str) -> dict[str, Any]:
    assigned: dict[str, list[int]] = {}
    for topic, number in sorted(worker.partitions):
        assigned.setdefault(topic, []).append(number)
    counts = {topic: len(numbers) for topic, numbers in assigned.items()}
    shown: dict[str, Any] = {"id": worker.id, "url": worker.url, "partitions": counts, "assigned": assigned}
    state = _object(pages, _READY)
    if state is None or not isinstance(state.get("pending"), int):
        return {**shown, "ready": None, "why": why_not or "what answers at its address is no worker of timers"}
    status, metrics = pages[_METRICS]
    found, said = _object(pages, _PARTITIONS) or {}, figures.samples(metrics) if status == _OK else {}
    partitions = {name: found.get(name, kind()) for name, kind in _OF_PARTITIONS.items()}
    are_read = "red" in found and all(isinstance(partitions[name], kind) for name, kind in _OF_PARTITIONS.items())
    unread = [path for path, is_read in ((_PARTITIONS, are_read), (_METRICS, bool(said))) if not is_read]
    if unread:  # without them its partitions would look sound, and its timers would be missing from sums
        return {**shown, "ready": None, "why": f"its page {unread[0]} cannot be read"}
    return {
        **shown,
        **{name: state.get(name) for name in ("ready", "reasons", "stopped", "pending", "tick_age_s")},
        **partitions,
        **figures.figures(said),
        "lags": figures.shown(figures.lags(said)),
        "why": None,
    }


def _object(pages: _Said, path: str) -> dict[str, Any] | None:
    try:
        found = decode_json(pages[path][1])
    except (KeyError, ValueError):
        return None
    return found if isinstance(found, dict) else None


# ---- lateness -------------------------------------------------------------------------------------------------------


@handles("lateness")
async def lateness(call: Call) -> Reply:
    found = (await look(call.console.cluster))["workers"]
    ways = figures.added(figures.parsed(each["lags"]) for each in found if each["ready"] is not None)
    missing = [{"worker": each["id"], "reason": each["why"]} for each in found if each["ready"] is None]
    return Reply({"ways": figures.shown(ways), "missing": missing})


# ---- what was before ------------------------------------------------------------------------------------------------


@handles("figures")
async def past_figures(call: Call) -> Reply:
    cluster, since_s = call.console.cluster, str(call.parameters.get("since", 0))
    group = await cluster.group()
    said = await asyncio.gather(*(_past(cluster, worker, since_s) for worker in group.workers))
    each = list(zip(group.workers, said, strict=True))
    found = [{"id": worker.id, **kept} for worker, kept in each if isinstance(kept, dict)]
    return Reply(
        {
            "workers": found,
            "missing": [{"worker": worker.id, "reason": why} for worker, why in each if isinstance(why, str)],
        }
    )


async def _past(cluster: KafkaCluster, worker: FoundWorker, since_s: str) -> dict[str, Any] | str:
    """What a worker has kept since a time, or why that is not known."""
    if not worker.may_be_asked:
        return f"its address {worker.url} is not among TIMERS_CONSOLE_WORKERS"
    try:
        async with asyncio.timeout(PAST_S):
            asked = cluster.check_worker(worker.url), cluster.worker_page(worker.url, "/figures", since=since_s)
            _, (status, body) = await asyncio.gather(*asked)
    except TimersError as error:
        return str(error)
    except TimeoutError:
        return f"it has not answered for {PAST_S:g} s"
    # A day of points takes tens of milliseconds, in which this loop would answer no other call.
    return await asyncio.to_thread(_points, status, body)


def _points(status: int, body: bytes) -> dict[str, Any] | str:
    kept = _object({"/figures": (status, body)}, "/figures") if status == _OK else None
    try:
        found = {"bounds_s": list(kept["bounds_s"]), "points": list(kept["points"])} if kept is not None else {}
        list(figures.points(found))
    except (KeyError, TypeError, ValueError, AttributeError):
        return "its figures cannot be read: it is starting, or of another version"
    return found


LOOK_BACK_S = 3600


@handles("listFired")
async def fired(call: Call) -> Reply:
    since_s = call.parameters.get("since", int(call.console.now_s()) - LOOK_BACK_S)
    topic, may_see = call.parameters.get("topic"), call.user.may_use_topic
    if topic is not None:
        call.check_topic(topic, "see callbacks of")
        may_see = topic.__eq__
        if not await call.console.cluster.topics(may_see):
            raise Problem("not-found", f"topic {quoted(topic)} does not exist, or is no callback topic")
    found = await call.console.cluster.past_firings(since_s, may_see)
    shown = [record.fields() for record in found.records[: call.parameters["limit"]]]
    return Reply(
        {
            "since": since_s,
            "found": len(found.records),
            "fired": [{name: value for name, value in each.items() if name not in _HIDDEN} for each in shown],
            "left_out": [{"topic": topic, "reason": why} for topic, why in sorted(found.left_out.items())],
        }
    )


_HIDDEN = ("value", "headers")
"""Fields of a callback that only users who may see values get."""


# ---- pending --------------------------------------------------------------------------------------------------------


@handles("pending")
async def pending(call: Call) -> Reply:
    given = call.parameters
    topic, group_s = given.get("topic"), GROUPS_S[given["by"]]
    call.check_topic(topic, "see timers of")
    selection = {"topic": topic, "from": given.get("from"), "to": given.get("to")}
    parameters = {name: str(value) for name, value in selection.items() if value is not None}
    purpose, now_s = f"cursor of counts {given['by']} {selection}", call.console.now_s()
    following = call.console.signer.open(purpose, call.user.name, given["cursor"], now_s) if "cursor" in given else None
    counts: Counter[int] = Counter()
    missing: dict[str, str] = {}
    end_s = monotonic() + (NEXT_COUNT_S if following else FIRST_COUNT_S)
    while True:
        cursor = {"cursor": following} if following else {}
        answer = await ask(call, wire.COUNT_PATH, {**parameters, **cursor, "by": str(group_s)})
        missing |= {each["partition"]: each["reason"] for each in answer.body["missing"]}
        for count in answer.body["timers"]:
            if call.user.may_use_topic(count["topic"]):
                counts[count["from"]] += count["timers"]
        following = answer.body["next"]
        if following is None or monotonic() > end_s or len(counts) >= MAX_GROUPS:
            break
    return Reply(
        {
            "counts": [{"from": second, "timers": count} for second, count in sorted(counts.items())],
            "next": following and call.console.signer.sign(purpose, call.user.name, following, now_s + CURSOR_VALID_S),
            "complete": following is None and not missing,
            "missing": [{"partition": name, "reason": why} for name, why in missing.items()],
        }
    )
