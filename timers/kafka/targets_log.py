"""Reads and writes the topic of targets: what operators want of callback topics (:mod:`timers.wire.targets`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from random import random
from time import monotonic, sleep

from aiokafka.errors import OffsetOutOfRangeError
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from timers.errors import TimersError, UnacknowledgedError
from timers.kafka import connection, records
from timers.kafka.aiokafka_internals.leader_client import LeaderClient, NewestCommitted
from timers.kafka.clients import span_reader
from timers.kafka.error_codes import FENCED, NOT_ALLOWED, code_of
from timers.kafka.records import Record, TransactionalWriter
from timers.process.config.settings import Settings
from timers.wire import targets as wire
from timers.wire import topics
from timers.wire.targets import TARGETS_PARTITION, Target, Targets

TARGETS_LOOK_S = 1.0
"""Seconds for which a request of a worker waits for a new command, and between two looks or tries."""

TARGETS_START_WAIT_S = 5.0
"""Longest time for which a worker that starts waits for the commands, before it opens machines."""

TARGETS_ANSWER_S = 5.0
"""Longest time for which the leader may be silent."""

WHOLE_S = 30.0
"""Seconds after which the topic is read from its beginning again. It is small. So no position counts for longer, if the
topic lost its end, or was made anew, and has grown again."""

MAX_RECORD_BYTES = 64 * 1024

FENCED_S = 30.0
"""Seconds after which a command is given up that others have fenced again and again."""

AGAIN_S = 0.5
"""Longest pause before a command is given again that another one has fenced."""


class TargetsReader:
    """Reads the topic for a worker: all that is there, and then what is added. On one event loop.

    Args:
        client: asks its leader, on connections of its own: at the end of the log a request waits for a record.
    """

    def __init__(self, client: LeaderClient, topic: str) -> None:
        self._client, self._place = client, (topic, TARGETS_PARTITION)
        self._newest: NewestCommitted | None = None
        self._began_at = 0.0
        self._found, self._decoded_to = Targets({}, {}), -1

    async def look(self, wait_s: float) -> Targets | None:
        """Returns what the topic says, after its end was reached; None while it has no leader.

        Args:
            wait_s: seconds to wait for a record, if none is new.

        Raises:
            KafkaError: its leader does not answer, or a batch is damaged.
        """
        await self._client.connect({self._place[0]})
        leader = self._client.leader_of(*self._place)
        if leader is None:
            return None
        newest, is_whole = self._newest, False
        if newest is None or monotonic() - self._began_at > WHOLE_S:
            low, _ = await self._client.ends(leader, self._place)
            newest, is_whole, self._began_at = NewestCommitted(None, low), True, monotonic()
        try:
            while True:
                position = newest.position
                fetched = await self._client.fetch(leader, self._place, position, wait_s=0 if is_whole else wait_s)
                newest.add(fetched.data)
                if newest.position == position:  # compaction has removed the records there
                    newest.position = max(position, fetched.end)
                if newest.position >= fetched.end:
                    break
                wait_s = 0
        except OffsetOutOfRangeError:  # the topic lost its end, or was made anew
            self._newest = None
            raise
        if newest is not self._newest or newest.position != self._decoded_to:
            self._found, self._decoded_to = wire.decode_all(newest.values), newest.position
        self._newest = newest
        return self._found


def read(settings: Settings, reports: connection.ErrorReports, timeout_s: float = connection.CALL_TIMEOUT_S) -> Targets:
    """Return what the topic says. Blocks.

    Raises:
        KafkaException: the brokers do not answer, or there is no such topic.
    """
    values: dict[bytes, bytes] = {}
    topic = settings.targets_topic
    with closing(span_reader(settings, reports)) as consumer:
        low, end = consumer.get_watermark_offsets(
            TopicPartition(topic, TARGETS_PARTITION), timeout=timeout_s, cached=False
        )
        for message in records.read(consumer, topic, TARGETS_PARTITION, low, end, timeout_s=timeout_s):
            values[message.key() or b""] = message.value() or b""
    return wire.decode_all(values)


def write_command(
    settings: Settings, reports: connection.ErrorReports, prepare: Callable[[], Callable[[Targets], Target]]
) -> None:
    """Write one command, and return when the brokers have it. Blocks.

    No two commands have the same number: each one reads the topic after it has fenced those that began before. A
    request that is refused fences none.

    Args:
        prepare: called once. Returns what makes the command of what the topic says; what it made last is written.

    Raises:
        UnacknowledgedError: the brokers did not answer: they may have the command.
        TimersError: other commands have fenced this one for :data:`FENCED_S`.
        KafkaException: the brokers do not answer, or refuse; nothing was changed.
    """
    make = prepare()
    make(read(settings, reports))
    until = monotonic() + FENCED_S
    while True:
        try:
            writer = _writer(settings, reports)
            found = read(settings, reports)
            target = make(found)
            _write(settings, reports, writer, target, found)
        except KafkaException as error:
            if code_of(error) not in FENCED:
                raise
            if monotonic() > until:
                raise TimersError(
                    f"for {FENCED_S:.0f} s, other commands about callback topics were given at the same time; this one "
                    "was not given: try again"
                ) from None
            sleep(random() * AGAIN_S)  # another command was given at the same moment
        else:
            return


def _write(
    settings: Settings, reports: connection.ErrorReports, writer: TransactionalWriter, target: Target, found: Targets
) -> None:
    # Keys that are no legal topic names are deleted here: no other command would replace them.
    values = [wire.encode(target), *((key, None) for key in found.keys)]
    try:
        with writer.transaction() as send:
            send([Record(settings.targets_topic, TARGETS_PARTITION, key, value, []) for key, value in values])
    except KafkaException as error:
        # If a transaction is refused, librdkafka gives its waiting records this error.
        if code_of(error) in {*FENCED, *NOT_ALLOWED, KafkaError._PURGE_QUEUE}:
            raise
        with reports.explained(f"topic {settings.targets_topic!r} did not take the command", UnacknowledgedError):
            raise


def _writer(settings: Settings, reports: connection.ErrorReports) -> TransactionalWriter:
    properties = {**connection.librdkafka(settings), **reports.callbacks}
    return TransactionalWriter(properties, topics.commander_id(settings.app_id), MAX_RECORD_BYTES)
