"""The errors that this package raises.

::

    TimersError
    ├── SettingsError          an environment variable or option is wrong           (exit code 2)
    ├── InvalidTimerError      a timer that cannot be requested as given      (exit code 2 on the command line)
    │   ├── TimerTooLargeError it is larger than a request may be
    │   └── RepeatError        its rule cannot be read, or a sender must not set it
    ├── PublishError           the broker did not take a request                    (exit code 1)
    │   ├── UnreachableError   no broker answers, and nothing was sent
    │   ├── UnacknowledgedError it did not answer: the request may have been taken
    │   └── PartlyPublishedError it took only some of many
    ├── NoVerdictError         the verdict on a cancel or update did not arrive in time (exit code 1)
    ├── QueueError             a queue cannot be read, or messages of it were lost  (exit code 1)
    │   └── LeaseLostError     a message is no longer this receiver's
    ├── OutboxError            the database of an outbox cannot be reached or has no such table (exit code 1)
    ├── TargetError            a callback topic cannot be paused or resumed as asked for (exit code 2)
    │   └── KeyReused          the first request with this key asked for something else
    ├── RetryRefusedError      a dead letter cannot be retried, or is not there     (exit code 1)
    ├── NameTakenError         another process has taken the name of this one       (exit code 6)
    ├── AccessError            the brokers refuse a login, a certificate or an operation (exit code 1)
    ├── QueryError             no worker answers a query, or some partitions are missing (exit code 1)
    │   └── ForeignWorkerError the worker that answers is one of another app or cluster
    ├── RequestDeletedError    the log of requests begins after a request
    ├── BrokerError            the embedded broker cannot start, stop or answer     (exit code 1)
    ├── SparkError             Spark, or the Java it needs, is missing, or a job of it failed (exit code 1)
    ├── MissingExtraError      a command needs packages that are not installed      (exit code 1)
    ├── TopicConfigError       the configuration of one of the engine's topics would lose timers
    ├── StoreError             the worker's disk fails to write or read
    │   ├── StoreInUse         another process has the store open
    │   └── CheckpointMismatch the checkpoint of the engine on Spark does not belong to the log, or is damaged
    └── MachineStopped         the machine of a partition must stop
        ├── Fenced             another worker owns the partition now
        └── LogMismatch        the request log does not match the stored progress
            ├── DoubtfulLog    the log may lack requests that the store of this worker lacks, too
            └── LevelTooHigh   the machine was raised to a feature level that this version does not support

Each message names the variable or object, its value, what is expected, and what to do.
"""

import json
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

PACKAGE = "kafka-timers"


class TimersError(Exception):
    """Base class of all errors of this package. They survive pickle and copy, as in answers of a process pool."""

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own calls the class with args, which are not the arguments of each constructor here.
        return _again, (type(self), *self.args), self.__dict__ or None


def _again(kind: type[TimersError], *args: object) -> TimersError:
    """An error as it was made, without its constructor. Its attributes are set afterwards."""
    return kind.__new__(kind, *args)


class SettingsError(TimersError):
    """A setting is missing or wrong. The message names the variable, its value and the expected form."""

    exit_code = 2


class InvalidTimerError(TimersError):
    """A timer cannot be requested as given: due time, topic or size is wrong. The message says what is expected.

    Attributes:
        ids: of many timers or messages: the ids of those before the wrong one, which are all scheduled or sent.
    """

    exit_code = 2
    ids: Sequence[str] = ()


class TimerTooLargeError(InvalidTimerError):
    """The request would be larger than the worker or the broker accepts."""


class PublishError(TimersError):
    """The broker did not take a request. No timer is set; the caller may try again."""


class UnreachableError(PublishError):
    """No broker answers, and nothing was sent."""


class UnacknowledgedError(PublishError):
    """The brokers did not answer in time, or not clearly: they may have taken the request, or may still take it."""


class PartlyPublishedError(PublishError):
    """The brokers took only some of many timers or messages. If one of them is wrong, this is the cause of the error.

    Attributes:
        ids: the id of each request that was read, in order; None for those that the brokers have not acknowledged.
            Empty with ``ids=False``.
        unknown: numbers of requests with None in ``ids`` that the brokers may have taken, or may still take. The others
            with None were surely not taken. Empty with ``ids=False``.
        read: how many requests were read from the caller's iterable. Those after them were not sent.
    """

    def __init__(self, message: str, ids: list[str | None], unknown: Collection[int], read: int) -> None:
        super().__init__(message)
        self.ids = ids
        self.unknown = frozenset(unknown)
        self.read = read


