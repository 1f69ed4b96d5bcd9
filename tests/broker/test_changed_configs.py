"""Topics whose configuration is changed under running workers: no timer is lost in silence."""

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, nullcontext, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.chaos.logs.cells import BY_ID, COUNTDOWNS, PROGRESS, REQUEST, RETRY
from tests.chaos.logs.feed import Feed, settings_of
from tests.chaos.logs.judge import RED_WITHIN_S
from tests.harness import kafka_version
from tests.harness.brokers import ended
from tests.harness.java_consumer import run_tool
from tests.harness.records import Request
from tests.harness.scrape import health, is_ready, wait_equal
from tests.harness.system import PARTITIONS, System
from tests.harness.three_brokers import CONTROLLER, ThreeBrokers
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from tests.harness.worker import Worker
from timers.cli.broker.embedded import EmbeddedBroker
from timers.kafka.clients import librdkafka, reader
from timers.kafka.own_topics import MIN_IN_SYNC
from timers.kafka.records import read

pytestmark = pytest.mark.broker

SESSION_S = 6
"""Until the group gives the partitions of a killed worker to others."""

QUICK_CLEANING = {
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "500",
    "log.cleaner.backoff.ms": "500",
    "log.segment.delete.delay.ms": "500",
}
"""Brokers delete and compact within seconds."""

COMPACTED = {"cleanup_policy": "compact", "segment_ms": "1000", "min_cleanable_dirty_ratio": "0.01"}
KEPT = {"cleanup_policy": "delete", "segment_ms": "604800000", "min_cleanable_dirty_ratio": "0.5"}


@pytest.fixture(scope="module")
def cleaning_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("cleaning"), port=0, properties=QUICK_CLEANING) as broker:
        yield broker.start()


