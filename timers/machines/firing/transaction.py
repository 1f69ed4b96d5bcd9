"""Fills the transactions of a machine, and commits them.

A record goes into a batch of its partition at once, in the machine's own thread: librdkafka takes 3.6 µs of CPU for a
message with our three headers, 2.5 µs of them with the interpreter lock, because it allocates a list of headers and a
message object for each. aiokafka's Cython builder writes the same record into a batch in 0.7 µs (``docs/adr/0003``). So
a batch is complete before the event loop gets it, and only the record is allocated for a message.

Each batch keeps the offset of each request beside its record: so the timer of a record that a broker refuses is known.
The rows themselves are not kept: 0.25 µs a timer are saved if Python makes the next rows in their memory.

Two ports lead out: the :class:`Producer`, which sends, and what brokers answer (:class:`Topics`, :class:`Requests`).
The simulator replaces these only.

When a transaction fails, :class:`Topics` notes what the brokers said of each topic. The machine is opened again from
its committed progress and comes to the same chunk. Then the policy moves the timers of these topics to the retry topic
[I6]. If brokers are slow, no topic is at fault: the next transactions have fewer timers, and none begins while a broker
throttles this machine, because an open transaction would wait as long.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from time import monotonic
from typing import TypeAlias

from timers.core.counters import Counters, TransactionCounters
from timers.core.limits import SMALL_CHUNK, ChunkSize
from timers.core.operation import UNKNOWN, Verdict
from timers.core.ports import BatchesRefused, Deleted, DeliveryFailed, Lost, Missed, TooMuch, Unanswered
from timers.core.progress import WITNESS_S, Cuts, Progress
from timers.core.timer import (
    DueRows,
    Forwarded,
    Origin,
    Rejected,
    Row,
    Tick,
    TopicPartition,
    id_bytes,
    key_bytes,
    origin_of,
)
from timers.errors import AccessError, Fenced
from timers.machines.firing.ports import (
    Batch,
    FiringSettings,
    FirstRecord,
    GivenUp,
    Producer,
    Refusal,
    Requests,
    Topics,
)
from timers.wire import cold, dead_letter, future, topics
from timers.wire import headers as h
from timers.wire import progress as progress_record
from timers.wire import verdict as verdict_record
from timers.wire.dead_letter import LOST_FROM_LOG, LOST_REASON
from timers.wire.formats import RequestRecord, marker, schedule
from timers.wire.key_partition import partition_of, partitions_for, partitions_of

logger = logging.getLogger(__name__)

ALWAYS_FITS_BYTES = 32 * 1024
"""A request of this size without headers fits in the retry topic with any limit."""

MAX_BATCH_BYTES = 256_000
"""Below Kafka's default ``max.message.bytes`` of 1,048,588, which bounds a whole batch, not a message."""

READ_AGAIN_S = 2.0
"""Seconds for which records are read that nothing waits for. A connection that is new may take one of them."""

PUT_OFF_S = 30
"""Seconds until a request is looked for again whose partition had no leader."""

QUIET_WITNESS_S = 4.5
"""Seconds after which the group gets the newest committed values when no timer is due: so receivers seldom wait for
it. :data:`timers.core.progress.WITNESS_S` is the time after which it gets them in any case."""

COMPUTE_LOCK_POLL_S = 0.5

MAX_REFUSALS = 20
"""Refused transactions after which the circuits of the topics open, and the machine is opened again. Two are usual: a
broker reports only the first fault of each record."""

FEW_RECORDS = 5 * SMALL_CHUNK
"""If a transaction has so many records or fewer, a topic that does not answer fails. With more, it may only be slow."""


Callbacks: TypeAlias = tuple[str, int, Sequence[DueRows]]
"""(Topic, number of its partitions, timers by due second)."""


