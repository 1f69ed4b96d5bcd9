"""Batches that no consumer can read: the partition is red with a sentence, until an operator passes over them.

The machine stays open. Timers without an id that were accepted before such a batch fire on. Timers with an id do not
fire while the end of the log was not read [I17]: a cancel may be in the batch or after it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from timers.core.levels import READABLE_LATE
from timers.core.passed_over import pass_over
from timers.core.progress import MAX_PASSED_OVER
from timers.core.timer import Rejected, TopicPartition
from timers.kafka.aiokafka_internals.batch_pieces import UnreadableBatch
from timers.threads import log_failure
from timers.wire.dead_letter import BATCH_UNREADABLE
from timers.wire.topics import partition_name
from timers.worker.machines.runner import Ended, Runner

if TYPE_CHECKING:
    from timers.worker.machines.pool import Pool

logger = logging.getLogger(__name__)

_RANGE = re.compile(r"([0-9]{1,19})-([0-9]{1,19})")


def is_accepted(accept_loss: str, tp: TopicPartition, from_offset: int, end_offset: int) -> bool:
    """Returns whether TIMERS_ACCEPT_LOSS names a range of a partition, or a larger one, as ``topic/partition:from-to``.

    Args:
        accept_loss: the value of the setting.
        tp: the partition.
        from_offset: of the range.
        end_offset: the offset after its last record.
    """
    names = (each.rpartition(":") for each in accept_loss.split(","))
    ranges = [_RANGE.fullmatch(of) for name, _, of in names if name == partition_name(*tp)]
    return any(each and int(each[1]) <= from_offset and end_offset <= int(each[2]) + 1 for each in ranges)


class Unreadable:
    """The partitions of a worker that cannot be read on. Methods run on the event loop of the pool.

    Attributes:
        sentences: partition -> what is wrong, and what to do. Any thread may read it: a change replaces the mapping.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.sentences: Mapping[TopicPartition, str] = {}

    def forget(self, tp: TopicPartition) -> None:
        """Note that a partition is read on, or is closed."""
        self.sentences = {each: sentence for each, sentence in self.sentences.items() if each != tp}

    def note(self, tp: TopicPartition, batch: UnreadableBatch) -> None:
        """Let the machine pass over a batch that cannot be read, if an operator has accepted that; else say what to do.

        It is called again every two seconds until the batch is passed over.
        """
        runner, settings = self._pool.runners.get(tp), self._pool.parts.settings
        if runner is None:
            return
        sentence = f"{batch.args[0]}. No record after it is read, and {self._consequence(tp)}. {self._way(tp, batch)}"
        history = runner.machine.progress.settings
        may_pass = history.level >= READABLE_LATE and len(history.passed_over) < MAX_PASSED_OVER
        if may_pass and is_accepted(settings.accept_loss, tp, batch.from_offset, batch.end_offset):
            self._pass_over(runner, batch)
        elif self.sentences.get(tp) != sentence:
            logger.critical("%s", sentence)
            self.sentences = {**self.sentences, tp: sentence}

    def _consequence(self, tp: TopicPartition) -> str:
        if self._pool.formats[tp[0]].has_ids:
            return "its timers wait, because a cancel or an update of each of them may be there"
        return "timers that were accepted before it fire on"

    def _way(self, tp: TopicPartition, batch: UnreadableBatch) -> str:
        """What an operator can do."""
        progress = self._pool.runners[tp].machine.progress
        if len(progress.settings.passed_over) >= MAX_PASSED_OVER:
            return (
                f"{MAX_PASSED_OVER} batches of this partition are passed over, and no more can be: move its timers to "
                "another topic (docs/operations.md#a-batch-that-cannot-be-read)"
            )
        first = ""
        if progress.level < READABLE_LATE:
            first = f"run `timers levels --raise {READABLE_LATE}` (docs/operations.md#feature-levels), then "
        names = self._pool.parts.settings.accept_loss
        if not is_accepted(names, tp, batch.from_offset, batch.end_offset):
            name = f"{partition_name(*tp)}:{batch.from_offset}-{batch.end_offset - 1}"
            names = f"{names},{name}" if names else name
        return (
            f"To go on without these records, {first}start once with TIMERS_ACCEPT_LOSS={names} "
            "(docs/operations.md#a-batch-that-cannot-be-read)"
        )

    def _pass_over(self, runner: Runner, batch: UnreadableBatch) -> None:
        text = f"{batch.args[0]}; it was passed over, as TIMERS_ACCEPT_LOSS says"
        letter = Rejected(batch.from_offset, BATCH_UNREADABLE, text, None, batch.raw, [])
        asked: Future[bool] = runner.ask(partial(pass_over, letter=letter, end_offset=batch.end_offset))
        asked.add_done_callback(log_failure("a batch that cannot be read was not passed over", Ended))

        def note(answer: Future[bool]) -> None:
            if not answer.cancelled() and answer.exception() is None and answer.result():
                logger.warning("%s", text)

        asked.add_done_callback(note)
