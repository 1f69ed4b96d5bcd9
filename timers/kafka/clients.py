"""Factories and properties of the librdkafka clients, and the one way to wait for a producer's answers."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Collection, Mapping
from contextlib import closing
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from timers.kafka import connection
from timers.kafka.error_codes import NO_COORDINATOR, NO_TOPIC, code_of
from timers.process.config.settings import Settings
from timers.wire.dead_letter import OVERHEAD_BYTES

if TYPE_CHECKING:
    from timers.kafka.admin_client import AdminClient

TRANSACTION_TIMEOUT_MS = 10_000
"""Timeout of each transaction. An open one holds back all read_committed readers of its partitions."""

METADATA_ANSWER_S = 5.0
"""Time in which a broker answers a request for metadata."""

LIBRDKAFKA_LOG = logging.getLogger("timers.kafka.librdkafka")
"""Takes librdkafka's own log, which would otherwise go to stderr. Failures reach the caller as exceptions."""

LIBRDKAFKA_LOG.addHandler(logging.NullHandler())

_PART_S = 0.1

_COORDINATOR_MS = 10_000

_CREATE_NO_TOPICS = {"allow.auto.create.topics": False}
"""Otherwise brokers with ``auto.create.topics.enable=true`` create each topic that a request names."""


def librdkafka(settings: Settings) -> dict[str, Any]:
    """Properties of the worker's librdkafka clients. Their requests create no topics."""
    return {
        **connection.librdkafka(settings),
        **_CREATE_NO_TOPICS,
        "client.id": settings.worker_id,
        "socket.nagle.disable": True,
        # By default librdkafka waits up to 10 s between two connection attempts; timers would fire late.
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        # librdkafka would repeat the error of a failing call on stderr, up to thirty times a second.
        "log_level": 0,
    }


WATCH_GROUP = "timers-watch"
"""Group of readers that join none, whatever the app id: librdkafka requires one. Nothing is committed under it."""


def reader(properties: Mapping[str, Any], log: logging.Logger = LIBRDKAFKA_LOG, **more: Any) -> Consumer:
    """A ``read_committed`` consumer that joins no group and commits nothing. The caller assigns its partitions.

    Args:
        more: further properties, with ``_`` instead of ``.`` in their names.
    """
    config = {
        "group.id": WATCH_GROUP,
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 100,
        **properties,
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    return Consumer(config, logger=log)


def span_reader(settings: Settings, reports: connection.ErrorReports) -> Consumer:
    """A reader for :func:`timers.kafka.records.read`.

    Brokers keep a request for records at the end of a partition only for 10 ms: reading waits for it in each partition.
    """
    properties = {**connection.librdkafka(settings), **reports.callbacks}
    return reader(properties, enable_partition_eof=True, fetch_wait_max_ms=10)


def note_offsets(
    properties: Mapping[str, Any], group: str, places: Collection[TopicPartition], timeout_s: float = 0.0
) -> None:
    """Commit offsets in a group without members. Brokers forget them after seven days, so they are to be noted anew.

    Args:
        timeout_s: how long to try again while no broker coordinates the group.

    Raises:
        KafkaException: the group cannot be used, or not for the topic of one of the places.
    """
    begun_s = monotonic()
    # The session time-out is also the time for which a commit waits for a coordinator.
    with closing(reader(properties, group_id=group, session_timeout_ms=_COORDINATOR_MS)) as consumer:
        while True:
            try:
                for place in consumer.commit(offsets=[*places], asynchronous=False) or ():
                    # librdkafka raises only if all partitions have failed. For a topic that was deleted, there is
                    # nothing to note.
                    if place.error is not None and place.error.code() not in NO_TOPIC:
                        raise KafkaException(place.error)
                return
            except KafkaException as error:
                if code_of(error) not in NO_COORDINATOR or monotonic() - begun_s >= timeout_s:
                    raise
            sleep(_PART_S)


def asking_admin(settings: Settings, reports: connection.ErrorReports | None = None) -> AdminClient:
    """An admin client of the worker that asks another broker after one was silent for :data:`METADATA_ANSWER_S`.

    By default librdkafka waits for 60 s, and meanwhile it prefers the broker that it asked last. It may live as long as
    the worker, so it reads certificates, keys and authorities again when their files change.
    """
    from timers.kafka.admin_client import lasting  # not at the top: the client library does not need this import

    config = {**librdkafka(settings), "socket.timeout.ms": int(METADATA_ANSWER_S * 1000)}
    if reports is not None:
        config.update(reports.callbacks)
    admin = lasting(config, files=connection.tls_files(settings))
    if reports is not None:
        reports.serve = lambda: admin.poll(0)
    return admin


def admin_client(settings: Settings, reports: connection.ErrorReports, silent_s: float = 60.0) -> AdminClient:
    """An admin client for a command, a job or a queue. Its requests create no topics. A broker that is silent for
    ``silent_s`` is left for another one."""
    from timers.kafka.admin_client import lasting  # not at the top: the client library does not need this import

    config = {
        **connection.librdkafka(settings),
        **_CREATE_NO_TOPICS,
        **reports.callbacks,
    }
    config["socket.timeout.ms"] = int(silent_s * 1000)
    found = lasting(config, LIBRDKAFKA_LOG)
    alive = weakref.ref(found)  # no cycle: the client is freed with its owner

    def serve() -> None:
        if (client := alive()) is not None:
            client.poll(0)

    reports.serve = serve
    return found


def flush(producer: Producer, timeout_s: float) -> int:
    """Wait for the answers to all that was produced; return how many records have none.

    ``Producer.flush`` must not be used: it asks librdkafka in parts of 0.2 s, and goes on after a part that has raised
    the exception of a fatal error. A report of a later part runs while that exception is pending, and what comes out of
    it is caught by no ``except`` of Python 3.11, so it ends the process. ``Producer.poll`` is the same from 0.2 s on.

    Raises:
        KafkaException: a fatal error, once.
    """
    deadline = monotonic() + timeout_s
    while True:
        left_s = deadline - monotonic()
        left = producer.flush(min(max(left_s, 0.0), _PART_S))
        if not left or left_s <= _PART_S:
            return int(left)


def max_message_bytes(settings: Settings) -> int:
    """Largest record that the project's own topics and producers take: the largest request and what is added to it."""
    return settings.max_request_bytes + OVERHEAD_BYTES
