"""Requests with a condition on a broker: one worker that is killed, clients, the command line and a plain producer."""

import asyncio
import json
import math
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.harness.records import Publisher, Reader
from tests.harness.system import PARTITIONS, System
from tests.harness.waiting import due_in
from tests.harness.worker import Worker
from timers.cli.main import main
from timers.client import AsyncTimersClient, TimerId, TimersClient
from timers.core.progress import LOG_CUT
from timers.kafka import topics
from timers.kafka.connection import ErrorReports
from timers.kafka.progress_log import commit_change
from timers.wire import future, verdict
from timers.wire.formats import future_by_id
from timers.wire.key_partition import partition_of

pytestmark = pytest.mark.broker

CALLERS = 16


def test_a_request_that_is_repeated_becomes_one_timer_over_kills_and_an_empty_disk(
    id_system: System, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = id_system.worker().start().ready()
    target = id_system.target()
    reader = id_system.reader(target)
    _repeat_over_kills(worker, target, reader)
    _set_and_change_at_once(target)
    _use_the_command_line(target, capfd)
    assert reader.rest() == []


def _repeat_over_kills(worker: Worker, target: str, reader: Reader) -> None:
    far, soon = due_in(10_000), due_in(5 + math.ceil(2 * worker.ready_s))
    with TimersClient() as client:

        def ask(number: int) -> TimerId:
            return client.schedule(target, f"{number}", "v", at=far, id="order-1", if_absent=True)

        with ThreadPoolExecutor(CALLERS) as pool:
            told = list(pool.map(ask, range(CALLERS)))
        assert Counter(each.verdict for each in told) == {"set": 1, "exists": CALLERS - 1}
        (version,) = {each.version for each in told}
        assert version is not None

        moved = client.update("order-1", target, "moved", "v", at=soon, if_source=version)
        assert (moved.verdict, moved.due_s) == ("replaced", far)
        assert client.update("order-1", target, "again", "v", at=far, if_source=version) == moved._replace(
            verdict="changed", due_s=soon
        )
        assert client.cancel("order-1", if_source=version).verdict == "changed"
        dropped = client.schedule(target, "k", "v", at=soon, id="order-2", if_absent=True)
        assert client.cancel("order-2", if_source=dropped.version).verdict == "cancelled"

        worker.kill()
        shutil.rmtree(worker.data_dir)
        worker.start().ready()
        again = ask(0)
        assert (again.verdict, again.due_s, again.version) == ("exists", soon, moved.version)
        assert client.schedule(target, "k", "v", at=far, id="order-2", if_absent=True).verdict == "exists"

        (fired,) = reader.take(1)
        assert (fired.timer_id, fired.key) == ("order-1", b"moved")
        worker.kill()
        shutil.rmtree(worker.data_dir)
        worker.start().ready()
        again = ask(0)
        assert (again.verdict, again.due_s, again.version) == ("exists", soon, moved.version), "it has fired"
        assert (
            client.update("order-1", target, "late", "v", at=due_in(5), if_source=moved.version).verdict == "too-late"
        )


def _set_and_change_at_once(target: str) -> None:
    far = due_in(10_000)

    async def together() -> Counter[str | None]:
        async with AsyncTimersClient() as client:
            calls = [client.schedule(target, "k", "v", at=far, id="order-3", if_absent=True) for _ in range(CALLERS)]
            told = await asyncio.gather(*calls)
            changes = [
                *(client.cancel("order-3", if_source=told[0].version) for _ in range(2)),
                *(client.update("order-3", target, "k", "v", at=far, if_source=told[0].version) for _ in range(2)),
            ]
            changed = await asyncio.gather(*changes)
            return Counter([*(each.verdict for each in told), *(each.verdict for each in changed)])

    counts = asyncio.run(together())
    assert (counts["set"], counts["exists"], counts["changed"]) == (1, CALLERS - 1, 3)
    assert counts["cancelled"] + counts["replaced"] == 1


def _use_the_command_line(target: str, capfd: pytest.CaptureFixture[str]) -> None:
    asked = ["--topic", target, "--value", "v", "--in", "1d", "-o", "json"]
    assert main(["schedule", "--id", "cli", "--if-absent", *asked]) == 0
    first = json.loads(capfd.readouterr().out)
    assert first["verdict"] == "set"
    assert main(["schedule", "--id", "cli", "--if-absent", *asked]) == 5
    refused = json.loads(capfd.readouterr().out)
    assert refused == {"id": "cli", "verdict": "exists", "due": first["due"], "version": first["version"]}
    assert main(["schedule", "--id", "cli", "--if-source", first["version"], *asked]) == 0
    second = json.loads(capfd.readouterr().out)
    assert main(["cancel", "cli", "--if-source", first["version"]]) == 5
    said = f"cli: nothing was changed: another version is the latest (the latest version: {second['version']})"
    assert said in capfd.readouterr().out
    assert main(["cancel", "cli", "--if-source", second["version"]]) == 0
    assert main(["schedule", "--if-absent", *asked]) == 2


def test_after_a_cut_of_the_log_calls_get_their_verdicts_and_name_versions_as_the_worker_does(
    id_system: System, capfd: pytest.CaptureFixture[str]
) -> None:
    """The worker names records behind the cut with its number, which their producer does not learn."""
    worker, target, far = id_system.worker().start().ready(), id_system.target(), due_in(10_000)
    cluster = topics.existing(id_system.settings, ErrorReports(id_system.settings))
    with TimersClient() as client:
        before = client.schedule(target, "k", "v", at=far, id="order-1", if_absent=True)
        worker.stop()
        for partition in range(PARTITIONS):
            place = id_system.settings.id_topic, partition
            commit_change(id_system.settings, cluster, place, lambda progress: progress.with_setting(LOG_CUT, 1))
        worker.start().ready()
        assert client.update("order-1", target, "k", "v", at=far, if_source=f"{before.version}~1").verdict == "changed"
        moved = client.update("order-1", target, "k", "v", at=far, if_source=before.version)
        again = client.update("order-1", target, "k", "v", at=far)
        new = client.update("order-2", target, "k", "v", at=far)
        assert [each.verdict for each in (moved, again, new)] == ["replaced", "replaced", "unknown"]
        assert all(str(each.version).endswith("~1") for each in (moved, again, new))
        assert client.cancel("order-1", if_source=again.version).verdict == "cancelled"
        assert main(["cancel", "order-2", "--if-source", str(new.version)]) == 0
        assert "order-2: cancelled" in capfd.readouterr().out
    _use_the_command_line(target, capfd)


def test_a_plain_producer_gets_the_same_verdicts(id_system: System) -> None:
    id_system.worker().start().ready()
    target, topic = id_system.target(), id_system.settings.id_topic
    verdicts = id_system.reader(id_system.settings.verdict_topic, append_time=False)
    publisher = Publisher(id_system.address, topic)
    headers = [*future_by_id.encode_headers(due_in(1000)), ("timer-if", b"absent")]
    for expected in ("set", "exists"):
        publisher.send_raw(b"order-1", future.encode(target, "k", b"v"), headers, partition_of(b"order-1", PARTITIONS))
        (told,) = verdicts.take(1)
        assert verdict.decode(told.value or b"").verdict == expected
