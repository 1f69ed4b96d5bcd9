"""A random run of a timer system: requests, ticks, crashes, rebalances and clock steps, with checks after each step.

The same seed always gives the same steps. ::

    Simulator(seed).run()                   # raises SimulationFailed, which says how to replay
    python -m tests.simulation --seeds 1000   # the same from a shell
    python -m tests.simulation 421            # replay one, with its history

A run consists of small random steps. Time moves only in steps. A worker may crash between any two lines of its code. At
the end the faults stop, all workers are started again, and all timers that are due must fire.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from unittest.mock import patch

from tests.simulation.cluster import MAX_CLOCK_LEAP_S, SimCluster
from tests.simulation.cold import SimCold
from tests.simulation.kit import faults as f
from tests.simulation.kit.faults import Violation
from tests.simulation.kit.log import SimRecord
from tests.simulation.kit.worker import SimRunner, SimWorker
from tests.simulation.pauses import FEW_PAUSES
from tests.simulation.workload import TARGETS
from timers.core import fired
from timers.core.ports import Lost
from timers.core.second_barrier import UNCOMPACTED_S
from timers.core.timer import Tick, TopicPartition
from timers.machines.life import Event
from timers.wire.headers import TIMER_FIRED_OFFSET

DELETE_RETENTION_MS = 100_000
"""How long tombstones stay; more than twice ``STALE_AFTER_S``, because the brokers' clock may go back."""
SEGMENT_MS = (UNCOMPACTED_S + 1) * 1000
"""Records younger than this are in the active segment, which is not compacted."""

SETTLE_ROUNDS = 400
"""Maximum number of seconds at the end until all due timers have fired. Retries take long: their pauses double."""

SETTLE_STEPS = 40
"""A machine does so many steps in such a second, if it passes over held timers, which may be many."""

ACCEPT_ROUND = 60
"""After so many rounds an operator accepts the doubts that are left: random owners have found each whole store."""

STILL_S = 100
"""Without faults, a machine that has work reads, fires or gives a timer up within this time: the longest pause of a
retry is shorter."""


class SimulationFailed(AssertionError):
    """A run broke a promise."""

    def __init__(self, seed: int, history: list[str], cause: BaseException, options: str = "") -> None:
        self.seed = seed
        self.history = history
        last = "\n  ".join(history[-12:])
        super().__init__(
            f"seed {seed}, step {len(history)}: {type(cause).__name__}: {cause}\nlast steps:\n  {last}\n"
            f"replay: python -m tests.simulation {options or seed}"
        )


