"""Brokers that throttle clients by a quota: all fires later, nothing counts as failing, and who gets no answer is
told why."""

import itertools
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness.callbacks import check, read_callbacks
from tests.harness.command_line import command
from tests.harness.judge import judge
from tests.harness.publication import Publication, dues, start_publisher
from tests.harness.quotas import PARTITIONS_PER_S, PRODUCER_BYTES_PER_S, set_quota
from tests.harness.scrape import scrape
from tests.harness.system import PARTITIONS, System, soon
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.cli.broker import EmbeddedBroker
from timers.client import TimersClient
from timers.errors import UnacknowledgedError
from timers.queue import Message, Queue

pytestmark = pytest.mark.broker

QUOTA_WINDOW_S = 10
"""A broker compares the mean rate of so many seconds with the quota, so a burst of as many seconds is not throttled."""


def fire_all(
    broker: EmbeddedBroker, directory: Path, bytes_per_s: float, count: int, deadline_s: float
) -> tuple[float, int]:
    """Let a worker fire ``count`` overdue timers under a quota; each must fire once, and nothing may fail.

    Returns:
        Seconds from the first to the last callback, and bytes of the callbacks.
    """
    system = System(broker.start(), directory)
    try:
        system.create_own_topics()
        target = system.target(PARTITIONS)
        publication = Publication(
            brokers=system.address,
            topic=system.request_topic,
            target=target,
            timers=count,
            first_due_s=int(time.time()) - 5,
            spread_s=5,
            payload_bytes=100,
            partitions=PARTITIONS,
            partitioner="spread",
        )
        publisher = start_publisher(publication, directory)
        assert publisher.exit_code() == 0, publisher.tail()
        set_quota(system.address, PRODUCER_BYTES_PER_S, bytes_per_s)
        worker = system.worker().start()
        wait_until(lambda: system.end(target, committed=True) >= count, "as many records were written", deadline_s)
        # Some of them may have been rolled back.
        wait_until(lambda: not check(system.cluster, publication).lost, "all have fired", deadline_s)
        metrics = scrape(worker.port)
        set_quota(system.address, PRODUCER_BYTES_PER_S, None)
        found = read_callbacks(system.cluster, publication)
        fired = judge(found, dues(publication))
        assert (fired.lost, fired.duplicates, fired.early) == (0, 0, 0)
        assert system.dead_letters().rest() == [] and system.end(system.settings.retry_topic) == 0
        assert " fails: " not in worker.log, worker.tail()
        assert metrics.total("timers_throttled_seconds_total") > 0
        size = sum(path.stat().st_size for path in Path(broker.directory).rglob(f"{target}-*/*.log"))
        return (int(found.append_ms.max()) - int(found.append_ms.min())) / 1000, size
    finally:
        system.close()


@pytest.mark.long  # it is sensitive to other load: a starved worker cannot tell a quota from a slow broker
def test_a_quota_delays_timers_and_opens_no_circuit(own_broker: EmbeddedBroker, tmp_path: Path) -> None:
    rate = 256_000
    seconds, size = fire_all(own_broker, tmp_path, rate, 30_000, 3 * DEADLINE_S)
    assert seconds > size / rate - 2 * QUOTA_WINDOW_S, "the quota had no effect"


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_most_of_a_quota_is_used(own_broker: EmbeddedBroker, tmp_path: Path) -> None:
    rate = 1_000_000
    seconds, size = fire_all(own_broker, tmp_path, rate, 1_000_000, 900)
    used = size / (rate * (seconds + QUOTA_WINDOW_S))
    print(f"{size / 1e6:.1f} MB in {seconds:.1f} s: {used:.0%} of the quota")
    assert used >= 0.8


HELD_BACK = "a quota of the brokers holds this client back"

ONE_MINUTE_BYTES_PER_S = 1000
"""With this quota, a client that has sent :data:`MANY` bytes is held back for more than a minute."""

MANY = bytes(200_000)


@pytest.mark.long
def test_senders_say_that_a_quota_holds_them_back(
    own_broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(System(own_broker.start(), tmp_path)) as system:
        system.create_own_topics()
        target, jobs = system.target(), system.target()
        system.use(monkeypatch)
        set_quota(system.address, PRODUCER_BYTES_PER_S, ONE_MINUTE_BYTES_PER_S)
        with TimersClient(timeout_s=3) as client:
            client.schedule(target, None, MANY, delay=3600)  # is taken, and nothing more is read of this client
            with pytest.raises(UnacknowledgedError, match=HELD_BACK):
                client.schedule(target, None, "next", delay=3600)
        with Queue(jobs, timeout_s=3) as queue:
            queue.send("first")
            with pytest.raises(UnacknowledgedError, match=HELD_BACK):
                queue.send("next")
        set_quota(system.address, PRODUCER_BYTES_PER_S, None)
        ran = command(capsys, "schedule", "--topic", target, "--value", "now", "--in", "1h")
        assert ran.code == 0, ran.err


@pytest.mark.long
def test_messages_that_are_retried_go_on_under_a_quota_and_the_log_names_it(
    own_broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A retry is a transaction, which must not be open for long."""
    count, size, rate = 300, 1000, 20_000
    calls: list[bytes | None] = []

    def retried_once(message: Message) -> None:
        calls.append(message.value)
        if message.attempt == 1:
            message.retry(after=1)

    with closing(System(own_broker.start(), tmp_path)) as system:
        system.worker().start().ready()
        jobs = system.target(PARTITIONS)
        system.use(monkeypatch)
        with Queue(jobs) as queue:
            for number in range(count):
                queue.send(b"%d" % number + bytes(size))
            set_quota(system.address, PRODUCER_BYTES_PER_S, rate)
            thread = threading.Thread(target=queue.run, args=(retried_once,))
            thread.start()
            try:
                wait_until(lambda: len(calls) >= 2 * count, "each message was handled twice", 4 * DEADLINE_S)
            finally:
                queue.close()
                thread.join()
            assert len(calls) == 2 * count == 2 * len(set(calls))
        repeated = [line for line in caplog.messages if "is repeated: " in line]
        assert [line for line in repeated if HELD_BACK not in line] == []


@pytest.mark.long
def test_a_quota_on_new_topics_stops_a_first_start_and_no_other_worker(
    own_broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = own_broker.start()
    with closing(System(address, tmp_path)) as old, closing(System(address, tmp_path)) as new:
        old.worker().start().ready()
        before, under_quota = old.target(), old.target()
        old.fired(old.send(*soon(before, 1)))  # makes all that the next look at callbacks needs
        set_quota(address, PARTITIONS_PER_S, 0.1)
        old.use(monkeypatch)
        names = map("many-{}".format, itertools.count())

        def is_refused() -> bool:
            name = next(names)
            ran = command(capsys, "topics", "create", name, "--partitions", "20")
            assert ran.code == 0 or f"topic {name!r} cannot be created: {HELD_BACK}" in ran.err, ran.err
            return ran.code == 1

        wait_until(is_refused, "the brokers keep to the quota")
        worker = new.worker().start()
        assert worker.exit_code(3 * DEADLINE_S) == 1
        (said,) = worker.sentences
        assert f"the engine's topics cannot be checked: {HELD_BACK}" in said
        old.fired(old.send(*soon(under_quota, 10)))
        set_quota(address, PARTITIONS_PER_S, None)
        worker.start().ready()  # its topics were made
