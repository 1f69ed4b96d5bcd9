"""Blocks of the pages run as they are: all Python, and the shell commands whose block is marked ``run``."""

import inspect
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from tests.docs.markdown import ALL_BLOCKS, ROOT, Block
from tests.harness.process import Process, clean_environment, python
from tests.harness.system import PARTITIONS, System
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.client import TimersClient
from timers.kafka import topic_admin

pytestmark = pytest.mark.broker

CALLBACK_TOPICS = ("timeouts", "order-timeouts", "messages")
"""Callbacks to other topics of the pages become dead letters: programs of other tests read some of them."""

QUEUE_TOPIC = "jobs"
"""The topic of the queues in programs of the pages."""

RETURNS = "queue.*"
"""Topics on which messages of queues come back."""

README_BLOCKS = [block for block in ALL_BLOCKS if block.page == "README.md"]


def of(language: str, *marks: str) -> list[Block]:
    return [block for block in ALL_BLOCKS if block.language == language and block.marks == marks]


def is_endless(block: Block) -> bool:
    """Whether a program runs until it is ended."""
    return "while True:" in block.text


@pytest.fixture(scope="module")
def docs(broker_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A system with a worker that accepts what the pages send."""
    run = uuid.uuid4().hex[:8]
    more = {
        "TIMERS_ID_TOPIC": f"by-id-{run}",
        "TIMERS_VERDICT_TOPIC": f"verdict-{run}",
        "TIMERS_CALLBACK_ALLOW": ",".join((*CALLBACK_TOPICS, RETURNS)),
    }
    system = System(broker_address, tmp_path_factory.mktemp("docs"), **more)
    for topic in (*CALLBACK_TOPICS[1:], QUEUE_TOPIC):  # the commands of the README create the first one
        topic_admin.create_if_missing(system.settings, topic, partitions=PARTITIONS)
    worker = system.worker().start().ready()
    system.environment["TIMERS_WEB_PORT"] = str(worker.port)
    yield system
    system.close()


def as_in(text: str, docs: System) -> list[str]:
    """Lines with 0 for each number, and with the default name of the request topic."""
    return [re.sub(r"\d+", "0", line) for line in text.replace(docs.request_topic, "timer-request").splitlines()]


@pytest.mark.parametrize("block", of("sh", "run"), ids=str)
def test_shell_commands_run(block: Block, docs: System) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = clean_environment(**{**docs.environment, "PATH": path})
    attempts: list[subprocess.CompletedProcess[str]] = []

    def runs() -> bool:
        done = subprocess.run(
            ["bash", "-euc", block.text], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
        )
        attempts.append(done)
        return done.returncode == 0

    # More than once: a worker that is busy may read a request later than the next command asks for it.
    try:
        wait_until(runs, str(block), 3 * DEADLINE_S)
    finally:
        print(*attempts, sep="\n")  # shown if the test fails
    if block == README_BLOCKS[1]:
        assert as_in(attempts[-1].stdout, docs) == as_in(README_BLOCKS[2].text, docs)


@pytest.mark.parametrize("block", [block for block in of("python") if not is_endless(block)], ids=str)
def test_a_program_runs(block: Block, docs: System, monkeypatch: pytest.MonkeyPatch) -> None:
    docs.use(monkeypatch)
    names: dict[str, object] = {}
    exec(block.text, names)
    if callable(handle := names.get("handle")):
        with TimersClient() as client:
            given = {"client": client, "message": received(docs)}  # a handler of a queue takes the message only
            handle(*(given[name] for name in inspect.signature(handle).parameters))


def received(docs: System) -> object:
    """A message from a consumer."""
    producer = Producer({"bootstrap.servers": docs.address})
    producer.produce("messages", b"value", b"key")
    assert producer.flush(DEADLINE_S) == 0
    consumer = Consumer({"bootstrap.servers": docs.address, "group.id": "docs-reader", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe(["messages"])
        message = wait_until(lambda: consumer.poll(0.1), "a message")
        assert message.error() is None
        return message
    finally:
        consumer.close()


@pytest.mark.parametrize("block", [block for block in of("python") if is_endless(block)], ids=str)
def test_a_program_receives_its_callbacks(block: Block, docs: System, tmp_path: Path) -> None:
    """A receiver runs until it has printed what its page says."""
    says = re.search(r"It prints `(.+?)`", (ROOT / block.page).read_text())
    assert says is not None, "the page says what the program prints"
    topic_admin.create_if_missing(docs.settings, CALLBACK_TOPICS[0], partitions=PARTITIONS)  # if this test runs alone
    (tmp_path / "program.py").write_text(block.text)
    environment = clean_environment(**docs.environment)
    program = Process("the program", [*python("program")[:1], "program.py"], environment, tmp_path, tmp_path / "log")
    program.start()
    try:
        program.wait_for(re.escape(says[1]))
        assert "order-2" not in program.log
    finally:
        program.end(10)
