"""Decodes each record with the settings that are valid at its offset [I4]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from timers.core.horizon import Horizon
from timers.core.levels import FIRST
from timers.core.ports import Decoder
from timers.core.progress import FEATURE_LEVEL, MAX_REQUEST_BYTES, REJECT_OVERDUE, Progress
from timers.core.timer import Decoded


class Reader:
    """Decodes the records of one machine.

    Args:
        decoder: gets a feature level, and whether overdue timers are rejected; returns the decoder of the format.
        max_request_bytes: limit for records before the history begins.
    """

    def __init__(self, decoder: Callable[[int, bool], Decoder], horizon: Horizon, max_request_bytes: int) -> None:
        self._decoder = decoder
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
        decode = self._decoder(
            progress.setting_at(FEATURE_LEVEL, offset, FIRST), progress.setting_at(REJECT_OVERDUE, offset, 0) > 0
        )
        return self._horizon.read(records, decode, max_bytes)
