"""Simulated runs with timers that repeat [I37].

The worker, its policy and its machines are the real ones. :mod:`tests.simulation.repeat_log` says what must come of the
requests, and :mod:`tests.simulation.repeat_rules` which seconds a rule names.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import NamedTuple

from tests.simulation.checkers import Checkers
from tests.simulation.id_oracle import Request
from tests.simulation.kit import SimWorker
from tests.simulation.kit.faults import Violation
from tests.simulation.kit.log import SimClock, SimRecord, SimTransaction
from tests.simulation.kit.worker import SimRunner
from tests.simulation.machine_log import MachineLog
from tests.simulation.pauses import PausingWorker, SimPauses
from tests.simulation.repeat_log import Decision, Event, RepeatLog, RepeatOracle, Version, Zones
from tests.simulation.repeat_rules import NO_ZONES, ZONES_CHANGED
from tests.simulation.simulator import Simulator
from tests.simulation.workload import TARGETS, Workload
from timers.core.fired import NOISY
from timers.core.keys import MAX_OFFSET
from timers.core.levels import REPEATS_LEVEL
from timers.core.operation import ABSENT
from timers.core.printable import decode_json
from timers.core.timer import Decoded, TopicPartition, id_bytes, key_bytes
from timers.process.config.settings import Settings
from timers.testing.sim_timers import EPOCH_S
from timers.wire import future, topics
from timers.wire import headers as h
from timers.wire.formats import future_by_id
from timers.wire.headers import Header
from timers.wire.topics import ID_REQUEST

ZONES = {
    "Europe/Paris": (1_774_745_980, 1_792_889_980),
    "Australia/Lord_Howe": (1_775_314_780,),
    "Africa/Cairo": (1_777_067_980,),
    "America/Havana": (1_772_945_980,),
}
"""Zone -> moments 20 s before its clocks change, in 2026. Runs begin there, or far from any."""

LINES = ("*/15 * * * *", "* * * * *", "30 2 * * *", "0 * * * *", "0 0 * * *", "15,45 1-3 * * *", "*/20 */2 * * *")

ON_TIME_S = 3
"""A machine that nothing hinders has fired what was due so many seconds ago."""

GOES_ON_S, LONGEST_S = 12, 150
"""At the end what repeats goes on for so many seconds, and at most so many more until all that was due has fired."""


class KnownStep(NamedTuple):
    """A step of a machine, as it began.

    Attributes:
        position: up to which the machine had read.
        through_s: second up to which it might fire.
        seq: of the log.
    """

    runner: SimRunner
    position: int
    through_s: int | None
    seq: int

    @property
    def second_now(self) -> int | None:
        """The second up to which it fires; None: it was another one when the step began."""
        through_s = self.runner.machine._through_s
        return through_s if through_s == self.through_s else None


class RepeatCheckers(Checkers):
    """Also checks timers that repeat."""

    def __init__(self, *arguments: object, **more: object) -> None:
        super().__init__(*arguments, **more)  # type: ignore[arg-type]
        self.repeat_logs: dict[TopicPartition, RepeatLog] = {}
        for machine, log in self.logs.items():
            if machine[0] == self._settings.id_topic:
                found = RepeatLog(log.cold, place=machine, decode=self._decode)
                found.id_oracle = RepeatOracle(found)
                self.repeat_logs[machine] = found
        self.logs.update(self.repeat_logs)
        self._newest_s = 0
        self._missed: Counter[tuple[bytes | None, int | None]] = Counter()
        """Version and first nominal second of each record of what was missed."""
        self.zones: list[tuple[int, Mapping[str, str]]] = []
        """``seq`` of the log at each change of the workers' zone data, and the new one."""
        self._begun: KnownStep | None = None
        self._done: KnownStep | None = None
        """The step whose records are looked at."""

    def note_step(self, runner: SimRunner) -> None:
        """Note that a machine begins a step."""
        machine = runner.machine
        self._begun = KnownStep(runner, machine.position, machine._through_s, self._log.seq)

    def _decode(self, record: SimRecord, level: int) -> Decoded:
        return self._formats[record.topic].decoder(level, False)([record], self._settings.max_request_bytes)

    def check(self, runner: SimRunner | None = None) -> None:
        # A worker may have committed, and died, with a tick of which no runner is left.
        ticked_s = -1 if runner is None else runner.tick_s
        self._newest_s = max(self._newest_s, self._log.clock.now_s, ticked_s)
        self._done, self._begun = self._begun if runner is not None else None, None
        super().check(runner)

    def _request(self, record: SimRecord, runner: SimRunner | None) -> None:
        log = self.repeat_logs.get((record.topic, record.partition))
        if log is not None:
            self._by_source[record.source] = log.add(record)
            self.counts["records"] += 1
            return
        super()._request(record, runner)
        name = self._named(record)
        if name is not None and sum(self._moved[name, attempt] for attempt in (0, 1)) == 1:
            self._note_sent(self._by_source[name], record)

    def _named(self, record: SimRecord) -> str | None:
        """The occurrence that a retry is for; None: it is no retry, or not its first one, or not for an occurrence."""
        if record.topic != self._settings.retry_topic:
            return None
        request = self.logs[record.topic, record.partition].requests[record.offset]
        is_first = request.attempt in (0, 1) and self._moved[request.name, 0] + self._moved[request.name, 1] == 1
        known = self._by_source.get(request.name)
        is_repeating = known is not None and _is_occurrence(known)
        return request.name if is_first and is_repeating else None

    def _firing(self, record: SimRecord, runner: SimRunner | None) -> None:
        headers = dict(record.headers)
        source = (headers.get(h.TIMER_SOURCE) or b"").decode()
        request = self._by_source.get(source)
        if request is None or not _is_occurrence(request):
            super()._firing(record, runner)
            return
        version, nominal_s = self._version_of(request), h.number(headers.get(h.TIMER_NOMINAL))
        if request.row is None or request.key is None or nominal_s is None or h.TIMER_WAYPOINT in _own(request):
            raise Violation(f"{source} was sent, and sends nothing: {record!r}")
        due_s, asked = nominal_s + version.share_s, request.record.headers
        rule = version.rule.by(self.zones_at(record.seq))
        _, topic, key, value, _, _ = request.row
        expected = [
            *h.without_timer_headers(asked),
            (h.TIMER_VERSION, version.record.source.encode()),
            (h.TIMER_NOMINAL, b"%d" % nominal_s),
        ]
        if h.TIMER_NEXT in headers:
            expected.append((h.TIMER_NEXT, b"%d" % (rule.next(nominal_s) or 0)))
        elif rule.next(nominal_s) is not None:
            raise Violation(f"{source} was sent without {h.TIMER_NEXT}: {record!r}")
        expected += [*h.identity(id_bytes(request.timer_id), source.encode()), (h.TIMER_DUE, b"%d" % due_s)]
        sent = (record.topic, record.key, record.value, list(record.headers[:-1]))
        if sent != (topic, key_bytes(key), value, expected):
            raise Violation(f"bytes in, bytes out: {source} was sent as {record!r}, and not with {expected}")
        self.holds.check_sent(record, topic)
        self._fired[request.name] += 1
        if not self._moved[request.name, 0] + self._moved[request.name, 1]:
            log = self.repeat_logs[request.record.topic, request.record.partition]
            if log.is_new:  # a cancel of this step
                log.oracle.fold(log.progress)
            released_s = None if runner is None else self.holds.sent_after_s(request, runner)
            self.times.check_not_ended(request, max(due_s, released_s or 0))
            self._note_sent(request, record)
        if runner is not None:
            self.times.check_early(due_s, int(headers[h.TIMER_FIRED] or 0), record, request, runner)
        self._note_outcome(request.name)
        self.counts["fired"] += 1
        self.counts["occurrences"] += 1

    def _note_sent(self, request: Request, record: SimRecord) -> None:
        nominal_s = int(h.last(record.headers, h.TIMER_NOMINAL) or b"")
        self._version_of(request).new.append(Event(nominal_s, nominal_s, 1, "", *self._decided(record, request)))

    def _decided(self, record: SimRecord, request: Request) -> tuple[int, Decision | None, Zones]:
        """What is known of the decision about an occurrence, as the last fields of an event.

        Args:
            record: written when it was decided.
            request: the occurrence.
        """
        asked = self.zones_at(request.record.seq), self.zones_at(record.seq)
        return id(record.transaction), self._decision(record, request), asked

    def _decision(self, record: SimRecord, request: Request) -> Decision | None:
        before, after = self.holds.progress_of(record)
        key, row = request.key, request.row
        if key is None or row is None or after is None:
            return None
        second: int | None = after.fired_through[0]
        if (step := self._done) is not None and record.seq > step.seq:
            if key[1] < step.position:  # it was accepted before
                second = step.second_now
        elif after.fired_through[1] != MAX_OFFSET or self.times.steps_back:
            return None  # a chunk that is full does not say which second fires
        hold = before.hold_of(key, row[1])
        noisy_s = hold.since_s if hold is not None and hold.reason == NOISY else None
        owed_s, nominal_s = (h.number(_own(request).get(name)) for name in (h.TIMER_OWED, h.TIMER_NOMINAL))
        is_owed = owed_s is not None and nominal_s is not None and nominal_s <= owed_s
        return None if second is None else Decision(second, noisy_s, is_owed)

    def zones_at(self, seq: int) -> Mapping[str, str]:
        """The zone data of the workers when a record was appended."""
        return next((zones for since, zones in reversed(self.zones) if since <= seq), NO_ZONES)

    def _dead_letter(self, record: SimRecord) -> None:
        super()._dead_letter(record)
        source = (dict(record.headers)[h.TIMER_SOURCE] or b"").decode()
        request = self._by_source.get(source)
        if request is None or request.row is None or not _is_occurrence(request):
            return
        if not self._moved[source, 0] + self._moved[source, 1]:
            version = self._version_of(request)
            nominal_s = int(h.last(record.headers, h.TIMER_AGAIN) or b"") - version.share_s
            version.new.append(Event(nominal_s, nominal_s, 1, "", *self._decided(record, request)))

    def _verdict(self, record: SimRecord) -> None:
        version = h.last(record.headers, h.TIMER_VERSION)
        if version is not None:
            place = topics.parse_source(version.decode())
            assert place is not None
            fields = decode_json(record.value or b"")
            found = self.repeat_logs[place[:2]].version_at(place[2])
            reason, log = fields["reason"], self.repeat_logs[place[:2]]
            offset = log.occurrences.get((version, fields["first"] or 0))
            request = None if offset is None else log.read(log.records[offset]).request
            event = Event(fields["first"] or 0, fields["last"] or 0, fields["missed"], reason)
            if request is not None:
                event = Event(*event[:4], *self._decided(record, request))
            found.new.append(event)
            self._missed[version, fields["first"]] += 1
            self.counts[f"missed: {reason}"] += fields["missed"] or 1
            return
        before = self.counts.copy()
        super()._verdict(record)
        (name,) = (self.counts - before).keys()
        self.counts[name] -= 1  # requests of other topics have none
        self.counts[f"verdict: {name}"] += 1

    def _version_of(self, request: Request) -> Version:
        place = topics.parse_source((_own(request)[h.TIMER_VERSION] or b"").decode())
        log = self.repeat_logs[request.record.topic, request.record.partition]
        assert place is not None
        return log.version_at(place[2])

    def _outcomes(self, request: Request) -> int:
        sent = super()._outcomes(request)
        if not _is_occurrence(request) or sent:
            return sent
        log, own = self.repeat_logs[request.record.topic, request.record.partition], _own(request)
        followers = log.followers_of(request.record.offset)
        if not own.keys() >= {h.TIMER_LAST, h.TIMER_NOMINAL} or request.refused:
            return followers
        # None follows the last one: if it is missed, only its record of that says so.
        return followers + self._missed[own[h.TIMER_VERSION], h.number(own.get(h.TIMER_NOMINAL))]

    def _check_outcomes(self, machine: TopicPartition, log: MachineLog) -> None:
        super()._check_outcomes(machine, log)
        if isinstance(log, RepeatLog):
            self._check_repeats(machine, log)

    def _check_repeats(self, machine: TopicPartition, log: RepeatLog) -> None:
        """Check the outcome of each record, and that each occurrence has one follower if it has fired."""
        progress = log.progress
        for offset, record in log.records.items():
            _, decoded, request = log.read(record)
            accepted, followers = offset < progress.next_offset, log.followers_of(offset)
            outcomes = self._outcomes(request)
            end = log.versions[offset].end if offset in log.versions else request.end
            ended = end is not None and end.offset < progress.next_offset
            if decoded.rejected:
                finished = accepted
            elif offset in decoded.definitions:
                if followers != (accepted and self._counts(log, offset)) and not (ended and followers < 2):
                    raise Violation(f"{record.source} is a definition, and {followers} occurrences follow")
                continue
            elif request.row is None or request.refused:
                finished = False
            else:
                finished = accepted and request.has_fired(progress)
                is_end = {h.TIMER_LAST, h.TIMER_WAYPOINT} <= _own(request).keys()
                if not outcomes and (ended or is_end):
                    continue  # it has a verdict; or it is a waypoint without anything after it
            if outcomes != finished:
                what = "lost" if finished and not outcomes else "twice" if outcomes > 1 else "before its progress"
                raise Violation(f"{what}: {record.source} with key {request.key} has {outcomes} outcomes: {progress}")
            if offset in decoded.follows:
                follows = decoded.follows[offset].is_last < bool(outcomes)
                if followers != follows:
                    raise Violation(f"{record.source} has {outcomes} outcomes, and {followers} occurrences follow")
        for version in log.oracle.versions:
            if version.new:
                topic = (h.last(version.record.headers, h.TIMER_TOPIC) or b"").decode()
                version.take(self._newest_s, (machine, topic) in self.holds.targets)

    @staticmethod
    def _counts(log: RepeatLog, offset: int) -> bool:
        return any(each.record.offset == offset for each in log.oracle.versions)

    def check_end(self, until_s: int) -> None:
        self.check()
        for log in self.repeat_logs.values():
            pending = {offset for _, offset in log.pending(log.progress, log.progress.next_offset)}
            for offset, record in log.records.items():
                request = log.read(record).request
                if log.read(record).decoded.rejected:
                    self.counts["rejected"] += 1
                elif super()._outcomes(request) or offset in pending:
                    self.counts["accepted"] += 1
        self.check_covered(until_s)
        super().check_end(until_s)

    @property
    def judged(self) -> int:
        """Number of occurrences of which it was known in which second it was decided about them."""
        return sum(each.judged for log in self.repeat_logs.values() for each in log.versions.values())

    def check_covered(self, until_s: int) -> None:
        """Check that each timer that repeats goes on."""
        for log in self.repeat_logs.values():
            for version in log.oracle.versions:
                # An occurrence that was found by other zone data may be due later. It is pending then.
                if not (self.zones and version.rule.zone in ZONES_CHANGED):
                    version.check_covered(until_s)


