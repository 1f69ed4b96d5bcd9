"""The console as a process of its own, over a worker and a broker: the life of a timer, told with HTTP only."""

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest
from confluent_kafka import Producer

from tests.harness.console_process import ConsoleProcess, worker_and_console
from tests.harness.system import PARTITIONS, System, with_ids
from tests.harness.waiting import due_in, wait_until
from timers import __version__

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def served(broker_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[System, ConsoleProcess]]:
    """A worker with ids, and a console that may write."""
    tmp_path, names = tmp_path_factory.mktemp("served"), with_ids()
    topic = f"{names['TIMERS_ID_TOPIC']}-s"
    system = System(broker_address, tmp_path, **names, TIMERS_SCHEDULE_TOPICS=topic)
    system.create_topic(topic, 1)
    with worker_and_console(system, tmp_path, TIMERS_CONSOLE_SCHEDULER_API="1") as served:
        yield served


def test_a_timer_is_set_seen_moved_cancelled_and_fires(served: tuple[System, ConsoleProcess]) -> None:
    system, console = served
    target, id = system.target(), "a/../b ü"
    path = f"/v1/timer?id={quote(id, safe='')}&wait=30"
    far = {"topic": target, "key": "k", "value": "v", "delay": "1h"}
    wait_until(lambda: console.ask("GET", "/v1/health/ready")[1]["reasons"] == [], "brokers and worker answer")
    assert console.ask("POST", "/v1/timers", {**far, "id": id})[0] == 201
    wait_until(lambda: console.ask("GET", path[:-8])[0] == 200, "the timer is seen")
    before = console.ask("GET", path[:-8])[1]["timers"][0]["due"]
    status, verdict = console.ask("PUT", path, {**far, "delay": "2h"})
    assert (status, verdict["verdict"], verdict["due"]) == (200, "replaced", before)
    _, listed = console.ask("GET", f"/v1/timers?topic={target}&prefix=a%2F")
    assert ([timer["id"] for timer in listed["timers"]], listed["complete"]) == ([id], True)
    assert console.ask("GET", f"/v1/timers?topic={target}&prefix=b")[1]["timers"] == []
    assert console.ask("DELETE", path)[1]["verdict"] == "cancelled"
    assert console.ask("DELETE", path)[0] == 404
    _, history = console.ask("GET", f"/v1/timer/history?id={quote(id, safe='')}")
    happened = ["set", "set", "cancel", "cancel", "replaced", "cancelled", "unknown"]
    assert (history["timer"], sorted(event["what"] for event in history["events"])) == (None, sorted(happened))
    assert console.ask("GET", "/v1/timer/history?id=never-set")[0] == 404
    assert console.ask("PUT", "/v1/timer?id=soon&wait=30", {**far, "delay": "1s"})[1]["verdict"] == "unknown"
    status, plain = console.ask("POST", "/v1/timers", {"topic": target, "value": {"base64": "/w=="}, "at": due_in(1)})
    assert status == 201 and re.fullmatch(rf"{system.request_topic}/\d+/\d+", plain["id"])
    fired = system.reader(target).take(2)
    assert {record.value for record in fired} == {b"v", b"\xff"}
    newest = console.ask("GET", f"/v1/fired?topic={target}")[1]
    assert newest["found"] == 2 and not newest["left_out"] and min(each["lag_ms"] for each in newest["fired"]) >= 0
    assert [each["timer_id"] for each in newest["fired"]] == [record.text("timer-id") for record in reversed(fired)]
    assert newest["fired"][0]["lag_ms"] == fired[1].lag_ms and "value" not in newest["fired"][0]
    assert console.ask("GET", "/v1/fired?topic=no-such-topic")[0] == 404
    for each, verdicts in ((plain["id"], []), ("soon", ["unknown"])):
        history = console.ask("GET", f"/v1/timer/history?id={each}")[1]
        events = [event["what"] for event in history["events"]]
        assert events == ["set", *verdicts, "fired"] and history["unread"] == [], history
    assert console.ask("DELETE", "/v1/timer?id=soon&wait=30")[0] == 409
    log = [json.loads(record.value or b"") for record in system.reader(f"{system.app_id}-console-log").take(4)]
    recorded = [each["operation"] for each in log if id in (each["body"].get("id"), each["parameters"].get("id"))]
    assert recorded == ["setTimer", "putTimer", "cancelTimer", "cancelTimer"]


