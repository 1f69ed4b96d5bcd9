"""Passing over records that no consumer can read, once an operator has accepted that.

Brokers do not look at all bytes of a batch, so they may take one that neither a worker nor Java's consumer can read.
The range that is passed over is a value of progress, in the settings history: a replay must not accept such a record,
also if a later version can read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from timers.core.ports import Output
from timers.core.progress import Progress
from timers.core.timer import Rejected

if TYPE_CHECKING:
    from timers.core.machine import Machine


def pass_over(machine: Machine, letter: Rejected, end_offset: int) -> bool:
    """Let a machine pass over the records from that of a dead letter on up to, and without, ``end_offset``.

    Range and dead letter are committed in one transaction, so there is one dead letter, also if the worker is killed.

    Returns:
        Whether it is committed. If not, the machine recovers or has no tick yet: try again later.

    Raises:
        Lost: drop this machine and open it again.
    """
    if machine.progress.settings.passes_over(letter.offset, end_offset):
        return True
    change = partial(Progress.passing_over, from_offset=letter.offset, end_offset=end_offset)
    return machine.commit_change(change, Output(rejected=[letter]))


def left(records: Sequence[Any], ranges: Sequence[tuple[int, int]]) -> Sequence[Any]:
    """Returns the records that are in none of these ranges of offsets."""
    for low, high in ranges:
        if records and low <= records[-1].offset and records[0].offset < high:
            records = [record for record in records if not low <= record.offset < high]
    return records
