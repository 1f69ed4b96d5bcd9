"""Large requests cost their own timers time and memory, and other timers nothing."""

import asyncio
import hashlib
import statistics
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from aiokafka import AIOKafkaProducer

from tests.harness.letters import await_letters
from tests.harness.records import Request
from tests.harness.system import MAX_LAG_MS, PARTITIONS, System, timers
from tests.harness.waiting import due_in
from timers.cli.main import main

pytestmark = pytest.mark.broker


def test_huge_keys_do_not_delay_small_timers(running: System) -> None:
    target, huge_target = running.target(partitions=4), running.target(partitions=4)
    due_s = due_in(4)
    small = timers(target, 2000, due_s, 4)
    huge = [
        Request(huge_target, due_s + index % 4, "k" * (900_000 + index), partition=index % PARTITIONS)
        for index in range(20)
    ]
    running.send(*huge, *small)
    lags = [record.lag_ms for record in running.fired(small).values()]
    assert statistics.quantiles(lags, n=100)[98] < MAX_LAG_MS
    fired = running.fired(huge)
    assert {source: record.key for source, record in fired.items()} == {each.source: each.key.encode() for each in huge}


BOMB = bytes(100_000_000)
"""Packed by gzip into 97 kB, by lz4 into 392 kB, by zstd into 3 kB. Snappy packs at most 21 to 1."""

MAX_GROWTH_MB = 150
"""Memory that a bomb may cost. Read as a whole, one bomb takes 300 MB."""


def publish_batch(system: System, partition: int, codec: str, records: Sequence[tuple[bytes, bytes | None]]) -> int:
    """Publish records as one batch. Returns the offset of the first one."""

    async def publish() -> int:
        producer = AIOKafkaProducer(
            bootstrap_servers=system.address, acks="all", compression_type=codec, max_batch_size=1 << 30
        )
        await producer.start()
        try:
            batch = producer.create_batch()
            for key, value in records:
                assert batch.append(key=key, value=value, timestamp=None) is not None
            sent = await producer.send_batch(batch, system.request_topic, partition=partition)
            return int((await sent).offset)
        finally:
            await producer.stop()

    return asyncio.run(publish())


def peak_mb(pid: int) -> float:
    """The most memory that a process ever had, in MB."""
    (line,) = [each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmHWM:")]
    return int(line.split()[1]) / 1000


@pytest.mark.long
def test_batches_that_unpack_to_much_more_cost_neither_memory_nor_time(
    system: System, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The timers of other partitions fire on time, those of its batch fire, and the large value is a dead letter."""
    worker = system.worker().start().ready()
    before = peak_mb(worker.pid)
    target, target_of_bombs = system.target(), system.target()
    due_s = due_in(2)
    beside = timers(target, 400, due_s, 10)
    system.send(*beside)
    inside, bombs = [], []
    for partition, codec in enumerate(("gzip", "lz4", "zstd")):
        good = [Request(target_of_bombs, due_s, str(index), partition=partition) for index in range(2)]
        first, second = [(each.wire_key, each.wire_value) for each in good]
        offset = publish_batch(system, partition, codec, [first, (b"%d" % due_s, BOMB), second])
        good[0].source, bomb, good[1].source = (f"{system.request_topic}/{partition}/{offset + i}" for i in range(3))
        inside += good
        bombs.append(bomb)
    assert max(record.lag_ms for record in system.fired(beside).values()) < MAX_LAG_MS
    assert len(system.fired(inside)) == len(inside)
    letters = await_letters(system, set(bombs))
    for bomb in bombs:
        letter = letters[bomb]
        assert letter.text("timer-error") == "value-too-large"
        assert f"the value has {len(BOMB)} bytes" in letter.text("timer-error-message")
        assert (letter.key, letter.value) == (b"%d" % due_s, BOMB[:4096])
        assert letter.text("timer-value-bytes") == str(len(BOMB))
        assert letter.text("timer-value-sha256") == hashlib.sha256(BOMB).hexdigest()

    # The request of another dead letter is read again, from the batch of a bomb.
    (unknown,) = [Request("no-such-topic", due_in(1), partition=3)]
    offset = publish_batch(system, 3, "gzip", [(b"1", BOMB), (unknown.wire_key, unknown.wire_value)])
    source = f"{system.request_topic}/3/{offset + 1}"
    letter = await_letters(system, {source})[source]
    assert (letter.key, letter.value) == (unknown.wire_key, unknown.wire_value)
    assert peak_mb(worker.pid) < before + MAX_GROWTH_MB

    system.use(monkeypatch)
    own_before = psutil.Process().memory_info().rss
    assert main(["dead-letters", "retry", "--yes", bombs[0]]) == 1
    assert "it has only the first 4096 of 100000000 bytes of its value" in capsys.readouterr().err
    assert psutil.Process().memory_info().rss < own_before + 100_000_000


@pytest.mark.long
def test_a_batch_of_very_many_records(system: System) -> None:
    """Each empty record is a dead letter of its own; they go in several transactions, and timers beside are on time."""
    system.worker().start().ready()
    target = system.target()
    beside = timers(target, 200, due_in(5), 3)
    for index, each in enumerate(beside):
        each.partition = 1 + index % (PARTITIONS - 1)
    system.send(*beside)
    offset = publish_batch(system, 0, "zstd", [(b"", None)] * 25_000)
    assert max(record.lag_ms for record in system.fired(beside).values()) < MAX_LAG_MS
    sources = {f"{system.request_topic}/0/{offset + index}" for index in range(25_000)}
    letters = await_letters(system, sources)
    assert {letters[source].text("timer-error") for source in sources} == {"value-missing"}


def test_a_large_value_that_is_allowed_fires_whole(running: System) -> None:
    """Several megabytes of allowed values in one batch: it is read in pieces."""
    target = running.target(max_message_bytes="2000000")
    due_s = due_in(3)
    sent = [Request(target, due_s, f"large-{index}", bytes([index]) * 900_000, partition=1) for index in range(12)]
    offset = publish_batch(running, 1, "zstd", [(each.wire_key, each.wire_value) for each in sent])
    for index, each in enumerate(sent):
        each.source = f"{running.request_topic}/1/{offset + index}"
    fired = running.fired(sent)
    assert {source: record.value for source, record in fired.items()} == {each.source: each.value for each in sent}
