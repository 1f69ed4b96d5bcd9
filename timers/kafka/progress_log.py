"""Reads the progress of machines, checks that their request logs agree with it, and takes back a wrong time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from functools import lru_cache, partial
from time import monotonic, sleep
from typing import TypeVar

from aiokafka.errors import CorruptRecordException
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaTopicPartition

from timers.core import levels
from timers.core.progress import Progress
from timers.core.rescue import Cut, cut_below
from timers.core.timer import TopicPartition
from timers.errors import LogMismatch
from timers.kafka.aiokafka_clients import arguments
from timers.kafka.aiokafka_internals.leader_client import AskLeaders, LeaderClient, NewestCommitted, Question, log_ends
from timers.kafka.clients import asking_admin, librdkafka, max_message_bytes, reader
from timers.kafka.leaders import WriteAccess
from timers.kafka.log_lineage import LogLineages
from timers.kafka.progress_rules import Copy, ProgressRules, progress_partition
from timers.kafka.records import Record, TransactionalWriter, write
from timers.kafka.request_formats import enabled_formats
from timers.kafka.topics import Cluster
from timers.process.config.settings import Settings
from timers.wire import progress as progress_record
from timers.wire import topics
from timers.wire.progress import ANY_LEVEL
from timers.wire.topics import partition_name

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

TIMEOUT_S = 25.0
"""A broker that died keeps its partitions for some seconds, and a transaction that hangs is ended after its timeout
(10 s), when the broker looks for such transactions, which it does every 10 s."""

ANSWER_S = 5.0
POLL_S, AGAIN_S = 0.05, 0.2

GROUP_ANSWER_S = 2.0
"""How long an opening waits for the group's copy of a progress."""

SETTLED_S = 2.0
"""How long a progress may say less than the group's copy of it, until it counts as one that lost records."""

APP_PARTITION = 0
"""Partition of the progress topic with the records that are about the whole app."""

APP_ANSWER_S = 10.0
NEW_APP_S = 30.0

TAIL_RECORDS = 2_000
"""Records read from the end first. The newest progress of a running machine is among them. If it is not,
all records are read."""


async def _fetched(client: LeaderClient, place: TopicPartition, offset: int) -> bytes | None:
    """Record batches of a partition from ``offset`` on; None without a leader."""
    await client.connect({place[0]})
    leader = client.leader_of(*place)
    return None if leader is None else (await client.fetch(leader, place, offset)).data


async def _committed(client: LeaderClient, group: str, tp: TopicPartition) -> tuple[int, str]:
    """What a group has committed for a partition.

    Raises:
        KafkaException: its coordinator refuses.
        TimeoutError, KafkaError: there is no answer now.
    """
    try:
        async with asyncio.timeout(GROUP_ANSWER_S):
            return await client.committed(group, tp)
    except AioKafkaError as error:
        if error.retriable:
            raise
        raise KafkaException(KafkaError(error.errno, f"the group {group!r}: {error!r}")) from None


