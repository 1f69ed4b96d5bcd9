"""Says whether all timers of an app fire: they do, some do not, or it is not known. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

FIRE, DO_NOT_FIRE, NOT_KNOWN = "fire", "do-not-fire", "not-known"

SILENCE_S = 2.0
"""What has said nothing for this long is not known. A tick comes every second, and a worker answers in milliseconds."""


class Judged(NamedTuple):
    """Whether all timers fire, and why not or why that is not known, in a sentence."""

    timers: str
    """:data:`FIRE`, :data:`DO_NOT_FIRE` or :data:`NOT_KNOWN`."""
    why: str = ""


def judged(workers: Iterable[Mapping[str, Any]]) -> Judged:
    """Whether all timers fire.

    Each partition must be one that a worker fires that has just answered and has had a tick within :data:`SILENCE_S`.

    Args:
        workers: all members of the group, as ``/v1/workers`` shows them.
    """
    workers = list(workers)
    if not workers:
        return Judged(DO_NOT_FIRE, "no worker runs")
    answered = [worker for worker in workers if worker["ready"] is not None]
    for worker in answered:
        closed = [name for name in worker.get("red") or () if name not in (worker.get("lossy") or ())]
        if closed or worker.get("stopped"):
            return Judged(DO_NOT_FIRE, f"the timers of {[*closed, *(worker.get('stopped') or ())][0]} wait")
    lively = [worker for worker in answered if not is_silent(worker)]
    if not lively:
        return Judged(NOT_KNOWN, f"worker {workers[0]['id']} {silence(workers[0])}")
    firing = {name for worker in lively for name in worker.get("firing") or ()}
    missing = partitions_of(workers) - firing
    if not missing:
        return Judged(FIRE)
    shown = min(missing)
    names = f"{shown} and {len(missing) - 1} more" if len(missing) > 1 else shown
    holders = [each for each in workers if each not in lively and missing & _assigned(each)]
    if holders:
        return Judged(NOT_KNOWN, f"worker {holders[0]['id']}, which has {names}, {silence(holders[0])}")
    unready = [reason for worker in lively for reason in worker.get("reasons") or ()]
    if unready:
        return Judged(DO_NOT_FIRE, f"{names}: {unready[0]}")
    return Judged(NOT_KNOWN, f"no worker says that it fires {names}")


def is_silent(worker: Mapping[str, Any]) -> bool:
    """Whether it is not known what a worker fires now: it did not answer, or has had no tick for a while."""
    return worker["ready"] is None or (worker.get("tick_age_s") or 0.0) > SILENCE_S


def silence(worker: Mapping[str, Any]) -> str:
    """Why it is not known what a worker fires, as the end of a sentence."""
    if worker["ready"] is None:
        return "does not answer"
    return f"has had no tick for {worker['tick_age_s']:.1f} s: its brokers may not answer"


def partitions_of(workers: Iterable[Mapping[str, Any]]) -> set[str]:
    """All partitions of the app's request topics, as far as a worker or the group names them."""
    found = set()
    for worker in workers:
        found |= _assigned(worker)
        for topic, count in (worker.get("request_partitions") or {}).items():
            found |= {f"{topic}/{partition}" for partition in range(count)}
    return found


def _assigned(worker: Mapping[str, Any]) -> set[str]:
    return {f"{topic}/{partition}" for topic, numbers in worker.get("assigned", {}).items() for partition in numbers}
