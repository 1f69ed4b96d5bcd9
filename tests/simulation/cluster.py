"""The random cluster of one simulated run: settings, brokers, workers, and which worker owns which partition."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

from tests.simulation.checkers import Checkers
from tests.simulation.kit.grouped_store import GroupedStore
from tests.simulation.kit.log import SimClock, SimLog, SimRecord
from tests.simulation.kit.next_level import LEVEL
from tests.simulation.kit.outbox import PROGRESS_PARTITION
from tests.simulation.kit.store import SimDisk, SimStore
from tests.simulation.kit.worker import SimWorker
from tests.simulation.levels import SimLevels
from tests.simulation.oscillator import YEAR_S, SimOscillator
from tests.simulation.pauses import PausingWorker, SimPauses
from tests.simulation.workload import Workload
from timers.core.limits import Limits
from timers.core.timer import TopicPartition
from timers.kafka.request_formats import enabled_formats
from timers.process.config.settings import Settings
from timers.wire import progress as progress_record
from timers.wire.topics import ID_REQUEST

STALE_AFTER_S = 30
"""Maximum age of the store of a compacted topic [I9]."""

MAILS_LIMIT_BYTES = 330
RETRY_LIMIT_BYTES = 480
"""Maximum record size, in the runs in which the topic has one. Some records of the workload are larger."""

MAX_CLOCK_LEAP_S = 2
"""Timers of the workload are due further ahead than this: a tick that leaps by more fires them early."""

WALL_OFFSETS_S = (0, 0, 5 * 3600, -5 * 3600, 2 * YEAR_S)
"""By how much the wall clocks of the workers' machines are ahead: none agrees with a wrong clock of a broker."""

PAUSING = 0.12
"""The same of short runs."""

SLOW_RECORDS = 8
"""Records that slow brokers take in one transaction."""


