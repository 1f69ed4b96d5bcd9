"""The thread of a queue over a simulated transport, whose partitions and failures the test says."""

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from time import monotonic, time
from typing import Any, cast

from confluent_kafka import OFFSET_END, KafkaError, KafkaException
from confluent_kafka import Message as KafkaMessage

from tests.harness.queue_state import SIGNING
from tests.harness.waiting import wait_until
from timers.client import Backoff
from timers.errors import QueueError, TimersError
from timers.process.threads import call_in_thread
from timers.queue import Message
from timers.queue.driver import Driver
from timers.queue.metadata import Commit, Partition
from timers.queue.port import CommitAnswer, Job, Outcome, Plan, Stored, Terms
from timers.queue.records import Signing
from timers.queue.sending import Guards
from timers.queue.transport import Transport

JOBS, OTHER = ("jobs", 0), ("jobs", 1)
LOG = "log"
MESSAGES = 5
SESSION_S = 10.0


def record(partition: Partition, offset: int, size: int = 0, time_ms: int = 0) -> Any:
    """A message with a value of so many bytes; on the topic of returns with a signature."""
    key, value, is_returned = b"key", bytes(size), partition[0] == SIGNING.returns_topic
    signed = SIGNING.sign(f"jobs/0/{offset}", 0, 1, key, value) if is_returned else None
    content: Any = {"key": key, "value": value, "headers": signed, "timestamp": (2, time_ms), "leader_epoch": 3}
    return KafkaMessage(topic=partition[0], partition=partition[1], offset=offset, **content)


def event(partition: Partition, code: int, text: str = "", offset: int = -1) -> Any:
    """An error of a partition, or its end."""
    error = KafkaError(code, text) if text else KafkaError(code)
    return KafkaMessage(topic=partition[0], partition=partition[1], offset=offset, error=error)


class SimPlaces:
    """Leaders all of which answer, or none of those that jobs need. No output may be written to the topic "denied"."""

    def __init__(self) -> None:
        self.are_complete = True
        self.failures: list[KafkaException] = []

    def topic_of(self, record: Any) -> str:
        return str(record.topic or record.kind.name)

    def ask_leaders(self, jobs: Iterable[Job]) -> None:
        if self.failures:
            raise self.failures.pop(0)

    def denied(self, jobs: Iterable[Job]) -> list[Job]:
        return [job for job in jobs for each in job.records if each.topic == "denied"]

    def has_place(self, job: Job) -> bool:
        return False


class SimTransactions:
    """Transactions whose records are accepted."""

    def __init__(self) -> None:
        self.places = SimPlaces()
        self.append_ms = 0
        self.execute: Callable[[Plan], CommitAnswer]

    def ask_leaders(self, jobs: Iterable[Job]) -> SimPlaces:
        self.places.ask_leaders(jobs)
        return self.places