def _own(request: Request) -> dict[str, bytes | None]:
    return h.timer_headers(request.record.headers)


def _is_occurrence(request: Request) -> bool:
    return h.TIMER_FOLLOWS in _own(request)


class RepeatWorker(SimWorker):
    """A worker of runs with timers that repeat."""

    conditions = True


class RepeatWorkload(Workload):
    """Sets timers that repeat where others set timers with an id.

    Attributes:
        rules: random source of what is asked for.
        horizon_s: after so many seconds a single timer would go cold; 0: never.
    """

    rules: Random
    horizon_s = 0

    def set_by_id(self, transaction: SimTransaction | None = None) -> None:
        """Write a definition, the same one again, or a single timer with the same id."""
        random, now_s = self.rules, self._log.clock.now_s
        id = random.choice(self._ids)
        if random.random() < 0.2:
            due_s = now_s + random.randint(-2, 2 if self.horizon_s else 9)
            value = future.encode(random.choice(TARGETS), "k", b"%d" % self._log.seq)
            self._send_by_id(id, value, future_by_id.encode_headers(due_s), transaction)
            self.latest_due_s = max(self.latest_due_s, due_s)
            return
        latest = [each for each in self._records() if each.key == id and h.TIMER_REPEAT in dict(each.headers)]
        latest = [each for each in latest if h.TIMER_FOLLOWS not in dict(each.headers)]
        if latest and random.random() < 0.4:
            again = max(latest, key=lambda each: each.seq)
            headers = [each for each in again.headers if each[0] != h.TIMER_IF]
            self._send_by_id(id, again.value, headers, transaction)
            return
        target = random.choices([*TARGETS, "missing"], [12, 6, 3, 1])[0]
        headers = [(h.TIMER_TOPIC, target.encode()), (h.TIMER_REPEAT, self._rule().encode())]
        self._send_by_id(id, b"%d" % self._log.seq, [*random.choice([[], [("a", None)]]), *headers], transaction)

    def cancel(self) -> None:
        self._send_by_id(self.rules.choice(self._ids), None, [])

    def change_late(self) -> None:
        """Write a cancel or a definition behind the open transaction of another producer."""
        id, seq = self.rules.choice(self._ids), self._log.seq
        transaction = self._log.begin(f"user-{seq}", self._log.new_epoch(f"user-{seq}"))
        self._open_transactions.append(transaction)
        self._log.append(self._id_topic, id, None, [], None, transaction)
        self.cancel() if self.rules.random() < 0.5 else self.set_by_id()

    def set_absent(self) -> None:
        self.set_by_id()

    def _send_by_id(
        self, id: bytes, value: bytes | None, headers: list[Header], transaction: SimTransaction | None = None
    ) -> None:
        self._log.append(self._id_topic, id, value, [*headers, *self._if(id, value)], None, transaction)

    def _if(self, id: bytes, value: bytes | None) -> list[Header]:
        random = self.rules
        if random.random() < 0.7:
            return []
        of_id = [each for each in self._records() if each.key == id and h.TIMER_FOLLOWS not in dict(each.headers)]
        if value is not None and random.random() < 0.4:
            return future_by_id.encode_condition(ABSENT)
        sources = [each.source for each in of_id]
        return future_by_id.encode_condition(random.choice([*sources[-1:] * 4, *sources, f"{self._id_topic}/0/99999"]))

    def _records(self) -> list[SimRecord]:
        return [each for at in range(self._log.partitions) for each in self._log.fetch(self._id_topic, at, 0).records]

    def _rule(self) -> str:
        random, now_s = self.rules, self._log.clock.now_s
        every_s = random.choice([1, 2, 3, 5, 7, 12, 12, 100])
        parts = [f"every={every_s}"]
        if random.random() < 0.3:
            parts = [f"cron={random.choice(LINES)}", f"zone={random.choice([*ZONES])}"]
            every_s = 60
        if random.random() < 0.3:
            parts.append(f"from={now_s + random.randint(-30, 20)}")
        if random.random() < 0.3:
            parts.append(f"until={now_s + random.choice([*range(-1, 30), 4000])}")
        if random.random() < 0.6:
            parts.append(f"catch-up={random.choice(['latest', 'all', 'none'])}")
        if random.random() < 0.2:
            parts.append(f"spread={random.randint(1, every_s)}")
        return "; ".join(parts)


