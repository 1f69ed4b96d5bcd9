"""Invoices that are written once: a consumer of a queue, with its effect in a database.

    paid-orders ──► [ write ] ──► table of invoices and inbox, in one transaction ──► acknowledged
                     ├── the database is locked: retried after 5 s, 10 s, 20 s ...
                     └── no such order: a dead letter, which `timers queue redrive` puts back

Run it (examples/README.md):

    timers queue run paid-orders examples.invoices:write --concurrency 4
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing

from timers.queue import Message, SqlInbox

DATABASE = os.environ.get("INVOICES_DB", "invoices.db")


def write(message: Message) -> None:
    """Write the invoice of an order. The message is `{"order": "o-1", "amount": 4200}`."""
    try:
        order = json.loads(message.value or b"")
        row = (str(order["order"]), int(order["amount"]))
    except (ValueError, KeyError, TypeError) as error:
        message.reject(f"not an order: {error!r}")  # to try again would not help
        return
    with closing(sqlite3.connect(DATABASE)) as connection:  # an error, such as a locked database: `run` retries
        connection.execute("CREATE TABLE IF NOT EXISTS invoices (order_id TEXT, amount INTEGER)")
        inbox = SqlInbox(connection)
        inbox.create_table()
        if inbox.accept(message):  # False: it was written, and the process ended before the acknowledgement
            connection.execute("INSERT INTO invoices VALUES (?, ?)", row)
        connection.commit()