class ProgressLog(ProgressRules):
    """Reads the progress topic and the ends of request logs. Its methods block: do not call them on the event loop.
    They raise KafkaException if the brokers do not answer.

    Args:
        timeout_s: longest time to wait for an answer, or for the next record.
        ask: asks leaders over connections that others share; None: over connections of its own.
    """

    def __init__(
        self, settings: Settings, cluster: Cluster, timeout_s: float = TIMEOUT_S, ask: AskLeaders | None = None
    ) -> None:
        super().__init__(settings, cluster)
        self._timeout_s = timeout_s
        self._loop = asyncio.Runner()
        self._client = LeaderClient(arguments(settings, "progress"), min(ANSWER_S, timeout_s))
        self._ask: AskLeaders = ask or self._ask_own

    def _ask_own(self, question: Question[_T]) -> _T:
        return self._loop.run(question(self._client))

    def close(self) -> None:
        """Close the connections. Errors are left out: nothing is committed."""
        with contextlib.suppress(Exception), self._loop as loop:
            loop.run(self._client.close())

    def read(
        self, tps: Iterable[TopicPartition], *, after_fence: bool = True, only_some: bool = False
    ) -> dict[TopicPartition, bytes]:
        """Newest committed progress record of each machine that has one [I14]; with ``only_some``, of at least one.

        Args:
            after_fence: the machines' former owners are fenced, so their transactions are decided: one whose marker is
                not there yet is waited for. Open transactions of other machines are not waited for.

        Raises:
            LogMismatch: the log does not say whether the newest record is committed, and will not.
            KafkaException: the brokers do not answer.
        """
        wanted = {progress_record.encode_key(*tp): tp for tp in tps}
        by_partition: dict[int, dict[bytes, TopicPartition]] = {}
        for key, tp in wanted.items():
            by_partition.setdefault(progress_partition(tp, self._cluster, self._settings), {})[key] = tp
        found: dict[TopicPartition, bytes] = {}
        for partition, keys in by_partition.items():
            ends = self.ends(self._settings.progress_topic, partition)
            records = self._newest(partition, ends, keys, after_fence=after_fence)
            found.update({keys[key]: value for key, value in records.items()})
            if only_some and found:
                return found
        missing = [tp for tp in wanted.values() if tp not in found]
        for tp, values in self._elsewhere(missing, after_fence=after_fence).items():
            found[tp] = max(values, key=partial(self.age, tp))
        return found

    def level_of_new_machines(self) -> int:
        """The feature level of a machine without progress: the one that the operator allows, if this version has it."""
        return _permitted(self._settings, self.allowed_level())

    def allowed_level(self) -> int:
        """The feature level that the operator allows: `timers levels --raise` writes it.

        Raises:
            KafkaException: the brokers do not answer.
            LogMismatch: the record cannot be read.
        """
        value = self.of_app(progress_record.APP_KEY)
        name, first = progress_record.ALLOWED_LEVEL, levels.FIRST_LEVEL
        return first if value is None else max(first, progress_record.decode_number(name, value, first))

    def of_app(self, key: bytes, *, after_fence: bool = False) -> bytes | None:
        """Newest committed value of a record that is about the whole app.

        Args:
            after_fence: as in :meth:`read`.
        """
        ends = self.ends(self._settings.progress_topic, APP_PARTITION)
        return self._read_back(APP_PARTITION, *ends, [key], after_fence=after_fence).get(key)

    def ends(self, topic: str, partition: int) -> tuple[int, int]:
        """First offset and end of a log, including open transactions."""
        place = topic, partition
        return self._answer(partial(log_ends, places=[place]), f"the end of {partition_name(*place)}")[0]

    def _answer(self, question: Question[_T | None], what: str, timeout_s: float = math.inf) -> _T:
        """Ask leaders until they answer, such as those of partitions that change their leader."""
        deadline = monotonic() + min(timeout_s, self._timeout_s)
        while True:
            why = "no leader"
            try:
                answer = self._ask(question)
                if answer is not None:
                    return answer
            except (AioKafkaError, OSError) as error:
                why = repr(error)
            if monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"reading {what}: {why}"))
            sleep(POLL_S)

    def _newest(
        self, partition: int, ends: tuple[int, int], keys: Collection[bytes], *, after_fence: bool
    ) -> dict[bytes, bytes]:
        """Newest committed value of each key of a partition of the progress topic."""
        low, high = ends
        records = self._read_back(partition, max(low, high - TAIL_RECORDS), high, keys, after_fence)
        if len(records) < len(keys) and high - low > TAIL_RECORDS:
            records = self._read_back(partition, low, high, keys, after_fence)
        return records

    def _read_back(
        self, partition: int, start: int, end: int, keys: Collection[bytes], after_fence: bool
    ) -> dict[bytes, bytes]:
        """Newest committed value of each key from ``start`` to ``end``, and of what follows while it is waited for."""
        newest, place = NewestCommitted(keys, start), (self._settings.progress_topic, partition)
        what = f"{partition_name(*place)} up to offset {end}"
        deadline = monotonic() + self._timeout_s
        while newest.position < end or (after_fence and newest.undecided):
            position = newest.position
            try:
                newest.add(self._answer(partial(_fetched, place=place, offset=position), what))
            except CorruptRecordException as error:
                way = f"{error}: let another broker lead the partition (docs/operations.md#a-batch-that-cannot-be-read)"
                raise KafkaException(KafkaError(KafkaError._BAD_MSG, f"reading {what}: {way}")) from None
            if newest.position > position:
                deadline = monotonic() + self._timeout_s
                continue
            if monotonic() > deadline:
                if newest.position < end:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"reading {what}: no records came"))
                # The fence waited for the markers of all transactions, so the log has lost these.
                for key in newest.undecided:
                    self._stop_without_marker(progress_record.decode_key(key), partition)
                break
            sleep(POLL_S)
        return newest.values

    def _stop_without_marker(self, tp: TopicPartition, partition: int) -> None:
        """Stop a machine whose newest progress is neither committed nor rolled back, unless the loss is accepted."""
        where = partition_name(self._settings.progress_topic, partition)
        self.mismatch(
            tp,
            f"the newest progress of {partition_name(*tp)} is in a transaction without an end: {where} lost its newest "
            "records (was an unclean leader elected, or an old copy of a disk restored?), or the transaction hangs "
            "(docs/operations.md#a-hanging-transaction)",
            Progress(),
            way="without it",
        )

    def read_one(
        self, tp: TopicPartition, *, after_fence: bool = True
    ) -> tuple[dict[TopicPartition, bytes], Progress, tuple[int, int]]:
        """Newest committed record of a machine, its checked progress, and the ends of its request log.

        Both are read again for :data:`SETTLED_S` if the group's copy says more than the progress. The brokers end a
        transaction in one partition after the other, so the group may know of a commit before the progress topic
        does; and an owner that is not fenced goes on committing between the two answers.

        Args:
            after_fence: see :meth:`read`.

        Raises:
            LogMismatch: the log lacks offsets that the progress names, or the progress lacks what the group's copy has.
            KafkaException: the brokers do not answer.
        """
        deadline = monotonic() + SETTLED_S
        while True:
            record, copy, ends = self._read_with_copy(tp, after_fence)
            try:
                return {} if record is None else {tp: record}, self.checked(tp, record, copy, ends[1]), ends
            except LogMismatch:
                if monotonic() > deadline:
                    raise
            sleep(POLL_S)

    def _read_with_copy(self, tp: TopicPartition, after_fence: bool) -> tuple[bytes | None, Copy, tuple[int, int]]:
        """Newest committed record of a machine, the group's copy of it, and the ends of its request log."""
        key, partition = progress_record.encode_key(*tp), progress_partition(tp, self._cluster, self._settings)
        places, group = (tp, (self._settings.progress_topic, partition)), self._settings.app_id

        async def ask(client: LeaderClient) -> tuple[list[tuple[int, int]], Copy] | None:
            ends, copy = await asyncio.gather(
                log_ends(client, places), _committed(client, group, tp), return_exceptions=True
            )
            if isinstance(ends, BaseException):
                raise ends
            return None if ends is None else (ends, copy)

        (ends, ends_of_progress), copy = self._answer(ask, f"the end of {partition_name(*tp)}")
        record = self._newest(partition, ends_of_progress, [key], after_fence=after_fence).get(key)
        if not after_fence:  # the owner goes on, so the log may end later now than when it was asked
            ends = self.ends(*tp)
        # Without a progress record the copy of the group is needed, so it is waited for. Else it can be done without.
        if record is None and isinstance(copy, BaseException):
            what = f"what the group {group!r} has of {partition_name(*tp)}"
            copy = self._answer(partial(_committed, group=group, tp=tp), what)
        if not isinstance(copy, BaseException) and self.is_behind(tp, record, copy):
            record = self._with_elsewhere(tp, record, after_fence=after_fence)
        return record, copy, ends

    def _with_elsewhere(self, tp: TopicPartition, record: bytes | None, *, after_fence: bool) -> bytes | None:
        """The newest of ``record`` and those in the partitions where the machine wrote before some were added to the
        topic. Where it belongs now may be one that it wrote before it had another place."""
        found = [record] if record else []
        found += self._elsewhere([tp], after_fence=after_fence).get(tp, ())
        return max(found, key=partial(self.age, tp), default=None)

    def _elsewhere(self, tps: Iterable[TopicPartition], *, after_fence: bool) -> dict[TopicPartition, list[bytes]]:
        """The newest records of machines in the partitions where they wrote before some were added to the topic."""
        topic, count = self._settings.progress_topic, self._cluster.partitions[self._settings.progress_topic]
        by_partition: dict[int, dict[bytes, TopicPartition]] = {}
        for tp in tps:
            for partition in {tp[1] % former for former in range(1, count)} - {tp[1] % count}:
                by_partition.setdefault(partition, {})[progress_record.encode_key(*tp)] = tp
        found: dict[TopicPartition, list[bytes]] = {}
        for partition, keys in by_partition.items():
            records = self._newest(partition, self.ends(topic, partition), keys, after_fence=after_fence)
            for key, value in records.items():
                found.setdefault(keys[key], []).append(value)
        return found

    def check_logs(self, read: Mapping[TopicPartition, Progress]) -> dict[TopicPartition, Progress]:
        """Returns the progress with which the engine on Spark goes on: shortened, where the log is another one [I28].

        Raises:
            LogMismatch: the log of a partition is, and the loss was not accepted.
            KafkaException: the brokers do not answer.
        """
        asked = {tp: [progress.lineage] for tp, progress in read.items() if progress.lineage.end}
        answers = self._ask(lambda client: LogLineages(client).parted(asked))
        if missing := asked.keys() - answers.keys():
            why = f"the leader of {partition_name(*min(missing))} does not tell its leader epochs"
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, why))
        found = dict(read)
        holds = "Stores of executors may still hold timers of them, which become dead letters when the loss is accepted"
        for tp, progress in read.items():
            (answer,) = answers.get(tp, [None])
            cut = cut_below(progress.next_offset, answer, *self.ends(*tp))
            if cut is not None:
                found[tp] = self.accept_cut(tp, progress, Cut(cut), holds)
        return found


