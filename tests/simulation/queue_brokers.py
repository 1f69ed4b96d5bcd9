"""Simulates the log, the group and the transactions that the processes of a queue use, and checks each commit.

It keeps what Kafka's coordinator does: it checks the generation of a member and not that it owns a partition, and of
two commits the one that was written later counts, even if it was written in a transaction that commits earlier.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from timers.queue.metadata import MAX_BYTES, Saved, decode
from timers.queue.settling import Commit, Job, Partition

LOG = "simulate"
PARTITIONS: tuple[Partition, ...] = (("jobs", 0), ("jobs", 1))
MESSAGES = 12
"""Messages of each partition."""

END = 20
"""End of each partition's log."""


class Violation(Exception):
    """A promise was broken."""


class Brokers:
    """The log, the group's offsets, transactions, and the checks of each commit.

    Attributes:
        messages: offsets of each partition that hold a message; the others are holes.
        acked: messages that a receiver acknowledged while it held them.
        visible: message -> how many committed transactions hold its records.
        poison: messages that kill their process.
        running: name of a process -> the messages that its receivers hold.
        ran: partition -> what its owner was running when it crashed or lost the partition.
        committers: processes of the last commits.
        blamed: message -> the commits after which a process ended while it ran alone.
        released: partitions whose owner said that nothing runs.
    """

    def __init__(self, rng: random.Random) -> None:
        self.messages = {each: sorted(rng.sample(range(END), MESSAGES)) for each in PARTITIONS}
        poison = rng.choice((0, 0, 1, 2))
        self.poison = {(each, offset) for each in PARTITIONS for offset in rng.sample(self.messages[each], poison)}
        self.ran: dict[Partition, set[tuple[Partition, int]]] = {}
        self.blamed: dict[tuple[Partition, int], set[int]] = {}
        self.released: set[Partition] = set()
        self.acked: set[tuple[Partition, int]] = set()
        self.visible: dict[tuple[Partition, int], int] = {}
        self.generation = 0
        self.owners: dict[Partition, str] = {}
        self.committers: dict[Partition, str] = {}
        self.running: Callable[[str], set[tuple[Partition, int]]] = lambda name: set()
        self._written = 0
        self._offsets: dict[Partition, tuple[int, Commit]] = {}
        self._done_sets: dict[Partition, set[int]] = {}
        self._open: dict[str, tuple[list[tuple[Partition, int]], dict[Partition, tuple[int, Commit]]]] = {}

    # ---- offsets -------------------------------------------------------------------------------------------------

    def committed(self, partition: Partition) -> Commit | None:
        found = self._offsets.get(partition)
        return None if found is None else found[1]

    def committed_at(self, partition: Partition) -> int:
        """Number of the last commit."""
        return self._offsets[partition][0] if partition in self._offsets else 0

    def saved(self, partition: Partition) -> Saved:
        commit = self.committed(partition)
        return Saved(0) if commit is None else decode(commit.metadata, LOG, commit.offset)

    def is_stable(self, partition: Partition) -> bool:
        """Whether no transaction on the partition's offset is undecided."""
        return all(partition not in offsets for _, offsets in self._open.values())

    def commit(self, name: str, generation: int, commits: Mapping[Partition, Commit]) -> bool:
        """A plain commit of a process."""
        if generation != self.generation:
            return False
        for partition, commit in commits.items():
            self._written += 1
            self._materialize(name, partition, self._written, commit)
        self._check_visible()
        return True

    def _materialize(self, name: str, partition: Partition, at: int, commit: Commit) -> None:
        found = self._offsets.get(partition)
        if found is not None and found[0] > at:
            return
        if len(commit.metadata) > MAX_BYTES:
            raise Violation("the metadata is too long")
        before, after = self.done(partition), self._done(partition, commit)
        if before - after:
            raise Violation(f"{partition}: messages {sorted(before - after)} were done and are open again")
        for offset in after - before:
            if (partition, offset) not in self.acked and not self.visible.get((partition, offset)):
                raise Violation(f"{partition}: message {offset} is done, and it was not acknowledged")
        self._offsets[partition] = (at, commit)
        self.committers[partition] = name
        self.ran[partition] = self.running(name)
        self._done_sets[partition] = after

    def done(self, partition: Partition) -> set[int]:
        """The messages that the committed metadata says are done."""
        return self._done_sets.get(partition, set())

    def _done(self, partition: Partition, commit: Commit) -> set[int]:
        saved = decode(commit.metadata, LOG, commit.offset)
        ranges = [(0, saved.offset), *saved.done]
        return {each for each in self.messages[partition] if any(first <= each < end for first, end in ranges)}

    # ---- transactions --------------------------------------------------------------------------------------------

    def begin(self, id: str) -> None:
        self._open[id] = ([], {})

    def write(self, id: str, jobs: list[Job]) -> None:
        self._open[id][0].extend((job.partition, job.entry.offset) for job in jobs)

    def send_offsets(self, id: str, generation: int, commits: Mapping[Partition, Commit]) -> bool:
        if generation != self.generation:
            return False
        for partition, commit in commits.items():
            self._written += 1
            self._open[id][1][partition] = (self._written, commit)
        return True

    def end(self, id: str, *, commit: bool) -> None:
        """Commit or abort the transaction of a process, if it has one."""
        outputs, offsets = self._open.pop(id, ([], {}))
        if not commit:
            return
        for message in outputs:
            self.visible[message] = self.visible.get(message, 0) + 1
            if self.visible[message] > 1:
                raise Violation(f"the records of {message} are visible twice")
        for partition, (at, each) in offsets.items():
            self._materialize(id, partition, at, each)
        self._check_visible()

    def _check_visible(self) -> None:
        for partition, offset in self.visible:
            if offset not in self.done(partition):
                raise Violation(f"the records of {partition} {offset} are visible, and the message is open")

    def has_transaction(self, id: str) -> bool:
        return id in self._open
