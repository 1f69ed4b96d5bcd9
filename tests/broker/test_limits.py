"""A worker whose process may open few files opens the partitions that fit, and says why the others wait."""

import os
import re
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness.brokers import NEVER_KILLED, ended
from tests.harness.command_line import command
from tests.harness.queue_calls import receive
from tests.harness.records import Request
from tests.harness.scrape import health, is_ready, scrape, wait_equal
from tests.harness.system import PARTITIONS, System, soon, with_ids
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from tests.harness.worker import Worker
from timers.cli.broker import EmbeddedBroker
from timers.queue import Queue

pytestmark = pytest.mark.broker

FEW_FILES = 300
FITTING = 6
"""Partitions that fit into :data:`FEW_FILES`, of eight: four of the request topic and four of the retry topic."""


class LimitedWorker(Worker):
    """A worker that begins with these limits of open files."""

    soft, hard = FEW_FILES, FEW_FILES

    def _command(self) -> list[str]:
        limits = f'ulimit -Sn {self.soft} && ulimit -Hn {self.hard} && exec "$@"'
        return ["bash", "-c", limits, "bash", *super()._command()]


def limited(system: System, directory: Path, soft: int, hard: int) -> LimitedWorker:
    worker = LimitedWorker(directory / "limited", system.environment)
    worker.soft, worker.hard = soft, hard
    system.workers.append(worker)
    return worker


def stores(worker: Worker) -> int:
    """Number of stores that a worker has open. One that it closed, since another one took the place, stays there."""
    files = [os.path.realpath(file) for file in Path(f"/proc/{worker.pid}/fd").iterdir()]
    return sum(file.endswith("/LOCK") for file in files)


def test_what_fits_opens_and_the_rest_waits_for_another_worker_with_a_sentence(system: System, tmp_path: Path) -> None:
    worker = limited(system, tmp_path, FEW_FILES, FEW_FILES).start()
    worker.wait_for(
        rf"can open {FITTING} of the app's {2 * PARTITIONS} partitions, because its limit of open files is 300"
    )
    wait_until(lambda: is_ready(worker.port), "ready")
    status, page = health(worker.port, "partitions")
    assert (status, len(page["owned"]), len(page["red"])) == (503, FITTING, 2)
    for why in page["red"].values():
        assert re.match(
            rf"it does not fit into this worker, which can open {FITTING} partitions with its limit of 300", why
        )
    assert scrape(worker.port).by("timers_partitions_waiting", "reason") == {"limits": 2}
    assert stores(worker) == FITTING

    fitting = [int(name.rpartition("/")[2]) for name in page["owned"] if name.startswith(system.request_topic)]
    requests = [Request(system.target(), due_in(3), "k", partition=partition) for partition in range(PARTITIONS)]
    sent = system.send(
        *[Request(requests[0].target, each.due_s, each.key, partition=each.partition) for each in requests]
    )
    reader = system.reader(requests[0].target)
    assert {record.timer_id for record in reader.take(len(fitting))} == {sent[each].source for each in fitting}
    system.worker().start()
    wait_equal(lambda: health(worker.port, "partitions")[0], 200, 3 * DEADLINE_S)
    rest = {each.source for each in sent} - {sent[each].source for each in fitting}
    assert {record.timer_id for record in reader.take(len(rest))} == rest
    assert "Too many open files" not in worker.log


def red_otherwise(worker: Worker, why: str) -> dict[str, str]:
    """Partition -> why it is red, if this is something else."""
    red: dict[str, str] = health(worker.port, "partitions")[1]["red"]
    return {partition: reason for partition, reason in red.items() if why not in reason}


@pytest.mark.long
def test_128_partitions_start_under_a_soft_limit_of_1024(broker_address: str, tmp_path: Path) -> None:
    system = System(broker_address, tmp_path, TIMERS_PARTITIONS="128", **with_ids())
    try:
        worker = limited(system, tmp_path, 1024, 16_384).start()
        # The brokers may not say all partitions of new topics at once: then the first line says how many they said.
        worker.wait_for(rf"ready: {3 * 128} partitions", 6 * DEADLINE_S)
        wait_until(lambda: is_ready(worker.port), "ready")
        wait_equal(lambda: health(worker.port, "partitions")[0], 200)
        target = system.target()
        system.fired(system.send(*(each for partition in range(128) for each in soon(target, 2, partition=partition))))
        worker.stop()
        shutil.rmtree(worker.data_dir)

        worker.soft = worker.hard = 2048
        worker.start().wait_for(r"can open (\d+) of the app's 384 partitions")
        wait_until(lambda: is_ready(worker.port), "ready", 3 * DEADLINE_S)
        # On a busy machine an opening may fail, and is tried again.
        wait_equal(lambda: red_otherwise(worker, "limit of 2048 open files"), {}, 3 * DEADLINE_S)
        page = health(worker.port, "partitions")[1]
        assert len(page["owned"]) == stores(worker)
        assert len(page["owned"]) + len(page["red"]) == 384
        assert "Too many open files" not in worker.log
    finally:
        system.close()
        system.delete_topics()


def test_a_limit_of_the_brokers_that_is_too_low_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In the worker, in commands, and in the log of a queue."""
    sentence = "transaction.max.timeout.ms of the brokers is lower than the 10000 ms"
    broker = EmbeddedBroker(tmp_path / "broker", 0, {"transaction.max.timeout.ms": "4000", **NEVER_KILLED})
    with ended(broker), closing(System(broker.start(), tmp_path)) as system:
        worker = system.worker().start()
        worker.wait_for(f"{re.escape(sentence)}.*opening it again")
        wait_until(lambda: sentence in str(health(worker.port, "partitions")[1]["red"]), "the health page says it")
        system.use(monkeypatch)
        asked = command(capsys, "dead-letters", "retry", "--all", "--yes")
        assert asked.code == 1 and sentence in asked.err
        topic = system.create_topic("jobs")
        with Queue(topic, brokers=system.address, timeout_s=3) as queue:
            queue.send(b"a")
            (message,) = receive(queue, 1)
            message.retry(1)
            wait_until(lambda: sentence in caplog.text, "the queue names it")
