"""``python -m tests.fuzz.batches``: damaged compressed batches, sent to a broker; a worker must read what it takes.

Brokers take about a quarter of them. All records before one that cannot be read must become a callback or a dead
letter, once. A partition may be red only with the sentence of a batch that cannot be read. Then an operator passes over
all of them: each has one dead letter, all records after it are read, and a worker with an empty disk reads the same.
``timers log verify`` and, with ``--audit``, the audit must find nothing. Java's consumer must read the same records up
to the first batch that it cannot read.

Run it under a limit of memory (``ulimit -v``): the batches unpack to anything.
"""

import argparse
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from struct import pack_into
from typing import Any

import cramjam
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED
from aiokafka.record.util import encode_varint

from tests.harness import kafka_version, raw_batches
from tests.harness.java_consumer import consume_by_console
from tests.harness.process import clean_environment
from tests.harness.records import Record, Request
from tests.harness.scrape import health
from tests.harness.system import PARTITIONS, System
from tests.harness.waiting import due_in, wait_until
from tests.harness.worker import Worker
from timers.cli.broker import EmbeddedBroker
from timers.kafka.aiokafka_internals.batch_pieces import UnreadableBatch
from timers.kafka.aiokafka_internals.fetch import InPieces, RecordsWithData, UncopiedRecords

PAUSE_S = 0.01
MOST_UNREADABLE = 80
"""In a partition: at most 100 can be passed over."""

SENTENCE = re.compile(
    r"the record batch with the offsets \d+ to \d+ \(compression: \w+\) cannot be read: "
    r".*TIMERS_ACCEPT_LOSS=\S+:\d+-\d+ \("
)
SNAPSHOTS = {"TIMERS_SNAPSHOT_RECORDS": "20"}
"""Of the first worker, so that a worker with an empty disk, and the comparison, read through most of the log."""

PATIENCE_S = 120.0


