"""A simulated log of a queue's partition: it has holes and leader epochs, and can lose its end and grow again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from confluent_kafka import OFFSET_END, KafkaError, Message

from timers.core.lineage import EpochEnd
from timers.queue.metadata import Partition
from timers.queue.verification import NO_OFFSET
from timers.wire.headers import Header

LANES = 4
"""Messages of one lane have one key."""


def _event(place: Partition, code: int, offset: int, said: str = "") -> Message:
    return Message(topic=place[0], partition=place[1], offset=offset, error=KafkaError(code, said))


@dataclass
class SimLog:
    """One partition's log.

    Attributes:
        messages: offset -> message, ascending; other offsets hold a marker. The time of a message is unique, also if
            its offset and its epoch are not.
        end: the offset after the last message or marker.
        starts: leader epochs with their first offsets, ascending.
        cuts: where it lost its end, in the order of the losses.
        is_restored: whether a number of an epoch may be given twice.
    """

    place: Partition
    messages: dict[int, Message] = field(default_factory=dict)
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
            content: Any = {"key": key, "value": b"", "headers": list(headers), "leader_epoch": self.epoch}
            self.messages[self.end] = Message(*self.place, self.end, timestamp=(2, self.appended), **content)
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
        self.messages = {offset: each for offset, each in self.messages.items() if offset < at}
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

    def answer(self, epoch: int) -> Message:
        """What librdkafka says to the question where a leader epoch ends."""
        found, end = self.epoch_end(epoch)
        said = f"truncated at {NO_OFFSET}: broker end offset is {end} (offset leader epoch {found})."
        return _event(self.place, KafkaError._AUTO_OFFSET_RESET, -1, said)

    def read(self, position: int, limit: int) -> tuple[list[Message], int]:
        """What is read from a position on, and the position after it."""
        if position == OFFSET_END:
            position = self.end
        if position > self.end:
            return [_event(self.place, KafkaError._AUTO_OFFSET_RESET, position, "Offset out of range")], position
        found = [offset for offset in self.messages if offset >= position][:limit]
        if not found:
            return [_event(self.place, KafkaError._PARTITION_EOF, self.end)], position
        return [self.messages[offset] for offset in found], found[-1] + 1
