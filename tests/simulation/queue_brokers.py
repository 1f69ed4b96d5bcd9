"""Simulates the log, the group and the transactions that the processes of a queue use, and checks each commit.

It keeps what Kafka's coordinator does: it checks the generation of a member and not that it owns a partition, and of
two commits the one that was written later counts, even if it was written in a transaction that commits earlier. It is
also the worker that fires guards: the message of one comes back on the partition of returns.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TypeAlias

from timers.queue.metadata import MAX_BYTES, Saved, decode
from timers.queue.settling import Commit, Job, Partition
from timers.queue.signing import ATTEMPT, SENT, SIGNATURE, SOURCE, Identity, Signing
from timers.wire import topics
from timers.wire.headers import Header

LOG = "simulate"
RETURNS = ("returns", 0)
PARTITIONS: tuple[Partition, ...] = (("jobs", 0), ("jobs", 1), RETURNS)
MESSAGES = 12
"""Messages of each partition at the beginning; that of returns has none."""

_MOST_FORGED = 4

_END = 20
"""End of their logs."""

Place: TypeAlias = tuple[Partition, int]
"""A partition and an offset."""


class Violation(Exception):
    """A promise was broken."""


def source_of(place: Place) -> bytes:
    """Return the name of a message."""
    return topics.source(*place[0], place[1]).encode()


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
        guards: id of a guard whose timer is set -> its message.
        guarded: the same for all guards, of former ones too.
        origins: place on the partition of returns -> the message that came back.
        keys: number of a key -> key, in the order of the ledger topic.
        signed: id of a guard -> the headers of its timer.
        headers: place on the partition of returns -> the headers of its record.
        forged: places on the partition of returns whose record no process of the queue sent.
        final: messages whose receiver was told that its acknowledgement of a guarded message counts.
        now_s: the time.
        promises: partition and commit -> until when messages wait by this commit.
        promised: the same for each message, by all commits that were accepted.
    """

    def __init__(self, rng: random.Random) -> None:
        self.messages = {each: sorted(rng.sample(range(_END), MESSAGES)) for each in PARTITIONS[:-1]}
        self.messages[RETURNS] = []
        poison = rng.choice((0, 0, 1, 2))
        chosen = [(each, offset) for each in PARTITIONS[:-1] for offset in rng.sample(self.messages[each], poison)]
        self.poison: set[Place] = set(chosen)
        self.guards: dict[str, Place] = {}
        self.guarded: dict[str, Place] = {}
        self.origins: dict[Place, Place] = {}
        self.keys: dict[int, bytes] = {}
        self.signed: dict[str, list[Header]] = {}
        self.headers: dict[Place, list[Header]] = {}
        self.forged: set[Place] = set()
        self.final: set[Place] = set()
        self.now_s = 1000.0
        self.promises: dict[tuple[Partition, Commit], dict[int, float]] = {}
        self.promised: dict[Place, float] = {}
        self._came_back: set[str] = set()
        self._guard_count = 0
        self.ran: dict[Partition, set[Place]] = {}
        self.blamed: dict[Place, set[int]] = {}
        self.released: set[Partition] = set()
        self.acked: set[Place] = set()
        self.visible: dict[Place, int] = {}
        self._written_for: dict[Place, int] = {}
        self.generation = 0
        self.owners: dict[Partition, str] = {}
        self.committers: dict[Partition, str] = {}
        self.running: Callable[[str], set[Place]] = lambda name: set()
        self._written = 0
        self._offsets: dict[Partition, tuple[int, Commit]] = {}
        self._done_sets: dict[Partition, set[int]] = {}
        self._open: dict[str, tuple[list[tuple[Place, str]], dict[Partition, tuple[int, Commit]]]] = {}

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
        self.promised |= {(partition, offset): due_s for offset, due_s in self.promises[partition, commit].items()}
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
        self._open[id][0].extend(((job.partition, job.entry.offset), *job.records) for job in jobs)

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
        for message, guard in outputs:
            self.visible[message] = self.visible.get(message, 0) + 1
            if guard:
                self.set_guard(guard, message)
                continue
            count = self._written_for[self.origin(message)] = self._written_for.get(self.origin(message), 0) + 1
            if self.visible[message] > 1 or count > 1:
                raise Violation(f"the records of {message} are visible twice")
        for partition, (at, each) in offsets.items():
            self._materialize(id, partition, at, each)
        self._check_visible()

    def _check_visible(self) -> None:
        for partition, offset in self.visible:
            if offset not in self.done(partition):
                raise Violation(f"the records of {partition} {offset} are visible, and the message is open")
        for guard, place in self.guards.items():
            if place[0] != RETURNS and place[1] not in self.done(place[0]):
                raise Violation(f"the guard {guard} is set, and its message is open")

    def has_transaction(self, id: str) -> bool:
        return id in self._open

    # ---- guards --------------------------------------------------------------------------------------------------

    def log_end(self, partition: Partition) -> int:
        return len(self.messages[RETURNS]) if partition == RETURNS else _END

    def origin(self, place: Place) -> Place:
        """The message of a place, over all its deliveries."""
        return self.origins.get(place, place)

    def fire(self, rng: random.Random) -> bool:
        """Let a guard return its message; False if none is set."""
        if not self.guards:
            return False
        self.come_back(rng.choice(sorted(self.guards)))
        return True

    def new_guard(self) -> str:
        """Return an id that no other guard has."""
        self._guard_count += 1
        return f"guard {self._guard_count}"

    def set_guard(self, guard: str, place: Place) -> None:
        self.guards[guard] = self.guarded[guard] = self.origin(place)

    def come_back(self, guard: str) -> None:
        message = self.guards.pop(guard)
        if guard in self._came_back:
            raise Violation(f"{message} comes back twice")
        self._came_back.add(guard)
        self.origins[RETURNS, len(self.messages[RETURNS])] = message
        self._append(self.signed[guard])

    def _append(self, headers: list[Header]) -> Place:
        """Write a record on the partition of returns."""
        place = RETURNS, len(self.messages[RETURNS])
        self.messages[RETURNS].append(place[1])
        self.headers[place] = headers
        return place

    def forge(self, rng: random.Random) -> bool:
        """A requester's timer writes on the partition of returns, in the name of a message."""
        if len(self.forged) >= _MOST_FORGED:
            return False
        place = rng.choice([(each, offset) for each in PARTITIONS[:-1] for offset in self.messages[each]])
        claimed: list[Header] = [(SOURCE, source_of(place)), (SENT, b"0"), (ATTEMPT, b"1")]
        others = [dict(headers) for headers in self.signed.values() if dict(headers)[SOURCE] != source_of(place)]
        seen = sorted(headers[SIGNATURE] or b"" for headers in others)
        guessed = rng.choice([b"", b"1." + b"0" * 64, *seen])
        self.forged.add(self._append([*claimed, (SIGNATURE, guessed)] if guessed else claimed))
        return True

    def is_unsigned(self, place: Place, signing: Signing) -> bool:
        """Whether a process finds that the queue has not signed a record. Checks what it finds."""
        found = signing.identity(Identity(source_of(place).decode(), 0, 1), None, b"", self.headers[place])
        if bool(found.doubt) != (place in self.forged):
            raise Violation(f"{place}, {'forged' if place in self.forged else 'a return'}, is taken for {found}")
        if not found.doubt and found != Identity(source_of(self.origin(place)).decode(), 0, 2):
            raise Violation(f"{self.origin(place)} is delivered as {found}")
        return bool(found.doubt)

    def cancel(self, guard: str) -> bool:
        """Cancel a guard's timer; False if it is not set."""
        return self.guards.pop(guard, None) is not None

    def accept(self, guard: str) -> None:
        """The receiver of a guarded message is told that its acknowledgement counts."""
        if guard in self._came_back:
            raise Violation(f"{guard}: its message came back, and its acknowledgement counts")
        self.final.add(self.guarded[guard])

    def is_settled(self, place: Place) -> bool:
        """Whether the message of a place is done, and will not come back."""
        message = self.origin(place)
        places = [place, *(each for each, origin in self.origins.items() if origin == message)]
        done = all(offset in self.done(partition) or (partition, offset) in self.acked for partition, offset in places)
        return done and message not in self.guards.values()

    @property
    def all_done(self) -> bool:
        """Whether all messages are done, and none comes back."""
        return not self.guards and all(len(self.done(each)) == len(self.messages[each]) for each in PARTITIONS)
