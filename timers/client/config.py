"""The librdkafka properties of the client's producers, and librdkafka's errors as sentences."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from timers.client.times import is_number
from timers.core.printable import quoted
from timers.errors import (
    InvalidTimerError,
    PublishError,
    SettingsError,
    TimersError,
    TimerTooLargeError,
    UnacknowledgedError,
    UnreachableError,
)
from timers.kafka import connection
from timers.kafka.clients import reader
from timers.kafka.error_codes import NO_TOPIC, UNREACHABLE
from timers.kafka.lost_brokers import LostBrokers
from timers.process.config import variables
from timers.process.config.settings import Settings
from timers.process.threads import check_threads
from timers.wire import topics

if TYPE_CHECKING:
    from timers.kafka.admin_client import AdminClient

_T = TypeVar("_T")

DEFAULT_TIMEOUT_S = 30.0
LONGEST_WAIT_S = 366 * 86_400.0
"""Longest time that a call may wait: the calls of operating systems take no infinite one."""

HEADER_ROOM_BYTES = 65_536
"""Space for key and headers in addition to the request's value."""

ID_PARTITIONER = "murmur2_random"
"""The default of Java's producer. With one hash for all producers, the requests of an id are on one partition."""

_METADATA_REFRESH_MS = 60_000
_QUEUE_MESSAGES = 500_000
_QUEUE_KBYTES = 262_144

_FIXED = {
    "bootstrap.servers": "the argument brokers says where to connect",
    "metadata.broker.list": "the argument brokers says where to connect",
    "acks": "a timer counts as scheduled when all in-sync replicas have it",
    "request.required.acks": "a timer counts as scheduled when all in-sync replicas have it",
    "enable.idempotence": "without it a retry is a second timer",
    "transactional.id": "the client does not publish in transactions",
    "allow.auto.create.topics": "the worker creates the request topic, with unlimited retention",
    "partitioner": "requests are spread over all partitions whatever their key",
    "message.timeout.ms": "use the argument timeout_s",
    "delivery.timeout.ms": "use the argument timeout_s",
    "delivery.report.only.error": "use schedule_many(..., ids=False)",
}
_REACH = (
    *("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.", "https.", "oauth_cb"),
    *("broker.", "client.", "connections.", "reconnect.", "socket.", "metadata.", "debug", "log_level"),
)
"""Begins of the names of properties that say how brokers are reached. The others are those of a producer."""

_log = logging.getLogger("timers.client")
_log.addHandler(logging.NullHandler())  # the application decides where librdkafka's log goes; by default nowhere


def seconds(argument: str, value: object, least: float, most: float, example: float) -> float:
    """An argument that is a number of seconds.

    Raises:
        SettingsError: it is none, or out of range.
    """
    if not is_number(value) or not least <= value <= most:
        form = f"a number of seconds from {least:g} to {most:g} (try {example:g})"
        raise SettingsError(f"{argument}={quoted(value):.100} is not {form}")
    return float(value)


