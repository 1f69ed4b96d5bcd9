"""The handler of ``POST /v1/timers/cancel``: cancels all timers that match a filter, in steps that the caller asks for.

Each step is one request, so it can be stopped by sending no other one. A timer is cancelled by its id: if it was
replaced since it was listed, its new version is cancelled.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from time import monotonic
from typing import Any

from timers.console.call import Call, Handler, Reply
from timers.console.problems import Problem
from timers.console.signing import CONFIRM_S
from timers.console.timer_pages import CURSOR_S, UNDECIDED, ask, publish_problem
from timers.console.write_log import record_ids
from timers.core.operation import ALREADY_FIRED, CANCELLED, UNKNOWN
from timers.errors import NoVerdictError, TimersError
from timers.wire import query as wire
from timers.wire import topics
from timers.wire.query import Timer

MAX_COUNTING_S = 2.0
MAX_STEP_S = 5.0
SAMPLE = 10

AT_ONCE = 500
"""Cancels that are written before their verdicts are awaited."""

VERDICT_S = 5.0
"""How long to wait for a verdict. After this the cancel counts as undecided; it takes effect when a worker reads it."""

_SELECTION = ("topic", "from", "to", "prefix")


def handlers() -> dict[str, Handler]:
    """Name of a route -> its handler."""
    return {"cancelTimers": cancel_timers}


async def cancel_timers(call: Call) -> Reply:
    """``POST /v1/timers/cancel``"""
    selection = {name: call.body[name] for name in _SELECTION if name in call.body}
    if not selection:
        raise Problem("parameter-invalid", f"say which: at least one of {', '.join(_SELECTION)}")
    topic = selection.get("topic")
    if topic is not None and not call.user.may_use_topic(topic):
        raise Problem("topic-forbidden", f"you may not cancel timers of topic {topic!r}")
    if not call.console.settings.id_topic:
        raise Problem("ids-off", "TIMERS_ID_TOPIC is empty, so no timer can be cancelled")
    purpose, now_s = f"confirmation to cancel {sorted(selection.items())}", call.console.now_s()
    if "confirm" not in call.body:
        counted = await _count(call, selection)
        return Reply({**counted, "confirm": call.console.signer.sign(purpose, call.user, None, now_s + CONFIRM_S)})
    signer = call.console.signer
    position = signer.open(purpose, call.user, call.body["confirm"], now_s)
    verdicts, following, problem = await _step(call, selection, position)
    counts = {name: verdicts[name] for name in (CANCELLED, ALREADY_FIRED, UNKNOWN, UNDECIDED, "left_out")}
    is_last = following is None and problem is None
    again = None if is_last else signer.sign(purpose, call.user, following, now_s + CURSOR_S)
    if problem is not None:
        raise problem.with_more(verdicts=counts, next=again)
    return Reply({"verdicts": counts, "next": again})


async def _count(call: Call, selection: dict[str, Any]) -> dict[str, Any]:
    """How many timers match, as far as two seconds reach, and the first ten of them."""
    sample: list[Timer] = []
    matching = left_out = 0
    missing: list[Any] = []
    end_s, following = monotonic() + MAX_COUNTING_S, None
    while True:
        timers, following, missing = await _page(call, selection, following)
        mine = [timer for timer in timers if _is_cancellable(call, timer)]
        left_out += len(timers) - len(mine)
        matching += len(mine)
        sample += mine[: SAMPLE - len(sample)]
        if following is None or monotonic() > end_s:
            break
    whole = following is None and not missing
    return {"matching": matching, "at_least": not whole, "left_out": left_out, "sample": sample, "missing": missing}


async def _step(call: Call, selection: dict[str, Any], position: Any) -> tuple[Counter[str], Any, Problem | None]:
    """Cancel timers for five seconds.

    Returns:
        The number of each verdict, where the next step begins, and why this one ended early. A page that could not be
        cancelled whole is the first of the next step: those of its timers that are cancelled are not listed again.
    """
    verdicts: Counter[str] = Counter()
    end_s = monotonic() + MAX_STEP_S
    while True:
        try:
            timers, following, missing = await _page(call, selection, position, AT_ONCE)
            if missing:
                raise Problem("worker-unreachable", "some partitions do not answer: try again later", missing=missing)
            ids = [timer["id"] for timer in timers if _is_cancellable(call, timer)]
            if ids:
                await record_ids(call, ids)
        except Problem as problem:
            return verdicts, position, problem
        results = await asyncio.gather(*(_cancel(call, id) for id in ids))
        verdicts.update(each for each in results if isinstance(each, str))
        for each in results:
            if isinstance(each, Problem):
                return verdicts, position, each
        verdicts["left_out"] += len(timers) - len(ids)
        position = following
        if position is None or monotonic() > end_s:
            return verdicts, position, None


async def _cancel(call: Call, id: str) -> str | Problem:
    """The verdict, or why the cancel was not written: the others of the page are not given up for it."""
    try:
        return (await call.console.cluster.cancel(id, VERDICT_S)).verdict
    except NoVerdictError:
        return UNDECIDED
    except TimersError as error:
        return publish_problem(error, id)


async def _page(
    call: Call, selection: dict[str, Any], following: Any, limit: int = wire.MAX_LIMIT
) -> tuple[list[Timer], Any, list[Any]]:
    parameters = {name: str(value) for name, value in selection.items()} | {"limit": str(limit)}
    answer = await ask(call, wire.LIST_PATH, parameters | ({"cursor": following} if following else {}))
    timers = [timer for timer in answer.body["timers"] if call.user.may_use_topic(timer["topic"])]
    return timers, answer.body["next"], answer.body["missing"]


def _is_cancellable(call: Call, timer: Timer) -> bool:
    """Whether a timer has an id, waits for its first attempt, and belongs to this user."""
    source = topics.parse_source(timer["source"])
    has_id = source is not None and source[0] == call.console.settings.id_topic
    return has_id and "retry" not in timer and call.user.may_use_id(timer["id"])
