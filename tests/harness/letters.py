"""Waits for dead letters."""

import time
from collections.abc import Collection

from tests.harness.records import Record
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S


def await_letters(system: System, sources: Collection[str], deadline_s: float = DEADLINE_S) -> dict[str, Record]:
    """Wait until each of ``sources`` has a dead letter, at most one; return the dead letters by source."""
    reader = system.dead_letters()
    found: dict[str, Record] = {}
    give_up = time.monotonic() + deadline_s
    while not set(sources) <= found.keys():
        assert time.monotonic() < give_up, f"no dead letter for {sorted(set(sources) - found.keys())[:3]}"
        for letter in reader.rest():
            source = letter.text("timer-source")
            assert source not in found, f"two dead letters for {source}"
            found[source] = letter
    return found
