"""Orders that expire unless they are paid, in a service whose data is in SQLite.

    place ──► [ orders + timer_outbox, in one transaction ] ──► timers outbox run ──► timer ──► order-timeouts
    pay   ──► [ orders + cancel, in one transaction       ]

Run it (examples/README.md):

    timers outbox run sqlite:orders.db
    python -m examples.outbox place o-1
    python -m examples.outbox pay o-1
    python -m examples.outbox expire
"""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from confluent_kafka import Consumer

from timers.client import SqlOutbox
from timers.client.outbox import schema

DATABASE = os.environ.get("ORDERS_DB", "orders.db")
BROKERS = os.environ.get("TIMERS_BROKERS", "127.0.0.1:9092")
TIMEOUTS = os.environ.get("ORDER_TIMEOUTS_TOPIC", "order-timeouts")
PAY_WITHIN_S = float(os.environ.get("PAY_WITHIN_S", "10"))


def connect() -> sqlite3.Connection:
    is_new = not Path(DATABASE).exists()
    connection = sqlite3.connect(DATABASE)
    if is_new:
        connection.executescript(
            schema("sqlite") + "CREATE TABLE orders (id TEXT PRIMARY KEY, state TEXT, timer TEXT);"
        )
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


def expire(connection: sqlite3.Connection) -> None:
    """Expire the orders whose callbacks come. An order that was paid is not changed, however late its cancel was."""
    config = {"bootstrap.servers": BROKERS, "group.id": "orders", "auto.offset.reset": "earliest"}
    with closing(Consumer({**config, "enable.auto.commit": False, "isolation.level": "read_committed"})) as consumer:
        consumer.subscribe([TIMEOUTS])
        while True:
            message = consumer.poll(1.0)
            if message is None or message.error() is not None:
                continue
            order = (message.key() or b"").decode()
            with connection:
                connection.execute("UPDATE orders SET state = 'expired' WHERE id = ? AND state = 'placed'", (order,))
            consumer.commit(message)
            ((state,),) = connection.execute("SELECT state FROM orders WHERE id = ?", (order,)).fetchall() or (("?",),)
            print(f"{order} is {state}", flush=True)


def main() -> None:
    command, *orders = sys.argv[1:] or [""]
    with closing(connect()) as connection:
        if command == "expire":
            expire(connection)
        for order in orders:
            {"place": place, "pay": pay}[command](connection, order)


if __name__ == "__main__":
    main()
