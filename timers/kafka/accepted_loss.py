"""What an operator accepts to lose, by TIMERS_ACCEPT_LOSS: records, or a batch that no consumer can read."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from timers.core.progress import MAX_PASSED_OVER, Progress
from timers.core.timer import Rejected, TopicPartition
from timers.errors import LogMismatch
from timers.wire.dead_letter import BATCH_UNREADABLE
from timers.wire.topics import partition_name

if TYPE_CHECKING:
    from timers.kafka.aiokafka_internals.batch_pieces import UnreadableBatch

logger = logging.getLogger(__name__)

_RANGE = re.compile(r"([0-9]{1,19})-([0-9]{1,19})")
_MORE = "docs/operations.md#a-batch-that-cannot-be-read"


def check_loss(accept_loss: str, tp: TopicPartition, sentence: str, way: str = "without them", kind: str = "") -> None:
    """Log a loss of records that an operator has accepted.

    Args:
        kind: of the loss, if it has one; it stands there after the name of the partition.

    Raises:
        LogMismatch: with ``sentence``, if it is not accepted.
    """
    name = partition_name(*tp) + kind
    if name not in accept_loss.split(","):
        names = f"{accept_loss},{name}" if accept_loss else name
        raise LogMismatch(f"{sentence}. To go on {way}, start once with TIMERS_ACCEPT_LOSS={names}")
    logger.warning("%s; going on, as TIMERS_ACCEPT_LOSS says", sentence)


def is_accepted(accept_loss: str, tp: TopicPartition, batch: UnreadableBatch) -> bool:
    """Returns whether TIMERS_ACCEPT_LOSS, of this value, names the offsets of a batch, or more: ``topic/p:from-to``."""
    names = (each.rpartition(":") for each in accept_loss.split(","))
    ranges = [_RANGE.fullmatch(of) for name, _, of in names if name == partition_name(*tp)]
    return any(each and int(each[1]) <= batch.from_offset and batch.end_offset <= int(each[2]) + 1 for each in ranges)


def refusal(
    accept_loss: str, tp: TopicPartition, batch: UnreadableBatch, progress: Progress, consequence: str
) -> str | None:
    """Returns why a batch is not passed over, and what to do, in sentences; None: it may be passed over.

    Args:
        consequence: what else happens if no record after the batch is read.
    """
    is_full = len(progress.settings.passed_over) >= MAX_PASSED_OVER
    accepted = batch.end_offset > batch.from_offset and is_accepted(accept_loss, tp, batch)
    if accepted and not is_full:
        return None
    if is_full:
        way = (
            f"{MAX_PASSED_OVER} batches of this partition are passed over, and no more can be: move its timers to "
            f"another topic ({_MORE})"
        )
    elif batch.end_offset <= batch.from_offset:
        way = (
            "Let another broker lead the partition, if it has a sound replica. Where this batch ends is not known, "
            "because its header is damaged too and no batch after it was fetched: after another request has arrived, "
            f"this sentence names the range that can be passed over ({_MORE})"
        )
    else:
        name = f"{partition_name(*tp)}:{batch.from_offset}-{batch.end_offset - 1}"
        names = ",".join(filter(None, (accept_loss, name)))
        way = f"To go on without these records, start once with TIMERS_ACCEPT_LOSS={names} ({_MORE})"
    return f"{batch.args[0]}. No record after it is read, and {consequence}. {way}"


def letter_of(batch: UnreadableBatch) -> Rejected:
    """Returns the dead letter of a batch that is passed over."""
    text = f"{batch.args[0]}; it was passed over, as TIMERS_ACCEPT_LOSS says"
    return Rejected(batch.from_offset, BATCH_UNREADABLE, text, None, batch.raw, [])
