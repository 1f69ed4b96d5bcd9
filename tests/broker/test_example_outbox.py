"""examples/outbox.py does what it says, with the commands of its page."""

import subprocess
from pathlib import Path

import pytest

from tests.harness.ids import Ids
from tests.harness.process import ROOT, Process, clean_environment, python
from tests.harness.waiting import DEADLINE_S

pytestmark = pytest.mark.broker


def test_an_order_expires_unless_it_is_paid(ids: Ids, tmp_path: Path) -> None:
    worker = ids.system.worker().start().ready()
    database = tmp_path / "orders.db"
    pay_within_s = 8 + int(2 * worker.ready_s)
    mine = {"ORDERS_DB": str(database), "ORDER_TIMEOUTS_TOPIC": ids.target, "PAY_WITHIN_S": str(pay_within_s)}
    environment = clean_environment(**ids.system.environment, **mine)
    relay_command = python("timers.cli.main", "outbox", "run", f"sqlite:{database}")
    relay = Process("relay", relay_command, environment, ROOT, tmp_path / "relay.log")
    receiver = Process("receiver", python("examples.outbox", "expire"), environment, ROOT, tmp_path / "receiver.log")
    try:
        receiver.start()
        subprocess.run(python("examples.outbox", "place", "o-1", "o-2"), cwd=ROOT, env=environment, check=True)
        relay.start()  # while the order is paid: both must be done within PAY_WITHIN_S
        subprocess.run(python("examples.outbox", "pay", "o-1"), cwd=ROOT, env=environment, check=True)
        receiver.wait_for("o-2 is expired", pay_within_s + DEADLINE_S)
        assert "o-1" not in receiver.log, "its timer was cancelled"
    finally:
        relay.clean_up()
        receiver.clean_up()
