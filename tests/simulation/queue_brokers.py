"""Simulates the log, the group and the transactions that the processes of a queue use, and checks each commit.

It keeps what Kafka's coordinator does: it checks the generation of a member and not that it owns a partition, and of
two commits the one that was written later counts, even if it was written in a transaction that commits earlier. It is
also the worker that fires guards: the message of one comes back on the partition of returns.

A log may lose its end and grow again. What was known of a lost message is then kept under a place of its own, with a
negative offset: a new message may have the same offset.
"""

import random
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import TypeAlias

from tests.simulation.kit.faults import Violation
from tests.simulation.queue_log import LANES, SimLog
from timers.queue.ledger import Ledger
from timers.queue.metadata import MAX_METADATA_BYTES, Commit, Partition, Saved, decode
from timers.queue.port import Job
from timers.queue.records import SENT, SIGNATURE, SOURCE, Kind
from timers.wire import topics
from timers.wire.headers import ATTEMPT, Header

LOG = "simulate"
RETURNS = ("returns", 0)
PARTITIONS: tuple[Partition, ...] = (("jobs", 0), ("jobs", 1), RETURNS)
MESSAGES = 12
"""Messages of each partition at the beginning; that of returns has none."""

_MOST_FORGED = 4
_MOST_CUTS = 3

_END = 20
"""End of their logs, at the beginning."""

_FORMER = 1000

Place: TypeAlias = tuple[Partition, int]
"""A partition and an offset."""