class SimTransport:
    """Two partitions with messages, of which the test assigns and revokes some.

    Attributes:
        calls: done by the queue's thread in its next poll.
        polls: how often it polled.
        messages: offset of the end of each partition.
        sizes: bytes of each message of a partition.
        leaderless: partitions whose leaders do not answer.
        paused: partitions that are not read now.
        pauses: how often partitions were paused.
        failures: errors of the next requests for committed offsets.
        errors: what the next poll returns beside records.
        log: first offset and end of each partition; None if nothing was deleted.
        time_ms: time of all records.
        slept_s: how long the machine slept; the brokers' time went on.
        epoch_ends: leader epoch -> its end and the epoch that the log has.
        ended: partitions whose events were polled since they are read.
        must_open_anew: a client has lost all brokers.
    """

    group = "queue.jobs"
    returns_topic = "queue.jobs-returns"
    ledger_topic = "queue.jobs-ledger"
    ledger_is_lost = False
    silent_s = 0.0
    must_open_anew = False

    def __init__(self) -> None:
        self.transactions = SimTransactions()
        self.transactions.execute = lambda plan: self.execute(plan)  # which a test may replace
        self.commits: dict[Partition, Commit] = {}
        self.positions: dict[Partition, int] = {}
        self.calls: list[Callable[[], None]] = []
        self.polls = 0
        self.messages = MESSAGES
        self.sizes: defaultdict[Partition, int] = defaultdict(int)
        self.leaderless: set[Partition] = set()
        self.paused: set[Partition] = set()
        self.pauses = 0
        self.failures: list[KafkaException] = []
        self.errors: list[Any] = []
        self.log: tuple[int, int] | None = None
        self.time_ms = 0
        self.slept_s = 0.0
        self.epoch_ends: dict[int, tuple[int, int]] = {}
        self.ended: set[Partition] = set()
        self.is_recreated = False
        self.added = 0
        self.is_expelled = False
        self.plans = 0
        self.low, self.high = 0, MESSAGES
        self.deleted: dict[Partition, int] = {}
        self.stopped: list[set[Partition]] = []
        self.opened = threading.Event()
        self.opens = 0
        self.owned: list[Partition] = []

    def open(
        self, assigned: Callable[[list[Partition]], None], revoked: Callable[..., None], is_over: Callable[[], bool]
    ) -> Signing:
        self.assigned, self.revoked = assigned, revoked
        self.must_open_anew = False
        self.opened.set()
        self.opens += 1
        self.calls.append(lambda: assigned(self.owned))
        return SIGNING

    def poll(self, limit: int, wait_s: float) -> list[Any]:
        self.polls += 1
        errors, self.errors = self.errors, []
        calls, self.calls = self.calls, []
        for call in calls:
            call()
        self.ended |= {(each.topic(), each.partition()) for each in errors}
        records: list[Any] = list(errors)
        for partition, position in self.positions.items():
            if partition not in self.paused:
                end = min(self.messages, position + limit - len(records))
                size = self.sizes[partition]
                records += [record(partition, offset, size, self.time_ms) for offset in range(position, end)]
                self.positions[partition] = end
        if not records and wait_s:
            threading.Event().wait(0.001)
        return records

    def load(self, partitions: Iterable[Partition]) -> Stored:
        commits = self.committed(partitions)
        return Stored(commits, {}, self.bounds(commits), {each[0]: LOG for each in commits})

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, Commit | None]:
        if self.failures:
            raise self.failures.pop(0)
        return {each: self.commits.get(each) for each in partitions}

    def bounds(self, partitions: Iterable[Partition]) -> dict[Partition, tuple[int, int]]:
        return dict.fromkeys(set(partitions) - self.leaderless, self.log or (0, self.messages))

    def member(self) -> str:
        return "member"

    def start(self, positions: Mapping[Partition, tuple[int, int]]) -> None:
        for partition, (offset, _) in positions.items():
            self.positions[partition] = self.messages if offset == OFFSET_END else offset
            if offset == OFFSET_END:
                self.errors.append(event(partition, KafkaError._PARTITION_EOF, offset=self.messages))
                self.ended.discard(partition)

    def ask(self, partition: Partition, epoch: int) -> bool:
        assert partition in self.ended, "librdkafka may still read the former position, and forgets the question"
        end, found = self.epoch_ends[epoch]
        said = f"broker end offset is {end} (offset leader epoch {found})."
        self.errors.append(event(partition, KafkaError._AUTO_OFFSET_RESET, said))
        return True

    def stop(self, partitions: Iterable[Partition]) -> None:
        self.stopped.append(set(partitions))
        for partition in self.stopped[-1]:
            del self.positions[partition]

    def execute(self, plan: Plan) -> CommitAnswer:
        if self.is_expelled:
            return CommitAnswer(Outcome.REFUSED)
        self.plans += 1
        self.transactions.append_ms = int(1000 * (time() + self.slept_s)) if plan.in_transaction else 0
        self.commits.update(plan.commits)
        return CommitAnswer(Outcome.COMMITTED, self.transactions.append_ms)

    def begin_commit(self, plan: Plan) -> Future[CommitAnswer]:
        """A thread answers, so that a test may wait in :meth:`execute`."""
        return call_in_thread("commit", self.execute, plan)

    def lose_answers(self) -> None: ...

    def commit(self, plan: Plan) -> CommitAnswer:
        return self.execute(plan)

    def decide(self, plan: Plan) -> dict[Partition, Commit | None]:
        return self.committed(plan.commits)

    def restore_ledger(self, signing: Signing) -> None:
        assert signing is not None
        self.ledger_is_lost = False

    def check_topics(self) -> int:
        if self.is_recreated:
            raise QueueError("topic 'jobs' was deleted and created again")
        added, self.added = self.added, 0
        return added

    def first_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return dict.fromkeys(partitions, self.low)

    def check_configs(self) -> None: ...

    def check_members(self) -> str:
        return ""

    def delete_below(self, offsets: Mapping[Partition, int]) -> None:
        self.deleted.update(offsets)

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return dict.fromkeys(partitions, self.high)

    def pause(self, partitions: Collection[Partition]) -> None:
        self.paused |= set(partitions)
        self.pauses += len(partitions)

    def resume(self, partitions: Collection[Partition]) -> None:
        self.paused -= set(partitions)

    def close(self) -> None:
        self.positions = {}

    def user_error(self, error: KafkaException, failed: str) -> TimersError:
        return QueueError(failed)


def failure(code: int = KafkaError._TIMED_OUT) -> KafkaException:
    """Return an error as the client raises it; without ``code`` the brokers did not answer."""
    return KafkaException(KafkaError(code))


class Opened:
    """A queue that runs over a simulated transport."""

    def __init__(self, lease_s: float = 600.0, *, ordered: bool = False, accept_loss: bool = False) -> None:
        self.transport: Any = SimTransport()
        terms = Terms(
            "jobs",
            "jobs",
            self.transport.returns_topic,
            Backoff(),
            lease_s,
            ordered,
            accept_loss,
            1_000_000,
            SESSION_S,
        )
        guards = self.guards = Guards.__new__(Guards)
        guards.are_possible = False
        guards.timeout_s = 60.0
        self.stopped_s = 0.0
        self.driver = Driver(terms, guards, cast(Transport, self.transport), lambda: monotonic() + self.stopped_s)
        self.driver.start()
        assert self.transport.opened.wait(30)

    def close(self) -> None:
        """Close the queue, and wait for the end of its thread."""
        self.driver.close()
        self.driver.join(60)

    def call(self, function: Callable[..., None], *arguments: Any, **named: Any) -> None:
        """Let the thread of the queue call a function, and wait for it."""
        done = threading.Event()

        def call() -> None:
            function(*arguments, **named)
            done.set()

        self.transport.calls.append(call)
        assert done.wait(30)

    def receive(self, count: int) -> list[Message]:
        received: list[Message] = []

        def enough() -> bool:
            received.extend(self.driver.receive(Message, count - len(received), 0.1))
            return len(received) == count

        wait_until(enough, f"{count} messages")
        return received
