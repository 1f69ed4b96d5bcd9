"""What the page of the cluster and that of changes read from a broker: open transactions, topics, levels, changes."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.harness.console_process import ConsoleProcess
from tests.harness.constants import Constants
from tests.harness.system import System, with_ids
from tests.harness.waiting import wait_until
from timers.console import changes
from timers.console.changes import Changes, read_changes
from timers.console.kafka_cluster import KafkaCluster
from timers.kafka.aiokafka_internals.open_transactions import OpenTransaction
from timers.offline.app_state import AppState

pytestmark = pytest.mark.broker


def test_a_transaction_that_is_open_is_named_until_it_ends(broker_address: str, tmp_path: Path) -> None:
    system = System(broker_address, tmp_path, **with_ids())
    try:
        target = system.target(2)
        worker = system.worker()
        worker.start()
        worker.ready()
        producer = Producer(
            {"bootstrap.servers": broker_address, "transactional.id": f"of-{target}", "transaction.timeout.ms": 600_000}
        )
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(target, b"held back", partition=1)
        producer.produce(system.settings.dead_letter_topic, b"of no interest to who may use the target only")
        producer.flush()

        def look(later_s: float) -> AppState:
            async def looked() -> AppState:
                cluster = KafkaCluster(system.settings)
                try:
                    return await cluster.state(lambda name: name == target, time.time() + later_s)
                finally:
                    await cluster.close()

            return asyncio.run(looked())

        def opened(later_s: float) -> list[OpenTransaction]:
            found = look(later_s).transactions
            assert found is not None and found.unknown == []
            return found.transactions

        assert opened(0) == [], "it is not open for long"
        (found,) = opened(60)
        assert (found.partition, found.start_offset, found.id, found.state) == (1, 0, f"of-{target}", "Ongoing")
        assert abs(found.since_ms / 1000 - time.time()) < 60 and found.timeout_ms == 600_000
        producer.abort_transaction()
        wait_until(lambda: opened(60) == [], "the transaction has ended")
        state = look(0)
        assert state.unknown == {} and state.topics is not None
        assert {each.name for each in state.topics} >= {system.request_topic, system.settings.progress_topic}
        assert all(each.partitions and each.is_read and not each.leaderless for each in state.topics)
        assert state.levels is not None and list(state.levels.workers) == [worker.worker_id]
    finally:
        system.close()


def test_the_programs_of_the_page_of_a_new_timer_run_as_they_are_copied(broker_address: str, tmp_path: Path) -> None:
    system = System(broker_address, tmp_path, **with_ids())
    system.create_topic(system.settings.id_topic, 1)
    system.create_topic(system.request_topic, 1)
    console = ConsoleProcess(tmp_path / "console", {**system.environment, "TIMERS_CONSOLE_WRITE": "1"})
    clean = {name: text for name, text in os.environ.items() if not name.startswith("TIMERS_")}

    def run(words: list[str]) -> str:
        done = subprocess.run(words, env=clean, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    try:
        console.start().wait_for("console: ")
        for given in ("delay=1h&id=a%27b", "at=2030-01-31T12:00:00%20Europe/Paris", "every=15m&id=each", "delay=2h"):
            page = f"{console.url}/timers/new?topic=shop&key=k&value=v%0Aw&headers=a:%20b&{given}"
            with urllib.request.urlopen(page) as answer:
                text = answer.read().decode()
            curl, program = (
                unescape(found) for found in re.findall(r"<pre id=\"program-[^>]*>(.*?)</pre>", text, re.DOTALL)
            )
            done = subprocess.run(
                [sys.executable, "-c", program], env=clean, capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0 and done.stdout.strip(), (program, done.stderr)
            done = subprocess.run(["sh", "-c", curl], env=clean, capture_output=True, text=True, timeout=60)
            assert json.loads(done.stdout)["due"] > time.time(), (curl, done.stdout)
    finally:
        console.end()
        system.close()


def test_the_newest_changes_are_read_backwards(broker_address: str, tmp_path: Path, constants: Constants) -> None:
    system = System(broker_address, tmp_path)
    topic = system.settings.console_log_topic

    def read(id: str = "", user: str = "", ends: list[int] | None = None) -> Changes:
        return read_changes(system.settings, id, user, ends)

    def all_of(**selection: str) -> Iterator[list[str]]:
        """The ids of each page."""
        ends = None
        while (found := read(ends=ends, **selection)).older is not None:
            yield [each.about for each in found.found]
            ends = found.older
        yield [each.about for each in found.found]

    try:
        assert read() == ([], 0, None), "there is no topic yet"
        system.create_topic(topic, 2)
        producer = Producer({"bootstrap.servers": broker_address})
        for number in range(26):
            user = ("ann", "bob")[number % 2]
            entry = f'"at_ms": {number}, "user": "{user}", "address": "::1", "operation": "cancelTimer"'
            value = f'{{{entry}, "parameters": {{"id": "{number}"}}, "body": {{}}}}'.encode()
            producer.produce(topic, value, partition=number // 2 % 2)
            producer.produce(topic, b"no entry", partition=number // 2 % 2)
        producer.flush()
        newest = [f"id={number}" for number in reversed(range(26))]
        constants(changes, _CHANGES_AT_ONCE=7, MAX_CHANGES=4)
        assert list(all_of()) == [newest[at : at + 4] for at in range(0, 26, 4)]
        of_bob = [about for page in all_of(user="bob") for about in page]
        assert sorted(of_bob) == sorted(newest[::2]), "each once"
        assert [each.user for each in read("2").found] == ["ann"]
        assert read("2", "bob").found == [] and read("2", "bob").older is None
        constants(changes, SEARCHED_CHANGES=10)
        assert read("2").found == [] and read("2").older is not None, "not all was looked at"
    finally:
        system.close()
