"""A machine that fails with an exception that no code expects fails alone."""

import re
from pathlib import Path

import pytest

from tests.harness.poisoned_worker import UNREADABLE, UNSENDABLE, PoisonedWorker
from tests.harness.records import Request
from tests.harness.scrape import health, scrape
from tests.harness.system import MAX_LAG_MS, PARTITIONS, System
from tests.harness.waiting import DEADLINE_S, due_in, wait_until

pytestmark = pytest.mark.broker


def one_each(target: str, due_s: int, value: bytes = b"") -> list[Request]:
    """A timer for each request partition."""
    return [Request(target, due_s, f"key-{partition}", value, partition=partition) for partition in range(PARTITIONS)]


@pytest.mark.parametrize(
    "value", [UNREADABLE, pytest.param(UNSENDABLE, marks=pytest.mark.long)], ids=["accepting", "firing"]
)
def test_a_machine_that_fails_again_and_again_stops_alone_and_goes_on_when_the_cause_is_gone(
    system: System, tmp_path: Path, value: bytes
) -> None:
    worker = PoisonedWorker(tmp_path / "poisoned", system.environment)
    system.workers.append(worker)
    worker.start().ready()
    wait_until(lambda: health(worker.port, "ready")[0] == 200, "ready")
    target = system.target()
    bad = Request(target, due_in(2), "bad", value, partition=0)
    system.send(bad)
    name = f"{system.request_topic}/0"

    def red() -> dict[str, str]:
        return dict(health(worker.port, "partitions")[1]["red"])

    said = wait_until(lambda: red().get(name), "the partition is red")
    assert "failed with an exception that no code expects (Poisoned(" in said and "poisoned_worker.py:" in said
    before = system.send(*one_each(target, due_in(2)))
    others = {request.source for request in before if request.partition}
    reader = system.reader(target)
    fired = reader.take(len(others))
    assert {record.timer_id for record in fired} == others
    assert max(record.lag_ms for record in fired) < MAX_LAG_MS
    wait_until(lambda: red().keys() == {name}, "it is red again after another attempt")
    assert health(worker.port, "ready")[0] == 200, "a worker that was ready stays ready"
    seen = scrape(worker.port)
    assert seen.total("timers_unforeseen_failures_total") >= 2
    assert len(re.findall(r"^Poisoned: ", worker.log, re.MULTILINE)) == 1, "one traceback"
    worker.poison.unlink()
    waiting = [bad, *(request for request in before if not request.partition)]
    fired += reader.take(len(waiting), 2 * DEADLINE_S)  # the pause may have grown to a minute
    wait_until(lambda: not red(), "all partitions are green")
    after = system.send(*one_each(target, due_in(2)))
    fired += reader.take(len(after))
    requests = {request.source for request in (bad, *before, *after)}
    assert sorted(record.timer_id for record in fired) == sorted(requests)
    assert reader.rest() == []
    worker.stop()
