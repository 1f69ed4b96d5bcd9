"""The request formats, and the topics on which each of them is taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from timers.config.settings import Settings
from timers.core.delivery import Delivery, RetryDelivery, ScheduleDelivery
from timers.wire import future
from timers.wire.formats import RequestFormat, countdown, future_by_id, schedule


class Kind(NamedTuple):
    """A kind of request format."""

    request_format: RequestFormat
    env: str
    """The setting that names its topics, and so opens it."""
    topics: Callable[[Settings], Sequence[str]]
    """Empty while it is closed."""
    takes: str
    """What its records are, for people."""
    settings: Sequence[str] = ()
    """Others that concern it alone."""


def _one(topic: str) -> Sequence[str]:
    return [topic] if topic else []


NATIVE = RequestFormat("future", future.decode, future.rebuild_request, allows_cold_tier=True)

REQUEST_FORMATS = (
    Kind(
        NATIVE,
        "TIMERS_REQUEST_TOPIC",
        lambda settings: _one(settings.request_topic),
        "key = due epoch second, value = Future",
    ),
    Kind(
        RequestFormat(
            "future-by-id",
            future_by_id.decode,
            future_by_id.rebuild_request,
            has_ids=True,
            allows_cold_tier=True,
            republish_unchanged=False,
        ),
        "TIMERS_ID_TOPIC",
        lambda settings: _one(settings.id_topic),
        "key = id, header timer-due = due epoch second, value = Future or null",
        ("TIMERS_VERDICT_TOPIC", "TIMERS_VERDICT_RETENTION_S"),
    ),
    Kind(
        RequestFormat(
            "countdown",
            countdown.decode,
            countdown.rebuild_request,
            has_ids=True,
            partitions_may_increase=True,
            republish_unchanged=False,
        ),
        "TIMERS_COUNTDOWN_TOPIC",
        lambda settings: _one(settings.countdown_topic),
        "value = JSON with topic, message and countdown in seconds",
        ("TIMERS_VERDICT_TOPIC", "TIMERS_VERDICT_RETENTION_S"),
    ),
    Kind(
        RequestFormat(
            "schedule",
            schedule.decode,
            schedule.rebuild_request,
            has_ids=True,
            topic_is_compacted=True,
            decode_rejecting_overdue=schedule.decode_rejecting_overdue,
        ),
        "TIMERS_SCHEDULE_TOPICS",
        lambda settings: settings.schedule_topics,
        "headers scheduler-epoch, -target-topic and -target-key, as kafka-message-scheduler has them",
        ("TIMERS_SCHEDULE_OVERDUE",),
    ),
)
"""Every request format that others may write to. The first one is always open."""


def enabled_formats(settings: Settings) -> dict[str, RequestFormat]:
    """Topic -> its request format. The retry topic is one too, though only this app's own transactions write there."""
    retry = RequestFormat("retry", future.decode_retry, future.rebuild_request)
    others = {topic: kind.request_format for kind in REQUEST_FORMATS for topic in kind.topics(settings)}
    return {settings.request_topic: NATIVE, settings.retry_topic: retry, **others}


def delivery_of(settings: Settings, topic: str) -> type[Delivery]:
    """The delivery policy for timers of a request topic."""
    if topic == settings.retry_topic:
        return RetryDelivery
    return ScheduleDelivery if topic in settings.schedule_topics else Delivery