class WitnessClock:
    """Says when a machine tells the group its progress: about every :data:`WITNESS_S`, and at its close."""

    def __init__(self) -> None:
        self._committed: Progress | None = None
        self._sent: Progress | None = None
        self._tried_s = -math.inf

    def is_due(self, new: Progress, now_s: float) -> bool:
        """Whether the transaction that commits this progress must also tell it to the group.

        Args:
            now_s: of a clock that never goes back.
        """
        return now_s >= self._tried_s + WITNESS_S and new != self._sent

    def note(self, new: Progress) -> None:
        """Note the progress of a transaction that was committed."""
        self._committed = new

    def note_tried(self, now_s: float, *, sent: bool) -> None:
        """Note whether the group got what was committed last. Without its coordinator, it is tried again later."""
        self._tried_s = now_s
        if sent:
            self._sent = self._committed

    def is_old(self, now_s: float) -> bool:
        """Whether the group needs the newest progress soon, although nothing else is to be committed."""
        return now_s >= self._tried_s + QUIET_WITNESS_S and self._committed != self._sent

    def left(self) -> Progress | None:
        """Return the progress that was committed without the group; None if it has the newest one."""
        return None if self._committed == self._sent else self._committed


class Transaction:
    """The transaction of one machine: the policy fills it, and :meth:`commit` sends it.

    Args:
        settings: of the worker.
        machine: topic and partition of the machine.
        known: what brokers answer about topics.
        requests: reads requests again, for dead letters.
        producer: only for this machine.
        counters: totals of the partition.
        chunk: how many timers the next transaction may have: the same object at each opening.
        compute_lock: shared by all machines of the worker; held while a transaction is filled. So the first machine's
            records are sent while the next machine computes; without it, all machines would compute at the same time,
            and each one would wait for all.
        now_s: the brokers' time in epoch seconds, None if it is not known; used only for lags and record times.
        clock_s: seconds of a clock that never goes back.

    Attributes:
        machine: request topic and partition.
        open: fences the previous owner and rolls back its open transaction. Blocks.
        given_up: timers whose dead letters :meth:`commit` will write.
        progress_partition: partition of the progress topic to which the next commit writes. Any thread may set it.
        tick: at which the transaction happens.
    """

    def __init__(
        self,
        settings: FiringSettings,
        machine: TopicPartition,
        known: Topics,
        requests: Requests,
        producer: Producer,
        counters: Counters,
        chunk: ChunkSize,
        compute_lock: threading.Lock,
        now_s: Callable[[], float | None],
        clock_s: Callable[[], float] = monotonic,
    ) -> None:
        self._settings = settings
        self._topic, self._partition = self.machine = machine
        self._topics = known
        self._requests = requests
        self._producer = producer
        self._counters = counters
        self.chunk = chunk
        self._compute_lock = compute_lock
        self._now_s = now_s
        self._clock_s = clock_s
        self.open = producer.open
        self.size_alone = producer.size_alone
        self._computing = False
        self._cuts: Cuts = ()
        self._topic_id = b""
        self._partitions = 1
        self.progress_partition = 0
        self._progress_topic = settings.progress_topic
        self._progress_key = progress_record.encode_key(*machine)
        self._machine_name = progress_record.machine_name(settings.app_id, *machine)
        self._id_prefix = f"{topics.partition_name(*machine)}/".encode()
        self._witness = WitnessClock()
        self._is_settled = False
        """Whether the last transaction was committed, so that another one may follow."""
        self.tick = Tick(0)
        self._tick_seen_s = self._began_s = 0.0
        self._fired_ms = b""
        self._refusals = 0
        self._refused_timestamps: set[str] = set()
        """Topics that have refused the timestamps of records since this transaction was begun first."""
        self._filling: dict[str, dict[int, Batch]] = {}
        self._full: list[tuple[str, int, Batch]] = []
        self.given_up: list[GivenUp] = []

    def bind(self, topic_id: bytes, progress_partition: int, cuts: Cuts = (), partitions: int = 1) -> None:
        """Set the topic id in the progress records, the partition of the progress topic, and the cuts of the log.

        Cuts are part of each source [I28].

        Args:
            partitions: of the request topic.
        """
        self._partitions = partitions
        self._topic_id = topic_id
        self.progress_partition = progress_partition
        self._cuts = cuts

    def source(self, offset: int) -> str:
        """Return the source of a request of this machine."""
        return topics.source(*self.machine, offset, self._cuts)

    def read_again(self, offsets: Sequence[int]) -> dict[int, RequestRecord | Deleted]:
        """As in :class:`timers.core.ports.Outbox`."""
        sources = {self.source(offset): offset for offset in offsets}
        until_s = self._clock_s() + READ_AGAIN_S

        def may_wait() -> bool:
            return self._producer.beat_and_may_wait() and self._clock_s() < until_s

        read = self._requests.read_again(sources, may_wait)
        return {sources[source]: record for source, record in read.items()}

    # ---- begin, commit, close -------------------------------------------------------------------------------------

    @property
    def held_from(self) -> set[int]:
        """As in :class:`timers.core.ports.Outbox`."""
        return self._producer.held_from

    @property
    def has_old_witness(self) -> bool:
        """Whether the group should get a newer copy of the committed progress at the next quiet time [I8]."""
        return self._is_settled and self._witness.is_old(self._clock_s())

    def tell_group(self) -> None:
        """Let the group have the committed progress, in a transaction without records. No receiver waits for it.

        Raises:
            Fenced: another worker owns the machine.
            Lost: the machine must be opened again.
        """
        left = self._witness.left()
        if left is not None:
            sent = self._producer.transact((), self._copy_of(left))
            self._witness.note_tried(self._clock_s(), sent=sent)

    def _copy_of(self, progress: Progress) -> Mapping[TopicPartition, tuple[int, str]]:
        """Returns what the group gets of the progress: an offset, and the witness as its metadata."""
        return {self.machine: (progress.next_offset, progress_record.encode_witness(progress, self._topic_id))}

    def begin(self, tick: Tick) -> None:
        """Start to fill a transaction that happens at ``tick``. The brokers open it only at the commit."""
        self._is_settled = False
        if tick != self.tick:
            self.tick, self._tick_seen_s = tick, self._clock_s()
        self._producer.await_quota()
        while not self._computing:
            self._computing = self._compute_lock.acquire(timeout=COMPUTE_LOCK_POLL_S)
            if not self._producer.beat_and_may_wait() and not self._computing:
                raise Lost("told to stop")
        self._topics.refresh()
        self._fired_ms = b"%d" % tick.append_ms
        self._refusals, self._refused_timestamps = 0, set()
        self._counters.transaction = TransactionCounters()
        self._filling, self._full, self.given_up = {}, [], []

    def wait_for(self, unanswered: Collection[str]) -> None:
        """Wait until the brokers have said what they know of topics that the transaction uses first."""
        self.release_compute_lock()  # so other machines do not wait
        self._topics.wait(unanswered, self._producer.beat_and_may_wait)

    def commit(self, progress: Progress, callbacks: Iterable[Callbacks]) -> list[Refusal] | None:
        """Add ``callbacks`` and ``progress``, send everything, and make all of it visible.

        Args:
            callbacks: of timers of a request topic, or of schedules; what else the transaction has was added before.

        Returns:
            None; or what brokers have refused. Then it was rolled back, has nothing in it, and may be filled again.

        Raises:
            Fenced: another worker owns the machine.
            TooMuch: brokers did not answer in time, or refuse a record and do not say which.
            DeliveryFailed: topics failed, and their circuits are open.
            Lost: nothing, or all, became visible; the committed progress shows which. The circuits of the topics that
                failed are open.
        """
        for each in callbacks:
            self.send(*each)
        value = progress_record.encode(progress, self._topic_id, self._machine_name)
        self._add(self._progress_topic, self.progress_partition, self._progress_key, value, (), self._now_ms())
        if self.given_up:
            self.release_compute_lock()  # so other machines do not wait while requests are read again
            self._add_given_up()
        batches = self._take()
        self.release_compute_lock()
        if not self._refusals:
            self._began_s = self._clock_s()
        is_due = self._witness.is_due(progress, self._clock_s())
        try:
            sent = self._producer.transact(batches, self._copy_of(progress) if is_due else {})
        except BatchesRefused as error:
            refusals = self._refusals_of(error)
            before = self._counters.transaction
            self._counters.transaction = TransactionCounters(kind=before.kind, progress=before.progress)
            return refusals
        except DeliveryFailed as failure:
            self._topics.note_failed(failure.culprits)
            raise
        except Unanswered as failure:
            self._topics.note_silent(
                failure, few_records=sum(len(batch.offsets) for _, _, batch in batches) <= FEW_RECORDS
            )
            raise
        finally:
            self._counters.transaction.ended_ms = self._now_ms()
        self._is_settled = True
        self._witness.note(progress)
        if is_due:
            self._witness.note_tried(self._clock_s(), sent=sent)
        now_s = self._clock_s()
        into_second_s = self.tick.append_ms % 1000 / 1000 + now_s - self._tick_seen_s
        self.chunk.committed(now_s - self._began_s + self._producer.throttled_s, into_second_s)
        self._topics.note_worked({topic for topic, _, _ in batches})
        return None

    def _refusals_of(self, error: BatchesRefused) -> list[Refusal]:
        """Returns the refused records.

        The times of records are set here. So refused times are no fault of the records: these are sent again with new
        times, unless the topic can never take them. If it refuses these too, its circuit opens.

        Raises:
            DeliveryFailed: a topic of the engine refused records.
            TooMuch: a broker does not say which records of a batch it refuses.
        """
        self._refusals += 1
        if self._refusals > MAX_REFUSALS:
            failed = {said.topic: said for _, said in error.batches}
            self._topics.note_failed(failed)
            raise DeliveryFailed(failed)
        logger.info("%s/%d: %s; sending the other records again", *self.machine, error)
        refusals = []
        for batch, said in error.batches:
            topic = said.topic
            has_other_times = topic == self._topic and topic not in self._refused_timestamps  # see republish()
            if topic in self._topics.own and not (said.is_of_timestamps and has_other_times):
                raise DeliveryFailed({topic: said})
            if said.is_of_timestamps:
                if topic in self._refused_timestamps:
                    self._topics.open_circuit(topic, said)
                self._topics.note_timestamps_refused(topic)
                continue
            if len(batch.offsets) > 1 and not said.records:
                raise TooMuch(str(error), rolled_back=True)
            bad = [(each.place, each.why or said.why) for each in said.records] or [(0, said.why)]
            about = f"{topic!r} refused the callback: {said.name}"
            refusals.append(Refusal(topic, said, [(batch.offsets[place], f"{about} ({why})") for place, why in bad]))
        self._refused_timestamps |= {said.topic for _, said in error.batches if said.is_of_timestamps}
        return refusals

    def close(self) -> None:
        """Commit what the group does not know yet, if its coordinator answers, and close the producer."""
        self.release_compute_lock()
        try:
            if self._is_settled:
                with contextlib.suppress(Lost, Fenced, AccessError):  # the next owner has the progress itself
                    self.tell_group()
        finally:
            self._producer.close()

    def _now_ms(self) -> int:
        """The brokers' time, never before the tick. If it is not known: the tick plus the time since it was read."""
        known_s = self._now_s()
        if known_s is not None:
            return max(self.tick.append_ms, int(known_s * 1000))
        return self.tick.append_ms + int((self._clock_s() - self._tick_seen_s) * 1000)

    def release_compute_lock(self) -> None:
        """Let other machines compute, if this one was filling its transaction."""
        if self._computing:
            self._computing = False
            self._compute_lock.release()

    # ---- batches --------------------------------------------------------------------------------------------------

    def _add(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[h.Header],
        now_ms: int,
        offset: int | None = None,
    ) -> None:
        """Add one record; ``offset``: of its request, if it is a callback.

        :meth:`send` has these lines too: with one loop for both it takes 0.87 µs a timer, and 0.80 µs so.
        """
        batch = self._filling.setdefault(topic, {}).get(partition)
        listed = list(headers)  # the builder accepts only lists
        if batch is None or batch.add(len(batch.offsets), now_ms, key, value, listed) is None:
            batch = self._next_batch(topic, partition, (now_ms, key, value, listed))
        batch.offsets.append(offset)

    def _max_bytes(self, topic: str) -> int:
        return min(MAX_BATCH_BYTES, self._topics.max_message_bytes.get(topic, MAX_BATCH_BYTES))

    def _next_batch(self, topic: str, partition: int, first: FirstRecord) -> Batch:
        """Put the full batch of a partition, if there is one, aside. Returns a new one with its first record."""
        filling = self._filling[topic]
        if partition in filling:
            self._full.append((topic, partition, filling[partition]))
        filling[partition] = self._producer.batch(self._max_bytes(topic), first)
        return filling[partition]

    def _take(self) -> list[tuple[str, int, Batch]]:
        """Return all batches in the order in which they were filled, and forget them."""
        taken, filling = self._full, self._filling
        self._full, self._filling = [], {}
        for topic, batches in filling.items():
            taken += [(topic, partition, batch) for partition, batch in batches.items()]
        return taken

    # ---- callbacks ------------------------------------------------------------------------------------------------

    def send(self, topic: str, partitions: int, due: Sequence[DueRows]) -> None:
        """Fire timers of a request topic, or schedules: the hot path of firing.

        It takes about 1 µs a timer, and 0.2 µs where :func:`write_callbacks` is compiled.
        """
        self._counters.transaction.fire(topic, due)
        now_ms, id_prefix, timer_id = self._now_ms(), self._id_prefix, h.TIMER_ID
        batches = self._filling.setdefault(topic, {})
        write = self._producer.write_callbacks
        if write is not None:
            if self._cuts:
                due = [(due_s, self._named(due_s, group)) for due_s, group in due]
            fired = [(h.TIMER_FIRED, self._fired_ms)]
            places = topic, partitions, batches, self._full, self._max_bytes(topic)
            write(due, *places, now_ms, id_prefix, fired, _identity)
            return
        rows: list[Row] = []
        endings: list[list[h.Header]] = []
        for due_s, group in due:
            rows += self._named(due_s, group) if self._cuts else group
            endings += [h.firing(due_s, self._fired_ms)] * len(group)
        keys, numbers = _keys_and_partitions(rows, partitions)
        for row, ending, key, partition in zip(rows, endings, keys, numbers, strict=True):
            offset, _, _, value, headers, origin = row
            source = b"%b%d" % (id_prefix, offset)
            if origin is None:
                all_headers = (
                    [(timer_id, source), *ending] if headers is None else [*headers, (timer_id, source), *ending]
                )
            else:
                all_headers = [*(headers or ()), *_identity(origin, source), *ending]
            batch = batches.get(partition)
            if batch is None or batch.add(len(batch.offsets), now_ms, key, value, all_headers) is None:
                batch = self._next_batch(topic, partition, (now_ms, key, value, all_headers))
            batch.offsets.append(offset)

    def _named(self, due_s: int, rows: Sequence[Row]) -> list[Row]:
        """Return rows with their sources, which are more than a prefix and the offset after a cut of the log."""
        origins = [origin_of(row, due_s, self.source(row[0])) for row in rows]
        return [(*row[:5], origin._replace(source=origin.request)) for row, origin in zip(rows, origins, strict=True)]

    def send_retried(self, topic: str, partitions: int, rows: Sequence[Row]) -> None:
        """Fire timers of the retry topic; each one has its own due second."""
        keys, now_ms = [key_bytes(row[2]) for row in rows], self._now_ms()
        numbers = partitions_for(keys, [row[0] for row in rows], partitions)
        for row, key, partition in zip(rows, keys, numbers, strict=True):
            origin = Origin(*row[5] or ())
            self._add(topic, partition, key, row[3], self._fired_headers(row, origin), now_ms, row[0])
            self._counters.transaction.fire_again(topic, origin.due_s)

    def size(self, row: Row, origin: Origin) -> int:
        """Return the bytes of a batch that holds only the callback of ``row``."""
        return self.size_alone(key_bytes(row[2]), row[3], self._fired_headers(row, origin))

    def _fired_headers(self, row: Row, origin: Origin) -> list[h.Header]:
        identity = h.identity(id_bytes(origin.timer_id), origin.request.encode())
        return [*(row[4] or ()), *identity, *h.firing(origin.due_s, self._fired_ms)]

    def retry(self, row: Row, origin: Origin, due_s: int) -> int | None:
        """Move a timer to the retry topic; if its record is too large for the topic, return its bytes instead."""
        _, topic, key, value, headers, _ = row
        retry_topic, due = self._settings.retry_topic, b"%d" % due_s
        request, all_headers = future.encode_retry(topic, key, value, headers, origin)
        if headers is not None or len(request) > ALWAYS_FITS_BYTES:
            size = self.size_alone(due, request, all_headers)
            if size > self._limit(retry_topic) and size > self._limit_now(retry_topic):
                return size
        # Any partition is correct; this choice spreads retries over partitions as their requests are spread.
        partition = self._topics.available(retry_topic, self._partition % self._topics.partitions(retry_topic))
        self._add(retry_topic, partition, due, request, all_headers, self._now_ms())
        self._counters.transaction.retried += 1
        return None

    def give_up(self, given_up: GivenUp) -> None:
        """Note a timer; :meth:`commit` writes its dead letter, with the request as it was sent."""
        self.given_up.append(given_up)

    def _add_given_up(self) -> None:
        """Write the dead letters of the timers in ``given_up``, each with its request as it was sent.

        A timer whose request cannot be read for now goes to the retry topic, for :data:`PUT_OFF_S`: without its request
        the dead letter would not be what was sent, and the other timers of this machine must not wait for it.

        Raises:
            Lost: the requests cannot be read now.
        """
        given_up, self.given_up = self.given_up, []
        found = self._requests.find([(each.row, each.origin) for each in given_up], self._producer.beat_and_may_wait)
        for row, origin, code, reason in given_up:
            request = found.get(origin.request)
            if code == LOST_FROM_LOG and (topics.parse_source(origin.request) or ())[:2] == self.machine:
                if request is not None:
                    continue  # the log has the request, so its timer fires
                if origin.request in found:
                    raise Lost(f"{origin.request} cannot be looked for in the log: its partition has no leader")
            if request is None and origin.request in found:
                now_s = self._now_ms() // 1000
                # The retry topic fires what is due. A schedule that is written again may be due in a year.
                if origin.due_s > now_s or self.retry(row, origin, now_s + PUT_OFF_S) is not None:
                    raise Lost(f"{origin.request} cannot be read for a dead letter: its partition has no leader")
                continue
            request_format = self._requests.request_format(origin.request)
            if request is not None:
                key, value, headers = request.key, request.value, list(request.headers or row[4] or ())
            else:
                reason = f"{reason}; its request is no longer in the log, so key and value are written anew"
                key, value, headers = request_format.rebuild_request(row, origin)
            if request_format.copy_needs_timer_again and h.last(headers, h.TIMER_AGAIN) is None:
                headers.append((h.TIMER_AGAIN, b"%d" % origin.due_s))
            self._add_dead_letter(Rejected(row[0], code, reason, key, value, headers), origin.request)

    def rescue_cancels(self, cancels: Sequence[tuple[bytes, int]]) -> None:
        """Write the dead letters of cancels that the log has lost."""
        for id, offset in cancels:
            self._add_dead_letter(Rejected(offset, LOST_FROM_LOG, LOST_REASON, id, None, ()), self.source(offset))

    def reject(self, rejected: Rejected) -> None:
        """Write the dead letter of a request that was rejected on arrival."""
        self._add_dead_letter(rejected, self.source(rejected.offset))

    def _add_dead_letter(self, rejected: Rejected, source: str) -> None:
        topic = self._settings.dead_letter_topic
        self._counters.transaction.dead_lettered[rejected.code] += 1
        key, value, headers = dead_letter.encode(rejected, source, self._limit(topic))
        count = self._topics.partitions(topic)
        partition = self._partition % count if key is None else partitions_of([key], count)[0]
        self._add(topic, self._topics.available(topic, partition), key, value, headers, self._now_ms())

    def _limit(self, own_topic: str) -> int:
        default = self._settings.max_request_bytes + dead_letter.OVERHEAD_BYTES
        return self._topics.max_message_bytes.get(own_topic, default)

    def _limit_now(self, own_topic: str) -> int:
        """Ask for the same, unless it is known: the setting may have been lowered, and the topic takes more."""
        if own_topic not in self._topics.max_message_bytes:
            self.release_compute_lock()  # so other machines do not wait
            self._topics.limit_now(own_topic)
        return self._limit(own_topic)

    def end_schedules(self, rows: Sequence[Row]) -> list[Row]:
        """Write a tombstone for each schedule, on the schedule's own partition; return the rows as they are sent.

        Producers hash keys in different ways, and a tombstone deletes only records of its own partition.
        """
        now_ms = self._now_ms()
        for key, headers in schedule.tombstones(rows):
            self._add(self._topic, self._partition, key, None, headers, now_ms)
        topic = self._topic.encode()
        return [schedule.callback_row(row, topic) for row in rows]

    def end_schedule(self, rejected: Rejected) -> None:
        """Write the tombstone of a schedule that was rejected."""
        headers = schedule.tombstone_headers(rejected.offset)
        self._add(self._topic, self._partition, rejected.key, None, headers, self._now_ms())

    def end_messages(self, rows: Sequence[Row]) -> list[Row]:
        """Write an End marker for each message, on the partition of its other markers; return the rows as they are
        sent: to the queue topic of the present settings."""
        now_ms = self._now_ms()
        for key, value in marker.end_markers(rows):
            self._add(self._topic, self._partition, key, value, (), now_ms)
        return [(row[0], self._settings.message_topic, *row[2:]) for row in rows]

    def send_spread(self, topic: str, partitions: int, due: Sequence[DueRows]) -> None:
        """Fire timers, each to the partition that follows from the offset of its request."""
        now_ms = self._now_ms()
        for due_s, rows in due:
            for row in rows:
                origin = origin_of(row, due_s, self.source(row[0]))
                headers = self._fired_headers(row, origin)
                self._add(topic, row[0] % partitions, key_bytes(row[2]), row[3], headers, now_ms, row[0])
        self._counters.transaction.fire(topic, due)

    # ---- decisions of the machine ------------------------------------------------------------------------------

    def republish(self, rows: Sequence[Row]) -> None:
        """Add schedules to their topic as they were published; if it refuses times of the past, with the present time:
        else the machine would meet the same refusal at each opening, and accept nothing any more."""
        now_ms = self._now_ms() if self._topic in self._refused_timestamps else None
        for row in rows:
            key, value, headers, timestamp_ms = schedule.as_published(row)
            self._add(self._topic, self._partition, key, value, headers, timestamp_ms if now_ms is None else now_ms)

    def add_own(self, records: Iterable[tuple[bytes, bytes | None, list[h.Header]]]) -> int:
        """Add records (key, value, headers) to the machine's own partition: the lines of :meth:`_add`, as in
        :meth:`send`, because each occurrence of a timer that repeats is such a record. Returns how many."""
        now_ms, topic, partition = self._now_ms(), self._topic, self._partition
        batch, number = self._filling.setdefault(topic, {}).get(partition), 0
        for key, value, headers in records:
            if batch is None or batch.add(len(batch.offsets), now_ms, key, value, headers) is None:
                batch = self._next_batch(topic, partition, (now_ms, key, value, headers))
            batch.offsets.append(None)
            number += 1
        return number

    @property
    def largest_own(self) -> int | None:
        """Bytes of the largest batch that the machine's own topic takes, if it has refused one. May be old."""
        return self._topics.max_message_bytes.get(self._topic)

    def largest_own_now(self) -> int | None:
        """Ask for the same."""
        self.release_compute_lock()  # so other machines do not wait
        return self._topics.limit_now(self._topic)

    @property
    def counts(self) -> TransactionCounters:
        """What the present transaction adds to the totals."""
        return self._counters.transaction

    def tell_missed(self, missed: Sequence[Missed]) -> None:
        """Add records about occurrences that are not sent to the topic of verdicts."""
        topic, now_ms = self._settings.verdict_topic, self._now_ms()
        partitions = partitions_of([id_bytes(each.id) for each in missed], self._topics.partitions(topic))
        for each, partition in zip(missed, partitions, strict=True):
            key, value, headers = verdict_record.encode_missed(each, self.source)
            place = self._topics.available(topic, partition)
            self._add(topic, place, key, value, headers, now_ms)
            self._counters.transaction.missed[each.reason] += each.number

    def answer(self, verdicts: Sequence[Verdict]) -> None:
        """Add verdicts on cancels and replacements."""
        topic = self._settings.verdict_topic
        ids = [verdict.id for verdict in verdicts]
        now_ms, counts = self._now_ms(), self._counters.transaction.verdicts
        for verdict, partition in zip(verdicts, partitions_of(ids, self._topics.partitions(topic)), strict=True):
            headers = [(h.TIMER_SOURCE, self.source(verdict.offset).encode())]
            chosen = self._topics.available(topic, partition)
            if self._topics.was_moved(topic, partition):
                headers.append((h.TIMER_MOVED, b"1"))
            place = self._partition
            if verdict.verdict == UNKNOWN and self._partitions > 1:
                place = partition_of(verdict.id, self._partitions)
            value = verdict_record.encode(verdict, self.source, place if place != self._partition else None)
            self._add(topic, chosen, verdict.id, value, headers, now_ms)
            counts[verdict.verdict] += 1

    def forward(self, forwarded: Sequence[Forwarded]) -> None:
        """Add the cold requests to the cold topic."""
        topic = self._settings.cold_topic
        partition = self._topics.available(topic, self._partition % self._topics.partitions(topic))
        now_ms = self._now_ms()
        for record, due_s, secret in forwarded:
            headers = cold.encode_cold(record, self.source(record.offset), due_s, secret)
            self._add(topic, partition, record.key, record.value, headers, now_ms)
        self._counters.transaction.forwarded += len(forwarded)


def _keys_and_partitions(rows: Sequence[Row], count: int) -> tuple[Sequence[bytes | None], list[int]]:
    """Return the record keys of rows, and their partitions in a topic of ``count`` partitions."""
    try:
        texts = [row[2].encode() for row in rows]  # type: ignore[union-attr]  # nearly all keys are text
    except AttributeError:
        keys = [key if isinstance(key, bytes) else key_bytes(key) for _, _, key, _, _, _ in rows]
        return keys, partitions_for(keys, [row[0] for row in rows], count)
    return texts, partitions_of(texts, count)


def _identity(origin: Origin, source: bytes) -> list[h.Header]:
    """Return the headers that identify a timer with an origin; ``source`` is used if the origin names none."""
    return h.identity(id_bytes(origin[0]), source if origin[3] is None else origin[3].encode())
