"""Compares every counter of the worker with a count of the records in the topics."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from tests.harness import acls
from tests.harness.records import Record, Request
from tests.harness.scrape import Scrape, health, scrape, wait_equal
from tests.harness.system import PARTITIONS, System, timers
from tests.harness.waiting import DEADLINE_S, done_in_time, due_in, wait_until
from tests.harness.worker import Worker
from timers.cli.broker import EmbeddedBroker
from timers.wire import future, topics

pytestmark = pytest.mark.broker

JUDGED_AT_FIRING = {"topic-unknown", "topic-denied", "message-too-large", "message-refused", "target-failing"}
"""Codes of requests that were accepted."""


@dataclass
class Topics:
    """Counts of committed records; each look reads the new ones."""

    system: System
    targets: list[str]

    def __post_init__(self) -> None:
        settings = self.system.settings
        self._requests = self.system.reader(settings.request_topic)
        self._callbacks = [self.system.reader(target) for target in self.targets]
        self._retries = self.system.reader(settings.retry_topic)
        self._letters = self.system.dead_letters()
        self._letters_by_code: Counter[str] = Counter()
        self._late: set[str] = set()
        self.counts: Counter[str] = Counter()

    def count(self) -> dict[str, float]:
        """What each counter of the worker should say."""
        for request in self._requests.rest():
            self.counts["requests"] += 1
            if (request.key or b"").isdigit() and int(request.key or b"") < request.append_ms // 1000:
                self._late.add(topics.source(request.topic, request.partition, request.offset))
        self.counts["retried"] += len(self._retries.rest())
        for letter in self._letters.rest():
            code = letter.text("timer-error")
            self._letters_by_code[code] += 1
            if code not in JUDGED_AT_FIRING:
                self._late.discard(letter.text("timer-source"))
        self.counts["fired"] += sum(len(reader.rest()) for reader in self._callbacks)
        letters = self._letters_by_code
        unreadable = sum(count for code, count in letters.items() if code not in JUDGED_AT_FIRING)
        accepted = self.counts["requests"] - unreadable
        return {
            "accepted": accepted,
            "late": len(self._late),
            "fired": self.counts["fired"],
            "lags": self.counts["fired"],  # each callback has one
            "retried": self.counts["retried"],
            "pending": accepted - self.counts["fired"] - (letters.total() - unreadable),
            **{code: count for code, count in letters.items() if count},
        }


def counted(worker: Worker) -> dict[str, float]:
    """The counters of the worker."""
    found = scrape(worker.port)
    return {
        "accepted": found.total("timers_accepted_total", format="future"),
        "late": found.total("timers_late_total", format="future"),
        "fired": found.total("timers_fired_total"),
        "lags": found.total("timers_lag_seconds_count"),  # read a moment before or after the other one
        "retried": found.total("timers_retried_total"),
        "pending": found.total("timers_pending"),
        **found.by("timers_dead_lettered_total", "code"),
    }


def differences(worker: Worker, log: Topics) -> dict[str, tuple[float, float]]:
    """Counter -> (value of the worker, count in the topics), where these differ."""
    said, found = counted(worker), log.count()
    return {
        name: (said.get(name, 0), found.get(name, 0))
        for name in said.keys() | found.keys()
        if said.get(name, 0) != found.get(name, 0)
    }


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker with ACLs that a test may kill."""
    broker = EmbeddedBroker(tmp_path / "broker", port=0, properties=acls.OPEN_AUTHORIZER)
    yield broker
    broker.stop()


def test_each_counter_equals_the_count_in_the_topics(own_broker: EmbeddedBroker, tmp_path: Path) -> None:
    """With timers on time, late, unreadable, for bad targets, retried, and during a restart of the broker."""
    address = own_broker.start()

    def attempt(lead_s: int) -> bool:
        system = System(address, tmp_path)
        try:
            return counters_agree(system, own_broker, lead_s)
        finally:
            system.close()

    done_in_time(8, attempt)


ACCEPTED = 400 + 37 + 25 + 65 + 11 + 3 + 13 + 1
"""Requests of :func:`send_all` that a worker accepts."""


