"""The faults. Each is a generator: it does a step, yields the seconds until its next one, and returns what it injected.

So several faults can be under way at once on one thread, such as the restart of one worker and the death of another.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace

from tests.chaos import plan
from tests.chaos.checker import InjectedFault
from tests.chaos.plan import Fault
from tests.chaos.state import FENCED, Member, RoundState, now_ms, wipe

Steps = Generator[float, None, InjectedFault]
"""A fault under way: yields the seconds until its next step, and returns the injected fault."""

POLL_S = 0.2
TAKEOVER_S = 60.0
"""Deadline of a takeover, which needs the end of a session and a rebalance."""
ENDING_S = 40.0
"""Deadline for the end of a worker, which needs the end of a transaction."""


def _inject(state: RoundState, fault: Fault, partitions: Mapping[str, list[int]]) -> InjectedFault:
    """Record a fault just before it happens.

    Args:
        partitions: request partitions of each worker that it hits.
    """
    ends = state.ends()
    held = {partition: ends[partition] for numbers in partitions.values() for partition in numbers}
    at_ms = now_ms()
    return InjectedFault(fault.kind, ", ".join(partitions), at_ms, at_ms, held)


def _over(injected: InjectedFault) -> InjectedFault:
    """The same fault, ended now."""
    return replace(injected, over_ms=now_ms())


def kill(state: RoundState, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Steps:
    injected = _inject(state, fault, {victim.name: held[victim.name]})
    victim.kill()
    yield 0.0
    return injected


def kill_restart(state: RoundState, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Steps:
    injected = yield from kill(state, fault, victim, held)
    yield fault.down_s
    victim.start(fault.clock_offset_s)
    return _over(injected)


def kill_wipe_restart(state: RoundState, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Steps:
    injected = yield from kill(state, fault, victim, held)
    wipe(victim.worker.data_dir)
    yield fault.down_s
    victim.start(fault.clock_offset_s)
    return _over(injected)


def pause(state: RoundState, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Steps:
    """Stop a worker until others have its partitions, then wake it up.

    What it was about to fire must not become visible. It must end with one sentence, because it is fenced. It may also
    join the group again, if it hears of the rebalance first or had given up its partitions before it was stopped.
    """
    mine = set(held[victim.name])
    injected = _inject(state, fault, {victim.name: held[victim.name]})
    victim.paused = True
    victim.worker.send(signal.SIGSTOP)
    waited_s = 0.0
    while True:
        yield POLL_S
        waited_s += POLL_S
        now = state.held()
        taken = {partition for name, partitions in now.items() if name != victim.name for partition in partitions}
        if mine <= taken and victim.name not in now:
            break
        if waited_s > TAKEOVER_S:
            state.failures.append(f"no worker took over from {victim.name}, paused for {waited_s:.0f} s")
            break
    yield fault.down_s
    victim.worker.send(signal.SIGCONT)
    injected = _over(injected)
    waited_s = 0.0
    while victim.worker.running and victim.name not in state.held() and waited_s < ENDING_S:
        yield POLL_S
        waited_s += POLL_S
    note = _judge_zombie(state, victim)
    if not victim.worker.running:
        victim.start(fault.clock_offset_s)  # as a supervisor does
    victim.paused = False
    return replace(injected, note=note)


def _judge_zombie(state: RoundState, victim: Member) -> str:
    """Check how a paused worker went on after the takeover, and describe it."""
    if victim.worker.running:
        if victim.name in state.held():
            return "joined again"
        state.failures.append(f"{victim.name} woke up after others had taken over, and neither ends nor joins again")
        return "kept running"
    code, sentences = victim.worker.exit_code(), victim.worker.sentences
    if code == 0 or len(sentences) != 1 or FENCED not in sentences[0]:
        state.failures.append(f"{victim.name} was paused and ended with exit code {code} and {sentences}")
    return f"fenced, exit code {code}"


def add(state: RoundState, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Steps:
    """Start one more worker. The fault is the rebalance some seconds later, when it joins the group."""
    member = state.add(fault.clock_offset_s)
    waited_s = 0.0
    while member.name not in held and waited_s < TAKEOVER_S:
        yield POLL_S / 10
        waited_s += POLL_S / 10
        held = state.held()
    return _inject(state, fault, held)  # the partitions are assigned, and workers open their machines


def remove(state: RoundState, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Steps:
    injected = _inject(state, fault, {victim.name: held[victim.name]})
    victim.wanted = False
    victim.worker.send(signal.SIGTERM)
    waited_s = 0.0
    while victim.worker.running and waited_s < ENDING_S:
        yield POLL_S
        waited_s += POLL_S
    if victim.worker.running or victim.worker.exit_code() != 0:
        how = "does not end" if victim.worker.running else f"ended with {victim.worker.exit_code()}"
        state.failures.append(f"{victim.name} was asked to stop and {how}")
    return _over(injected)


def broker(state: RoundState, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Steps:
    injected = _inject(state, fault, held)
    state.broker_up = False
    state.broker.kill()
    yield fault.down_s
    state.restart_broker()
    return _over(injected)


def all_down(state: RoundState, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Steps:
    """Kill all workers until after the next burst is due."""
    down = [member for member in state.members if member.wanted and not member.paused]
    injected = _inject(state, fault, held)
    for member in down:
        member.kill()
    yield plan.BURST_EVERY_S + fault.down_s
    for member in down:
        member.start(fault.clock_offset_s if member is down[-1] else 0.0)
    return _over(injected)


def formats(state: RoundState, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Steps:
    """Restart a worker at once with timers with an id, wait until it reads their topic, and restart it without."""
    topic = f"{state.system.app_id}-by-id"
    injected = yield from kill(state, fault, victim, held)
    victim.paused = True
    victim.start(fault.clock_offset_s, TIMERS_ID_TOPIC=topic)
    waited_s = 0.0
    while victim.name not in state.held(topic):
        yield POLL_S
        waited_s += POLL_S
        if waited_s > TAKEOVER_S or not victim.worker.running:
            state.failures.append(f"{victim.name} restarted with {topic} and does not read it: {victim.worker.tail()}")
            break
    if victim.worker.running:
        victim.kill()
    victim.start(fault.clock_offset_s)
    victim.paused = False
    return _over(injected)


FAULTS: dict[str, Callable[[RoundState, Fault, Member, dict[str, list[int]]], Steps]] = {
    plan.KILL: kill,
    plan.KILL_RESTART: kill_restart,
    plan.PAUSE: pause,
    plan.WIPE: kill_wipe_restart,
    plan.ADD: add,
    plan.REMOVE: remove,
    plan.BROKER: broker,
    plan.ALL_DOWN: all_down,
    plan.FORMATS: formats,
}