class RepeatSimulator(Simulator):
    """A random run with timers that repeat."""

    workload = RepeatWorkload
    pausing_part = 0.4
    """Part of the runs in which operators pause targets."""

    def __init__(self, seed: int, worker: type[SimWorker] = RepeatWorker) -> None:
        self._repeat_random = Random(f"{seed} repeats")
        super().__init__(seed, 120, worker=worker)
        random = self._repeat_random
        assert isinstance(self._workload, RepeatWorkload)
        self._workload.rules = random
        self._workload.horizon_s = self._settings.hot_horizon_s
        for each in self.workers:
            each.first_level = random.choice([REPEATS_LEVEL] * 5 + [each.first_level])
        self._weighted += [(self._request, 14), (self._pass_time, 12)]
        self._weighted += [(self._sleep, random.choice([0.2, 1, 3])), (self._raise_to_repeats, 1)]
        self._weighted += [(self._cancel_behind_firing, random.choice([1, 6]))]
        self._workload._kinds += [(self._workload.set_by_id, 40), (self._workload.cancel, random.choice([2, 8]))]
        self._sources.append(random)
        self._take_habits()

    def _take_habits(self) -> None:
        super()._take_habits()
        own = [machine for machine in self.machines if machine[0] == ID_REQUEST]
        self._focus = self._repeat_random.choice([*own * 4, self._focus])

    def _choose_settings(self) -> Settings:
        return replace(super()._choose_settings(), id_topic=ID_REQUEST, schedule_topics=())

    def _new_clock(self) -> SimClock:
        changes = [second for seconds in ZONES.values() for second in seconds]
        return SimClock(self._repeat_random.choice([EPOCH_S, *changes]))

    def _new_checkers(self) -> Checkers:
        return RepeatCheckers(self.log, self._settings, self.machines, has_conditions=self._has_conditions)

    def _with_pauses(self, worker: type[SimWorker]) -> SimPauses | None:
        pauses = self._repeat_random.random() < self.pausing_part
        return super()._with_pauses(PausingWorker if pauses else worker)

    def _step(self, worker: SimWorker, name: TopicPartition) -> str:
        if (runner := worker.runners.get(name)) is not None:
            assert isinstance(self.checkers, RepeatCheckers)
            self.checkers.note_step(runner)
        return super()._step(worker, name)

    def _sleep(self) -> str:
        """Let a long time pass; mostly while no worker runs."""
        random = self._repeat_random
        if random.random() < 0.7:
            for worker in self.workers:
                worker.crash()
        seconds = random.choice([8, 15, 70, 900, 3600, random.randint(1, 9000)])
        if self._pauses is not None:  # the oracle of holds knows only short gaps between ticks
            seconds = min(seconds, 15)
        self.clock.advance_ms(seconds * 1000)
        self._tick()
        return f"for {seconds} s"

    def _cancel_behind_firing(self) -> str:
        """Cancel what is due in the next second, while the transaction of a firing is open: the end of the log that
        comes with the tick of this second may be answered before that of the transaction."""
        random, done = self._repeat_random, 0
        name = random.choice([machine for machine in self.machines if machine[0] == ID_REQUEST])
        for _ in range(random.randint(1, 8)):
            owner = self._owner.get(name)
            if owner is None or not owner.alive or name not in owner.runners:
                break
            self._deliver(owner, name)
            self.clock.advance_ms(1000)
            self._tick()
            owner.poll_ticks()
            if name not in owner.runners:
                break
            self._step(owner, name)
            runner = owner.runners.get(name)
            if runner is not None and runner.held_end is not None:
                done += self._cancel_due(runner, self.clock.now_s + 1)
                self.clock.advance_ms(1000)
                self._tick()
                owner.poll_ticks()
                if name in owner.runners:
                    self._step(owner, name)
            for _ in range(random.randint(0, 2)):
                if owner.alive and name in owner.runners:
                    self._work_on(owner, name)
        return f"{name[0]}/{name[1]}, {done} cancels"

    def _cancel_due(self, runner: SimRunner, due_s: int) -> bool:
        """Cancel a timer that a machine has stored for a second. Returns whether there is one."""
        rows = [row for key, row in zip(runner.store.keys, runner.store.rows, strict=True) if key[0] == due_s]
        ids = [row[5][0] for row in rows if row[5] is not None]
        if ids:
            self.log.append(ID_REQUEST, id_bytes(self._repeat_random.choice(ids)), None, partition=runner.name[1])
        return bool(ids)

    def _raise_to_repeats(self) -> str:
        for worker in self.workers:
            for machine in list(worker.runners):
                if machine in worker.runners:  # one that was fenced is closed
                    worker.raise_level(machine, REPEATS_LEVEL)
        return "all"

    def _dated_records(self) -> Iterable[SimRecord]:
        # A tick of a wrong clock may be a year ahead.
        return (each for each in self.log.committed if each.topic != self._settings.oscillator_topic)

    def _has_settled(self, runner: SimRunner) -> bool:
        if runner.name[0] != ID_REQUEST:
            return super()._has_settled(runner)
        return runner.loop.idle and runner.machine.position >= self.log.last_stable(*runner.name)

    def _settle(self) -> None:
        self._ends_at_s: int | None = None
        super()._settle()

    def _is_quiet(self) -> bool:
        """Whether nothing is left to do. When what repeats has gone on for some seconds, it is cancelled."""
        assert isinstance(self.checkers, RepeatCheckers)
        now_s = self.clock.now_s
        if self._ends_at_s is None:
            self._ends_at_s = now_s + GOES_ON_S
        if self._ends_at_s < 0:
            return super()._is_quiet()
        if now_s < self._ends_at_s or (now_s < self._ends_at_s + LONGEST_S and not self._has_fired_all(now_s)):
            return False
        self.checkers.check_covered(now_s - ON_TIME_S)
        for id in self._workload._ids:
            self.log.append(ID_REQUEST, id, None)
        self._ends_at_s = -1
        return False

    def _has_fired_all(self, now_s: int) -> bool:
        for name in (machine for machine in self.machines if machine[0] == ID_REQUEST):
            runner = self._owner[name].runners.get(name) if name in self._owner else None
            if runner is None or runner.machine.position < self.log.last_stable(*name):
                return False
            if runner.machine.progress.holds:  # a release is under way
                return False
            if (due_s := runner.machine.oldest_due_s) is not None and due_s <= now_s:
                return False
        return True
