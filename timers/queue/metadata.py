"""Encodes which messages of a partition are done, as the metadata of the group's committed offset. Pure.

The committed offset says that all messages below it are done. The metadata says which messages above it are done too::

    q3.<log>.<offset>.<lineage>.<runs>.<bits>.<runs>.<starts>.<attempts>.<crashes>.<waits>

* ``log``: name of the log, so that the metadata of a deleted topic does not count for a new one of the same name.
* ``offset``: the committed offset again, in decimal digits. A tool that moves the offset and keeps the metadata, such
  as MirrorMaker, thereby makes the metadata invalid.
* ``lineage``: which log was read (:mod:`timers.core.lineage`): the offset after the last record, or of a cut; the time
  + 2 of this record, 0 after a cut; the number of leader epochs, and for each of them its number and first offset; for
  each cut of the log its offset and number. Empty if no record was read.
* ``runs``: numbers of offsets that are alternately open and done, from the committed offset on.
* ``bits``: one bit for each offset after these runs, 1 if it is done. The second runs begin after the last 1.
* ``starts``: which messages may be running (:mod:`timers.queue.starts`): the first and the end, counted from the
  committed offset, the size of their group, the end of the suspects. Empty if nothing runs and there are no suspects.
* ``attempts``: for open messages that were delivered before: distance to the previous one, number of the next attempt.
* ``crashes``: for open messages that killed their process: distance to the previous one, how often.
* ``waits``: the epoch second at which the first of the waiting messages is ready; for each of them the distance to the
  previous one, and how many seconds later it is ready: after the end of a lease, and in an ordered queue after a retry.

Numbers have 5 bits in a character and a sixth bit if more characters follow, the lowest bits first. Bits are 6 in a
character, the lowest first. All characters are ASCII, because brokers keep metadata as text.

The encoder chooses the part with bits so that the text is shortest: runs are short for one open message before
10,000,000 done ones, bits for thousands of scattered ones.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from timers.core.lineage import Batch, Lineage
from timers.core.progress import Cuts
from timers.errors import QueueError

MAX_METADATA_BYTES = 4095
"""Longest metadata that a broker takes by default: ``offset.metadata.max.bytes`` is 4096, and 4,096 bytes fail."""

MAX_EPOCHS = 8
"""Leader epochs that metadata have, the newest ones. Each takes about 10 characters."""

_VERSION = "q3"
_FIELDS = 10
_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)}
_BITS = 6
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_REVERSED = bytes.maketrans(_BASE64, bytes(ord(_DIGITS[int(f"{value:06b}"[::-1], 2)]) for value in range(1 << _BITS)))
"""Digits of Base64, whose first bit is the highest, -> digits of this form, whose first bit is the lowest."""

_MORE = 32
_MAX_NUMBER_CHARACTERS = 13
"""Enough for 64 bits."""


Partition: TypeAlias = tuple[str, int]
"""A topic, and the number of one of its partitions."""


class Commit(NamedTuple):
    """The committed offset of a partition, and its metadata."""

    offset: int
    metadata: str


class ForeignMetadataError(ValueError):
    """The metadata was not written by a queue for this log and offset."""


class DeletedLogError(ForeignMetadataError):
    """The metadata is of this offset, and of another log: the topic was deleted and created again."""


class OtherVersionError(ValueError):
    """Another version of this package wrote the metadata."""


class Start(NamedTuple):
    """The messages of a partition that may have been started: the open ones from ``first`` to before ``end``.

    Attributes:
        group: how many they are, if they run alone; 0 if they run with others.
    """

    first: int = 0
    end: int = 0
    group: int = 0


NO_START = Start()


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
        lineage: which log was read.
        cuts: where the log parted from an earlier one, and all messages are new ones from there on.
    """

    offset: int
    done: tuple[tuple[int, int], ...] = ()
    attempts: Mapping[int, int] = {}
    start: Start = NO_START
    suspects_end: int = 0
    crashes: Mapping[int, int] = {}
    waits: Mapping[int, int] = {}
    lineage: Lineage = Lineage()
    cuts: Cuts = ()

    def below(self, at: int) -> Saved:
        """Return what is known below an offset: from there on no message is done, or was tried."""
        done = tuple((first, min(end, at)) for first, end in self.done if first < at)
        attempts, crashes, waits = (
            {offset: value for offset, value in each.items() if offset < at}
            for each in (self.attempts, self.crashes, self.waits)
        )
        start = self.start._replace(end=min(self.start.end, at)) if self.start.first < at else NO_START
        suspects_end = min(self.suspects_end, at)
        lineage = self.lineage.before(at)
        return Saved(min(self.offset, at), done, attempts, start, suspects_end, crashes, waits, lineage, self.cuts)

    def cut(self, at: int, epoch: int) -> Saved:
        """Return what counts after the log parted at an offset, before which it has a leader epoch; -1: not known."""
        number = self.cuts[-1][1] + 1 if self.cuts else 1
        kept = tuple(each for each in self.cuts if each[0] < at)  # cuts above the new one are left out
        below = self.below(at)
        lineage = below.lineage
        if lineage.batch is None and epoch < 0:
            lineage = lineage._replace(epochs=())  # the newest one may not be that of the log below the offset
        elif lineage.batch is None and epoch > lineage.epoch_before(at):
            lineage = lineage._replace(epochs=(*lineage.epochs, (epoch, at - 1)), end=at)
        return below._replace(lineage=lineage, cuts=(*kept, (at, number)))

    def is_open(self, offset: int) -> bool:
        """Whether the message at ``offset`` is not done."""
        return offset >= self.offset and not any(first <= offset < end for first, end in self.done)


