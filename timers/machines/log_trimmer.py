"""Deletes the requests that no pending timer of the machines of a process needs any more [I31].

``DeleteRecords`` is not fenced: a worker that was taken over can still send it. So a deletion follows a commit of its
machine within two seconds (:data:`DELETE_WITHIN_S`), by a clock that also counts the time in which the computer sleeps.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic, sleep
from typing import NamedTuple, Protocol, TypeVar

from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import IsolationLevel, KafkaException
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import OffsetSpec

from timers.core.machine import Machine
from timers.core.ports import View
from timers.core.progress import LOG_TRIMMED, Progress
from timers.core.snapshots import Unreadable, deletable_before, trimmed_to
from timers.core.timer import TopicPartition
from timers.kafka import group_access
from timers.kafka.admin_client import AdminClient
from timers.kafka.clients import asking_admin, librdkafka, max_message_bytes
from timers.kafka.connection import answer, give_up_at
from timers.kafka.error_codes import NOT_ALLOWED, code_of
from timers.kafka.own_topics import SEGMENT_MS
from timers.kafka.records import Record, TransactionalWriter
from timers.kafka.snapshot_log import SnapshotLog
from timers.kafka.topic_admin import configs
from timers.kafka.topics import ids_of
from timers.machines.machine_parts import Parts
from timers.machines.store.opening import VERIFIED_SUFFIX, room_for, store_path
from timers.machines.verifying import verify, way_on
from timers.process.clock import Clock
from timers.process.config.settings import Settings
from timers.process.partition_metrics import PartitionMetrics
from timers.wire import topics

logger = logging.getLogger(__name__)

AGAIN_S = 600.0
"""Longest time between two looks at a log, and the time until what stood against a deletion is looked at again."""

READERS_S = 60.0
"""So long it is taken as known who else reads a topic. 2,000 groups cost 0.35 s of a core."""

LEAST_S = 5.0

STEP_S = 0.02
"""After so long a comparison pauses."""

LONGEST_PAUSE_S = 0.5
"""Also the pause while timers are overdue. Otherwise it is as long as the step took."""

MOST_UNREAD = 50_000
"""A machine that has more than this left to read is behind."""

AHEAD_S = 3600.0
"""A record whose time is further ahead has a wrong one."""

PUT_OFF = (
    "a first deletion waits while timers of this worker are overdue by more than 10 s, or while more than "
    f"{MOST_UNREAD:,} records of the log are not read yet"
)

TRIES = 5
"""How often a deletion that was not sent in time begins again from a commit."""

DELETE_WITHIN_S = 2.0
"""Longest time between the commit of a machine and a deletion by what it has committed."""

TIMEOUT_S = 10.0

ROLL_QUIET_S = 30.0
"""No pending timer with an id may be due for so many seconds when a segment is begun. The transaction that begins it
holds back the end of the log: for milliseconds, or if the worker is killed, until the brokers end it (10 s, and their
next look, 10 s). A cancel behind it is not readable, and its timer would fire [I17]."""

_GROUPS = "__consumer_offsets"

RUNBOOK = "docs/operations.md#who-else-reads-the-log"

_T = TypeVar("_T")


class Runner(Protocol):
    """Runs a machine on another thread."""

    name: str
    machine: Machine

    @property
    def record_bytes(self) -> float:
        """Mean size of a request."""

    def ask(self, question: Callable[[Machine], _T]) -> Future[_T]:
        """Call ``question`` between two steps of the machine."""

    def view(self) -> View | None:
        """Returns a view of the machine's store; call it in a question. None: there can be none now."""


class Machines(Protocol):
    """The machines of a process."""

    @property
    def runners(self) -> Mapping[TopicPartition, Runner]: ...

    @property
    def partition_metrics(self) -> Mapping[TopicPartition, PartitionMetrics]: ...

    @property
    def parts(self) -> Parts: ...


class Refused(Exception):
    """Something stands against the deletion. The log grows as before."""


class _Committed(NamedTuple):
    """What a machine had committed at a time."""

    at_s: float
    """By the clock of :meth:`timers.process.clock.Clock.boot_s`, before the commit began."""
    progress: Progress


