"""The handlers of ``/v1/targets``: what is paused, commands about it, and new callback topics."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from timers.client.times import parse_duration
from timers.console.call import Call, Reply, handles, idempotency_key, mark_of
from timers.console.problems import Problem
from timers.console.timer_pages import ask
from timers.errors import AccessError, InvalidTimerError, SettingsError, TargetError, TimersError, UnacknowledgedError
from timers.wire.query import COUNT_PATH, COUNTING_TIMEOUT_S, HeldCounter

if TYPE_CHECKING:
    from timers.offline.targets import Make


@handles("listTargets")
async def list_targets(call: Call) -> Reply:
    try:
        found = await call.console.cluster.targets()
    except TargetError as error:
        raise Problem("target-refused", str(error)) from None
    except TimersError as error:
        raise Problem("brokers-unreachable", str(error)) from None
    until = monotonic() + COUNTING_TIMEOUT_S
    names = [name for name in found.names if call.user.may_use_topic(name)]
    listed = [found.shown(name) | await _held(call, name, until) for name in names]
    unreadable = {name: why for name, why in found.targets.unreadable.items() if call.user.may_use_topic(name)}
    return Reply({"targets": listed, "below": found.below, "unreadable": unreadable})


async def _held(call: Call, name: str, until: float) -> dict[str, Any]:
    """How many timers of a topic are due and have not fired, as the workers count them."""
    count = HeldCounter(name, int(call.console.now_s()))
    try:
        while count.goes_on and monotonic() < until:
            count.add((await ask(call, COUNT_PATH, count.asked)).body)
    except Problem:  # the pauses are known without this answer
        return HeldCounter(name, 0).shown
    return count.shown


@handles("pauseTarget")
async def pause(call: Call) -> Reply:
    from timers.offline.targets import pausing  # not at the top: it imports aiokafka

    return await _give(call, partial(pausing, for_s=_seconds(call, "for"), over_s=_seconds(call, "over")))


@handles("resumeTarget")
async def resume(call: Call) -> Reply:
    from timers.offline.targets import resuming

    return await _give(call, partial(resuming, over_s=_seconds(call, "over") or 0))


@handles("createTarget")
async def create(call: Call) -> Reply:
    from timers.machines.firing.policy import CallbackRules  # not at the top: a console may never need it

    topic = call.body["topic"]
    call.check_topic(topic, "create")
    if denied := CallbackRules(call.console.settings).check_topic(topic):
        raise Problem("target-refused", f"{denied.reason}, so no timer would fire there")
    try:
        call.console.settings.check_creation(topic)
    except SettingsError as error:
        raise Problem("target-refused", str(error)) from None
    created = await call.console.cluster.create_topic(topic)
    return Reply({"topic": topic, "created": created}, 201 if created else 200)


async def _give(call: Call, made: Callable[..., Make]) -> Reply:
    from timers.offline.targets import KeyReused, Request

    topic, key = call.body["topic"], idempotency_key(call.request)
    call.check_topic(topic, "pause or resume")
    mark = mark_of(call.user, key, {"operation": call.route.name, **call.body}) if key is not None else ""
    try:
        make = made(call.console.settings, topic, Request(call.user.name, call.body.get("why", ""), mark))
        given = await call.console.cluster.command(make)
    except KeyReused as error:
        raise Problem("idempotency-key-reused", str(error)) from None
    except TargetError as error:
        raise Problem("target-refused", str(error)) from None
    except AccessError as error:
        raise Problem("publish-refused", str(error)) from None
    except UnacknowledgedError as error:
        why = f"{error}. It is not known whether the command was given: look at the list, or send it again"
        raise Problem("unknown", why, outcome="unknown") from None
    except TimersError as error:
        raise Problem("brokers-unreachable", str(error)) from None
    return Reply(given.shown)


def _seconds(call: Call, name: str) -> int | None:
    return None if (text := call.body.get(name)) is None else seconds(name, text)


def seconds(name: str, text: str) -> int:
    """Return the seconds of a duration that a request has.

    Args:
        name: of its field.

    Raises:
        Problem: it is none.
    """
    try:
        return parse_duration(text)
    except InvalidTimerError as error:
        raise Problem("parameter-invalid", f"{name}: {error}") from None
