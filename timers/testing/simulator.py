"""A random life of a timer system: requests, ticks, crashes, rebalances, clock steps, and the questions after each.

One seed, one life: the same seed gives the same steps, always. ::

    Simulator(seed).run()                   # raises SimulationFailed, which says how to replay
    python -m timers.testing --seeds 1000   # the same from a shell
    python -m timers.testing 421            # replay one, with its history

A life is a number of small steps, each chosen at random. Time moves only in steps; between any two lines of a worker
it may die. At the end the faults stop, everybody is started again, and all that is due must come out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from timers.config.settings import Settings
from timers.core.limits import Limits
from timers.core.second_barrier import CLEANING_S
from timers.core.timer import Tick, TopicPartition
from timers.request_formats import enabled_formats
from timers.testing import faults as f
from timers.testing.checkers import Checkers
from timers.testing.clock import SimClock
from timers.testing.cold import SimCold
from timers.testing.id_oracle import Violation
from timers.testing.log import SimLog
from timers.testing.worker import SOUND, Parts, SimWorker
from timers.testing.workload import TARGETS, Workload
from timers.wire.headers import TIMER_FIRED_OFFSET
from timers.wire.topics import ID_REQUEST

STALE_AFTER_S = 30
DELETE_RETENTION_MS = 100_000
"""Of tombstones; more than twice the above, for the brokers' clock may go back a little."""
SEGMENT_MS = (CLEANING_S + 1) * 1000
"""What was appended within this time is in a segment that is still written, and not compacted."""

MAILS_LIMIT_BYTES = 330
RETRY_LIMIT_BYTES = 480
"""Where topics have a limit, some records of the workload are larger, and most are not."""

SETTLE_ROUNDS = 400
"""Seconds that may pass at the end until everything due is out; retries double their distance."""


class SimulationFailed(AssertionError):
    """A seed whose life broke a promise.

    Attributes:
        seed: to replay it.
        history: its steps.
    """

    def __init__(self, seed: int, history: list[str], cause: BaseException) -> None:
        self.seed = seed
        self.history = history
        last = "\n  ".join(history[-12:])
        super().__init__(
            f"seed {seed}, step {len(history)}: {type(cause).__name__}: {cause}\nlast steps:\n  {last}\n"
            f"replay: python -m timers.testing {seed}"
        )


