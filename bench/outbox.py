"""``python -m bench.outbox``: the outbox in a PostgreSQL whose commits wait for the disk.

``rate``: rows that wait are sent as fast as one relay can. ``latency``: orders at a steady rate, from the return of
their commit to the acknowledgement of their requests; meanwhile, in ``open``, one transaction stays open for a minute.
``idle``: statements a second without rows. ``kills``: orders with rollbacks, while services, relay, worker, broker and
database are killed at random moments; each committed order must have one callback, and no other one.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from bench.session import Session, measuring
from tests.harness.cluster import Cluster
from tests.harness.ids import Ids
from tests.harness.postgres import PostgresServer, programs
from tests.harness.process import Process, clean_environment, python
from tests.harness.waiting import wait_until
from timers.cli.broker import EmbeddedBroker
from timers.client import SqlOutbox
from timers.client.outbox import schema
from timers.errors import BrokerError
from timers.outbox import relay as relays
from timers.outbox.databases import database
from timers.outbox.rows import row_of
from timers.process.config.settings import Settings

PER_S = 200
SERVICES = 4
ROLLED_BACK = 5
"""One order of so many is rolled back."""
OPEN_S = 60.0
PATIENCE_S = 600.0
KILL_EVERY_S = 2.0, 8.0
DELAY_S = 5, 60
"""Least and most time from an order to its callback, in a run with kills."""


class Shop:
    """A database with orders and an outbox."""

    def __init__(self, server: PostgresServer) -> None:
        self.url = server.new_database()
        with psycopg.connect(self.url) as connection:
            connection.execute(schema("postgresql").encode())
            connection.execute("CREATE TABLE orders (timer text)")

    def asked(self, statement: str) -> Any:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(statement.encode()).fetchall()

    def waiting(self) -> int:
        return int(self.asked("SELECT count(*) FROM timer_outbox")[0][0])


@contextlib.contextmanager
def postgres() -> Iterator[PostgresServer]:
    found = programs()
    assert found is not None, "PostgreSQL is not installed (Debian: apt-get install postgresql)"
    server = PostgresServer(found, is_durable=True)
    try:
        yield server.start()
    finally:
        server.close()


class _NotingPublisher:
    """Passes requests on, and writes when each is acknowledged."""

    def __init__(self, publisher: Any, file: Any) -> None:
        self._publisher, self._file = publisher, file
        self.partitions = publisher.partitions

    def submit_record(
        self, topic: str, key: bytes, value: bytes, headers: Any, on_result: Any, partition: int = -1
    ) -> None:
        def take(answer: Any) -> None:
            self._file.write(f"{row_of(headers)} {time.time_ns()}\n")
            on_result(answer)

        self._publisher.submit_record(topic, key, value, headers, take, partition)


def noting_relay(url: str, path: str) -> None:
    """Run a relay that writes the time of each acknowledgement to a file, until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with Path(path).open("w", buffering=1) as file:

        class Noting(relays.Relay):
            def _opened(self) -> Any:
                return _NotingPublisher(super()._opened(), file)

        Noting(database(url, "timer_outbox"), Settings.load()).run(stop)


class Bench:
    """A shop, and the app whose worker fires its timers."""

    def __init__(self, session: Session, server: PostgresServer, name: str) -> None:
        self.session, self.directory = session, session.workdir / name
        self.directory.mkdir()
        self.shop = Shop(server)
        self.ids = Ids(session.cluster.brokers, self.directory)
        self._environment = clean_environment(**self.ids.system.environment)

    def process(self, name: str, *arguments: str) -> Process:
        log = self.directory / f"{name}.log"
        return Process(name, python(*arguments), self._environment, self.directory, log)

    def noting(self) -> Process:
        return self.process("relay", "bench.outbox", "--relay", self.shop.url, str(self.directory / "acks"))

    def acknowledged(self) -> dict[str, int]:
        """Id of a row -> when its request was acknowledged, in epoch nanoseconds."""
        lines = (line.split() for line in (self.directory / "acks").read_text().splitlines())
        return {id: int(at) for id, at in lines}


def rate(bench: Bench, orders: int) -> dict[str, Any]:
    """Rows a second of one relay, with rows that wait."""
    outbox, due_s = SqlOutbox(), int(time.time()) + 86_400
    with psycopg.connect(bench.shop.url) as connection, connection.pipeline():
        for number in range(orders):
            outbox.schedule(connection, bench.ids.target, f"o-{number}", b"x" * 100, at=due_s)
    relay = bench.noting().start()
    wait_until(lambda: not bench.shop.waiting(), "all rows are sent", PATIENCE_S)
    relay.send(signal.SIGTERM)
    relay.exit_code()
    at = sorted(bench.acknowledged().values())
    assert len(at) == orders
    return {"rows": orders, "rows_per_s": round(orders / ((at[-1] - at[0]) / 1e9))}


