"""Simulated timers that repeat, whose log may lose its end."""

import json
from collections.abc import Callable, Sequence

from timers.core.mending import STANDS_S
from timers.core.progress import Progress
from timers.testing import SimTimers
from timers.testing.sim_timers import Fired, SimRecord
from timers.wire import headers as h
from timers.wire import progress as progress_record
from timers.wire.headers import Header
from timers.wire.verdict import VerdictMessage

NOW_S = 1_700_000_000
TOPIC = "timer-request-by-id"

MENDED_S = 2 * STANDS_S + 2
"""Seconds after which a timer that stands still goes on: it was so for some time, and is so after a further time."""


class Sim(SimTimers):
    """Simulated timers to which definitions are written as any client can write them."""

    def define(self, id: str, rule: str, *headers: Header, value: bytes = b"x", topic: str = "out") -> VerdictMessage:
        own: list[Header] = [(h.TIMER_TOPIC, topic.encode()), (h.TIMER_REPEAT, rule.encode()), *headers]
        return self._verdict(id, self._append(TOPIC, id.encode(), value, own))

    def sleep(self, seconds: float) -> list[Fired]:
        """Let time pass while no worker runs."""
        before = len(self.fired)
        self.clock.now_ms += round(seconds * 1000)
        self._tick()
        return self.fired[before:]

    def missed(self) -> list[tuple[str, int]]:
        """(Reason, number) of the records about missed occurrences."""
        found = []
        for record in self._kafka.records:
            if record.topic == self._settings.verdict_topic and h.last(record.headers, h.TIMER_SOURCE) is None:
                assert h.last(record.headers, h.TIMER_VERSION) is not None
                fields = json.loads(record.value or b"")
                found.append((fields["reason"], fields["missed"]))
        return found


def after(fired: Sequence[Fired], start_s: int = NOW_S) -> list[int]:
    """Seconds after a start at which callbacks are due."""
    return [each.due_s - start_s for each in fired]


class Losing(Sim):
    """Simulated timers whose log can lose its end."""

    def lose(self, kept: int, change: Callable[[Progress], Progress] = lambda progress: progress) -> None:
        """Let the log keep so many records, accept this, and open the machine again with an empty store."""
        del self._kafka._logs[TOPIC][kept:]
        machine, name = (TOPIC, 0), self._settings.progress_topic
        committed = change(self._kafka.progress(name, machine).shortened(kept))
        value = progress_record.encode(committed, b"simulated topic.", "machine")
        self._kafka.append(name, progress_record.encode_key(*machine), value)
        self.restart(lose_disk=True)

    def wait(self, seconds: int) -> list[int]:
        """Let seconds pass one by one. Returns after how many seconds from the start callbacks were due."""
        before = len(self.fired)
        for _ in range(seconds):
            self.advance(1)
        return after(self.fired[before:])

    @property
    def log(self) -> list[SimRecord]:
        return self._kafka._logs[TOPIC]
