"""Takes snapshots of the machines of a process, one at a time (:mod:`timers.core.snapshots`)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from random import shuffle
from time import monotonic
from typing import NamedTuple, TypeVar
from weakref import ref

from confluent_kafka import KafkaException

from timers.core.backoff import Pauses
from timers.core.keys import OrderKey
from timers.core.machine import Machine
from timers.core.ports import Lost, View
from timers.core.progress import Progress
from timers.core.snapshots import (
    Unreadable,
    footer_of,
    is_due,
    is_outdated,
    may_name,
    may_take,
    replaced_before,
    with_named,
)
from timers.core.timer import TopicPartition
from timers.errors import LogMismatch, MachineStopped, StoreError
from timers.kafka.clients import METADATA_ANSWER_S, asking_admin
from timers.kafka.snapshot_log import SnapshotLog, Unwritten
from timers.kafka.topics import ids_of
from timers.machines.log_trimmer import DELETE_WITHIN_S, Machines, Runner, Trimmer
from timers.machines.store.failures import StoreDamaged
from timers.process.clock import Clock
from timers.process.config.settings import Settings
from timers.wire import topics

logger = logging.getLogger(__name__)

SNAPSHOT_LOOK_S = 5.0
"""Seconds between two looks at which machines need a snapshot."""

FOOTER_S = 600.0
"""Seconds between two looks at the named snapshots of a machine: brokers may have lost them."""

AGAIN = Pauses(60.0, 3600.0)
"""Until a machine that got no snapshot has its turn again: brokers keep what was written in vain. If nothing was
written, or a named one may be lost, the pause is not longer than :data:`FOOTER_S`."""

PATIENCE_S = 10.0
"""A machine whose snapshots cannot be read for so long gives its turn to the next one: an election is shorter."""

ANSWER_S = 30.0
"""Longer than a transaction may last."""

BEHIND_S = 10
"""A machine whose next timer has been due for longer is behind."""

_LOST = (
    "the snapshots of {} are lost, because topic {!r} was deleted; until a new one is written, which takes seconds, "
    "what waits is only in its log and on the disk of this worker"
)

SNAPSHOT_FAILURES = (Lost, MachineStopped, TimeoutError, KafkaException, LogMismatch, StoreError)

_T = TypeVar("_T")


class _Seen(NamedTuple):
    """A machine that was looked at. What is known of its attempts stays when it is opened again."""

    runner: ref[Runner]
    """A machine that was given away may hold a backlog."""
    checked_at: float
    """When its named snapshots were looked at."""
    since: float
    """Of the last snapshot, or of the first look at the present runner."""
    tried_at: float = -math.inf
    """When the last attempt ended."""
    failures: int = 0
    """Attempts and looks in a row that have failed."""
    in_vain: int = 0
    """Snapshots in a row of which brokers have records, and that were not named."""


class SnapshotTaker:
    """Takes a snapshot of each machine whose log has grown, and lets its progress name it. Used by one thread.

    Args:
        now_s: returns the brokers' time; None while it is not known.
        fail: called with a machine whose store is damaged: it must be opened again.

    Attributes:
        should_stop: set it to end the present snapshot.
        wanted: machines that get a snapshot although none is due. Any thread may add to it.
        lost: machines whose named snapshots were deleted with their topic -> a sentence. Any thread may read it.
    """

    def __init__(
        self,
        settings: Settings,
        pool: Machines,
        now_s: Callable[[], float | None],
        fail: Callable[[TopicPartition, Exception], object],
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._now_s = now_s
        self._fail = fail
        self.should_stop = False
        self.wanted: set[TopicPartition] = set()
        self.lost: Mapping[TopicPartition, str] = {}
        self._admin = asking_admin(settings)
        self._clock = Clock()
        self._seen: dict[TopicPartition, _Seen] = {}
        self._doubts: set[str] = set()
        self._trimmer = Trimmer(settings, pool, now_s, self._ask, self._is_any_behind)
        self._took_at = 0.0
        self._has_written = False
        """Whether brokers have records of a snapshot of the present turn."""
        self._unnamed: dict[TopicPartition, int] = {}
        """Bytes of snapshots that were given up, of any owner, when the named ones were looked at last."""

    def look(self) -> None:
        """Give each machine its turn. Blocks."""
        self._find_lost()
        self._take()
        self._trimmer.keep(self._pool.runners)
        for tp, seen in [*self._seen.items()]:
            runner = None if self.should_stop else self._pool.runners.get(tp)
            if runner is not None and runner is seen.runner() and self._trimmer.is_due(tp, runner):
                self._trim_turn(tp, runner)

    def _find_lost(self) -> None:
        """Find named snapshots whose topic was deleted, or made anew. Their machines get new ones at once."""
        named = {tp: each.machine.progress.snapshot for tp, each in list(self._pool.runners.items())}
        names = {tp: topics.snapshots(self._settings.app_id, tp[0]) for tp, each in named.items() if each is not None}
        try:
            ids = ids_of(self._admin, sorted({*names.values()}), METADATA_ANSWER_S) if names else {}
        except KafkaException as error:
            logger.debug("the topics of snapshots cannot be described: %s", error)
            return
        before, self.lost = (
            self.lost,
            {
                tp: _LOST.format(topics.partition_name(*tp), name)
                for tp, name in names.items()
                if (snapshot := named[tp]) is not None and ids.get(name) != snapshot.topic_id
            },
        )
        for tp in self.lost.keys() - before.keys():
            logger.error("%s", self.lost[tp])
            if tp in self._seen:
                self._seen[tp] = self._seen[tp]._replace(
                    checked_at=-math.inf, tried_at=-math.inf, failures=0, in_vain=0
                )

    def _take(self, but: TopicPartition | None = None) -> None:
        """Take the snapshots that are due, except of one machine."""
        runners = list(self._pool.runners.items())
        # A partition without a runner may have another owner now.
        self.wanted.intersection_update(tp for tp, _ in runners)
        shuffle(runners)  # so that not all workers begin with the same partitions
        # Machines whose last snapshot failed come last: each may take long, as while a broker is away.
        runners.sort(key=lambda each: seen.failures if (seen := self._seen.get(each[0])) else 0)
        for tp, runner in runners:
            now, seen = monotonic(), self._seen.get(tp)
            if seen is None:
                seen = _Seen(ref(runner), now - FOOTER_S, now)
            elif seen.runner() is not runner:
                seen = seen._replace(runner=ref(runner), since=now)
            self._seen[tp] = seen if self.should_stop or tp == but else self._turn(tp, runner, seen)
        self._took_at = monotonic()

    def _turn(self, tp: TopicPartition, runner: Runner, seen: _Seen) -> _Seen:
        """Take a snapshot of a machine, if one is due. A failure is one sentence, and the log stays as it is."""
        now, is_wanted = monotonic(), tp in self.wanted
        pauses_s = [AGAIN.after(1 if is_wanted else max(1, times)) for times in (seen.failures, seen.in_vain)]
        rested = [now >= seen.tried_at + seconds for seconds in (min(pauses_s[0], FOOTER_S), pauses_s[1])]
        due = self._is_due(tp, runner, seen) and all(rested)
        # The snapshots that the progress names are looked at more often: if they are lost, all pending timers may be.
        checks = runner.machine.progress.snapshot is not None and now >= seen.checked_at + FOOTER_S and rested[0]
        if not may_take(runner.machine) or not (due or checks):
            return seen
        self._has_written = False
        metrics = self._pool.partition_metrics[tp]
        try:
            if self._snapshot(tp, runner, due=due):
                metrics.snapshots += 1
                self.wanted.discard(tp)
                return _Seen(seen.runner, now, monotonic())
            tried_at = monotonic() if due else seen.tried_at
            return seen._replace(checked_at=now, tried_at=tried_at, failures=0)
        except StoreDamaged as damage:
            self._fail(tp, damage)  # the machine is opened again, with an empty store
        except (*SNAPSHOT_FAILURES, Unwritten, Unreadable) as error:
            logger.warning("%s: no snapshot was taken: %s", runner.name, _why(error))
        metrics.snapshots_failed += 1
        failures, in_vain = seen.failures + 1, seen.in_vain + self._has_written
        return seen._replace(checked_at=now, tried_at=monotonic(), failures=failures, in_vain=in_vain)

    def _trim_turn(self, tp: TopicPartition, runner: Runner) -> None:
        """Delete what no snapshot of a machine needs. A failure is one sentence, and the log stays as it is."""
        try:
            with self._log(tp, runner) as log:
                self._trimmer.trim(tp, log, runner.record_bytes, partial(self._check_and_take, tp, runner))
        except Unreadable:
            # The next look checks the snapshot, and writes a new one. The entry of `_seen` may have changed meanwhile,
            # so it is read again.
            self._seen[tp] = self._seen[tp]._replace(checked_at=monotonic() - FOOTER_S)
        except (*SNAPSHOT_FAILURES, Unwritten) as error:
            logger.warning("%s: its log is not trimmed now: %s", runner.name, _why(error))

    def _is_behind(self, tp: TopicPartition) -> bool:
        oldest_s, now_s = self._pool.partition_metrics[tp].oldest_due_s, self._now_s()
        return oldest_s is not None and now_s is not None and oldest_s < now_s - BEHIND_S

    def _is_any_behind(self) -> bool:
        return any(map(self._is_behind, list(self._pool.runners)))

    def _is_due(self, tp: TopicPartition, runner: Runner, seen: _Seen) -> bool:
        machine, now_s, is_behind = runner.machine, self._now_s(), self._is_behind(tp)
        due = is_due(
            machine.progress,
            machine.pending,
            machine.sweeper.swept.forgotten_since(machine.progress.snapshot),
            runner.record_bytes,
            factor=self._settings.snapshot_factor,
            most_records=self._settings.snapshot_records,
            is_behind=is_behind,
            unnamed_bytes=self._unnamed.get(tp, 0),
        )
        due = due or tp in self.wanted
        if due or is_behind or now_s is None or tp[0] not in self._settings.trimmed_topics:
            return due
        written_ms = None if machine.progress.snapshot is None else self._pool.partition_metrics[tp].snapshot_ms
        age_s = -1.0 if written_ms is None else now_s - written_ms / 1000
        if age_s < 0:  # there is no snapshot, or its broker's clock was ahead
            age_s = monotonic() - seen.since
        settings = self._settings
        return is_outdated(
            machine.progress, machine.pending, age_s, settings.log_keep_s, settings.snapshot_mb_per_s * 1e6
        )

    def _snapshot(self, tp: TopicPartition, runner: Runner, *, due: bool) -> bool:
        """Take a snapshot if one is due, or if a named one was lost. Returns whether one was named."""
        settings = self._settings
        with self._log(tp, runner) as log:
            progress = runner.machine.progress
            named = [each for each in (progress.snapshot, progress.older_snapshot) if each is not None]
            whole = [log.has_footer(each) for each in named]
            if not due and all(whole):
                self._pool.partition_metrics[tp].snapshot_ms = log.written_ms(named[0])
                self._unnamed[tp] = log.unnamed_bytes(named)
                return False
            doubts = log.prepare(tp[0])
            for sentence in {*doubts} - self._doubts:
                logger.warning("%s", sentence)
            self._doubts |= {*doubts}

            def viewed(machine: Machine) -> tuple[View | None, OrderKey, int]:
                may_be = may_name(machine.progress, progress) and may_take(machine)
                forgotten = machine.sweeper.swept.forgotten_since(progress.snapshot)
                return runner.view() if may_be else None, machine.progress.fired_through, forgotten

            view, fired_through, forgotten_before = self._ask(runner, viewed)
            if view is None:
                return False
            began = monotonic()
            with closing(view):
                footer = partial(footer_of, view, self._pool.parts.place_of(tp), fired_through)
                new = log.write(view, footer, settings.snapshot_mb_per_s * 1e6)
            # Without this question, a machine that does not know yet that its log lost records would name two new
            # snapshots, and the last good one would be deleted.
            if not self._pool.parts.ask_log.has_same_log(tp, runner.machine):
                raise Lost("its log has lost its end")
            # A machine that was opened again has another runner, and never names a snapshot that was begun before. The
            # former newest snapshot is looked at again: it may have lost its end while this one was written. If brokers
            # do not answer now, it does not become the older one: without this rule, the whole write would be in vain.
            is_whole = False
            with suppress(Lost):
                is_whole = progress.snapshot is not None and log.has_footer(progress.snapshot)
            self._check(tp, runner)
            name = partial(with_named, new=new, newest_is_whole=is_whole)
            at_s = self._clock.boot_s()

            def named_by(machine: Machine) -> Progress | None:
                forgotten = machine.sweeper.swept.forgotten_since(progress.snapshot) - forgotten_before
                if not (may_name(machine.progress, progress) and machine.commit_change(name)):
                    return None
                machine.sweeper.note_named(new, forgotten)
                return machine.committed

            committed = self._ask(runner, named_by)
            if committed is None:
                raise Lost("its machine did not name the one that was written")
            self._unnamed[tp], now_s = 0, self._now_s()
            self._pool.partition_metrics[tp].snapshot_ms = None if now_s is None else int(1000 * now_s)
            said = new.rows, new.applied, monotonic() - began
            logger.info("%s: a snapshot of %d pending at offset %d, in %.2f s", runner.name, *said)
            is_soon = (
                self._clock.boot_s() < at_s + DELETE_WITHIN_S
            )  # later, another owner may have written others there
            if (before := replaced_before(committed)) and not doubts and is_soon:
                try:
                    log.delete_before(before)
                except KafkaException as error:
                    logger.warning("%s: former snapshots are deleted later: %s", runner.name, _why(error))
            return True

    @contextmanager
    def _log(self, tp: TopicPartition, runner: Runner) -> Iterator[SnapshotLog]:
        """The snapshots of a machine, as long as it is open. If they are silent, the next machine has its turn."""
        topic = topics.snapshots(self._settings.app_id, tp[0])
        with closing(SnapshotLog(self._settings, topic, tp[1], partial(self._check, tp, runner), PATIENCE_S)) as log:
            try:
                yield log
            finally:
                self._has_written = log.has_written

    def _check(self, tp: TopicPartition, runner: Runner) -> None:
        if self.should_stop or self._pool.runners.get(tp) is not runner:
            raise Lost("the partition was closed meanwhile")

    def _check_and_take(self, tp: TopicPartition, runner: Runner) -> None:
        """Let the other machines have their snapshots while the log of one is compared, which may take minutes."""
        self._check(tp, runner)
        if monotonic() > self._took_at + SNAPSHOT_LOOK_S:
            self._take(but=tp)

    @staticmethod
    def _ask(runner: Runner, question: Callable[[Machine], _T]) -> _T:
        """Returns the answer of a machine's thread. A question that is not answered in time is taken back."""
        answer = runner.ask(question)
        try:
            return answer.result(ANSWER_S)
        except TimeoutError:
            answer.cancel()
            raise


def _why(error: Exception) -> str:
    """Returns an error as a sentence."""
    if isinstance(error, KafkaException):
        return str(error.args[0].str())
    return str(error) or "the machine did not answer"
