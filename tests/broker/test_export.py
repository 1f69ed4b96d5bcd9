"""What is pending goes to a file and to another app: each timer fires once, on one side."""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.harness.command_line import Ran, command
from tests.harness.records import Publisher, Reader
from tests.harness.system import System, timers
from tests.harness.waiting import due_in, wait_until
from timers.client import Repeat, TimersClient
from timers.core.timer import Origin
from timers.kafka.progress_log import commit_change
from timers.wire import future

pytestmark = pytest.mark.broker

PARTITIONS = "2"


class Sides:
    """Two apps, their commands, and one target of both."""

    def __init__(
        self, address: str, directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys
        self.file = directory / "pending"
        self.former, self.new = (
            System(address, directory / side, TIMERS_PARTITIONS=PARTITIONS, TIMERS_SNAPSHOT_RECORDS="2000")
            for side in ("former", "new")
        )
        for system in (self.former, self.new):
            id_topic = f"{system.request_topic}-by-id"
            system.environment |= {"TIMERS_ID_TOPIC": id_topic, "TIMERS_VERDICT_TOPIC": f"{system.app_id}-verdict"}
            system.settings = system.settings.load(system.environment)
        self.target = self.former.target(partitions=2)

    def run(self, system: System, *arguments: str) -> Ran:
        system.use(self._monkeypatch)
        return command(self._capsys, *arguments)

    def set_by_id(self, system: System, ids: dict[str, int]) -> None:
        system.use(self._monkeypatch)
        with TimersClient(system.address, timeout_s=30) as client:
            for id, due_s in ids.items():
                client.schedule(topic=self.target, key=id, value=id.encode(), at=due_s, id=id)

    def cancel(self, system: System, id: str) -> str:
        system.use(self._monkeypatch)
        with TimersClient(system.address, timeout_s=30) as client:
            return client.cancel(id).verdict

    def export(self, *options: str) -> list[dict[str, Any]]:
        """Export from the former app. Returns the lines of the timers."""
        ran = self.run(self.former, "export", str(self.file), *options)
        assert ran.code == 0, ran.err
        return [json.loads(line) for line in self.file.read_text().splitlines()[1:-1]]

    def take_all(self, count: int, deadline_s: float) -> Counter[bytes]:
        """How often each value arrived, when ``count`` callbacks and none after them have."""
        reader = Reader(self.former.address, self.target)
        records = reader.take(count, max(30.0, deadline_s))
        for system in (self.former, self.new):
            if system.workers:
                system.wait_past(int(time.time()))
        records += reader.rest()
        reader.close()
        return Counter(record.value or b"" for record in records)

    def close(self) -> None:
        self.former.close()
        self.new.close()


@pytest.fixture
def sides(
    broker_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    sides = Sides(broker_address, tmp_path, monkeypatch, capsys)
    yield sides
    sides.close()


def test_each_timer_fires_once_on_one_side(sides: Sides) -> None:
    worker = sides.former.worker().start().ready()
    count, seconds = 3_000, 15 + int(4 * worker.ready_s)
    start_s = due_in(4)
    requests = timers(sides.target, count, start_s, seconds)
    for index, request in enumerate(requests):
        request.value = b"%d" % index
    sides.former.send(*requests)
    sides.set_by_id(sides.former, {f"id-{each}": start_s + seconds for each in range(20)})
    assert sides.cancel(sides.former, "id-19") == "cancelled"
    wait_until(lambda: sides.former.end(sides.target) > 0, "the first have fired")
    moved = sides.export("--move")
    assert 0 < len(moved) < count + 20, "some have fired"
    late = sides.former.send(*timers(sides.target, 1, due_in(2), 1, b"after the move"))
    assert sides.run(sides.new, "import-pending", str(sides.file)).code == 1, "its workers have never run"
    sides.new.worker().start().ready()
    # What was set in the new app since its producers use it is newer, also if it was cancelled meanwhile.
    sides.set_by_id(sides.new, {"id-1": start_s + seconds, "id-3": start_s + seconds})
    assert sides.cancel(sides.new, "id-3") == "cancelled"
    assert sides.cancel(sides.new, "id-2") == "unknown", "its sender knows that it must be sent again"
    shown = sides.run(sides.new, "import-pending", str(sides.file))
    assert shown.code == 0
    assert f"{len(moved):,} timers of app '{sides.former.app_id}'" in shown.out
    assert "none of them is set" in shown.out, "without --yes it only says what it would do"
    said = sides.run(sides.new, "import-pending", str(sides.file), "--yes").err
    assert f"{len(moved) - 2:,} timers set" in said
    assert "2 timers not set: this app has or had one of the same id" in said
    again = sides.run(sides.new, "import-pending", str(sides.file), "--yes")
    assert f"{len(moved):,} of them are set in this app already" in again.out
    values = sides.take_all(count + 18 + len(late), start_s + seconds + 30 - time.time())
    assert set(values.values()) == {1}, values.most_common(3)
    assert b"id-3" not in values
    assert b"id-19" not in values
    assert len(values) == count + 18 + len(late)


def test_a_move_that_was_interrupted_is_continued(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = sides.former.worker().start().ready()
    requests = timers(sides.target, 400, due_in(8 + int(4 * worker.ready_s)), 3)
    for index, request in enumerate(requests):
        request.value, request.partition = b"%d" % index, index % 2
    sides.former.send(*requests)
    wait_until(lambda: pending_lines(sides) == 400, "all are accepted")
    sides.file.unlink()
    committed: list[Any] = []

    def dies_after_the_first(*arguments: Any) -> None:
        if committed:
            raise KeyboardInterrupt
        commit_change(*arguments)
        committed.append(arguments[2])

    monkeypatch.setattr("timers.offline.pending.commit_change", dies_after_the_first)
    assert sides.run(sides.former, "export", str(sides.file), "--move").code == 130
    assert not sides.file.exists()
    assert len(committed) == 1
    monkeypatch.setattr("timers.offline.pending.commit_change", commit_change)
    worker.stop()  # the rest of its timers must not fire before
    lines = sides.export("--move")
    assert sorted(int(line["value"]) for line in lines) == list(range(400))
    assert not sides.file.with_name("pending.part").exists()
    worker.start().ready()
    assert "0 timers moved" in sides.run(sides.former, "export", f"{sides.file}-2", "--move").err
    sides.new.worker().start().ready()
    sides.run(sides.new, "import-pending", str(sides.file), "--yes")
    values = sides.take_all(400, 60)
    assert len(values) == 400
    assert set(values.values()) == {1}


def pending_lines(sides: Sides) -> int:
    sides.file.unlink(missing_ok=True)
    return len(sides.export())


def test_a_copy_says_what_is_pending_and_changes_nothing(sides: Sides) -> None:
    sides.former.worker().start().ready()
    due_s = due_in(600)
    source = sides.former.publisher().send_raw(b"%d" % due_s, future.encode(sides.target, "k", b"\xff"), [], 1)
    sides.set_by_id(sides.former, {"id-1": due_s})
    retry = sides.former.settings.retry_topic
    value, headers = future.encode_retry(
        sides.target, "r", b"again", [], Origin("id-7", due_s - 900, 2, f"{sides.former.settings.id_topic}/0/5")
    )
    Publisher(sides.former.address, retry).send_raw(b"%d" % due_s, value, headers, 0)
    wait_until(lambda: pending_lines(sides) == 3, "all are accepted")
    native, by_id, failed = (json.loads(line) for line in sides.file.read_text().splitlines()[1:-1])
    assert (native["source"], native["value"], native["at"]) == (source, {"base64": "/w=="}, due_s)
    assert (by_id["id"], by_id["value"]) == ("id-1", "id-1")
    assert (failed["failed"], failed["at"], failed["value"]) == (2, due_s - 900, "again")
    assert "id" not in failed
    assert sides.run(sides.former, "export", str(sides.file)).code == 1, "the file exists"
    own = sides.run(sides.former, "import-pending", str(sides.file), "--yes")
    assert own.code == 1
    assert "each would fire twice" in own.err
    assert sides.cancel(sides.former, "id-1") == "cancelled"


def test_the_way_back_of_timers_with_an_id_is_refused_and_says_what_is_not_set(sides: Sides) -> None:
    for system in (sides.former, sides.new):
        system.worker().start().ready()
    due_s = due_in(600)
    sides.set_by_id(sides.former, {"id-1": due_s, "id-2": due_s})
    assert len(sides.export("--move")) == 2
    assert "2 timers set" in sides.run(sides.new, "import-pending", str(sides.file), "--yes").err
    sides.set_by_id(sides.new, {"id-3": due_s})
    back = str(sides.file.with_name("back"))
    assert sides.run(sides.new, "export", back, "--move").code == 0
    refused = sides.run(sides.former, "import-pending", back, "--yes")
    assert refused.code == 1
    assert "still knows the ids" in refused.err
    said = sides.run(sides.former, "import-pending", back, "--yes", "--skip-known").err
    assert "1 timer set" in said
    assert "2 timers not set" in said


def test_a_repeating_timer_sends_in_the_new_app_what_the_former_one_has_not_sent(sides: Sides) -> None:
    worker = sides.former.worker().start().ready()
    sides.former.use(sides._monkeypatch)
    rule = Repeat.every(5, catch_up="all")
    with TimersClient(sides.former.address, timeout_s=30) as client:
        client.schedule(topic=sides.target, key="k", value=b"again", id="again", repeat=rule)
    reader = Reader(sides.former.address, sides.target)
    records = reader.take(1, 30.0)
    worker.stop()
    sides.export("--move")
    time.sleep(12)  # more than one comes due while no app knows it
    sides.new.worker().start().ready()
    assert "1 timer set" in sides.run(sides.new, "import-pending", str(sides.file), "--yes").err
    records += reader.take(4, 60.0)
    reader.close()
    seconds = [int(dict(record.headers)["timer-nominal"] or 0) for record in records]
    assert seconds == [*range(seconds[0], seconds[-1] + 1, 5)], "none is lost, and none comes twice"
