"""Finds out whether a log is the one that a queue has read. Pure."""

from __future__ import annotations

import re
from typing import Any

from confluent_kafka import OFFSET_END, KafkaError

from timers.core.lineage import EpochEnd, Parted, next_question, parted_inside
from timers.kafka.error_codes import UNREADABLE
from timers.queue.ledger import passed
from timers.queue.metadata import MAX_EPOCHS, Loaded

NO_OFFSET = 2**62
"""No log has this offset."""

_ANSWER = re.compile(r"broker end offset is (-?\d+) \(offset leader epoch (-?\d+)\)")


def epoch_end(event: str) -> EpochEnd | None:
    """Return a leader's answer in the text of librdkafka's event; None if there is none."""
    found = _ANSWER.search(event)
    return None if found is None else EpochEnd(int(found[2]), int(found[1]))


class Verification:
    """Compares one log with the lineage of what was loaded, by the records and events that are read. Pure.

    The rules are those of workers (:mod:`timers.core.lineage`). What a queue knows and how it asks are different,
    because confluent-kafka shows records and no batches, and has no call that asks where a leader epoch ends:

    * Each record counts as a batch without a CRC. If an epoch number was given twice, the time of the record shows it.
    * Markers and aborted transactions are not seen. So what is known ends after the last record, and a process that
      verified its log reads on from there: a message that has the offset of a lost marker is read. For the same reason
      an epoch counts from the end of the last record before it.
    * The last record is read first. If it is there, the logs are equal below it, and no epoch must be asked for.
    * To ask where an epoch ends, a process seeks with this epoch an offset that no log has. librdkafka asks the leader
      before it reads there, and its event holds the answer.

    Attributes:
        loaded: what is to be verified.
        question: leader epoch whose end must be asked for; None: the last record must be read.
        parted: where the log parts, and the leader epoch that it has below; None if it does not. If the epoch is not
            known: the begin of the log, and -1.
        is_over: whether ``parted`` is the answer.
    """

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.question: int | None = None
        self.parted: tuple[int, int] | None = None
        self.is_over = False
        self._lineage = loaded.saved.lineage
        self._ends: dict[int, EpochEnd] = {}
        self._last = self._lineage.end - 1
        self._is_other = False
        # Else retention has deleted the batch.
        self._reads = self._lineage.batch is not None and self._last >= loaded.low
        if not self._reads:
            self._go_on()

    @classmethod
    def of(cls, loaded: Loaded) -> Verification | None:
        """Return a new verification; None if there is nothing to compare."""
        verification = cls(loaded)
        return verification if loaded.saved.lineage.epochs and not verification.is_over else None

    @property
    def position(self) -> tuple[int, int]:
        """Where to read: the end of the log before a question is asked. No epoch, so that librdkafka asks nothing."""
        return self._last if self.question is None else OFFSET_END, -1

    def note(self, record: Any) -> bool:
        """Note a record or an event of the partition; True if it is over, or the next step follows."""
        error = record.error()
        if self.is_over:
            return False
        if error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._note_reset(epoch_end(error.str()))
        elif self.question is not None:
            return False
        elif error is None:
            epoch, batch = passed(record)
            self.is_over = epoch < 0 or (epoch, batch) == (self._lineage.epochs[-1][0], self._lineage.batch)
            self._is_other = not self.is_over
        elif error.code() in UNREADABLE:  # the batch is there, and cannot be compared
            self._reads = False
        elif error.code() == KafkaError._PARTITION_EOF:
            self._is_other = record.offset() > self._last or self.loaded.high <= self._last
        else:
            return False
        if not self.is_over:
            self._go_on()
        return True

    def _note_reset(self, answer: EpochEnd | None) -> None:
        """Note that librdkafka does not read at the position."""
        if self.question is not None:  # without an answer the brokers do not know the request: as if the logs agreed
            self._ends[self.question] = answer or EpochEnd(self.question, NO_OFFSET)
        else:
            self._is_other, self._reads = self.loaded.high <= self._last, False

    def _go_on(self) -> None:
        """Find the next question, or the answer."""
        found, epochs = next_question(self._lineage, self._ends), self._lineage.epochs
        is_inside = found is None and self._is_other
        if is_inside:
            found = parted_inside(self._lineage, self._ends, None)
        elif isinstance(found, Parted) and self._ends[epochs[-1][0]].epoch < 0:
            found = self._parted_of_old_disks()
        self.question = found if isinstance(found, int) else None
        if isinstance(found, Parted):
            at = found.offset or 0
            epoch = self._epoch_before(at)
            # The epoch below the parting is unknown if former epochs were not kept, or if the first record that was
            # read is not the first one of its epoch. With a wrong epoch, the queue would not notice that the log loses
            # its end there, and would take the records that come then for done.
            is_unknown = epoch < 0 or (at <= epochs[0][1] and (is_inside or len(epochs) >= MAX_EPOCHS))
            self.is_over, self.parted = True, (self.loaded.low, -1) if is_unknown else (at, epoch)
        elif found is None:  # the record may be there, and its leader does not know yet that it is committed
            self.is_over = not self._reads
            self._ends = {}

    def _parted_of_old_disks(self) -> int | Parted:
        """Return where a log parts that knows no epoch as new as the last one that was read: its disks are old copies.

        It may have grown again in epochs whose numbers are given a second time, and an answer about such an epoch is
        the end of the new one. So the logs agree below the first epoch that does not end as before.

        Returns:
            The epoch to ask for next, or the place.
        """
        for index, (epoch, first) in enumerate(self._lineage.epochs):
            if epoch not in self._ends:
                return epoch
            if self._ends[epoch] != (epoch, self._lineage.end_of(index)):
                return Parted(first)
        raise AssertionError("the last epoch is not known to the log")

    def _epoch_before(self, at: int) -> int:
        """Return the leader epoch that the log has below an offset; -1 if it is not known."""
        newest, answers = self._lineage.epoch_before(at), self._ends.values()
        exact = next((found.epoch for found in answers if found.end == at > 0), -1)
        goes_on = any(found.epoch == newest and at < found.end < NO_OFFSET for found in answers)
        return newest if goes_on and exact < 0 else exact
