"""What must hold of the stores of machines: each is the function of its log, as it runs and when it is read again."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from timers.config.settings import Settings
from timers.core.index import is_over
from timers.core.limits import Limits
from timers.core.progress import HOT_HORIZON
from timers.core.timer import Fetched, Row, TopicPartition
from timers.partition import PartitionSpec
from timers.store.memory import MemoryStore
from timers.testing.id_oracle import Violation
from timers.testing.log import SimLog
from timers.testing.machine_log import MachineLog
from timers.testing.schedules import ScheduleLog
from timers.testing.silent import SilentOutbox
from timers.testing.worker import SimRunner
from timers.wire.formats import RequestFormat


class StoreChecks:
    """Compares stores with logs.

    Args:
        log: the cluster.
        settings: of the app.
        formats: request topic -> how it is read.
        logs: what is known of each machine from the log alone; the caller keeps them up to date.
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

    def hold(self, runner: SimRunner) -> None:
        """The live state is the function of the log that it should be: also a zombie's, of its own progress.

        Raises:
            Violation: it is not.
        """
        store = runner.store
        log = self._logs[runner.name]
        progress = runner.machine.progress
        if log.schedules is not None:
            self._hold_what_was_read(runner, log.schedules)
            return
        want, keys = log.pending(progress, store.applied), [(due_s, row[0]) for due_s, row in _alive(runner)]
        if keys != want:
            missing, surplus = sorted(set(want) - set(keys)), sorted(set(keys) - set(want))
            raise Violation(f"the store of {runner.name} is not its log: missing {missing}, surplus {surplus}")
        if log.id_oracle is not None:
            known, told = dict(store.entries_after(b"", 10**6)), log.entries(progress, store.applied)
            for id in known.keys() | told.keys():
                entry = told.get(id)
                if known.get(id) != entry and (
                    entry is None or not is_over(entry, progress.fired_through, self._retention_s)
                ):
                    raise Violation(f"the index of {runner.name} holds {known.get(id)} for {id!r}, not {entry}")

    def _hold_what_was_read(self, runner: SimRunner, log: ScheduleLog) -> None:
        """As above, but for what compaction took before this store could read it."""
        store, fired_through = runner.store, runner.machine.progress.fired_through
        want, keys = log.pending(store.applied, fired_through), [(due_s, row[0]) for due_s, row in _alive(runner)]
        missing = [key for key in want if key not in keys and not log.is_compacted(key)]
        surplus = [key for key in keys if key not in want and key > fired_through]
        known, told = dict(store.entries_after(b"", 10**6)), log.entries(store.applied)
        for key in list(surplus):  # its successor was gone before it could be read, and is followed by another
            if log.is_compacted(key):
                surplus.remove(key)
        if missing or surplus:
            raise Violation(f"the store of {runner.name} is not its log: missing {missing}, surplus {surplus}")
        for id in known.keys() | told.keys():
            held, entry = known.get(id), told.get(id)
            if held != entry and not any(
                each is not None and (each[:2] <= fired_through or log.is_compacted(each[:2])) for each in (held, entry)
            ):
                raise Violation(f"the index of {runner.name} holds {held} for {id!r}, not {entry}")

    def check_idle(self, runner: SimRunner) -> None:
        """A machine that waits for its next tick or fetch has no timer that may fire.

        Raises:
            Violation: it has one.
        """
        machine = runner.machine
        if not runner.loop.idle or not runner.observed or machine.recovering:
            return
        fired_through, through_s = machine.progress.fired_through, runner.tick_s
        if runner.indexed:
            through_s = -1 if machine.released_s is None else min(through_s, machine.released_s)
        due = [
            (due_s, row[0]) for due_s, row in _alive(runner) if fired_through < (due_s, row[0]) and due_s <= through_s
        ]
        if due:
            raise Violation(f"{runner.name} waits for a tick, but {due[0]} is due")

    def recovers(self, runner: SimRunner, limits: Limits, random: Random) -> None:
        """A fresh machine over an empty store comes to the same state from the log alone, however it is cut.

        Raises:
            Violation: it does not.
        """
        if runner.machine.recovering:
            return
        progress = runner.machine.progress
        store = MemoryStore()
        request_format = self._formats[runner.name[0]]
        horizon_s = progress.setting_at(HOT_HORIZON, progress.next_offset, 0)
        spec = PartitionSpec(runner.name, request_format, limits, 1, horizon_s, self._retention_s)
        silent: Any = SilentOutbox()
        machine = spec.machine(progress, store, silent)
        while machine.recovering:
            piece = self._log.fetch(*runner.name, machine.position, random.randint(1, 40))
            end = min(piece.to_offset, progress.next_offset)
            machine.accept(Fetched(piece.from_offset, end, [r for r in piece.records if r.offset < end]))
        index = spec.index(store, machine.is_cold)
        rows = [row for due_s, group in store.scan((-1, 0), 10**12) for row in index.alive(due_s, group)]
        live = [row for _, row in _alive(runner)]
        schedules = self._logs[runner.name].schedules
        if schedules is not None:  # what was read before compaction took it is not to be had any more
            live = [row for row in live if not schedules.requests[row[0]].record.compacted]
        if rows != live:
            raise Violation(f"recovery of {runner.name} from its log differs from its live state")


def _alive(runner: SimRunner) -> list[tuple[int, Row]]:
    """Rows that may fire, with their due seconds; worked out from the index by hand."""
    store = runner.store
    rows = [(due_s, row) for (due_s, _), row in zip(store.keys, store.rows, strict=True)]
    if not runner.indexed:
        return rows
    held = {entry[:2] for _, entry in store.entries_after(b"", 10**6)}
    return [(due_s, row) for due_s, row in rows if (due_s, row[0]) in held]
