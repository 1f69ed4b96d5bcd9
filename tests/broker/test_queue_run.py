"""Handlers in threads, tasks and child processes on a real broker, and effects in a database that happen once."""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.queue_calls import PATIENT
from tests.harness.queue_handlers import RAISED, handle, handle_in_task
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.queue import AsyncQueue, Backoff, LeaseLostError, Message, Queue, SqlInbox

pytestmark = pytest.mark.broker


def letters(here: System, topic: str) -> dict[str, int]:
    """Code of the dead letters of a topic's messages -> how many."""
    codes: dict[str, int] = {}
    for each in here.dead_letters().rest():
        if each.text("timer-source").startswith(f"{topic}/"):
            code = each.text("timer-error")
            codes[code] = codes.get(code, 0) + 1
    return codes


@pytest.mark.parametrize("how", [pytest.param("threads", marks=pytest.mark.long), "tasks", "processes"])
async def test_handlers_settle_their_messages(here: System, how: str) -> None:
    topic, results = here.target(partitions=2), here.target()
    sent = [b"nothing"] * 10 + [b"raise %b" % name.encode() for name in RAISED]
    sent += [b"reject why"] * 2 + [b"output %b" % results.encode()] * 4
    if how == "processes":
        sent.append(b"kill")
    backoff = Backoff(first_s=0, most_s=0, retries=1)
    async with AsyncQueue(topic, backoff=backoff, **PATIENT) as queue:
        await queue.send_many((b"%d" % number, value, ()) for number, value in enumerate(sent))
        if how == "tasks":
            running = asyncio.create_task(queue.run(handle_in_task, concurrency=4))
        else:
            more = {"processes": 2} if how == "processes" else {"concurrency": 4}
            running = asyncio.create_task(asyncio.to_thread(queue.queue.run, handle, **more))

        def ended() -> bool:
            done = queue.queue.counters()
            return running.done() or done.acked + done.dead.total() == len(sent)

        await asyncio.to_thread(wait_until, ended, "the end of all messages", 2 * DEADLINE_S)
        queue.stop()
        await running
        done = queue.queue.counters()
        await queue.settle()
        assert (await queue.stats()).depth == 0
    dead = {"attempts-exhausted": len(RAISED), "rejected": 2}
    if how == "processes":
        dead["crashed"] = 1
    assert letters(here, topic) == dead
    assert (done.acked, done.retried, dict(done.dead)) == (14, len(RAISED), dead)
    assert len(here.reader(results).rest()) == 4


def test_processes_with_one_name_go_on_under_names_of_their_own(here: System, caplog: pytest.LogCaptureFixture) -> None:
    """Each of them writes retries and dead letters in transactions, and no message is handled more than twice."""
    topic, count = here.target(partitions=3), 60
    backoff = Backoff(first_s=0, most_s=0, retries=1)
    queues = [Queue(topic, member="twin", backoff=backoff, **PATIENT) for _ in range(3)]
    threads = [threading.Thread(target=queue.run, args=[handle], daemon=True) for queue in queues]
    for thread in threads:
        thread.start()
    wait_until(lambda: all(queue.counters().partitions for queue in queues), "partitions for each", 2 * DEADLINE_S)
    queues[0].send_many((b"%d" % number, b"fail bad", ()) for number in range(count))

    def are_dead() -> bool:
        return sum(queue.counters().dead.total() for queue in queues) == count

    wait_until(are_dead, "the dead letters", 2 * DEADLINE_S)
    for queue in queues:
        queue.close()
    for thread in threads:
        thread.join()
    assert letters(here, topic) == {"attempts-exhausted": count}
    assert sum(queue.counters().received for queue in queues) == 2 * count
    assert "took the name 'twin' (--member) of this one" in caplog.text
    assert "SystemError" not in caplog.text


@pytest.mark.long
async def test_messages_are_received_and_acknowledged_in_tasks(here: System) -> None:
    topic = here.target()
    async with AsyncQueue(topic, **PATIENT) as queue:
        await queue.send(b"first", key="k")
        received: list[Message] = []
        async for message in queue.messages():
            received.append(message)
            message.ack()
            if len(received) == 1:
                await queue.send(b"second", headers={"a": b"1"})
            else:
                break
        assert [each.value for each in received] == [b"first", b"second"]
        await queue.settle()
        waiting = asyncio.create_task(queue.receive(wait_s=600))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await queue.send(b"third")
        put_back = await queue.receive(wait_s=DEADLINE_S)
        assert [(each.value, each.attempt) for each in put_back] == [(b"third", 1)]


def test_an_effect_in_a_database_happens_once(here: System, tmp_path: Path) -> None:
    topic = here.target()

    def work(queue: Queue, *, until_commit: bool) -> bool:
        """Handle one message in one transaction of the database; without the acknowledgement if ``until_commit``."""
        (message,) = wait_until(lambda: queue.receive(1), "a message")
        inbox = SqlInbox(database)
        accepted = inbox.accept(message)
        if accepted:
            database.execute("INSERT INTO invoices VALUES (?)", (message.value,))
        database.commit()
        if not until_commit:
            message.ack()
            queue.settle()
        return accepted

    database = sqlite3.connect(tmp_path / "effects.db")
    SqlInbox(database).create_table()
    database.execute("CREATE TABLE invoices (value BLOB)")
    database.commit()
    with Queue(topic, **PATIENT) as queue:
        queue.send_many([b"one", (None, b"two")])
        assert work(queue, until_commit=True)
    # The process ended between the commit of the database and the acknowledgement.
    with Queue(topic, **PATIENT) as queue:
        assert not work(queue, until_commit=False)
        assert work(queue, until_commit=False)
        assert queue.stats().depth == 0
    assert database.execute("SELECT value FROM invoices").fetchall() == [(b"one",), (b"two",)]
    database.close()


@pytest.mark.long
def test_a_handler_whose_lease_ends_does_not_settle_the_message(here: System) -> None:
    topic = here.target()
    with Queue(topic, lease_s=0.5, session_timeout_s=60, timeout_s=60) as queue:
        queue.send(b"slow")
        (first,) = wait_until(lambda: queue.receive(1), "the message")

        def extended() -> Message | None:
            for message in queue.receive(1):
                with contextlib.suppress(LeaseLostError):  # a busy machine may take longer than the lease
                    message.extend(600)
                    return message
            return None

        second = wait_until(extended, "the next delivery")
        assert second.source == first.source and second.attempt > 1
        with pytest.raises(LeaseLostError):
            first.ack()
        second.ack()
        queue.settle()
        stats = queue.stats()
        assert (stats.depth, stats.in_flight, stats.processes) == (0, 0, 1)
        assert queue.counters().leases_lost >= 1


def test_a_loop_over_a_queue_ends_when_it_is_stopped(here: System) -> None:
    topic = here.target()
    values: list[bytes | None] = []

    def work(message: Message, stop: Callable[[], None]) -> None:
        values.append(message.value)
        message.ack()
        if len(values) % 2 == 0:
            stop()

    async def loop_over() -> None:
        async with AsyncQueue(topic, **PATIENT) as queue:
            async for message in queue:
                work(message, queue.stop)

    with Queue(topic, **PATIENT) as queue:
        queue.send_many(b"%d" % number for number in range(4))
        for message in queue:
            work(message, queue.stop)
    asyncio.run(loop_over())
    assert sorted(value or b"" for value in values) == [b"0", b"1", b"2", b"3"]
