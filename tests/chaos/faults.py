"""The faults. Each is a generator: it acts, yields the seconds until it acts again, and returns what was was injected.

So several can be under way at once (one worker comes back while the next is killed), all on one thread.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Mapping

from tests.chaos import plan
from tests.chaos.checker import InjectedFault
from tests.chaos.plan import Fault
from tests.chaos.world import FENCED, Member, World, now_ms, wipe

Course = Generator[float, None, InjectedFault]
"""Seconds to wait at each step; at its end the injected fault."""

POLL_S = 0.2
TAKEOVER_S = 60.0
ENDING_S = 40.0
"""Deadlines: a takeover needs a session's end and a rebalance, a woken zombie a transaction."""


def _inject(world: World, fault: Fault, names: Mapping[str, list[int]]) -> InjectedFault:
    """Note what is was injected, just before it is."""
    ends = world.ends()
    held = {partition: ends[partition] for partitions in names.values() for partition in partitions}
    at_ms = now_ms()
    return InjectedFault(fault.kind, ", ".join(names), at_ms, at_ms, held)


def _over(injected: InjectedFault, note: str = "") -> InjectedFault:
    return InjectedFault(injected.kind, injected.victim, injected.at_ms, now_ms(), injected.held, note)


def kill(world: World, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Course:
    injected = _inject(world, fault, {victim.name: held[victim.name]})
    victim.kill()
    yield 0.0
    return injected


def kill_restart(world: World, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Course:
    injected = yield from kill(world, fault, victim, held)
    yield fault.away_s
    victim.start(fault.clock_s)
    return _over(injected)


def kill_wipe_restart(world: World, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Course:
    injected = yield from kill(world, fault, victim, held)
    wipe(victim.worker.data_dir)
    yield fault.away_s
    victim.start(fault.clock_s)
    return _over(injected)


def pause(world: World, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Course:
    """A zombie: what it was about to fire must never be seen. It is fenced, and ends with one sentence.

    Or it hears from the group before it fires again, or had let go before it was stopped: then it joins again, as new.
    """
    mine = set(held[victim.name])
    injected = _inject(world, fault, {victim.name: held[victim.name]})
    victim.paused = True
    victim.worker.send(signal.SIGSTOP)
    waited_s = 0.0
    while True:
        yield POLL_S
        waited_s += POLL_S
        now = world.held()
        taken = {partition for name, partitions in now.items() if name != victim.name for partition in partitions}
        if mine <= taken and victim.name not in now:
            break
        if waited_s > TAKEOVER_S:
            world.failures.append(f"nobody took over from {victim.name}, paused for {waited_s:.0f} s")
            break
    yield fault.away_s
    victim.worker.send(signal.SIGCONT)
    injected = _over(injected)
    waited_s = 0.0
    while victim.worker.running and victim.name not in world.held() and waited_s < ENDING_S:
        yield POLL_S
        waited_s += POLL_S
    note = _judge_zombie(world, victim)
    if not victim.worker.running:
        victim.start(fault.clock_s)  # as a supervisor would
    victim.paused = False
    return InjectedFault(injected.kind, injected.victim, injected.at_ms, injected.over_ms, injected.held, note)


def _judge_zombie(world: World, victim: Member) -> str:
    if victim.worker.running:
        if victim.name in world.held():
            return "joined again"
        world.failures.append(f"{victim.name} woke up after others had taken over, and neither ends nor joins again")
        return "lived on"
    code, sentences = victim.worker.exit_code(), victim.worker.sentences
    if code == 0 or len(sentences) != 1 or FENCED not in sentences[0]:
        world.failures.append(f"{victim.name}, a zombie, ended with exit code {code} and {sentences}")
    return f"fenced, exit code {code}"


def add(world: World, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Course:
    """The newcomer itself hurts nobody; the rebalance does that it causes when it joins, some seconds later."""
    member = world.add(fault.clock_s)
    waited_s = 0.0
    while member.name not in held and waited_s < TAKEOVER_S:
        yield POLL_S / 10
        waited_s += POLL_S / 10
        held = world.held()
    return _inject(world, fault, held)  # partitions have just been dealt, machines are being opened


def remove(world: World, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Course:
    injected = _inject(world, fault, {victim.name: held[victim.name]})
    victim.wanted = False
    victim.worker.send(signal.SIGTERM)
    waited_s = 0.0
    while victim.worker.running and waited_s < ENDING_S:
        yield POLL_S
        waited_s += POLL_S
    if victim.worker.running or victim.worker.exit_code() != 0:
        how = "does not end" if victim.worker.running else f"ended with {victim.worker.exit_code()}"
        world.failures.append(f"{victim.name} was asked to stop and {how}")
    return _over(injected)


def broker(world: World, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Course:
    injected = _inject(world, fault, held)
    world.broker_up = False
    world.broker.kill()
    yield fault.away_s
    world.restart_broker()
    return _over(injected)


def all_down(world: World, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Course:
    """Nobody is there when the next burst is due."""
    down = [member for member in world.members if member.wanted and not member.paused]
    injected = _inject(world, fault, held)
    for member in down:
        member.kill()
    yield plan.GATHER_S + fault.away_s
    for member in down:
        member.start(fault.clock_s if member is down[-1] else 0.0)
    return _over(injected)


COURSES: dict[str, Callable[[World, Fault, Member, dict[str, list[int]]], Course]] = {
    plan.KILL: kill,
    plan.KILL_RESTART: kill_restart,
    plan.PAUSE: pause,
    plan.WIPE: kill_wipe_restart,
    plan.ADD: add,
    plan.REMOVE: remove,
    plan.BROKER: broker,
    plan.ALL_DOWN: all_down,
}