class Brokers:
    """The log, the group's offsets, transactions, and the checks of each commit.

    Attributes:
        logs: log of each partition.
        versions: ledger -> how often its log had lost its end when the process knew all losses.
        names: sources of messages that their log has lost.
        copies: commits of each partition in the ledger topic, which has all copies of a transaction in one record.
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
        signed: id of a guard -> the headers of its timer, and the key of its message.
        forged: places on the partition of returns whose record no process of the queue sent.
        final: messages whose receiver was told that its acknowledgement of a guarded message counts.
        now_s: the time.
        promises: partition and commit -> until when messages wait by this commit.
        promised: the same for each message, by all commits that were accepted.
    """

    def __init__(self, rng: random.Random) -> None:
        self.logs = {each: SimLog.of(each, rng, MESSAGES, _END) for each in PARTITIONS[:-1]}
        self.logs[RETURNS] = SimLog.of(RETURNS, rng, 0, 0)
        self.versions: dict[Ledger, int] = {}
        self.names: dict[Place, bytes] = {}
        self.copies: list[dict[Partition, Commit]] = []
        self._claims: dict[tuple[Partition, Commit], int] = {}
        self._sources: dict[str, int] = {}
        self._known_read: set[tuple[Partition, int]] = set()
        self._ran_at: dict[tuple[Partition, Commit], set[Place]] = {}
        poison = rng.choice((0, 0, 1, 2))
        chosen = [(each, offset) for each in PARTITIONS[:-1] for offset in rng.sample(self.messages(each), poison)]
        self.poison: set[Place] = set(chosen)
        self.guards: dict[str, Place] = {}
        self.guarded: dict[str, Place] = {}
        self.origins: dict[Place, Place] = {}
        self.keys: dict[int, bytes] = {}
        self.signed: dict[str, tuple[list[Header], bytes]] = {}
        self.forged: set[Place] = set()
        self.final: set[Place] = set()
        self.now_s = 1000.0
        self.promises: dict[tuple[Partition, Commit], dict[int, float]] = {}
        self.promised: dict[Place, float] = {}
        self._came_back: set[str] = set()
        self._guard_count = self._again_count = 0
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

    def messages(self, partition: Partition) -> list[int]:
        """Offsets that hold a message; the others are holes."""
        return [*self.logs[partition].messages]

    def source_of(self, place: Place) -> bytes:
        """Return the name of a message."""
        return self.names.get(place) or topics.source(*place[0], place[1]).encode()

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
        limit = self._limit(partition, self._claims[partition, commit])
        if len(commit.metadata) > MAX_METADATA_BYTES:
            raise Violation("the metadata is too long")
        before, after = self.done(partition), self._done(partition, commit)
        if before - after:
            raise Violation(f"{partition}: messages {sorted(before - after)} were done and are open again")
        for offset in after - before:
            if (partition, offset) not in self.acked and not self.visible.get((partition, offset)):
                raise Violation(f"{partition}: message {offset} is done, and it was not acknowledged")
        self._offsets[partition] = (at, commit)
        end = decode(commit.metadata, LOG, commit.offset).lineage.end
        if end <= limit:
            read = [each for at, each in self.logs[partition].messages.items() if at < end]
            self._known_read |= {(partition, each.timestamp()[1]) for each in read}
        promises = self.promises[partition, commit].items()
        self.promised |= {(partition, offset): due_s for offset, due_s in promises if offset < limit}
        self.committers[partition] = name
        self.ran[partition] = self._ran_at[partition, commit] = self.running(name)
        self._done_sets[partition] = after

    def done(self, partition: Partition) -> set[int]:
        """The messages that the committed metadata says are done."""
        return self._done_sets.get(partition, set())

    def _done(self, partition: Partition, commit: Commit) -> set[int]:
        saved = decode(commit.metadata, LOG, commit.offset)
        limit = self._limit(partition, self._claims[partition, commit])
        ranges = [(0, saved.offset), *saved.done]
        return {
            each for each in self.messages(partition) if any(first <= each < min(end, limit) for first, end in ranges)
        }

    # ---- losses --------------------------------------------------------------------------------------------------

    def _limit(self, partition: Partition, version: int) -> float:
        """What says something of the log at a version says nothing of it from this offset on."""
        return min(self.logs[partition].cuts[version:], default=float("inf"))

    def limit_of(self, partition: Partition, ledger: Ledger) -> float:
        """What a ledger says of its log is not true from this offset on."""
        return self._limit(partition, self.versions[ledger])

    def version_of(self, partition: Partition) -> int:
        """Return of which version of the log the last commit is."""
        commit = self.committed(partition)
        return 0 if commit is None else self._claims[partition, commit]

    def knows(self, partition: Partition, ledger: Ledger) -> None:
        """Note that a ledger is one of the present log."""
        self.versions[ledger] = len(self.logs[partition].cuts)

    def claims(self, partition: Partition, commit: Commit, ledger: Ledger) -> None:
        """Note from which ledger a commit is."""
        self._claims[partition, commit] = self.versions[ledger]

    def place(self, partition: Partition, ledger: Ledger, offset: int) -> Place:
        """Return the place of a ledger's message: its log may have lost it."""
        cuts, version = self.logs[partition].cuts, self.versions[ledger]
        lost_by = next((number for number, cut in enumerate(cuts[version:], version + 1) if offset >= cut), 0)
        return partition, offset - _FORMER * lost_by

    def lose(self, rng: random.Random, ledgers: Iterable[tuple[Partition, Ledger]], *, is_restored: bool) -> bool:
        """Let a log lose its end, and grow again: not to its former end, to it, or past it."""
        partition = rng.choice(PARTITIONS[:-1])
        log = self.logs[partition]
        if len(log.cuts) >= _MOST_CUTS or log.end < 2:
            return False
        lowest, saved = log.starts[-1][1] if is_restored else 1, self.saved(partition)
        if lowest >= log.end or (is_restored and saved.cuts and not saved.lineage.batch):
            return False  # epochs whose numbers are given twice are told apart by the last record only, as by workers
        at = rng.randint(max(lowest, 1, log.end - 12), log.end - 1)
        # A restored log that is shorter than the one of before, and has grown, cannot be told from one that only ends.
        grow = rng.choice((0, 0 if is_restored else 1, log.end - at, log.end - at + 3))
        known = []
        for each, ledger in ledgers:
            read = max(ledger.position, ledger.lineage.end)
            if each == partition and read <= min(at, self.limit_of(partition, ledger)):
                known.append(ledger)
        log.lose(at, is_restored=is_restored)
        for ledger in known:
            self.knows(partition, ledger)
        self._forget(partition, {place[1] for place in self._known(partition) if place[1] >= at})
        for _ in range(grow):
            log.append(is_message=rng.random() < 0.7)
        return True

    def elect(self, rng: random.Random) -> None:
        """Another leader follows, and some messages."""
        partition = rng.choice(PARTITIONS)
        self.logs[partition].elect()
        for _ in range(0 if partition == RETURNS or self.logs[partition].end > 2 * _END else rng.randrange(5)):
            self.logs[partition].append(is_message=rng.random() < 0.7)

    def _known(self, partition: Partition) -> set[Place]:
        """All places of a partition of which something is noted."""
        noted = (self.acked, self.visible, self.promised, self.blamed, self.poison, self.final)
        others = (self.guards, self.guarded, self.origins)
        opened = {place for outputs, _ in self._open.values() for place, _ in outputs}
        done = {(partition, offset) for offset in self.done(partition)}
        places = {*chain(*noted), *chain(*(each.values() for each in others)), *opened, *done}
        return {place for place in places if place[0] == partition and place[1] >= 0}

    def _forget(self, partition: Partition, offsets: set[int], *, is_lost: bool = True) -> None:
        """Keep what is noted of messages under places of their own, because their log has lost them, or because they
        are delivered as new ones."""
        number = len(self.logs[partition].cuts)
        if not is_lost:
            self._again_count += 1
            number = 100 + self._again_count
        moved = {(partition, offset): (partition, offset - _FORMER * number) for offset in offsets}
        self.names |= {former: self.source_of(place) for place, former in moved.items()}
        for noted in (self.acked, self.final, *([self.poison] if is_lost else [])):
            for place in noted & moved.keys():
                noted.discard(place)
        for place in moved:
            for counted in (self.visible, self.promised, self._written_for):
                counted.pop(place, None)
            if is_lost:
                self.blamed.pop(place, None)
        for guards in (self.guards, self.guarded):
            guards |= {guard: moved[place] for guard, place in guards.items() if place in moved}
        self.origins |= {each: moved[place] for each, place in self.origins.items() if place in moved}
        for outputs, _ in self._open.values():
            outputs[:] = [(moved.get(place, place), guard) for place, guard in outputs]
        self._done_sets[partition] = self.done(partition) - offsets

    def parted(self, partition: Partition, version: int, at: int, *, is_sure: bool) -> None:
        """A process found that a log is another one from an offset on."""
        limit = self._limit(partition, version)
        if limit == float("inf"):
            raise Violation(f"{partition} parts at {at}, and it has lost nothing")
        if at < limit:
            if is_sure and any(at <= each < limit for each in self.messages(partition)):
                raise Violation(f"{partition} parts at {at}, and it has lost what was from {limit} on")
            self.deliver_again(partition, {each for each in self.messages(partition) if each >= at})

    def deliver_again(self, partition: Partition, offsets: set[int]) -> None:
        """Messages may be delivered again although they were done."""
        if partition != RETURNS:
            self._forget(partition, offsets, is_lost=False)
            return
        for place in {(partition, offset) for offset in offsets}:
            self.acked.discard(place)
            self.visible.pop(place, None)
            self._written_for.pop(self.origin(place), None)
            self.final.discard(self.origin(place))
            self.promised.pop(place, None)
        self._done_sets[partition] = self.done(partition) - offsets

    def expire(self, rng: random.Random) -> None:
        """The offsets of the group expire, and its ledger topic may have lost its end."""
        self.copies = self.copies[: rng.randint(0, len(self.copies))] if rng.random() < 0.5 else self.copies
        self._sources = {}  # a copy may not know the last losses
        newest: dict[Partition, Commit] = {}
        for copies in self.copies:
            newest |= copies
        for partition in PARTITIONS:
            self._written += 1
            commit = newest.get(partition)
            done = set() if commit is None else self._done(partition, commit)
            self._offsets.pop(partition, None)
            if commit is not None:
                self._offsets[partition] = self._written, commit
                self.ran[partition] = self._ran_at[partition, commit]
            self.released.discard(partition)
            again = {each for each in self.messages(partition) if each not in done}
            self.deliver_again(partition, again)
            self._done_sets[partition] = done  # also what was delivered again since this copy, which was checked then

    def check_source(self, partition: Partition, ledger: Ledger, time_ms: int, offset: int) -> None:
        """Two messages never have one source, unless no commit says that the first one was read."""
        source = topics.source(*partition, offset, ledger.cuts)
        former = self._sources.get(source, time_ms)
        if former != time_ms and (partition, former) in self._known_read:
            raise Violation(f"two messages have the source {source}")
        self._sources[source] = time_ms

    # ---- transactions --------------------------------------------------------------------------------------------

    def begin(self, id: str) -> None:
        self._open[id] = ([], {})

    def write(self, id: str, jobs: list[Job]) -> None:
        for job in jobs:
            (record,), guard = job.records, ""
            if record.kind is Kind.GUARD:
                guard = (record.key or b"").decode()
                self.note_guard(guard, record.headers, job.entry.item.key())
            self._open[id][0].append((self.place(job.partition, job.ledger, job.entry.offset), guard))

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
        if commit and offsets:
            self.copies.append({partition: each for partition, (_, each) in offsets.items()})
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
            if offset >= 0 and offset not in self.done(partition):
                raise Violation(f"the records of {partition} {offset} are visible, and the message is open")
        for guard, place in self.guards.items():
            if place[0] != RETURNS and place[1] >= 0 and place[1] not in self.done(place[0]):
                raise Violation(f"the guard {guard} is set, and its message is open")

    # ---- guards --------------------------------------------------------------------------------------------------

    def log_end(self, partition: Partition) -> int:
        return self.logs[partition].end

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

    def note_guard(self, guard: str, headers: list[Header], key: bytes) -> None:
        """Note what the timer of a guard sends."""
        self.signed[guard] = headers, key

    def set_guard(self, guard: str, place: Place) -> None:
        self.guards[guard] = self.guarded[guard] = self.origin(place)

    def come_back(self, guard: str) -> None:
        message = self.guards.pop(guard)
        if guard in self._came_back:
            raise Violation(f"{message} comes back twice")
        self._came_back.add(guard)
        self.origins[RETURNS, self.logs[RETURNS].end] = message
        self._append(*self.signed[guard])

    def _append(self, headers: list[Header], key: bytes) -> Place:
        """Write a record on the partition of returns."""
        place = RETURNS, self.logs[RETURNS].end
        self.logs[RETURNS].append(headers=headers, key=key)
        return place

    def forge(self, rng: random.Random) -> bool:
        """A requester's timer writes on the partition of returns, in the name of a message."""
        if len(self.forged) >= _MOST_FORGED:
            return False
        place = rng.choice([(each, offset) for each in PARTITIONS[:-1] for offset in self.messages(each)])
        source = self.source_of(place)
        claimed: list[Header] = [(SOURCE, source), (SENT, b"0"), (ATTEMPT, b"1")]
        others = [dict(headers) for headers, _ in self.signed.values() if dict(headers)[SOURCE] != source]
        seen = sorted(headers[SIGNATURE] or b"" for headers in others)
        guessed = rng.choice([b"", b"1." + b"0" * 64, *seen])
        self.forged.add(
            self._append([*claimed, (SIGNATURE, guessed)] if guessed else claimed, b"%d" % (place[1] % LANES))
        )
        return True

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
        return not self.guards and all(self.done(each) == set(self.messages(each)) for each in PARTITIONS)
