"""The faults. Each is a generator: it does a step, yields the seconds until its next one, and returns what it injected.

So several faults can be under way at once on one thread, such as the restart of one worker and the death of another.
"""

import signal
import struct
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from random import Random
from subprocess import PIPE, STDOUT, Popen

from tests.chaos import plan, stores
from tests.chaos.checker import InjectedFault
from tests.chaos.plan import Fault
from tests.chaos.state import NOTICED, Member, RoundState, now_ms, wipe
from tests.harness.process import ROOT, clean_environment, python
from tests.harness.quotas import PRODUCER_BYTES_PER_S, set_quota
from tests.harness.records import Publisher
from tests.harness.three_brokers import ThreeBrokers
from tests.harness.waiting import DEADLINE_S
from timers.wire.formats import countdown

Steps = Generator[float, None, InjectedFault]
"""A fault under way: yields the seconds until its next step, and returns the injected fault."""

POLL_S = 0.2
TAKEOVER_S = 180.0
"""Deadline of a takeover, which needs the end of a session and a rebalance. The callbacks show how late timers are."""
ENDING_S = DEADLINE_S
"""Deadline for the end of a worker, which needs a handover and the end of a transaction."""

READ_S = 6.0
"""Seconds in which a running worker reads most of the files that it uses."""
OPENED_S = 90.0
"""Deadline for opening stores, which needs a start and partitions."""
OTHERS_S = 2.0
"""Time in which the other damaged stores of a worker may be noticed."""

LEADERLESS_BROKER = 3
"""The broker whose partitions lose their leader."""
LEADERLESS_S = 2.0
"""Least time for which partitions have no leader."""

BETWEEN_STALLS_S = 2.0

HELD_AFTER_S = 2.0
"""Seconds after a pause from which on nothing is sent by a worker that runs. One that opens machines meanwhile may."""

QUOTAS = 4
"""The first quota is half of what clients write, each further one half of the one before. A much lower one throttles a
client for minutes, because a broker compares it with the mean of 10 s."""
QUOTA_S = 8.0
QUOTA_FADES_S = 15.0
"""Clients are throttled for some time after the quota was removed."""


def _inject(
    state: RoundState, fault: Fault, partitions: Mapping[str, list[int]], ends: Mapping[int, int] | None = None
) -> InjectedFault:
    """Record a fault just before it happens.

    Args:
        partitions: request partitions of each worker that it hits.
        ends: end offsets of the request partitions; by default those of the moment at which the victim was chosen,
            because due timers would fire while the broker is asked.
    """
    ends = state.chosen_ends if ends is None else ends
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

    What it was about to fire must not become visible: it is fenced, and joins the group again.
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
    if not victim.worker.running or victim.name not in state.held():
        how = "does not join again" if victim.worker.running else f"ended with {victim.worker.sentences}"
        state.failures.append(f"{victim.name} woke up after others had taken over, and {how}")
    victim.paused = False
    return replace(injected, note="joined again")


