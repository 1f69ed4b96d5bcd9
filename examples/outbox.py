"""Orders that expire unless they are paid, in a service whose data is in SQLite.

    place ──► [ orders + timer_outbox, in one transaction ] ──► timers outbox run ──► timer ──► order-timeouts
    pay   ──► [ orders + cancel, in one transaction       ]

Run it (examples/README.md):

    python -m examples.outbox expire
    timers outbox run sqlite:orders.db
    python -m examples.outbox place o-1
    python -m examples.outbox pay o-1
"""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing

from confluent_kafka import Consumer, KafkaException

from timers.client import SqlOutbox
from timers.client.outbox import DEFAULT_TABLE, schema
from timers.process.config.settings import Settings

DATABASE = os.environ.get("ORDERS_DB", "orders.db")
TIMEOUTS = os.environ.get("ORDER_TIMEOUTS_TOPIC", "order-timeouts")
PAY_WITHIN_S = float(os.environ.get("PAY_WITHIN_S", "10"))


def connect() -> sqlite3.Connection:
    """Open the database, and make the tables that it lacks: the file may have others already."""
    connection = sqlite3.connect(DATABASE)
    with connection:
        connection.execute("BEGIN IMMEDIATE")  # two of these programs may start at once
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (DEFAULT_TABLE,)).fetchone():
            connection.execute(schema("sqlite"))
        connection.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, state TEXT, timer TEXT)")
    return connection


def place(connection: sqlite3.Connection, order: str) -> None:
    with connection:  # commits, or rolls back after an error: both rows are there, or none
        timer = SqlOutbox().schedule(connection, TIMEOUTS, order, "unpaid", delay=PAY_WITHIN_S)
        connection.execute("INSERT INTO orders VALUES (?, 'placed', ?)", (order, timer))


def pay(connection: sqlite3.Connection, order: str) -> None:
    with connection:
        found = connection.execute(
            "UPDATE orders SET state = 'paid' WHERE id = ? AND state = 'placed' RETURNING timer", (order,)
        ).fetchall()
        for (timer,) in found:
            SqlOutbox().cancel(connection, timer)
    print(f"{order} is paid" if found else f"{order} cannot be paid: it has expired, was paid before, or is no order")


def expire(connection: sqlite3.Connection) -> None:
    """Expire the orders whose callbacks come. An order that was paid is not changed, however late its cancel was.

    It looks for the timer and not for the key of the callback: others may send callbacks of the same key to this topic.
    """
    brokers = Settings.load().brokers
    config = {"bootstrap.servers": brokers, "group.id": "orders", "auto.offset.reset": "earliest"}
    with closing(Consumer({**config, "enable.auto.commit": False, "isolation.level": "read_committed"})) as consumer:
        consumer.subscribe([TIMEOUTS])
        while True:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error():  # such as a missing right
                raise KafkaException(message.error())
            timer = (dict(message.headers() or ()).get("timer-id") or b"").decode(errors="replace")
            with connection:
                expired = connection.execute(
                    "UPDATE orders SET state = 'expired' WHERE timer = ? AND state = 'placed' RETURNING id", (timer,)
                ).fetchall()
            consumer.commit(message, asynchronous=False)
            for (order,) in expired:
                print(f"{order} is expired", flush=True)


def main() -> None:
    command, *orders = sys.argv[1:] or [""]
    with closing(connect()) as connection:
        if command == "expire":
            expire(connection)
        for order in orders:
            {"place": place, "pay": pay}[command](connection, order)


if __name__ == "__main__":
    main()