class Simulator:
    """One life.

    Args:
        seed: decides everything.
        steps: length of its eventful part.
        parts: what workers are made of; see :class:`timers.testing.worker.Parts`.
        worker: what a worker is.
    """

    def __init__(self, seed: int, steps: int = 150, parts: Parts = SOUND, worker: type[SimWorker] = SimWorker) -> None:
        self.seed = seed
        self.history: list[str] = []
        self._random = random = Random(seed)
        self._steps = steps
        # A chance of its own: runs without a horizon are what they would be if nobody had thought of one.
        self._cold_random = Random(f"{seed} cold")
        self._schedule_random = Random(f"{seed} schedules")
        self._delivery_random = Random(f"{seed} delivery")
        self._settings = Settings(
            max_request_bytes=2000,
            retry_attempts=3,
            callback_allow=random.choice(["", "*,timer-request"]),
            callback_deny=random.choice(["", "mails"]),
            max_depth=2,
            id_topic=random.choice(["", ID_REQUEST, ID_REQUEST]),
            verdict_retention_s=random.choice([4, 86_400]),
            hot_horizon_s=self._cold_random.choice([0, 0, 3, 6]),
            schedule_topics=self._schedule_random.choice([(), ("schedules",)]),
            schedule_overdue=self._schedule_random.choice(["fire", "fire", "reject"]),
        )
        self.limits = Limits(
            chunk_timers=random.choice([1, 1, 3, 1000]),
            chunk_bytes=1_000_000,
            max_request_bytes=2000,
            catch_up_per_s=random.choice([0, 0, 1, 4]),
            overdue_s=random.choice([0, 2]),
            reject_overdue=self._settings.schedule_overdue == "reject",
            stale_after_s=STALE_AFTER_S,
        )
        self.clock = SimClock()
        self.clock.advance_ms(random.randrange(1000))
        self.log = SimLog(self.clock, partitions=random.choice([1, 1, 2]))
        self.log.missing.add("missing")
        limits = {"mails": MAILS_LIMIT_BYTES, self._settings.retry_topic: RETRY_LIMIT_BYTES}
        self.log.max_message_bytes = {
            topic: limit for topic, limit in limits.items() if self._delivery_random.random() < 0.3
        }
        formats = enabled_formats(self._settings)
        self.machines: list[TopicPartition] = [(topic, p) for topic in formats for p in range(self.log.partitions)]
        self.checkers = Checkers(self.log, self._settings, self.machines)
        self._workload = Workload(
            random,
            self.log,
            self._settings.request_topic,
            self._settings.id_topic,
            *self._settings.schedule_topics,
            large=bool(self.log.max_message_bytes),
        )
        self.workers = [
            worker(name, self.log, self._settings, self.limits, parts)
            for name in ("ada", "bob", "eve")[: random.randint(1, 3)]
        ]
        self._owner: dict[TopicPartition, SimWorker] = {}
        for each in self.workers:
            each.ours = partial(self._owns, each)
        self._paused = 0
        actions: list[tuple[Callable[[], str], float]] = [
            (self._work, 60),
            (self._request, 14),
            (self._second, 12),
            (self._restart, 8),
            (self._tick_again, 2),
            (self._pause_oscillator, 1),
            (self._step_clock, 1),
            (self._glitch, 1),
            (self._arm, 5),
            (self._lose_fetch, 2),
            (self._read_again, 2),
            (self._crash, 2),
            (self._rebalance, 3),
            (self._take_over, 2),
            (self._flap, 1),
            (self._target, 2),
        ]
        self._cold = SimCold(self.log, self._settings, self._cold_random)
        if self._settings.hot_horizon_s:
            actions += [(self._cold.hold, 4), (self._promote, 8), (self._forge, 2), (self._change_horizon, 2)]
        if self._settings.schedule_topics:
            actions += [(self._compact, 6)]
        # Each life has a character: some things happen often in it, some seldom. An even mixture of everything would
        # rarely bring about what takes three of the same thing in a row.
        self._actions = [action for action, _ in actions]
        self._weights = [weight * random.choice([0.2, 1, 1, 3, 6]) for _, weight in actions]
        self._fetches = random.choice([0.15, 0.5, 0.9])
        """How likely a machine gets a fetch before a step."""
        users = [machine for machine in self.machines if machine[0] != self._settings.retry_topic]
        self._focus = random.choice(users * 2 + self.machines)
        """The machine that most happens to: what goes wrong goes wrong together."""
        self._idles = random.choice([0.05, 0.5])
        """How likely a machine has been idle for long."""

    def run(self) -> None:
        """Live.

        Raises:
            SimulationFailed: a promise was broken, or the worker's own code raised what it should not.
        """
        try:
            self._assign_unowned()
            for _ in range(self._steps):
                action = self._random.choices(self._actions, self._weights)[0]
                self.history.append(f"{self.clock.now_ms} {action.__name__.strip('_')}: {action()}")
                self.checkers.check()
            self._settle()
        except Exception as error:
            raise SimulationFailed(self.seed, self.history, error) from error

    # ---- what happens -------------------------------------------------------------------------------------------

    def _work(self) -> str:
        """One machine of one worker does something; zombies too."""
        busy = [worker for worker in self.workers if worker.runners]
        if not busy:
            return self._restart()
        worker = self._random.choice(busy)
        return self._work_on(worker, self._machine(list(worker.runners)))

    def _work_on(self, worker: SimWorker, name: TopicPartition) -> str:
        worker.poll_ticks()
        if self._random.random() < self._fetches:
            self._deliver(worker, name)
        return self._step(worker, name)

    def _machine(self, among: list[TopicPartition]) -> TopicPartition:
        return self._focus if self._focus in among and self._random.random() < 0.7 else self._random.choice(among)

    def _victim(self) -> SimWorker:
        """Some worker; often the one that has the machine in focus."""
        owner = self._owner.get(self._focus)
        return owner if owner is not None and self._random.random() < 0.5 else self._random.choice(self.workers)

    def _deliver(self, worker: SimWorker, name: TopicPartition) -> None:
        fetched = worker.poll_requests(name, self._random.choice([1, 3, 10, 50]))
        if fetched is not None:
            worker.runners[name].loop.add_fetch(fetched)

    def _step(self, worker: SimWorker, name: TopicPartition) -> str:
        runner = worker.runners[name]
        runner.idle_too_long = runner.idle_too_long or self._random.random() < self._idles
        worker.step(name)
        self.checkers.check(runner if worker.runners.get(name) is runner else None)
        if worker.runners.get(name) is runner:
            self.checkers.stores.check_idle(runner)
        if worker.runners.get(name) is runner and self._random.random() < 0.05:
            self.checkers.stores.recovers(runner, self.limits, self._random)
        if not worker.alive:
            return f"{worker.name} went down {worker.faults.passed}"
        return f"{worker.name} {name[0]}/{name[1]} at {runner.machine.progress}"

    def _request(self) -> str:
        return self._workload.produce()

    def _second(self) -> str:
        """Time passes; mostly a second, and mostly with a tick."""
        self.clock.advance_ms(self._random.choice([1, 300, 1000, 1000, 1000, 3000]))
        if self._paused:
            self._paused -= 1
            return "no tick"
        self._tick()
        return "tick"

    def _tick(self) -> None:
        """The oscillator's clock may be hours off: a tick's key only informs."""
        key = self.clock.now_s + self._random.choice([0, 0, 3, -3600, 3600])
        self.log.append(self._settings.oscillator_topic, b"%d" % key, b"1", partition=0)
        self.checkers.note_tick(self.clock.now_s)

    def _tick_again(self) -> str:
        """An old tick is delivered once more."""
        worker = self._random.choice(self.workers)
        records = self.log.fetch(self._settings.oscillator_topic, 0, 0, committed=False).records
        if not records or not worker.alive:
            return "nothing"
        old = self._random.choice(records[-6:])
        since = max(self.checkers.steps_back, default=-1)
        if old.seq < since:
            return "nothing"  # ticks of a time that was taken back are not read any more
        worker.deliver_tick(Tick(old.timestamp_ms), old.seq)
        return f"{worker.name} {old.timestamp_ms}"

    def _compact(self) -> str:
        """Brokers compact closed segments; nothing in them is as new as a moment."""
        (topic,) = self._settings.schedule_topics
        partition = self._schedule_random.randrange(self.log.partitions)
        to_offset = self.log.offset_at(topic, partition, self.clock.now_ms - SEGMENT_MS)
        to_offset = self._schedule_random.choice([to_offset, to_offset, self._schedule_random.randint(0, to_offset)])
        # What compaction takes before any worker has read the tombstone behind it, no worker can append again.
        accepted = self.checkers.logs[topic, partition].progress.next_offset
        unread = self.log.fetch(topic, partition, accepted).records
        to_offset = min([to_offset, *(r.offset for r in unread if TIMER_FIRED_OFFSET in dict(r.headers))])
        self.log.compact(topic, partition, to_offset, DELETE_RETENTION_MS)
        return f"{topic}/{partition} to {to_offset}"

    def _pause_oscillator(self) -> str:
        self._paused = self._random.randint(1, 5)
        return f"for {self._paused} ticks"

    def _step_clock(self) -> str:
        milliseconds = self._random.choice([-700, -1900, -2500, -5000, -20_000, -3_600_000, 4000, 60_000])
        self._set_clock(milliseconds)
        return f"by {milliseconds} ms"

    def _glitch(self) -> str:
        """The brokers' clock jumps ahead, is believed for a moment, and is set right."""
        milliseconds = self._random.choice([3000, 6000, 20_000])
        self._set_clock(milliseconds)
        worked = [self._work() for _ in range(self._random.randint(0, 4))]
        self._set_clock(-milliseconds)
        return f"by {milliseconds} ms for {len(worked)} steps"

    def _set_clock(self, milliseconds: int) -> None:
        """Whoever sends requests goes by that clock, and the oscillator ticks on."""
        self.clock.step_ms(milliseconds)
        if milliseconds < 0:
            self.log.seq += 1
            self.checkers.steps_back.append(self.log.seq)
        self._workload.near()
        self._tick()

    def _promote(self) -> str:
        """Timers come back: early, late, and more than once."""
        return self._cold.promote(self._cold_random.choice([-1, 1, 4, 20]))

    def _forge(self) -> str:
        return self._workload.forge(self._cold_random)

    def _change_horizon(self) -> str:
        """Whoever opens a machine from now on has another horizon."""
        worker = self._cold_random.choice(self.workers)
        worker.hot_horizon_s = self._cold_random.choice([0, 2, 3, 5, 8, 100])
        return f"{worker.name} {worker.hot_horizon_s}"

    # ---- what goes wrong ----------------------------------------------------------------------------------------

    def _arm(self) -> str:
        worker = self._victim()
        fault = self._random.choice([*f.ALL, "crash", "crash", "crash before a commit"])
        if fault == "crash":
            worker.faults.crash_after(self._random.randint(0, 12))
        elif fault == "crash before a commit":
            worker.faults.crash_at("before a commit")
        else:
            worker.faults.arm(fault)
        return f"{fault} for {worker.name}"

    def _lose_fetch(self) -> str:
        """The framework drops fetched batches without a word."""
        worker = self._victim()
        for runner in worker.runners.values():
            fetches = runner.loop.fetches
            if fetches and self._random.random() < 0.5:
                del fetches[self._random.randrange(len(fetches))]
            else:
                worker.poll_requests(runner.name)
        return worker.name

    def _read_again(self) -> str:
        """Something is fetched that was fetched before."""
        worker = self._victim()
        for runner in worker.runners.values():
            runner.read_to = self._random.randint(max(0, runner.read_to - 10), runner.read_to)
        return worker.name

    def _crash(self) -> str:
        worker = self._victim()
        worker.crash()
        how = self._random.choice(["killed", "killed", "power lost", "disk lost"])
        if how == "power lost":
            worker.disk.lose_power(self._random.randint(1, 6))
        elif how == "disk lost":
            worker.disk.wipe()
        return f"{worker.name} {how}"

    def _restart(self) -> str:
        """Whoever is down comes back, and what nobody owns finds an owner; not always both."""
        for worker in self.workers:
            if not worker.alive and self._random.random() < 0.7:
                worker.start()
        if self._random.random() < 0.5:
            self._assign_unowned()
        return ", ".join(worker.name for worker in self.workers if worker.alive)

    def _rebalance(self) -> str:
        """A partition moves, in good order."""
        name = self._machine(self.machines)
        for worker in self.workers:
            worker.revoke(name)
        return f"{name[0]}/{name[1]} to {self._give_somebody(name)}"

    def _take_over(self) -> str:
        """A partition moves while its owner is thought dead, and is not: a zombie goes on until it is fenced."""
        name = self._machine(self.machines)
        zombie = self._owner.get(name)
        return f"{name[0]}/{name[1]} from {zombie.name if zombie else 'nobody'} to {self._give_somebody(name, zombie)}"

    def _give_somebody(self, name: TopicPartition, but: SimWorker | None = None) -> str:
        takers = [worker for worker in self.workers if worker.alive and worker is not but]
        if not takers:
            return "nobody"
        taker = self._random.choice(takers)
        self._give(name, taker)
        return taker.name

    def _give(self, name: TopicPartition, taker: SimWorker) -> None:
        taker.revoke(name)
        taker.assign([name])
        self._owner[name] = taker

    def _flap(self) -> str:
        """A partition goes away and comes back within a moment, and time passes meanwhile."""
        name = self._machine(self.machines)
        owner = self._owner.get(name)
        others = [worker for worker in self.workers if worker.alive and worker is not owner]
        if owner is None or not others:
            return "nowhere to go"
        other = self._random.choice(others)
        if name in owner.runners and self._random.random() < 0.5:
            self._deliver(owner, name)
            self._step(owner, name)
        owner.revoke(name)
        self._give(name, other)
        self.clock.advance_ms(self._random.choice([1, 1000, 5000]))
        self._tick()
        for _ in range(self._random.randint(0, 3)):
            if name in other.runners:
                self._work_on(other, name)
        other.revoke(name)
        if owner.alive:
            self._give(name, owner)
        return f"{name[0]}/{name[1]} from {owner.name} to {other.name} and back"

    def _owns(self, worker: SimWorker, name: TopicPartition) -> bool:
        return self._owner.get(name) is worker

    def _assign_unowned(self, but: SimWorker | None = None) -> None:
        self._owner = {name: worker for name, worker in self._owner.items() if name in worker.runners}
        takers = [worker for worker in self.workers if worker.alive and worker is not but]
        shares: dict[str, list[TopicPartition]] = {worker.name: [] for worker in takers}
        for name in self.machines:
            if name not in self._owner and takers:
                taker = self._random.choice(takers)
                taker.revoke(name)
                shares[taker.name].append(name)
        self._random.shuffle(takers)
        for taker in takers:
            taker.assign(shares[taker.name])
            self._owner.update({name: taker for name in shares[taker.name] if name in taker.runners})

    def _target(self) -> str:
        """A callback topic fails, or is well again."""
        flaky = TARGETS[-1]
        (self.log.failing.discard if flaky in self.log.failing else self.log.failing.add)(flaky)
        return f"failing: {sorted(self.log.failing)}"

    # ---- the end ------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Faults stop. Time goes on until everything that is due must be out."""
        self.history.append(f"{self.clock.now_ms} settle")
        self._workload.end_all_transactions()
        if self._delivery_random.random() < 0.5:  # else they fail for ever, and nothing else waits for them
            self.log.failing.clear()
        newest = max((r.timestamp_ms for r in self.log.committed), default=0)
        until_s = max(self._workload.latest_due_s, newest // 1000) + 2
        self.clock.now_ms = max(self.clock.now_ms, until_s * 1000)
        for worker in self.workers:
            worker.faults.clear()
        for _ in range(SETTLE_ROUNDS):
            self._settle_once()
            if self._is_quiet():
                break
            self.clock.advance_ms(1000)
        else:
            raise Violation(
                f"{SETTLE_ROUNDS} s without faults, and machines still have requests to read or timers to fire"
            )
        for runner in (self._owner[name].runners[name] for name in self.machines):
            self.checkers.stores.recovers(runner, self.limits, self._random)
        self.checkers.check_end(until_s)

    def _settle_once(self) -> None:
        for worker in self.workers:
            if not worker.alive:
                worker.start()
        self._assign_unowned()
        self._tick()
        self._cold.promote_all(self.clock.now_s)
        for worker in self.workers:
            worker.poll_ticks()
            for name in list(worker.runners):
                for _ in range(3):
                    if name in worker.runners:
                        self._deliver(worker, name)
                        self._step(worker, name)

    def _is_quiet(self) -> bool:
        """Nothing is left to read or to fire, by anybody who owns a machine."""
        if len(self._owner) < len(self.machines):
            return False
        for name in self.machines:
            runner = self._owner[name].runners.get(name)
            if runner is None or runner.loop.firing or runner.machine.recovering or not runner.machine.may_accept:
                return False
            oldest_s = runner.machine.oldest_due_s
            if oldest_s is not None and oldest_s <= self.clock.now_s + 20:
                return False
            if self._cold.is_due(name, self.clock.now_s) or self.checkers.logs[
                name
            ].progress.next_offset < self.log.last_stable(*name):
                return False
        return True