def add(state: RoundState, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Steps:
    """Start one more worker. The fault is the rebalance some seconds later, when it joins the group."""
    member = state.add(fault.clock_offset_s)
    waited_s = 0.0
    while member.name not in held and waited_s < TAKEOVER_S:
        yield POLL_S / 10
        waited_s += POLL_S / 10
        held = state.held()
    # The partitions are assigned, and workers open their machines.
    return replace(_inject(state, fault, held, state.ends()), delays=False)


def remove(state: RoundState, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Steps:
    injected = _inject(state, fault, {victim.name: held[victim.name]})
    victim.wanted = False
    victim.worker.send(signal.SIGTERM)
    waited_s = 0.0
    while victim.worker.running and waited_s < ENDING_S:
        yield POLL_S
        waited_s += POLL_S
    if victim.worker.running or not victim.worker.has_stopped():
        how = "does not end" if victim.worker.running else f"ended with {victim.worker.exit_code()}"
        state.failures.append(f"{victim.name} was asked to stop and {how}")
    return _over(injected)


def broker(state: RoundState, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Steps:
    injected = _inject(state, fault, held)
    state.kill_brokers()
    yield fault.down_s
    state.restart_brokers()
    return _over(injected)


def leaderless(state: RoundState, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Steps:
    """Kill one of three brokers: its partitions have no other replica, so they have no leader until it is back."""
    brokers = state.brokers
    assert isinstance(brokers, ThreeBrokers), "one broker alone has no partition that could lose its leader"
    led = brokers.led_by(LEADERLESS_BROKER)
    topic = state.system.request_topic
    injected = _inject(state, fault, {name: [p for p in mine if (topic, p) in led] for name, mine in held.items()})
    state.brokers_up = False
    brokers.brokers[LEADERLESS_BROKER].kill()
    while led.isdisjoint(without := brokers.leaderless()):
        yield POLL_S
    yield LEADERLESS_S + fault.down_s
    brokers.brokers[LEADERLESS_BROKER].start()
    while brokers.leaderless():
        yield POLL_S
    state.note_brokers_up()
    injected = _over(injected)
    # In the retry topic, timers wait up to as long as their target has failed.
    injected = replace(injected, grace_ms=injected.over_ms - injected.at_ms)
    ours = sorted(f"{name}/{partition}" for name, partition in without if not name.startswith("__"))
    return replace(injected, note=f"without a leader: {', '.join(ours)}", seen=bool(ours))


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
    """Restart a worker at once with countdowns, let some fire, and restart it without."""
    topic = f"{state.system.app_id}-countdowns"
    injected = yield from kill(state, fault, victim, held)
    victim.paused = True
    victim.start(fault.clock_offset_s, TIMERS_COUNTDOWN_TOPIC=topic)
    waited_s = 0.0
    while not (read := state.held(topic).get(victim.name)):
        yield POLL_S
        waited_s += POLL_S
        if waited_s > TAKEOVER_S or not victim.worker.running:
            state.failures.append(f"{victim.name} restarted with {topic} and does not read it: {victim.worker.tail()}")
            break
    fired = 0
    if read:
        fired = yield from _fire_countdowns(state, topic, read)
        if fired != len(read):
            state.failures.append(f"{fired} of {len(read)} countdowns fired")
    if victim.worker.running:
        victim.kill()
    victim.start(fault.clock_offset_s)
    victim.paused = False
    note = f"partitions {read} of the other format after {waited_s:.1f} s, {fired} countdowns fired"
    return replace(_over(injected), note=note, seen=fired > 0)


def _fire_countdowns(state: RoundState, topic: str, partitions: list[int]) -> Generator[float, None, int]:
    """Send one countdown to each partition, wait for the callbacks, and return their number."""
    target = state.system.target()
    publisher = Publisher(state.system.address, topic)
    for partition in partitions:
        publisher.queue_raw(None, countdown.encode(target, ""), [], partition)
    publisher.flush()
    reader, fired, waited_s, expected = state.system.reader(target), 0, 0.0, 2 * len(partitions)
    while fired < len(partitions):
        # Each is in a transaction of its own, with a marker at its end. One that was rolled back has left both, too.
        while (end := state.committed_end(target) or 0) < expected:
            yield POLL_S
            waited_s += POLL_S
            if waited_s > TAKEOVER_S:
                return fired
        fired, expected = fired + len(reader.rest()), end + 2
    return fired


def damage(state: RoundState, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Steps:
    """Kill a worker, damage its stores, and start it again: it must notice, and read the log again."""
    # Sizes are compared now: at the moment of the fault it would take as long as timers are in flight.
    return _damage(state, fault, stores.with_largest(state, victim, held), held)


def _damage(state: RoundState, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Steps:
    injected = yield from kill(state, fault, victim, held)
    victim.paused = True
    what = stores.damage(state, victim, held, Random(repr(fault)))
    yield fault.down_s
    victim.start(fault.clock_offset_s)
    injected = _over(injected)
    noticed = yield from _await_noticed(victim, OPENED_S)
    victim.paused = False
    return replace(injected, note=f"{noticed} noticed of {what}", seen=noticed > 0)


def damage_running(state: RoundState, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Steps:
    """Damage the stores of a worker while it runs. If it notices nothing in time, kill it and start it again."""
    return _damage_running(state, fault, stores.with_largest(state, victim, held), held)


def _damage_running(state: RoundState, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Steps:
    injected = _inject(state, fault, {victim.name: held[victim.name]})
    victim.paused = True
    noticed_before = victim.worker.log.count(NOTICED)
    what = stores.damage(state, victim, held, Random(repr(fault)))
    noticed = yield from _await_noticed(victim, READ_S, noticed_before)
    note = f"{noticed} noticed of {what}, while it ran"
    if not noticed and victim.worker.running:
        victim.kill()
        victim.start(fault.clock_offset_s)
        injected = _over(injected)
        noticed = yield from _await_noticed(victim, OPENED_S)
        note = f"{noticed} noticed of {what}, after a kill -9"
    victim.paused = False
    return replace(injected, note=note, seen=noticed > 0)


def _await_noticed(victim: Member, deadline_s: float, before: int = 0) -> Generator[float, None, int]:
    """Wait until the log of a worker names another damaged store, and a little longer; return their number."""
    waited_s = 0.0
    while victim.worker.log.count(NOTICED) == before and waited_s < deadline_s:
        yield POLL_S
        waited_s += POLL_S
    yield OTHERS_S
    return victim.worker.log.count(NOTICED) - before


def throttle(state: RoundState, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Steps:
    """Set a quota for all clients, the publisher included, and lower it until workers wait for it."""
    injected = _inject(state, fault, held)
    before = state.throttled_s()
    waited_s = 0.0
    state.alone = True  # beside a fault that stops clients, they would not reach the quota
    quota = state.bytes_per_s // len(state.system.address.split(","))
    for _ in range(QUOTAS):
        quota //= 2
        yield from _set_quota(state, quota)
        yield QUOTA_S
        waited_s = sum(seconds - before.get(start, 0.0) for start, seconds in state.throttled_s().items())
        if waited_s > 0:
            break
    yield from _set_quota(state, None)
    state.alone = False
    yield QUOTA_FADES_S
    note = f"partitions waited {waited_s:.1f} s for a quota of {quota:,} bytes/s for each broker"
    return replace(_over(injected), note=note, seen=waited_s > 0)


def stall(state: RoundState, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Steps:
    """Let the disk of a worker stall several times. The worker must not end."""
    assert victim.disk is not None, "the workers of this round have no disks that can stall"
    injected = _inject(state, fault, {victim.name: held[victim.name]})
    victim.paused = True  # while a process waits for such a disk, it cannot be killed
    waiting = dict.fromkeys(plan.STALLS_S, 0)
    for stall_s in plan.STALLS_S:
        until = time.monotonic() + stall_s
        with victim.disk.stalled():
            while time.monotonic() < until:
                yield POLL_S
                waiting[stall_s] = max(waiting[stall_s], victim.disk.waiting())
        yield BETWEEN_STALLS_S
    victim.paused = False
    note = f"accesses that waited: {', '.join(f'{most} of {stall_s:g} s' for stall_s, most in waiting.items())}"
    return replace(_over(injected), note=note, seen=any(waiting.values()))


def hold(state: RoundState, fault: Fault, victim: Member, held: dict[str, list[int]]) -> Steps:
    """Pause the callback topics, and resume them. Other faults may come meanwhile."""
    for target in state.targets:
        yield from _command(state, "pause", target)
    injected = replace(_inject(state, fault, held), delays=False)
    yield HELD_AFTER_S
    before = yield from _sent(state)
    yield plan.BURST_EVERY_S + fault.down_s
    sent = (yield from _sent(state)) - before
    slow_s = plan.SLOW_S * (fault.victim % 2)
    for target in state.targets:
        yield from _command(state, "resume", target, *(("--over", f"{slow_s}s") if slow_s else ()))
    note = f"{sent:,} records later than {HELD_AFTER_S:.0f} s after the pause; released over {slow_s} s"
    return replace(_over(injected), grace_ms=slow_s * 1000, note=note)


def _sent(state: RoundState) -> Generator[float, None, int]:
    """Return the end offsets of the callback topics, as soon as a broker says them."""
    ends = []
    for target in state.targets:
        while (end := state.committed_end(target)) is None:
            yield POLL_S
        ends.append(end)
    return sum(ends)


def _command(state: RoundState, *words: str) -> Generator[float, None, None]:
    """Give a command about a callback topic. While brokers are down, it fails, and is given again."""
    environment = clean_environment(**state.system.environment)
    waited_s = 0.0
    while True:
        running = Popen(
            python("timers.cli.main", "targets", *words),
            cwd=ROOT,
            env=environment,
            stdout=PIPE,
            stderr=STDOUT,
            text=True,
        )
        while running.poll() is None:
            yield POLL_S
            waited_s += POLL_S
        if running.returncode == 0:
            return
        if waited_s > TAKEOVER_S:
            said = running.stdout.read() if running.stdout else ""
            state.failures.append(f"timers targets {' '.join(words)} failed for {waited_s:.0f} s: {said}")
            return
        yield 1.0


def _set_quota(state: RoundState, bytes_per_s: int | None) -> Generator[float, None, None]:
    """Set or remove the quota as soon as a broker answers."""
    address = state.system.address.partition(",")[0]
    while True:
        try:
            return set_quota(address, PRODUCER_BYTES_PER_S, bytes_per_s)
        except (OSError, struct.error):  # the broker is down, or went down before it answered
            yield POLL_S


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
    plan.DAMAGE: damage,
    plan.DAMAGE_RUNNING: damage_running,
    plan.LEADERLESS: leaderless,
    plan.THROTTLE: throttle,
    plan.STALL: stall,
    plan.HOLD: hold,
}
