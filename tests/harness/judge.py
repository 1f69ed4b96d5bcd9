"""Compares callbacks with requests: which are lost, duplicate, early or altered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Callbacks:
    """The committed records of a target topic as columns. All arrays have one entry for each record."""

    numbers: Ints
    """Number of the timer, from the value of the record."""
    append_ms: Ints
    """Append time in epoch milliseconds."""
    source_partition: Ints
    """Partition of the request, from ``timer-id``. Empty: not read."""
    source_offset: Ints
    altered: int = 0
    """Number of records with a wrong key or value; those without a timer number are not in the arrays."""

    def only(self, places: Ints | NDArray[np.bool_] | list[int]) -> Callbacks:
        """The records at ``places``; arrays that were not read stay empty."""
        read = len(self.source_offset) > 0
        return Callbacks(
            self.numbers[places],
            self.append_ms[places],
            self.source_partition[places] if read else self.source_partition,
            self.source_offset[places] if read else self.source_offset,
        )

    def of(self, timers: int) -> Callbacks:
        """The records whose number is one of ``timers`` timers."""
        return self.only((self.numbers >= 0) & (self.numbers < timers))


@dataclass(frozen=True)
class Fired:
    """Figures of the callbacks on one target topic. ``lag_ms`` and ``due_index`` have one entry for each record."""

    records: int
    lost: int
    duplicates: int
    early: int
    altered: int
    """Number of records without a request: key, value or timer number is wrong."""
    first_ms: int
    last_ms: int
    """Append time of the first and the last callback, in epoch milliseconds."""
    lag_ms: Ints
    due_index: Ints
    """Seconds from the first due second to the due second of the timer."""


def judge(found: Callbacks, due_s: Ints) -> Fired:
    """Compare callbacks with requests.

    Args:
        due_s: due second of each acknowledged timer, by its number.
    """
    timers = len(due_s)
    asked = found.of(timers)
    numbers, append_ms = asked.numbers, asked.append_ms
    counts = np.bincount(numbers, minlength=timers)
    lag_ms = append_ms - due_s[numbers] * 1000
    return Fired(
        records=len(numbers),
        lost=int((counts == 0).sum()),
        duplicates=int((counts[counts > 1] - 1).sum()),
        early=int((lag_ms < 0).sum()),
        altered=found.altered + len(found.numbers) - len(numbers),
        first_ms=int(append_ms.min()) if len(append_ms) else 0,
        last_ms=int(append_ms.max()) if len(append_ms) else 0,
        lag_ms=lag_ms,
        due_index=due_s[numbers] - due_s.min(initial=np.iinfo(np.int64).max),
    )