def send_all(system: System, soon_s: int) -> list[str]:
    """Send requests of each kind; those for topics that refuse them are due at ``soon_s``. Returns the good targets."""
    good, narrow, refused = system.target(), system.target(max_message_bytes="2000"), system.target()
    acls.add(system.admin, acls.acl(ResourceType.TOPIC, refused, AclOperation.DESCRIBE))
    system.send(
        *timers(good, 400, soon_s, 3),
        *(Request(good, 1 + index, f"late-{index}") for index in range(37)),
        *(Request(good, int(time.time()) + 3600, f"far-{index}") for index in range(25)),
        *(Request(narrow, soon_s, f"small-{index}", b"x" * 100) for index in range(60)),
        *(Request(narrow, soon_s, f"big-{index}", b"x" * 3000) for index in range(5)),
        *(Request("no-such-topic", soon_s + index % 2, f"lost-{index}") for index in range(11)),
        *(Request("__consumer_offsets", soon_s, f"own-{index}") for index in range(3)),
        *(Request(refused, soon_s, f"refused-{index}") for index in range(13)),
    )
    publisher = system.publisher()
    whole = future.encode(good, "k", b"v")
    for key in (None, b"soon", b"-3"):
        for partition in range(PARTITIONS - 1):
            publisher.send_raw(key, whole, [], partition)
    for value in (None, b"\xff\x00", b""):
        for partition in range(PARTITIONS - 1):
            publisher.send_raw(b"7", value, [], partition)
    publisher.send_raw(b"1", whole, [], 0)
    return [good, narrow]


