"""Own topics that hold no timer are deleted, made anew or grown, while worker, client, queue and console use them: all
are well again without a restart. ``python -m tests.chaos.topics`` prints the whole table.
"""

import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import NewPartitions

from tests.harness import kafka_version
from tests.harness.console_process import ConsoleProcess
from tests.harness.constants import Constants
from tests.harness.queue_calls import PATIENT, receive
from tests.harness.scrape import health, wait_equal
from tests.harness.system import PARTITIONS, System, soon
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from tests.harness.worker import Worker
from timers.client import TimersClient, by_id
from timers.errors import NoVerdictError
from timers.queue import Queue, ledger_log, transport
from timers.queue.transactions import login
from timers.wire import topics

pytestmark = pytest.mark.broker

TIMEOUT_S = 3.0
"""For a verdict that may not come."""


def started(system: System) -> Worker:
    return system.worker(quick=True).start().ready()


def verdicts(client: TimersClient, target: str, count: int = 8) -> list[str]:
    """The verdicts on updates of timers and cancels, and on updates of ids without a timer."""
    run = uuid.uuid4().hex[:8]
    found: list[str] = []
    for number in range(count):
        id = f"{run}-{number}"
        client.schedule(target, "k", b"", delay=3600, id=id)
        found.append(client.update(id, target, "k", b"new", delay=3600, timeout_s=TIMEOUT_S).verdict)
        found.append(client.cancel(id, timeout_s=TIMEOUT_S).verdict)
        found.append(client.update(f"{id}-none", target, "k", b"", delay=3600, timeout_s=TIMEOUT_S).verdict)
    return found


def told(client: TimersClient, target: str) -> Callable[[], bool]:
    """Whether the client gets all verdicts; none may be wrong."""

    def look() -> bool:
        try:
            assert verdicts(client, target) == 8 * ["replaced", "cancelled", "unknown"]
        except NoVerdictError:
            return False
        return True

    return look


def test_a_topic_of_verdicts_that_is_made_anew_is_used_at_once_by_workers_and_open_clients(
    id_system: System, constants: Constants
) -> None:
    """First with fewer partitions, by the worker; then with more, by an operator; and then some are added."""
    constants(by_id, LOOK_S=1.0)
    topic, target = id_system.settings.verdict_topic, id_system.target()
    id_system.create_topic(topic, 3 * PARTITIONS)
    worker = started(id_system)
    with TimersClient(timeout_s=DEADLINE_S) as client:
        wait_until(told(client, target), "the client gets verdicts")
        id_system.delete_topic(topic)
        fires = [client.schedule(id_system.target(), "k", b"", delay=1, id=f"fires-{number}") for number in range(8)]
        wait_until(told(client, target), "the client gets verdicts again")
        assert len(id_system.cluster.partitions(topic)) == PARTITIONS and len(fires) == 8
        id_system.create_anew(topic, 3 * PARTITIONS)
        wait_until(told(client, target), "the client gets verdicts from more partitions")
        id_system.admin.create_partitions([NewPartitions(topic, 5 * PARTITIONS)])[topic].result(DEADLINE_S)

        def used() -> bool:
            return told(client, target)() and any(id_system.cluster.ends(topic)[each] for each in range(12, 20))

        wait_until(used, "the client gets verdicts from added partitions")
    wait_equal(lambda: health(worker.port, "ready")[0], 200)


def test_the_log_of_the_console_is_made_anew(id_system: System, tmp_path: Path) -> None:
    worker = started(id_system)
    environment = {**id_system.environment, "TIMERS_WORKER_URL": f"http://127.0.0.1:{worker.port}"}
    console = ConsoleProcess(tmp_path / "console", {**environment, "TIMERS_CONSOLE_WRITE": "1"}, forked=True)
    timer = {"topic": id_system.target(), "key": "k", "value": "v", "delay": "1h"}
    topic = id_system.settings.console_log_topic
    try:
        console.start().wait_for(r"console: http://")
        assert console.ask("POST", "/v1/timers", timer)[0] == 201
        id_system.delete_topic(topic)
        assert console.ask("POST", "/v1/timers", timer)[0] == 201
        assert id_system.end(topic) > 0, "what was done has an entry"
        console.stop()
    finally:
        console.end()


