"""Which topics a worker needs, and what each must be like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]

from timers.config.settings import Settings
from timers.kafka.clients import max_message_bytes

UNLIMITED = "-1"

TIMESTAMP_TYPE = "message.timestamp.type"
LOG_APPEND_TIME = "LogAppendTime"

_READ, _WRITE = AclOperation.READ, AclOperation.WRITE


@dataclass(frozen=True)
class OwnTopic:
    """One topic of ours and what it must be like."""

    name: str
    config: dict[str, str]
    operations: tuple[Any, ...]
    """What the worker does there, beside describing it and its configuration."""
    needs_append_time: bool = False
    """Its record times decide when timers fire: they must be the broker's."""
    needs_all_records: bool = False
    """Losing a record to retention loses a timer."""
    needs_room: bool = False
    """A record that does not fit there stops its partition."""
    theirs: bool = False
    """Once it is there it is its producers': what it lacks is said, and nothing of it changed."""
    must_exist: bool = False
    """Its users make it, as they like: it is neither made nor judged."""


def _of_requests(settings: Settings) -> dict[str, str]:
    """Of a topic that keeps requests: all of them, in the brokers' time, as large as they may be."""
    return {
        "cleanup.policy": "delete",
        TIMESTAMP_TYPE: LOG_APPEND_TIME,
        "retention.ms": UNLIMITED,
        "retention.bytes": UNLIMITED,
        "max.message.bytes": str(max_message_bytes(settings)),
    }


def own_topics(settings: Settings) -> list[OwnTopic]:
    """Every topic the worker needs."""
    requests = _of_requests(settings)
    passing = {
        "cleanup.policy": "delete",
        TIMESTAMP_TYPE: LOG_APPEND_TIME,
        "retention.ms": "3600000",
        "segment.ms": "600000",
    }
    asks: tuple[Any, ...] = (_READ, _WRITE) if settings.canary_interval_s else (_READ,)
    canary = [OwnTopic(settings.canary_topic, passing, (_READ, _WRITE))] if settings.canary_interval_s else []
    return [
        OwnTopic(settings.request_topic, requests, asks, needs_append_time=True, needs_all_records=True),
        *_more_formats(settings, requests),
        OwnTopic(settings.retry_topic, requests, (_READ, _WRITE), needs_append_time=True, needs_all_records=True),
        OwnTopic(
            settings.oscillator_topic,
            passing,
            (_READ, _WRITE),
            needs_append_time=True,
        ),
        # Small segments: only closed ones are compacted, and a new owner may have to read what is not.
        OwnTopic(
            settings.progress_topic,
            {"cleanup.policy": "compact", "segment.bytes": "8388608", "min.cleanable.dirty.ratio": "0.1"},
            (_READ, _WRITE),
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
        ),
        *_cold_topic(settings),
        *canary,
        *(OwnTopic(topic, {}, (_READ, _WRITE), must_exist=True) for topic in settings.schedule_topics),
    ]


def _cold_topic(settings: Settings) -> list[OwnTopic]:
    """Where timers go that are due beyond the horizon: kept until `timers spark hold` has them, however long that is
    away. A request as large as its own topic allows must fit, with what is added to it."""
    if not settings.hot_horizon_s:
        return []
    config = _of_requests(settings)
    return [OwnTopic(settings.cold_topic, config, (_WRITE,), needs_all_records=True, needs_room=True)]


def _more_formats(settings: Settings, requests: dict[str, str]) -> list[OwnTopic]:
    """What request formats need that are open only if their topic is set."""
    topics = []
    if settings.id_topic:
        topics.append(OwnTopic(settings.id_topic, requests, (_READ,), needs_append_time=True, needs_all_records=True))
    if settings.countdown_topic:
        # Its countdowns begin at the time of their record, whoever that is from.
        topics.append(
            OwnTopic(
                settings.countdown_topic,
                requests,
                (_READ,),
                needs_append_time=True,
                needs_all_records=True,
                theirs=True,
            )
        )
    if settings.has_ids:
        topics.append(OwnTopic(settings.verdict_topic, {"cleanup.policy": "delete"}, (_WRITE,)))
    return topics
