"""Timers with an id are replaced and cancelled with a verdict, and fire exactly once, also with faults."""

import asyncio
import json
import math
import random
import re
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions

from tests.harness.ids import Ids, running_ids
from tests.harness.race import race
from tests.harness.records import Headers, Record, Request
from tests.harness.scrape import health, scrape, wait_equal
from tests.harness.system import PARTITIONS, System
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from timers.cli.main import main
from timers.client import AsyncTimersClient, MappingFirings, TimersClient, source_of
from timers.errors import InvalidTimerError, NoVerdictError, PublishError
from timers.wire import future, verdict
from timers.wire.formats import future_by_id
from timers.wire.key_partition import partition_of

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def ids(broker_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ids]:
    with running_ids(broker_address, tmp_path_factory.mktemp("ids")) as ids:
        yield ids


def versions(records: list[Record]) -> list[tuple[str, str, int]]:
    """(id, value, due second) of each firing."""
    return sorted((record.timer_id, (record.value or b"").decode(), record.due_s) for record in records)


def test_the_latest_version_fires_and_a_null_value_cancels(ids: Ids) -> None:
    past = due_in(-100)
    ids.set("late", past, "at once")
    ids.flush()
    (at_once,) = ids.fired.take(1)
    assert versions([at_once]) == [("late", "at once", past)]
    ids.set("late", past, "again")
    ids.cancel("late")
    ids.cancel("late")
    ids.flush()
    assert ids.told(3) == [
        verdict.VerdictMessage("late", "already-fired", past),
        verdict.VerdictMessage("late", "already-fired", past),
        verdict.VerdictMessage("late", "unknown", None),
    ]
    soon, later = due_in(6), due_in(8)
    ids.set("moved", later, "first")
    ids.set("moved", soon, "second")
    ids.set("kept", soon, "only")
    ids.set("dropped", soon, "never")
    ids.cancel("dropped")
    ids.cancel("nobody")
    ids.set("nowhere", soon, "lost", target="no-such-topic")
    ids.flush()
    assert set(ids.told(3)) == {
        verdict.VerdictMessage("moved", "replaced", later),
        verdict.VerdictMessage("dropped", "cancelled", soon),
        verdict.VerdictMessage("nobody", "unknown", None),
    }
    fired = ids.fired.take(3)
    ids.wait_past(later)
    assert versions(fired) == [("kept", "only", soon), ("late", "again", past), ("moved", "second", soon)]
    assert ids.fired.rest() == []
    for record in fired:
        assert record.key == f"key-{record.timer_id}".encode()
        assert [name for name, _ in record.headers] == ["a", "timer-source", "timer-id", "timer-due", "timer-fired"]
        assert record.lag_ms >= 0

    due = future_by_id.encode_headers(soon)
    good = future.encode(ids.target, "k", b"v")
    wrong: dict[str, tuple[bytes | None, bytes, Headers]] = {
        "id-missing": (None, good, due),
        "id-too-long": (b"x" * 513, good, due),
        "id-not-text": (b"\xff", good, due),
        "due-missing": (b"a", good, []),
        "key-in-milliseconds": (b"b", good, [("timer-due", b"1800000000000")]),
        "value-not-a-future": (b"c", b"\xff\xff", due),
    }
    for id, value, headers in wrong.values():
        ids.send(id, value, headers)
    ids.flush()
    letters = {letter.text("timer-error"): letter for letter in ids.system.dead_letters().take(len(wrong) + 1)}
    assert letters.keys() == wrong.keys() | {"topic-unknown"}
    for code, sent in wrong.items():
        assert (letters[code].key, letters[code].value, letters[code].headers[: len(sent[2])]) == sent
    nowhere = letters["topic-unknown"]
    assert (nowhere.key, nowhere.value) == (b"nowhere", future.encode("no-such-topic", "key-nowhere", b"lost"))
    assert nowhere.headers[:2] == [("a", b"1"), *due]
    assert nowhere.text("timer-source").startswith(f"{ids.topic}/")


