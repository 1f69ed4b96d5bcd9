"""examples/outbox.py does what it says, with the commands of its page in their order."""

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.docs.markdown import ALL_BLOCKS
from tests.harness.ids import Ids
from tests.harness.process import Process, clean_environment
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.process.config.project import ADDRESS_FILE, PROJECT_DIR

pytestmark = pytest.mark.broker

RECEIVER, RELAY, ORDERS = (
    block.text for block in ALL_BLOCKS if block.page == "examples/README.md" and "outbox" in block.text
)


@contextmanager
def running(name: str, script: str, environment: dict[str, str], project: Path) -> Iterator[Process]:
    process = Process(name, ["bash", "-euc", script], environment, project, project / f"{name}.log")
    process.start()
    try:
        yield process
    finally:
        process.clean_up()


def rows(database: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(statement).fetchall()


def test_an_order_expires_unless_it_is_paid(ids: Ids, tmp_path: Path) -> None:
    """The broker is that of the project's folder, on any port. The database has tables of another program, and the
    topic has callbacks of other programs: with a key that is no text, and with that of an order."""
    worker = ids.system.worker().start().ready()
    pay_within_s = 8 + int(2 * worker.ready_s)
    address_file = tmp_path / PROJECT_DIR / ADDRESS_FILE
    address_file.parent.mkdir(parents=True)
    address_file.write_text(ids.system.address)
    database = tmp_path / "orders.db"
    rows(database, "CREATE TABLE expired (id TEXT)")
    others = Producer({"bootstrap.servers": ids.system.address})
    others.produce(ids.target, b"", b"\xff", headers=[("timer-id", b"\xff")])
    mine = {"ORDER_TIMEOUTS_TOPIC": ids.target, "PAY_WITHIN_S": str(pay_within_s)}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = clean_environment(**{**ids.system.environment, **mine, "PATH": path})
    del environment["TIMERS_BROKERS"]
    with ExitStack() as processes:
        script = RECEIVER.replace("topics create order-timeouts", f"topics create {ids.target}")
        receiver = processes.enter_context(running("receiver", script, environment, tmp_path))
        made = "SELECT 1 FROM sqlite_master WHERE name = 'orders'"
        wait_until(lambda: rows(database, made), "the receiver has made its tables")
        relay = processes.enter_context(running("relay", RELAY, environment, tmp_path))
        placed_s = time.time()
        script = ORDERS.replace("\n", "\npython -m examples.outbox place o-3\n", 1)
        done = subprocess.run(
            ["bash", "-euc", script], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        )
        assert done.stdout == "o-1 is paid\n"
        others.produce(ids.target, b"", b"o-2", headers=[("timer-id", b"timer-request/0/5")])
        others.produce(ids.target, b"", b"o-2")
        assert others.flush(DEADLINE_S) == 0
        receiver.wait_for("o-2 is expired", pay_within_s + DEADLINE_S)
        assert time.time() >= placed_s + pay_within_s, "by its own timer"
        receiver.wait_for("o-3 is expired")
        assert "o-1" not in receiver.log, "its timer was cancelled"
        assert "rows wait" not in relay.log, "the database was there before"
    assert sorted(rows(database, "SELECT id, state FROM orders")) == [
        ("o-1", "paid"),
        ("o-2", "expired"),
        ("o-3", "expired"),
    ]
