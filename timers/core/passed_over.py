"""Passing over records that no consumer can read, once an operator has accepted that.

Brokers do not look at all bytes of a batch, so they may take one that neither a worker nor Java's consumer can read.
The range that is passed over is a value of progress, in the settings history: a replay must not accept such a record,
also if a later version can read it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from timers.core.machine import Machine
from timers.core.ports import Output
from timers.core.progress import Progress
from timers.core.timer import Rejected


def pass_over(machine: Machine, letter: Rejected, end_offset: int) -> bool:
    """Let a machine pass over the records from that of a dead letter on up to, and without, ``end_offset``.

    Range and dead letter are committed in one transaction, so there is one dead letter, also if the worker is killed.

    A replay can meet such a batch too: a disk of a broker has damaged it since it was accepted. The replay cannot end
    without it, so the range is committed in the replay. This is no output of the replay [I15]: no worker wrote a dead
    letter of this batch before, else the range would be in the progress.

    Returns:
        Whether it is committed. If not, the machine has no tick yet, or rescues: try again later.

    Raises:
        Lost: drop this machine and open it again.
    """
    if machine.progress.settings.passes_over(letter.offset, end_offset):
        return True
    change = partial(_passing, from_offset=letter.offset, end_offset=end_offset, again=machine.recovering)
    return machine.commit_change(change, Output(rejected=[letter]), in_replay=True)


def _passing(progress: Progress, from_offset: int, end_offset: int, again: bool) -> Progress:
    after = progress.passing_over(from_offset, end_offset)
    # The machine counted these records when it accepted them [I32]. Each replay lacks them, so counting begins anew.
    return replace(after, lineage=after.lineage.uncounted()) if again else after
