"""What a partition of the engine's own topics stops while it has no leader. One of three brokers is gone.

docs/operations.md has a table of these cases.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.harness.records import Reader, Record, Request
from tests.harness.scrape import health
from tests.harness.system import MAX_LAG_MS, System, assert_once
from tests.harness.three_brokers import (
    CONSUMER_OFFSETS,
    ONE_COORDINATOR,
    TRANSACTION_STATE,
    ThreeBrokers,
    coordinating_partition,
)
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from timers.client import TimersClient
from timers.core.timer import TopicPartition
from timers.errors import PublishError
from timers.kafka.own_topics import own_topics
from timers.wire import topics
from timers.wire.key_partition import partitions_of

pytestmark = [pytest.mark.broker, pytest.mark.long]

GONE = 3
"""The broker that dies or freezes."""

LIVING = (1, 2, 1, 2, 1, 2, 1, 2)
LAST_GONE = (1, 2, 1, 2, 1, 2, 1, GONE)
EVEN_GONE = (GONE, 1, GONE, 2, GONE, 1, GONE, 2)
COORDINATORS = 3
"""Number of partitions of each topic of coordinators."""

PROPERTIES = {
    **ONE_COORDINATOR,
    "offsets.topic.num.partitions": str(COORDINATORS),
    "transaction.state.log.num.partitions": str(COORDINATORS),
}

MakeSystem = Callable[..., System]


def start(directory: Path, coordinators: Sequence[int]) -> ThreeBrokers:
    """Three brokers whose coordinators are on the given ones."""
    brokers = ThreeBrokers(directory, PROPERTIES)
    try:
        brokers.start()
        for topic in (CONSUMER_OFFSETS, TRANSACTION_STATE):
            brokers.create(topic, coordinators, {"cleanup.policy": "compact"})
    except BaseException:
        brokers.stop()
        raise
    return brokers


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    """Three brokers, of which the first two coordinate; each test leaves all of them alive."""
    brokers = start(tmp_path_factory.mktemp("three"), (1, 2, 1))
    yield brokers
    brokers.stop()


@pytest.fixture
def make_system(brokers: ThreeBrokers, tmp_path: Path) -> Iterator[MakeSystem]:
    """A function that makes a system; its argument gives the leaders of own topics that the gone broker leads too."""
    made: list[System] = []

    def make(leaders: Callable[[System], dict[str, Sequence[int]]], **settings: str) -> System:
        system = System(brokers.address, tmp_path, TIMERS_PARTITIONS=str(len(LIVING)), **settings)
        made.append(system)
        create_topics(brokers, system, leaders(system))
        return system

    yield make
    for system in made:
        system.close()


def create_topics(brokers: ThreeBrokers, system: System, leaders: dict[str, Sequence[int]]) -> None:
    """Create the own topics of a system."""
    for topic in own_topics(system.settings):
        brokers.create(topic.name, leaders.get(topic.name, LIVING), topic.config)


def send(system: System, target: str, partitions: Iterable[int], seconds: int) -> list[Request]:
    """Publish one timer for each of these request partitions and each of the next seconds."""
    first_s = due_in(2)
    requests = [
        Request(target, first_s + second, f"key-{partition}-{second}", partition=partition)
        for partition in partitions
        for second in range(seconds)
    ]
    system.send(*requests)
    return requests


def take(reader: Reader, *requests: Sequence[Request]) -> list[Record]:
    """Wait for the callbacks of these requests; each must be punctual."""
    expected = {request.source: request for each in requests for request in each}
    fired = reader.take(len(expected))
    assert_once(fired, expected)
    assert max(record.lag_ms for record in fired) < MAX_LAG_MS
    return fired


def test_retries_and_dead_letters_go_to_partitions_with_a_leader(
    brokers: ThreeBrokers, make_system: MakeSystem
) -> None:
    """The broker dies; timers are due before the cluster knows it, and again afterwards."""
    lost = LIVING.index(2)  # a request partition whose stored timers fire although its log cannot be read

    def leaders(made: System) -> dict[str, Sequence[int]]:
        requests = [GONE if number == lost else node for number, node in enumerate(LIVING)]
        own = made.settings
        return {own.request_topic: requests, own.retry_topic: LAST_GONE, own.dead_letter_topic: EVEN_GONE}

    system = make_system(leaders)
    worker = system.worker().start().ready()
    target = brokers.create(system.app_id + "-target", LIVING)
    reader, letters = system.reader(target), system.dead_letters()
    healthy = [number for number in range(len(LIVING)) if number != lost]
    take(reader, send(system, target, range(8), 2))
    unreadable = Request("does-not-exist", due_in(10), partition=lost)
    system.send(unreadable)
    brokers.brokers[GONE].kill()
    bad: list[Request] = []
    try:
        for _ in range(2):
            bad += send(system, "does-not-exist", (0, 7), 4)
            take(reader, send(system, target, healthy, 4))
            wait_until(lambda: GONE not in brokers.alive(), "the cluster knows that the broker is gone")
            wait_until(lambda: time.time() > unreadable.due_s + 2, "the timer of the lost partition was due")
        dead = letters.take(len(bad))
        assert health(worker.port, "live")[0] == 200
    finally:
        brokers.start_again(GONE)
    assert {letter.text("timer-source") for letter in dead} == {request.source for request in bad}
    assert {letter.partition for letter in dead} <= {number for number, node in enumerate(EVEN_GONE) if node != GONE}
    (last,) = letters.take(1)
    assert (last.text("timer-source"), last.key) == (unreadable.source, unreadable.wire_key)
    wait_until(lambda: health(worker.port, "partitions")[0] == 200, "all partitions are open")
    take(reader, send(system, target, range(8), 2))
    assert letters.rest() == [] and reader.rest() == []


def test_a_progress_partition_stops_only_the_machines_that_write_to_it(
    brokers: ThreeBrokers, make_system: MakeSystem
) -> None:
    system = make_system(lambda each: {each.settings.progress_topic: LAST_GONE})
    worker = system.worker().start().ready()
    target = brokers.create(system.app_id + "-target", LIVING)
    reader = system.reader(target)
    take(reader, send(system, target, range(8), 2))
    brokers.kill(GONE)
    try:
        stopped = send(system, target, [7], 4)
        take(reader, send(system, target, range(7), 4))
        name = f"{system.request_topic}/7"
        wait_until(lambda: set(health(worker.port, "partitions")[1]["red"]) == {name}, "one partition waits")
        assert f"{system.settings.progress_topic}/7 has no leader" in health(worker.port, "partitions")[1]["red"][name]
        take(reader, send(system, target, range(7), 4))
    finally:
        brokers.start_again(GONE)
    assert_once(reader.take(len(stopped)), {request.source: request for request in stopped})
    wait_until(lambda: health(worker.port, "partitions")[0] == 200, "all partitions are open")
    assert reader.rest() == []


def test_verdicts_go_to_a_partition_with_a_leader(
    brokers: ThreeBrokers, make_system: MakeSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client starts while the broker is dead, too."""
    name = uuid.uuid4().hex[:8]
    formats = {"TIMERS_ID_TOPIC": f"id-{name}", "TIMERS_VERDICT_TOPIC": f"verdict-{name}"}
    system = make_system(lambda each: {each.settings.verdict_topic: EVEN_GONE}, **formats)
    system.use(monkeypatch)
    system.worker().start().ready()
    target = brokers.create(system.app_id + "-target", LIVING)
    reader = system.reader(target)
    ids = [f"id-{number}" for number in range(2 * len(LIVING))]
    moved = {id: EVEN_GONE[partition] == GONE for id, partition in zip(ids, verdict_partitions(ids), strict=True)}
    assert len({*moved.values()}) == 2
    brokers.kill(GONE)
    try:
        with TimersClient() as client:
            for id in ids:
                client.schedule(target, "k", "v", at=due_in(10_000), id=id)
            fire_s = due_in(10)
            for id in ids:
                assert client.update(id, target, "k", id, at=fire_s, timeout_s=DEADLINE_S).verdict == "replaced"
            assert sorted(record.value or b"" for record in reader.take(len(ids))) == sorted(map(str.encode, ids))
            for id in ids:
                assert client.cancel(id, timeout_s=DEADLINE_S).verdict == "already-fired"
            for id in ids:
                absent = client.update(id, target, "k", "v", at=due_in(10_000), timeout_s=DEADLINE_S)
                assert absent.verdict == "unknown"
    finally:
        brokers.start_again(GONE)


