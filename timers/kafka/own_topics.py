"""The topics that a worker needs, and the configuration that each must have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from confluent_kafka.admin import AclOperation

from timers.config.settings import Settings
from timers.kafka.clients import max_message_bytes

UNLIMITED = "-1"

TIMESTAMP_TYPE = "message.timestamp.type"
LOG_APPEND_TIME = "LogAppendTime"

SMALL_SEGMENTS = {"segment.bytes": "8388608", "min.cleanable.dirty.ratio": "0.1"}
"""Of a compacted topic that is read as a whole: only closed segments are compacted."""

_READ, _WRITE = AclOperation.READ, AclOperation.WRITE


@dataclass(frozen=True)
class OwnTopic:
    """A topic that the worker needs."""

    name: str
    config: dict[str, str]
    operations: tuple[Any, ...]
    """ACL operations that the worker needs, in addition to Describe and DescribeConfigs."""
    needs_append_time: bool = False
    """The times of its records decide when timers fire, so the broker must set them."""
    needs_all_records: bool = False
    """If retention deletes a record, a timer is lost."""
    must_fit_requests: bool = False
    """It must take the largest request: a record that does not fit stops its partition."""
    warn_only: bool = False
    """The worker warns about the configuration of an existing topic and does not change it: its producers own it."""
    must_exist: bool = False
    """Its users create and configure it. The worker does not create it, and warns about its configuration only."""
    must_last: bool = False
    """If its records are lost with a broker, a promise is broken."""

    @property
    def is_users(self) -> bool:
        """Whether users decide about its configuration."""
        return self.warn_only or self.must_exist


def _request_config(settings: Settings) -> dict[str, str]:
    """Configuration of a topic of requests: unlimited retention, the brokers' time, room for the largest request."""
    return {
        "cleanup.policy": "delete",
        TIMESTAMP_TYPE: LOG_APPEND_TIME,
        "retention.ms": UNLIMITED,
        "retention.bytes": UNLIMITED,
        "max.message.bytes": str(max_message_bytes(settings)),
    }


def own_topics(settings: Settings) -> list[OwnTopic]:
    """Every topic that the worker needs."""
    requests = _request_config(settings)
    short_lived = {
        "cleanup.policy": "delete",
        TIMESTAMP_TYPE: LOG_APPEND_TIME,
        "retention.ms": "3600000",
        "segment.ms": "600000",
    }
    request_operations: tuple[Any, ...] = (_READ, _WRITE) if settings.canary_interval_s else (_READ,)
    canary = [OwnTopic(settings.canary_topic, short_lived, (_READ, _WRITE))] if settings.canary_interval_s else []
    return [
        _kept_requests(settings.request_topic, requests, request_operations),
        *_more_formats(settings, requests),
        _kept_requests(settings.retry_topic, requests, (_READ, _WRITE)),
        OwnTopic(
            settings.oscillator_topic,
            short_lived,
            (_READ, _WRITE),
            needs_append_time=True,
        ),
        OwnTopic(
            settings.progress_topic, {"cleanup.policy": "compact", **SMALL_SEGMENTS}, (_READ, _WRITE), must_last=True
        ),
        OwnTopic(
            settings.dead_letter_topic,
            {
                "cleanup.policy": "delete",
                "retention.ms": UNLIMITED,
                "retention.bytes": UNLIMITED,
                "max.message.bytes": str(max_message_bytes(settings)),
            },
            (_WRITE,),
            must_last=True,
        ),
        *_cold_topic(settings),
        *canary,
        *(
            OwnTopic(topic, {}, (_READ, _WRITE), must_exist=True, needs_all_records=True, must_last=True)
            for topic in settings.schedule_topics
        ),
    ]


def _kept_requests(
    name: str, config: dict[str, str], operations: tuple[Any, ...], *, warn_only: bool = False
) -> OwnTopic:
    """A topic of requests that are read again, and whose times decide."""
    return OwnTopic(
        name, config, operations, needs_append_time=True, needs_all_records=True, warn_only=warn_only, must_last=True
    )


def _cold_topic(settings: Settings) -> list[OwnTopic]:
    """The topic of timers that are due beyond the horizon. Records are kept until `timers spark hold` has read them,
    and the largest request of a request topic must fit, with the headers that are added to it."""
    if not settings.hot_horizon_s:
        return []
    config = _request_config(settings)
    cold = OwnTopic(
        settings.cold_topic, config, (_WRITE,), needs_all_records=True, must_fit_requests=True, must_last=True
    )
    return [cold]


def _more_formats(settings: Settings, requests: dict[str, str]) -> list[OwnTopic]:
    topics = []
    if settings.id_topic:
        topics.append(_kept_requests(settings.id_topic, requests, (_READ,)))
    if settings.countdown_topic:  # a countdown begins at the time of its record
        topics.append(_kept_requests(settings.countdown_topic, requests, (_READ,), warn_only=True))
    if settings.marker_topic:  # the deadline of a message follows from the time of its marker
        topics.append(_kept_requests(settings.marker_topic, requests, (_READ, _WRITE), warn_only=True))
    if settings.has_ids:
        topics.append(OwnTopic(settings.verdict_topic, {"cleanup.policy": "delete"}, (_WRITE,)))
    return topics
