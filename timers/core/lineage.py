"""Which log a position belongs to, and where another log with the same offsets parts from it [I28].

An offset alone does not say that the log below it is the one that was read. An unclean election, a disk that lost its
newest writes, or an old copy of a disk gives a log that ended earlier and has grown again. So each position has a
:class:`Lineage`: the leader epochs of the record batches that were read, and the header of the last one.

The batch is needed because a broker that starts from an old disk may give an epoch number a second time. A *list* of
epochs is needed because a replica may have more records of an older epoch than the log that was read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

MAX_EPOCHS = 32
"""Leader epochs that are kept, the newest ones. Each one takes about 8 bytes of each progress record."""


class Batch(NamedTuple):
    """Fields of the header of a record batch. Two different batches differ in at least one of them."""

    base_offset: int
    last_offset: int
    max_timestamp_ms: int
    crc: int


PassedBatch: TypeAlias = tuple[int, Batch]
"""(leader epoch, header) of a batch that a fetch has passed: also a marker, or a batch of an aborted transaction."""


class EpochEnd(NamedTuple):
    """A broker's answer to the question where a leader epoch ends (Kafka's ``OffsetForLeaderEpoch``)."""

    epoch: int
    """The newest epoch of the log that is not above the one that was asked for; -1 if the log knows none as high."""
    end: int
    """The offset at which the next epoch begins; for the newest epoch, the end of the log; -1 like ``epoch``."""


class Leader(NamedTuple):
    """The leader that a fetch came from. If it is another one, its log may be another one too."""

    epoch: int
    """Leader epoch of the last batch of the fetch."""
    connection: int
    """Number of the consumer's connection to it; another one after each reconnection, so after each of its restarts."""


class Parted(NamedTuple):
    """The log is another one above an offset."""

    offset: int | None
    """The two logs agree below this offset; None if the offset is not known."""


class Unknown(NamedTuple):
    """The log is compacted, and the last batch was removed from it: it cannot be compared."""


Answer: TypeAlias = Parted | Unknown | None
"""Where a log parts from a lineage; None: it is the same log."""


class RecordCount(NamedTuple):
    """How many records a log has in the range [``since``, ``to``), so that it is noticed if it loses some [I32].

    Two counts of one log can be compared if they have the same range.
    """

    since: int
    to: int
    records: int
    """Without markers and aborted records, which no reader gets."""
    sure_to: int
    """Up to this offset, the records were counted when they were accepted; from there on, when they were read again."""

    def through(self, records: Sequence[Any], to: int) -> RecordCount:
        """Returns the count after the records up to ``to`` were read again."""
        if records and records[0].offset < self.since:
            records = [record for record in records if record.offset >= self.since]
        return RecordCount(self.since, to, self.records + len(records), self.sure_to)

    def above(self, position: int, below: RecordCount | None) -> RecordCount | None:
        """Returns the count of the records from ``position`` on only; ``below``: those before it; None: not known."""
        if self.since >= position:
            return self
        if below is None or below.since != self.since:
            return None
        return self._replace(since=position, records=self.records - below.records)


class Lineage(NamedTuple):
    """Which log was read up to a position."""

    epochs: tuple[tuple[int, int], ...] = ()
    """(leader epoch, offset of the first batch that was read in it), ascending."""
    batch: Batch | None = None
    """The last whole batch below the position; None before the first one, and after a cut."""
    end: int = 0
    """The offset up to which the epochs are known: that after the last batch, or that of a cut."""
    counted: RecordCount | None = None
    """Of the records below the position, if it ends there; None: not known."""

    def through(self, passed: Sequence[PassedBatch], position: int) -> Lineage:
        """Returns the lineage of ``position``, after a fetch has passed these batches in ascending order.

        A batch that ends at or after ``position`` does not count: a fetch may end inside of it.
        """
        epochs, batch, newest = self.epochs, self.batch, self.epochs[-1][0] if self.epochs else -1
        end = self.end
        for epoch, each in passed:
            if each.last_offset >= position:
                break
            if each.last_offset < end:
                continue  # read again
            batch = each
            if epoch > newest:
                epochs, newest = (*epochs, (epoch, each.base_offset))[-MAX_EPOCHS:], epoch
        if batch is None or batch is self.batch:
            return self
        return self._replace(epochs=epochs, batch=batch, end=batch.last_offset + 1)

    def at(self, position: int, passed: Sequence[PassedBatch]) -> Lineage:
        """Returns the lineage of ``position``, also if this one is that of a later position; see :meth:`through`."""
        return self.before(position) if self.end > position else self.through(passed, position)

    def before(self, offset: int) -> Lineage:
        """Returns what is known of the log below ``offset``, after all records from there on were lost."""
        counted = self.counted if self.counted is not None and self.counted.to <= offset else None
        if self.end <= offset:
            return self if counted is self.counted else self._replace(counted=counted)
        return Lineage(tuple(each for each in self.epochs if each[1] < offset), None, offset, counted)

    def count_at(self, position: int) -> RecordCount | None:
        """Returns the count of the records below ``position``; None: not known."""
        return self.counted if self.counted is not None and self.counted.to == position else None

    def uncounted(self) -> Lineage:
        """Returns the same without a count, so that counting begins anew."""
        return self if self.counted is None else self._replace(counted=None)

    def epoch_before(self, offset: int) -> int:
        """Returns the epoch of the last batch below ``offset``; -1 if it is not known."""
        return max((epoch for epoch, first in self.epochs if first < offset), default=-1)

    def end_of(self, index: int) -> int:
        """Returns the offset at which the epoch with this index ends."""
        return self.epochs[index + 1][1] if index + 1 < len(self.epochs) else self.end


