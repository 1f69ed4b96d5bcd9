"""Updates that are acknowledged before their timer is due, and readable only later: each id fires once [I27].

They stand behind the open transaction of another producer. Whichever version fires, the verdict says so, and a worker
with an empty disk holds this version.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

import pytest
from confluent_kafka import Producer

from tests.harness.cluster import client_settings
from tests.harness.ids import Ids
from tests.harness.records import Publisher, Record
from tests.harness.system import PARTITIONS
from tests.harness.waiting import DEADLINE_S, due_in
from tests.harness.worker import Worker
from timers.wire import future, verdict
from timers.wire.formats import future_by_id
from timers.wire.headers import TIMER_SOURCE

pytestmark = pytest.mark.broker

LATER_S = 5
"""The update moves its timer by so many seconds."""


@dataclass
class Try:
    """A timer, and an update of it for this version only."""

    id: str
    partition: int
    due_s: int
    version: str = ""
    update: str = ""


class LateUpdates:
    """Tries in rounds, over one worker.

    Args:
        seed: of the random times.
    """

    def __init__(self, ids: Ids, worker: Worker, seed: int) -> None:
        self.ids, self.worker, self.random = ids, worker, Random(seed)
        self.publisher = Publisher(ids.system.address, ids.topic)
        self.tries: list[Try] = []
        self.fired: dict[str, list[Record]] = {}
        self.told: dict[str, verdict.VerdictMessage] = {}

    def round(self, count: int, *, is_killed: bool) -> None:
        """Try a number of updates at random times before their timers are due.

        Args:
            is_killed: kill the worker between the firings and the verdicts, and take its disk away. Otherwise the
                transactions end at random times, some in time.
        """
        base_s, number = due_in(4), len(self.tries)
        tries = [
            Try(f"id-{number + each}", each % PARTITIONS, base_s + self.random.randint(0, 2)) for each in range(count)
        ]
        self.tries += tries
        for each in tries:
            each.version = self._send(each, "first", each.due_s, None)
        others = [self._other_producer(partition) for partition in range(PARTITIONS)]
        steps: list[tuple[float, Callable[[], object]]] = [
            (each.due_s - self.random.uniform(0.05, 2), partial(self._update, each)) for each in tries
        ]
        if not is_killed:
            steps += [(base_s + self.random.uniform(-1, 4), partial(self._end, other)) for other in others]
        for at_s, step in sorted(steps, key=lambda step: step[0]):
            time.sleep(max(0.0, at_s - time.time()))
            step()
        if is_killed:
            self._read(tries, lambda each: each.id in self.fired)
            self._lose_disk()
            for other in others:
                self._end(other)
        self._read(tries, lambda each: each.update in self.told and each.id in self.fired)

    def _send(self, each: Try, value: str, due_s: int, condition: str | None) -> str:
        request = future.encode(self.ids.target, value, b"v")
        headers = [*future_by_id.encode_headers(due_s), *future_by_id.encode_condition(condition)]
        return self.publisher.send_raw(each.id.encode(), request, headers, each.partition)

    def _update(self, each: Try) -> None:
        each.update = self._send(each, "second", each.due_s + LATER_S, each.version)

    def _other_producer(self, partition: int) -> Producer:
        """Returns a producer with an open transaction on a partition: all behind it waits for its end."""
        name = f"other-{self.ids.topic}-{partition}-{len(self.tries)}"
        producer = Producer(
            client_settings(self.ids.system.address, transactional_id=name, transaction_timeout_ms=600_000)
        )
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        producer.produce(self.ids.topic, None, b"of another producer", partition)
        assert producer.flush(DEADLINE_S) == 0
        return producer

    def _end(self, producer: Producer) -> None:
        (producer.commit_transaction if self.random.random() < 0.5 else producer.abort_transaction)(DEADLINE_S)

    def _lose_disk(self) -> None:
        self.worker.kill()
        shutil.rmtree(self.worker.data_dir)
        self.worker.start().ready()

    def _read(self, tries: Sequence[Try], is_done: Callable[[Try], bool]) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not all(map(is_done, tries)):
            assert time.monotonic() < deadline_s, f"nothing of {[each for each in tries if not is_done(each)]}"
            self._note()

    def _note(self) -> None:
        for record in self.ids.fired.rest():
            self.fired.setdefault(record.timer_id, []).append(record)
        for record in self.ids.verdicts.rest():
            source = record.text(TIMER_SOURCE)
            assert source not in self.told, f"two verdicts on {source}"
            self.told[source] = verdict.decode(record.value or b"")

    def check(self) -> dict[str, int]:
        """Check what has become of all tries. Returns verdict -> number."""
        self.ids.wait_past(max(each.due_s for each in self.tries) + LATER_S)
        self._note()
        counts: dict[str, int] = {}
        for each in self.tries:
            told, (callback,) = self.told[each.update], self.fired[each.id]
            is_second = callback.key == b"second"
            assert told.verdict == ("replaced" if is_second else "too-late"), (each, told, callback)
            assert callback.text(TIMER_SOURCE) == (each.update if is_second else each.version)
            assert told.version == callback.text(TIMER_SOURCE)
            counts[told.verdict] = counts.get(told.verdict, 0) + 1
        held = self._versions()
        assert held == {each.id: self.fired[each.id][0].text(TIMER_SOURCE) for each in self.tries}
        self._lose_disk()
        assert self._versions() == held, "a replay gives another index"
        self._note()
        assert all(len(self.fired[each.id]) == 1 for each in self.tries)
        return counts

    def _versions(self) -> dict[str, str | None]:
        """The version that the worker holds of each id: the verdict on a change of another version names it."""
        condition = future_by_id.encode_condition(f"{self.ids.topic}/0/999999999")
        asked = {
            each.id: self.publisher.queue_raw(each.id.encode(), None, [*condition], each.partition)
            for each in self.tries
        }
        self.publisher.flush()
        self._read(self.tries, lambda each: asked[each.id].source in self.told)
        assert {self.told[record.source].verdict for record in asked.values()} == {"changed"}
        return {id: self.told[record.source].version for id, record in asked.items()}


@pytest.mark.parametrize(
    ("rounds", "count"),
    [([False, True], 8), pytest.param([False, False, False, True] * 2, 25, marks=pytest.mark.long)],
    ids=["16 updates", "200 updates"],
)
def test_an_update_that_is_readable_late_never_makes_a_second_callback(
    ids: Ids, rounds: Sequence[bool], count: int
) -> None:
    """Until the worker judged by append times only, both versions fired."""
    seed = time.time_ns()
    print(f"seed {seed}")
    tries = LateUpdates(ids, ids.system.worker().start().ready(), seed)
    for is_killed in rounds:
        tries.round(count, is_killed=is_killed)
    counts = tries.check()
    print(counts)
    assert counts["too-late"] >= count, "at least those of the round with the kill"