def encode(saved: Saved, log: str, max_bytes: int = MAX_METADATA_BYTES) -> str | None:
    """Return the metadata, without waits or also without attempts and crashes if they do not fit; None if the rest does
    not fit either.

    Inverse: :func:`decode`.
    """
    runs = _as_runs(saved)
    first, last, *_ = layout((run_size(opened, done), opened + done) for opened, done in runs)
    before, after = _encode_runs(runs[:first]), _encode_runs(runs[last:])
    head = f"{_VERSION}.{log}.{saved.offset}.{_encode_lineage(saved)}."
    done = f"{head}{before}.{_encode_bits(runs[first:last])}.{after}.{_encode_starts(saved)}."
    counts = f"{_encode_counts(saved.attempts, saved.offset)}.{_encode_counts(saved.crashes, saved.offset)}."
    waits = _encode_waits(saved) if saved.waits else ""
    whole = (f"{done}{counts}{waits}", f"{done}{counts}", f"{done}..")
    return next((text for text in whole if len(text) <= max_bytes), None)


def decode(text: str, log: str, offset: int) -> Saved:
    """Return what metadata of the committed ``offset`` says.

    Raises:
        OtherVersionError: another version of this package wrote it.
        DeletedLogError: the text is of another log.
        ForeignMetadataError: the text is of another offset, or no queue wrote it.
    """
    version, *fields = text.split(".")
    if version != _VERSION and version[:1] == "q" and version[1:].isdecimal():
        raise OtherVersionError(
            f"metadata of version {version[1:]}, and this is version {_VERSION[1:]}: open the queue with the version "
            "of timers that wrote it"
        )
    if version != _VERSION or len(fields) != _FIELDS:
        raise ForeignMetadataError("not written by a queue" if text else "empty")
    if fields[0] != log and fields[1] == str(offset):
        raise DeletedLogError(f"written for log {fields[0]}, and this is log {log}")
    if fields[0] != log or fields[1] != str(offset):
        raise ForeignMetadataError(f"written for log {fields[0]} at {fields[1]}, and this is log {log} at {offset}")
    lineage, cuts = _decode_lineage(fields[2])
    done, end = _decode_runs(fields[3], offset)
    done += _decode_bits(fields[4], end)
    done += _decode_runs(fields[5], done[-1][1] if done else offset)[0]
    starts = _decode_numbers(fields[6]) or [0, 0, 0, 0]
    if len(starts) != 4:
        raise ForeignMetadataError("the starts are not four numbers")
    first, size, group, suspects = starts
    start = Start(offset + first, offset + first + size, group) if size else NO_START
    suspects_end = offset + suspects if suspects else 0
    attempts, crashes = (_decode_counts(_decode_numbers(field), offset) for field in fields[7:9])
    waits = _decode_waits(fields[9], offset)
    return Saved(offset, tuple(done), attempts, start, suspects_end, crashes, waits, lineage, cuts)


