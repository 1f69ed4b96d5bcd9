"""Classes that each break one rule about logs that may lack requests [I29]. The simulator must find each one."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.edits import changed
from tests.simulation.kit import SimOutbox, SimWorker
from timers.core.progress import Progress
from timers.core.timer import TopicPartition


class OpensInDoubt(SimWorker):
    """A log that may lack requests is read from its start."""

    def is_refused(self, machine: TopicPartition, progress: Progress, applied: int) -> bool:
        return False


class TrustsWhatItCouldNotCommit(SimWorker):
    """What a fenced machine has read counts as read by an owner."""

    def committed_to(self, machine: TopicPartition, applied: int) -> int:
        return applied


class ForgetsRefusals(SimWorker):
    """A worker that refuses a partition of a compacted topic commits no doubt."""

    def commit_refusal(self, outbox: SimOutbox, progress: Progress) -> None: ...


class KeepsDoubtsToItself(SimWorker):
    """Progress is read without its doubt."""

    def decode_progress(self, value: bytes | None) -> Progress:
        return replace(super().decode_progress(value), doubt=None)


CHANGED = {
    "[I29] a compacted topic is only reported": changed(("self.worker = worker", "pass")),
    "[I29] a store that a fenced machine has written is whole": changed(
        ('doubt.worker not in ("", worker)', "False"),
        worker=TrustsWhatItCouldNotCommit,  # else only a fenced worker that was restarted shows it
    ),
    "[I29] a doubt ends when the topic is corrected": changed(
        ("self._leftovers.are_gone(committed.fired_through)", "True"),
    ),
}
