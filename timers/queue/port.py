"""The words between a member of a queue's group and its driver: what it asks, what it is answered, what is seen of it.

A member decides in generators. Each yields *commands*, which its driver carries out: it sends the answer of a command
into the generator, or throws the error of the brokers. Before that it sets the time of the event. While a command is
carried out, receivers may call; other events of the brokers wait, except those of a round of commits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

from confluent_kafka import KafkaError

from timers.client import Backoff
from timers.errors import TimersError
from timers.queue.entry import Entry
from timers.queue.ledger import Ledger
from timers.queue.metadata import Commit, Partition, Start
from timers.queue.records import Record


@dataclass(eq=False)
class Job:
    """Records that are written in the transaction in which a message is done.

    Attributes:
        on_commit: called when the transaction is committed.
        letter: returns the dead letter of the message with a code and a reason, for records that the brokers refuse.
    """

    partition: Partition
    ledger: Ledger
    entry: Entry
    records: Sequence[Any]
    on_commit: Callable[[], None] | None = None
    letter: Callable[[str, str], Any] | None = None


@dataclass
class Plan:
    """One commit: in a transaction if there are jobs or the caller wants one, else a plain one.

    Attributes:
        in_transaction: whether it is a transaction.
        member: the group metadata to commit with.
        ledgers: the ledgers whose state it commits.
        starts: the messages that may be started when it is committed.
        changes: how many calls of receivers its ledgers had noted.
    """

    in_transaction: bool
    member: Any
    ledgers: dict[Partition, Ledger]
    commits: dict[Partition, Commit]
    jobs: list[Job]
    starts: dict[Partition, Start]
    changes: dict[Partition, int]


@dataclass
class Counters:
    """Totals since the queue was opened, and the present state, of one process.

    Attributes:
        received: deliveries to receivers.
        acked: calls of ``ack`` that counted.
        retried: retries, of messages and of handlers that failed.
        dead: code of dead letters -> how many.
        leases_lost: deliveries that were not settled before the lease was over, or before the partition moved.
        crashes: messages whose process ended while it ran alone, or whose child process ended.
        handling_s: sum of the seconds between each delivery and the call that settled it.
        in_flight: messages with receivers now.
        hanging: handlers that run now although the leases of their messages are over.
        ready: messages that wait for receivers now.
        depth: messages of the process's partitions that are not done.
        oldest_ms: epoch milliseconds at which the oldest of these came to its topic, as far as it was read; None if
            there is none.
        partitions: partitions of the process now, also those of the returns topic.
        suspects: messages that may have ended a process, and have not run since.
        stopped: those of them that are not read, because messages are lost or another version wrote the ledger.
        ledger_bytes: longest metadata of their last commits.
    """

    received: int = 0
    acked: int = 0
    retried: int = 0
    dead: Counter[str] = field(default_factory=Counter)
    leases_lost: int = 0
    crashes: int = 0
    handling_s: float = 0.0
    in_flight: int = 0
    hanging: int = 0
    ready: int = 0
    depth: int = 0
    oldest_ms: int | None = None
    partitions: int = 0
    suspects: int = 0
    stopped: int = 0
    ledger_bytes: int = 0


_GOLDEN = 0.618
"""About the golden ratio: its multiples are spread evenly between whole numbers."""


@dataclass(frozen=True)
class Terms:
    """The arguments of a queue that its member needs."""

    name: str
    topic: str
    returns_topic: str
    backoff: Backoff
    lease_s: float
    ordered: bool
    accept_loss: bool | Collection[str]
    max_request_bytes: int
    session_timeout_s: float

    def accepts_loss(self, name: str) -> bool:
        """Whether the partition of this name may lose messages."""
        return self.accept_loss is True or (self.accept_loss is not False and name in self.accept_loss)

    def pause_s(self, entry: Entry) -> float:
        """Return how long a message waits after the end of a lease: as after a failure. Not if it is given up next."""
        spread = entry.offset * _GOLDEN % 1  # 0 to 1: spreads messages that were received together
        return 0.0 if entry.attempt > self.backoff.retries else self.backoff.delay_s(entry.attempt, spread)


class Outcome(Enum):
    """What became of a plan."""

    COMMITTED = 1
    REFUSED = 2
    UNKNOWN = 3


class CommitAnswer(NamedTuple):
    """What became of a plan.

    Attributes:
        append_ms: the brokers' time of a record of the transaction, in epoch milliseconds; 0 if it wrote none.
        refused: jobs with records that the brokers refuse, and why they refuse one of them.
    """

    outcome: Outcome
    append_ms: int = 0
    refused: Mapping[Job, KafkaError] = {}


class Places(Protocol):
    """The partitions to which the records of jobs may be written."""

    @property
    def are_complete(self) -> bool:
        """Whether each record has a place."""

    def has_place(self, job: Job) -> bool:
        """Whether each record of a job can be written now."""

    def denied(self, jobs: Iterable[Job]) -> list[Job]:
        """Return the jobs with an output or a guard whose topic may not be written to."""

    def topic_of(self, record: Record) -> str:
        """Return the topic of a record."""


class Stored(NamedTuple):
    """What the brokers have of partitions.

    Attributes:
        commits: the last commits.
        copies: their newest copies, if a partition has no commit.
        bounds: the first offset and the end of each log whose leader answers.
        logs: the names of the logs of all topics.
    """

    commits: Mapping[Partition, Commit | None]
    copies: Mapping[Partition, Commit]
    bounds: Mapping[Partition, tuple[int, int]]
    logs: Mapping[str, str]


class Port(Protocol):
    """What a member asks of the brokers, and of its process. Each method is a command.

    A method raises KafkaException if the brokers do not answer, or refuse.
    """

    def execute(self, plan: Plan) -> CommitAnswer:
        """Commit. Blocks for milliseconds, and for seconds if the brokers do not answer."""

    def ask_leaders(self, jobs: Iterable[Job]) -> Places:
        """Ask the leaders that a transaction with these jobs needs. Blocks."""

    def decide(self, plan: Plan) -> Mapping[Partition, Commit | None]:
        """End what is undecided, and return what is committed for the partitions of a plan. Blocks."""

    def restore_ledger(self) -> None:
        """Make the topic of the copies anew, with the keys of the queue. Blocks. It may raise TimersError."""

    def member(self) -> Any:
        """Return the metadata of this process as a member of the group, in callbacks of rebalances only."""

    def load(self, partitions: Iterable[Partition]) -> Stored:
        """Return what the brokers have of new partitions, once no transaction on their commits is undecided."""

    def bounds(self, partitions: Iterable[Partition]) -> Mapping[Partition, tuple[int, int]]:
        """Return the first offset and the end of logs; those whose leaders do not answer soon are left out."""

    def start(self, positions: Mapping[Partition, tuple[int, int]]) -> None:
        """Read new partitions from these offsets on, each with the leader epoch before it, or -1."""

    def stop(self, partitions: Iterable[Partition]) -> None:
        """Read these partitions no more. In the callback that revokes them, also for none."""

    def ask(self, partition: Partition, epoch: int) -> bool:
        """Ask where a leader epoch ends. An event of the partition tells it. False: the partition is not read yet."""

    def seek(self, partition: Partition, offset: int) -> None:
        """Go on reading at an offset. If this fails, the records before it are read and skipped."""

    def pause(self, partitions: Collection[Partition]) -> None:
        """Read no more of these partitions for now."""

    def resume(self, partitions: Collection[Partition]) -> None:
        """Read on."""

    def ends(self, partitions: Iterable[Partition]) -> Mapping[Partition, int]:
        """Return the ends of logs as of the last fetches, with records of open transactions; negative: not known."""

    def first_offsets(self, partitions: Iterable[Partition]) -> Mapping[Partition, int]:
        """Ask for the first offsets of logs, without waiting, and return the answers to the call before."""

    def delete_below(self, offsets: Mapping[Partition, int]) -> None:
        """Ask the brokers to delete the records below these offsets, without waiting. They may refuse."""

    def note_kept_out(self) -> None:
        """Note that members of another program keep this process out of the group."""

    def warn(self, text: str, *arguments: object) -> None:
        """Log a warning."""

    def complain(self, text: str, *arguments: object) -> None:
        """Log an error."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""

    def end_round(self) -> None:
        """Wait for the end of the commits under way."""

    def answer(self, callers: Iterable[Any], error: TimersError | None) -> None:
        """Tell callers that all earlier calls on messages are committed, or why they are not."""


class PortCall(NamedTuple):
    """A method of :class:`Port`, and its arguments."""

    name: str
    arguments: tuple[Any, ...]


P = ParamSpec("P")
T = TypeVar("T")

Steps: TypeAlias = Generator[PortCall, Any, T]
"""Yields commands, and gets their answers."""


def do(method: Callable[Concatenate[Port, P], object], *arguments: P.args, **named: P.kwargs) -> PortCall:
    """Return a command. It takes no named arguments: the driver gives them by their places."""
    assert not named, f"arguments by their names: {[*named]}"
    return PortCall(method.__name__, arguments)