@dataclass(frozen=True)
class Connection:
    """The brokers, the request topic and the limits of a client. See :meth:`resolve`."""

    settings: Settings
    request_topic: str
    timeout_s: float
    max_request_bytes: int
    extra: Mapping[str, Any] = field(repr=False)
    """The application's own producer properties. They may contain a password."""
    reports: connection.ErrorReports = field(repr=False)

    def with_topic(self, topic: str) -> Connection:
        """The same connection for another request topic."""
        return replace(self, request_topic=topic)

    def for_ids(self) -> Connection:
        """The same connection for requests with an id.

        Raises:
            SettingsError: this request format is off.
        """
        return self.with_topic(id_topic_of(self.settings))

    @classmethod
    def resolve(
        cls,
        brokers: str | Sequence[str] | None,
        request_topic: str | None,
        producer_config: Mapping[str, Any] | None,
        timeout_s: float,
        max_request_bytes: int | None,
        id_topic: str | None = None,
    ) -> Connection:
        """A connection from the arguments of :class:`timers.client.TimersClient`; the environment replaces None.

        Raises:
            SettingsError: an argument or a setting is wrong, a property may not be set, or this process has no threads.
        """
        for name, given in (("request_topic", request_topic), ("id_topic", id_topic)):
            if given is not None and not (isinstance(given, str) and not given) and not topics.is_legal(given):
                raise SettingsError(f"{name}={quoted(given)} is not {topics.LEGAL_FORM}")
        check_threads()
        settings = Settings.load(request_topic=request_topic, needs_brokers=brokers is None)
        timeout_s = seconds("timeout_s", timeout_s, 0.1, 3600, 30)
        if producer_config is not None and not isinstance(producer_config, Mapping):
            raise SettingsError(f"producer_config is of type {type(producer_config).__name__}: give a mapping")
        extra = dict(producer_config or {})
        for name in sorted(_FIXED.keys() & extra.keys()):
            raise SettingsError(f"producer_config may not set {quoted(name)}: {_FIXED[name]}")
        limit = settings.max_request_bytes if max_request_bytes is None else max_request_bytes
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise SettingsError(f"max_request_bytes={quoted(limit):.100} is not a number of bytes, from 1 on")
        listed = isinstance(brokers, list | tuple) and all(isinstance(server, str) for server in brokers)
        if not (brokers is None or isinstance(brokers, str) or listed):
            raise SettingsError(f"brokers={quoted(brokers):.100} is not 'host:port,...' or a list of 'host:port'")
        if brokers:
            servers = brokers if isinstance(brokers, str) else ",".join(brokers)
            settings = replace(settings, brokers=variables.brokers("brokers", servers))
        settings = replace(settings, id_topic=id_topic or settings.id_topic)
        resolved = replace(cls.of(settings), timeout_s=timeout_s, max_request_bytes=limit, extra=extra)
        with suppress(KeyError, TypeError, ValueError):  # a wrong one is refused when a client is made
            resolved.reports.note_backoff(int(extra["reconnect.backoff.max.ms"]) / 1000)
        return resolved

    @classmethod
    def of(cls, settings: Settings) -> Connection:
        """A connection with these settings, and all else as by default."""
        reports = connection.ErrorReports(settings)
        return cls(settings, settings.request_topic, DEFAULT_TIMEOUT_S, settings.max_request_bytes, {}, reports)

    def producer(self, *, linger_ms: int, lost: LostBrokers | None = None, **more: Any) -> Producer:
        """An idempotent producer that spreads requests over all partitions.

        Args:
            lost: watches it. Then it must be polled all the time.
        """
        reporting, watching = self.reports.callbacks, {} if lost is None else lost.properties
        if watching:
            reporting["stats_cb"] = watching.pop("stats_cb")
        config: dict[str, Any] = {
            **self._login(),
            "client.id": "timers-client",
            "linger.ms": linger_ms,
            "message.max.bytes": self.max_request_bytes + HEADER_ROOM_BYTES,
            "queue.buffering.max.messages": _QUEUE_MESSAGES,
            "queue.buffering.max.kbytes": _QUEUE_KBYTES,
            "topic.metadata.refresh.interval.ms": _METADATA_REFRESH_MS,
            **watching,  # the application may want statistics more often
            **{name: self._guarded(name, value) for name, value in self.extra.items()},
            # An automatically created request topic would have the broker's default retention and lose timers that wait
            # longer. librdkafka documents this property for consumers, but its producer uses it too.
            "allow.auto.create.topics": False,
            "acks": "all",
            "enable.idempotence": True,
            "partitioner": "random",
            "message.timeout.ms": int(self.timeout_s * 1000),
            **{name: _call_both(ours, self._guarded(name, self.extra.get(name))) for name, ours in reporting.items()},
            **more,
        }
        return self._made(lambda: Producer(config, logger=_log))

    def consumer(self, lost: LostBrokers) -> Consumer:
        """A ``read_committed`` consumer that joins no group and commits nothing. The caller assigns its partitions.

        Args:
            lost: watches it. So it must be polled all the time.
        """
        return self._made(lambda: reader({**self._asking(), **lost.properties}, _log))

    def admin(self) -> AdminClient:
        """An admin client. Its requests create no topics."""
        from timers.kafka.admin_client import lasting  # not at the top: most clients need no admin client

        return self._made(lambda: lasting({**self._asking(), "allow.auto.create.topics": False}, _log))

    def _made(self, make: Callable[[], _T]) -> _T:
        """A client of librdkafka.

        Raises:
            SettingsError: a property is wrong.
            UnreachableError: the machine has no thread for it now, or the application's ``oauth_cb`` no token.
        """
        try:
            return make()
        except (KafkaException, ValueError, TypeError) as error:
            reason = error.args[0] if error.args else error
            if isinstance(reason, KafkaError) and reason.code() != KafkaError._INVALID_ARG:
                raise UnreachableError(f"no Kafka client can be made now: {reason.str()}") from error
            # Only names: a value may be a password.
            given = f"producer_config with {', '.join(sorted(self.extra))}"
            said = reason.str() if isinstance(reason, KafkaError) else reason
            raise SettingsError(f"{given}: {said}") from error

    def _asking(self) -> dict[str, Any]:
        """Properties of a client that sends no requests for timers: it reaches the brokers as the producers do."""
        reach = {name: self._guarded(name, value) for name, value in self.extra.items() if name.startswith(_REACH)}
        return {**self._login(), "client.id": "timers-client", **reach, **self.reports.callbacks}

    def _guarded(self, name: str, value: Any) -> Any:
        """A property of the application. What a callback raises is logged: else it would end the thread that polls, or
        come out of a call that has nothing to do with it."""
        if not callable(value):
            return value
        if name == "oauth_cb":
            return partial(self.reports.token_of_application, value)
        return _logged(name, value)

    def _login(self) -> dict[str, Any]:
        if "security.protocol" in self.extra:  # then the application's properties contain the whole login
            return {"bootstrap.servers": self.settings.brokers}
        return connection.librdkafka(self.settings)

    def partitions_of(
        self,
        client: Producer | Consumer,
        topic: str,
        timeout_s: float | None = None,
        is_over: Callable[[float], bool] = lambda _: False,
    ) -> int:
        """Number of partitions of a topic. Blocks for up to ``timeout_s``, by default that of this connection.

        Args:
            is_over: as in :func:`timers.kafka.connection.metadata`.

        Raises:
            TimersError: no broker answers or accepts the login, or the topic does not exist.
        """
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            count = connection.partitions_of(client, self.reports, topic, limit_s, is_over)
        except KafkaException as error:
            raise self.with_topic(topic).user_error(error.args[0]) from error
        if not count:
            raise self._no_topic_error(topic)
        return count

    def user_error(self, error: KafkaError, *, sent: bool = False) -> TimersError:
        """librdkafka's error as an exception whose message says what to do.

        Args:
            sent: whether a record may have reached a broker.
        """
        kind = UnacknowledgedError if sent else PublishError
        code = error.code()
        topic = self.request_topic
        if is_fatal(error):
            return kind(f"the producer cannot go on ({error.str()}): try again, which makes a new one")
        if code in UNREACHABLE:
            return self.unreachable_error(UnacknowledgedError if sent else UnreachableError)
        if code in NO_TOPIC:
            return self._no_topic_error(topic)
        if code == KafkaError.MSG_SIZE_TOO_LARGE:
            return TimerTooLargeError(
                f"the request with its headers is larger than the limit, which is {self.max_request_bytes} bytes "
                f"(TIMERS_MAX_REQUEST_BYTES) and {HEADER_ROOM_BYTES} for headers here, and max.message.bytes of topic "
                f"{topic!r} at the broker: send a reference instead of the data"
            )
        if code == KafkaError.INVALID_TIMESTAMP:
            return PublishError(
                f"the broker refuses the time of this machine's clock for topic {topic!r}: correct the clock, or set "
                "message.timestamp.type=LogAppendTime on the topic"
            )
        if code in (KafkaError.INVALID_RECORD, KafkaError.POLICY_VIOLATION):
            return InvalidTimerError(f"the broker refuses the record to {topic!r}: {error.str()} ({error.name()})")
        if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return PublishError(f"this client may not write to topic {topic!r}: it needs the ACLs WRITE and DESCRIBE")
        return kind(f"the broker did not take the request to {topic!r}: {error.str()} ({error.name()})")

    def _no_topic_error(self, topic: str) -> PublishError:
        setting = f" with TIMERS_ID_TOPIC={topic}" if topic == self.settings.id_topic else ""
        return PublishError(
            f"topic {topic!r} does not exist at {self.settings.brokers}: start a worker (or the engine on "
            f"Spark){setting}, which creates it"
        )

    def unreachable_error(
        self, kind: type[PublishError] = UnacknowledgedError, timeout_s: float | None = None
    ) -> TimersError:
        """The error when no broker answered within ``timeout_s``, by default that of this connection."""
        waited_s = self.timeout_s if timeout_s is None else timeout_s
        return self.reports.refused(kind) or kind(
            f"no broker at {self.settings.brokers} acknowledged within {waited_s:g} s: {self.reports.causes()} Has "
            "each partition a leader? What was already sent may still be taken"
        )


def is_fatal(error: KafkaError) -> bool:
    """Whether a producer cannot go on after an error. Its later calls have a code of their own."""
    return bool(error.fatal()) or error.code() == KafkaError._FATAL


def id_topic_of(settings: Settings) -> str:
    """The topic of requests with an id.

    Raises:
        SettingsError: this request format is off.
    """
    if not settings.id_topic:
        raise SettingsError(
            "TIMERS_ID_TOPIC is empty, so timers have no ids: unset it for workers and clients alike, or set it to one "
            "topic for all of them"
        )
    return settings.id_topic


def _call_both(first: Callable[[Any], None], second: Callable[[Any], Any] | None) -> Callable[[Any], None]:
    def report(event: Any) -> None:
        first(event)
        if second is not None:
            second(event)

    return report


def _logged(name: str, callback: Callable[..., Any]) -> Callable[..., Any]:
    """A callback that logs what the application's one raises, and returns None then."""

    def call(*event: Any) -> Any:
        try:
            return callback(*event)
        except Exception:
            _log.exception("%s of the application failed", name)
            return None

    return call
