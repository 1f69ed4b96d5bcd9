"""Topics that are deleted under a running worker, and records that are deleted before they are read."""

import asyncio
import os
import signal

import pytest

from tests.harness.records import Request
from tests.harness.scrape import health
from tests.harness.system import PARTITIONS, System, soon, timers
from tests.harness.waiting import due_in, wait_until
from timers.core.lineage import Lineage
from timers.kafka.aiokafka_clients import arguments
from timers.kafka.aiokafka_internals.leader_client import LeaderClient
from timers.kafka.log_lineage import LINEAGE_TIMEOUT_S, LogLineages
from timers.worker.consumer.requests import MAX_FETCH_BYTES

pytestmark = pytest.mark.broker


def test_openings_that_ask_at_one_time_get_an_answer_for_each_of_their_topics(system: System) -> None:
    """Partitions of several topics are opened at one time, and they share one client and its metadata."""
    topics = [system.target(2) for _ in range(6)]

    async def ask() -> set[str]:
        lineages = LogLineages(LeaderClient(arguments(system.settings), LINEAGE_TIMEOUT_S))
        try:
            known = {topic: {(topic, partition): [Lineage(((0, 0),))] for partition in range(2)} for topic in topics}
            answers = await asyncio.gather(*(lineages.parted(known[topic]) for topic in topics))
        finally:
            await lineages.client.close()
        return {topic for answer in answers for topic, _ in answer}

    assert asyncio.run(ask()) == set(topics)


def test_a_request_topic_that_is_deleted_and_created_again_is_read_from_its_beginning(
    system: System,
) -> None:
    """It is deleted while timers fire; none of them may fire twice."""
    worker = system.worker().start().ready()
    old = system.reader(system.send(*timers(system.target(), 12_000, due_in(2), 12))[0].target)
    fired = old.take(1_000)
    system.delete_topic(system.request_topic)
    worker.wait_for(f"topic {system.request_topic} was deleted")
    assert health(worker.port, "ready")[0] == 503

    system.create_anew(system.request_topic, PARTITIONS - 1)
    requests = soon(system.target(), 60)
    for index, request in enumerate(requests):
        request.partition = index % (PARTITIONS - 1)
    system.send(*requests)
    reader = system.reader(requests[0].target)
    assert {record.timer_id for record in reader.take(60)} == {request.source for request in requests}
    wait_until(lambda: health(worker.port, "ready")[0] == 200, "the worker is ready again")
    worker.stop()
    worker.start().ready()
    fence = system.target()
    system.send(*(Request(fence, due_in(1), partition=partition) for partition in range(PARTITIONS - 1)))
    system.reader(fence).take(PARTITIONS - 1)
    assert reader.rest() == [], "what has fired stays fired"
    fired += old.rest()
    assert len({record.timer_id for record in fired}) == len(fired)


@pytest.mark.long
def test_a_topic_created_again_is_told_from_the_old_one_even_without_records(system: System) -> None:
    """Both logs begin at offset 0. With the progress of the old log, all timers would fire again later."""
    worker = system.worker().start().ready()
    system.create_anew(system.request_topic, PARTITIONS)
    (request,) = system.send(Request(system.target(), due_in(1), partition=0))
    reader = system.reader(request.target)
    reader.take(1)
    worker.stop()
    worker.start().ready()
    system.wait_past(due_in(1))
    assert reader.rest() == []


def test_the_worker_creates_deleted_topics_again(system: System) -> None:
    worker = system.worker(quick=True).start().ready()
    system.cluster.delete([system.settings.oscillator_topic, system.settings.dead_letter_topic])
    worker.wait_for(f"topic {system.settings.oscillator_topic} was deleted")
    worker.wait_for(f"created topics {system.settings.dead_letter_topic}, {system.settings.oscillator_topic}")
    system.fired(system.send(*soon(system.target(), 50)))


def test_a_partition_that_lost_records_stops_alone_until_the_loss_is_accepted(system: System) -> None:
    worker = system.worker().start().ready()
    system.fired(system.send(Request(system.target(), due_in(1), partition=0)))
    worker.stop()
    target = system.target()
    lost = system.send(*(Request(target, due_in(1), f"lost-{i}", partition=0) for i in range(10)))
    system.cluster.delete_records(system.request_topic, {0: int(lost[4].source.split("/")[2])})
    kept = [Request(target, due_in(1), f"kept-{i}", partition=1 + i % (PARTITIONS - 1)) for i in range(30)]
    kept = list(system.send(*kept))

    worker.start().wait_for(f"{system.request_topic}/0 begins at offset")
    reader = system.reader(target)
    assert {record.timer_id for record in reader.take(30)} == {request.source for request in kept}
    wait_until(
        lambda: health(worker.port, "ready")[0] == 200,
        "ready, as no restart helps that partition",
    )
    _, body = health(worker.port, "ready")
    assert health(worker.port, "partitions")[0] == 503
    assert list(body["stopped"]) == [f"{system.request_topic}/0"]
    assert f"TIMERS_ACCEPT_LOSS={system.request_topic}/0" in body["stopped"][f"{system.request_topic}/0"]
    assert worker.running
    worker.stop()

    worker.start(TIMERS_ACCEPT_LOSS=f"{system.request_topic}/0").ready()
    assert {record.timer_id for record in reader.take(6)} == {request.source for request in lost[4:]}
    assert health(worker.port, "ready")[0] == 200


def test_a_partition_whose_records_are_deleted_under_a_running_worker_stops_alone(system: System) -> None:
    """The worker was paused while the records were deleted."""
    worker = system.worker().start().ready()
    first, second = system.target(), system.target()
    system.fired(system.send(*(Request(first, due_in(1), partition=partition) for partition in range(PARTITIONS))))
    worker.send(signal.SIGSTOP)
    try:
        # A fetch that is under way in the broker may bring this one, which is so large that it brings no other.
        system.send(Request(first, due_in(60), value=os.urandom(MAX_FETCH_BYTES), partition=0))
        (gone,) = system.send(Request(first, due_in(60), partition=0))
        system.cluster.delete_records(system.request_topic, {0: int(gone.source.split("/")[2]) + 1})
    finally:
        worker.send(signal.SIGCONT)
    worker.wait_for(f"{system.request_topic}/0 begins at offset")
    system.send(*(Request(second, due_in(1), partition=partition) for partition in range(1, PARTITIONS)))
    system.reader(second).take(PARTITIONS - 1)
    assert worker.running
