"""What requesters write on a queue's topic of returns reaches no handler, and what the queue sent back does.

A timer may have any topic as its callback topic, so its requester can forge each header of a message that comes back.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.harness.cluster import client_settings
from tests.harness.letters import await_letters
from tests.harness.queue_calls import PATIENT, receive
from tests.harness.records import Headers, Request
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from timers.cli.main import main
from timers.queue import Backoff, Queue, SqlInbox
from timers.wire import topics

pytestmark = pytest.mark.broker


def forgeries(source: str, sent_ms: int) -> list[Headers]:
    """Headers of records that claim to be a message of the queue."""
    claimed: Headers = [("queue-source", source.encode()), ("queue-sent", b"%d" % sent_ms), ("retry-attempt", b"999")]
    return [claimed, [*claimed, ("queue-signature", b"1." + b"0" * 64)], [*claimed, ("queue-no-value", b"")], []]


def forge(system: System, topic: str, headers: list[Headers], count: int) -> None:
    """Write records as callbacks of timers are."""
    producer = Producer({**client_settings(system.address), "linger.ms": 20})
    for number in range(count):
        while True:
            try:
                producer.produce(topic, b"forged", b"k%d" % number, headers=[*headers[number % len(headers)]])
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(DEADLINE_S) == 0


@pytest.mark.parametrize(("real", "forged"), [(200, 2000), pytest.param(10_000, 100_000, marks=pytest.mark.long)])
def test_forged_returns_reach_no_handler_and_hide_no_real_message(
    here: System, tmp_path: Path, real: int, forged: int
) -> None:
    topic = here.target(partitions=4)
    returns = topics.queue_returns(topics.queue_group(topic))
    queue = Queue(topic, backoff=Backoff(first_s=1, retries=3), **PATIENT)
    with queue, closing(sqlite3.connect(tmp_path / "effects.db")) as effects:
        inbox = SqlInbox(effects)
        inbox.create_table()
        effects.execute("CREATE TABLE done (value BLOB, source TEXT)")
        sources = queue.send_many((b"k%d" % number, b"real %d" % number, ()) for number in range(real))
        (first,) = receive(queue, 1)  # the topic of returns exists
        first.put_back()
        headers = [each for source in sources[:50] for each in forgeries(source, first.sent_ms)]
        forge(here, returns, headers, forged)
        due_s = due_in(2)
        by_timers = here.send(*(Request(returns, due_s, "k", b"forged", headers=each) for each in headers[:8]))
        done = 0

        def all_done() -> bool:
            nonlocal done
            for message in queue.receive(500, wait_s=1):
                assert (message.value or b"").startswith(b"real "), f"{message.source} reached a handler"
                if message.attempt == 1:
                    message.retry(after=1, error="comes back")
                    continue
                assert inbox.accept(message), f"{message.source} is dropped as a duplicate"
                effects.execute("INSERT INTO done VALUES (?, ?)", (message.value, message.source))
                effects.commit()
                message.ack()
                done += 1
            dead = queue.counters().dead["unsigned"]
            return done == real and dead == forged + len(by_timers)

        wait_until(all_done, f"{real} messages and {forged} dead letters", DEADLINE_S * (2 + forged / 2000))
        queue.settle()
        assert queue.receive(1, wait_s=0.5) == []
        assert effects.execute("SELECT count(*), count(DISTINCT value) FROM done").fetchone() == (real, real)
        assert {source for (source,) in effects.execute("SELECT source FROM done")} == set(sources)
    letters = [each for each in here.dead_letters().rest() if each.text("timer-source").startswith(f"{returns}/")]
    assert len(letters) == len({each.text("timer-source") for each in letters}) == forged + len(by_timers)
    assert {each.text("timer-error") for each in letters} == {"unsigned"}


def test_after_a_lost_ledger_a_retried_message_is_a_dead_letter_that_can_be_put_back(
    here: System, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic = here.target()
    with Queue(topic, **PATIENT) as queue:
        source = queue.send(b"paid", key=b"k")
        (message,) = receive(queue, 1)
        message.retry(after=1)
        queue.settle()
    here.delete_topic(topics.queue_ledger(topics.queue_group(topic)))
    with Queue(topic, **PATIENT) as queue:
        wait_until(lambda: queue.receive(1, wait_s=1) or queue.counters().dead["unsigned"], "a dead letter")
        assert queue.counters().dead["unsigned"] == 1
        assert "has no key" in caplog.text
        place = f"{topics.queue_returns(topics.queue_group(topic))}/0/0"
        letter = await_letters(here, {place})[place]
        assert f"not made with a key in topic queue.{topic}-ledger" in letter.text("timer-error-message")
        here.use(monkeypatch)
        assert main(["queue", "redrive", topic, "--code", "unsigned", "--yes"]) == 0
        (again,) = receive(queue, 1, ack=True)
        assert (again.value, again.key, again.attempt, again.source) == (b"paid", b"k", 1, place), source
        queue.settle()
