"""A log of requests that no longer has its first records: what reads it again says so, or uses what was stored."""

import json
import time
from pathlib import Path

import pytest

from tests.harness.command_line import command
from tests.harness.console_process import ConsoleProcess
from tests.harness.records import Publisher
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from timers.wire import future
from timers.wire.formats import future_by_id

pytestmark = pytest.mark.broker


def test_what_reads_requests_again_knows_that_their_log_may_begin_late(
    broker_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    system = System(broker_address, tmp_path, TIMERS_PARTITIONS="1", TIMERS_QUERIES="values")
    ids = f"{system.request_topic}-by-id"
    system.environment |= {"TIMERS_ID_TOPIC": ids, "TIMERS_VERDICT_TOPIC": f"{system.app_id}-verdict"}
    system.settings = system.settings.load(system.environment)
    try:
        worker = system.worker().start().ready()
        system.use(monkeypatch, TIMERS_WEB_PORT=str(worker.port))
        target, nowhere, due_s = system.target(), f"nowhere-{system.app_id}", due_in(900)
        native, by_id = system.publisher(), Publisher(broker_address, ids)
        waiting = native.send_raw(b"%d" % due_s, future.encode(target, "k", b"v"), [("a", b"1")], 0)
        soon_s = due_in(10 + int(4 * worker.ready_s))
        failing = native.send_raw(b"%010d" % soon_s, future.encode(nowhere, "k", b"v"), [], 0)
        headers = [("a", b"1"), *future_by_id.encode_headers(due_s)]
        named = by_id.send_raw(b"one", future.encode(target, "k", b"v"), headers, 0)

        def shown(id: str) -> dict[str, object]:
            ran = command(capsys, "get", id, "-o", "json", "--value")
            return dict(json.loads(ran.out)) if ran.out else {"code": ran.code}

        for id in (waiting, "one", failing):
            wait_until(lambda id=id: shown(id).get("state") == "pending", f"{id} is accepted")  # type: ignore[misc]
        before = shown(waiting)
        system.cluster.delete_records(system.request_topic, {0: -1})
        system.cluster.delete_records(ids, {0: -1})
        assert shown(waiting) == before, "it waits, so it is found"
        assert shown("one")["source"] == named
        assert shown(f"{system.request_topic}/0/99999") == {"code": 4}
        environment = {**system.environment, "TIMERS_CONSOLE_WRITE": "1", "TIMERS_WEB_PORT": str(worker.port)}
        console = ConsoleProcess(tmp_path / "console", environment, forked=True)
        try:
            console.start().wait_for(r"console: http://")
            status, moved = console.ask("PATCH", "/v1/timer?id=one&wait=30", {"at": due_s + 60})
            assert (status, moved["verdict"]) == (200, "replaced"), moved
            again = shown("one")
            assert (again["due"], again["value"], again["headers"]) == (due_s + 60, "dg==", [["a", "1"]])
            _, history = console.ask("GET", f"/v1/timer/history?id={waiting}")
            assert {"topic": system.request_topic, "reason": "partition 0 begins at offset"} in [
                {**each, "reason": each["reason"][:28]} for each in history["unread"]
            ]
        finally:
            console.end()
        left_s = max(0.0, soon_s - time.time())  # much, if the worker started slowly
        (letter,) = system.dead_letters().take(1, left_s + 2 * DEADLINE_S)
        said = dict(letter.headers)
        assert said["timer-source"] == failing.encode()
        assert b"is no longer in the log, so key and value are written anew" in (said["timer-error-message"] or b"")
        assert letter.value == future.encode(nowhere, "k", b"v")
        assert letter.key is not None and letter.key[:1] != b"0", "the zeros before the due second are not stored"
        assert shown(failing) == {"code": 4}
    finally:
        system.close()
