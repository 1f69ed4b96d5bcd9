"""The objects that differ between machines. The request format and the settings choose them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from timers.core.horizon import Horizon
from timers.core.index import Index
from timers.core.reading import RecordDecoder
from timers.core.repeating import Repeats
from timers.core.second_barrier import SecondBarrier
from timers.core.store_validity import StoreAge


@dataclass(frozen=True, slots=True)
class Variant:
    """The objects of one machine that differ. None: the format does not need one."""

    reader: RecordDecoder
    """Decodes records."""
    settings: Mapping[str, int]
    """The settings of acceptance that go into the history, by their names there."""
    index: Index | None
    """Knows the latest version of each id."""
    horizon: Horizon | None
    """Sends timers to the cold tier and accepts their copies."""
    barrier: SecondBarrier | None
    """Holds a second until the machine has read what was acknowledged before it."""
    repeats: Repeats | None
    """Knows what occurrences of timers that repeat send, and what follows them."""
    store_age: StoreAge | None
    """Ends a machine whose store is too old."""
    on_missing: Callable[[int, int, int], None]
    """Called with a number of records that the log has lost, and a range of offsets in which they were. Raises
    :class:`timers.errors.LogMismatch`, unless an operator has accepted the loss."""
