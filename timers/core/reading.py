"""Decodes each record with the settings that are valid at its offset [I4]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from timers.core.horizon import Horizon
from timers.core.levels import FIRST_LEVEL
from timers.core.ports import Decoder
from timers.core.progress import FEATURE_LEVEL, MAX_REQUEST_BYTES, REJECT_OVERDUE, History, Progress
from timers.core.timer import Decoded


class RecordDecoder:
    """Decodes the records of one machine, each with the settings that are valid at its offset.

    Args:
        decoder: gets a feature level, and whether overdue timers are rejected; returns the decoder of the format.
        max_request_bytes: limit for records before the history begins.
    """

    def __init__(
        self, decoder: Callable[[int, bool], Decoder], horizon: Horizon | None, max_request_bytes: int
    ) -> None:
        self._decoder = decoder
        self._horizon = horizon
        self._max_request_bytes = max_request_bytes
        self._history: History | None = None
        self._newest: tuple[Decoder, int] = decoder(FIRST_LEVEL, False), max_request_bytes
        """The decoder, and the limit, for the newest settings of ``_history``."""

    def decode(self, records: Sequence[Any], to_offset: int, progress: Progress) -> Decoded:
        """Decode records that end before ``to_offset``, with the settings history of ``progress``."""
        history = progress.settings
        if records and records[0].offset >= history.changed_at:  # nearly always
            if history is not self._history:
                self._history, self._newest = history, self._chosen(history.changed_at, progress)
            return self._decode(records, *self._newest, progress)
        decoded = Decoded()
        start = records[0].offset if records else to_offset
        for low, high in pairwise([start, *progress.boundaries(start, to_offset), to_offset]):
            part = [record for record in records if low <= record.offset < high]
            if part:
                decoded.extend(self._decode(part, *self._chosen(low, progress), progress))
        return decoded

    def _chosen(self, offset: int, progress: Progress) -> tuple[Decoder, int]:
        """The decoder, and the limit, for the record at ``offset``."""
        level = progress.setting_at(FEATURE_LEVEL, offset, FIRST_LEVEL)
        rejects_overdue = progress.setting_at(REJECT_OVERDUE, offset, 0) > 0
        max_bytes = progress.setting_at(MAX_REQUEST_BYTES, offset, self._max_request_bytes)
        return self._decoder(level, rejects_overdue), max_bytes

    def _decode(self, records: Sequence[Any], decode: Decoder, max_bytes: int, progress: Progress) -> Decoded:
        if self._horizon is None:
            return decode(records, max_bytes)
        # The level may have been raised since the request was accepted: each copy is read at the level of its request.
        return self._horizon.read(records, decode, max_bytes, lambda offset: self._chosen(offset, progress)[0])
