"""``python -m bench.ids``: CPU time of timers with an id, countdowns, schedules and timers that repeat, compared with
native timers.

It needs no broker: decoder, machine and store turn records in memory into record batches. CPU time depends little on
other programs. A third of the timers is replaced and a third is cancelled before they fire. Those that repeat fire
once; the time has their first and their second occurrence in it, which are read again.
"""

import argparse
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.harness.discarding import UsableTopics, discarding
from timers.core import levels
from timers.core.limits import ChunkSize, Limits
from timers.core.ports import NO_OUTPUT, Output
from timers.core.progress import Progress
from timers.core.timer import Fetched, Tick
from timers.kafka.request_formats import REQUEST_FORMATS
from timers.machines.partition import PartitionSpec
from timers.machines.store.memory_limit import RocksMemory
from timers.machines.store.rocks import RocksStore
from timers.wire import future
from timers.wire import headers as h
from timers.wire.formats import LOG_APPEND_TIME, RequestFormat, countdown, future_by_id, schedule
from timers.wire.occurrences import encode_occurrences

TIMERS = 300_000
FETCH = 3_000
SPREAD_S = 20
PAYLOAD = b"x" * 100
START_S = 1_800_000_000


class Record(NamedTuple):
    """One request, with the fields of a consumer record."""

    offset: int
    key: bytes
    value: bytes | None
    headers: Sequence[h.Header]
    timestamp: int
    timestamp_type: int = LOG_APPEND_TIME


class DiscardingOutbox:
    """An outbox that builds the record batches of each transaction and discards them."""

    own: list[tuple[bytes, bytes | None, Sequence[h.Header]]]
    """Key, value and headers of records for the machine's own partition, which it reads again."""

    def __init__(self) -> None:
        self.own = []
        self.fired = self.verdict_count = 0
        self.chunk = ChunkSize()
        self.held_from: set[int] = set()
        self._transaction = discarding(UsableTopics({"target": 4}), ("requests", 0))

        self.begin = self._transaction.begin

    def read_again(self, offsets: Sequence[int]) -> dict[int, Any]:
        return {}

    def commit(self, progress: Progress, output: Output = NO_OUTPUT) -> None:
        assert not any(output._replace(due=(), verdicts=())), "these timers need nothing else"
        if output.verdicts:
            self._transaction.answer(output.verdicts)
        self._transaction.commit(progress, [("target", 4, output.due)])
        self.fired += sum(len(rows) for _, rows in output.due)
        self.verdict_count += len(output.verdicts)


def native(timers: int) -> Iterator[Record]:
    value = future.encode("target", "key", PAYLOAD)
    for offset in range(timers):
        yield Record(offset, b"%d" % (START_S + offset % SPREAD_S), value, [], START_S * 1000)


def by_id(timers: int) -> Iterator[Record]:
    """``timers`` records: each id is set once; then, in random order, a third is replaced and a third is cancelled."""
    value = future.encode("target", "key", PAYLOAD)
    ids = timers * 3 // 5
    changes = [(number, number % 3) for number in range(ids) if number % 3]
    random.Random(1).shuffle(changes)
    for offset, (number, kind) in enumerate([*((number, 0) for number in range(ids)), *changes]):
        due = future_by_id.encode_headers(START_S + number % SPREAD_S)
        id = b"order-%d" % number
        yield Record(offset, id, None if kind == 2 else value, [] if kind == 2 else due, START_S * 1000)


def countdowns(timers: int) -> Iterator[Record]:
    """Countdowns without ids, on a topic whose format allows ids."""
    caller = [(countdown.CALLER, b"orders")]
    for offset in range(timers):
        value = countdown.encode("target", PAYLOAD.decode(), offset % SPREAD_S + 0.5)
        yield Record(offset, b"key", value, caller, START_S * 1000 - 500)


class DiscardingScheduleOutbox(DiscardingOutbox):
    """Like ``DiscardingOutbox``, for schedules: each firing writes a tombstone."""

    def commit(self, progress: Progress, output: Output = NO_OUTPUT) -> None:
        for _, rows in output.due:
            self.own += ((id, None, headers) for id, headers in schedule.tombstones(rows))
        due = [(due_s, self._transaction.end_schedules(rows)) for due_s, rows in output.due]
        super().commit(progress, output._replace(due=due))