def latency(bench: Bench, orders: int) -> dict[str, Any]:
    """Milliseconds from the return of a commit to the acknowledgement of the request."""
    found, _ = _steady(bench, orders)
    return found


def open_transaction(bench: Bench, orders: int) -> dict[str, Any]:
    """The same while a transaction stays open for a minute, and what becomes of its row."""
    outbox = SqlOutbox()
    with psycopg.connect(bench.shop.url) as connection:
        id = outbox.schedule(connection, bench.ids.target, "open", b"", delay=86_400)
        begun = time.monotonic()
        found, relay = _steady(bench, max(orders, int(OPEN_S * PER_S)), keep=True)
        time.sleep(max(0.0, OPEN_S - (time.monotonic() - begun)))
        connection.commit()
        committed_ns = time.time_ns()
    assert relay is not None
    wait_until(lambda: not bench.shop.waiting(), "the row of the long transaction is sent")
    relay.send(signal.SIGTERM)
    relay.exit_code()
    found["open_s"] = round(time.monotonic() - begun)
    found["own_row_ms"] = round((bench.acknowledged()[id] - committed_ns) / 1e6, 1)
    return found


def _steady(bench: Bench, orders: int, *, keep: bool = False) -> tuple[dict[str, Any], Process | None]:
    relay = bench.noting().start()
    relay.wait_for("this relay sends the rows")
    outbox, due_s = SqlOutbox(), int(time.time()) + 86_400
    committed: dict[str, int] = {}
    begun = time.monotonic()
    with psycopg.connect(bench.shop.url) as connection:
        for number in range(orders):
            time.sleep(max(0.0, begun + number / PER_S - time.monotonic()))
            id = outbox.schedule(connection, bench.ids.target, f"o-{number}", b"x" * 100, at=due_s)
            connection.execute("INSERT INTO orders VALUES (%s)", [id])
            connection.commit()
            committed[id] = time.time_ns()
    took_s = time.monotonic() - begun
    wait_until(lambda: not bench.shop.waiting(), "all rows are sent")
    if not keep:
        relay.send(signal.SIGTERM)
        relay.exit_code()
    at = bench.acknowledged()
    known = [id for id in committed if id in at]
    late_ms = np.array([(at[id] - committed[id]) / 1e6 for id in known])
    found = {
        "orders": orders,
        "orders_per_s": round(orders / took_s),
        "known": len(known),
        **{f"p{share}_ms": round(float(np.percentile(late_ms, share)), 1) for share in (50, 99)},
        "max_ms": round(float(late_ms.max()), 1),
    }
    return found, relay if keep else None


