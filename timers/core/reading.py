"""Decodes each record with the settings that are valid at its offset [I4]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from timers.core.horizon import Horizon
from timers.core.levels import FIRST
from timers.core.ports import Decoder
from timers.core.progress import FEATURE_LEVEL, MAX_REQUEST_BYTES, REJECT_OVERDUE, History, Progress
from timers.core.timer import Decoded


class ReadSettings(NamedTuple):
    """The settings that decide about a record."""

    max_request_bytes: int
    level: int
    rejects_overdue: bool


class Reader:
    """Decodes the records of one machine.

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
        self._newest: tuple[Decoder, int] = decoder(FIRST, False), max_request_bytes
        """The decoder, and the limit, for the newest settings of ``_history``."""

    def read(self, records: Sequence[Any], to_offset: int, progress: Progress) -> Decoded:
        """Decode records that end before ``to_offset``, with the settings history of ``progress``."""
        history = progress.settings
        if records and records[0].offset >= history.changed_at:  # nearly always
            if history is not self._history:
                self._history, self._newest = history, self._chosen(self.settings_at(history.changed_at, progress))
            return self._decode(records, *self._newest, progress)
        decoded = Decoded()
        for part, settings in self.parts(records, to_offset, progress):
            decoded.extend(self._decode(part, *self._chosen(settings), progress))
        return decoded

    def parts(
        self, records: Sequence[Any], to_offset: int, progress: Progress
    ) -> list[tuple[Sequence[Any], ReadSettings]]:
        """Split records that end before ``to_offset`` where a setting changes; no part is empty."""
        if not records:
            return []
        start = records[0].offset
        changes = progress.boundaries(start, to_offset)
        if not changes:
            return [(records, self.settings_at(start, progress))]
        split = [
            ([record for record in records if low <= record.offset < high], self.settings_at(low, progress))
            for low, high in zip([start, *changes], [*changes, to_offset], strict=True)
        ]
        return [part for part in split if part[0]]

    def settings_at(self, offset: int, progress: Progress) -> ReadSettings:
        """The settings for the record at ``offset``, by the settings history of ``progress``."""
        return ReadSettings(
            progress.setting_at(MAX_REQUEST_BYTES, offset, self._max_request_bytes),
            progress.setting_at(FEATURE_LEVEL, offset, FIRST),
            progress.setting_at(REJECT_OVERDUE, offset, 0) > 0,
        )

    def are_settings(self, settings: ReadSettings, from_offset: int, to_offset: int, progress: Progress) -> bool:
        """Whether ``settings`` are those for all records of a range, by the settings history of ``progress``."""
        offsets = [from_offset, *progress.boundaries(from_offset, to_offset)]
        return all(self.settings_at(offset, progress) == settings for offset in offsets)

    def decode(self, records: Sequence[Any], settings: ReadSettings) -> Decoded:
        """Decode records to which the same settings apply. None of them is a promoted copy."""
        decode, max_bytes = self._chosen(settings)
        return decode(records, max_bytes)

    def _chosen(self, settings: ReadSettings) -> tuple[Decoder, int]:
        return self._decoder(settings.level, settings.rejects_overdue), settings.max_request_bytes

    def _decode(self, records: Sequence[Any], decode: Decoder, max_bytes: int, progress: Progress) -> Decoded:
        if self._horizon is None:
            return decode(records, max_bytes)
        # The level may have been raised since a request of a copy was accepted.
        return self._horizon.read(
            records, decode, max_bytes, lambda offset: self._chosen(self.settings_at(offset, progress))[0]
        )
