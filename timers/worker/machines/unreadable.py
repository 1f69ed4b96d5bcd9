"""Batches that no consumer can read: the partition is red with a sentence, until an operator passes over them.

The machine stays open. Timers without an id that were accepted before such a batch fire on. Timers with an id do not
fire while the end of the log was not read [I17]: a cancel may be in the batch or after it. If a batch was damaged after
it was accepted, no timer fires before it is passed over: a replay needs all that was accepted [I15].
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial

from timers.core.passed_over import pass_over
from timers.core.ports import Lost
from timers.core.timer import TopicPartition
from timers.kafka.accepted_loss import letter_of, refusal
from timers.kafka.aiokafka_internals.batch_pieces import UnreadableBatch
from timers.machines.life import ReadAhead
from timers.process.threads import log_failure
from timers.wire.formats import RequestFormat
from timers.worker.machines.runner import Ended, Runner

logger = logging.getLogger(__name__)

WITH_IDS = "its timers wait, because a cancel or an update of each of them may be there"
WITHOUT_IDS = "timers that were accepted before it fire on"
REPLAYED = "its timers wait, because this batch was accepted before and must be read again"
PASSING = "It is passed over, as TIMERS_ACCEPT_LOSS says, once this is committed, which needs a tick of the time"


class UnreadablePartitions:
    """The partitions of a worker that cannot be read on. Methods run on the event loop of the pool.

    Args:
        formats: request topic -> request format.
        fail: ends the machine of a partition with an error.

    Attributes:
        sentences: partition -> what is wrong, and what to do. Any thread may read it: a change replaces the mapping.
    """

    def __init__(
        self,
        accept_loss: str,
        formats: Mapping[str, RequestFormat],
        runner_of: Callable[[TopicPartition], Runner | None],
        fail: Callable[[TopicPartition, Exception], None],
    ) -> None:
        self._accept_loss, self._formats, self._runner_of, self._fail = accept_loss, formats, runner_of, fail
        self.sentences: Mapping[TopicPartition, str] = {}
        self._asked: dict[TopicPartition, int] = {}

    def forget(self, tp: TopicPartition) -> None:
        """Note that a partition is read on, or is closed."""
        self._asked.pop(tp, None)
        self.sentences = {each: sentence for each, sentence in self.sentences.items() if each != tp}

    def note(self, tp: TopicPartition, batch: UnreadableBatch) -> None:
        """Let the machine pass over a batch that cannot be read, if an operator has accepted that; else say what to do.

        It is called again every two seconds until the batch is passed over. So a second call says that it is not yet.
        """
        runner = self._runner_of(tp)
        if runner is None:
            return
        if runner.reads_ahead:  # it may commit nothing: only the opening that fences its owner can go on
            self._fail(tp, ReadAhead())
            return
        waits = WITH_IDS if self._formats[tp[0]].has_ids else WITHOUT_IDS
        if runner.machine.recovering:
            waits = REPLAYED
        sentence = refusal(self._accept_loss, tp, batch, runner.machine.progress, waits)
        if sentence is None:
            letter = letter_of(batch)
            asked: Future[bool] = runner.ask(partial(pass_over, letter=letter, end_offset=batch.end_offset))
            asked.add_done_callback(log_failure("a batch that cannot be read was not passed over", Ended, Lost))
            asked.add_done_callback(partial(_log_passed, letter.message))
            was_asked, self._asked[tp] = self._asked.get(tp) == batch.from_offset, batch.from_offset
            sentence = f"{batch.args[0]}. {PASSING}" if was_asked else None
        if sentence is not None and self.sentences.get(tp) != sentence:
            logger.critical("%s", sentence)
            self.sentences = {**self.sentences, tp: sentence}


def _log_passed(sentence: str, asked: Future[bool]) -> None:
    if not asked.cancelled() and asked.exception() is None and asked.result():
        logger.warning("%s", sentence)
