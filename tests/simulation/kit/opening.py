"""What an opening finds in a simulated run: the brokers and the disk. All that decides is the product's own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.simulation.kit.outbox import PROGRESS_PARTITION, TOPIC_ID
from timers.core.doubts import commit_refusal
from timers.core.lineage import Lineage, Parted
from timers.core.machine import Machine
from timers.core.ports import Lost
from timers.core.progress import NamedSnapshot, Progress
from timers.core.snapshots import Footer, Place, Unreadable
from timers.core.timer import TopicPartition
from timers.errors import Fenced
from timers.kafka.progress_rules import ProgressRules
from timers.kafka.topics import Cluster
from timers.machines.opener import Known
from timers.wire import progress as progress_record
from timers.wire import topics

if TYPE_CHECKING:
    from tests.simulation.kit.store import SimStore
    from tests.simulation.kit.worker import SimWorker


class SimProgressLog(ProgressRules):
    """What brokers have of the progress of machines. An operator accepts at once that a progress went back."""

    def __init__(self, worker: SimWorker) -> None:
        names = ",".join(topics.partition_name(*machine) for machine in sorted(worker.accepted))
        settings = replace(worker.settings, worker_id=worker.name, accept_loss=names)
        names_of_topics = {*worker.formats, settings.progress_topic}
        ids, counts = dict.fromkeys(names_of_topics, TOPIC_ID), dict.fromkeys(names_of_topics, worker.log.partitions)
        super().__init__(settings, Cluster("cluster", ids, counts))
        self._worker = worker

    @property
    def supported(self) -> int:
        return self._worker.supports

    def read_one(
        self, tp: TopicPartition, *, after_fence: bool = True
    ) -> tuple[dict[TopicPartition, bytes], Progress, tuple[int, int]]:
        log, records = self._worker.log, self.read([tp])
        copy = log.group_offsets.get((self._settings.app_id, tp), (0, ""))
        ends = self.ends(*tp)
        return records, self.checked(tp, records.get(tp), copy, ends[1]), ends

    def read(self, tps: Iterable[TopicPartition], **_: object) -> dict[TopicPartition, bytes]:
        newest = {tp: self._worker.newest_record(progress_record.encode_key(*tp)) for tp in tps}
        return {tp: record.value or b"" for tp, record in newest.items() if record is not None}

    def ends(self, topic: str, partition: int) -> tuple[int, int]:
        return self._worker.log.start(topic, partition), self._worker.log.end(topic, partition)

    def level_of_new_machines(self) -> int:
        return self._worker.first_level

    def mismatch(
        self, tp: TopicPartition, sentence: str, fallback: Progress, way: str = "without them", kind: str = ""
    ) -> Progress:
        if way in self._worker.accepts_at_once:
            self._worker.went_back += 1
            return fallback
        return super().mismatch(tp, sentence, fallback, way, kind)

    def close(self) -> None:
        """Do nothing."""


class NoSnapshots:
    """The snapshots of a run without any."""

    damaged = False

    def footer(self, named: NamedSnapshot) -> Footer:
        raise Unreadable("no snapshots were taken")

    def pages(self, named: NamedSnapshot) -> Iterable[Any]:
        return ()

    def whole(self) -> Iterable[tuple[NamedSnapshot, Footer]]:
        return ()

    def close(self) -> None:
        """Do nothing."""


class SimStores:
    """The stores of a worker, as :class:`timers.machines.store.opening.Stores`."""

    def __init__(self, worker: SimWorker) -> None:
        self._worker = worker
        self.settings, self.formats, self.committed = worker.settings, worker.formats, worker.committed
        topic_names = [*worker.formats]
        stale_s = {
            name: worker.limits.stale_after_s
            for name, request_format in worker.formats.items()
            if request_format.topic_is_compacted and worker.limits.stale_after_s
        }
        ids, counts = dict.fromkeys(topic_names, TOPIC_ID), dict.fromkeys(topic_names, worker.log.partitions)
        self.cluster = Cluster("cluster", ids, counts, stale_after_s=stale_s)

    def indexed(self, tp: TopicPartition) -> bool:
        return self.formats[tp[0]].has_ids

    def place_of(self, tp: TopicPartition) -> Place:
        return self._worker.place(tp)

    def open(self, tp: TopicPartition, *, beside: bool = False) -> SimStore:
        disk, faults = self._worker.disk, self._worker.faults
        if beside:
            return disk.beside(faults)
        faults.point("after reading progress")
        return disk.open(tp, faults)

    def emptied(self, tp: TopicPartition, store: SimStore) -> SimStore:
        store.empty()
        return store

    def put(self, tp: TopicPartition, stores: Sequence[SimStore]) -> SimStore:
        for each in stores:
            each.close()
        self._worker.disk.use(tp, stores[-1])
        self._worker.restores += 1
        return self._worker.disk.open(tp, self._worker.faults)

    def room_beside(self, *_: object, must: bool) -> AbstractContextManager[str]:
        return nullcontext("")

    def progress_log(self, ask: object = None) -> SimProgressLog:
        return SimProgressLog(self._worker)

    def snapshot_log(self, tp: TopicPartition, check: Callable[[], None]) -> Any:
        return self._worker.snapshots_of(tp)


class SimAsk:
    """The leaders' answers, as those of :class:`timers.kafka.log_lineage.AskLog`."""

    def __init__(self, worker: SimWorker) -> None:
        self._worker = worker

    def compare(self, tp: TopicPartition, sought: Sequence[Lineage]) -> list[Parted | None]:
        return self._worker.compare(tp, sought)


class SimPort:
    """What an opening asks of a simulated worker (:class:`timers.machines.opener.Port`).

    Args:
        outbox: of the machine.
        counters: of the machine.

    Attributes:
        could_not_refuse: whether a refusal was not committed.
    """

    def __init__(self, worker: SimWorker, machine: TopicPartition, outbox: Any, counters: Any = None) -> None:
        self._worker, self._machine, self._outbox, self._counters = worker, machine, outbox, counters
        self.could_not_refuse = False

    def check(self) -> None:
        """Do nothing: a simulated opening takes no time."""

    def check_leaders(self) -> None:
        """Do nothing: all brokers answer."""

    def fence(self) -> Known | None:
        self._worker.fence(self._machine, self._outbox)
        return self._worker.known_of(self._machine)

    def compacted(self) -> str | None:
        return "its cleanup.policy is compact" if self._machine[0] in self._worker.log.wrongly_compacted else None

    def apps(self) -> Collection[str]:
        return ()

    def reading(self) -> AbstractContextManager[object]:
        return nullcontext()

    restoring = reading

    def now_s(self) -> float | None:
        return self._worker.known_time_s()

    def refuse(self, progress: Progress) -> None:
        try:
            commit_refusal(self._outbox, progress)
        except (Lost, Fenced):
            self.could_not_refuse = True

    def machine(self, progress: Progress, store: Any, now_s: float | None) -> Machine:
        made = self._worker.spec_now(self._machine).machine(progress, store, self._outbox, self._counters, now_s)
        if self._counters is not None:
            self._outbox.transaction.bind(TOPIC_ID, PROGRESS_PARTITION, made.cuts)
        return made