def newest_fired_s(settings: Settings, cluster: Cluster) -> int | None:
    """Return the newest second that has fired; None if nothing has. Blocks.

    Raises:
        KafkaException: the brokers do not answer.
        LogMismatch: a record cannot be read.
    """
    seconds = [progress.fired_s for progress in read_all(settings, cluster).values()]
    return max((second for second in seconds if second is not None), default=None)


def read_all(settings: Settings, cluster: Cluster, timeout_s: float | None = None) -> dict[TopicPartition, Progress]:
    """Return the progress of each partition of the app that has one, at any feature level. Blocks.

    Args:
        timeout_s: longest time to wait for a leader, or for the next record; None: :data:`TIMEOUT_S`.

    Raises:
        KafkaException: the brokers do not answer.
        LogMismatch: a record cannot be read.
    """
    formats = enabled_formats(settings)
    tps = [(topic, each) for topic in formats for each in range(cluster.partitions.get(topic, 0))]
    with closing(ProgressLog(settings, cluster, timeout_s or TIMEOUT_S)) as log:
        return {
            tp: progress_record.decode(record, ANY_LEVEL, partition_name(*tp))[0]
            for tp, record in log.read(tps, after_fence=False).items()
        }


def commit_change(
    settings: Settings, cluster: Cluster, tp: TopicPartition, change: Callable[[Progress], Progress]
) -> None:
    """Change the progress of a partition from outside of its worker. Blocks.

    A worker that still owns the partition is fenced. It opens the partition again with the changed progress; if it does
    so before this has committed, this fails, and nothing was changed.

    The group gets no second witness: without this record the partition is as before, and the command can be repeated.

    Args:
        change: returns the new progress; the same one, to commit nothing.

    Raises:
        KafkaException: the brokers do not answer, or refuse, or a worker was faster. Whether the change is committed is
            then not known: read the progress again by another call.
        LogMismatch: the record cannot be read, is not the newest one, or has a feature level that this version does
            not support.
    """
    with closing(ProgressLog(settings, cluster)) as log:
        log.read_one(tp, after_fence=False)  # this connects first, so that the worker waits only from the fence on
        # The machine's own id: a worker that still runs is fenced, and its open transaction is aborted before the read.
        transactional_id = topics.transactional_id(settings.app_id, *tp)
        writer = TransactionalWriter(librdkafka(settings), transactional_id, max_message_bytes(settings))
        _, progress, _ = log.read_one(tp)
        changed = change(progress)
        if changed == progress:
            return
        machine = progress_record.machine_name(settings.app_id, *tp)
        value = progress_record.encode(changed, cluster.topic_ids[tp[0]], machine)
        partition = progress_partition(tp, cluster, settings)
        with writer.transaction() as send:
            send([Record(settings.progress_topic, partition, progress_record.encode_key(*tp), value, [])])