class RepeatingOutbox(DiscardingOutbox):
    """Like ``DiscardingOutbox``, for timers that repeat: each firing writes the next occurrence."""

    def commit(self, progress: Progress, output: Output = NO_OUTPUT) -> None:
        followers = [*encode_occurrences(output.followers, self._transaction.source)]
        self._transaction.add_own(followers)
        self.own += followers
        super().commit(progress, output._replace(followers=(), lacking={}))


def repeating(timers: int) -> Iterator[Record]:
    """Definitions of timers that repeat."""
    for offset in range(timers):
        rule = b"every=%d; from=%d" % (SPREAD_S, START_S + offset % SPREAD_S)
        headers = [(h.TIMER_TOPIC, b"target"), (h.TIMER_REPEAT, rule)]
        yield Record(offset, b"order-%d" % offset, PAYLOAD, headers, START_S * 1000 - 1000)


def schedules(timers: int) -> Iterator[Record]:
    """The records of :func:`by_id` as schedules."""
    for record in by_id(timers):
        if record.value is None:
            yield record
        else:
            due_s = START_S + int(record.key.split(b"-")[1]) % SPREAD_S
            yield record._replace(value=PAYLOAD, headers=schedule.encode_headers(due_s, "target", b"key"))


def measure(
    records: list[Record],
    request_format: RequestFormat,
    directory: Path,
    kind: type[DiscardingOutbox] = DiscardingOutbox,
) -> dict[str, float]:
    store = RocksStore.open(
        directory / "store", "bench", RocksMemory(192 * 1024 * 1024), indexed=request_format.has_ids
    )
    outbox = kind()
    limits = Limits(20_000, 16 * 1024 * 1024, 1_000_000, partitions=1)
    begin = Progress.first(levels.RAISED_TO_LEVEL)
    machine = PartitionSpec(("bench", 0), request_format, limits).machine(begin, store, outbox)
    machine.observe(Tick((START_S - 1) * 1000), len(records))

    def accept() -> None:
        for start in range(0, len(records), FETCH):
            part = records[start : start + FETCH]
            machine.accept(Fetched(start, start + len(part), part))
        read_own(START_S * 1000 - 1000)

    def read_own(time_ms: int) -> None:
        own, outbox.own = outbox.own, []
        for start in range(0, len(own), FETCH):
            at = machine.position
            part = [Record(at + number, *each, time_ms) for number, each in enumerate(own[start : start + FETCH])]
            machine.accept(Fetched(at, at + len(part), part))

    def fire() -> None:
        for second in range(SPREAD_S):
            machine.observe(Tick((START_S + second) * 1000), machine.position)
            while machine.fire_chunk():
                pass
            machine.commit_progress()
            read_own((START_S + second) * 1000)

    cpu_s = {"accept_us": _cpu_s(accept), "fire_us": _cpu_s(fire)}
    store.close()
    return {name: 1e6 * seconds / len(records) for name, seconds in cpu_s.items()} | {
        "records": len(records),
        "fired": outbox.fired,
        "verdicts": outbox.verdict_count,
    }


def _cpu_s(action: Callable[[], None]) -> float:
    before = time.process_time()
    action()
    return time.process_time() - before


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ids", description=__doc__.split(":")[1])
    parser.add_argument("--timers", type=int, default=TIMERS, help=f"records of each kind ({TIMERS})")
    parser.add_argument("--repeat", type=int, default=3, help="the best of this many is shown (3)")
    options = parser.parse_args()
    formats = {kind.request_format.name: kind.request_format for kind in REQUEST_FORMATS}
    for name, label, kind, records in (
        ("future", "", DiscardingOutbox, list(native(options.timers))),
        ("future-by-id", "", DiscardingOutbox, list(by_id(options.timers))),
        ("future-by-id", " that repeat", RepeatingOutbox, list(repeating(options.timers))),
        ("countdown", "", DiscardingOutbox, list(countdowns(options.timers))),
        ("schedule", "", DiscardingScheduleOutbox, list(schedules(options.timers))),
    ):
        results = []
        for _ in range(options.repeat):
            directory = Path(tempfile.mkdtemp(prefix="timers-bench-"))
            try:
                results.append(measure(records, formats[name], directory, kind))
            finally:
                shutil.rmtree(directory)
        best = min(results, key=lambda result: result["accept_us"] + result["fire_us"])
        print(json.dumps({"timers": name + label, **{key: round(value, 3) for key, value in best.items()}}))


if __name__ == "__main__":
    main()
