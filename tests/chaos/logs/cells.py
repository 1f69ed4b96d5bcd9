"""The table of cells: which log loses what, and what is left of the worker's store."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

REQUEST, BY_ID, RETRY, SCHEDULES, COUNTDOWNS, PROGRESS = (
    "request",
    "by-id",
    "retry",
    "schedules",
    "countdowns",
    "progress",
)
QUEUE, QUEUE_LEDGER = "queue", "queue-ledger"
QUEUES = (QUEUE, QUEUE_LEDGER)
TOPICS = (REQUEST, BY_ID, RETRY, SCHEDULES, COUNTDOWNS, PROGRESS, *QUEUES)

CUT, CUT_MARKER = "cut", "cut-marker"
GROWN_SHORT, GROWN_EXACT, GROWN_PAST = "grown-short", "grown-exact", "grown-past"
GROWN_RUNNING = "grown-running"
PARTITION_RESTORED, DISK_RESTORED, OLDER_RECORD = "partition-restored", "disk-restored", "older-record"
ELECTION_RUNNING, ELECTION_DOWN, ELECTION_NEW_OWNER = "election-running", "election-down", "election-new-owner"

KEPT, WIPED = "kept", "wiped"

MEANINGS = {
    CUT: "the end of the log is cut while the broker is down",
    CUT_MARKER: "only the marker of the last transaction is cut",
    GROWN_SHORT: "cut, and grown again to a smaller offset before a worker looks",
    GROWN_EXACT: "cut, and grown again to the same offset",
    GROWN_PAST: "cut, and grown again to a larger offset",
    GROWN_RUNNING: "cut, and grown again to a larger offset, while the worker runs",
    PARTITION_RESTORED: "the partition's directory is put back from an old copy",
    DISK_RESTORED: "the broker's whole disk is put back from an old copy",
    OLDER_RECORD: "an older progress record of the machine is written last",
    ELECTION_RUNNING: "unclean leader election under 500 timers/s with a running worker",
    ELECTION_DOWN: "the same, and no worker runs",
    ELECTION_NEW_OWNER: "the same, and another worker takes the partition (kept: the former owner comes back later)",
}
"""Fault -> what is done."""

ELECTIONS = (ELECTION_RUNNING, ELECTION_DOWN, ELECTION_NEW_OWNER)
RESTORED = (PARTITION_RESTORED, DISK_RESTORED)


@dataclass(frozen=True)
class Cell:
    """One row of the table."""

    topic: str
    fault: str
    store: str

    def __str__(self) -> str:
        return f"{self.topic}/{self.fault}/{self.store}"

    @property
    def on_three_brokers(self) -> bool:
        """Whether it needs a cluster with another replica."""
        return self.fault in ELECTIONS

    @property
    def is_about_a_queue(self) -> bool:
        """Whether it is the log of a queue, which has no store."""
        return self.topic in QUEUES

    @property
    def is_about_progress(self) -> bool:
        """Whether it takes back what the progress topic says, and not a log of requests."""
        return self.topic == PROGRESS or self.fault == OLDER_RECORD


def _exists(cell: Cell) -> bool:
    if cell.is_about_a_queue:
        of_stores = (CUT_MARKER, DISK_RESTORED, OLDER_RECORD, ELECTION_NEW_OWNER)  # and of the workers' other topics
        return cell.store == KEPT and cell.fault not in of_stores
    if cell.fault in (ELECTION_RUNNING, GROWN_RUNNING) and cell.store == WIPED:
        return False  # the store of a running worker stays
    if cell.fault == CUT_MARKER:
        return cell.topic in (RETRY, PROGRESS)  # these are written in transactions
    return not (cell.fault == OLDER_RECORD and cell.topic == PROGRESS)  # the record is that of another topic's machine


CELLS = tuple(
    cell
    for fault in MEANINGS
    for topic in TOPICS
    for store in (KEPT, WIPED)
    if _exists(cell := Cell(topic, fault, store))
)


def choose(patterns: Sequence[str]) -> list[Cell]:
    """Return the cells whose names match one of ``patterns``, such as ``request/*`` or ``*/cut/kept``.

    Raises:
        ValueError: a pattern matches no cell.
    """
    for pattern in patterns:
        if not any(fnmatchcase(str(cell), pattern) for cell in CELLS):
            raise ValueError(f"{pattern!r} matches no cell: write topic/fault/store, such as request/cut/kept")
    return [cell for cell in CELLS if any(fnmatchcase(str(cell), pattern) for pattern in patterns)]
