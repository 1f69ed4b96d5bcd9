"""Encodes which messages of a partition are done, as the metadata of the group's committed offset. Pure.

The committed offset says that all messages below it are done. The metadata says which messages above it are done too::

    q1.<log>.<offset>.<runs>.<bits>.<runs>.<starts>.<attempts>.<crashes>
    q2.<log>.<offset>.<runs>.<bits>.<runs>.<starts>.<attempts>.<crashes>.<waits>

* ``log``: name of the log, so that the metadata of a deleted topic does not count for a new one of the same name.
* ``offset``: the committed offset again, in decimal digits. A tool that moves the offset and keeps the metadata, such
  as MirrorMaker, thereby makes the metadata invalid.
* ``runs``: numbers of offsets that are alternately open and done, from the committed offset on.
* ``bits``: one bit for each offset after these runs, 1 if it is done. The second runs begin after the last 1.
* ``starts``: which messages may be running (:mod:`timers.queue.starts`): the first and the end, counted from the
  committed offset, the size of their group, the end of the suspects. Empty if nothing runs and there are no suspects.
* ``attempts``: for open messages that were delivered before: distance to the previous one, number of the next attempt.
* ``crashes``: for open messages that killed their process: distance to the previous one, how often.
* ``waits``: the epoch second at which the first of the waiting messages is ready; for each of them the distance to the
  previous one, and how many seconds later it is ready. Only an ordered queue has such messages, and if there are none,
  the text is of version 1, which the first processes of a queue read too.

Numbers have 5 bits in a character and a sixth bit if more characters follow, the lowest bits first. Bits are 6 in a
character, the lowest first. All characters are ASCII, because brokers keep metadata as text.

The encoder chooses the part with bits so that the text is shortest: runs are short for one open message before
10,000,000 done ones, bits for thousands of scattered ones.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from timers.queue.starts import NOTHING, Start

MAX_BYTES = 4095
"""Longest metadata that a broker takes by default: ``offset.metadata.max.bytes`` is 4096, and 4,096 bytes fail."""

_VERSION, _VERSION_WITH_WAITS = "q1", "q2"
_FIELDS = {_VERSION: 8, _VERSION_WITH_WAITS: 9}
_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)}
_BITS = 6
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_REVERSED = bytes.maketrans(_BASE64, bytes(ord(_DIGITS[int(f"{value:06b}"[::-1], 2)]) for value in range(1 << _BITS)))
"""Digits of Base64, whose first bit is the highest, -> digits of this form, whose first bit is the lowest."""

_MORE = 32
_MAX_NUMBER_CHARACTERS = 13
"""Enough for 64 bits."""


class ForeignMetadataError(ValueError):
    """The metadata was not written by a queue for this log and offset."""


class DeletedLogError(ForeignMetadataError):
    """The metadata is of this offset, and of another log: the topic was deleted and created again."""


class NewerMetadataError(ValueError):
    """A newer version of this package wrote the metadata."""


class Saved(NamedTuple):
    """Which messages of a partition are done.

    Attributes:
        offset: all messages below it are done.
        done: ranges [first, end) of done messages above it, ascending, with open messages before each of them.
        attempts: open offset -> number of the next attempt, for messages that were delivered before.
        start: messages that may be running.
        suspects_end: open messages below it are suspects.
        crashes: open offset -> how often its process ended while it ran alone.
        waits: open offset -> when it is delivered again, in epoch seconds of the brokers' time.
    """

    offset: int
    done: tuple[tuple[int, int], ...] = ()
    attempts: Mapping[int, int] = {}
    start: Start = NOTHING
    suspects_end: int = 0
    crashes: Mapping[int, int] = {}
    waits: Mapping[int, int] = {}

    def is_open(self, offset: int) -> bool:
        """Whether the message at ``offset`` is not done."""
        return offset >= self.offset and not any(first <= offset < end for first, end in self.done)


def encode(saved: Saved, log: str, max_bytes: int = MAX_BYTES) -> str | None:
    """Return the metadata, without waits or also without attempts and crashes if they do not fit; None if the rest does
    not fit either.

    Inverse: :func:`decode`.
    """
    runs = _as_runs(saved)
    first, last, *_ = layout((run_size(opened, done), opened + done) for opened, done in runs)
    before, after = _encode_runs(runs[:first]), _encode_runs(runs[last:])
    done = f"{_VERSION}.{log}.{saved.offset}.{before}.{_encode_bits(runs[first:last])}.{after}."
    done += _encode_starts(saved) + "."
    text = f"{done}{_encode_counts(saved.attempts, saved.offset)}.{_encode_counts(saved.crashes, saved.offset)}"
    if saved.waits:
        with_waits = f"{_VERSION_WITH_WAITS}{text.removeprefix(_VERSION)}.{_encode_waits(saved)}"
        if len(with_waits) <= max_bytes:
            return with_waits
    if len(text) <= max_bytes:
        return text
    return f"{done}." if len(done) < max_bytes else None


def decode(text: str, log: str, offset: int) -> Saved:
    """Return what metadata of the committed ``offset`` says.

    Raises:
        NewerMetadataError: this version does not know the form.
        DeletedLogError: the text is of another log.
        ForeignMetadataError: the text is of another offset, or no queue wrote it.
    """
    version, *fields = text.split(".")
    if version not in _FIELDS and version[:1] == "q" and version[1:].isdecimal():
        newest = _VERSION_WITH_WAITS[1:]
        raise NewerMetadataError(f"metadata of version {version[1:]}, and this is version {newest}: upgrade")
    if len(fields) != _FIELDS.get(version):
        raise ForeignMetadataError("not written by a queue" if text else "empty")
    if fields[0] != log and fields[1] == str(offset):
        raise DeletedLogError(f"written for log {fields[0]}, and this is log {log}")
    if fields[0] != log or fields[1] != str(offset):
        raise ForeignMetadataError(f"written for log {fields[0]} at {fields[1]}, and this is log {log} at {offset}")
    done, end = _decode_runs(fields[2], offset)
    done += _decode_bits(fields[3], end)
    done += _decode_runs(fields[4], done[-1][1] if done else offset)[0]
    starts = _decode_numbers(fields[5]) or [0, 0, 0, 0]
    if len(starts) != 4:
        raise ForeignMetadataError("the starts are not four numbers")
    first, size, group, suspects = starts
    start = Start(offset + first, offset + first + size, group) if size else NOTHING
    suspects_end = offset + suspects if suspects else 0
    attempts, crashes = (_decode_counts(_decode_numbers(field), offset) for field in fields[6:8])
    waits = _decode_waits(fields[8], offset) if version == _VERSION_WITH_WAITS else {}
    return Saved(offset, tuple(done), attempts, start, suspects_end, crashes, waits)


class Layout(NamedTuple):
    """How parts of the text are written.

    Attributes:
        first: the parts from here to before ``last`` are bits, so that the text is shortest.
        characters: all parts then take so many at most.
        characters_before_bits: as many as they take if further parts, which follow, are bits.
    """

    first: int
    last: int
    characters: int
    characters_before_bits: int


def layout(parts: Iterable[tuple[int, int]]) -> Layout:
    """Return the shortest layout of parts, each given as the characters that it takes as runs, and its offsets."""
    size, width = 0, 0
    start, lowest = 0, 0
    first, last, largest = 0, 0, 0
    saved = 0
    for index, (characters, offsets) in enumerate(parts, 1):
        size += characters
        width += offsets
        saved = _BITS * size - width  # by bits instead of all runs so far, in sixths of a character
        if saved - lowest > largest:
            first, last, largest = start, index, saved - lowest
        if saved < lowest:
            start, lowest = index, saved
    return Layout(first, last, size - largest // _BITS, size - (saved - lowest) // _BITS)


def run_size(opened: int, done: int) -> int:
    """Return how many characters two numbers above 0 take."""
    return (opened.bit_length() + 4) // 5 + (done.bit_length() + 4) // 5


def _as_runs(saved: Saved) -> list[tuple[int, int]]:
    """Return pairs of numbers of offsets, open and then done, from the saved offset on."""
    runs, end = [], saved.offset
    for first, next_end in saved.done:
        runs.append((first - end, next_end - first))
        end = next_end
    return runs


def _encode_runs(runs: Iterable[tuple[int, int]]) -> str:
    return _encode_numbers(number for pair in runs for number in pair)


def _encode_numbers(numbers: Iterable[int]) -> str:
    text = []
    for number in numbers:
        while number >= _MORE:
            text.append(_DIGITS[number % _MORE + _MORE])
            number //= _MORE
        text.append(_DIGITS[number])
    return "".join(text)


def _decode_numbers(text: str) -> list[int]:
    numbers, number, shift = [], 0, 0
    for digit in text:
        value = _value(digit)
        number += value % _MORE << shift
        shift += 5
        if shift > 5 * _MAX_NUMBER_CHARACTERS:
            raise ForeignMetadataError("a number has more than 64 bits")
        if value < _MORE:
            numbers.append(number)
            number = shift = 0
    if shift:
        raise ForeignMetadataError("the last number has no end")
    return numbers


def _encode_bits(runs: Iterable[tuple[int, int]]) -> str:
    bits = "".join(["0" * opened + "1" * done for opened, done in runs])
    three_bytes = -(-len(bits) // 24)
    raw = int(bits.ljust(24 * three_bytes, "0") or "0", 2).to_bytes(3 * three_bytes, "big")
    return b64encode(raw).translate(_REVERSED)[: -(-len(bits) // _BITS)].decode()


def _decode_bits(text: str, at: int) -> list[tuple[int, int]]:
    done: list[tuple[int, int]] = []
    first = -1
    for digit in text:
        value = _value(digit)
        for bit in range(_BITS):
            if value >> bit & 1:
                first = at if first < 0 else first
            elif first >= 0:
                done.append((first, at))
                first = -1
            at += 1
    return [*done, (first, at)] if first >= 0 else done


def _decode_runs(text: str, offset: int) -> tuple[list[tuple[int, int]], int]:
    numbers = _decode_numbers(text)
    if len(numbers) % 2 or 0 in numbers:
        raise ForeignMetadataError("the runs are not pairs of numbers above 0")
    done = []
    for index in range(0, len(numbers), 2):
        first = offset + numbers[index]
        offset = first + numbers[index + 1]
        done.append((first, offset))
    return done, offset


def _encode_starts(saved: Saved) -> str:
    first = max(saved.start.first, saved.offset)
    size, suspects = max(0, saved.start.end - first), max(0, saved.suspects_end - saved.offset)
    if not size and not suspects:
        return ""
    return _encode_numbers((first - saved.offset if size else 0, size, saved.start.group if size else 0, suspects))


def _encode_counts(counts: Mapping[int, int], before: int) -> str:
    numbers: list[int] = []
    for offset, count in sorted(counts.items()):
        numbers += offset - before, count
        before = offset
    return _encode_numbers(numbers)


def _encode_waits(saved: Saved) -> str:
    first_s = min(saved.waits.values())
    later = {offset: due_s - first_s for offset, due_s in saved.waits.items()}
    return _encode_numbers([first_s]) + _encode_counts(later, saved.offset)


def _decode_waits(text: str, offset: int) -> dict[int, int]:
    first_s, *numbers = _decode_numbers(text) or [0]
    return {waiting: first_s + later_s for waiting, later_s in _decode_counts(numbers, offset).items()}


def _decode_counts(numbers: Sequence[int], offset: int) -> dict[int, int]:
    if len(numbers) % 2:
        raise ForeignMetadataError("the attempts, crashes or waits are not pairs of numbers")
    counts = {}
    for index in range(0, len(numbers), 2):
        offset += numbers[index]
        counts[offset] = numbers[index + 1]
    return counts


def _value(digit: str) -> int:
    value = _VALUES.get(digit)
    if value is None:
        raise ForeignMetadataError(f"{digit!r} is no digit of this form")
    return value
