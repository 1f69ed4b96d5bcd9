"""Which log a queue has read, and where another log with the same offsets parts from it. Pure.

An unclean election, or a disk that lost its end, gives a log that ended earlier and has grown again. Its new messages
have offsets that the ledger may know as done. So a commit names the last record that was read, with its leader epoch
and time, and the newest epochs before it. A process that loads the ledger reads this record again before all others: if
it is the same one, so is the log below it.

confluent-kafka has no call that asks a broker where an epoch ends. librdkafka asks after a change of the leader, if it
knows the epoch of its position, and its event has the answer: :func:`parted_at`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from timers.core.progress import Cuts

MAX_EPOCHS = 8
"""Leader epochs that a commit names. Each takes about 10 characters of its metadata."""

_PARTED = re.compile(
    r"truncation detected at offset \d+ \(leader epoch -?\d+\): "
    r"broker end offset is (-?\d+) \(offset leader epoch (-?\d+)\)"
)


class Last(NamedTuple):
    """The last record that was read."""

    offset: int
    epoch: int
    """-1 if the broker did not tell it."""
    time_ms: int


class EpochEnd(NamedTuple):
    """A broker's answer to the question where a leader epoch ends in its log."""

    end: int
    epoch: int
    """The newest one not above that which was asked for. Negative, as ``end``, if the log has none as high."""


class Lineage(NamedTuple):
    """The log that was read.

    Attributes:
        last: None if it is not known.
        epochs: (leader epoch, offset of the first record that was read in it), ascending: the newest ones.
        cuts: where the log parted from an earlier one, and all messages are new ones from there on.
    """

    last: Last | None = None
    epochs: tuple[tuple[int, int], ...] = ()
    cuts: Cuts = ()

    def through(self, last: Last) -> Lineage:
        """Return what is known after a record was read. No record between it and the former last one has an epoch that
        neither of them has."""
        if self.last is not None and last.offset <= self.last.offset:
            return self
        is_new = last.epoch >= 0 and (not self.epochs or last.epoch > self.epochs[-1][0])
        epochs = (*self.epochs, (last.epoch, last.offset))[-MAX_EPOCHS:] if is_new else self.epochs
        return Lineage(last, epochs, self.cuts)

    def epoch_before(self, offset: int) -> int:
        """Return the epoch of the last record below an offset, to read on there; -1 if it is not known."""
        if self.last is not None and self.last.offset < offset:
            return self.last.epoch
        return max((epoch for epoch, first in self.epochs if first < offset), default=-1)

    def parted_by(self, found: Last) -> int | None:
        """Return where the log parts in which ``found`` is the first record from the last one on; None if it does not.

        The result is an upper bound.
        """
        last = self.last
        if last is None or found == last or found.epoch < 0 or last.epoch < 0:
            return None
        if found.epoch > last.epoch:
            return last.offset
        # An older epoch: the log does not have the newer ones. The same one: its number was given a second time.
        later = [first for epoch, first in self.epochs if epoch > found.epoch or epoch == last.epoch]
        return min(later, default=0)

    def parted_from(self, found: EpochEnd) -> int:
        """Return where the log parts whose leader gave this answer for the epoch of the last record, at most."""
        if found.epoch < 0:  # the log has no epoch as high as the newest one: an older one may be in it
            return self.epochs[-1][1] if self.epochs else 0
        return min([found.end, *(first for epoch, first in self.epochs if epoch > found.epoch)])

    def cut(self, offset: int) -> Lineage:
        """Return what is known after the log parted at an offset, and this was accepted."""
        number = self.cuts[-1][1] + 1 if self.cuts else 1
        kept = tuple(each for each in self.cuts if each[0] < offset)  # the others are above the new cut
        epochs = tuple(each for each in self.epochs if each[1] < offset)
        return Lineage(None, epochs, (*kept, (offset, number)))

    def below(self, offset: int) -> Lineage:
        """Return what must be kept for messages from an offset on."""
        former = [each for each in self.cuts if each[0] <= offset][-1:]
        return self._replace(cuts=(*former, *(each for each in self.cuts if each[0] > offset)))


NEW = Lineage()


def parted_at(event: str) -> EpochEnd | None:
    """Return the answer of a broker in the text of librdkafka's event; None if the event is not of another log."""
    found = _PARTED.search(event)
    return None if found is None else EpochEnd(int(found[1]), int(found[2]))
