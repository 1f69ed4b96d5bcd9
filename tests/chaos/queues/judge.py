"""The verdict on a round of queues: compares what consumers logged, and what they wrote, with what was sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.chaos.queues.consumer import open_database
from tests.chaos.queues.messages import (
    LEASE_S,
    RETRY_AFTER_S,
    Numbers,
    ends_badly,
    fails,
    has_output,
    has_row,
    is_rejected,
)
from tests.harness.system import System

GUARDED = "the partition moved, and then the lease ended"
"""The error with which a guard returns a message."""

READ_S = 300.0
"""Deadline for reading a topic."""


class Return(NamedTuple):
    """A record on the returns topic."""

    append_ms: int
    number: int
    error: str


@dataclass
class Events:
    """What the consumers logged.

    Attributes:
        first: number -> how often its first attempt was received.
        later: number -> how often a later attempt was received.
        received_ms: number -> a time before it was received first; 0 if it was not.
        retries: id of a call of ``retry`` -> a time before it.
    """

    first: Numbers
    later: Numbers
    received_ms: Numbers
    retries: dict[str, int]

    @classmethod
    def read(cls, directory: Path, count: int) -> Events:
        """Read the logs of all consumers."""
        events = cls(np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64), {})
        for path in sorted(directory.glob("*.events")):
            for line in path.read_bytes().splitlines(keepends=True):
                if line.endswith(b"\n"):  # else its process was killed while it wrote
                    events._add(line.split())
        return events

    def _add(self, words: list[bytes]) -> None:
        if words[0] == b"R":
            self.retries[words[1].decode()] = int(words[2])
            return
        at_ms = int(words[1])
        pairs = np.array([word.split(b".") for word in words[2:]], np.int64)
        numbers, is_first = pairs[:, 0], pairs[:, 1] == 1
        np.add.at(self.first, numbers[is_first], 1)
        np.add.at(self.later, numbers[~is_first], 1)
        earlier = self.received_ms[numbers]
        self.received_ms[numbers] = np.where(earlier == 0, at_ms, np.minimum(earlier, at_ms))

    def missing(self) -> Numbers:
        """Numbers of messages that were not handled to their end."""
        sent = len(self.first)
        seen = (self.first + self.later) > 0
        come_again = where(fails, sent) | where(ends_badly, sent)
        missing: Numbers = np.arange(sent)[~seen | (come_again & (self.later == 0))]
        return missing


@dataclass(frozen=True)
class Verdict:
    """Counts of a round. All of the first five must be 0.

    Attributes:
        lost: messages that were not handled to their end, or not done.
        early: retries that came before their time, and messages of guards that came before their lease was over.
        outputs_wrong: messages without their output, or with several.
        rows_wrong: messages without their row, or with several.
        letters_missing: messages that were rejected, and have no dead letter.
        letters_doubled: dead letters above one for each rejected message. A crash may double one.
        crashed: messages that were given up because their process ended twice while they ran alone.
        repeated: deliveries above one for each attempt.
        returned: messages that came back by a timer.
        guarded: those of guards among them.
        latest_ms: the longest time from the earliest allowed return to the return.
    """

    lost: int
    early: int
    outputs_wrong: int
    rows_wrong: int
    letters_missing: int
    letters_doubled: int
    crashed: int
    repeated: int
    returned: int
    guarded: int
    latest_ms: int

    @property
    def is_kept(self) -> bool:
        """Whether all promises were kept."""
        return not (self.lost or self.early or self.outputs_wrong or self.rows_wrong or self.letters_missing)


def judge(system: System, results: str, returns: Sequence[Return], directory: Path, sent: int, depth: int) -> Verdict:
    """Judge a round in which ``sent`` messages were sent, and ``depth`` are not done at its end."""
    events = Events.read(directory, sent)
    rejected, crashed, written = (np.zeros(sent, np.int64) for _ in range(3))
    for letter in system.dead_letters().rest(READ_S):
        is_crash = letter.text("timer-error") == "crashed"
        (crashed if is_crash else rejected)[number_in(letter.value or b"")] += 1
    for output in system.reader(results).rest(READ_S):
        written[int(output.value or b"")] += 1
    rows = rows_of(directory, sent)
    called = [events.retries.get(each.error) for each in returns]
    is_guard = [ms is None and each.error == GUARDED for each, ms in zip(returns, called, strict=True)]
    allowed_ms = [
        # The retry of an exception has no call that was logged before.
        int(events.received_ms[each.number] if ms is None else ms) + int((LEASE_S if guard else RETRY_AFTER_S) * 1000)
        for each, ms, guard in zip(returns, called, is_guard, strict=True)
    ]
    late_ms = [each.append_ms - ms for each, ms in zip(returns, allowed_ms, strict=True)]
    is_dead = crashed > 0
    outputs_wrong = np.where(is_dead, written > 1, written != where(has_output, sent))
    rows_wrong = np.where(is_dead, rows > 1, rows != where(has_row, sent))
    deliveries = int((events.first + events.later).sum())
    return Verdict(
        lost=depth + int((~is_dead[events.missing()]).sum()),
        early=sum(ms < 0 for ms in late_ms),
        outputs_wrong=int(outputs_wrong.sum()),
        rows_wrong=int(rows_wrong.sum()),
        letters_missing=int((where(is_rejected, sent) & ~is_dead & (rejected == 0)).sum()),
        letters_doubled=int(np.maximum(rejected - 1, 0).sum()),
        crashed=int(is_dead.sum()),
        repeated=deliveries - sent - len(returns),
        returned=len(returns),
        guarded=sum(is_guard),
        latest_ms=max((late for late, ms in zip(late_ms, called, strict=True) if ms is not None), default=0),
    )


def where(applies: Callable[[int], bool], sent: int) -> NDArray[np.bool_]:
    """For each number, whether something applies to it."""
    return np.fromiter(map(applies, range(sent)), np.bool_, sent)


def number_in(request: bytes) -> int:
    """The number of the message that a dead letter's request contains."""
    found = re.search(rb"[0-9]{100}", request)
    assert found is not None
    return int(found[0])


def rows_of(directory: Path, sent: int) -> Numbers:
    """How many rows each number has."""
    rows = np.zeros(sent, np.int64)
    with closing(open_database(directory)) as connection:
        for number, count in connection.execute("SELECT number, count(*) FROM rows_of_messages GROUP BY number"):
            rows[number] = count
    return rows
