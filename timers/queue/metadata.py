"""Encodes which messages of a partition are done, as the metadata of the group's committed offset. Pure.

The committed offset says that all messages below it are done. The metadata says which messages above it are done too::

    q1.<log>.<offset>.<runs>.<bits>.<runs>.<attempts>

* ``log``: name of the log, so that the metadata of a deleted topic does not count for a new one of the same name.
* ``offset``: the committed offset again, in decimal digits. A tool that moves the offset and keeps the metadata, such
  as MirrorMaker, thereby makes the metadata invalid.
* ``runs``: numbers of offsets that are alternately open and done, from the committed offset on.
* ``bits``: one bit for each offset after these runs, 1 if it is done. The second runs begin after the last 1.
* ``attempts``: for open messages that were delivered before: distance to the previous one, number of the next attempt.

Numbers have 5 bits in a character and a sixth bit if more characters follow, the lowest bits first. Bits are 6 in a
character, the lowest first. All characters are ASCII, because brokers keep metadata as text.

The encoder chooses the part with bits so that the text is shortest: runs are short for one open message before
10,000,000 done ones, bits for thousands of scattered ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

MAX_BYTES = 4095
"""Longest metadata that a broker takes by default: ``offset.metadata.max.bytes`` is 4096, and 4,096 bytes fail."""

_VERSION = "q1"
_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)}
_BITS = 6
_MORE = 32
_MAX_NUMBER_CHARACTERS = 13
"""Enough for 64 bits."""


class ForeignMetadataError(ValueError):
    """The metadata was not written by a queue for this log and offset."""


class NewerMetadataError(ValueError):
    """A newer version of this package wrote the metadata."""


class Saved(NamedTuple):
    """Which messages of a partition are done.

    Attributes:
        offset: all messages below it are done.
        done: ranges [first, end) of done messages above it, ascending, with open messages before each of them.
        attempts: open offset -> number of the next attempt, for messages that were delivered before.
    """

    offset: int
    done: tuple[tuple[int, int], ...] = ()
    attempts: Mapping[int, int] = {}


def encode(saved: Saved, log: str, max_bytes: int = MAX_BYTES) -> str | None:
    """Return the metadata, without the attempts if they do not fit; None if the rest does not fit either.

    Inverse: :func:`decode`.
    """
    runs = _as_runs(saved)
    first, last, _ = layout(runs)
    before, after = _encode_runs(runs[:first]), _encode_runs(runs[last:])
    done = f"{_VERSION}.{log}.{saved.offset}.{before}.{_encode_bits(runs[first:last])}.{after}."
    text = done + _encode_attempts(saved)
    if len(text) <= max_bytes:
        return text
    return done if len(done) <= max_bytes else None


def decode(text: str, log: str, offset: int) -> Saved:
    """Return what metadata of the committed ``offset`` says.

    Raises:
        NewerMetadataError: this version does not know the form.
        ForeignMetadataError: the text is of another log or offset, or no queue wrote it.
    """
    version, *fields = text.split(".")
    if version != _VERSION and version[:1] == "q" and version[1:].isdecimal():
        raise NewerMetadataError(f"metadata of version {version[1:]}, and this is version {_VERSION[1:]}: upgrade")
    if version != _VERSION or len(fields) != 6:
        raise ForeignMetadataError("not written by a queue" if text else "empty")
    if fields[0] != log or fields[1] != str(offset):
        raise ForeignMetadataError(f"written for log {fields[0]} at {fields[1]}, and this is log {log} at {offset}")
    done, end = _decode_runs(fields[2], offset)
    done += _decode_bits(fields[3], end)
    done += _decode_runs(fields[4], done[-1][1] if done else offset)[0]
    return Saved(offset, tuple(done), _decode_attempts(fields[5], offset))


def layout(runs: Sequence[tuple[int, int]]) -> tuple[int, int, int]:
    """Return which runs are written as bits to make the text shortest, from the first to before the last, and how many
    characters all runs then take at most."""
    size, width = 0, 0
    start, least = 0, 0
    first, last, most = 0, 0, 0
    for index, (opened, done) in enumerate(runs, 1):
        size += number_size(opened) + number_size(done)
        width += opened + done
        saved = _BITS * size - width  # by bits instead of all runs so far, in sixths of a character
        if saved - least > most:
            first, last, most = start, index, saved - least
        if saved < least:
            start, least = index, saved
    return first, last, size - most // _BITS


def number_size(number: int) -> int:
    """Return how many characters a number takes."""
    return max(1, -(-number.bit_length() // 5))


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
    bits, at = 0, 0
    for opened, done in runs:
        at += opened
        bits |= ((1 << done) - 1) << at
        at += done
    raw = bits.to_bytes(-(-at // 24) * 3, "little")
    text: list[str] = []
    for index in range(0, len(raw), 3):
        three = int.from_bytes(raw[index : index + 3], "little")
        text += _DIGITS[three & 63], _DIGITS[three >> 6 & 63], _DIGITS[three >> 12 & 63], _DIGITS[three >> 18]
    return "".join(text[: -(-at // _BITS)])


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


def _encode_attempts(saved: Saved) -> str:
    numbers: list[int] = []
    before = saved.offset
    for offset, attempt in sorted(saved.attempts.items()):
        numbers += offset - before, attempt
        before = offset
    return _encode_numbers(numbers)


def _decode_attempts(text: str, offset: int) -> dict[int, int]:
    numbers = _decode_numbers(text)
    if len(numbers) % 2:
        raise ForeignMetadataError("the attempts are not pairs of numbers")
    attempts = {}
    for index in range(0, len(numbers), 2):
        offset += numbers[index]
        attempts[offset] = numbers[index + 1]
    return attempts


def _value(digit: str) -> int:
    value = _VALUES.get(digit)
    if value is None:
        raise ForeignMetadataError(f"{digit!r} is no digit of this form")
    return value
