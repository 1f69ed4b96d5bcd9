"""A broker that advertises an address which this machine cannot reach: each command names it."""

from contextlib import closing
from pathlib import Path

import pytest

from tests.harness.process import ROOT, Process, clean_environment, python
from tests.harness.records import Request
from tests.harness.system import System
from tests.harness.waiting import due_in
from timers.cli.broker import EmbeddedBroker

pytestmark = [pytest.mark.broker, pytest.mark.long]

COMMANDS = [
    "dead-letters list",
    "levels",
    "status",
    "snapshots",
    "targets list",
    "targets pause orders",
    "queue list",
    "queue stat jobs",
    "queue send jobs --value x",
    "topics create more",
    "schedule --topic orders --value x --in 1h",
    "watch orders --from-beginning",
]
ALL_S = 300.0


def test_each_command_names_the_address(tmp_path: Path) -> None:
    before = EmbeddedBroker(tmp_path / "broker", 0)
    address = before.start()
    port = int(address.rpartition(":")[2])
    try:
        with closing(System(address, tmp_path)) as system:
            system.worker().start().ready()
            for topic in ("orders", "jobs"):
                system.create_topic(topic)
            system.send(Request("missing", due_in(1)))
            system.dead_letters().take(1)
    finally:
        before.stop()
    environment = clean_environment(**system.environment)
    named = f"kafka.invalid:{port}"
    with EmbeddedBroker(tmp_path / "broker", port, {"advertised.listeners": f"PLAINTEXT://{named}"}) as broker:
        broker.start()
        ran = [
            Process(words, python("timers.cli.main", *words.split()), environment, ROOT, tmp_path / f"{number}.log")
            for number, words in enumerate(COMMANDS)
        ]
        try:
            for each in ran:
                each.start()
            codes = {each.name: each.exit_code(ALL_S) for each in ran}
            said = {each.name: each.log.splitlines()[-1] for each in ran}
        finally:
            for each in ran:
                each.clean_up()
    assert set(codes.values()) == {1}, codes
    wrong = {name: line for name, line in said.items() if named not in line or "advertised.listeners" not in line}
    assert wrong == {}
