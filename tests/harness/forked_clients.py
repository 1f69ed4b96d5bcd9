"""A program that uses clients and queues, forks, and uses them in the child. It prints what each call there says."""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from timers.client import AsyncTimersClient, TimerRequest, TimersClient
from timers.queue import AsyncQueue, Queue
from timers.wire.topics import ID_REQUEST, REQUEST, VERDICT

TIMEOUT_S = 30.0
LOOKS, LOOK_S = 10, 0.2
FILES = Path("/dev/fd")
DUE_S = 1_800_000_000
REQUESTS = [TimerRequest("t", "k", b"", at=DUE_S)]
BEFORE, AFTER = "used before", "made after"


def main() -> None:
    host = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    for topic in (REQUEST, ID_REQUEST, VERDICT, "jobs"):
        host.list_topics(topic, timeout=10)
    address = next(iter(host.list_topics(REQUEST, timeout=10).brokers.values()))
    brokers = f"{address.host}:{address.port}"
    client, queue = TimersClient(brokers, timeout_s=TIMEOUT_S), Queue("jobs", brokers=brokers, timeout_s=TIMEOUT_S)
    unused = TimersClient(brokers, timeout_s=TIMEOUT_S)
    in_loop = AsyncTimersClient(brokers, timeout_s=TIMEOUT_S)
    client.schedule("t", "k", b"", at=DUE_S)
    client.schedule("t", "k", b"", at=DUE_S, id="one")
    client.schedule_many(REQUESTS)
    asyncio.run(in_loop.schedule("t", "k", b"", at=DUE_S))
    queue.send(b"")
    queue.receive(wait_s=0)  # it does not wait for the group, which these brokers do not have
    # A lock that another thread holds at the fork is never free in the child. While it connects, librdkafka holds locks
    # of the C library and of OpenSSL, so a new client there could wait for good (docs/python-client.md says so).
    wait_for_connections()
    child = os.fork()
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    waiting = AsyncQueue(queue)
    calls: dict[str, Callable[[], Any]] = {
        "schedule": lambda: client.schedule("t", "k", b"", at=DUE_S),
        "schedule id": lambda: client.schedule("t", "k", b"", at=DUE_S, id="one"),
        "schedule_many": lambda: client.schedule_many(REQUESTS),
        "update": lambda: client.update("one", "t", "k", b"", at=DUE_S),
        "cancel": lambda: client.cancel("one"),
        "async schedule": in_new_loop(lambda: in_loop.schedule("t", "k", b"", at=DUE_S)),
        "async schedule_many": in_new_loop(lambda: in_loop.schedule_many(REQUESTS)),
        "async close": in_new_loop(in_loop.close),
        "send": lambda: queue.send(b""),
        "receive": lambda: queue.receive(wait_s=0.1),
        "run": lambda: queue.run(print),
        "settle": queue.settle,
        "async send": in_new_loop(lambda: waiting.send(b"")),
        "async receive": in_new_loop(lambda: waiting.receive(wait_s=0.1)),
        "async queue close": in_new_loop(waiting.close),
        "queue close": queue.close,
        "close": client.close,
        "unused schedule": lambda: unused.schedule("t", "k", b"", at=DUE_S),
    }
    for name, call in calls.items():
        print(f"{name}: {answer(call)}", flush=True)
    with closing(TimersClient(brokers, timeout_s=TIMEOUT_S)) as new:
        print(f"new schedule: {answer(lambda: new.schedule('t', 'k', b'', at=DUE_S))}", flush=True)
    # The child ends as each program: Python frees all objects.


def wait_for_connections() -> None:
    """Return when no connection was opened or closed during some looks. A pause of the machine is within one look."""
    files, quiet = {*FILES.iterdir()}, 0
    while quiet < LOOKS:
        time.sleep(LOOK_S)
        before, files = files, {*FILES.iterdir()}
        quiet = quiet + 1 if files == before else 0


def answer(call: Callable[[], Any]) -> str:
    try:
        return f"returned {call()!r}"
    except Exception as error:
        return f"{type(error).__name__} {error}"


def in_new_loop(call: Callable[[], Awaitable[Any]]) -> Callable[[], Any]:
    async def awaited() -> Any:
        return await call()

    return lambda: asyncio.run(awaited())


if __name__ == "__main__":
    main()