class NoVerdictError(TimersError):
    """The brokers have a cancel or update, and its verdict did not arrive in time. It takes effect when it is read."""


class QueueError(TimersError):
    """A queue cannot be read or settled, or messages of it were lost."""


class LeaseLostError(QueueError):
    """The message is no longer this receiver's: its lease is over, its partition moved, or it was settled before."""


class OutboxError(TimersError):
    """The database of an outbox cannot be reached, or has no such table."""


class TargetError(TimersError):
    """A callback topic cannot be paused or resumed as asked for. Nothing was changed; the message has an example."""

    exit_code = 2


class RetryRefusedError(TimersError):
    """A dead letter that was named does not exist or cannot be retried. Nothing was retried."""


class NameTakenError(TimersError):
    """Another process has taken the name of this one, which ends: both would take the work from each other."""

    exit_code = 6


class AccessError(TimersError):
    """The brokers refuse the login or an operation, or their certificate is not trusted. Trying again does not help.

    A request was not sent: after that it is an UnacknowledgedError, whose cause is this one.
    """


class QueryError(TimersError):
    """No worker answers a query, or the answer is incomplete. The message names what is missing."""


class BrokerError(TimersError):
    """The embedded broker cannot start, stop or answer."""


class SparkError(TimersError):
    """Spark, or the Java that it needs, is missing, or a Spark job failed."""


class MissingExtraError(TimersError):
    """A command needs an extra of the package. The message has the command that installs it."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(f"the package {module} is not installed: {install_command(extra)}")


def install_command(extra: str) -> str:
    """The command that installs an extra, from where this installation came from: it may be in no package index."""
    from importlib.metadata import PackageNotFoundError, distribution  # rarely needed, and it takes 20 ms

    root = Path(__file__).resolve().parents[1]
    try:
        text = distribution(PACKAGE).read_text("direct_url.json")
        origin = json.loads(text) if text else {}
    except (PackageNotFoundError, ValueError):
        origin = {"url": root.as_uri(), "dir_info": {}} if (root / "pyproject.toml").is_file() else {}
    url = origin.get("url", "")
    if "vcs_info" in origin:
        target = f"{PACKAGE}[{extra}] @ {origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    elif "dir_info" in origin:
        target = f"{unquote(urlsplit(url).path)}[{extra}]"
    else:
        target = f"{PACKAGE}[{extra}] @ {url}" if url else f"{PACKAGE}[{extra}]"
    option = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {option}{shlex.quote(target)}"


class TopicConfigError(TimersError):
    """With the configuration of one of the engine's topics, timers would be lost or fire early."""


class StoreError(TimersError):
    """The worker's disk is full, read-only or damaged. No timer is lost: the store is a cache of the request log."""


class StoreInUse(StoreError):
    """Another process has the store open."""


class CheckpointMismatch(StoreError):
    """The checkpoint of the engine on Spark does not belong to the log, or is damaged. The log is read again."""


class MachineStopped(TimersError):
    """The machine of a partition must stop. Its timers stay in the log for the next owner."""


class Fenced(MachineStopped):
    """Another producer with the same transactional id has taken over: this machine must stop at once."""


class LogMismatch(MachineStopped):
    """The request log does not match the stored progress."""


class DoubtfulLog(LogMismatch):
    """The request log may lack requests, because its topic is or was compacted, and the store of this worker lacks them
    too.

    Attributes:
        progress: committed.
    """

    def __init__(self, sentence: str, progress: Any) -> None:
        super().__init__(sentence)
        self.progress = progress


class LevelTooHigh(LogMismatch):
    """The machine was raised to a feature level that this version does not support.

    Attributes:
        level: feature level of the machine.
    """

    def __init__(self, level: int, supported: int, name: str = "a partition") -> None:
        super().__init__(
            f"{name} was raised to feature level {level}, and this version of timers supports {supported}: run the "
            "version that it was raised for (docs/operations.md#feature-levels)"
        )
        self.level = level