class Draw(random.Random):
    """Draws damaged batches."""

    def batch(self, target: str, due_s: int, name: str) -> bytes:
        """A batch of requests, of which some are damaged."""
        count, lies = self.choice([1, 2, 3, 10]), self.choice([0.0, 0.0, 0.0, 0.0, 0.02])
        body = b"".join(self._record(index, f"{name}/{index}", target, due_s, lies) for index in range(count))
        codec = self.choice([raw_batches.GZIP, raw_batches.SNAPPY, raw_batches.LZ4, raw_batches.ZSTD])
        data = self._packed(codec, body)
        if self.random() < 0.5:
            data = self._damaged(data)
        return raw_batches.batch(data, codec, count, due_s * 1000)

    def _number(self, number: int, lies: float) -> bytes:
        if self.random() < lies:
            number = self.choice([number - 1, number + 1, -1, 0, 2 * number, 2**31 - 1, self.randrange(-99, 99)])
        found = bytearray()
        encode_varint(number, found.append)
        while self.random() < 0.02 and len(found) < 5:
            found[-1] |= 0x80
            found.append(0)
        return bytes(found)

    def _field(self, content: bytes | None, lies: float) -> bytes:
        return self._number(-1, lies) if content is None else self._number(len(content), lies) + content

    def _record(self, index: int, value: str, target: str, due_s: int, lies: float) -> bytes:
        headers: list[tuple[bytes, bytes | None]] = [(b"timer-topic", target.encode())]
        headers += [(self.randbytes(3), self.choice([None, self.randbytes(4)])) for _ in range(self.choice([0, 0, 2]))]
        body = bytes([self.choice([0, 0, 0, 0x80])]) + self._number(0, lies) + self._number(index, lies / 4)
        body += self._field(b"%d" % due_s, lies) + self._field(value.encode(), lies)
        body += self._number(len(headers), lies)
        body += b"".join(self._number(len(key), lies) + key + self._field(each, lies) for key, each in headers)
        return self._number(len(body), lies) + body

    def _packed(self, codec: int, body: bytes) -> bytes:
        cut = self.randrange(1, len(body)) if self.random() < 0.3 else len(body)
        parts = [self._one(codec, body[:cut]), *([self._one(codec, body[cut:])] if cut < len(body) else [])]
        if self.random() < 0.2:
            parts.append(self.choice([b"\0\0", b"\0" * 4, self.randbytes(9), b"\x50\x2a\x4d\x18\3\0\0\0abc"]))
        return b"".join(parts)

    def _one(self, codec: int, body: bytes) -> bytes:
        if codec == raw_batches.GZIP:
            return raw_batches.gzip_member(body, self.choice([0, 0, 0xE0]))
        if codec == raw_batches.LZ4:
            options = {name: self.random() < 0.5 for name in ("content_checksum", "block_checksum")}
            return raw_batches.lz4_frame(body, self.choice([None, None, 7]), **options)
        if codec == raw_batches.ZSTD:
            return raw_batches.zstd_frame(body)
        whole = bytes(cramjam.snappy.compress_raw(body))
        return self.choice([whole, raw_batches.xerial(body), raw_batches.xerial(body[:50], body[50:], version=2)])

    def _damaged(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(self.choice([1, 1, 2])):
            at = self.randrange(len(changed))
            if self.random() < 0.7:
                changed[at] ^= 1 << self.randrange(8)
            else:
                changed[at : at + self.randrange(3)] = self.randbytes(self.randrange(3))
        return bytes(changed)


class Sent:
    """What a partition has: offsets that must be read, and batches that cannot be read."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.readable: list[tuple[int, bytes | None]] = []
        """(offset, value)"""
        self.unreadable: list[int] = []
        """First offsets."""
        self.later: set[int] = set()
        """Offsets of records whose key was changed to a second to come: they wait, if they are requests."""
        self.end = 0

    def note(self, batch: bytes) -> None:
        """The broker has taken a batch."""
        based = bytearray(batch)
        pack_into(">q", based, 0, self.end)
        tp = TopicPartition("fuzz", self.partition)
        reader = UncopiedRecords(
            tp, RecordsWithData(bytes(based)), [], self.end, InPieces(), None, False, READ_COMMITTED
        )
        try:
            while not reader.finished:
                for record in reader.piece():
                    self.readable.append((record.offset, record.value))
                    if re.fullmatch(rb"[0-9]{1,11}", record.key or b"") and int(record.key) > due_in(60):
                        self.later.add(record.offset)
        except UnreadableBatch as error:
            self.unreadable.append(error.from_offset)
        self.end += int.from_bytes(batch[23:27], "big") + 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.batches", description=__doc__)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--seed", type=int, default=random.getrandbits(32))
    parser.add_argument("--audit", action="store_true", help="also run the audit, which needs Spark")
    kafka_version.add_option(parser)
    options = parser.parse_args()
    print(f"Kafka {kafka_version.chosen()}, seed {options.seed}, {options.seconds:.0f} s", flush=True)
    with tempfile.TemporaryDirectory(prefix="timers-fuzz-") as name, EmbeddedBroker(Path(name) / "broker", 0) as broker:
        system = System(broker.start(), Path(name))
        try:
            Run(system, Draw(options.seed)).run(options.seconds, audit=options.audit)
        finally:
            system.close()
    return 0


class Run:
    """One run of the fuzz test."""

    def __init__(self, system: System, draw: Draw) -> None:
        self._system = system
        self._draw = draw
        system.create_own_topics()
        self._target = system.target()
        self._callbacks, self._letters = system.reader(self._target), system.dead_letters()
        self._sent = [Sent(partition) for partition in range(PARTITIONS)]
        self._seen: Counter[str] = Counter()
        """Source -> callbacks and dead letters."""
        self._codes: Counter[str] = Counter()

    def run(self, seconds: float, *, audit: bool) -> None:
        worker = self._system.worker(forked=False).start(**SNAPSHOTS).ready()
        taken, refused = self._send(seconds)
        unreadable = sum(len(each.unreadable) for each in self._sent)
        print(f"{taken} batches taken, {refused} refused; {unreadable} cannot be read", flush=True)
        red = [each for each in self._sent if each.unreadable]
        wait_until(lambda: len(_red(worker)) == len(red), "each partition with such a batch is red", PATIENCE_S)
        for sentence in _red(worker).values():
            assert SENTENCE.search(sentence), sentence
        self._wait_for(lambda sent: sent.unreadable[0] if sent.unreadable else sent.end, letters=0)
        self._compare_with_java()
        accepted = ",".join(f"{self._system.request_topic}/{each.partition}:0-{each.end}" for each in red)
        worker.stop()
        worker = self._system.worker(forked=False).start(TIMERS_ACCEPT_LOSS=accepted).ready()  # with an empty disk
        self._wait_for(lambda sent: sent.end, letters=unreadable)
        wait_until(lambda: not _red(worker), "all is green", PATIENCE_S)
        worker.stop()
        worker = self._system.worker(forked=False).start().ready()  # with an empty disk
        fences = [Request(self._system.target(), due_in(1), partition=partition) for partition in range(PARTITIONS)]
        for fence in self._system.send(*fences):
            self._system.reader(fence.target).take(1)
        self._take()
        assert self._codes["batch-unreadable"] == unreadable and set(self._seen.values()) <= {1}
        assert not _red(worker), _red(worker)
        print(f"read on, and again with an empty disk: {dict(self._codes)}", flush=True)
        worker.stop()
        self._system.worker(forked=False).start(**SNAPSHOTS).ready()
        self._verify()
        if audit:
            print(_ran(self._system, "spark", "audit", "--master", "local[2]"), flush=True)

    def _send(self, seconds: float) -> tuple[int, int]:
        taken = refused = 0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(PAUSE_S)
            sent = self._draw.choice(self._sent)
            if len(sent.unreadable) >= MOST_UNREADABLE:
                continue
            batch = self._draw.batch(self._target, due_in(0), f"{sent.partition}-{taken}")
            if raw_batches.produce(self._system.address, self._system.request_topic, sent.partition, batch):
                refused += 1
            else:
                taken += 1
                sent.note(batch)
        return taken, refused

    def _wait_for(self, end: Any, letters: int) -> None:
        """Wait until all readable records below an offset of each partition have come out, and none twice."""
        topic = self._system.request_topic
        wanted = {
            f"{topic}/{sent.partition}/{offset}"
            for sent in self._sent
            for offset, _ in sent.readable
            if offset < end(sent) and offset not in sent.later
        }

        def have_come() -> bool:
            self._take()
            return wanted <= self._seen.keys() and self._codes["batch-unreadable"] >= letters

        try:
            wait_until(have_come, "all records have come out", PATIENCE_S)
        except AssertionError:
            print(f"missing: {sorted(wanted - self._seen.keys())[:5]}", flush=True)
            raise
        assert set(self._seen.values()) == {1}, self._seen.most_common(3)
        known = {f"{topic}/{s.partition}/{at}" for s in self._sent for at in (*s.unreadable, *s.later)}
        others = self._seen.keys() - wanted - known
        assert not others, sorted(others)[:5]

    def _take(self) -> None:
        records: list[Record] = [*self._callbacks.rest()]
        self._seen.update(record.timer_id for record in records)
        for letter in self._letters.rest():
            self._codes[letter.text("timer-error")] += 1
            self._seen[letter.text("timer-source")] += 1

    def _compare_with_java(self) -> None:
        for sent in self._sent:
            first = sent.unreadable[0] if sent.unreadable else sent.end
            mine = [(offset, value) for offset, value in sent.readable if offset < first]
            if mine:
                place = self._system.address, self._system.request_topic, sent.partition, len(mine)
                by_java = [(offset, value) for offset, value in consume_by_console(*place)]
                assert [offset for offset, _ in by_java] == [offset for offset, _ in mine]
        print("Java's consumer reads the same", flush=True)

    def _verify(self) -> None:
        def is_compared() -> bool:
            self._system.send(*(Request(self._target, due_in(0), partition=each) for each in range(PARTITIONS)))
            said = _ran(self._system, "log", "verify")
            return said.count(" 0 differ") >= PARTITIONS

        wait_until(is_compared, "log verify compares all partitions", PATIENCE_S)
        print("log verify finds no difference", flush=True)


def _red(worker: Worker) -> dict[str, str]:
    found: dict[str, str] = health(worker.port, "partitions")[1]["red"]
    return found


def _ran(system: System, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "timers.cli.main", *command],
        env=clean_environment(**system.environment),
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
