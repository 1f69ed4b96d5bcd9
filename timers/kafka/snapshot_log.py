"""Writes snapshots to their topic, and reads them (:mod:`timers.wire.snapshot`).

A snapshot is one stretch of one partition. Records of other attempts may lie in between.

Only an answer of the brokers makes a snapshot unreadable. Silence, a partition without a leader and a missing right are
waited for: else an election would stop a partition whose log no longer begins at 0 for good.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from time import monotonic, sleep

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from timers.core.ports import Lost, Page, View
from timers.core.progress import NamedSnapshot
from timers.core.snapshots import SNAPSHOT_CHUNK_BYTES, Footer, Unreadable, bytes_of_snapshot
from timers.kafka.clients import LIBRDKAFKA_LOG, METADATA_ANSWER_S, asking_admin, librdkafka, reader
from timers.kafka.connection import answer, give_up_at
from timers.kafka.error_codes import code_of
from timers.kafka.records import read
from timers.kafka.topic_admin import identity
from timers.kafka.topics import ensure_snapshots, topic_id
from timers.process.config.settings import Settings
from timers.wire import snapshot
from timers.wire.topics import is_legal, partition_name

logger = logging.getLogger(__name__)

UNACKNOWLEDGED_S = 60.0
"""A snapshot with a record that is not acknowledged within this time is given up: the next partition has its turn."""

WAITING_BYTES = 4 * 1024 * 1024
"""Memory of records that wait to be sent, or to be restored."""

RECORD_BYTES = SNAPSHOT_CHUNK_BYTES + 1024
"""Largest record of a snapshot, without compression."""

ANEW_S = 60.0
"""Seconds without an answer after which the reader of a log is made anew: it may have lost the addresses of all brokers
(:mod:`timers.kafka.lost_brokers`)."""

_POLL_S = 0.1
_AGAIN_S = 1.0

_GONE = KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE
_ANSWERS = {
    **dict.fromkeys(_GONE, "has lost its records"),
    KafkaError._BAD_MSG: "has a damaged record",
    KafkaError._BAD_COMPRESSION: "has a damaged record",
    KafkaError.INVALID_MSG: "has a damaged record",
}
"""Errors that are answers about the records; all others are waited for. Whether the topic exists, only its id says:
librdkafka knows no partition also while it has no leader."""


class Unwritten(Exception):
    """A snapshot was given up. What was written of it is skipped by all readers."""


class _Sending:
    """One snapshot on its way to the brokers."""

    def __init__(
        self, settings: Settings, to: tuple[str, int], number: int, bytes_per_s: float, check: Callable[[], None]
    ) -> None:
        (self._topic, self._partition), self._number, self._bytes_per_s, self._check = to, number, bytes_per_s, check
        self._began, self._bytes, self._sent = monotonic(), 0, 0
        self._offsets: list[int] = []
        self._failure: KafkaError | None = None
        config = {
            **librdkafka(settings),
            "error_cb": self._note_error,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "message.max.bytes": RECORD_BYTES,
            "message.timeout.ms": int(UNACKNOWLEDGED_S * 1000),
            # librdkafka waits this long for the metadata of a topic that it does not find (by default 30 s). After
            # that, a deleted topic is an error.
            "topic.metadata.propagation.max.ms": 3000,
            "queue.buffering.max.kbytes": WAITING_BYTES // 1024,
            "linger.ms": 5,
        }
        self._producer = Producer(config, logger=LIBRDKAFKA_LOG)

    def _note_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._failure = error

    def _note(self, error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        if error is not None:
            self._failure = error
        elif offset is None or (self._offsets and offset <= self._offsets[-1]):
            # An unclean election took all records of the snapshot so far, so a footer would name records that are gone.
            # Or a broker had the record before, and librdkafka (rdkafka_request.c, DUPLICATE_SEQUENCE_NUMBER) does not
            # know its offset.
            self._failure = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
        else:
            self._offsets.append(offset)

    def send(self, value: bytes) -> None:
        """Send the next record, not faster than the limit."""
        key = snapshot.record_key(self._number, self._sent)
        self._sent += 1
        self._bytes += len(value)
        while True:
            try:
                self._producer.produce(self._topic, value, key, self._partition, on_delivery=self._note)
                break
            except BufferError:
                self._wait(_POLL_S)
        while (ahead_s := self._began + self._bytes / self._bytes_per_s - monotonic()) > 0:
            self._wait(min(ahead_s, _POLL_S))
        self._wait(0)

    def _wait(self, seconds: float) -> None:
        self._producer.poll(seconds)
        self._check()
        if self._failure is not None:
            raise KafkaException(self._failure)

    def finish(self) -> tuple[int, int]:
        """Wait for all acknowledgements. Returns the offsets of the first and of the last record."""
        while len(self._offsets) < self._sent:
            self._wait(_POLL_S)
        return min(self._offsets), max(self._offsets)

    @property
    def has_offsets(self) -> bool:
        """Whether brokers have acknowledged a record."""
        return bool(self._offsets)

    def end(self) -> None:
        """Drop what was not sent."""
        self._producer.purge()
        self._producer.poll(0)


class SnapshotLog:
    """The snapshots of one partition, as :class:`timers.core.snapshots.Snapshots`. Used by one thread. Close it.

    Args:
        partition: of this topic; the attribute may be changed between two calls.
        check: called about ten times a second while it works; may raise to stop.
        patience_s: how long to wait for the next record. After that, reading raises Lost.

    Attributes:
        damaged: :meth:`whole` has skipped records that cannot be read.
        has_written: brokers have records of a snapshot that :meth:`write` has begun.
    """

    def __init__(
        self,
        settings: Settings,
        topic: str,
        partition: int,
        check: Callable[[], None],
        patience_s: float = inf,
    ) -> None:
        self._settings, self._topic, self.partition, self._check = settings, topic, partition, check
        self._patience_s, self._silent_since = patience_s, inf
        self._waits_for, self.damaged, self.has_written = "", False, False
        self._admin = asking_admin(settings)
        self._open_reader()

    def _open_reader(self) -> None:
        self._made_at = monotonic()
        self._consumer = reader(
            {**librdkafka(self._settings), "error_cb": lambda error: None},
            isolation_level="read_uncommitted",
            auto_offset_reset="error",
            enable_partition_eof=True,
            check_crcs=True,
            queued_max_messages_kbytes=WAITING_BYTES // 1024,
            fetch_queue_backoff_ms=10,  # by default librdkafka pauses for 1 s each time its queue is full
        )

    @property
    def _name(self) -> str:
        return partition_name(self._topic, self.partition)

    def close(self) -> None:
        self._consumer.close()

    def prepare(self, request_topic: str) -> list[str]:
        """Create the topic if it is missing. Call it before :meth:`write`.

        Returns:
            What is wrong with its configuration, in sentences. Then no former snapshot should be deleted.

        Raises:
            Unwritten: it cannot be created, or the brokers do not answer.
        """
        if not is_legal(self._topic):
            raise Unwritten(f"{self._topic!r} would be the topic of snapshots, and its name is too long for Kafka")
        try:
            return ensure_snapshots(self._admin, self._settings, request_topic, self._topic)
        except KafkaException as error:
            why = error.args[0].str()
            raise Unwritten(f"the topic of snapshots {self._topic!r} cannot be looked at or created: {why}") from error

    def write(self, view: View, footer: Callable[[int, bytes], Footer], bytes_per_s: float) -> NamedSnapshot:
        """Write a snapshot, and wait until all in-sync replicas have all of it. Blocks.

        Its producer is its own, so no other producer waits for it. It needs no transaction: nothing reads a snapshot
        that no progress names.

        Args:
            view: what to write; the caller closes it.
            footer: returns the footer for a number of keys and their digest.
            bytes_per_s: how fast.

        Raises:
            Unwritten: the topic does not exist, or the brokers refuse it or do not answer.
        """
        number = int.from_bytes(os.urandom(8))
        sending = _Sending(self._settings, (self._topic, self.partition), number, bytes_per_s, self._check)
        encoder = snapshot.Encoder(view)
        try:
            known = topic_id(self._admin, self._topic, METADATA_ANSWER_S)
            if known is None:
                raise Unwritten(f"the topic of snapshots {self._topic!r} does not exist")
            for value in encoder:
                sending.send(value)
            end = footer(encoder.keys, encoder.digest)
            sending.send(snapshot.encode_footer(end))
            first, last = sending.finish()
            if topic_id(self._admin, self._topic, METADATA_ANSWER_S) != known:
                raise Unwritten(f"the topic of snapshots {self._topic!r} was made anew meanwhile")
        except KafkaException as error:
            raise Unwritten(f"{self._name} takes no snapshot: {error.args[0].str()}") from error
        finally:
            self.has_written = sending.has_offsets
            sending.end()
        return NamedSnapshot(known, number, first, last + 1, end.applied, end.keys, end.rows, end.digest)

    def footer(self, named: NamedSnapshot) -> Footer:
        """See :class:`timers.core.snapshots.Snapshots`. A log loses its end first: with the footer all is there."""
        return snapshot.decode_footer(self._last(named).value())

    def written_ms(self, named: NamedSnapshot) -> int:
        """When a snapshot was complete, in epoch milliseconds of the brokers' clock. Raises as :meth:`footer`."""
        return int(self._last(named).timestamp()[1])

    def unnamed_bytes(self, named: Sequence[NamedSnapshot]) -> int:
        """Bytes of records from the first of these snapshots on that belong to none of them, rounded up to whole
        records; 0 if former ones are still there: then the next one lets nothing be deleted, either.

        Raises:
            KafkaException: the brokers do not answer.
        """
        place = TopicPartition(self._topic, self.partition)
        low, high = self._consumer.get_watermark_offsets(place, timeout=METADATA_ANSWER_S, cached=False)
        if low < min(each.first_offset for each in named):
            return 0
        return max(0, (high - low) * SNAPSHOT_CHUNK_BYTES - sum(map(bytes_of_snapshot, named)))

    def _last(self, named: NamedSnapshot) -> Message:
        self._look(named)
        for message in self._messages(named.end_offset - 1, named.end_offset, named):
            if (snapshot.parse_key(message.key()) or (None,))[0] == named.number:
                return message
        raise Unreadable(f"{self._name} has no footer of it at offset {named.end_offset - 1}")

    def pages(self, named: NamedSnapshot) -> Iterable[Page]:
        """See :class:`timers.core.snapshots.Snapshots`."""
        messages = self._messages(named.first_offset, named.end_offset, named)
        return snapshot.pages(((message.key(), message.value()) for message in messages), named)

    def whole(self) -> Iterator[tuple[NamedSnapshot, Footer]]:
        """Yields each snapshot of which all records are there, and its footer. Reads all of the partition.

        Damaged records are skipped, and with them their snapshots: see :attr:`damaged`.

        Raises:
            Lost: records were deleted meanwhile.
        """
        while True:
            try:
                known, partitions = identity(self._admin, self._topic, METADATA_ANSWER_S) or (b"", 0)
                if self.partition >= partitions:
                    return  # the request topic was given more partitions: there is no snapshot of this one yet
                place = TopicPartition(self._topic, self.partition)
                low, high = self._consumer.get_watermark_offsets(place, timeout=METADATA_ANSWER_S, cached=False)
                break
            except KafkaException as error:
                self._wait_after(error)
        begun: dict[int, tuple[int, int]] = {}  # number -> its first offset, and the next index
        for message in self._sound(low, high):
            number, index = snapshot.parse_key(message.key()) or (0, -1)
            offset = message.offset() or 0
            first, expected = (offset, 0) if index == 0 else begun.get(number, (0, -1))
            begun[number] = first, expected + 1 if index == expected else -1
            if index != expected or not snapshot.is_footer(message.value()):
                continue
            with contextlib.suppress(Unreadable):
                end = snapshot.decode_footer(message.value())
                yield NamedSnapshot(known, number, first, offset + 1, end.applied, end.keys, end.rows, end.digest), end

    def has_footer(self, named: NamedSnapshot) -> bool:
        """Whether a snapshot is whole, by its footer."""
        try:
            self.footer(named)
        except Unreadable:
            return False
        return True

    def delete_before(self, offset: int) -> None:
        """Delete the records before an offset.

        Raises:
            KafkaException: the brokers do not answer, or refuse.
        """
        for deleted in self._admin.delete_records([TopicPartition(self._topic, self.partition, offset)]).values():
            answer(deleted, give_up_at(METADATA_ANSWER_S))

    def _look(self, named: NamedSnapshot) -> None:
        """Compare what the progress says with the topic, which a user may have deleted or made anew."""
        while True:
            try:
                known = topic_id(self._admin, self._topic, METADATA_ANSWER_S)
                if known != named.topic_id:
                    self._silent_since = inf
                    what = "does not exist" if known is None else f"was made anew: its id is {known.hex()}"
                    raise Unreadable(f"the topic of snapshots {self._topic!r} {what}")
                place = TopicPartition(self._topic, self.partition)
                low, high = self._consumer.get_watermark_offsets(place, timeout=METADATA_ANSWER_S, cached=False)
                if not low <= named.first_offset <= named.end_offset <= high:
                    self._silent_since = inf  # this is an answer
                    theirs = f"{named.first_offset} to {named.end_offset - 1}"
                    raise Unreadable(f"{self._name} has the offsets {low} to {high - 1}, and not all of {theirs}")
                return
            except KafkaException as error:
                self._wait_after(error)

    def _wait_after(self, error: KafkaException) -> None:
        """Wait before the next attempt, unless the error is an answer.

        Raises:
            Lost: no record came for as long as its patience.
        """
        code, text = code_of(error), error.args[0].str()
        if code in _ANSWERS:
            raise Unreadable(f"{self._name} {_ANSWERS[code]} ({text})") from error
        if self._waits_for != text:
            self._waits_for = text
            logger.warning("%s: a snapshot cannot be read now (%s); waiting", self._name, text)
        self._silent_since = min(self._silent_since, monotonic())
        if monotonic() - self._silent_since > self._patience_s:
            raise Lost(f"{self._name} cannot be read for {self._patience_s:.0f} s ({text})") from error
        if monotonic() - max(self._silent_since, self._made_at) > ANEW_S:  # see lost_brokers
            self._consumer.close()
            self._open_reader()
        until = monotonic() + _AGAIN_S
        self._check()
        while monotonic() < until:
            sleep(_POLL_S)
            self._check()

    def _sound(self, position: int, end: int) -> Iterator[Message]:
        """The records that can be read. A gap is left where one cannot: its snapshot is not whole."""
        while position < end:
            try:
                for message in self._messages(position, end):
                    position = (message.offset() or 0) + 1
                    yield message
                return
            except Unreadable as error:
                if isinstance(error.__cause__, KafkaException) and code_of(error.__cause__) in _GONE:
                    raise Lost(f"{error} meanwhile") from error  # the next opening asks where the topic begins and ends
                self._check()
                if not self.damaged:
                    logger.warning("offset %d or later: %s; its snapshot is skipped", position, error)
                self.damaged = True
                position += 1

    def _messages(self, position: int, end: int, named: NamedSnapshot | None = None) -> Iterator[Message]:
        while position < end:
            try:
                place = self._consumer, self._topic, self.partition
                for message in read(*place, position, end, timeout_s=METADATA_ANSWER_S, while_waiting=self._check):
                    self._silent_since = inf
                    yield message
                    position = (message.offset() or 0) + 1
                    self._check()
                return
            except KafkaException as error:
                self._wait_after(error)
                if named is not None:
                    self._look(named)  # a partition that has lost its end is silent