def test_the_ledger_of_a_queue_is_made_anew_with_its_keys(id_system: System, constants: Constants) -> None:
    """What a process of the queue signs, before and after, counts for a process that begins later."""
    constants(transport, _TOPICS_S=0.5)
    id_system.create_own_topics()
    jobs = id_system.create_topic(f"jobs-{uuid.uuid4().hex[:8]}", 2)
    group = topics.queue_group(jobs)
    ledger = topics.queue_ledger(group)

    def retry(queue: Queue, value: str) -> None:
        """It comes back when a worker runs."""
        queue.send(value)
        (message,) = receive(queue, 1)
        message.retry(after=1)
        queue.settle()

    with Queue(jobs, **PATIENT) as queue:
        retry(queue, "before")
        keys = ledger_log.read(login(id_system.settings), group).keys
        id_system.delete_topic(ledger)
        wait_until(lambda: id_system.cluster.partitions(ledger), "the ledger is made anew")
        retry(queue, "after")
    assert ledger_log.read(login(id_system.settings), group).keys == keys
    started(id_system)
    with Queue(jobs, **PATIENT) as queue:
        found = receive(queue, 2, ack=True)
        assert {message.value: message.attempt for message in found} == {b"before": 2, b"after": 2}


def test_canaries_and_dead_letters_go_on_when_their_topics_are_made_anew(broker_address: str, tmp_path: Path) -> None:
    """No canary becomes a dead letter."""
    system = System(broker_address, tmp_path, TIMERS_CANARY_INTERVAL_S="1")
    try:
        worker = started(system)
        settings = system.settings
        system.cluster.delete([settings.canary_topic, settings.dead_letter_topic])
        worker.wait_for(f"created topics {settings.canary_topic}, {settings.dead_letter_topic}")
        (request,) = system.send(*soon(f"no-such-topic-{system.app_id}", 1))
        wait_until(lambda: system.cluster.partitions(settings.dead_letter_topic), "it is there")
        (letter,) = system.dead_letters().take(1)
        assert letter.text("timer-source") == request.source
        system.fired(system.send(*soon(system.target(), 20)))
        assert system.dead_letters().rest() == [letter]
    finally:
        system.close()


@pytest.mark.skipif(kafka_version.chosen() < "4.2", reason="brokers before 4.2 refuse an empty cleanup.policy")
def test_topics_of_which_brokers_delete_nothing_are_right(id_system: System) -> None:
    kept = (id_system.request_topic, id_system.settings.id_topic, id_system.settings.retry_topic)
    id_system.create_own_topics()
    for topic in kept:
        id_system.configure(topic, cleanup_policy="", retention_ms="1000")
    worker = started(id_system)
    assert health(worker.port, "partitions")[0] == 200
    id_system.fired(id_system.send(*soon(id_system.target(), 20)))
    id_system.configure(id_system.settings.dead_letter_topic, cleanup_policy="")
    id_system.configure(id_system.settings.progress_topic, cleanup_policy="")
    worker.wait_for(f"topic '{id_system.settings.progress_topic}' has cleanup.policy=, so the brokers delete none")
    assert health(worker.port, "partitions")[0] == 200
    assert "would lose" not in worker.log and due_in(0) <= time.time()


def test_progress_is_found_after_partitions_were_added_to_its_topic(id_system: System) -> None:
    """First while no worker runs, and then under one that is killed: each time the progress of two partitions has
    another place, and nothing fires twice."""
    topic = id_system.settings.progress_topic
    id_system.create_topic(topic, 2, cleanup_policy="compact")

    def grow(partitions: int) -> None:
        id_system.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(DEADLINE_S)
        wait_until(lambda: len(id_system.cluster.partitions(topic)) == partitions, "partitions are added")

    target = id_system.target()
    reader = id_system.reader(target)
    worker = started(id_system)
    requests = [*id_system.send(*soon(target, 20))]
    found = reader.take(20)
    id_system.wait_past(due_in(1))
    worker.stop()
    grow(3)
    shutil.rmtree(worker.data_dir)
    worker.start().ready()
    assert health(worker.port, "partitions")[1]["red"] == {}
    requests += id_system.send(*soon(target, 20))
    found += reader.take(20)
    grow(5)
    wait_until(lambda: all(id_system.cluster.ends(topic)[each] for each in range(PARTITIONS)), "machines commit there")
    worker.kill()
    shutil.rmtree(worker.data_dir)
    worker.start().ready()
    assert health(worker.port, "partitions")[1]["red"] == {}
    requests += id_system.send(*soon(target, 20))
    found += reader.take(20)
    id_system.wait_past(due_in(1))
    assert reader.rest() == []
    assert {record.timer_id for record in found} == {request.source for request in requests}
