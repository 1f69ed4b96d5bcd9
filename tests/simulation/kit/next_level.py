"""A feature level that exists only in tests.

At this level a native request may have the header ``shift``: it is due that number of seconds later. Before, this
header is like any other. So a request that is read at the wrong level fires at the wrong second.
"""

from collections.abc import Sequence
from typing import Any

from timers.core import levels
from timers.core.timer import Decoded, Row
from timers.kafka.request_formats import enabled_formats
from timers.process.config.settings import Settings
from timers.wire import future
from timers.wire.formats import RequestFormat

LEVEL = levels.SUPPORTED + 1
SHIFT = "shift"


def shift_of(headers: Any) -> int:
    """Seconds by which a request is due later at :data:`LEVEL`."""
    return next((int(value) for name, value in headers or () if name == SHIFT), 0)


def decode(records: Sequence[Any], max_request_bytes: int) -> Decoded:
    """Decode native requests at :data:`LEVEL`."""
    decoded = future.decode(records, max_request_bytes)
    rows: dict[int, list[Row]] = {}
    for due_s, group in decoded.rows.items():
        for row in group:
            rows.setdefault(due_s + shift_of(row[4]), []).append(row)
    decoded.rows = {due_s: sorted(group, key=lambda row: row[0]) for due_s, group in rows.items()}
    return decoded


def with_next_level(native: RequestFormat) -> RequestFormat:
    """The native request format of a version that supports :data:`LEVEL`."""
    return native._replace(decode_from_level={**native.decode_from_level, LEVEL: decode})


def formats_at(settings: Settings, supports: int, *, has_conditions: bool = True) -> dict[str, RequestFormat]:
    """Request topic -> request format, for a version that supports this level.

    Args:
        has_conditions: whether timers with an id have conditions and a cold tier; countdowns have neither.
    """
    formats = enabled_formats(settings)
    if settings.id_topic and not has_conditions:
        by_id = formats[settings.id_topic]
        formats[settings.id_topic] = by_id._replace(has_conditions=False, allows_cold_tier=False)
    if supports >= LEVEL:
        formats[settings.request_topic] = with_next_level(formats[settings.request_topic])
    return formats