def test_two_partitioners_on_one_topic_are_told(ids: Ids) -> None:
    """In the verdict on the cancel that misses its timer, on the health page, and by a metric."""
    worker = ids.system.workers[0]
    names = [f"placed-{uuid.uuid4().hex}" for _ in range(60)]
    partitions = len(ids.system.cluster.partitions(ids.topic))
    producer = Producer({"bootstrap.servers": ids.system.address})

    def send(name: str, value: bytes | None, places_on: int = 0) -> None:
        place = (partition_of(name.encode(), partitions) + places_on) % partitions
        headers = [] if value is None else future_by_id.encode_headers(due_in(3600))
        producer.produce(ids.topic, value, name, place, headers=[*headers])

    for name in names:
        send(name, future.encode(ids.target, "k", b"never"))
    send(names[0], None, 1)
    producer.flush()
    (record,) = ids.verdicts.take(1)
    told = json.loads(record.value or b"")
    place = partition_of(names[0].encode(), partitions)
    assert told["verdict"] == "unknown" and told["hint"].endswith(f"puts this id on partition {place}")

    def warnings() -> list[str]:
        return [each for each in health(worker.port, "partitions")[1]["warnings"] if "two partitioners" in each]

    # Other tests of this module place their ids as librdkafka does, and this one places more in another way.
    wait_until(warnings, "the health page says it")
    assert scrape(worker.port).by("timers_ids_placed_total", "place")["elsewhere"] >= 1
    for name in names:
        send(name, None)
    producer.flush()
    assert {each.verdict for each in ids.told(len(names))} == {"cancelled"}


def test_receivers_tell_versions_of_an_id_and_the_sources_of_others_apart(ids: Ids) -> None:
    """The sender of a timer with an id may choose the source of another timer as the id."""
    assert [worker.running for worker in ids.system.workers] == [True]
    target = ids.system.target()
    past = due_in(-10)
    reader = ids.system.reader(target)
    ids.set("again", past, "first", target=target)
    ids.flush()
    records = reader.take(1)
    (native,) = ids.system.send(Request(target, due_in(2), "native", partition=0))
    ids.set("again", past, "second", target=target)
    ids.set(native.source, past, "hostile", target=target)
    ids.flush()
    records += reader.take(3)
    assert ids.told(1) == [verdict.VerdictMessage("again", "already-fired", past)]
    firings = MappingFirings({})
    assert [firings.accept(record) for record in records] == [True] * 4
    assert [firings.accept(record) for record in records] == [False] * 4, "Kafka delivers them again"
    assert sorted(record.timer_id for record in records) == sorted(["again", "again", native.source, native.source])
    assert [source_of(record) for record in records if record.key == b"native"] == [native.source]


@pytest.mark.long
def test_kills_empty_disks_and_changes_while_no_worker_runs(ids: Ids) -> None:
    """A third is replaced, a third cancelled: before, while the worker is down, and on an empty disk."""
    (worker,) = ids.system.workers
    dice = random.Random(5)
    first_s = due_in(6 + math.ceil(4 * worker.ready_s))
    latest: dict[str, tuple[str, int]] = {}
    expected: Counter[str] = Counter()

    def set(id: str) -> None:
        expected["replaced"] += id in latest
        latest[id] = (f"{id}-{dice.random()}", first_s + dice.randrange(4))
        ids.set(id, latest[id][1], latest[id][0])

    def change(id: str) -> None:
        if dice.random() < 0.5:
            return set(id)
        expected["cancelled" if id in latest else "unknown"] += 1
        latest.pop(id, None)
        return ids.cancel(id)

    names = [f"storm-{number}" for number in range(3000)]
    for name in names:
        set(name)
    for name in names[:1000]:
        change(name)
    ids.flush()
    told = ids.told(1000)
    worker.kill()
    for name in names[1000:1500]:
        change(name)
    ids.flush()
    worker.start().ready()
    worker.kill()
    shutil.rmtree(worker.data_dir)
    for name in names[1300:2000]:
        change(name)
    ids.flush()
    passed = "its first seconds have passed"
    wait_until(lambda: time.time() > first_s + 1, passed, max(0.0, first_s - time.time()) + DEADLINE_S)
    worker.start().ready()
    seen = ids.fired.take(100)
    worker.kill()
    worker.start().ready()
    ids.wait_past(first_s + 4)
    records = seen + ids.fired.rest()
    assert max(Counter(record.timer_id for record in records).values()) == 1
    assert {record.timer_id: ((record.value or b"").decode(), record.due_s) for record in records} == latest
    told += [verdict.decode(record.value or b"") for record in ids.verdicts.rest()]
    assert Counter(each.verdict for each in told) == expected, "all changes came in time, and each is told once"


