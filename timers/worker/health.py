"""Whether the worker lives, and whether it does its work; each as the reasons why not.

Alive means that its threads make progress: with the brokers away it is alive and waits. Ready means that timers fire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from timers.worker.service import TimersApp

STUCK_S = 30.0
"""A thread that has something to do and shows no sign of life for this long will not recover. No single step is allowed
to take as long: requests to brokers give up after 5 to 6 s, a chunk of timers takes a fraction of a second."""

READY_TICK_S = 5.0
"""A worker that has counted no tick for this long does not fire."""


def stuck(app: TimersApp) -> list[str]:
    """Which threads make no progress. The main event loop's own sign of life is that it answers at all."""
    pulses = {
        "the producers' event loop": app.pool.producers.heartbeat,
        **{
            f"the thread of {topic}/{partition}": metrics.heartbeat
            for (topic, partition), metrics in app.pool.partition_metrics.items()
        },
    }
    consumer = app.consumer_heartbeat
    if consumer is not None:
        pulses["the consumer's event loop"] = consumer
    return [
        f"{name} has made no progress for {silent_s:.0f} s"
        for name, heartbeat in pulses.items()
        if (silent_s := heartbeat.silent_s) > STUCK_S
    ]


def unready(app: TimersApp) -> list[str]:
    """Why timers do not fire, or not all of them."""
    pool = app.pool
    reasons = []
    if app.tick_reader is None:
        reasons.append("the worker is starting")
    elif app.tick_reader.age_s > READY_TICK_S:
        reasons.append(f"no tick was counted for {app.tick_reader.age_s:.1f} s")
    if not app.in_group:
        reasons.append("partitions are being assigned")
    if app.log_watch is not None and app.log_watch.missing:
        reasons.append(f"topics are gone: {', '.join(app.log_watch.missing)}")
    reasons.extend(str(why) for why in pool.stopped.values())
    if not pool.complete and not pool.stopped:
        reasons.append("partitions are being opened")
    recovering = sum(runner.machine.recovering for runner in pool.runners.values())
    if recovering:
        reasons.append(f"{recovering} of {len(pool.runners)} partitions are recovering")
    if pool.held:
        reasons.append("the brokers' clock went back: new requests wait until it has caught up")
    return reasons
