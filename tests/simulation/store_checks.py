"""Checks that the store of each machine is what its log says, while it runs and after a recovery."""

from collections.abc import Mapping
from random import Random
from typing import Any

from tests.simulation.id_oracle import IdOracle
from tests.simulation.kit.faults import Violation
from tests.simulation.kit.log import SimLog
from tests.simulation.kit.outbox import RefusingOutbox
from tests.simulation.kit.worker import SimRunner
from tests.simulation.machine_log import MachineLog
from tests.simulation.schedules import ScheduleLog
from timers.core.fired import reached
from timers.core.index import is_over
from timers.core.limits import Limits
from timers.core.only_if import TIME_ID
from timers.core.operation import key_of, offset_of
from timers.core.progress import HOT_HORIZON, VERDICT_RETENTION, Progress, SettingChange
from timers.core.timer import Fetched, Row, TopicPartition
from timers.machines.partition import PartitionSpec
from timers.machines.store.layout import packer
from timers.machines.store.memory import MemoryStore
from timers.process.config.settings import Settings
from timers.wire.formats import RequestFormat


class StoreChecks:
    """Compares the stores of machines with their logs.

    Attributes:
        accepted: machines whose losses were accepted: a store may hold what its log lacks.
    """

    def __init__(
        self,
        log: SimLog,
        settings: Settings,
        formats: Mapping[str, RequestFormat],
        logs: Mapping[TopicPartition, MachineLog],
    ) -> None:
        self._log = log
        self._retention_s = settings.verdict_retention_s
        self._formats = formats
        self._logs = logs
        self.accepted: set[TopicPartition] = set()

    def check(self, runner: SimRunner) -> None:
        """Check the rows and the index of a machine. A fenced machine is checked with its own progress."""
        store = runner.store
        log = self._logs[runner.name]
        progress = runner.machine.progress
        if progress.level != log.progress.level:  # fenced: it reads on at the former level, and can commit nothing
            return
        if store.applied < log.forgotten_below:  # it is read again: check_recovery() looks at the end of that
            return
        if progress.fired_through < log.forgotten_through:  # fenced: it still holds what has fired and was forgotten
            return
        if log.schedules is not None:
            self._check_schedules(runner, log.schedules)
            return
        if _settings(progress, store.applied) != _settings(log.progress, store.applied):  # fenced, as above
            return
        if log.progress.doubt not in (None, progress.doubt):  # fenced: it reads on what compaction has left
            return
        expected, keys = log.pending(progress, store.applied), [(due_s, row[0]) for due_s, row in _alive(runner)]
        if keys != expected:
            missing, surplus = sorted(set(expected) - set(keys)), sorted(set(keys) - set(expected))
            raise Violation(f"the store of {runner.name} differs from its log: missing {missing}, surplus {surplus}")
        if log.id_oracle is not None:
            self._check_index(runner, log, log.id_oracle)

    def _check_index(self, runner: SimRunner, log: MachineLog, oracle: IdOracle) -> None:
        store, progress = runner.store, runner.machine.progress
        known, wanted = dict(store.entries_after(TIME_ID, 10**6).entries), log.entries(store.applied)
        time_s, (held,) = oracle.time_s(store.applied), store.entries([TIME_ID]).values()
        if held != ((time_s, 0, 0) if time_s else None):
            raise Violation(f"the latest append time of {runner.name} is {time_s}, and the store holds {held}")
        for id in known.keys() | wanted.keys():
            entry = wanted.get(id)
            if known.get(id) == entry:
                continue
            if entry is not None and id not in known:
                through = reached(progress.fired_through, progress.holes, offset_of(entry))
                if oracle.has_conditions and oracle.is_past(entry, time_s):
                    continue
                if not oracle.has_conditions and is_over(entry, through, self._retention_s):
                    continue
            raise Violation(f"the index of {runner.name} holds {known.get(id)} for {id!r}, not {entry}")

    def _check_schedules(self, runner: SimRunner, log: ScheduleLog) -> None:
        """Check rows and index, except for records that compaction removed before this store read them."""
        store, progress = runner.store, runner.machine.progress
        expected, keys = log.pending(store.applied, progress), [(due_s, row[0]) for due_s, row in _alive(runner)]
        missing = [key for key in expected if key not in keys and not log.is_compacted(key)]
        surplus = [key for key in keys if key not in expected and not log.has_fired(key, progress)]
        known, wanted = dict(store.entries_after(b"", 10**6).entries), log.entries(store.applied)
        for key in list(surplus):  # compaction removed the version that replaced it
            if log.is_compacted(key):
                surplus.remove(key)
        if missing or surplus:
            raise Violation(f"the store of {runner.name} differs from its log: missing {missing}, surplus {surplus}")
        for id in known.keys() | wanted.keys():
            held, entry = known.get(id), wanted.get(id)
            if held != entry and not any(
                each is not None and (log.has_fired(each[:2], progress) or log.is_compacted(each[:2]))
                for each in (held, entry)
            ):
                raise Violation(f"the index of {runner.name} holds {held} for {id!r}, not {entry}")

    def check_idle(self, runner: SimRunner) -> None:
        """Check that an idle machine has no due timer."""
        machine = runner.machine
        if not runner.loop.idle or not runner.observed or machine.recovering:
            return
        through_s = runner.tick_s
        if runner.indexed:
            through_s = -1 if machine.released_s is None else min(through_s, machine.released_s)
        keys = [(due_s, row[0]) for due_s, row in _alive(runner) if due_s <= through_s]
        due = [key for key in keys if not machine.progress.is_past(key)]
        if due:
            raise Violation(f"{runner.name} waits for a tick, but {due[0]} is due")

    def check_committed(self, runner: SimRunner) -> None:
        """Check that a machine that was idle for too long has committed its time."""
        if runner.outbox.is_fenced:  # it has not noticed yet that another machine has taken over
            return
        committed, fired = self._logs[runner.name].progress.fired_through, runner.machine.progress.fired_through
        if committed != fired and not runner.machine.recovering:
            raise Violation(f"{runner.name} was idle for long, and committed {committed} instead of {fired}")

    def check_recovery(self, runner: SimRunner, limits: Limits, random: Random) -> None:
        """Check that a recovery of an empty store, with fetches of random sizes, ends in the same state."""
        if runner.machine.recovering:
            return
        progress = runner.machine.progress
        doubts = progress.doubt, self._logs[runner.name].progress.doubt  # a fenced machine does not know of the second
        if any(doubts) or runner.name[0] in self._log.wrongly_compacted or runner.name in self.accepted:
            return  # the log lacks requests that the store holds
        store = MemoryStore()
        request_format = self._formats[runner.name[0]]
        horizon_s = progress.setting_at(HOT_HORIZON, progress.next_offset, 0)
        retention_s = progress.setting_at(VERDICT_RETENTION, progress.next_offset, self._retention_s)
        spec = PartitionSpec(runner.name, request_format, limits, 1, horizon_s, retention_s)
        refusing: Any = RefusingOutbox()
        machine = spec.machine(progress, store, refusing)
        while machine.recovering:
            piece = self._log.fetch(*runner.name, machine.position, random.randint(1, 40))
            end = min(piece.to_offset, progress.next_offset)
            machine.accept(Fetched(piece.from_offset, end, [r for r in piece.records if r.offset < end]))
        index = spec.index(store, machine.is_cold)
        scanned = [*store.scan((-1, 0), 10**12)]
        rows = [row for _, rows in (scanned if index is None else index.alive(scanned)) for row in rows]
        live = [row for _, row in _alive(runner)]
        schedules = self._logs[runner.name].schedules
        if schedules is not None:  # compaction removed some records that the live machine has read
            live = [row for row in live if not schedules.is_compacted((0, row[0]))]
        pack = packer()  # a row that was in a snapshot has tuples in the place of lists
        if pack(rows) != pack(live):
            raise Violation(f"recovery of {runner.name} from its log differs from its live state")


def _settings(progress: Progress, below: int) -> list[SettingChange]:
    return [each for each in progress.settings if each.from_offset < below]


def _alive(runner: SimRunner) -> list[tuple[int, Row]]:
    """(due second, row) of each stored row that the index holds."""
    store = runner.store
    rows = [(due_s, row) for (due_s, _), row in zip(store.keys, store.rows, strict=True)]
    if not runner.indexed:
        return rows
    held = {key_of(entry) for _, entry in store.entries_after(b"", 10**6).entries}
    return [(due_s, row) for due_s, row in rows if (due_s, row[0]) in held]