def counted_again(stored: RecordCount | None, accepted: RecordCount | None, position: int) -> RecordCount | None:
    """Returns the count to go on with when the log is read again from ``position``, where a store ended.

    Args:
        stored: of the store, which ends there; None: not known.
        accepted: of all that was accepted, to compare with at its end; None: not known.

    Returns:
        None if the count cannot be compared in the end.
    """
    if accepted is None or (stored is not None and stored.since == accepted.since):
        return stored
    since = accepted.since
    return RecordCount(since, position, 0, since) if position <= since else None


def continued(stored: RecordCount | None, accepted: RecordCount | None) -> RecordCount | None:
    """Returns the count of an opened store that has all that was accepted, and perhaps more; None: counting begins
    anew, because another worker has accepted a loss in the meantime, or one of the counts is not known."""
    if stored is None or accepted is None or stored.since != accepted.since:
        return None
    return stored if stored.to > accepted.to or stored.records == accepted.records else None


def next_question(lineage: Lineage, ends: Mapping[int, EpochEnd]) -> int | Parted | None:
    """Compare a lineage with a log, by the answers of its leader. Each answer leads to at most one more question.

    Args:
        ends: leader epoch -> answer, for the epochs that were asked for.

    Returns:
        The epoch to ask for next; :class:`Parted`; or None if the epochs of the log are those of the lineage. If the
        log knows no epoch at all, this says nothing: the result is None, and the batch must be compared.
    """
    epochs = lineage.epochs
    index = len(epochs) - 1
    while index >= 0 and lineage.end:
        epoch = epochs[index][0]
        if epoch not in ends:
            return epoch
        found = ends[epoch]
        if found.epoch == epoch:
            end = min(found.end, lineage.end_of(index))
            is_newest = index == len(epochs) - 1
            return None if is_newest and end >= lineage.end else Parted(end)
        if found.epoch < 0:
            index -= 1  # the log has no epoch as high as this one: look for an older epoch
            continue
        older = [at for at, (each, _) in enumerate(epochs) if each <= found.epoch]
        if not older:
            return Parted(min(found.end, epochs[0][1]))
        index = older[-1]
        if epochs[index][0] == found.epoch:
            return Parted(min(found.end, lineage.end_of(index)))
    return None


def compared(
    lineage: Lineage, ends: Mapping[int, EpochEnd], present: Batch | None, *, is_compacted: bool = False
) -> Answer | int:
    """Returns where a log parts from a lineage, whose epochs were asked for.

    Args:
        ends: leader epoch -> answer; :func:`next_question` has no further one.
        present: the batch that the log has in the place of the last one; None: it was not asked for, or is gone.

    Returns:
        None if it is the same log; or a time in ms, if it parts inside of an epoch whose number was given twice: ask
        for the first record that was appended after it, then :func:`parted_inside`.
    """
    parted, batch = next_question(lineage, ends), lineage.batch
    if batch is None or (isinstance(parted, Parted) and not ends_early(lineage, ends)):
        return parted if isinstance(parted, Parted) else None
    if parted is None and (present is None or present == batch):
        return None
    if parted is None and present is not None and is_compacted:
        return None if present[:2] == batch[:2] else Unknown()
    return batch.max_timestamp_ms


def ends_early(lineage: Lineage, ends: Mapping[int, EpochEnd]) -> bool:
    """Whether the newest epoch is the newest one of the log too, and the log ends before the last batch.

    Then the log may have grown again in the same epoch: its end may be above the offset at which the logs part.
    """
    epoch = lineage.epochs[-1][0] if lineage.epochs else -1
    return epoch in ends and ends[epoch].epoch == epoch and ends[epoch].end < lineage.end


def parted_inside(lineage: Lineage, ends: Mapping[int, EpochEnd], first_later: int | None) -> int | Parted:
    """Returns where a log parts whose newest epoch is that of the lineage, if it ends early or its batch differs.

    This happens if epoch numbers were given twice, because an old copy of a whole cluster was restored.

    Args:
        ends: leader epoch -> answer, for the epochs that were asked for.
        first_later: offset of the first record that was appended after the last batch of the lineage; None if there is
            none, or if producers set the times. What was appended after the loss is later than all that was read.

    Returns:
        The epoch to ask for next; or an offset below which the logs agree. If ``first_later`` is None, they may agree
        above it too.
    """
    for index, (epoch, first_offset) in enumerate(lineage.epochs):
        if epoch not in ends:
            return epoch
        found, end = ends[epoch], lineage.end_of(index)
        if found.epoch != epoch:
            return Parted(first_offset if found.epoch < 0 else min(found.end, first_offset))
        if index == len(lineage.epochs) - 1:
            known = min(found.end, end) if found.end < end else first_offset
            at = max(first_offset, known if first_later is None else min(first_later, found.end, end))
            return Parted(min(found.end, at))  # the first batches of the epoch may not have been read
        if found.end != end:
            return Parted(min(found.end, end))
    return Parted(None)
