"""Judges what was read of the progress of machines. It asks no broker: the simulated worker has these rules, too."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from timers.core import levels
from timers.core.doubts import is_refused
from timers.core.keys import NOTHING_FIRED
from timers.core.ports import Lost
from timers.core.progress import PARTITION_COUNT, WITNESS_S, Progress, Witness
from timers.core.rescue import Cut
from timers.core.timer import TopicPartition
from timers.errors import DoubtfulLog, LevelTooHigh, LogMismatch
from timers.kafka.accepted_loss import check_loss
from timers.kafka.topics import Cluster
from timers.process.config.settings import Settings
from timers.wire import progress as progress_record
from timers.wire.progress import ANY_LEVEL
from timers.wire.topics import partition_name

logger = logging.getLogger(__name__)

SNAPSHOT_SUFFIX = ":snapshot"
"""In TIMERS_ACCEPT_LOSS after the name of a partition: also the loss of its snapshots, so of all that is pending."""

Copy: TypeAlias = tuple[int, str] | BaseException
"""Offset and text that the group has committed for a partition, or why they are not known."""


def progress_partition(tp: TopicPartition, cluster: Cluster, settings: Settings) -> int:
    """Partition of the progress topic with a machine's records. Machines are spread over the partitions.

    Raises:
        Lost: the topic was deleted.
    """
    count = cluster.partitions.get(settings.progress_topic)
    if not count:
        raise Lost(f"topic {settings.progress_topic!r} was deleted; once it is there again, the partition is opened")
    return tp[1] % count


def _said(values: Witness) -> str:
    """What a progress or its copy says, for a sentence."""
    due_s, offset = values.fired_through
    fired = (
        "nothing fired" if values.fired_through == NOTHING_FIRED else f"all fired up to second {due_s}, offset {offset}"
    )
    return f"says that it was accepted up to offset {values.next_offset} and {fired}"


class ProgressRules:
    """The rules of progress for the machines of one app.

    Args:
        settings: of the app. What its operator accepts to lose counts here.
    """

    def __init__(self, settings: Settings, cluster: Cluster) -> None:
        self._settings = settings
        self._cluster = cluster

    @property
    def supported(self) -> int:
        """The highest feature level that may be read. Simulated workers run other versions."""
        return levels.SUPPORTED

    def is_behind(self, tp: TopicPartition, record: bytes | None, copy: tuple[int, str]) -> bool:
        """Whether the group knows more of a machine than the record in the partition where its newest one belongs."""
        if record is None:
            return copy[0] > 0 or bool(copy[1])
        seen, topic_id = progress_record.decode_witness(copy[1]) or (None, b"")
        known, known_id = progress_record.decode(record, ANY_LEVEL, partition_name(*tp))
        if seen is None or topic_id != self._cluster.topic_ids[tp[0]]:
            return False
        return known_id != topic_id or known.is_behind(seen)

    def age(self, tp: TopicPartition, record: bytes) -> tuple[object, ...]:
        """Of two records of one log, the later one has no smaller values; offsets count from a cut on only."""
        known, topic_id = progress_record.decode(record, ANY_LEVEL, partition_name(*tp))
        seen = known.witness
        return (
            topic_id == self._cluster.topic_ids.get(tp[0]),
            seen.cut,
            seen.next_offset,
            seen.holes,
            seen.fired_through,
            known.taken,
            sum(hold.gone for hold in known.holds),
        )

    def checked(self, tp: TopicPartition, record: bytes | None, copy: Copy, end: int) -> Progress:
        """The machine's progress, compared with its log up to ``end``, and with the copy of it that the group has."""
        name, progress = partition_name(*tp), None if record is None else self.decoded(tp, record)
        committed, seen = 0, None
        if isinstance(copy, BaseException):
            logger.warning("%s: the copy of its progress in the group cannot be read: %r", name, copy)
        else:
            committed, text = copy
            seen, seen_id = progress_record.decode_witness(text) or (None, b"")
            if seen is None:
                committed = 0  # this commit is of another program in the group: it is not about the machine
            if seen_id != self._cluster.topic_ids[tp[0]]:
                seen = None
        if seen is not None and (known := progress or Progress()).is_behind(seen):
            if seen.level > self.supported:
                raise LevelTooHigh(seen.level, self.supported, name)
            progress = self.mismatch(
                tp,
                f"the progress of {name} {_said(known.witness)}, but the group {self._settings.app_id!r} "
                f"has a copy of it that {_said(seen)}: {self._settings.progress_topic!r} lost records, or an older "
                "record was written there (was an old copy of it restored, or an unclean leader elected?). Timers that "
                f"fired after this copy, for {WITNESS_S:.0f} s at most, may fire again",
                known.at_least(seen),
                way="with the larger values",
            )
        elif progress is None and committed > 0 and end > 0:
            progress = self.mismatch(
                tp,
                f"{name} has no progress in {self._settings.progress_topic!r}, but the group "
                f"{self._settings.app_id!r} committed offset {committed}: what has fired is not known, "
                "or not since its newest snapshot if it has one",
                Progress(next_offset=committed),
            )
        return progress or Progress()

    def decoded(self, tp: TopicPartition, record: bytes) -> Progress:
        """The progress in a record of a machine; that of a new machine, if its topic was deleted and created again."""
        machine = progress_record.machine_name(self._settings.app_id, *tp)
        progress, topic_id = progress_record.decode(record, self.supported, partition_name(*tp), machine)
        if topic_id == self._cluster.topic_ids[tp[0]]:
            return progress
        logger.warning(
            "topic %s was deleted and created again: %s starts from its beginning", tp[0], partition_name(*tp)
        )
        return Progress()

    def check_partitions(self, tp: TopicPartition, records: Mapping[TopicPartition, bytes]) -> None:
        """Check the number of partitions of a topic whose timers have ids.

        Raises:
            LogMismatch: partitions were added since timers were accepted there.
        """
        topic = tp[0]
        count = self._cluster.partitions[topic]
        for (record_topic, _), record in records.items():
            if record_topic != topic:
                continue
            try:
                progress, topic_id = progress_record.decode(record)
            except LevelTooHigh:  # this stops one machine: the others may have a lower level
                continue
            known = progress.setting_at(PARTITION_COUNT, progress.next_offset, count)
            if topic_id == self._cluster.topic_ids[topic] and known != count:
                self.mismatch(
                    tp,
                    f"{topic} has {count} partitions and had {known} when its timers were accepted: partitions were "
                    "added, and an id may come by another partition than its timer, which then could not be replaced "
                    "or cancelled. All timers of this topic wait, the other topics go on; what to do is in "
                    "docs/operations.md#partitions-added-to-a-topic-of-ids",
                    progress,
                )
                return

    def check_start(self, tp: TopicPartition, low: int, position: int, progress: Progress) -> None:
        """Check a log whose first offset ``low`` is after ``position``, where reading must start: nothing is left to
        restore the requests between them from.

        Raises:
            LogMismatch: records between them were deleted, and this app has read the log before.
        """
        begins = f"{partition_name(*tp)} begins at offset {low}, but must be read from {position}"
        named = [each.applied for each in (progress.snapshot, progress.older_snapshot) if each is not None]
        if named:
            offsets = " and ".join(map(str, named))
            sentence = (
                f"{begins}, and what is pending below cannot be restored: its snapshots, at offset {offsets}, cannot "
                "be read, or end before the log begins (the errors before this one say why)"
            )
            self.mismatch(tp, sentence, progress, kind=SNAPSHOT_SUFFIX)
        elif progress != Progress():  # a new app starts with the first record that exists
            sentence = "records were deleted before they could be read (retention.ms or retention.bytes is too small)"
            self.mismatch(tp, f"{begins}: {sentence}", progress)

    def check_doubt(self, tp: TopicPartition, progress: Progress, applied: int, compacted: str | None) -> Progress:
        """Returns the progress with which a machine whose store was written up to ``applied`` may go on [I29].

        Args:
            compacted: why the topic is compacted now, in a sentence; None: it is not.

        Raises:
            DoubtfulLog: the log may lack what the machine would read.
        """
        name, doubt = partition_name(*tp), progress.doubt
        if not is_refused(progress, applied, self._settings.worker_id, is_compacted=compacted is not None):
            ends = compacted is None and name in self._settings.accept_loss.split(",")
            return replace(progress, doubt=None) if ends else progress
        before = progress.next_offset if compacted is not None or doubt is None else doubt.before_offset
        whole = f"worker {doubt.worker}" if doubt is not None and doubt.worker else "the worker that owned it before"
        was = f"its topic {'is' if compacted else 'was'} compacted, and"
        if applied < before:
            why = f"{name} must be read from offset {applied}, but {was} requests below offset {before} may be gone"
        else:  # the doubt names another worker
            own = "the store here may have read its log after that, while another worker owned it"
            why = f"{name}: {was} {own}: it may lack requests below offset {before}"
        sentence = f"{why}. The store of {whole} is whole: start it with its disk"
        try:
            return self.mismatch(
                tp, f"{sentence}. {compacted}" if compacted else sentence, replace(progress, doubt=None)
            )
        except LogMismatch as mismatch:
            raise DoubtfulLog(str(mismatch), progress) from None

    def accept_cut(self, tp: TopicPartition, progress: Progress, cut: Cut, holds: str) -> Progress:
        """Returns the progress with which a machine goes on after its log has lost its end [I28].

        Args:
            holds: what a store holds of the range that is gone, as a sentence.

        Raises:
            LogMismatch: the loss was not accepted.
        """
        return self.mismatch(
            tp,
            f"{partition_name(*tp)} was read up to offset {progress.next_offset}, and has lost its records from offset "
            f"{cut.offset} on; what is there now are other records, or none (was an unclean leader elected, or an old "
            f"copy of a disk restored?). {holds}",
            cut.applied_to(progress),
        )

    def mismatch(
        self, tp: TopicPartition, sentence: str, fallback: Progress, way: str = "without them", kind: str = ""
    ) -> Progress:
        """Returns ``fallback``, if TIMERS_ACCEPT_LOSS names the partition, and the kind of loss if it has one.

        Raises:
            LogMismatch: with ``sentence``, if it does not.
        """
        check_loss(self._settings.accept_loss, tp, sentence, way, kind)
        return fallback
