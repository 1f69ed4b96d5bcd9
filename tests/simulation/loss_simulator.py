"""Simulated runs in which logs lose their end and grow again [I28]. Their oracle follows from the logs alone.

Workers, machines, stores and outboxes are those of the other simulated runs. Each request has a token of its own as
callback key. An operator accepts each loss, after some time. At the end each token whose record is in a log must have
fired once, and each one that only the store of the accepting worker held must be one dead letter.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tests.simulation.kit import faults as f
from tests.simulation.kit.faults import Violation
from tests.simulation.kit.log import SimClock, SimLog, SimRecord
from tests.simulation.kit.store import SimStore
from tests.simulation.kit.worker import SimRunner, SimWorker
from tests.simulation.pauses import SimPauses
from timers.core.levels import HOLDS_LEVEL
from timers.core.limits import Limits
from timers.core.operation import is_cancelled, offset_of
from timers.core.progress import LOG_CUT, Progress
from timers.core.timer import TopicPartition, id_bytes
from timers.process.config.settings import Settings
from timers.v1.future_pb2 import Future
from timers.wire import headers as h
from timers.wire import progress as progress_record
from timers.wire.dead_letter import LOST_FROM_LOG
from timers.wire.topics import ID_REQUEST, REQUEST

TARGET = "orders"
IDS = tuple(b"id-%d" % number for number in range(6))

SETTLE_ROUNDS = 60
"""Seconds at the end until everything due has fired."""

PAUSING = 0.2
"""Part of the runs in which operators pause the target."""

LAST_DUE_S = 30
"""The largest number of seconds that a request is due in the future."""


@dataclass
class Fate:
    """What became of one request."""

    record: SimRecord
    due_s: int
    id: bytes | None = None
    lost: bool = False
    """Whether its log has lost it."""
    unsure: bool = False
    """Whether it may fire again: its log was cut before it, although the logs part after it."""
    fired: int = 0
    letters: int = 0
    given_up: bool = False
    """Whether another loss, above the cut that lost it, came before its dead letter. This ends its rescue [I28]."""
    held: bool = False
    """Whether the store of a worker that accepted the loss held it."""
    sources: list[str] = field(default_factory=list)


class LossSimulator:
    """One random run."""

    def __init__(self, seed: int, steps: int = 140, worker: type[SimWorker] = SimWorker) -> None:
        self._random = random = Random(f"{seed} losses")
        self._ahead_random = Random(f"{seed} reading")
        self._pause_random = Random(f"{seed} commands")
        self._steps = steps
        self.history: list[str] = []
        self.settings = Settings(
            max_request_bytes=2000, retry_attempts=3, id_topic=ID_REQUEST, max_clock_leap_s=600, verdict_retention_s=9
        )
        limits = Limits(random.choice([1, 3, 1000]), 1_000_000, 2000)
        self.clock = SimClock()
        self.log = SimLog(self.clock, partitions=1)
        self.machines: list[TopicPartition] = [(REQUEST, 0), (ID_REQUEST, 0)]
        names = ("ada", "bob", "eve")[: random.randint(1, 3)]
        self.workers = [worker(name, self.log, self.settings, limits) for name in names]
        self._owner: dict[TopicPartition, SimWorker] = {}
        for each in self.workers:
            each.is_owner = lambda machine, each=each: self._owner.get(machine) is each  # type: ignore[misc]
        self.fates: dict[bytes, Fate] = {}
        self._noted: set[int] = set()
        """Numbers of the committed records that were looked at."""
        self._waits_for: dict[TopicPartition, int] = {}
        """Machine that stopped -> number of steps until an operator accepts its loss."""
        self._cut: set[TopicPartition] = set()
        """Machines whose logs have lost records."""
        self.counts: Counter[str] = Counter()
        self._pauses = SimPauses(self.workers, self._pause_random, [TARGET], lambda: self.clock.now_s)
        self._paused: dict[str, bool] = {}
        """Transactional id of a machine -> whether its committed progress has a pause."""

    def run(self) -> None:
        """Do all steps, and check."""
        try:
            actions: list[tuple[Callable[[], str], float]] = [
                *((self._work, 60), (self._request, 18), (self._pass_time, 12), (self._crash, 3), (self._restart, 6)),
                *((self._rebalance, 3), (self._elect, 3), (self._lose_end, 2), (self._restore_disks, 1)),
                *((self._compare, 4), (self._arm, 4)),
            ]
            if self._ahead_random.random() < 0.2:
                actions.append((self._read_ahead, 6))
            if self._pause_random.random() < PAUSING:
                actions += self._pauses.actions
                for each in self.workers:
                    each.first_level = HOLDS_LEVEL
            weights = [weight * self._random.choice([0.3, 1, 1, 3]) for _, weight in actions]
            self._restart()
            for _ in range(self._steps):
                (action,) = self._random.choices([each for each, _ in actions], weights)
                self.history.append(f"{self.clock.now_s} {action.__name__.strip('_')}: {action()}")
                self._accept_some()
                self._observe()
            self._settle()
            self._check()
        except Exception as error:
            raise AssertionError(f"{error!r}\n" + "\n".join(self.history[-40:])) from error

    # ---- actions ------------------------------------------------------------------------------------------------

    def _request(self) -> str:
        self.counts["requests"] += 1
        token = b"token-%d" % self.counts["requests"]
        due_s = self.clock.now_s + self._random.choice([-2, 0, 1, 2, 5, 9, LAST_DUE_S])
        value = Future(callBackTopic=TARGET, callBackKey=token.decode(), callBack=b"value").SerializeToString()
        if self._random.random() < 0.2:
            return self._request_in_a_transaction(token, due_s, value)
        if self._random.random() < 0.5:
            record = self.log.append(REQUEST, b"%d" % due_s, value, partition=0)
            self.fates[token] = Fate(record, due_s)
            return token.decode()
        id = self._random.choice(IDS)
        if self._random.random() < 0.25:
            record = self.log.append(ID_REQUEST, id, None, partition=0)
            self.fates[token] = Fate(record, -1, id)
            return f"cancel of {id.decode()}"
        record = self.log.append(ID_REQUEST, id, value, [(h.TIMER_DUE, b"%d" % due_s)], partition=0)
        self.fates[token] = Fate(record, due_s, id)
        return f"{token.decode()} of {id.decode()}"

    def _request_in_a_transaction(self, token: bytes, due_s: int, value: bytes) -> str:
        """The marker may be of another leader epoch than the record before it."""
        epoch = self.log.new_epoch("sender")
        transaction = self.log.begin("sender", epoch)
        record = self.log.append(REQUEST, b"%d" % due_s, value, partition=0, transaction=transaction)
        if self._random.random() < 0.5:
            self.log.elect(REQUEST, 0)
        committed = self._random.random() < 0.7
        self.log.finish(transaction, commit=committed)
        if committed:
            self.fates[token] = Fate(record, due_s)
        return f"{token.decode()} {'committed' if committed else 'aborted'}"

    def _pass_time(self) -> str:
        self.clock.advance_ms(1000)
        self.log.append(self.settings.oscillator_topic, b"0", b"1", partition=self._random.choice([0, 1]))
        return "1 s"

    def _work(self) -> str:
        busy = [worker for worker in self.workers if worker.runners]
        if not busy:
            return self._restart()
        worker = self._random.choice(busy)
        name = self._random.choice(list(worker.runners))
        self._work_on(worker, name)
        return f"{worker.name} {name[0]}"

    def _work_on(self, worker: SimWorker, name: TopicPartition, limit: int = 7) -> None:
        worker.poll_ticks()
        if self._random.random() < 0.7:
            self._fetch(worker, worker.runners[name], self._random.randint(1, limit))
        if name in worker.runners:
            self._step(worker, name)

    def _step(self, worker: SimWorker, name: TopicPartition) -> None:
        self._pauses.tell(worker, worker.runners[name])
        worker.step(name)
        self.counts["rounds"] += 1

    def _fetch(self, worker: SimWorker, runner: SimRunner, limit: int) -> None:
        if runner.read_to > self.log.end(*runner.name):  # out of range: the worker opens the machine again
            worker.revoke(runner.name)
            self._assign(worker, runner.name)
            return
        fetched = worker.poll_requests(runner.name, limit)
        if fetched is not None:
            runner.loop.add_fetch(fetched)

    def _crash(self) -> str:
        worker = self._random.choice(self.workers)
        worker.crash()
        how = self._random.choice(["killed", "killed", "power lost", "disk lost"])
        if how == "power lost":
            worker.disk.lose_power(self._random.randint(1, 4))
        elif how == "disk lost":
            worker.disk.wipe()
        if how != "killed":
            self._forget_held({name for name, owner in self._owner.items() if owner is worker})
        return f"{worker.name} {how}"

    def _restart(self) -> str:
        for worker in self.workers:
            if not worker.alive:
                worker.start()
        for name in self.machines:
            owner = self._owner.get(name)
            if owner is None or (name not in owner.runners and name not in owner.stopped):
                self._give(name, self._random.choice(self.workers))
        return "all"

    def _rebalance(self) -> str:
        name = self._random.choice(self.machines)
        for worker in self.workers:
            worker.revoke(name)
            worker.stopped.pop(name, None)
        new = self._random.choice([each for each in self.workers if each.alive] or self.workers)
        if not new.alive:
            return "nobody"
        self._give(name, new)
        return f"{name[0]} to {new.name}"

    def _read_ahead(self) -> str:
        """Let a worker read a log ahead. The owner goes on, and the worker takes the partition over, or does not."""
        name, worker = self._ahead_random.choice(self.machines), self._ahead_random.choice(self.workers)
        if not worker.alive or name in worker.runners:
            return "nothing"
        worker.read_ahead(name, self._ahead_random)
        worked = [self._work() for _ in range(self._ahead_random.randint(0, 4))]
        takes_over = worker.alive and self._ahead_random.random() < 0.7
        if takes_over:
            self._give(name, worker)
        return f"{name[0]} by {worker.name}, {len(worked)} steps, {'taken over' if takes_over else 'left'}"

    def _give(self, name: TopicPartition, worker: SimWorker) -> None:
        former = self._owner.get(name)
        if former is not None:
            former.stopped.pop(name, None)
        if former is not worker:
            self._forget_held({name})
        self._owner[name] = worker
        if worker.asks(name):
            worker.report(name)
        else:
            worker.revoke(name)
            self._assign(worker, name)

    def _assign(self, worker: SimWorker, name: TopicPartition) -> None:
        worker.assign([name])

    def _forget_held(self, names: set[TopicPartition]) -> None:
        """Note that the store that held lost requests is gone, or that another worker's store may be rescued first."""
        for fate in self.fates.values():
            if (fate.record.topic, 0) in names and not fate.letters:
                fate.held = False

    def _arm(self) -> str:
        worker = self._random.choice(self.workers)
        fault = self._random.choice([*f.ALL, "crash", "crash"])
        if fault == "crash":
            worker.faults.crash_after(self._random.randint(0, 12))
        else:
            worker.faults.arm(fault)
        return f"{fault} for {worker.name}"

    def _elect(self) -> str:
        name = self._random.choice(self.machines)
        self.log.elect(*name)
        return f"{name[0]}, epoch {self.log.leader_epoch(*name)}"

    def _lose_end(self) -> str:
        """An unclean election; then the log may grow again, to and past its former end."""
        name = self._random.choice(self.machines)
        end, start = self.log.end(*name), self._lowest_cut(name)
        if end < start + 2 or self.counts["cuts"] > 2:
            return "nothing to lose"
        cut = self._random.randint(max(start, end - 12), end - 1)
        self._lose(name, cut, None)
        grow = self._random.choice([0, 0, 1, end - cut, end - cut + 3])
        while self.log.end(*name) < cut + grow:
            self._request()
        return f"{name[0]} from {cut} of {end}, grown by {grow}"

    def _lowest_cut(self, name: TopicPartition) -> int:
        """The lowest offset from which a log may lose its records."""
        return self.log.start(*name)

    def _restore_disks(self) -> str:
        """The broker starts from an old copy of its disk, and gives leader epochs a second time."""
        name = self._random.choice(self.machines)
        end = self.log.end(*name)
        if end < 4 or self.counts["cuts"] > 2:
            return "nothing to lose"
        runners = [worker.runners[name] for worker in self.workers if name in worker.runners]
        if any(runner.machine._trusted.connection < 0 for runner in runners):
            return "a machine has compared its log, and fetched nothing since"  # the design names this limit
        progress = self.workers[0].read_progress(name)
        if progress.cuts and progress.lineage.batch is None:
            return "a loss was accepted, and no batch was read since"  # this one, too
        epoch = self.log.leader_epoch(*name)
        records = self.log.fetch(*name, 0, committed=False).records
        start = next((each.offset for each in records if each.epoch == epoch), end)
        cut = self._random.randint(min(end, max(self._lowest_cut(name), start, end - 8)), end)
        if cut == end:
            return "nothing to lose"
        for fate in self.fates.values():
            if (fate.record.topic, 0) == name and fate.record.offset >= start:
                fate.unsure = True
        self._lose(name, cut, epoch)
        self.log.restarts += 1
        self.clock.advance_ms(1)  # what is appended from now on is later than what was lost
        for _ in range(self._random.choice([0, end - cut, end - cut + 3])):
            self._request()
        return f"{name[0]} from {cut} of {end} in epoch {epoch}"

    def _lose(self, name: TopicPartition, cut: int, epoch: int | None) -> None:
        rescues = self.workers[0].read_progress(name).rescues
        for fate in self.fates.values():
            is_of_former_loss = fate.lost and not fate.letters and (fate.record.topic, 0) == name
            if is_of_former_loss and rescues and rescues[-1].from_offset < cut and fate.record.offset < cut:
                fate.given_up, fate.held = True, False
        lost = self.log.elect(*name, cut, epoch=epoch)
        gone = {id(each) for each in lost}
        for fate in self.fates.values():
            if id(fate.record) in gone:
                fate.lost = True
        self.counts["cuts"] += 1
        self._cut.add(name)

    def _compare(self) -> str:
        for worker in self.workers:
            if worker.alive:
                worker.compare_logs()
        return "all"

    # ---- the operator -------------------------------------------------------------------------------------------

    def _accept_some(self) -> None:
        for worker in self.workers:
            for name in list(worker.stopped):
                if name not in worker.stopped:
                    continue  # it was killed since
                self.counts["stopped"] += 1
                if name not in self._cut:
                    raise Violation(f"{name} stopped, and its log is whole: {worker.stopped[name]}")
                if self._owner[name] is not worker:  # another one has taken it over: it is restarted without it
                    worker.stopped.pop(name)
                    continue
                left = self._waits_for.setdefault(name, self._random.choice([0, 3, 20]))
                self._waits_for[name] = left - 1
                if left <= 0:
                    self._accept(worker, name)

    def _accept(self, worker: SimWorker, name: TopicPartition) -> None:
        self._waits_for.pop(name, None)
        worker.stopped.pop(name)
        progress = worker.read_progress(name)
        store = worker.disk.open(name, worker.faults)
        worker.disk.close(name)
        worker.accepted.add(name)
        self._note_held(name, progress, store, self._unseen(worker, name, progress, store))
        worker.faults.clear()  # a crash before the first dead letter would need a second acceptance
        self._assign(worker, name)
        worker.accepted.discard(name)  # it is accepted for one start
        self.counts["accepted"] += 1

    def _unseen(self, worker: SimWorker, name: TopicPartition, progress: Progress, store: SimStore) -> range:
        """Offsets of a loss that no progress has seen: another owner read what took their place [I28]."""
        of_progress, of_store = worker.compare(name, [progress.lineage, store.lineage])
        if of_store is None or of_store.offset is None or store.applied > progress.next_offset:
            return range(0)
        is_same = progress.has_same_history(store.history, store.applied)
        seen = self.log.end(*name) if of_progress is None or of_progress.offset is None else of_progress.offset
        return range(of_store.offset, seen) if is_same else range(0)

    def _note_held(self, name: TopicPartition, progress: Progress, store: SimStore, unseen: range) -> None:
        """Note which lost requests the store holds, pending."""
        cuts = sum(change.name == LOG_CUT for change in store.history)
        if cuts != progress.settings.cut and not progress.rescues_of(store.history, store.applied):
            # A rescue is done, and the store was not emptied and read again; or it was written after an acceptance that
            # was never committed: the design names these limits [I28].
            return
        entries = dict(store.entries_after(b"", 10**6).entries)
        by_key = {each[2]: (due_s, each) for due_s, rows in store.scan((-1, 0), 10**12) for each in rows}
        cancels = {id: offset_of(each) for id, each in entries.items() if is_cancelled(each)}
        # A log that has grown again may have lost a cancel of the same id at the same offset twice.
        newest = {(each.id, each.record.offset): each for each in self.fates.values() if each.lost and each.due_s < 0}
        for token, fate in self.fates.items():
            if not fate.lost or fate.given_up or fate.held or (fate.record.topic, 0) != name:
                continue
            if fate.record.offset in unseen:
                continue
            if fate.due_s < 0:
                is_newest = newest[fate.id, fate.record.offset] is fate
                fate.held = is_newest and cancels.get(fate.id or b"") == fate.record.offset
                continue
            known = by_key.get(token.decode())
            if known is None:
                continue
            due_s, row = known
            has_fired = row[0] < progress.next_offset and progress.has_fired((due_s, row[0]), row[1])
            is_latest = row[5] is None or entries.get(id_bytes(row[5][0]), (0, row[0]))[1] == row[0]
            fate.held = is_latest and not has_fired

    # ---- checks -------------------------------------------------------------------------------------------------

    def _observe(self) -> None:
        """Count the outcomes that became visible."""
        for record in self.log.committed:
            if record.seq not in self._noted:
                self._noted.add(record.seq)
                self._note(record)

    def _note(self, record: SimRecord) -> None:
        headers = dict(record.headers)
        if record.topic == self.settings.progress_topic and record.transaction is not None:
            progress, _ = progress_record.decode(record.value or b"")
            self._paused[record.transaction.transactional_id] = progress.holds.pauses(TARGET)
        elif record.topic == TARGET:
            if record.transaction is not None and self._paused[record.transaction.transactional_id]:
                raise Violation(f"sent while paused: {record!r}")
            fate = self.fates[record.key or b""]
            fate.fired += 1
            fate.sources.append((headers.get(h.TIMER_SOURCE) or headers[h.TIMER_ID] or b"").decode())
            self.counts["fired"] += 1
            if fate.fired > 1 and not fate.unsure:
                raise Violation(f"twice: {record.key!r} fired {fate.fired} times")
            if fate.fired and fate.letters and not fate.unsure:
                raise Violation(f"twice: {record.key!r} fired, and is a dead letter")
        elif record.topic == self.settings.dead_letter_topic:
            if headers[h.TIMER_ERROR] != LOST_FROM_LOG.encode():
                raise Violation(f"{record!r} is a dead letter for another reason")
            self._note_letter(record, (headers[h.TIMER_SOURCE] or b"").decode())

    def _note_letter(self, record: SimRecord, source: str) -> None:
        if record.value is None:
            lost = [each for each in self.fates.values() if each.id == record.key and each.due_s < 0 and each.lost]
            fates = [each for each in lost if source.split("~")[0].endswith(f"/{each.record.offset}")]
            fate = fates[-1] if fates else None
        else:
            fate = self.fates[Future.FromString(record.value).callBackKey.encode()]
        if fate is None or not fate.lost:
            raise Violation(f"{record!r} is a dead letter, and its log did not lose it")
        fate.letters += 1
        self.counts["letters"] += 1
        if fate.letters > 1:
            raise Violation(f"twice: {source} became {fate.letters} dead letters")

    def _settle(self) -> None:
        """Let the faults stop, and everything fire."""
        self._pauses.resume_all()
        for worker in self.workers:
            worker.faults.clear()
        self._restart()
        for _ in range(SETTLE_ROUNDS):
            self._pass_time()
            for worker in self.workers:
                worker.faults.clear()
                worker.poll_ticks()
                worker.compare_logs()
                for name in list(worker.stopped):
                    self._waits_for[name] = 0
            self._accept_some()
            self._restart()
            for worker in self.workers:
                for _ in range(40):
                    for name in list(worker.runners):
                        if name in worker.runners:
                            self._fetch(worker, worker.runners[name], 1000)
                        if name in worker.runners:
                            self._step(worker, name)
            self._observe()

    def _check(self) -> None:
        # A version that a lost update or cancel had ended counts as fired if its second has passed.
        latest = {fate.id: fate for fate in self.fates.values() if fate.id is not None}
        for token, fate in self.fates.items():
            is_wanted = fate.due_s >= 0 and not fate.lost and (fate.id is None or latest[fate.id] is fate)
            if is_wanted and not fate.fired:
                raise Violation(f"lost: {token.decode()} at {fate.record.source} is in its log and did not fire")
            if fate.lost and fate.held and not fate.letters:
                raise Violation(f"lost: {token.decode()} was held by the store only, and is no dead letter")
        sources = Counter(source for fate in self.fates.values() for source in set(fate.sources))
        twice = [source for source, count in sources.items() if count > 1]
        if twice:
            raise Violation(f"two timers have the source {twice[0]}: a receiver would drop the second one")
