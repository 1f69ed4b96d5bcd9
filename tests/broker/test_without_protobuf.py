"""Requests without protobuf: a worker reads what the commands of the page write."""

import re
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.docs.markdown import ALL_BLOCKS
from tests.harness.command_line import need
from tests.harness.java_producer import console_producer
from tests.harness.process import clean_environment
from tests.harness.records import Record
from tests.harness.system import System
from timers.cli.broker import jars
from timers.wire import verdict

pytestmark = pytest.mark.broker

TEXTS = [block.text for block in ALL_BLOCKS if block.page == "docs/without-protobuf.md" and block.language == "sh"]
CONSOLE_PRODUCER, KCAT, BY_ID = (
    next(text for text in TEXTS if name in text)
    for name in ("kafka-console-producer.sh", "-t timer-request ", "-t timer-request-by-id")
)


def run(text: str, system: System, target: str, folder: Path) -> None:
    """Run a block of the page with the names of this system. ``kafka-console-producer.sh`` is Kafka's own class."""
    program, option = console_producer()
    own = {
        "127.0.0.1:9092": system.address,
        "timer-request-by-id": system.settings.id_topic,
        "timer-request ": f"{system.request_topic} ",
        "expired": target,
        "+ 5)": "+ 1)",
        "--reader-property": option,  # the page says which one an older Kafka has
    }
    wanted = re.compile("|".join(map(re.escape, own)))
    text = wanted.sub(lambda found: own[found[0]], text)
    script = folder / "kafka-console-producer.sh"
    script.write_text(f'#!/bin/sh\nexec java {program} "$@"\n')
    script.chmod(0o755)
    environment = clean_environment(CLASSPATH=":".join(map(str, jars.KAFKA.ensure(None))))
    environment["PATH"] = f"{folder}:{environment['PATH']}"
    subprocess.run(["bash", "-euo", "pipefail", "-c", text], env=environment, check=True, timeout=180)


def fired(system: System, target: str) -> Record:
    (record,) = system.reader(target).take(1)
    return record


@pytest.mark.parametrize(("text", "tool"), [(CONSOLE_PRODUCER, "java"), (KCAT, "kcat")])
def test_a_timer_of_a_command_fires_with_its_key_and_value(
    text: str, tool: str, running: System, tmp_path: Path
) -> None:
    need(tool)
    target = running.target()
    run(text, running, target, tmp_path)
    record = fired(running, target)
    assert (record.key, record.value) == (b"o-1", b"unpaid")
    assert [name for name, _ in record.headers] == ["timer-id", "timer-due", "timer-fired"]


def test_a_timer_with_an_id_is_set_and_cancelled(broker_address: str, tmp_path: Path) -> None:
    need("kcat")
    topics = {"TIMERS_ID_TOPIC": "ids-by-kcat", "TIMERS_VERDICT_TOPIC": "verdicts-for-kcat"}
    with closing(System(broker_address, tmp_path, **topics)) as system:
        system.worker().start().ready()
        run(BY_ID, system, system.target(), tmp_path)
        (record,) = system.reader("verdicts-for-kcat", append_time=False).take(1)
    assert (record.key, verdict.decode(record.value or b"").verdict) == (b"order-17", "cancelled")