def verdict_partitions(ids: Sequence[str]) -> list[int]:
    return partitions_of([id.encode() for id in ids], len(LIVING))


def test_a_publisher_whose_partition_has_no_leader_delays_no_other_one(
    brokers: ThreeBrokers, make_system: MakeSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids decide on which partition of the id topic their requests are."""
    name = uuid.uuid4().hex[:8]
    formats = {"TIMERS_ID_TOPIC": f"id-{name}", "TIMERS_VERDICT_TOPIC": f"verdict-{name}"}
    system = make_system(lambda each: {each.settings.id_topic: LAST_GONE}, **formats)
    system.use(monkeypatch)
    ids = [f"id-{number}" for number in range(8 * len(LIVING))]
    lost = [id for id, partition in zip(ids, verdict_partitions(ids), strict=True) if LAST_GONE[partition] == GONE]
    brokers.kill(GONE)
    took_s = []
    try:
        with TimersClient(timeout_s=5.0) as client, ThreadPoolExecutor(len(lost)) as threads:
            waiting = [threads.submit(client.schedule, "t", "k", "v", at=due_in(10_000), id=id) for id in lost]
            for id in ids:
                if id not in lost:
                    began = time.monotonic()
                    client.schedule("t", "k", "v", at=due_in(10_000), id=id)
                    took_s.append(time.monotonic() - began)
            for each in waiting:
                with pytest.raises(PublishError, match="acknowledged within 5 s"):
                    each.result(DEADLINE_S)
    finally:
        brokers.start_again(GONE)
    assert lost and max(took_s) < MAX_LAG_MS / 1000
    with TimersClient(timeout_s=DEADLINE_S) as client:
        assert client.schedule("t", "k", "v", at=due_in(10_000), id=lost[0]) == lost[0]


def test_a_frozen_broker_stops_only_timers_that_need_it(brokers: ThreeBrokers, make_system: MakeSystem) -> None:
    """It answers nothing, and the cluster counts it as gone only after 9 s."""
    system = make_system(
        lambda each: {each.settings.retry_topic: LAST_GONE, each.settings.dead_letter_topic: EVEN_GONE}
    )
    worker = system.worker().start().ready()
    target = brokers.create(system.app_id + "-target", LIVING)
    half = brokers.create(system.app_id + "-half", [1, GONE])
    reader, letters, half_reader = system.reader(target), system.dead_letters(), system.reader(half)
    take(reader, send(system, target, range(8), 2))
    brokers.freeze(GONE)
    try:
        bad = send(system, "does-not-exist", [7], 4)
        waiting = send(system, half, [0], 4)
        beside = send(system, target, (0, 7), 4)  # in the same transactions
        punctual = send(system, target, range(1, 7), 4)
        fired = {record.timer_id: record for record in reader.take(len(beside) + len(punctual))}
        assert_once([*fired.values()], {request.source: request for request in (*beside, *punctual)})
        assert max(fired[request.source].lag_ms for request in punctual) < MAX_LAG_MS
        assert len(letters.take(len(bad))) == len(bad)
    finally:
        brokers.thaw(GONE)
    wait_until(lambda: brokers.alive() == {1, 2, 3} and not brokers.leaderless(), "the broker leads its partitions")
    assert_once(half_reader.take(len(waiting), 2 * DEADLINE_S), {request.source: request for request in waiting})
    wait_until(lambda: health(worker.port, "partitions")[0] == 200, "all partitions are open")
    assert reader.rest() == [] and letters.rest() == [] and half_reader.rest() == []


def test_dead_coordinators_stop_only_the_machines_with_a_transactional_id_there(tmp_path: Path) -> None:
    """The group's coordinator is dead too: only offsets for lag tools are missing meanwhile."""
    brokers = start(tmp_path / "brokers", (GONE, 1, 2))
    try:
        names = (f"app-{number}" for number in range(1000))
        app_id = next(name for name in names if coordinating_partition(name, COORDINATORS) == 0)
        system = System(brokers.address, tmp_path, app_id, TIMERS_PARTITIONS=str(len(LIVING)))
        try:
            create_topics(brokers, system, {})
            check_coordinators(brokers, system)
        finally:
            system.close()
    finally:
        brokers.stop()


def check_coordinators(brokers: ThreeBrokers, system: System) -> None:
    def waits(tp: TopicPartition) -> bool:
        return coordinating_partition(topics.transactional_id(system.app_id, *tp), COORDINATORS) == 0

    stopped = {number for number in range(len(LIVING)) if waits((system.request_topic, number))}
    going = {*range(len(LIVING))} - stopped
    assert stopped and going
    worker = system.worker().start().ready()
    target = brokers.create(system.app_id + "-target", LIVING)
    reader = system.reader(target)
    take(reader, send(system, target, range(len(LIVING)), 2))
    brokers.kill(GONE)
    try:
        waiting = send(system, target, stopped, 4)
        for _ in range(3):
            take(reader, send(system, target, going, 4))
        assert health(worker.port, "live")[0] == 200
    finally:
        brokers.start_again(GONE)
    assert_once(reader.take(len(waiting), 2 * DEADLINE_S), {request.source: request for request in waiting})
    wait_until(lambda: health(worker.port, "partitions")[0] == 200, "all partitions are open", 2 * DEADLINE_S)
    take(reader, send(system, target, range(len(LIVING)), 2))
    assert reader.rest() == []
