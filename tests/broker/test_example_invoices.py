"""examples/invoices.py does what it says, with the commands of its page."""

import json
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness.process import ROOT, Process, clean_environment, python
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.broker


def test_invoices_are_written_once_and_bad_ones_can_be_put_back(running: System, tmp_path: Path) -> None:
    topic, database = running.target(), tmp_path / "invoices.db"
    environment = clean_environment(**running.environment, INVOICES_DB=str(database))

    def timers(*arguments: str) -> list[dict[str, object]]:
        command = python("timers.cli.main", "queue", *arguments, "-o", "json")
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def written() -> list[tuple[str, int]]:
        with closing(sqlite3.connect(database)) as connection:
            return connection.execute("SELECT order_id, amount FROM invoices ORDER BY order_id").fetchall()

    orders = tmp_path / "orders"
    orders.write_text('{"order": "o-1", "amount": 4200}\nnothing\n{"order": "o-2", "amount": 17}\n')
    timers("send", topic, "--lines", str(orders))
    command = python("timers.cli.main", "queue", "run", topic, "examples.invoices:write", "--concurrency", "2")
    consumer = Process("invoices", command, environment, ROOT, tmp_path / "log")
    try:
        consumer.start()
        wait_until(lambda: timers("stat", topic)[0]["depth"] == 0, "the end of all messages", 2 * DEADLINE_S)
        assert written() == [("o-1", 4200), ("o-2", 17)]
        (letter,) = timers("dead", topic)
        assert letter["code"] == "rejected" and "not an order" in str(letter["message"])
        consumer.send(signal.SIGTERM)
        assert consumer.exit_code() == 0
    finally:
        consumer.clean_up()