class Simulator(SimCluster):
    """One random run."""

    has_long_logs = False
    """Whether a log is read again in large pieces: a store must not be too old before it has read it [I9]."""

    def __init__(self, seed: int, steps: int = 150, worker: type[SimWorker] = SimWorker) -> None:
        super().__init__(seed, worker)
        self._pauses = self._with_pauses(worker)
        self.history: list[str] = []
        self._steps = steps
        self._paused = 0
        actions: list[tuple[Callable[[], str], float]] = [
            (self._work, 60),
            (self._request, 14),
            (self._pass_time, 12),
            (self._restart, 8),
            (self._tick_again, 2),
            (self._pause_oscillator, 1),
            (self._step_clock, 1),
            (self._jump_clock, 1),
            (self._arm, 5),
            (self._lose_fetch, 2),
            (self._read_again, 2),
            (self._crash, 2),
            (self._rebalance, 3),
            (self._take_over, 2),
            (self._flap, 1),
            (self._change_target, 2),
        ]
        self._cold = SimCold(self.log, self._settings, self._cold_random)
        if self._settings.hot_horizon_s:
            actions += [(self._cold.hold, 4), (self._promote, 8), (self._forge, 2), (self._change_horizon, 2)]
        if self._clock_random.random() < 0.3:
            actions += [(self._leap, 2), (self._leap_in_steps, 1)]
        if self._repair_random.random() < 0.15:
            actions += [(self._repair, 4)]
        # Not both: a doubt is in the progress only, and its second witness does not know of it.
        compacts_requests = self._config_random.random() < 0.15 and len(self.workers) > 1
        if self._loss_random.random() < 0.2 and not compacts_requests:
            actions += [(self._lose_progress, 4)]
        if self._settings.schedule_topics:
            actions += [(self._compact, 6)]
        if self._settings.id_topic and self._has_conditions:
            actions += [(self._change_retention, 1), (self._set_absent, 1)]
        if self._leader_random.random() < 0.15:
            actions += [(self._fall_silent, 2)]
        if self._late_random.random() < 0.15:
            actions += [(self._open_late, 3)]
        if self._ahead_random.random() < 0.2:
            actions += [(self._read_ahead, 6)]
        if worker.is_slow:
            actions += [(self._let_go, 3), (self._open_slowly, 6), (self._end_pauses, 3), (self._change_log, 1)]
        if compacts_requests:
            actions += [(self._compact_requests, 10)]
        if self._may_have_damaged and not (compacts_requests or (self._lose_progress, 4) in actions):
            actions += [(self._damage, 4), (self._read_damaged, 4)]
        if self._pauses is not None:
            actions += [*self._pauses.actions, (self._pause_in_burst, 3)]
            if self._pauses.random.random() < 0.3:
                actions += [(self._repair, 4)]
        actions += self._level_actions
        self._weighted = actions
        self.rounds = 0
        """How many rounds of machines were done."""
        self._armable = [*f.ALL, "crash", "crash", "crash before a commit"]
        self._take_habits()

    def _take_habits(self) -> None:
        """Choose what happens often. With equal weights, bugs that need an action three times in a row are seldom."""
        self._actions = [action for action, _ in self._weighted]
        self._weights = [weight * self._random.choice([0.2, 1, 1, 3, 6]) for _, weight in self._weighted]
        self._fetch_probability = self._random.choice([0.15, 0.5, 0.9])
        """Probability that a machine gets a fetch before a step."""
        request_machines = [machine for machine in self.machines if machine[0] != self._settings.retry_topic]
        self._focus = self._random.choice(request_machines * 2 + self.machines)
        self._idle_probability = self._random.choice([0.05, 0.5])
        """Probability that a machine has been idle for long."""

    def run(self) -> None:
        """Do all steps, and check."""
        try:
            with patch.object(fired, "MAX_PAUSES", FEW_PAUSES):
                self._run()
        except Exception as error:
            raise SimulationFailed(self.seed, self.history, error) from error

    @property
    def counts(self) -> Counter[str]:
        """What happened to timers."""
        return self.checkers.counts

    def _run(self) -> None:
        self._assign_unowned()
        for _ in range(self._steps):
            action = self._random.choices(self._actions, self._weights)[0]
            self.history.append(f"{self.clock.now_ms} {action.__name__.strip('_')}: {action()}")
            self.checkers.check()
        self._settle()

    # ---- actions ------------------------------------------------------------------------------------------------

    def _work(self) -> str:
        """Do a step of one machine. Its worker may have lost the partition."""
        busy = [worker for worker in self.workers if worker.runners]
        if not busy:
            return self._restart()
        worker = self._random.choice(busy)
        return self._work_on(worker, self._random_machine(list(worker.runners)))

    def _work_on(self, worker: SimWorker, name: TopicPartition) -> str:
        worker.poll_ticks()
        if self._random.random() < self._fetch_probability:
            self._deliver(worker, name)
        return self._step(worker, name)

    def _deliver(self, worker: SimWorker, name: TopicPartition) -> None:
        if self.has_long_logs and (machine := worker.runners[name].machine).recovering:
            fetched = worker.poll_requests(name, max(50, machine.left_to_replay // 4))
        else:
            fetched = worker.poll_requests(name, self._random.choice(self._fetch_sizes))
        if fetched is not None:
            worker.runners[name].loop.add_fetch(fetched)

    def _step(self, worker: SimWorker, name: TopicPartition) -> str:
        runner = worker.runners.get(name)
        if runner is None:
            return f"{worker.name} read {name[0]}/{name[1]} out of range"
        runner.idle_too_long = runner.idle_too_long or self._random.random() < self._idle_probability
        was_idle_too_long = runner.idle_too_long
        self.rounds += 1
        if self._pauses is not None:
            self._pauses.tell(worker, runner)
        self.checkers.holds.note_step(runner)
        worker.step(name)
        self.checkers.check(runner if worker.runners.get(name) is runner else None)
        if worker.runners.get(name) is runner:
            self.checkers.stores.check_idle(runner)
            if was_idle_too_long and not runner.idle_too_long:
                self.checkers.stores.check_committed(runner)
        if worker.runners.get(name) is runner and self._random.random() < 0.05:
            self.checkers.stores.check_recovery(runner, self.limits, self._random)
        if not worker.alive:
            return f"{worker.name} went down {worker.faults.passed}"
        return f"{worker.name} {name[0]}/{name[1]} at {runner.machine.progress}"

    def _request(self) -> str:
        return self._workload.produce()

    def _pass_time(self) -> str:
        """Let time pass, mostly one second, mostly with a tick."""
        self.clock.advance_ms(self._random.choice([1, 300, 1000, 1000, 1000, 3000]))
        if self._paused:
            self._paused -= 1
            return "no tick"
        self._tick()
        return "tick"

    def _tick_again(self) -> str:
        """Deliver an old tick again."""
        worker = self._random.choice(self.workers)
        records = self._oscillator.old_ticks()
        if not records or not worker.alive:
            return "nothing"
        old = self._random.choice(records)
        since = max(self.checkers.times.steps_back, default=-1)
        if old.seq < since or not worker.has_read(old):
            return "nothing"  # ticks from before a backward step are not read again, and later ones not out of turn
        worker.deliver_tick(Tick(old.timestamp_ms), old.seq)
        return f"{worker.name} {old.timestamp_ms}"

    def _compact(self) -> str:
        """Compact the closed segments of a partition."""
        (topic,) = self._settings.schedule_topics
        partition = self._schedule_random.randrange(self.log.partitions)
        to_offset = self.log.offset_at(topic, partition, self.clock.now_ms - SEGMENT_MS)
        to_offset = self._schedule_random.choice([to_offset, to_offset, self._schedule_random.randint(0, to_offset)])
        # A version that compaction removes before a worker reads the tombstone after it cannot be republished.
        accepted = self.checkers.logs[topic, partition].progress.next_offset
        unread = self.log.fetch(topic, partition, accepted).records
        to_offset = min([to_offset, *(r.offset for r in unread if TIMER_FIRED_OFFSET in dict(r.headers))])
        self.log.compact(topic, partition, to_offset, DELETE_RETENTION_MS)
        return f"{topic}/{partition} to {to_offset}"

    def _pause_oscillator(self) -> str:
        self._paused = self._random.randint(1, 5)
        return f"for {self._paused} ticks"

    def _jump_clock(self) -> str:
        """Set the brokers' clock forward for a few steps, and back."""
        milliseconds = self._random.choice([3000, 6000, 20_000])
        self._set_clock(milliseconds)
        worked = [self._work() for _ in range(self._random.randint(0, 4))]
        self._set_clock(-milliseconds)
        return f"by {milliseconds} ms for {len(worked)} steps"

    def _leap_in_steps(self) -> str:
        """Let the clock of one broker leap several times, each time by less than the limit."""
        self._oscillator.tick_of_each()
        # A tick that agrees with a second clock may be one limit ahead, and the ticks after it one more. Without a
        # second clock the guard begins again after each restart, from the second up to which the app has fired.
        self.checkers.times.early_limit_s += 2 * MAX_CLOCK_LEAP_S
        # That second may be later than the clock shows: the clocks of the brokers may have been set back since.
        newest_s = max(log.progress.fired_through[0] for log in self.checkers.logs.values())
        limit_s = max(self.clock.now_s + self.checkers.times.early_limit_s, newest_s + 2 * MAX_CLOCK_LEAP_S)
        self._workload.near()
        for step in (steps := range(1, self._clock_random.randint(3, 9))):
            ahead_s = step * 0.9 * MAX_CLOCK_LEAP_S
            if (second := int(self.clock.now_ms / 1000 + ahead_s)) <= limit_s:
                self.checkers.times.note_tick(second)
            self._oscillator.wrong_tick(ahead_s)
            for worker in self.workers:
                worker.poll_ticks()
                for name in list(worker.runners):
                    if name in worker.runners:
                        self._step(worker, name)
        self.log.seq += 1
        self.checkers.times.steps_back.append(self.log.seq)
        self._oscillator.tick_of_each()
        return f"{len(steps)} times"

    def _promote(self) -> str:
        promoted = self._cold.promote(self._cold_random.choice([-1, 1, 4, 20]))  # early, late, or more than once
        if self._condition_random.random() < 0.5:
            self._workload.change_promoted()
        return promoted

    def _forge(self) -> str:
        return self._workload.forge(self._cold_random)

    def _change_horizon(self) -> str:
        """Change the horizon with which a worker opens machines."""
        worker = self._cold_random.choice(self.workers)
        worker.hot_horizon_s = self._cold_random.choice([0, 2, 3, 5, 8, 100])
        return f"{worker.name} {worker.hot_horizon_s}"

    def _damage(self) -> str:
        """Write a request whose record batch is damaged: brokers do not look at its records."""
        kinds = [self._workload.near, self._workload.far]
        if self._settings.id_topic:
            kinds += [self._workload.set_by_id, self._workload.cancel]
        self.log.takes_damaged = True
        (kind := self._damage_random.choice(kinds))()
        self.log.takes_damaged = False
        return kind.__name__

    def _read_damaged(self) -> str:
        """Let workers be of a version that reads damaged records; those that were passed over stay so."""
        for record in self.log.damaged:
            settings = self.checkers.logs[record.topic, record.partition].progress.settings
            record.unreadable &= not settings.passes_over(record.offset, record.offset + 1)
        return f"{sum(record.unreadable for record in self.log.damaged)} are left"

    # ---- faults -------------------------------------------------------------------------------------------------

    def _pause_in_burst(self) -> str:
        """Pause a target while many timers come due, and let the owner fail in the middle of them."""
        assert self._pauses is not None
        random = self._pauses.random
        did = [self._pauses.pause() if random.random() < 0.7 else self._pauses.resume()]
        self._pauses.tell_all()
        for _ in range(random.randint(1, 3)):
            self._workload.burst()
        for _ in range(random.randint(1, 4)):
            did += [self._work() for _ in range(random.randint(0, 5))]
            if self._settings.id_topic and random.random() < 0.5:
                (self._workload.set_by_id if random.random() < 0.6 else self._workload.cancel)()
            if random.random() < 0.2:
                did.append(self._pauses.pause() if random.random() < 0.5 else self._pauses.resume())
                self._pauses.tell_all()
            if random.random() < 0.4:
                did.append(self._crash())
                self._restart()
            self.clock.advance_ms(random.choice([500, 1000, 2000]))
            self._tick()
        return f"{did[0]}, {len(did)} steps"

    def _arm(self) -> str:
        worker = self._fail_later(self._random_worker())
        fault = self._random.choice(self._armable)
        if fault == "crash":
            worker.faults.crash_after(self._random.randint(0, 12))
        elif fault == "crash before a commit":
            worker.faults.crash_at("before a commit")
        else:
            worker.faults.arm(fault)
        return f"{fault} for {worker.name}"

    def _lose_fetch(self) -> str:
        """Lose a fetch of each machine of a worker, as the framework may do."""
        worker = self._random_worker()
        for runner in list(worker.runners.values()):
            fetches = runner.loop.fetches
            if fetches and self._random.random() < 0.5:
                del fetches[self._random.randrange(len(fetches))]
            elif runner.name in worker.runners:  # its process may have ended while another one was opened again
                worker.poll_requests(runner.name)
        return worker.name

    def _read_again(self) -> str:
        """Let a worker fetch some requests again."""
        worker = self._random_worker()
        for runner in worker.runners.values():
            runner.read_to = self._random.randint(max(0, runner.read_to - 10), runner.read_to)
        return worker.name

    def _crash(self) -> str:
        worker = self._random_worker()
        worker.crash()
        how = self._random.choice(["killed", "killed", "power lost", "disk lost"])
        if self._is_doubtful():
            how = "killed"
            worker.disk.kill()
        elif how == "power lost":
            worker.disk.lose_power(self._random.randint(1, 6))
        elif how == "disk lost":
            worker.disk.wipe()
        return f"{worker.name} {how}"

    def _restart(self) -> str:
        """Start stopped workers, or assign partitions without an owner, or both."""
        for worker in self.workers:
            if not worker.alive and self._random.random() < 0.7:
                worker.start()
        if self._random.random() < 0.5:
            self._assign_unowned()
        return ", ".join(worker.name for worker in self.workers if worker.alive)

    def _rebalance(self) -> str:
        """Move a partition after its owner has closed it."""
        name = self._random_machine(self.machines)
        for worker in self.workers:
            worker.revoke(name)
        return f"{name[0]}/{name[1]} to {self._give_to_any(name)}"

    def _take_over(self) -> str:
        """Move a partition while its former owner still runs; the new owner fences it."""
        name = self._random_machine(self.machines)
        former = self._owner.get(name)
        return f"{name[0]}/{name[1]} from {former.name if former else 'no worker'} to {self._give_to_any(name, former)}"

    def _flap(self) -> str:
        """Move a partition to another worker and back; time passes between the moves."""
        name = self._random_machine(self.machines)
        owner = self._owner.get(name)
        others = [worker for worker in self.workers if worker.alive and worker is not owner]
        if owner is None or not others:
            return "no other worker"
        other = self._random.choice(others)
        if name in owner.runners and self._random.random() < 0.5:
            self._deliver(owner, name)
            self._step(owner, name)
        owner.revoke(name)
        self._give(name, other)
        self.clock.advance_ms(self._random.choice([1, 1000, 5000]))
        self._tick()
        if self._flap_random.random() < 0.7:
            other.fire_unread(name)
        for _ in range(self._random.randint(0, 3)):
            if name in other.runners:
                self._work_on(other, name)
        other.revoke(name)
        if owner.alive:
            self._give(name, owner)
        return f"{name[0]}/{name[1]} from {owner.name} to {other.name} and back"

    def _open_late(self) -> str:
        """Let a worker open a partition that a former deal gave to it. The owner is fenced, and opens it again."""
        name = self._random_machine(self.machines)
        owner = self._owner.get(name)
        others = [worker for worker in self.levels.able_workers() if worker is not owner]
        if owner is None or not others:
            return "no other worker"
        late = self._late_random.choice(others)
        late.revoke(name)
        late.assign([name])
        return f"{name[0]}/{name[1]} of {owner.name} by {late.name}"

    def _let_go(self) -> str:
        """A deal gives a machine to another worker, which begins soon, or never, or the next deal gives it back."""
        name = self._random_machine(self.machines)
        owner = self._owner.pop(name, None)
        if owner is None or not owner.alive:
            return "no owner"
        owner.take_away(name)
        if self._life_random.random() < 0.3:  # while it is let go, it fires, and a commit fails
            self._read_on(name, owner)
            self._workload.near()
            self._pass_time()
            owner.faults.arm(self._life_random.choice(f.ALL))
        worked = [
            self._work_on(owner, name) if name in owner.runners else self._work()
            for _ in range(self._life_random.randint(0, 4))
        ]
        how = self._life_random.choice(["back", "overdue", "again", "changed", "taken over"])
        if name in self._owner or not owner.alive:
            return f"{name[0]}/{name[1]} from {owner.name} to {self._owner[name].name if name in self._owner else how}"
        if how == "back":
            self._owner[name] = owner
            owner.assign([name], exist=self._life_random.random() < 0.7)
        elif how == "taken over":
            how = self._give_to_any(name, owner)
        else:
            events = {"overdue": Event.OVERDUE, "again": Event.LET_GO, "changed": Event.CHANGED}
            owner.happens(name, events[how])
        return f"{name[0]}/{name[1]} from {owner.name}, {len(worked)} steps, {how}"

    def _open_slowly(self) -> str:
        """Let an opening or a closing take a while, in which the partition is taken away, or comes back."""
        name, able = self._random_machine(self.machines), self.levels.able_workers()
        if not able:
            return "no worker"
        worker = self._life_random.choice(able)
        if self._life_random.random() < 0.5 or self._owner.get(name) is not worker:
            worker.revoke(name)
            self._owner[name], worker.slow = worker, self._life_random.randint(1, 2)
            if (fault := self._life_random.random()) < 0.1:
                worker.faults.arm(f.FENCED)
            elif fault < 0.2:
                worker.faults.fail_at("after fencing")
            worker.assign([name], exist=self._life_random.random() < 0.9)
        else:
            worker.slow = self._life_random.randint(0, 2)
            if name in worker.runners and self._life_random.random() < 0.5:
                worker.ended(name, self._life_random.choice([Lost("no broker answers"), f.Unforeseen("of one kind")]))
        did = [self._while_slow(worker, name) for _ in range(self._life_random.randint(0, 4)) if worker.alive]
        worker.slow = 0
        for _ in range(3):
            if self._life_random.random() < 0.8:
                worker.report(name)
        if name in worker.unreported:
            worker.revoke(name)
        return f"{name[0]}/{name[1]} of {worker.name}: {', '.join(did)}"

    def _while_slow(self, worker: SimWorker, name: TopicPartition) -> str:
        did = self._life_random.choice(["taken away", "dealt", "changed", "failed", "reported", "work"])
        if did == "taken away":
            self._owner.pop(name, None)
            worker.take_away(name)
        elif did == "dealt":
            self._owner[name] = worker
            worker.assign([name])
        elif did == "changed":
            worker.happens(name, Event.CHANGED)
        elif did == "failed" and name in worker.runners:
            worker.ended(name, f.Unforeseen("of one kind"))
        elif did == "reported":
            worker.report(name)
        else:
            self._work()
        return did

    def _end_pauses(self) -> str:
        """Let the pauses after failures end. The group's coordinator may not answer."""
        for worker in self.workers:
            for name in worker.unreported:
                worker.report(name, answers=self._life_random.random() < 0.7)
        return "all"

    def _change_log(self) -> str:
        """A worker sees that the topic of a machine was made anew, or that its fetches were lost: it opens it again."""
        name = self._random_machine(self.machines)
        worker = self._life_random.choice(self.workers)
        if name in worker.lives:
            worker.happens(name, Event.CHANGED)
        return f"{name[0]}/{name[1]} of {worker.name}"

    def _read_ahead(self) -> str:
        """Let a worker read a log ahead. The owner goes on, and the worker takes the partition over, or does not."""
        for _ in range(self._ahead_random.randint(0, 4)):  # else there is seldom something to read
            self._request()
        for name, owner in list(self._owner.items()):
            self._read_on(name, owner)
        able = self.levels.able_workers()
        if not able:
            return "no worker"
        new = self._ahead_random.choice(able)
        if self._ahead_random.random() < 0.5 and not self._is_doubtful():
            new.crash()
            new.disk.wipe()
            new.start()
        behind = [
            name
            for name in self.machines
            if name not in new.runners and new.disk.applied(name) < self.checkers.logs[name].progress.next_offset
        ]
        if not behind:
            return f"{new.name} has read all"
        name = self._random_machine(behind)
        meets = self._life_random.choice([None] * 8 + [Event.CHANGED, Event.TAKEN]) if new.is_slow else None
        new.read_ahead(name, self._ahead_random, meets)
        worked = [self._work() for _ in range(self._ahead_random.randint(0, 6))]
        takes_over = new.alive and self._ahead_random.random() < 0.7
        if takes_over:
            self._give(name, new)
        return f"{name[0]}/{name[1]} by {new.name}, {len(worked)} steps, {'taken over' if takes_over else 'left'}"

    def _change_target(self) -> str:
        """Let a callback topic begin to fail, or stop failing."""
        topic = TARGETS[-1]
        (self.log.failing.discard if topic in self.log.failing else self.log.failing.add)(topic)
        return f"failing: {sorted(self.log.failing)}"

    def _fall_silent(self) -> str:
        """Let the brokers stop saying which topics exist, or say it again."""
        self.log.is_silent = not self.log.is_silent
        return f"silent: {self.log.is_silent}"

    # ---- the end ------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        self.levels.finish_upgrade()
        if self._pauses is not None:
            self._pauses.resume_all()
        self.history.append(f"{self.clock.now_ms} settle")
        self._workload.end_all_transactions()
        if self._delivery_random.random() < 0.5:  # else the topics keep failing, and must not delay other timers
            self.log.failing.clear()
        self.log.is_silent = False
        newest_ms = max((r.timestamp_ms for r in self._dated_records()), default=0)
        until_s = max(self._workload.latest_due_s, newest_ms // 1000) + 2
        self.clock.now_ms = max(self.clock.now_ms, until_s * 1000)
        for worker in self.workers:
            worker.faults.clear()
        seen: list[int] = []
        for round_number in range(SETTLE_ROUNDS):
            self._settle_once()
            if self._is_quiet():
                break
            if round_number >= ACCEPT_ROUND:
                self._accept_doubts()
            self.clock.advance_ms(1000)
            counts = self.checkers.counts
            read = sum(self.checkers.logs[name].progress.next_offset for name in self.machines)
            seen.append(read + counts["fired"] + counts["dead-lettered"])
            if seen[-STILL_S:] == [seen[-1]] * STILL_S:
                raise Violation(f"nothing was read or ended for {STILL_S} s, though requests or due timers are left")
        for runner in (self._owner[name].runners[name] for name in self.machines):
            self.checkers.stores.check_recovery(runner, self.limits, self._random)
        self.checkers.check_end(until_s)
        self.checkers.holds.check_end()

    def _dated_records(self) -> Iterable[SimRecord]:
        """The records that are no later than the end of a run."""
        return self.log.committed

    def _has_settled(self, runner: SimRunner) -> bool:
        """Whether a machine need not do another step in a second at the end."""
        return self._pauses is None or runner.loop.idle

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
                for number in range(SETTLE_STEPS):
                    if name not in worker.runners:
                        break
                    if number >= 3 and self._has_settled(worker.runners[name]):
                        break
                    self._deliver(worker, name)
                    self._step(worker, name)

    def _accept_doubts(self) -> None:
        """Open the machines that no worker may open, each at the worker whose store is whole.

        A worker that died between a commit and its write to the store lacks a batch, which is still in the log here. If
        no store is whole, or another owner has changed the history after it was written, an acceptance loses timers:
        this is documented, and taken back here.
        """
        for name in self.machines:
            doubt = self.checkers.logs[name].progress.doubt
            if name in self._owner or doubt is None:
                continue
            whole = max(self.workers, key=lambda worker: worker.disk.applied(name))
            store = whole.disk.open(name, whole.faults)
            whole.disk.close(name)
            is_usable = self.checkers.logs[name].progress.has_same_history(store.history, store.applied)
            self.log.take_back(*name, store.applied if is_usable else 0)
            whole.accepted.add(name)
            self.checkers.stores.accepted.add(name)
            self._give(name, whole)
            whole.accepted.discard(name)

    def _is_quiet(self) -> bool:
        """Whether all machines have an owner, and no requests to read or timers to fire."""
        if len(self._owner) < len(self.machines):
            return False
        for name in self.machines:
            runner = self._owner[name].runners.get(name)
            if runner is None or runner.loop.firing or runner.machine.recovering or not runner.machine.may_accept:
                return False
            if self._pauses is not None and self._pauses.may_end(self.checkers.logs[name].progress):
                return False
            oldest_s = runner.machine.oldest_due_s
            if oldest_s is not None and oldest_s <= self.clock.now_s + 20:
                return False
            if self._cold.is_due(name, self.clock.now_s) or self.checkers.logs[
                name
            ].progress.next_offset < self.log.last_stable(*name):
                return False
        return True