def permitted_level(settings: Settings) -> int:
    """Return the feature level to which this worker may raise machines. Blocks; not on an event loop.

    Raises:
        KafkaException, LogMismatch: as :meth:`ProgressLog.allowed_level`.
    """
    return _permitted(settings, allowed_level(settings))


def _permitted(settings: Settings, allowed: int) -> int:
    """Return the level that an operator allows, if this version has it; a lower one where a machine could not append
    occurrences [I37]."""
    allowed = min(allowed, levels.RAISED_TO_LEVEL)
    if allowed < levels.REPEATS_LEVEL or not settings.id_topic:
        return allowed
    access = _write_access(settings)
    access.ask({settings.id_topic})
    if settings.id_topic not in access.denied:
        _denied.discard(settings.id_topic)
        return allowed
    if settings.id_topic in _denied:
        return levels.HOLDS_LEVEL
    _denied.add(settings.id_topic)
    logger.warning(
        "partitions stay at feature level %d: this worker lacks Write on topic %r, to which timers that repeat are "
        "appended (docs/security.md has the kafka-acls lines)",
        levels.HOLDS_LEVEL,
        settings.id_topic,
    )
    return levels.HOLDS_LEVEL


_denied: set[str] = set()
"""Topics of which it was said."""


@lru_cache(1)
def _write_access(settings: Settings) -> WriteAccess:
    return WriteAccess(asking_admin(settings), APP_ANSWER_S)


