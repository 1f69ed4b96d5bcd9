"""The request formats, the settings that turn them on, and the topics of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from timers.core.levels import REPEATS_LEVEL
from timers.process.config.settings import Settings
from timers.wire import future
from timers.wire.formats import RequestFormat, countdown, future_by_id, marker, schedule


class ConfiguredFormat(NamedTuple):
    """A request format and its settings."""

    request_format: RequestFormat
    env: str
    """The setting that names the topics of the format and so turns it on."""
    topics: Callable[[Settings], Sequence[str]]
    """Returns the topics of the format; none if it is off."""
    layout: str
    """Description of the format's records for readers."""
    settings: Sequence[str] = ()
    """Other settings of this format."""


def _as_list(topic: str) -> Sequence[str]:
    return [topic] if topic else []


_VERDICT_SETTINGS = ("TIMERS_VERDICT_TOPIC", "TIMERS_VERDICT_RETENTION_S")

NATIVE = RequestFormat(
    "future",
    future.decode,
    future.rebuild_request,
    allows_cold_tier=True,
    decode_from_level={REPEATS_LEVEL: partial(future.decode, drops_schema_ids=True)},
)

REQUEST_FORMATS = (
    ConfiguredFormat(
        NATIVE,
        "TIMERS_REQUEST_TOPIC",
        lambda settings: _as_list(settings.request_topic),
        "key = due epoch second, value = Future; or header timer-topic, value = payload",
    ),
    ConfiguredFormat(
        RequestFormat(
            "future-by-id",
            future_by_id.decode,
            future_by_id.rebuild_request,
            has_ids=True,
            has_conditions=True,
            allows_cold_tier=True,
            copy_needs_timer_again=True,
            decode_from_level={REPEATS_LEVEL: partial(future_by_id.decode, repeats=True)},
        ),
        "TIMERS_ID_TOPIC",
        lambda settings: _as_list(settings.id_topic),
        "key = id, header timer-due = due epoch second, value = Future or null; or header timer-topic, value = payload",
        _VERDICT_SETTINGS,
    ),
    ConfiguredFormat(
        RequestFormat(
            "countdown",
            countdown.decode,
            countdown.rebuild_request,
            has_ids=True,
            partitions_may_increase=True,
            copy_needs_timer_again=True,
        ),
        "TIMERS_COUNTDOWN_TOPIC",
        lambda settings: _as_list(settings.countdown_topic),
        "value = JSON with topic, message and countdown in seconds",
        _VERDICT_SETTINGS,
    ),
    ConfiguredFormat(
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
    ConfiguredFormat(
        RequestFormat(
            "marker",
            marker.decode,
            marker.rebuild_request,
            has_ids=True,
            partitions_may_increase=True,
            has_markers=True,
        ),
        "TIMERS_MARKER_TOPIC",
        lambda settings: _as_list(settings.marker_topic),
        "value = Marker of kafka-mq-go: START, KEEPALIVE or END of a message",
        ("TIMERS_MESSAGE_TOPIC",),
    ),
)
"""Every request format that producers may use. The first one is always on."""


def enabled_formats(settings: Settings) -> dict[str, RequestFormat]:
    """Return topic -> request format, with the retry topic, which only the transactions of this app write to."""
    retry = RequestFormat(
        "retry", future.decode_retry, future.rebuild_request, own_max_request_bytes=future.MOST_RETRY_BYTES
    )
    others = {topic: each.request_format for each in REQUEST_FORMATS for topic in each.topics(settings)}
    if settings.marker_topic:
        decode = partial(marker.decode, callback_topic=settings.message_topic)
        bound = others[settings.marker_topic]._replace(decode=decode, callback_topic=settings.message_topic)
        others[settings.marker_topic] = bound
    return {settings.request_topic: NATIVE, settings.retry_topic: retry, **others}
