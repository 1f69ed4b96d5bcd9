"""A simulated log of a queue's partition: it has holes and leader epochs, and can lose its end and grow again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from confluent_kafka import OFFSET_END, KafkaError

from timers.core.lineage import EpochEnd
from timers.queue.metadata import Partition
from timers.queue.verification import NO_OFFSET
from timers.wire.headers import Header

LANES = 4
"""Messages of one lane have one key."""


class SimMessage(NamedTuple):
    """A message, as confluent-kafka shows it. Its time is unique, also if its offset and its epoch are not."""

    place: Partition
    at: int
    epoch: int
    time_ms: int
    of_key: bytes
    signed: Sequence[Header] = ()

    def error(self) -> None:
        return None

    def topic(self) -> str:
        return self.place[0]

    def partition(self) -> int:
        return self.place[1]

    def offset(self) -> int:
        return self.at

    def leader_epoch(self) -> int:
        return self.epoch

    def timestamp(self) -> tuple[int, int]:
        return 2, self.time_ms

    def key(self) -> bytes:
        return self.of_key

    def value(self) -> bytes:
        return b""

    def headers(self) -> list[Header]:
        return list(self.signed)


class Event(NamedTuple):
    """An event of a partition, as confluent-kafka shows it."""

    place: Partition
    code: int
    at: int
    said: str = ""

    def error(self) -> KafkaError:
        return KafkaError(self.code, self.said)

    def topic(self) -> str:
        return self.place[0]

    def partition(self) -> int:
        return self.place[1]

    def offset(self) -> int:
        return self.at


@dataclass
class SimLog:
    """One partition's log.

    Attributes:
        messages: ascending; offsets without a message hold a marker.
        end: the offset after the last message or marker.
        starts: leader epochs with their first offsets, ascending.
        cuts: where it lost its end, in the order of the losses.
        is_restored: whether a number of an epoch may be given twice.
    """

    place: Partition
    messages: list[SimMessage] = field(default_factory=list)
    end: int = 0
    starts: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    cuts: list[int] = field(default_factory=list)
    is_restored: bool = False
    appended: int = 0

    @classmethod
    def of(cls, place: Partition, rng: Random, count: int, end: int) -> SimLog:
        log = cls(place)
        held = set(rng.sample(range(end), count))
        while log.end < end:
            if rng.random() < 0.1:
                log.elect()
            log.append(is_message=log.end in held)
        return log

    @property
    def epoch(self) -> int:
        return self.starts[-1][0]

    def append(self, *, is_message: bool = True, key: bytes | None = None, headers: Sequence[Header] = ()) -> None:
        if is_message:
            self.appended += 1
            key = b"%d" % (self.end % LANES) if key is None else key
            self.messages.append(SimMessage(self.place, self.end, self.epoch, self.appended, key, headers))
        self.end += 1

    def elect(self) -> None:
        """Another leader follows, with the same log."""
        epoch = self.epoch + 1
        if self.starts[-1][1] == self.end:
            self.starts.pop()  # nothing was written in it
        self.starts.append((epoch, self.end))

    def lose(self, at: int, *, is_restored: bool) -> None:
        """Lose all from an offset on. A disk that is restored gives the numbers of epochs a second time."""
        newest = self.epoch
        self.messages = [each for each in self.messages if each.at < at]
        self.end = at
        self.starts = [each for each in self.starts if each[1] < at]
        self.cuts.append(at)
        self.is_restored |= is_restored
        if not is_restored:
            self.starts.append((newest, at))
            self.elect()

    def epoch_end(self, epoch: int) -> EpochEnd:
        """Answer as a broker does (``LeaderEpochFileCache.endOffsetFor``)."""
        if epoch > self.epoch:
            return EpochEnd(-1, -1)
        later = [first for each, first in self.starts if each > epoch]
        return EpochEnd(max((each for each, _ in self.starts if each <= epoch), default=epoch), min([self.end, *later]))

    def answer(self, epoch: int) -> Event:
        """What librdkafka says to the question where a leader epoch ends."""
        found, end = self.epoch_end(epoch)
        said = f"truncated at {NO_OFFSET}: broker end offset is {end} (offset leader epoch {found})."
        return Event(self.place, KafkaError._AUTO_OFFSET_RESET, -1, said)

    def read(self, position: int, limit: int) -> tuple[list[SimMessage | Event], int]:
        """What is read from a position on, and the position after it."""
        if position == OFFSET_END:
            position = self.end
        if position > self.end:
            return [Event(self.place, KafkaError._AUTO_OFFSET_RESET, position, "Offset out of range")], position
        found = [each for each in self.messages if each.at >= position][:limit]
        if not found:
            return [Event(self.place, KafkaError._PARTITION_EOF, self.end)], position
        return [*found], found[-1].at + 1
