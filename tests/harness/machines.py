"""One machine over a simulated log, driven by hand."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tests.harness.list_outbox import ListOutbox
from tests.simulation.kit import SimClock, SimLog
from timers.core.keys import NOTHING_FIRED, OrderKey
from timers.core.limits import Limits
from timers.core.machine import Machine
from timers.core.ports import NO_OUTPUT, Lost, Output, ReadAgain
from timers.core.progress import Progress
from timers.core.timer import Fetched, Tick
from timers.kafka.request_formats import NATIVE, REQUEST_FORMATS
from timers.machines.partition import PartitionSpec
from timers.machines.store.memory import MemoryStore
from timers.wire import cold, future
from timers.wire.formats import RequestFormat

HORIZON_S = 12
"""Due seconds and ticks of property tests are below this."""

BY_ID, SCHEDULES, MARKERS = (
    next(each.request_format for each in REQUEST_FORMATS if each.request_format.name == name)
    for name in ("future-by-id", "schedule", "marker")
)

LIMITS = Limits(chunk_timers=1000, chunk_bytes=10**6, max_request_bytes=100)


class ColdOutbox(ListOutbox):
    """An outbox that also keeps the decoded cold records."""

    def __init__(self) -> None:
        super().__init__()
        self.cold: list[cold.Cold] = []

    def commit(self, progress: Progress, output: Output = NO_OUTPUT) -> None:
        super().commit(progress, output)
        for record, due_s, secret in output.forwarded:
            told = cold.decode_cold(cold.encode_cold(record, record.source, due_s, secret))
            assert told is not None
            self.cold.append(told)


class MachineRig:
    """A machine with its log, outbox and store. It can be opened again, with another specification or an empty store.

    Args:
        request_format: request format of the topic.
        limits: limits of the machine.
        topic: name of the topic.
        progress: committed progress before the first opening.
        group: rows in a group of the store.
        outbox: of the machine.
        log: log of the topic; None: a new one.
        now_s: a tick after the opening.
        spec: other fields of the specification.
    """

    outbox: Any

    def __init__(
        self,
        request_format: RequestFormat = NATIVE,
        limits: Limits = LIMITS,
        *,
        topic: str = "requests",
        progress: Progress = Progress(),  # noqa: B008
        group: int = 3,
        outbox: ListOutbox | None = None,
        log: SimLog | None = None,
        now_s: float | None = None,
        **spec: Any,
    ) -> None:
        self.topic = topic
        self.spec = PartitionSpec((topic, 0), request_format, limits, **spec)
        self.log = log or SimLog(SimClock(0), partitions=1)
        self.outbox = outbox or ListOutbox()
        self.outbox.progress = progress
        self.store = MemoryStore(group)
        self.tick_ms = 0
        self.machine: Machine = self.open()
        if now_s is not None:
            self.observe(now_s)

    def open(self, *, wipe: bool = False, limits: Limits | None = None, **spec: Any) -> Machine:
        """Open the machine as a worker does: with the committed progress and the existing store."""
        self.spec = replace(self.spec, limits=limits or self.spec.limits, **spec)
        if wipe or not self.spec.catch_up(self.store, self.outbox.progress):
            self.store = MemoryStore()
        self.machine = self.spec.machine(self.outbox.progress, self.store, self.outbox)
        return self.machine

    def observe(self, second: float, end: int | None = None) -> None:
        """Give the machine a tick of ``second``; ``end``: end of the log at that time, by default the present end."""
        self.tick_ms = round(second * 1000)
        self.machine.observe(Tick(self.tick_ms), self.log.last_stable(self.topic, 0) if end is None else end)

    def fetch(self, count: int = 10**6, from_offset: int | None = None) -> Fetched:
        """Return the next fetch."""
        return self.log.fetch(self.topic, 0, self.machine.position if from_offset is None else from_offset, count)

    def read(self, count: int = 10**6) -> None:
        """Accept one fetch, if the machine may accept."""
        if self.machine.may_accept:
            self.machine.accept(self.fetch(count))

    def read_all(self) -> None:
        """Accept all requests."""
        while self.machine.position < self.log.end(self.topic, 0):
            self.machine.accept(self.fetch())

    def fire(self) -> None:
        """Fire all due timers."""
        while self.machine.fire_chunk():
            pass

    def second(self, second: float, end: int | None = None) -> None:
        """Begin a second while the log ends at ``end``, and fire. Later requests may be unread when it fires."""
        self.observe(second, end)
        self.fire()

    def tick(self, second: int) -> None:
        """Let a second begin on the brokers' clock too, accept all requests, fire and commit."""
        self.log.clock.now_ms = second * 1000
        self.observe(second)
        self.read_all()
        self.fire()
        self.machine.commit_progress(even_if_idle=True)

    def finish(self) -> None:
        """Accept all requests and fire all timers, with a tick after all other ticks."""
        self.outbox.failing = 0
        fired_s = max(self.machine.progress.fired_through[0], HORIZON_S)
        self.observe(fired_s)
        self.read_all()
        self.second(fired_s + 1)
        self.machine.commit_progress()

    @property
    def keys(self) -> list[OrderKey]:
        """Order keys of all stored rows."""
        return [(due_s, row[0]) for due_s, rows in self.store.scan(NOTHING_FIRED, 10**12) for row in rows]