def counters_agree(system: System, own_broker: EmbeddedBroker, lead_s: int) -> bool:
    """Returns False if the worker was too slow: it read requests after their due second, so they were late."""
    worker, soon_s = system.worker().start().ready(), due_in(lead_s)
    good, narrow = send_all(system, soon_s)
    log = Topics(system, [good, narrow])
    wait_equal(lambda: counted(worker)["accepted"], ACCEPTED)
    if time.time() >= soon_s:
        return False
    wanted = {
        "accepted": ACCEPTED,
        "fired": 400 + 37 + 60 + 1,
        "retried": 13 + 11 + 3 + 5,  # what can never be sent becomes a dead letter by way of the retry topic
        "message-too-large": 5,
        "topic-unknown": 11,
        "topic-denied": 3,
        **dict.fromkeys(("key-missing", "key-not-a-number", "key-negative", "value-missing"), 3),
        **dict.fromkeys(("value-not-a-future", "topic-missing"), 3),
    }
    wait_equal(lambda: {name: count for name, count in log.count().items() if name in wanted}, wanted)
    wait_equal(lambda: differences(worker, log), {})
    wait_equal(lambda: scrape(worker.port).total("timers_open_circuits"), 1)
    found = scrape(worker.port)
    assert found.total("timers_lag_seconds_count", way="late") == 38
    assert found.total("timers_transactions_failed_total", reason="delivery") >= 2, "narrow and refused"
    wait_until(lambda: scrape(worker.port).total("timers_partitions_reopened_total") >= 2, "two were opened again")
    wait_equal(lambda: scrape(worker.port).total("timers_oldest_overdue_seconds"), 0)
    wait_equal(lambda: scrape(worker.port).total("timers_request_unread_offsets"), 0)

    # The broker dies during transactions, whose outcome is then unknown, and with requests that no commit covers.
    soon_s = due_in(lead_s // 2)
    system.send(*timers(good, 4_000, soon_s, 6))
    wait_equal(lambda: counted(worker)["accepted"], ACCEPTED + 4_000)
    if time.time() >= soon_s:
        return False
    reader = system.reader(good)
    reader.take(438 + 700)
    own_broker.kill()
    own_broker.start()
    reader.take(3_300, 2 * DEADLINE_S)
    log = Topics(system, [good, narrow])
    wait_equal(lambda: differences(worker, log), {})
    assert worker.running
    return True


def test_the_lag_histogram_agrees_with_append_times(running: System) -> None:
    """Compares the lags of the worker with those from the broker's append times."""
    worker = running.workers[0]
    fired: dict[str, Record] = {}
    before: Scrape

    def attempt(lead_s: int) -> bool:
        nonlocal before
        before = scrape(worker.port)
        due_s, accepted = due_in(lead_s), counted(worker)["accepted"]
        requests = running.send(*timers(running.target(), 2_000, due_s, 2))
        wait_until(lambda: counted(worker)["accepted"] >= accepted + len(requests), "all are accepted")
        is_in_time = time.time() < due_s
        found = running.fired(requests)
        fired.update(found if is_in_time else {})
        return is_in_time

    done_in_time(3, attempt)
    worst_s = max(record.lag_ms for record in fired.values()) / 1000
    mean_s = sum(record.lag_ms for record in fired.values()) / 1000 / len(fired)

    def grown(suffix: str) -> float:
        after = scrape(worker.port)
        name = f"timers_lag_seconds_{suffix}"
        return after.total(name, way="waited") - before.total(name, way="waited")

    wait_until(lambda: grown("count") >= len(fired), "the lags are counted")
    # Appended within the transaction whose end the worker measures: never later, and less than its time-out before.
    assert mean_s - 0.005 <= grown("sum") / grown("count") <= worst_s + 10


def test_a_hanging_transaction_shows_as_unstable_offsets(running: System) -> None:
    worker = running.workers[0]
    hanging = running.publisher(transactional_id=f"hanging-{running.app_id}", transaction_timeout_ms=600_000).producer
    hanging.init_transactions(DEADLINE_S)
    hanging.begin_transaction()
    hanging.produce(running.request_topic, b"", b"1", partition=1)
    hanging.flush(DEADLINE_S)
    running.send(*(Request(running.target(), 1, partition=1) for _ in range(5)))

    def held_back() -> float:
        found = scrape(worker.port).by("timers_request_unstable_offsets", "partition")  # none before the first fetch
        return found.get("1", 0)

    wait_equal(held_back, 6)
    hanging.abort_transaction(DEADLINE_S)
    wait_equal(held_back, 0)


def test_the_skew_metric_is_the_error_of_the_workers_clock(system: System) -> None:
    worker = system.worker().start(TIMERS_CLOCK_OFFSET="-7200").ready()
    wait_until(lambda: "timers_clock_skew_seconds" in scrape(worker.port).names, "the skew is known")

    def skew_s() -> float:
        return scrape(worker.port).total("timers_clock_skew_seconds")

    wait_until(lambda: abs(skew_s() + 7200) < 2, "a tick that a busy machine did not hold up")
    assert scrape(worker.port).total("timers_tick_age_seconds") < DEADLINE_S


@pytest.mark.long
def test_without_a_broker_the_worker_is_live_and_not_ready(own_broker: EmbeddedBroker, tmp_path: Path) -> None:
    system = System(own_broker.start(), tmp_path)
    try:
        worker = system.worker().start().ready()
        wait_until(lambda: health(worker.port, "ready")[0] == 200, "ready")
        status, live = health(worker.port, "live")
        assert (status, live["live"], live["reasons"]) == (200, True, [])
        assert live["app"] == system.environment["TIMERS_APP_ID"] and live["cluster"]
        lines_before = len(worker.log.splitlines())
        own_broker.kill()
        wait_until(lambda: health(worker.port, "ready")[0] == 503, "not ready")

        def has_no_ticks() -> bool:
            status, said = health(worker.port, "ready")
            found = any("no tick was counted for" in reason for reason in said["reasons"])
            assert not found or (status, said["ready"]) == (503, False)
            return found

        wait_until(has_no_ticks, "the reason that there are no ticks")
        assert health(worker.port, "live")[0] == 200
        assert scrape(worker.port).total("timers_ready") == 0
        assert len(worker.log.splitlines()) < lines_before + 100, "clients repeat themselves"
        assert "Traceback" not in worker.log
        own_broker.start()
        wait_until(lambda: health(worker.port, "ready")[0] == 200, "ready again", 2 * DEADLINE_S)
    finally:
        system.close()


def first_ready(worker: Worker) -> dict[str, Any]:
    """The first body with status 200 of the readiness page, asked without a pause from the start of the worker on."""
    while True:
        assert worker.running, worker.tail()
        with contextlib.suppress(OSError):
            status, said = health(worker.port, "ready")
            if status == 200:
                return said


def test_a_worker_is_ready_when_its_partitions_are_open_and_ticks_count(system: System) -> None:
    """Also at a later start, and with more workers than partitions: then some get none."""
    system.create_topic(system.request_topic, 1)
    system.create_topic(system.settings.retry_topic, 1)
    workers = [system.worker() for _ in range(3)]
    first = workers[0].start()
    assert first_ready(first)["partitions"] == 2
    first.stop()
    first.start()
    said = first_ready(first)
    assert said["partitions"] == 2 and said["tick_age_s"] is not None
    for worker in workers[1:]:
        worker.start()
    for worker in workers[1:]:
        first_ready(worker)
    wait_equal(lambda: sorted(health(worker.port, "ready")[1]["partitions"] for worker in workers)[0], 0)
    wait_equal(lambda: {health(worker.port, "ready")[0] for worker in workers}, {200})
