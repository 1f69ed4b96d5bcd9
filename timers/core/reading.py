"""Decodes each record with the settings that are valid at its offset [I4]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from timers.core.horizon import Horizon
from timers.core.ports import Decoder
from timers.core.progress import MAX_REQUEST_BYTES, REJECT_OVERDUE, Progress
from timers.core.timer import Decoded


class Reader:
    """Decodes the records of one machine.

    Args:
        decode_rejecting: decoder that also rejects overdue timers; ``decode`` if the format has none.
        max_request_bytes: limit for records before the history begins.
    """

    def __init__(self, decode: Decoder, decode_rejecting: Decoder, horizon: Horizon, max_request_bytes: int) -> None:
        self._decode = decode
        self._decode_rejecting = decode_rejecting
        self._horizon = horizon
        self._max_request_bytes = max_request_bytes

    def read(self, records: Sequence[Any], to_offset: int, progress: Progress) -> Decoded:
        """Decode records that end before ``to_offset``, with the settings history of ``progress``."""
        if not records:
            return Decoded()
        start = records[0].offset
        changes = progress.boundaries(start, to_offset)
        if not changes:
            return self._read_part(records, start, progress)
        decoded = Decoded()
        for low, high in zip([start, *changes], [*changes, to_offset], strict=True):
            part = [record for record in records if low <= record.offset < high]
            decoded.extend(self._read_part(part, low, progress))
        return decoded

    def _read_part(self, records: Sequence[Any], offset: int, progress: Progress) -> Decoded:
        """Decode records for which all settings are the same."""
        if not records:
            return Decoded()
        max_bytes = progress.setting_at(MAX_REQUEST_BYTES, offset, self._max_request_bytes)
        rejects = progress.setting_at(REJECT_OVERDUE, offset, 0)
        return self._horizon.read(records, self._decode_rejecting if rejects else self._decode, max_bytes)