class RandomRig(MachineRig):
    """A machine to which random events happen. It keeps the time when it is opened again."""

    def open(self, **changes: Any) -> Machine:
        machine = super().open(**changes)
        self.observe(self.tick_ms / 1000)
        return machine

    @contextmanager
    def opened_again(self) -> Iterator[None]:
        """Open the machine again if it is lost meanwhile, as a worker does."""
        try:
            yield
        except Lost:
            self.open()
        except ReadAgain:
            pass  # the end of a replay, at a time when nothing new may be accepted

    def recovered(self, piece: int = 10**6, *, compact: bool = False) -> tuple[Machine, MemoryStore]:
        """A machine that has read the log into an empty store, in pieces, up to the committed offset; and its store.

        Args:
            piece: offsets of a fetch.
            compact: the log has only the newest record of each key.
        """
        progress, outbox, store = self.machine.progress, ListOutbox(), MemoryStore()
        records = list(self.log.fetch(self.topic, 0, 0, progress.next_offset).records)
        if compact:  # records that are missing would be noticed [I32]
            progress = replace(progress, lineage=progress.lineage.uncounted())
            newest = {record.key: record.offset for record in records}
            records = [record for record in records if newest[record.key] == record.offset]
        fresh = self.spec.machine(progress, store, outbox)
        while fresh.recovering:
            start, end = fresh.position, min(fresh.position + piece, progress.next_offset)
            fresh.accept(Fetched(start, end, [record for record in records if start <= record.offset < end]))
        assert outbox.commits == [], "recovery emitted something"
        return fresh, store

    def happen(self, what: str, argument: Any = None) -> None:
        """Do what may happen to any machine: "fetch" (so many records), "chunk", "commit", "lost" (the next commit),
        "restart" or "lose disk"."""
        if what == "fetch":
            self.read(argument)
        elif what == "chunk":
            self.machine.fire_chunk()
        elif what == "commit":
            self.machine.commit_progress(even_if_idle=True)
        elif what == "lost":
            self.outbox.failing = 1
        else:
            self.open(wipe=what == "lose disk")


class NativeRig(MachineRig):
    """A machine of timers without ids."""

    def ask(self, *due: int, value: bytes = b"") -> None:
        for due_s in due:
            self.log.append(self.topic, b"%d" % due_s, future.encode("t", "k", value), partition=0)

    def accept(self, *due: int) -> None:
        self.ask(*due)
        self.machine.accept(self.fetch())

    @property
    def state(self) -> Any:
        return self.machine.progress, self.store.applied, self.keys
