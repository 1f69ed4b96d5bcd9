"""What differs between machines: the objects that a request format and the settings put into one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from timers.core.horizon import Horizon
from timers.core.index import Index
from timers.core.reading import Reader
from timers.core.second_barrier import SecondBarrier
from timers.core.store_validity import StoreAge


@dataclass(frozen=True, slots=True)
class Variant:
    """The exchangeable objects of one machine. Each has a form that does nothing, where the format does not need it."""

    reader: Reader
    """Decodes."""
    settings: Mapping[str, int]
    """The settings of acceptance that go into the history, by their names there."""
    index: Index
    """Knows the latest version of each id."""
    horizon: Horizon
    """Lets timers go cold and takes them back."""
    barrier: SecondBarrier
    """Holds a second until the machine has read what was acknowledged before it."""
    store_age: StoreAge
    """Ends a machine whose store is too old."""
