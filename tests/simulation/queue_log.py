"""A simulated log of a queue's partition: it has holes and leader epochs, and can lose its end and grow again."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from confluent_kafka import KafkaError

from timers.core.lineage import EpochEnd
from timers.queue.new_partitions import Verification
from timers.queue.transport import NO_OFFSET


class SimMessage(NamedTuple):
    """A message. Its time is unique, also if its offset and its epoch are not."""

    at: int
    epoch: int
    time_ms: int

    def error(self) -> None:
        return None

    def offset(self) -> int:
        return self.at

    def leader_epoch(self) -> int:
        return self.epoch

    def timestamp(self) -> tuple[int, int]:
        return 1, self.time_ms


class Event(NamedTuple):
    """An event of confluent-kafka."""

    code: int
    at: int
    said: str = ""

    def error(self) -> KafkaError:
        return KafkaError(self.code, self.said)

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

    messages: list[SimMessage]
    end: int
    starts: list[tuple[int, int]]
    cuts: list[int]
    is_restored: bool = False
    appended: int = 0

    @classmethod
    def of(cls, rng: Random, count: int, end: int) -> SimLog:
        log = cls([], 0, [(0, 0)], [])
        held = set(rng.sample(range(end), count))
        while log.end < end:
            if rng.random() < 0.1:
                log.elect()
            log.append(is_message=log.end in held)
        return log

    @property
    def epoch(self) -> int:
        return self.starts[-1][0]

    def append(self, *, is_message: bool = True) -> None:
        if is_message:
            self.appended += 1
            self.messages.append(SimMessage(self.end, self.epoch, self.appended))
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

    def next(self, verification: Verification) -> SimMessage | Event:
        """What the step of a verification brings."""
        if verification.question is not None:
            found, end = self.epoch_end(verification.question)
            said = f"truncated at {NO_OFFSET}: broker end offset is {end} (offset leader epoch {found})."
            return Event(KafkaError._AUTO_OFFSET_RESET, -1, said)
        position, _ = verification.position
        if position > self.end:
            return Event(KafkaError._AUTO_OFFSET_RESET, position, "Offset out of range")
        later = (each for each in self.messages if each.at >= position)
        return next(later, Event(KafkaError._PARTITION_EOF, self.end))