def idle(bench: Bench, orders: int) -> dict[str, Any]:
    """Statements a second of a relay without rows: each is a transaction of its own. The server has no others."""
    with psycopg.connect(bench.shop.url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET autovacuum = off")
        connection.execute("SELECT pg_reload_conf()")
    relay = bench.process("relay", "timers.cli.main", "outbox", "run", bench.shop.url).start()
    relay.wait_for("this relay sends the rows")
    count = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
    time.sleep(5)
    with psycopg.connect(bench.shop.url, autocommit=True) as connection:
        (before,) = connection.execute(count).fetchone() or (0,)
        begun = time.monotonic()
        time.sleep(62)
        took_s = time.monotonic() - begun
        (after,) = connection.execute(count).fetchone() or (0,)
    relay.clean_up()
    return {"seconds": round(took_s), "statements_per_s": round((after - before - 1) / took_s, 2)}


# ---- kills ----------------------------------------------------------------------------------------------------------


def service(url: str, target: str, seed: str, orders: str, path: str) -> None:
    """Write orders until so many are committed, and go on after errors of the database."""
    chosen = random.Random(f"{seed}-{os.getpid()}-{time.time_ns()}")
    outbox = SqlOutbox()
    Path(path).touch()
    while True:
        try:
            with psycopg.connect(url, connect_timeout=5) as connection:
                while True:
                    (count,) = connection.execute("SELECT count(*) FROM orders").fetchone() or (0,)
                    if count >= int(orders):
                        return
                    for _ in range(100):
                        id = outbox.schedule(connection, target, "k", b"x" * 100, delay=chosen.randint(*DELAY_S))
                        connection.execute("INSERT INTO orders VALUES (%s)", [id])
                        if chosen.randrange(ROLLED_BACK):
                            connection.commit()
                        else:
                            connection.rollback()
                        time.sleep(0.004)
        except psycopg.Error:
            time.sleep(0.2)


def kills(bench: Bench, orders: int, server: PostgresServer, broker: EmbeddedBroker, seed: int) -> dict[str, Any]:
    """Kill all parts at random moments while orders are written; then judge the callbacks."""
    chosen, target = random.Random(seed), bench.ids.target
    worker = bench.ids.system.worker(forked=False)
    worker.start().ready()
    relay = bench.process("relay", "timers.cli.main", "outbox", "run", bench.shop.url).start()
    written = str(bench.directory / "service")
    arguments = (bench.shop.url, target, str(seed), str(orders), written)
    services = [bench.process(f"service-{n}", "bench.outbox", "--service", *arguments) for n in range(SERVICES)]
    for each in services:
        each.start()
    done: Counter[str] = Counter()
    faults: dict[str, Callable[[], object]] = {
        "service": lambda: _killed(chosen.choice(services)),
        "relay": lambda: _killed(relay),
        "database": lambda: [step() for step in (server.kill, server.start)],
        "broker": lambda: [step() for step in (broker.kill, lambda: _started(broker))],
        "worker": lambda: _killed(worker),
    }
    weights = [4, 6, 2, 1, 1]
    while any(each.running for each in services):
        time.sleep(chosen.uniform(*KILL_EVERY_S))
        (name,) = chosen.choices([*faults], weights)
        with bench.session.printer.doing(f"killing the {name}"):
            faults[name]()
        done[name] += 1
        bench.session.printer.line(f"  {dict(done)}, {bench.shop.asked('SELECT count(*) FROM orders')[0][0]:,} orders")
    for each in (relay, worker):
        if not each.running:
            each.start()
    wait_until(lambda: not bench.shop.waiting(), "all rows are sent", PATIENCE_S)
    committed = Counter(id for (id,) in bench.shop.asked("SELECT timer FROM orders"))
    reader = bench.ids.fired
    with bench.session.printer.doing("reading the callbacks"):
        records = reader.take(len(committed), PATIENCE_S)
        time.sleep(DELAY_S[1])  # a timer of no order may still come
        bench.ids.wait_past(int(time.time()))
        records += reader.rest()
    fired = Counter(record.text("timer-id") for record in records)
    relay.clean_up()
    return {
        "seed": seed,
        "orders": len(committed),
        "kills": dict(done),
        "lost": len(committed.keys() - fired.keys()),
        "of_no_order": len(fired.keys() - committed.keys()),
        "doubled": sum(count > 1 for count in fired.values()),
        "refused": bench.shop.asked("SELECT count(*) FROM timer_outbox WHERE reason IS NOT NULL")[0][0],
    }


def _started(broker: EmbeddedBroker) -> None:
    """Start a broker that was killed. Beside other programs, a start may take longer than a broker is given."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            broker.start()
            return
        except BrokerError:
            if time.monotonic() > deadline:
                raise


def _killed(process: Process) -> None:
    if process.running:
        process.kill()
        process.start()


PARTS: dict[str, Callable[[Bench, int], dict[str, Any]]] = {
    "rate": rate,
    "latency": latency,
    "open": open_transaction,
    "idle": idle,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.outbox", description=__doc__)
    parser.add_argument("--parts", default="rate,latency,open,idle,kills", metavar="NAME,...")
    parser.add_argument("--orders", type=int, default=100_000, help="of rate and kills (100,000); latency: a tenth")
    parser.add_argument("--seed", type=int, default=1, help="of the kills (1)")
    parser.add_argument("--relay", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--service", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.relay:
        import logging

        logging.basicConfig(level=logging.INFO, stream=sys.stderr)
        noting_relay(*options.relay)
        return
    if options.service:
        service(*options.service)
        return
    with measuring("outbox-") as session, postgres() as server:
        for part in options.parts.split(","):
            orders = options.orders if part in ("rate", "kills") else options.orders // 10
            with contextlib.ExitStack() as stack:
                if part == "kills":
                    broker = stack.enter_context(EmbeddedBroker(session.workdir / "killed", 0))
                    killed = Bench(_elsewhere(session, broker), server, part)
                    stack.callback(killed.ids.system.close)
                    found = kills(killed, orders, server, broker, options.seed)
                else:
                    bench = Bench(session, server, part)
                    stack.callback(bench.ids.system.close)
                    found = PARTS[part](bench, orders)
            print(part, json.dumps(found), flush=True)


def _elsewhere(session: Session, broker: EmbeddedBroker) -> Session:
    """The session with another broker, which may be killed."""
    address = broker.address
    assert address is not None
    return replace(session, cluster=Cluster(address))


if __name__ == "__main__":
    main()
