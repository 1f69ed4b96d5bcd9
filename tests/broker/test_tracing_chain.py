"""The trace of a request, its callback, its retries, its dead letter and what was sent again: one link each."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.harness.process import clean_environment
from tests.harness.system import System

pytestmark = pytest.mark.broker


@pytest.fixture(params=["plain", "instrumented"])
def run(request: pytest.FixtureRequest, here: System) -> dict[str, Any]:
    """What a program with OpenTelemetry has received, and its spans."""
    target = here.target()
    here.create_topic(f"{target}-queue")
    command = [sys.executable, "-m", "tests.harness.traced_chain", target, request.param, here.address]
    done = subprocess.run(
        command, env=clean_environment(**here.environment), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found | {"target": target, "instrumented": request.param == "instrumented"}


def test_each_receiver_links_to_the_one_before_it(run: dict[str, Any]) -> None:
    handled = run["handled"]
    assert run["received"] == [[run["order"]], *([each] for each in handled[:3])], "one context each, the newest"
    assert run["of_queue"] == [[run["job"]], [handled[4]], [handled[5]]]
    ours = [span for span in run["spans"] if span["attributes"].get("timers.attempt")]
    assert all(span["is_root"] and len(span["links"]) == 1 for span in ours)
    own_attempts = 1 if run["instrumented"] else 4
    links = [span["links"][0] for span in ours]
    assert links == [*[run["order"], *handled[:3]][-own_attempts:], run["job"], *handled[4:6]]
    assert [span["self"] for span in ours] == handled[4 - own_attempts :]
    about = [span["attributes"] for span in ours]
    assert [each["timers.attempt"] for each in about] == [*[1, 2, 3, 1][-own_attempts:], 1, 2, 3]
    ways = [*["timer", "retry", "retry", "timer"][-own_attempts:], "message", "retry", "retry"]
    assert [each["timers.way"] for each in about] == ways
    for each in about[:own_attempts]:
        assert each["messaging.destination.name"] == run["target"]
        assert each["messaging.consumer.group.name"] == f"of-{run['target']}"
        assert each["timers.lag_ms"] == each["timers.fired_ms"] - 1000 * each["timers.due_s"]
        assert each["timers.lag_ms"] >= 0
    if run["instrumented"]:  # its consumer takes the first context that it finds
        processed = [span for span in run["spans"] if span["name"] == f"{run['target']} process"]
        assert [span["links"] for span in processed] == [[run["order"]], *([each] for each in handled[:3])]
