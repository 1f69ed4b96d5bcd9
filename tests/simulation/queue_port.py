"""What a simulated process of a queue asks of the simulated brokers: the port of its member."""

import random
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Message

from tests.simulation.kit.faults import Violation
from tests.simulation.queue_brokers import LOG, PARTITIONS, Brokers
from timers.queue import records
from timers.queue.metadata import NO_START, Commit, Partition, Saved
from timers.queue.port import CommitAnswer, Job, Outcome, Plan, PortCall, Stored

Doing: TypeAlias = Generator[None, None, Any]
"""Carries out a command in several steps, and returns its answer."""


class SimPlaces:
    """The partitions of records: some leaders do not answer."""

    def __init__(self, rng: random.Random) -> None:
        self.are_complete = rng.random() < 0.7
        self._rng = rng

    def has_place(self, job: Job) -> bool:
        return self._rng.random() < 0.8

    def denied(self, jobs: Iterable[Job]) -> list[Job]:
        return []

    def topic_of(self, record: records.Record) -> str:
        return record.topic


class SimPort:
    """Carries out the commands of one process.

    Args:
        is_stable: whether a partition is loaded only when no transaction on it is undecided.
        end_round: ends the commits under way.

    Attributes:
        generation: that of the callback that runs; None outside of callbacks.
        loaded: partition -> what was committed when it was loaded, of which version of its log, and in which commit.
        positions: where partitions are read.
        giving_up: partitions whose owner says that nothing runs.
    """

    def __init__(
        self, name: str, brokers: Brokers, rng: random.Random, end_round: Callable[[], None], *, is_stable: bool
    ) -> None:
        self.generation: int | None = None
        self.loaded: dict[Partition, tuple[Saved, int, int]] = {}
        self.positions: dict[Partition, int] = {}
        self.giving_up: set[Partition] = set()
        self.end_round = end_round
        self._name = name
        self._brokers = brokers
        self._rng = rng
        self._is_stable = is_stable
        self._in_flight: list[Callable[[], object]] = []
        self._events: dict[Partition, Message] = {}
        brokers.end(name, commit=False)

    def leave(self) -> None:
        """Read nothing any more."""
        self.positions, self._events = {}, {}

    def begin(self, command: PortCall) -> Doing:
        """Carry out a command: a commit in several steps, another one in one."""
        if command.name == "execute":
            (plan,) = command.arguments
            return self._transact(plan) if plan.in_transaction else self._commit(plan)
        return self._at_once(command)

    def _at_once(self, command: PortCall) -> Doing:
        answer = getattr(self, command.name)(*command.arguments)
        if command.name == "decide":
            yield
        return answer

    # ---- reading -------------------------------------------------------------------------------------------------

    def read(self, partition: Partition, limit: int, lineage_epoch: int | None) -> list[Message]:
        """Read up to ``limit`` records of a partition, or an event of it.

        Args:
            lineage_epoch: leader epoch before the position, with which the client asks whether the log was cut; None:
                it does not ask.
        """
        log, event = self._brokers.logs[partition], self._events.pop(partition, None)
        if event is None and lineage_epoch is not None and self.positions[partition] > log.end:
            event = log.answer(lineage_epoch)
        if event is None:
            polled, self.positions[partition] = log.read(self.positions[partition], limit)
        else:
            polled = [event]
        if (error := polled[0].error()) is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
            del self.positions[partition]  # it is not read any more
        return polled

    def change_leader(self, partition: Partition) -> None:
        """Let the client say next that another leader epoch began."""
        log = self._brokers.logs[partition]
        self._events[partition] = log.answer(log.epoch)

    def load(self, partitions: Collection[Partition]) -> Stored:
        brokers = self._brokers
        if self._is_stable and not all(brokers.is_stable(each) for each in partitions):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        if any(self._rng.random() < 0.05 for _ in partitions):
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        commits: dict[Partition, Commit | None] = {each: brokers.committed(each) for each in partitions}
        for each in partitions:
            saved = brokers.saved(each)
            if each in brokers.released and saved.start != NO_START:
                raise Violation(f"{each}: a partition that was given up has suspects")
            brokers.released.discard(each)
            self.loaded[each] = saved, brokers.version_of(each), brokers.committed_at(each)
        bounds = {each: (0, brokers.log_end(each)) for each in partitions if self._rng.random() < 0.9}
        return Stored(commits, {}, bounds, {each[0]: LOG for each in PARTITIONS})

    def member(self) -> int:
        return self._brokers.generation if self.generation is None else self.generation

    def start(self, positions: Mapping[Partition, tuple[int, int]]) -> None:
        self.positions.update({each: offset for each, (offset, _) in positions.items()})

    def stop(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self.positions.pop(partition, None)
            self._events.pop(partition, None)

    def seek(self, partition: Partition, offset: int) -> None:
        self.positions[partition] = offset

    def ask(self, partition: Partition, epoch: int) -> bool:
        if self._rng.random() < 0.1:
            return False
        self._events[partition] = self._brokers.logs[partition].answer(epoch)
        return True

    def bounds(self, partitions: Iterable[Partition]) -> dict[Partition, tuple[int, int]]:
        return {each: (0, self._brokers.log_end(each)) for each in partitions}

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {each: self._brokers.log_end(each) for each in partitions}

    def ask_leaders(self, jobs: Iterable[Job]) -> SimPlaces:
        if self._rng.random() < 0.1:
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return SimPlaces(self._rng)

    def first_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {}

    def sleep(self, seconds: float) -> None:
        self._brokers.now_s += seconds

    def _ignore(self, *arguments: object) -> None: ...

    warn = complain = pause = resume = delete_below = answer = _ignore

    # ---- commits -------------------------------------------------------------------------------------------------

    def _commit(self, plan: Plan) -> Doing:
        yield
        self.land()
        if self._rng.random() < 0.25:
            self._in_flight.append(lambda: self._brokers.commit(self._name, plan.member, plan.commits))
            return CommitAnswer(Outcome.UNKNOWN)
        accepted = self._brokers.commit(self._name, plan.member, plan.commits)
        if accepted:
            self._brokers.released |= self.giving_up
        yield
        return CommitAnswer(Outcome.COMMITTED if accepted else Outcome.REFUSED)

    def _transact(self, plan: Plan) -> Doing:
        self._brokers.begin(self._name)
        yield
        self._brokers.write(self._name, plan.jobs)
        append_ms = int(1000 * self._brokers.now_s)
        yield
        accepted = self._brokers.send_offsets(self._name, plan.member, plan.commits)
        if not accepted or self._rng.random() < 0.2:
            self._brokers.end(self._name, commit=False)
            return CommitAnswer(Outcome.REFUSED, append_ms)
        yield
        if self._rng.random() < 0.3:
            self._in_flight.append(lambda: self._brokers.end(self._name, commit=True))
            return CommitAnswer(Outcome.UNKNOWN, append_ms)
        self._brokers.end(self._name, commit=True)
        self._brokers.released |= self.giving_up
        yield
        return CommitAnswer(Outcome.COMMITTED, append_ms)

    def decide(self, plan: Plan) -> dict[Partition, Commit | None]:
        self.land()
        self._brokers.end(self._name, commit=False)  # init_transactions
        return {each: self._brokers.committed(each) for each in plan.commits}

    def land(self) -> None:
        """Requests that were not answered arrive now, or never: a later one on the same connection comes after them."""
        requests, self._in_flight = self._in_flight, []
        for request in requests:
            if self._rng.random() < 0.5:
                request()

    def land_late(self) -> bool:
        if not self._in_flight:
            return False
        self._in_flight.pop(0)()
        return True