def test_a_repeated_request_sets_one_timer_and_a_change_of_an_old_version_is_refused(
    served: tuple[System, ConsoleProcess],
) -> None:
    system, console = served
    target = system.target()
    reader = system.reader(target)
    timer = {"topic": target, "key": "k", "value": "v", "delay": "1h"}
    path, key = "/v1/timers?wait=30", {"Idempotency-Key": target}
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda _: console.ask("POST", path, timer, **key), range(3)))
    assert answers == [(201, answers[0][1])] * 3
    assert console.ask("POST", path, {**timer, "value": "w"}, **key)[1]["code"] == "idempotency-key-reused"
    own = f"/v1/timer?id={answers[0][1]['id']}&wait=30"
    (found,) = console.ask("GET", own[:-8])[1]["timers"]
    tag = {"If-Match": f'"{found["source"]}"'}
    assert console.ask("PUT", own, {**timer, "delay": "1s"}, **tag)[1]["verdict"] == "replaced"
    assert console.ask("PUT", own, timer, **tag)[1]["code"] == "changed"
    assert console.ask("DELETE", own, **tag)[1]["code"] == "changed"
    assert len(reader.take(1)) == 1
    assert console.ask("POST", path, timer, **key)[1]["verdict"] == "exists", "it was changed, and has fired"

    one, new = f"/v1/timer?id={target}&wait=30", {"If-None-Match": "*"}
    for _ in range(2):
        status, answer = console.ask("PUT", one, timer, **new)
        assert (status, answer["verdict"]) == (201, "set")
        assert console.ask("PUT", one, timer, **new)[1]["code"] == "exists"
        assert console.ask("DELETE", one, **{"If-Match": f'"{answer["version"]}"'})[0] == 200
    assert reader.rest() == []


@pytest.mark.long
def test_firings_are_streamed_and_a_dead_letter_is_retried(served: tuple[System, ConsoleProcess]) -> None:
    system, console = served
    target, new = system.target(partitions=2), f"new-{system.target()}"
    events = console.stream(f"/v1/events?topic={target}")
    assert next(events)["event"] == "began"
    for number in range(3):
        timer = {"topic": target, "key": f"k{number}", "value": "v", "delay": 0}
        assert console.ask("POST", "/v1/timers", timer)[0] == 201
    fired = [next(events) for _ in range(3)]
    keys = [json.loads(event["data"])["key"] for event in fired]
    assert sorted(keys) == ["k0", "k1", "k2"] and {event["event"] for event in fired} == {"fired"}
    again = console.stream(f"/v1/events?topic={target}", **{"Last-Event-ID": fired[0]["id"]})
    assert next(again)["id"] == fired[0]["id"]
    rest = [json.loads(next(again)["data"])["key"] for _ in range(2)]
    assert sorted(rest) == sorted(keys[1:]), "the stream goes on after the first event, without gap and repetition"
    assert console.ask("GET", "/v1/events?topic=no-such-topic")[0] == 404

    assert console.ask("POST", "/v1/timers", {"topic": new, "value": "late", "delay": 0})[0] == 201
    path = f"/v1/dead-letters?code=topic-unknown&topic={new}"
    wait_until(lambda: console.ask("GET", path)[1]["dead_letters"], "the dead letter is listed")
    (letter,) = console.ask("GET", path)[1]["dead_letters"]
    assert console.ask("GET", f"/v1/dead-letter?name={letter['source']}")[1]["position"] == letter["position"]
    assert [console.ask("POST", "/v1/targets/create", {"topic": new})[0] for _ in range(2)] == [201, 200]
    status, retried = console.ask("POST", "/v1/dead-letters/retry", {"names": [letter["position"]]})
    assert (status, retried["published"]) == (200, 1)
    assert system.reader(new).take(1)[0].value == b"late"
    assert console.ask("GET", path)[1]["dead_letters"][0]["retried_as"] == retried["retried"][0]["retried_as"]
    assert console.ask("POST", "/v1/dead-letters/retry", {"names": [letter["position"]]})[0] == 409

    (worker,) = console.ask("GET", "/v1/workers")[1]["workers"]
    assert worker["ready"] is True and worker["partitions"][system.request_topic] == PARTITIONS
    assert (
        worker["red"] == {} and worker["fired"] >= 3 and worker["version"] == __version__ and worker["disk_free_bytes"]
    )
    lateness = console.ask("GET", "/v1/lateness")[1]
    assert sum(way["timers"] for way in lateness["ways"].values()) >= 3 and lateness["missing"] == []


@pytest.mark.long
def test_a_program_for_kafka_message_scheduler_finds_its_schedule(served: tuple[System, ConsoleProcess]) -> None:
    system, console = served
    (topic,) = system.settings.schedule_topics
    due_s = due_in(5000)
    producer = Producer({"bootstrap.servers": system.address})
    named = {"scheduler-epoch": str(due_s), "scheduler-target-topic": "online-videos", "scheduler-target-key": "vid1"}
    producer.produce(topic, b"video 1", b"vid1/online", headers={key: text.encode() for key, text in named.items()})
    producer.flush()
    path = f"/api/live/scheduler/{system.app_id}/schedules?schedule-id=vid1*&sort-by=epoch%20asc"
    wait_until(lambda: console.ask("GET", path)[1]["found"] == 1, "the schedule is found")
    (found,) = console.ask("GET", path)[1]["schedules"]
    schedule = found["schedule"]
    assert abs(schedule.pop("timestamp") - time.time()) < 3600
    assert schedule == {
        "epoch": due_s,
        "id": "vid1/online",
        "target-key": "vid1",
        "target-topic": "online-videos",
        "topic": topic,
        "value": None,
    }
    one = console.ask("GET", f"/api/scheduler/{system.app_id}/schedule/vid1/online")
    assert one[0] == 200 and one[1][0]["schedule"]["epoch"] == due_s