def test_a_change_in_the_due_second_either_takes_effect_or_comes_too_late(ids: Ids) -> None:
    due_s = due_in(4)
    names = [f"race-{number}" for number in range(400)]
    for name in names:
        ids.set(name, due_s, "first")
    ids.flush()

    def change(number: int, name: str) -> None:
        ids.cancel(name) if number % 2 else ids.set(name, due_s, "second")

    seen = race(names, due_s, change, ids.flush, ids.fired)
    told = {each.id: each.verdict for each in ids.told(len(names))}
    ids.wait_past(due_s + 1)
    fired = Counter((record.timer_id, (record.value or b"").decode()) for record in seen + ids.fired.rest())
    assert max(fired.values()) == 1
    for number, name in enumerate(names):
        first, second = fired[name, "first"], fired[name, "second"]
        assert second == (number % 2 == 0)
        assert told[name] == ("already-fired" if first else "cancelled" if number % 2 else "replaced")
    assert {"already-fired", "cancelled", "replaced"} == set(told.values()), "the race had both outcomes"


def test_the_commands(ids: Ids, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ids.system.use(monkeypatch)
    asked = ("--topic", ids.target, "--key", "k", "--value", "v")
    assert main(["schedule", "--id", "cli-1", "--in", "1d", *asked]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "cli-1"
    assert main(["cancel", "cli-1"]) == 0
    assert capfd.readouterr().out.startswith("cli-1: cancelled, due ")
    assert main(["cancel", "cli-1", "-o", "json"]) == 4
    assert json.loads(capfd.readouterr().out) == {"id": "cli-1", "verdict": "unknown", "due": None}
    assert main(["schedule", "--id", "cli-2", "--at", str(due_in(-5)), *asked]) == 0
    assert main(["cancel", "cli-2"]) == 3
    assert main(["cancel", "x" * 513]) == 2
    assert main(["schedule", "--id", "", "--in", "1d", *asked]) == 2
    monkeypatch.setenv("TIMERS_ID_TOPIC", "")
    assert main(["cancel", "cli-1"]) == 2
    assert "TIMERS_ID_TOPIC is empty" in capfd.readouterr().err
    ids.fired.take(1)
    ids.verdicts.rest()


def test_timers_with_an_id_are_on_by_default(
    broker_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    system = System(broker_address, tmp_path, TIMERS_VERDICT_TOPIC=f"verdict-{uuid.uuid4().hex[:8]}")
    del system.environment["TIMERS_ID_TOPIC"]
    system.use(monkeypatch)
    try:
        system.worker().start().ready()
        request = ["--in", "1d", "--topic", system.target(), "--value", "v"]
        assert main(["schedule", "--id", "order-1", "--if-absent", *request]) == 0
        assert main(["schedule", "--id", "order-1", "--if-absent", *request]) == 5
        assert main(["cancel", "order-1"]) == 0
        assert "order-1: cancelled, due " in capfd.readouterr().out
        assert system.end(f"{system.request_topic}-by-id") >= 3
    finally:
        system.close()


def test_a_client_awaits_what_becomes_of_its_changes(ids: Ids, monkeypatch: pytest.MonkeyPatch) -> None:
    ids.system.use(monkeypatch)
    far, past = due_in(10_000), due_in(-100)
    with TimersClient() as client:
        assert client.schedule(ids.target, "k", "v", at=far, id="client-1") == "client-1"
        assert client.update("client-1", ids.target, "k", "w", at=far + 1)[:3] == ("client-1", "replaced", far)
        assert client.cancel("client-1")[:3] == ("client-1", "cancelled", far + 1)
        assert client.cancel("client-1")[:3] == ("client-1", "unknown", None)
        assert client.update("client-1", ids.target, "k", "x", at=far)[:3] == ("client-1", "unknown", None)
        assert client.cancel("client-1")[:3] == ("client-1", "cancelled", far)
        client.schedule(ids.target, b"\xff", "once", at=past, id="client-2")
        assert client.update("client-2", ids.target, None, "twice", at=past)[:3] == ("client-2", "already-fired", past)
        with ThreadPoolExecutor(16) as pool:
            told = list(pool.map(lambda number: client.cancel(f"nobody-{number}"), range(200)))
        assert [each.verdict for each in told] == ["unknown"] * 200
        with pytest.raises(InvalidTimerError, match="the id has 513 bytes"):
            client.cancel("x" * 513)
    with pytest.raises(PublishError, match="closed"):
        client.cancel("client-1")
    fired = {record.value: record.key for record in ids.fired.take(2)}
    assert fired == {b"once": b"\xff", b"twice": None}

    async def together() -> list[str]:
        async with AsyncTimersClient() as client:
            names = [f"async-{number}" for number in range(300)]
            await asyncio.gather(*(client.schedule(ids.target, "k", "v", at=far, id=name) for name in names))
            changes = [
                client.cancel(name) if number % 2 else client.update(name, ids.target, "k", "w", at=far)
                for number, name in enumerate(names)
            ]
            return [told.verdict for told in await asyncio.gather(*changes)]

    assert asyncio.run(together()) == ["replaced", "cancelled"] * 150
    with (
        TimersClient(id_topic=ids.target) as deaf,
        pytest.raises(NoVerdictError, match=r"no verdict came within 0\.5 s"),
    ):
        deaf.cancel("client-1", timeout_s=0.5)
    ids.fired.rest()
    ids.verdicts.rest()


@pytest.mark.long
def test_more_partitions_stop_the_timers_of_this_topic_and_of_no_other_until_an_operator_accepts_them(
    ids: Ids,
) -> None:
    (worker,) = ids.system.workers
    ids.set("waits", due_in(8), "after the way on")
    ids.flush()
    ids.wait_past(due_in(0))
    ids.system.admin.create_partitions([NewPartitions(ids.topic, PARTITIONS + 2)])[ids.topic].result(DEADLINE_S)
    sentence = rf"{ids.topic} has {PARTITIONS + 2} partitions and had {PARTITIONS} when its timers were accepted"
    worker.wait_for(sentence)
    worker.kill()
    worker.start()
    worker.wait_for(sentence)
    ids.system.wait_past(due_in(1))

    def said() -> list[bool]:
        reds = health(worker.port, "partitions")[1]["red"].values()
        section = "docs/operations.md#partitions-added-to-a-topic-of-ids"
        return [bool(re.match(sentence, why)) and section in why for why in reds]

    wait_equal(said, [True] * (PARTITIONS + 2))
    assert ids.fired.rest() == []
    worker.stop()
    names = ",".join(f"{ids.topic}/{partition}" for partition in range(PARTITIONS + 2))
    worker.start(TIMERS_ACCEPT_LOSS=names).ready()
    assert [record.value for record in ids.fired.take(1)] == [b"after the way on"]
    worker.stop()
    worker.start().ready()
    ids.set("new", due_in(1), "by the new number")
    ids.flush()
    assert [record.value for record in ids.fired.take(1)] == [b"by the new number"]
    wait_equal(lambda: health(worker.port, "partitions")[0], 200)