class Layout(NamedTuple):
    """How parts of the text are written.

    Attributes:
        first, last: ``parts[first:last]`` are written as bits, the others as runs: no other choice is shorter.
        characters: all parts take at most this many.
        characters_before_bits: all parts take at most this many if parts that follow them are bits.
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
        saved = _BITS * size - width  # what bits save against all runs so far, in sixths of a character
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


def _encode_lineage(saved: Saved) -> str:
    (epochs, batch, end, _), cuts = saved.lineage, saved.cuts
    # Of the cuts below the offset only the last one counts.
    former = [each for each in cuts if each[0] <= saved.offset][-1:]
    kept = [*epochs[-MAX_EPOCHS:], *former, *(each for each in cuts if each[0] > saved.offset)]
    if not end and not kept:
        return ""
    time = 0 if batch is None else batch.max_timestamp_ms + 2  # at least -1
    return _encode_numbers([end, time, min(MAX_EPOCHS, len(epochs)), *(part for each in kept for part in each)])


def _decode_lineage(text: str) -> tuple[Lineage, Cuts]:
    numbers = _decode_numbers(text) or [0, 0, 0]
    if len(numbers) < 3 or len(numbers) % 2 == 0 or len(numbers) < 3 + 2 * numbers[2] or numbers[1] > 0 == numbers[0]:
        raise ForeignMetadataError("the lineage is not of the last record, epochs and cuts")
    end, time, count = numbers[:3]
    pairs = tuple(zip(numbers[3::2], numbers[4::2], strict=True))
    batch = Batch(end - 1, end - 1, time - 2, 0) if time else None
    return Lineage(pairs[:count], batch, end), pairs[count:]


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


RESERVE_BYTES = 512
"""Part of the metadata that is kept free: for its first fields, and because the last batch may exceed the limit."""

OFFSETS_A_CHARACTER = 6
_CHARACTERS_OF_READ = 2
"""Of a message that is read before others that were done before a restart."""


def read_limit(opened: Sequence[int], position: int, done_ahead: Collection[tuple[int, int]], room: int) -> int:
    """Return the offset from which on messages should not be read.

    Args:
        opened: offsets of the open messages, ascending.
        position: all offsets below it were read.
        done_ahead: spans above the position that were done before a restart, ascending.
        room: characters of the metadata that may be used.
    """
    parts = worst_parts(opened, position)
    if not done_ahead:
        _, _, worst, worst_before_bits = layout(parts)
        rooms = room - worst, OFFSETS_A_CHARACTER * (room - worst_before_bits)
        return position + max(0, *rooms)
    end = position
    for first, next_end in done_ahead:
        parts.append((run_size(first - end, next_end - first), next_end - end))
        end = next_end
    room -= layout(parts).characters
    if room >= _CHARACTERS_OF_READ:
        return position + room // _CHARACTERS_OF_READ
    if not opened:  # the last commit had no room to spare; reading some messages makes room
        return position + 16
    return position


def worst_parts(opened: Sequence[int], position: int) -> list[tuple[int, int]]:
    """Return at most how many characters the open offsets take, whatever subset of them is done: parts for
    :func:`timers.queue.metadata.layout`, each of consecutive offsets and the done ones that follow.

    An open message counts as one character, and the gap after it as the characters of its length. No subset takes more:
    if messages between gaps are done, the three parts become one gap, which takes no more characters than they did; and
    ``n`` consecutive messages take at most ``n`` characters, namely if every second one is done.

    Args:
        opened: ascending.
        position: end of the last gap.
    """
    parts, first = [], 0
    ends = [index for index, (before, after) in enumerate(pairwise(opened), 1) if after - before > 1]
    for end in (*ends, len(opened)) if opened else ():
        next_open = opened[end] if end < len(opened) else position
        gap = next_open - opened[end - 1] - 1
        parts.append((end - first + (gap.bit_length() + 4) // 5, next_open - opened[first]))
        first = end
    return parts


class Loaded(NamedTuple):
    """What is committed for a partition, and the offsets that its log has: from ``low`` to before ``high``."""

    saved: Saved
    commit: Commit | None
    low: int
    high: int

    @property
    def known(self) -> Saved:
        """What counts. What is committed above the last record that was read is not known to be in this log."""
        return self.saved if self.saved.lineage.batch is None else self.saved.below(self.saved.lineage.end)

    def cut(self, found: tuple[int, int] | None, own: tuple[int, int] | None) -> Loaded:
        """Return what counts if the log parted, by what is committed or by what this process itself has read: perhaps
        that is not committed. What ran in it has not ended a process."""
        known = [each for each in (found, own) if each is not None]
        if not known:
            return self
        saved = self.saved.cut(*min(known, key=lambda each: (each[0], -each[1])))
        return self._replace(saved=saved if own is None else saved._replace(start=NO_START))


def way_on(name: str) -> str:
    """Return how an operator accepts what the partition of this name has lost."""
    return (
        f"To go on with the messages that are there, start once with `timers queue run --accept-loss {name}`, or with "
        f"Queue(accept_loss=['{name}'])"
    )


def loaded_from(
    name: str, commit: Commit | None, copy: Commit | None, bounds: tuple[int, int], log: str, *, accepts: bool
) -> tuple[Loaded, list[str]]:
    """Return what counts for a partition, and in sentences what is lost.

    A partition without a committed offset begins where its newest copy says, or with its first message.

    Raises:
        QueueError: messages that are not done are not in the log, or another version wrote the metadata.
    """
    low, high = bounds
    saved, lost = saved_by(name, commit, copy, log)
    sentences = [lost] if lost else []
    if saved is None:
        saved = Saved(low)
    read_to = saved.done[-1][1] if saved.done else saved.offset
    is_cut = read_to > high and not saved.lineage.epochs  # else it is asked where the log parts
    if saved.offset < low or is_cut:
        gone = (
            f"the messages from {saved.offset} on are not done, and the log has {low} to {high}: retention deleted "
            "messages, or the topic was recreated"
        )
        if not accepts:
            raise QueueError(f"{name}: {gone}. {way_on(name)}")
        sentences.append(f"{gone}. The queue goes on with the messages from {low} on")
        saved = saved if saved.offset < low else saved.cut(low, -1)
    return Loaded(saved, commit, low, high), sentences


def saved_by(name: str, commit: Commit | None, copy: Commit | None, log: str) -> tuple[Saved | None, str]:
    """Return what a commit or else its copy says, None if the first message of the log is the next one; and in a
    sentence what was lost, if anything was.

    Raises:
        QueueError: another version wrote the metadata.
    """
    found = commit or copy
    if found is None:
        return None, ""
    try:
        saved = decode(found.metadata, log, found.offset)
    except OtherVersionError as error:
        raise QueueError(f"{name}: {error}") from error
    except DeletedLogError:
        return None, "the topic was deleted and created again, so all its messages are delivered"
    except ForeignMetadataError as error:
        if commit is None:
            return None, ""
        return Saved(commit.offset), (
            f"the metadata of the committed offset is not this queue's ({error}). A tool or another program of the "
            f"group committed it. Messages below {commit.offset} count as done; those from there on that were done are "
            "delivered again"
        )
    if commit is None:
        return saved, "the group has no offset, so the copy of its last commits counts, up to a minute old"
    return saved, ""


_RESOLUTION_S = 0.001
"""Append times are whole milliseconds, rounded down."""


class BrokersClock:
    """The brokers' time, in epoch seconds, for times of this process's own clock.

    A delay that outlives its process is kept as an instant of the brokers' time: clocks of two processes may be a day
    apart. A process learns this time when it writes a record, whose append time is between two times of its
    own clock.
    """

    def __init__(self) -> None:
        self._least_ahead_s: float | None = None
        self._most_ahead_s = 0.0

    def note(self, append_s: float, sent_s: float, reported_s: float) -> None:
        """Note the append time of a record, and when it was sent and reported by the own clock."""
        self._most_ahead_s = append_s + _RESOLUTION_S - sent_s
        self._least_ahead_s = append_s - reported_s

    @property
    def is_known(self) -> bool:
        return self._least_ahead_s is not None

    def latest(self, own_s: float) -> float:
        """Return the brokers' time at ``own_s`` of the own clock, or a later one."""
        return own_s + self._most_ahead_s

    def own(self, brokers_s: float) -> float:
        """Return when it is ``brokers_s`` by the own clock, or a later time."""
        assert self._least_ahead_s is not None
        return brokers_s - self._least_ahead_s