def allowed_level(settings: Settings) -> int:
    """Return the feature level that the operator allows. Blocks; not on an event loop.

    Raises:
        KafkaException, LogMismatch: as :meth:`ProgressLog.allowed_level`.
    """
    with closing(ProgressLog(settings, Cluster("", {}, {}), APP_ANSWER_S)) as log:
        return log.allowed_level()


def allow_in_new_app(settings: Settings, partitions: int) -> None:
    """Allow the level that this version raises to, if the app has no progress yet. Blocks. Call it before joining.

    Brokers may need some seconds until they know topics that were created a moment ago.
    """
    deadline = monotonic() + NEW_APP_S
    while True:
        try:
            if _is_new(settings, partitions):
                allow(settings, levels.RAISED_TO_LEVEL)
            return
        except KafkaException as error:
            if monotonic() > deadline:
                logger.warning(
                    "whether the app is new is not known (%s); `timers levels` shows its feature level", error
                )
                return
        sleep(AGAIN_S)


def _is_new(settings: Settings, partitions: int) -> bool:
    """Whether no partition of the progress topic has a record. Partitions without a leader do not hide the others."""
    unknown: KafkaException | None = None
    with closing(reader(librdkafka(settings), isolation_level="read_uncommitted")) as consumer:
        for partition in range(partitions):
            place = KafkaTopicPartition(settings.progress_topic, partition)
            try:
                if consumer.get_watermark_offsets(place, timeout=GROUP_ANSWER_S)[1]:
                    return False
            except KafkaException as error:
                unknown = error
    if unknown is not None:
        raise unknown
    return True


def allow(settings: Settings, level: int) -> None:
    """Allow machines to be raised to ``level``. Blocks."""
    record = progress_record.APP_KEY, progress_record.encode_number(progress_record.ALLOWED_LEVEL, level)
    write(librdkafka(settings), settings.progress_topic, APP_PARTITION, [record], APP_ANSWER_S)
