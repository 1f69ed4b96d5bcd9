"""The handler of ``/v1/timer/history``."""

from __future__ import annotations

from collections.abc import Collection

from timers.console.call import Call, Handler, Reply
from timers.console.problems import Problem
from timers.console.timer_pages import find


def handlers() -> dict[str, Handler]:
    """Name of a route -> its handler."""
    return {"getHistory": get_history}


async def get_history(call: Call) -> Reply:
    """``GET /v1/timer/history``"""
    id = call.parameters["id"]
    timer, not_found = None, None
    try:
        (timer, *_), _ = await find(call, id, with_value=False)
    except Problem as problem:
        if problem.code != "not-found":
            raise
        not_found = problem  # the topics may still have what a worker forgets, such as a cancelled timer
    history = await call.console.cluster.history(id, timer)
    if not_found is not None and not (history.events and _may_see_all(call, history.callback_topics)):
        raise not_found
    return Reply({"timer": timer, "events": history.events, "unread": history.unread})


def _may_see_all(call: Call, callback_topics: Collection[str]) -> bool:
    """Whether the user may use all of these topics. A user of some topics sees nothing if none is known."""
    if call.user.topics is None:
        return True
    return bool(callback_topics) and all(map(call.user.may_use_topic, callback_topics))