@pytest.fixture
def system(cleaning_broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    system = System(cleaning_broker, tmp_path_factory.mktemp("system"))
    yield system
    system.close()


def watchful(system: System) -> Worker:
    return system.worker(quick=True)


def in_few_seconds(target: str, first_s: int, count: int) -> list[Request]:
    """Timers with few due seconds, of which compaction keeps one for each second and partition."""
    return [
        Request(target, first_s + index % 3, f"key-{index}", partition=index % PARTITIONS) for index in range(count)
    ]


@pytest.mark.long
def test_a_log_that_was_compacted_is_not_read_from_its_start_in_silence(system: System) -> None:
    """The owner is killed, and the topic is corrected before another worker takes over."""
    owner = watchful(system).start().ready()
    sent = system.send(*in_few_seconds(system.target(), due_in(600), 60))
    wait_until(lambda: health(owner.port, "ready")[1]["pending"] == 60, "all are accepted")
    system.configure(system.request_topic, **COMPACTED)
    wait_until(lambda: health(owner.port, "partitions")[0] == 503, "it is red")
    for _ in range(3):  # a further record closes the segment
        sent = [*sent, *system.send(*in_few_seconds(sent[0].target, due_in(700), 8))]
    pending = len(sent)
    wait_until(lambda: health(owner.port, "ready")[1]["pending"] == pending, "all are accepted")
    system.wait_past(due_in(1))  # progress with the doubt was committed before
    owner.kill()
    system.configure(system.request_topic, **KEPT)

    other = watchful(system).start()
    other.wait_for("its topic was compacted")
    names = {f"{system.request_topic}/{number}" for number in range(PARTITIONS)}
    why = "must be read from offset 0, but its topic was compacted"
    whole = f"The store of worker {owner.worker_id} is whole"

    def said() -> set[str]:
        reds = health(other.port, "partitions")[1]["red"]
        return {name for name, sentence in reds.items() if why in sentence and whole in sentence}

    wait_equal(said, names)
    other.stop()
    owner.start().ready()
    wait_equal(lambda: health(owner.port, "partitions")[1]["red"], {})
    assert health(owner.port, "ready")[1]["pending"] == pending, "the store on its disk holds what the log may lack"


@pytest.mark.long
def test_records_that_compaction_took_while_no_worker_ran_are_counted(system: System) -> None:
    """No worker has seen the wrong configuration, so only the count says that the log is not whole [I32]."""
    owner = watchful(system).start().ready()
    sent = system.send(*in_few_seconds(system.target(), due_in(600), 60))
    # The last batch stays as it is: else the log would not be the one that was read [I28].
    last = [Request(sent[0].target, due_in(900), partition=number) for number in range(PARTITIONS)]
    sent = [*sent, *system.send(*last)]
    wait_until(lambda: health(owner.port, "ready")[1]["pending"] == len(sent), "all are accepted")
    ends = system.cluster.ends(system.request_topic)
    owner.stop()

    def left() -> dict[int, int]:
        """Partition -> number of records that were accepted, and are still there."""
        with closing(reader(librdkafka(system.settings), enable_partition_eof=True)) as consumer:
            return {
                number: len([*read(consumer, system.request_topic, number, 0, end, timeout_s=10)])
                for number, end in ends.items()
            }

    system.configure(system.request_topic, **COMPACTED)
    for _ in range(3):  # a further record closes the segment
        system.send(*in_few_seconds(sent[0].target, due_in(700), 8))
        time.sleep(1.1)
    # One of each due second is left.
    wait_until(lambda: left() == dict.fromkeys(range(PARTITIONS), 4), "the topic is compacted")
    system.configure(system.request_topic, **KEPT)
    shutil.rmtree(owner.data_dir)
    owner.start()
    for partition, end in ends.items():
        lost = f"has lost {len(sent) // PARTITIONS - 4} records between the offsets 0 and {end}"
        owner.wait_for(f"{system.request_topic}/{partition} {lost}")


CHANGES = {
    "compaction": COMPACTED,
    "retention.ms": {"retention_ms": "1000", "segment_ms": "1000"},
    "retention.bytes": {"retention_bytes": "1000", "segment_ms": "1000"},
    "deleted records": {},
}
"""What is done to a topic -> the settings that are changed."""

CASES = [(kind, CHANGES[name], name) for kind in (REQUEST, BY_ID, RETRY, COUNTDOWNS) for name in CHANGES]
FORGETFUL = {"cleanup_policy": "delete", "retention_ms": "1000", "segment_ms": "1000"}
TIMERS = 60


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "change", "name"),
    [*CASES, (PROGRESS, FORGETFUL, "retention.ms")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_timer_fires_once_or_its_partition_is_red(
    cleaning_broker: str, tmp_path: Path, kind: str, change: dict[str, str], name: str
) -> None:
    """Two workers run, and the owner of the partition is killed after the change."""
    system = System(cleaning_broker, tmp_path, TIMERS_PARTITIONS="1", **settings_of(kind))
    try:
        target = system.target()
        workers = [system.worker().start() for _ in range(2)]
        for worker in workers:  # all partitions may be dealt to the first one: there is one of each topic
            wait_equal(partial(is_ready, worker.port), True, 2 * DEADLINE_S)
        feed = Feed(system, kind, target)
        machine, due_s = f"{feed.topic}/0", due_in(60)
        feed.send({number: due_s + number % 3 for number in range(TIMERS)})
        (owner,) = wait_until(
            lambda: [each for each in workers if machine in owned(each)], "the partition has an owner"
        )
        wait_until(lambda: health(owner.port, "ready")[1]["pending"] == TIMERS, "all are accepted")

        topic = system.settings.progress_topic if kind == PROGRESS else feed.topic
        if change:
            system.configure(topic, **change)
        else:
            system.cluster.delete_records(topic, {0: system.end(topic) // 2})
        for first in (TIMERS, TIMERS + 4):  # the first records of a new segment let the brokers clean the one before
            time.sleep(3.0)
            # A compacted topic refuses records without a key, which countdowns have.
            with suppress(AssertionError) if (kind, name) == (COUNTDOWNS, "compaction") else nullcontext():
                feed.send(dict.fromkeys(range(first, first + 4), due_s))
        wait_until(lambda: health(owner.port, "ready")[1]["pending"] == len(feed.acked_at), "all are accepted")
        time.sleep(3.0)
        owner.kill()

        (other,) = [each for each in workers if each is not owner]
        reader = system.reader(target)
        fired: Counter[bytes | None] = Counter()
        end_s, red = due_s + SESSION_S + RED_WITHIN_S, ""
        while len(fired) < len(feed.acked_at) and not red and time.time() < end_s:
            red = health(other.port, "partitions")[1]["red"].get(machine, "")
            fired.update(record.value for record in reader.rest())
        assert red or len(fired) == len(feed.acked_at), (
            f"{len(fired)} of {len(feed.acked_at)} fired, and nothing is red"
        )
        assert not [value for value, count in fired.items() if count > 1]
    finally:
        system.close()


def owned(worker: Worker) -> list[str]:
    """The partitions that a worker has opened."""
    found: list[str] = health(worker.port, "partitions")[1]["owned"]
    return found


COMMAND = "--alter --entity-type brokers --entity-default --add-config min.insync.replicas=2"
"""docs/operations.md#backup-and-restore"""


@pytest.mark.long
def test_the_value_in_force_counts_and_not_that_of_the_brokers_files(tmp_path: Path) -> None:
    """On a cluster that began with Kafka 4.4, the controller's value at this moment is that of the whole cluster."""
    if not kafka_version.chosen().startswith("4.4"):
        pytest.skip("NOT TRIED: the settings of a cluster with eligible leader replicas, which Kafka 4.4 begins with")
    cluster = ThreeBrokers(tmp_path / "brokers", {MIN_IN_SYNC: "1"})
    for node, broker in cluster.brokers.items():
        broker._properties[MIN_IN_SYNC] = "1" if node == CONTROLLER else "2"
    with ended(*cluster.brokers.values()), closing(System(cluster.start(), tmp_path, TIMERS_REPLICATION="3")) as system:
        worker = watchful(system).start().ready()

        def named() -> str:
            return "".join(health(worker.port, "partitions")[1]["warnings"])

        assert f"{MIN_IN_SYNC}=1" in named()
        # As the page has it: librdkafka cannot name all brokers.
        run_tool("org.apache.kafka.tools.ConfigCommand", system.address, *COMMAND.split())
        wait_until(lambda: MIN_IN_SYNC not in named(), "the documented command mends it", 2 * DEADLINE_S)