class SimCluster:
    _focus: TopicPartition
    """The machine that most actions choose, so that several faults hit one machine."""
    _pausing = PAUSING
    """Part of the runs in which operators pause targets."""

    workload: type[Workload] = Workload

    def __init__(self, seed: int, worker: type[SimWorker]) -> None:
        self.seed = seed
        self._random = random = Random(seed)
        self._sources = [random]
        # Each feature has its own random source, so that it does not change the runs that do not use it.
        self._cold_random, self._schedule_random = self._source("cold"), self._source("schedules")
        self._delivery_random, self._flap_random = self._source("delivery"), self._source("flap")
        self._clock_random, self._level_random = self._source("clocks"), self._source("levels")
        self._repair_random, self._leader_random = self._source("repairs"), self._source("leaders")
        self._late_random, self._ahead_random = self._source("late owners"), self._source("quiet readers")
        self._failure_random, self._condition_random = self._source("failures"), self._source("conditions")
        self._config_random, self._loss_random = self._source("configurations"), self._source("losses")
        chosen = self._condition_random.random() < 0.8
        self._has_conditions = chosen if worker.conditions is None else worker.conditions
        """Whether timers with an id may have conditions. If not, they are like countdowns."""
        self._machines_fail = self._failure_random.random() < 0.3
        """Whether machines fail with exceptions that no code expects."""
        self._life_random, self._settings = self._source("lives"), self._choose_settings()
        self.limits = Limits(
            chunk_timers=random.choice([1, 1, 3, 1000]),
            chunk_bytes=1_000_000,
            max_request_bytes=2000,
            catch_up_per_s=random.choice([0, 0, 1, 4]),
            overdue_s=random.choice([0, 2]),
            reject_overdue=self._settings.schedule_overdue == "reject",
            stale_after_s=STALE_AFTER_S,
        )
        self.clock = self._new_clock()
        self.clock.advance_ms(random.randrange(1000))
        self.log = SimLog(self.clock, partitions=random.choice([1, 1, 2]))
        self.log.missing.add("missing")
        self._fetch_sizes = (1, 3, 10, 50)
        self._limit_log()
        # A copy of a cold request has the level of its own offset, which the level of the tests does not consider.
        has_levels = worker.has_levels and not self._settings.hot_horizon_s
        formats = enabled_formats(self._settings)
        self.machines: list[TopicPartition] = [(topic, p) for topic in formats for p in range(self.log.partitions)]
        self.checkers = self._new_checkers()
        self._workload = self.workload(
            random,
            self.log,
            self._settings.request_topic,
            self._settings.id_topic,
            *self._settings.schedule_topics,
            large=bool(self.log.max_message_bytes),
            without_key=bool(self.log.compacted),
            many_late=self.log.slow_above_records == SLOW_RECORDS,
            level_random=self._level_random if has_levels else None,
            condition_random=self._condition_random if self._has_conditions else None,
            late_random=self._late_changes(),
        )
        self.workers = [
            worker(name, self.log, self._settings, self.limits, has_conditions=self._has_conditions)
            for name in ("ada", "bob", "eve")[: random.randint(1, 3)]
        ]
        self._damage_random = self._source("damage")
        self._may_have_damaged = self._damage_random.random() < 0.12
        self.levels, self._level_actions = self._upgrades(has_levels)
        self._owner: dict[TopicPartition, SimWorker] = {}
        for each in self.workers:
            each.is_owner = partial(self._owns, each)
            each.wall_offset_s = self._clock_random.choice(WALL_OFFSETS_S)
        self._oscillator = SimOscillator(self.log, self._settings.oscillator_topic, self._clock_random)

    def _source(self, name: str) -> Random:
        """Returns a new random source."""
        self._sources.append(Random(f"{self.seed} {name}"))
        return self._sources[-1]

    def _with_pauses(self, worker: type[SimWorker]) -> SimPauses | None:
        """Returns the pauses of callback topics; None: this run has none."""
        random = self._source("holds and resumes")
        if random.random() >= self._pausing and not issubclass(worker, PausingWorker):
            return None
        pauses = SimPauses.of(self.workers, random, self._settings.request_topic, lambda: self.clock.now_s)
        self.checkers.holds.commands = pauses.commands
        if worker.store_kind is SimStore:
            for each in self.workers:
                each.disk = SimDisk(GroupedStore)
        if random.random() < 0.5:
            limits = replace(self.limits, noisy_rows=random.choice([1, 2, 4]))
            for each in self.workers:
                each.limits = limits
        return pauses

    def _late_changes(self) -> Random | None:
        """Returns what decides about changes that are readable late; None: this run has no more than others make."""
        random = self._source("late changes")
        return random if self._has_conditions and random.random() < 0.6 else None

    def _choose_settings(self) -> Settings:
        random = self._random
        return Settings(
            max_request_bytes=2000,
            retry_attempts=3,
            callback_allow=random.choice([(), ("*", "timer-request")]),
            callback_deny=random.choice([(), ("mails",)]),
            max_depth=2,
            id_topic=random.choice(["", ID_REQUEST, ID_REQUEST]),
            verdict_retention_s=random.choice([4, 86_400]),
            hot_horizon_s=self._cold_random.choice([0, 0, 3, 6]),
            schedule_topics=self._schedule_random.choice([(), ("schedules",)]),
            schedule_overdue=self._schedule_random.choice(["fire", "fire", "reject"]),
            max_clock_leap_s=MAX_CLOCK_LEAP_S,
        )

    def _new_clock(self) -> SimClock:
        return SimClock()

    def _new_checkers(self) -> Checkers:
        return Checkers(self.log, self._settings, self.machines, has_conditions=self._has_conditions)

    def _limit_log(self) -> None:
        """Choose what the brokers refuse."""
        limits = {"mails": MAILS_LIMIT_BYTES, self._settings.retry_topic: RETRY_LIMIT_BYTES}
        self.log.max_message_bytes = {
            topic: limit for topic, limit in limits.items() if self._delivery_random.random() < 0.3
        }
        if self._delivery_random.random() < 0.3:
            self.log.compacted.add("orders")
            self.log.lists_refused = self._delivery_random.random() < 0.5
        if self._delivery_random.random() < 0.2:
            self.log.slow_above_records = SLOW_RECORDS
            self._fetch_sizes = (20, 20, 50, 50)  # so that the output of one fetch may be too much for the brokers
        given = self._settings
        own = (given.retry_topic, given.dead_letter_topic, given.cold_topic, given.verdict_topic)
        if self.log.partitions > 1 and self._leader_random.random() < 0.3:  # until the end of the run
            self.log.leaderless = {(topic, 0) for topic in own if self._leader_random.random() < 0.5}

    def _upgrades(self, has_levels: bool) -> tuple[SimLevels, list[tuple[Callable[[], str], float]]]:
        """Returns the versions of the workers, and actions that change them, with weights."""
        levels = SimLevels(self.workers, self.checkers, self._level_random)
        self.checkers.supported = lambda: levels.members.values()
        if not has_levels:
            return levels, []
        levels.begin_upgrade()
        factor = self._level_random.choice([1, 10])  # an error needs a raise, and then a replay or an old version
        return levels, [(levels.change_version, factor), (levels.raise_level, 2 * factor), (self._raise_all, 1.0)]

    def _raise_all(self) -> str:
        """Upgrade all workers, raise their machines, and lose the disk of one: it reads its logs again."""
        for _ in range(self._level_random.randint(0, 8)):
            self._workload.near()
        self.levels.upgrade_all()
        self._assign_unowned()
        self._tick()
        for worker in self.workers:
            for machine in list(worker.runners):
                worker.fire_unread(machine)
                if machine in worker.runners:  # one that was fenced is closed
                    worker.raise_level(machine, LEVEL)
        worker = self._level_random.choice(self.workers)
        worker.crash()
        if self._is_doubtful():
            return f"{worker.name} killed"
        worker.disk.wipe()
        return f"{worker.name} lost its disk"

    def _is_doubtful(self) -> bool:
        """Whether the only whole store must not be lost: the log may lack what it holds."""
        return any(log.progress.doubt is not None for log in self.checkers.logs.values())

    def _random_machine(self, among: list[TopicPartition]) -> TopicPartition:
        return self._focus if self._focus in among and self._random.random() < 0.7 else self._random.choice(among)

    def _random_worker(self) -> SimWorker:
        """Returns a random worker; often the owner of the machine in focus."""
        owner = self._owner.get(self._focus)
        return owner if owner is not None and self._random.random() < 0.5 else self._random.choice(self.workers)

    def _owns(self, worker: SimWorker, name: TopicPartition) -> bool:
        return self._owner.get(name) is worker

    def _fail_later(self, worker: SimWorker) -> SimWorker:
        """Let a machine of a worker fail soon, in the runs in which machines fail. Returns the worker."""
        if self._machines_fail and self._failure_random.random() < 0.5:
            worker.faults.fail_at("after a commit")
        elif self._machines_fail:
            stepping = self._failure_random.random() < 0.7
            worker.faults.fail_after(self._failure_random.randint(0, 5), stepping=stepping)
        return worker

    def _assign_unowned(self, excluded: SimWorker | None = None) -> None:
        self._owner = {name: worker for name, worker in self._owner.items() if name in worker.runners}
        candidates = [worker for worker in self.levels.able_workers() if worker is not excluded]
        shares: dict[str, list[TopicPartition]] = {worker.name: [] for worker in candidates}
        for name in self.machines:
            if name not in self._owner and candidates:
                new_owner = self._random.choice(candidates)
                new_owner.revoke(name)
                shares[new_owner.name].append(name)
        self._random.shuffle(candidates)
        for new_owner in candidates:
            new_owner.assign(shares[new_owner.name])
            self._owner.update({name: new_owner for name in shares[new_owner.name] if name in new_owner.runners})

    def _give_to_any(self, name: TopicPartition, excluded: SimWorker | None = None) -> str:
        candidates = [worker for worker in self.workers if worker.alive and worker is not excluded]
        if not candidates:
            return "none"
        new_owner = self._random.choice(candidates)
        self._give(name, new_owner)
        return new_owner.name

    def _give(self, name: TopicPartition, new_owner: SimWorker) -> None:
        if new_owner.asks(name):
            self._owner[name] = new_owner
            new_owner.report(name)
        else:
            new_owner.revoke(name)
            new_owner.assign([name])
        self._owner[name] = new_owner

    # ---- time ---------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._oscillator.tick()
        self.checkers.times.note_tick(self.clock.now_s)

    def _step_clock(self) -> str:
        milliseconds = self._random.choice([-700, -1900, -2500, -5000, -20_000, -3_600_000, 4000, 60_000])
        self._set_clock(milliseconds)
        return f"by {milliseconds} ms"

    def _set_clock(self, milliseconds: int) -> None:
        """Set the brokers' clock, and write a request and a tick at the new time."""
        self.clock.step_ms(milliseconds)
        if milliseconds < 0:
            self.log.seq += 1
            self.checkers.times.steps_back.append(self.log.seq)
        self._workload.near()
        self._tick()

    def _leap(self) -> str:
        """Let the clock of one broker be far ahead for a tick."""
        ahead_s = self._clock_random.choice([3600, YEAR_S])
        self._oscillator.wrong_tick(ahead_s)
        return f"by {ahead_s} s"

    def _set_absent(self) -> str:
        """Set each id that is absent, maybe after the clock went back."""
        back_ms = self._condition_random.choice([0, 0, 1900, 5000])
        if back_ms:
            self._set_clock(-back_ms)
        self._workload.set_absent()
        return f"back by {back_ms} ms"

    def _change_retention(self) -> str:
        """Change for how long a worker remembers ids in the machines that it opens."""
        worker = self._condition_random.choice(self.workers)
        worker.retention_s = self._condition_random.choice([2, 6, 86_400])
        return f"{worker.name} {worker.retention_s}"

    def _compact_requests(self) -> str:
        """Compact a request topic for some time, while its partitions change their owners.

        A compaction that no worker notices in time loses timers, which is documented: here it is taken back.
        """
        topic, random = self._settings.request_topic, self._config_random
        name = (topic, random.randrange(self.log.partitions))
        owner = self._owner.get(name)
        if owner is None or not owner.alive:
            return "no owner"
        self._workload.several(self.clock.now_s + random.choice([2, 5, 30]), name[1])
        self._read_on(name, owner)
        runner = owner.runners.get(name)
        if runner is None or runner.machine.recovering or runner.outbox.is_fenced:
            return "no owner"
        for worker in self.workers:
            worker.refused.discard(name)
        self.log.wrongly_compacted.add(topic)
        # What a worker has just read is in the active segment, which is not compacted.
        committed = self.checkers.logs[name].progress.next_offset
        removed = self.log.compact(*name, min(runner.machine.position, committed), 0)
        did = [self._while_compacted(name, owner) for _ in range(random.randint(0, 2))]
        if self._is_noticed(name, owner):
            did += [self._while_compacted(name, owner) for _ in range(random.randint(0, 2))]
        else:
            did.append("taken back")
            for record in removed:
                record.compacted = False
        self.log.wrongly_compacted.clear()
        for worker in self.workers:
            worker.compare_configs(self.machines)
        if random.random() < 0.6:
            did.append(f"then to {self._move(name)}")
        return f"{name[1]} of {owner.name}: {', '.join(did)}"

    def _is_noticed(self, name: TopicPartition, former: SimWorker) -> bool:
        """Let workers compare the configuration until one has refused the partition, or has committed afterwards."""
        where = self._settings.progress_topic, PROGRESS_PARTITION, progress_record.encode_key(*name)
        for _ in range(3):
            if name not in self._owner or name not in self._owner[name].runners:  # else no worker compares its topic
                for worker in self.workers:
                    if not worker.alive:
                        worker.start()
                self._give_to_any(name, excluded=former if self._config_random.random() < 0.7 else None)
            if any(name in worker.refused for worker in self.workers):
                return True
            for worker in self.workers:
                worker.compare_configs(self.machines)
            before_seq, owner = self.log.seq, self._owner.get(name)
            if owner is None or name not in owner.runners or owner.runners[name].outbox.is_fenced:
                continue
            self._tick()
            owner.fire_unread(name)
            self.checkers.check()
            newest = self.log.newest(*where)
            if newest is not None and newest.seq > before_seq and name in owner.runners:
                return True
        return False

    def _while_compacted(self, name: TopicPartition, owner: SimWorker) -> str:
        did = self._config_random.choice(["killed", "moved", "read on"])
        if did == "killed":
            owner.crash()
        elif did == "moved":
            self._move(name)
        else:
            self._workload.near()
            self._read_on(name, owner)
        return did

    def _move(self, name: TopicPartition) -> str:
        """Give a partition to another worker, if there is one. Its former owner closes it."""
        former = self._owner.pop(name, None)
        self._revoke_all(name)
        return self._give_to_any(name, excluded=former)

    def _read_on(self, name: TopicPartition, owner: SimWorker) -> None:
        """Let a machine accept what waits, and commit."""
        self._tick()
        if name in owner.runners:
            fetched = owner.poll_requests(name)
            if fetched is not None:
                owner.runners[name].loop.add_fetch(fetched)
            owner.fire_unread(name)
        self.checkers.check()

    def _lose_progress(self) -> str:
        """Let the progress topic lose its end, or get an older record as its newest one, if the group knows more [I8].

        The group knows neither the settings history nor the last seconds, so these are not lost.
        """
        where = self._settings.progress_topic, PROGRESS_PARTITION
        records = self.log.fetch(*where, 0).records
        if self.log.last_stable(*where) < self.log.end(*where) or not records:
            return "nothing"
        if self._loss_random.random() < 0.5:
            older = self._loss_random.choice(records[-20:])
            if not self._is_known_otherwise(progress_record.decode_key(older.key or b""), older):
                return "nothing"
            self.log.append(*where[:1], older.key, older.value, partition=PROGRESS_PARTITION)
            return f"an older record of {older.key!r} was written again"
        cut = self._loss_random.choice(records[-20:]).offset
        left = {record.key: record for record in records if record.offset < cut}
        lost = {record.key for record in records if record.offset >= cut}
        if not all(self._is_known_otherwise(progress_record.decode_key(key or b""), left.get(key)) for key in lost):
            return "nothing"
        self.log.lose_end(*where, cut)
        return f"from offset {cut} on"

    def _is_known_otherwise(self, machine: TopicPartition, older: SimRecord | None) -> bool:
        """Whether a record has the settings history of a machine, and the group the newest values."""
        if older is None:
            return False
        _, text = self.log.group_offsets.get((self._settings.app_id, machine), (0, ""))
        newest, found = self.checkers.logs[machine].progress, progress_record.decode_witness(text)
        known = progress_record.decode(older.value or b"", LEVEL)[0]
        is_told = (known.settings, known.late_changes) == (newest.settings, newest.late_changes)
        is_told &= known.taken == newest.taken and not (known.holds or newest.holds)
        return is_told and found is not None and found[0] == newest.witness

    def _repair(self) -> str:
        """Let a wrong clock fire timers of a partition, correct it, and take the time of the partition back.

        The time may have been right, and the owner may run on: the repair fences it.
        """
        name = self._repair_random.choice(self.machines)
        owner = self._owner.pop(name, None)
        self._revoke_all(name)
        ahead_ms = self._repair_random.choice([20_000, 20_000, 0])
        self._set_clock(ahead_ms)
        self._give_to_any(name, excluded=owner)
        if name in self._owner:
            self._owner[name].fire_unread(name)
        self._set_clock(-ahead_ms)
        if self._repair_random.random() < 0.5:
            self._owner.pop(name, None)
            self._revoke_all(name)
        newest = max(self.workers, key=lambda worker: worker.supports)  # an older version refuses, after a raise
        if newest.supports >= self.checkers.logs[name].progress.level:
            newest.repair(name)
        if name not in self._owner and owner is not None and owner.alive:
            self._give(name, owner)
        return f"{name[0]}/{name[1]}, {ahead_ms} ms ahead"

    def _revoke_all(self, name: TopicPartition) -> None:
        for worker in self.workers:
            worker.revoke(name)
