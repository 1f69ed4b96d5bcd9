"""Which doors are open: the topics that timers come in by, and how each is read."""

from __future__ import annotations

from timers.settings import Settings
from timers.wire import future
from timers.wire.doors import Door, future_by_id


def open_doors(settings: Settings) -> dict[str, Door]:
    """Topic -> its door. The retry topic is one too, though only this app's own transactions write there."""
    doors = {
        settings.request_topic: Door("future", future.decode, may_go_cold=True),
        settings.retry_topic: Door("retry", future.decode_retry),
    }
    if settings.id_topic:
        doors[settings.id_topic] = Door("future-by-id", future_by_id.decode, indexed=True, may_go_cold=True)
    return doors