@dataclass
class _Known:
    """What is known of a machine."""

    runner: Runner
    next_at: float = 0.0
    is_verified: bool = False
    """Whether log and snapshots were compared, and agree."""
    deleted_to: int = 0
    """Where the log begins, and needs no further deletion until the bounds rise."""
    may_roll: bool = False
    """Whether the newest segment may hold only what was deleted."""
    rolled_to: int = 0
    """End of the log after the last new segment that this process made."""
    ahead: int = -1
    """Offset of the last record that had a time to come when it was the first one that is kept."""
    said: str = ""
    """What was logged last of what stands against a deletion; empty: nothing does."""


class _Unwanted(Exception):
    """Ends a transaction without effect."""


class LogTrimmer:
    """Asks about logs, and deletes from them. Blocks. All methods raise KafkaException if the brokers do not answer.

    Attributes:
        read_by_history: partition -> how far `timers spark history` has read the topic whose readers were asked for
            last. It needs no older requests.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.read_by_history: dict[int, int] = {}
        self._admin: AdminClient = asking_admin(settings)

    def ends(self, tp: TopicPartition) -> tuple[int, int]:
        """First offset of a log, and its end for committed readers."""
        return self._offset(tp, OffsetSpec.earliest()), self._offset(tp, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def first_since(self, tp: TopicPartition, append_ms: int) -> int | None:
        """The first offset of a log with a record that is not older than a time; None if all are older."""
        found = self._offset(tp, OffsetSpec.for_timestamp(append_ms))
        return None if found < 0 else found

    def _offset(self, tp: TopicPartition, what: OffsetSpec) -> int:
        place, level = Place(*tp), IsolationLevel.READ_COMMITTED
        asked = self._admin.list_offsets({place: what}, isolation_level=level, request_timeout=TIMEOUT_S)
        return int(answer(asked[place], give_up_at(TIMEOUT_S)).offset)

    def topic_ids(self, names: Iterable[str]) -> dict[str, bytes]:
        """The ids of those topics that exist."""
        return ids_of(self._admin, [*names], DELETE_WITHIN_S)

    def delete_below(self, bounds: Mapping[TopicPartition, int], timeout_s: float) -> None:
        """Delete the records of each partition below an offset."""
        wanted = [Place(*tp, offset) for tp, offset in bounds.items()]
        options = {"request_timeout": timeout_s, "operation_timeout": timeout_s}
        until = give_up_at(timeout_s)
        for deleted in self._admin.delete_records(wanted, **options).values():
            answer(deleted, until)

    def other_readers(self, topic: str, partitions: int, check: Callable[[], None]) -> Iterator[str]:
        """Yields what else reads a topic, as far as this worker may see it: groups, and other apps.

        Args:
            check: called before groups are asked; may raise to stop.

        Raises:
            Refused: it cannot be known.
        """
        listed = self._admin.list_topics(timeout=TIMEOUT_S).topics
        if _GROUPS in listed:
            silent = sorted(each.id for each in listed[_GROUPS].partitions.values() if each.leader < 0)
            if silent:
                raise Refused(f"partitions {silent} of {_GROUPS} have no leader, so no broker lists the groups in them")
        for app in topics.apps_with_snapshots(topic, listed):
            if app != self._settings.app_id:
                yield f"app {app!r}"
        try:
            found = group_access.readers_of(self._settings, topic, partitions, TIMEOUT_S, check)
        except (OSError, TimeoutError, AiokafkaError) as error:
            raise Refused(f"the groups that may read it cannot be listed ({error!r})") from error
        self.read_by_history = {}
        for each in found:
            if each.group == topics.history_group(self._settings.app_id) and each.offsets:
                self.read_by_history = dict(each.offsets)
                continue
            why = f" (kind {each.kind!r}; it cannot be asked: {each.unasked})" if each.unasked else ""
            yield f"group {each.group!r}{why}"

    def segment_s(self, topic: str) -> float:
        """After how many seconds the brokers begin a new segment of a topic, when a record comes."""
        return int(configs(self._admin, [topic], TIMEOUT_S)[topic][SEGMENT_MS]) / 1000

    def roll(self, tp: TopicPartition) -> None:
        """Let the brokers begin a new segment, so that they delete the one before: write a record, and take it back.

        Brokers delete whole segments, and never the one to which they append.
        """
        transactional_id = f"{topics.transactional_id(self._settings.app_id, *tp)}-roll"
        writer = TransactionalWriter(librdkafka(self._settings), transactional_id, max_message_bytes(self._settings))
        with suppress(_Unwanted), writer.transaction() as send:
            send([Record(*tp, b"", b"", [])])
            raise _Unwanted


class Trimmer:
    """Deletes from the logs of machines, one machine at a time.

    Args:
        now_s: returns the brokers' time; None while it is not known.
        ask: asks a machine on its thread, and waits for the answer.
        is_behind: whether any machine has overdue timers.
    """

    def __init__(
        self,
        settings: Settings,
        pool: Machines,
        now_s: Callable[[], float | None],
        ask: Callable[..., object],
        is_behind: Callable[[], bool],
    ) -> None:
        self._settings, self._pool, self._now_s, self._ask, self._is_behind = settings, pool, now_s, ask, is_behind
        self._clock = Clock()
        self._known: dict[TopicPartition, _Known] = {}
        self._others: dict[str, tuple[float, list[str], dict[int, int]]] = {}
        """Topic -> when its other readers were looked for, who they are, and how far the history has read it."""
        self._logs: LogTrimmer | None = None

    def keep(self, tps: Container[TopicPartition]) -> None:
        """Forget all other machines, which may hold a backlog."""
        self._known = {tp: known for tp, known in self._known.items() if tp in tps}

    def is_due(self, tp: TopicPartition, runner: Runner) -> bool:
        """Whether to look at the log of a machine now. Sends no request."""
        known = self._known.get(tp)
        if known is None or known.runner is not runner:
            known = self._known[tp] = _Known(runner)
        if monotonic() < known.next_at or self._pool.parts.formats[tp[0]].topic_is_compacted:
            return False
        progress = runner.machine.progress
        if tp[0] not in self._settings.trimmed_topics:
            return bool(progress.late_changes)
        return deletable_before(progress) > known.deleted_to or known.may_roll

    def trim(self, tp: TopicPartition, log: SnapshotLog, record_bytes: float, check: Callable[[], None]) -> None:
        """Delete what is old enough and not needed, unless something stands against it. Blocks.

        What the progress lists only for records that the log has no more is removed, too; also in a topic that others
        shorten: by age, by size, or by hand.

        Args:
            record_bytes: mean size of a request, for the metric.
            check: may raise to stop.
        """
        logs, self._logs = self._logs or LogTrimmer(self._settings), None
        self._trim(logs, tp, log, record_bytes, check)
        # A client that failed is not used again: for 15 minutes it may use a former epoch of a leader.
        self._logs = logs

    def _trim(
        self, logs: LogTrimmer, tp: TopicPartition, log: SnapshotLog, record_bytes: float, check: Callable[[], None]
    ) -> None:
        known, metrics = self._known[tp], self._pool.partition_metrics[tp]
        keep_s = self._settings.log_keep_s
        known.next_at = monotonic() + min(max(keep_s / 10, LEAST_S), AGAIN_S)
        now_s = self._now_s()
        if now_s is None:
            return
        start, end = logs.ends(tp)
        metrics.log_start = start
        progress = known.runner.machine.progress
        if progress.late_changes and progress.late_changes[0] < start:
            self._ask(known.runner, partial(_commit, self._clock, start))
        if tp[0] not in self._settings.trimmed_topics:
            return
        kept_from = logs.first_since(tp, int(1000 * (now_s - keep_s))) if keep_s else None
        bound = deletable_before(progress)
        try:
            if start >= (bound if kept_from is None else min(bound, kept_from)):
                if start < bound and self._is_ahead(logs, known, tp, kept_from, now_s):
                    raise Refused(
                        f"its record at offset {kept_from} had a time to come, and keeps all after it until that time "
                        "and TIMERS_LOG_KEEP_S longer: the clock of a broker or a producer was ahead. "
                        "TIMERS_LOG_KEEP_S=0 deletes without a look at times"
                    )
                self._note(known, tp, "")
                known.deleted_to = start if start >= bound else 0
                known.may_roll = start == end > known.rolled_to
                if known.may_roll:
                    self._roll(logs, known, tp, now_s, end)
                return
            is_ready = progress.settings.trims or known.is_verified
            if not is_ready and (end - progress.next_offset > MOST_UNREAD or self._is_behind()):
                # A comparison takes seconds of CPU, which the machines need.
                self._say_once(logging.INFO, known, PUT_OFF)
                return
            to = self._delete(logs, known, tp, log, start, kept_from, check)
        except Refused as why:
            self._note(known, tp, str(why))
        except KafkaException as error:
            if code_of(error) not in NOT_ALLOWED:
                raise
            rights = f"give it the right Delete on {tp[0]!r} and {topics.snapshots(self._settings.app_id, tp[0])!r}"
            self._note(known, tp, f"this worker may not delete ({error.args[0].str()}): {rights}")
        else:
            self._note(known, tp, "")
            if to > start:
                metrics.log_start, known.may_roll = to, True
                metrics.trimmed_bytes += int((to - start) * record_bytes)
                logger.info("%s: %d offsets deleted; its log begins at offset %d", known.runner.name, to - start, to)

    @staticmethod
    def _is_ahead(logs: LogTrimmer, known: _Known, tp: TopicPartition, kept_from: int | None, now_s: float) -> bool:
        """Whether the first record that is kept has, or had, a time to come: what comes after it may be old."""
        if kept_from is not None and kept_from != known.ahead:
            to_come = logs.first_since(tp, int(1000 * (now_s + AHEAD_S)))
            known.ahead = kept_from if to_come == kept_from else -1
        return kept_from == known.ahead

    def _note(self, known: _Known, tp: TopicPartition, why: str) -> None:
        """Note what stands against the deletion, and say it once, and again after it was over."""
        self._pool.partition_metrics[tp].trim_refused = bool(why)
        if why:
            known.next_at = monotonic() + AGAIN_S
            self._say_once(logging.WARNING, known, why)
        known.said = why

    def _say_once(self, level: int, known: _Known, why: str) -> None:
        if why != known.said:
            known.said = why
            logger.log(level, "%s: its log is not trimmed: %s", known.runner.name, why)

    # ---- before --------------------------------------------------------------------------------------------------

    def _check(
        self, logs: LogTrimmer, known: _Known, tp: TopicPartition, log: SnapshotLog, check: Callable[[], None]
    ) -> None:
        """Look at what may stand against a deletion.

        Raises:
            Refused: something does.
            Unreadable: a named snapshot has lost records.
        """
        progress = known.runner.machine.committed
        for sentence in log.prepare(tp[0]):
            raise Refused(sentence)
        for named in (progress.snapshot, progress.older_snapshot):
            if named is not None and not log.has_footer(named):
                raise Unreadable(f"its snapshot at offset {named.applied} has lost records")
        asked_at, others, _ = self._others.get(tp[0], (-math.inf, [], {}))
        if monotonic() > asked_at + READERS_S:
            others = list(logs.other_readers(tp[0], self._pool.parts.cluster.partitions.get(tp[0], 0), check))
            self._others[tp[0]] = monotonic(), others, logs.read_by_history
        if others:
            more = f" and {len(others) - 3} more" if len(others) > 3 else ""
            raise Refused(
                f"{' and '.join(others[:3])}{more} may read it too; give each app a request topic of its own, delete "
                "the offsets of groups that have gone, and name groups that need no old requests in "
                f"TIMERS_TRIM_PAST_GROUPS ({RUNBOOK})"
            )

    def _agree(
        self, known: _Known, tp: TopicPartition, log: SnapshotLog, start: int, check: Callable[[], None]
    ) -> bool:
        """Compare log and snapshots before the first deletion. Then the machine may note that its log is trimmed."""
        if known.is_verified:
            return True
        progress = known.runner.machine.committed
        directory = store_path(self._settings, tp).with_name(f"{tp[1]}{VERIFIED_SUFFIX}")
        named = filter(None, (progress.snapshot, progress.older_snapshot))
        with room_for(self._settings, directory, named) as why:
            if why:
                raise Refused(f"it is not compared with its snapshots: {why} (docs/operations.md#disk-of-the-workers)")
            found = verify(self._pool.parts, tp, progress, log, directory, self._paced(check))
        if found is None:
            return False
        if found.different:
            raise Refused(
                f"its log and its snapshots differ in {found.different} timers, such as: {found.differences[0]}. "
                f"Nothing is deleted; {way_on(start)}"
            )
        said = known.runner.name, found.timers, found.from_offset, found.to_offset
        logger.info("%s: log and snapshots agree on %d timers, offsets %d to %d", *said)
        known.is_verified = True
        return True

    def _paced(self, check: Callable[[], None]) -> Callable[[], None]:
        """Returns a check that pauses after each step of a comparison: machines need the interpreter."""
        since = monotonic()

        def paced() -> None:
            nonlocal since
            took_s = monotonic() - since
            if took_s >= STEP_S:
                check()
                sleep(LONGEST_PAUSE_S if self._is_behind() else min(took_s, LONGEST_PAUSE_S))
                since = monotonic()

        return paced

    # ---- the deletion --------------------------------------------------------------------------------------------

    def _delete(
        self,
        logs: LogTrimmer,
        known: _Known,
        tp: TopicPartition,
        log: SnapshotLog,
        start: int,
        kept_from: int | None,
        check: Callable[[], None],
    ) -> int:
        """Delete, by what the machine commits now. Returns where the log begins then; 0: nothing was deleted."""
        self._check(logs, known, tp, log, check)
        read_to = self._others[tp[0]][2].get(tp[1])
        if read_to is not None:
            kept_from = read_to if kept_from is None else min(read_to, kept_from)
            if kept_from <= start:
                raise Refused(
                    f"`timers spark history` has read to offset {read_to} only: let it run, or delete the offsets of "
                    f"its group {topics.history_group(self._settings.app_id)!r} if it has gone ({RUNBOOK})"
                )
        if not known.runner.machine.committed.settings.trims:
            if self._agree(known, tp, log, start, check):
                self._ask(known.runner, _note_trimmed)
                known.next_at = monotonic() + LEAST_S
            return 0
        snapshots = topics.snapshots(self._settings.app_id, tp[0])
        for _ in range(TRIES):
            check()
            answer = self._ask(known.runner, partial(_commit, self._clock, start))
            if not isinstance(answer, _Committed):
                return 0  # the machine replays its log, or has had no tick yet
            progress, parts = answer.progress, self._pool.parts
            to, older = trimmed_to(progress, kept_from), progress.older_snapshot
            if not to or older is None:
                return 0
            ids = logs.topic_ids([tp[0], snapshots])
            if (ids.get(tp[0]), ids.get(snapshots)) != (parts.cluster.topic_ids.get(tp[0]), older.topic_id):
                raise Refused("its topic, or that of its snapshots, was made anew")
            if not parts.ask_log.has_same_log(tp, known.runner.machine):
                raise Refused("it has lost its end, and what was appended in its place was not read yet")
            left_s = answer.at_s + DELETE_WITHIN_S - self._clock.boot_s()
            if left_s > 0:
                logs.delete_below({tp: to, (snapshots, tp[1]): older.first_offset}, left_s)
                return to
        raise Refused(
            f"{TRIES} times more than {DELETE_WITHIN_S:.0f} s passed between a commit and the deletion after it"
        )

    def _roll(self, logs: LogTrimmer, known: _Known, tp: TopicPartition, now_s: float, end: int) -> None:
        """Begin a new segment of a log of which nothing is needed, so that its last records leave the disk, too."""
        due_s = self._pool.partition_metrics[tp].oldest_due_s if self._pool.parts.formats[tp[0]].has_ids else None
        if due_s is not None and due_s < now_s + ROLL_QUIET_S:
            known.next_at = monotonic() + ROLL_QUIET_S
            return
        segment_s = logs.segment_s(tp[0])
        if logs.first_since(tp, int(1000 * (now_s - segment_s))) is not None:
            known.next_at = monotonic() + min(segment_s, AGAIN_S)
            return
        try:
            logs.roll(tp)
        except KafkaException as error:
            if code_of(error) not in NOT_ALLOWED:
                raise  # else the worker may not write there: the next request begins a segment
        known.may_roll, known.rolled_to = False, end + 2  # the record, and the marker after it


def _note_trimmed(machine: Machine) -> bool:
    return machine.commit_change(lambda progress: progress.with_setting(LOG_TRIMMED, 1))


def _commit(clock: Clock, start: int, machine: Machine) -> _Committed | None:
    """Commit, to know that no other worker has taken the machine over. On the machine's thread.

    Args:
        start: where the log begins, before any deletion that follows.
    """
    at_s = clock.boot_s()
    is_committed = machine.commit_change(lambda progress: progress.with_log_start(start))
    return _Committed(at_s, machine.committed) if is_committed else None
