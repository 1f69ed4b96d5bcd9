"""What an opening does in its thread."""

from types import SimpleNamespace
from typing import Any

import pytest

from timers.core.ports import Lost
from timers.core.store_validity import StoreTooOld
from timers.worker.machines.capacity import Capacity
from timers.worker.machines.openings import Openings, Partition

PARTS: Any = SimpleNamespace(settings=None)
REQUESTS = ("timer-request", 0)


async def test_a_store_that_is_too_old_is_read_ahead_once_it_is_empty(caplog: pytest.LogCaptureFixture) -> None:
    """Else no worker would fire while the whole log is read."""
    machine: Any = object()
    stores = ["old", "empty"]

    class SimStores(Openings):
        async def open(self, opening: object, *, fences: bool = True) -> Any:
            assert not fences
            if stores.pop(0) == "old":
                raise StoreTooOld("the store has not read its log for 101 s")
            return machine

    with caplog.at_level("INFO"):
        assert await SimStores(Capacity(), lambda: PARTS).read_ahead(Partition(REQUESTS)) is machine
    assert "timer-request/0: the store has not read its log for 101 s" in caplog.text


async def test_an_opening_that_was_ended_while_it_waited_for_a_thread_asks_nothing() -> None:
    """Else each one asks brokers that do not answer, one after the other, while the worker ends."""
    taken, opening = Openings(Capacity(), lambda: PARTS), Partition(REQUESTS)
    opening.stop.set()
    with pytest.raises(Lost, match="told to stop"):
        await taken.open(opening)
