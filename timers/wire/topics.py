"""Names of topics, records and transactional ids, and which topic names are legal."""

import re
from collections.abc import Callable, Collection, Iterable
from typing import TypeAlias

from timers.core.printable import PartitionName
from timers.core.progress import Cuts, cut_suffix

LEGAL_TOPIC = re.compile(r"(?!\.{1,2}(?![a-zA-Z0-9._-]))[a-zA-Z0-9._-]{1,249}")
"""Kafka's rule (``org.apache.kafka.common.internals.Topic``): not ``.`` and not ``..``. Java reads the pattern, too."""

REQUEST = "timer-request"
ID_REQUEST = "timer-request-by-id"
VERDICT = "timer-verdict"
OSCILLATOR = "oscillator"
DEAD_LETTER = "timer-dead-letter"
COLD = "timer-cold"

WORKERS_ONLY = (
    *("*-progress", "*-timer-retry", "*-timer-targets", "*-snapshot-*", "queue.*-ledger"),
    *("*-console-log", "*-dead-letters-retried", OSCILLATOR, "__*"),
)
"""Patterns of the topics that only workers, queues, consoles and Kafka itself write, of any app. Their readers believe
what is in them."""

LEGAL_FORM = "a legal topic name: 1 to 249 of a-z A-Z 0-9 . _ - (but not '.' or '..')"
"""The rule of :func:`is_legal`, for the messages of errors."""


def is_legal(topic: object) -> bool:
    """Return whether Kafka accepts ``topic`` as the name of a topic."""
    return isinstance(topic, str) and LEGAL_TOPIC.fullmatch(topic) is not None


Name: TypeAlias = Callable[[str], str]
"""Returns a name that follows from another one: of an app (its ``TIMERS_APP_ID``), unless its text says of what."""

requests_by_id: Name = "{}-by-id".format
"""Of a request topic: the topic of requests with an id, if no other is set. Each request topic has its own: if two apps
read one, both would fire its timers."""

progress: Name = "{}-progress".format
"""The compacted topic with the progress of each machine of the app."""

retry: Name = "{}-timer-retry".format
"""The internal topic for timers of failing targets. Each app has its own, because only that app may fire them."""

targets: Name = "{}-timer-targets".format
"""The compacted topic with what operators want of callback topics, such as that their timers wait."""

canary: Name = "{}-canary".format
"""The target topic of the canary timers of the app's workers."""

retried: Name = "{}-dead-letters-retried".format
"""The compacted topic that says which dead letters were published again. The first retry creates it."""

console_log: Name = "{}-console-log".format
"""The log of the changes that users made through the console."""

retrier_id: Name = "{}-dead-letters".format
"""Transactional id of a retry of dead letters: a second retry fences the first."""

commander_id: Name = "{}-targets".format
"""Transactional id of a command about a target: a second command fences the first, so each has its own number."""

promoter_id: Name = "{}-promote".format
"""Transactional id of `timers spark promote`: a second promoter fences the first. Also the group in which it notes its
newest batch: the group has no members."""

engine_id: Name = "{}-engine".format
"""Transactional id with which the engine on Spark says that it starts, and the consumer group of its driver."""

importer_id: Name = "{}-import".format
"""Transactional id of `timers import-pending`: a second import fences the first."""

history_group: Name = "{}-history".format
"""The group in which `timers spark history` notes how far it has read the topics of requests. It has no members."""

queue_group: Name = "queue.{}".format
"""Of a queue: its consumer group."""

queue_returns: Name = "{}-returns".format
"""Of the group of a queue: the internal topic on which messages come back for another attempt."""

queue_ledger: Name = "{}-ledger".format
"""Of the group of a queue: the compacted topic with copies of what it has committed."""


def snapshots(app_id: str, topic: str) -> str:
    """The topic of the snapshots of an app's machines of one request topic, partition by partition."""
    return f"{app_id}-snapshot-{topic}"


def apps_with_snapshots(topic: str, names: Iterable[str]) -> list[str]:
    """The ids of the apps that have a topic for snapshots of ``topic`` among the topics ``names``."""
    suffix = snapshots("", topic)
    return [name.removesuffix(suffix) for name in names if name.endswith(suffix)]


def transactional_id(app_id: str, topic: str, partition: int) -> str:
    """Transactional id of one machine. It fences a former owner, so it is never configured [I12]."""
    return f"{app_id}-{topic}-{partition}"


def queue_of_group(group: str) -> str | None:
    """Return the name of the queue with this consumer group; None for any other group."""
    return group.removeprefix("queue.") if group.startswith("queue.") else None


def partition_name(topic: str, partition: int) -> str:
    """Return the name of a partition, ``<topic>/<partition>``."""
    return PartitionName(f"{topic}/{partition}")


def source(topic: str, partition: int, offset: int, cuts: Cuts = ()) -> str:
    """Return the name of a record, ``<topic>/<partition>/<offset>``: the ``timer-id`` of a timer without an id.

    Args:
        cuts: where the log lost its end and grew again: offsets above a cut are followed by ``~`` and its number.
    """
    return f"{topic}/{partition}/{offset}{cut_suffix(cuts, offset) if cuts else ''}"


def without_cut(source: bytes) -> bytes:
    """Return a name that :func:`source` made as the producer of the record knows it: without the number of a cut."""
    return source.partition(b"~")[0]


def is_named(source: str, names: Collection[str]) -> bool:
    """Whether a name that :func:`source` made is one of ``names``, or one of them without the number of its cut."""
    return source in names or source.partition("~")[0] in names


def parse_source(source: str) -> tuple[str, int, int] | None:
    """Return topic, partition and offset of a name that :func:`source` made; None for any other text.

    The number of a cut is left out: the offset may hold another record now.
    """
    parts = _SOURCE.fullmatch(source)
    return None if parts is None else (parts[1], int(parts[2]), int(parts[3]))


def offset_in(source: bytes, places: set[bytes]) -> int | None:
    """Return the offset that :func:`parse_source` finds; None if it finds none. A hot path.

    Args:
        places: what stands before the offset in names that were parsed before; more are added.
    """
    place, _, digits = source.rpartition(b"/")
    if place in places and digits.isdigit() and len(digits) <= _MOST_DIGITS:
        return int(digits)
    parts = parse_source(source.decode("ascii", "replace"))
    if parts is None:
        return None
    places.add(place)
    return parts[2]


_MOST_DIGITS = 18

SOURCE_PATTERN = rf"({LEGAL_TOPIC.pattern})/([0-9]{{1,9}})/([0-9]{{1,{_MOST_DIGITS}}})(?:~[0-9]{{1,9}})?"
"""Regular expression of a whole name that :func:`source` makes."""

_SOURCE = re.compile(SOURCE_PATTERN, re.ASCII)
