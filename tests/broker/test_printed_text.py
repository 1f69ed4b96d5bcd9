"""Every command that prints, over records whose ids, keys, headers, topics and payloads hold unsafe text."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.command_line import Ran, command
from tests.harness.command_walk import UNSAFE, WALKS, Planted, Walk
from tests.harness.letters import await_letters
from tests.harness.process import ROOT, clean_environment, python
from tests.harness.records import Headers
from tests.harness.system import System, with_ids
from tests.harness.waiting import DEADLINE_S, due_in
from timers.client import TimersClient
from timers.core.printable import printable
from timers.kafka import topic_admin
from timers.wire import future

pytestmark = pytest.mark.broker


@pytest.fixture
def by_id(broker_address: str, tmp_path: Path) -> Iterator[System]:
    """A system with a worker that takes ids and answers queries with values."""
    system = System(broker_address, tmp_path, **with_ids(), TIMERS_QUERIES="values")
    try:
        worker = system.worker().start()
        worker.ready()
        system.environment["TIMERS_WORKER_URL"] = f"http://127.0.0.1:{worker.port}"
        yield system
    finally:
        system.close()


def planted(system: System, folder: Path) -> Planted:
    """Unsafe text wherever a sender can choose it."""
    target = system.target()
    nowhere = future.encode(f"nowhere-{time.time_ns()}", UNSAFE, UNSAFE.encode())
    headers: Headers = [(UNSAFE, UNSAFE.encode())]
    source = system.publisher().send_raw(b"%d" % due_in(1), nowhere, headers, 1)
    no_topic = system.publisher().send_raw(b"%d" % due_in(1), future.encode(UNSAFE, UNSAFE, b""), headers, 2)
    with TimersClient(system.address) as client:
        client.schedule(target, UNSAFE, UNSAFE, delay=0, id=f"fired {UNSAFE}", headers=headers)
    letter = await_letters(system, {source, no_topic})[source]
    assert len(system.reader(target).take(1)) == 1
    log = folder / ".timers" / "broker" / "broker.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"INFO {UNSAFE}\n", encoding="utf-8")
    queue = f"{target}-jobs"
    topic_admin.create_if_missing(system.settings, queue, partitions=1)
    return Planted(target, queue, f"{letter.partition}/{letter.offset}", folder)


def called(system: System, capsys: pytest.CaptureFixture[str], words: list[str], walk: Walk) -> Ran:
    """What a command prints."""
    if not walk.as_process:
        return command(capsys, *words, *walk.arguments)
    ran = subprocess.run(
        python("timers.cli.main", *words, *walk.arguments),
        env=clean_environment(**system.environment),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def assert_safe(text: str) -> None:
    for line in text.split("\n"):
        assert printable(line) == line


def test_no_command_prints_what_controls_a_terminal_or_the_direction(
    by_id: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    by_id.use(monkeypatch)
    monkeypatch.chdir(tmp_path)
    walked = planted(by_id, tmp_path)
    for name, walks in WALKS.items():
        for walk in walks(walked):
            for as_json in ((), ("-o", "json"))[: 1 + walk.again]:
                ran = called(by_id, capsys, [*name.split(), *as_json], walk)
                assert ran.code == walk.code, (name, walk, ran)
                assert_safe(ran.out)
                assert_safe(ran.err)
                assert as_json or walk.shows in ran.out + ran.err, (name, walk, ran)
                for line in ran.out.splitlines() if as_json else ():
                    json.loads(line)
