"""A delay service's users move here: its messages, sentence by sentence, as its producers write them.

The service was a consumer of one topic, a Redis sorted set of message ids scored by time, and a cron that asked the set
every second for what was due.
"""

import json
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import ConfigResource, ResourceType

from tests.harness.java_producer import produce_lines
from tests.harness.letters import await_letters
from tests.harness.records import Headers, Publisher, Record
from tests.harness.scrape import scrape
from tests.harness.system import MAX_LAG_MS, PARTITIONS, System
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from timers.cli.main import main
from timers.client import TimersClient
from timers.kafka import topic_admin
from timers.wire import future, verdict
from timers.wire.formats import future_by_id

pytestmark = pytest.mark.broker


class Service:
    """A system whose request format for countdowns is open; ``topic`` stands for the service's own."""

    def __init__(self, address: str, directory: Path, **theirs: str) -> None:
        run = uuid.uuid4().hex[:8]
        self.topic, self.id_topic, verdicts = f"delay-{run}", f"by-id-{run}", f"verdict-{run}"
        names = {
            "TIMERS_COUNTDOWN_TOPIC": self.topic,
            "TIMERS_ID_TOPIC": self.id_topic,
            "TIMERS_VERDICT_TOPIC": verdicts,
        }
        self.system = System(address, directory, **names)
        if theirs:
            self.system.create_topic(self.topic, 3, **theirs)
        self.system.create_own_topics()
        self.target = self.system.target(partitions=4)
        self.fired = self.system.reader(self.target)
        self.verdicts = self.system.reader(verdicts, append_time=False)
        self.publisher = Publisher(address, self.topic)

    def send(self, value: str | bytes | None, key: bytes | None = None, headers: Headers | None = None) -> None:
        raw = value.encode() if isinstance(value, str) else value
        given = [("CALLER_SERVICE", b"S")] if headers is None else headers
        self.publisher.producer.produce(self.topic, raw, key, headers=[*given])
        self.publisher.producer.poll(0)

    def ask(self, message: str, countdown: str, key: bytes | None = None, **more: object) -> None:
        """Send a message; ``message`` and ``countdown`` are JSON."""
        rest = "".join(f', "{name}": {json.dumps(value)}' for name, value in more.items())
        self.send(f'{{"topic": "{self.target}", "message": {message}, "countdown": {countdown}{rest}}}', key)

    def sent(self) -> dict[str, Record]:
        """The records of its topic by source."""
        reader = self.system.reader(self.topic, append_time=False)
        return {f"{each.topic}/{each.partition}/{each.offset}": each for each in reader.rest()}


@pytest.fixture(scope="module")
def service(broker_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(broker_address, tmp_path_factory.mktemp("countdowns"))
    service.system.worker().start().ready()
    yield service
    service.system.close()


def test_the_message_of_the_service_comes_back_after_its_countdown(service: Service) -> None:
    """«The message body includes the topic T where the message with ultimately go. The message contains the body that
    needs to be sent on the topic T after countdown seconds.» By librdkafka's producer, and by Java's."""
    body = f'{{\n    "topic": "{service.target}",\n    "message": "<message body>",\n    "countdown": 2\n}}'
    service.send(body)
    service.ask('{"b": 1.10,  "a": [12345678901234567890123]}', "0.25", b"key-1")
    service.ask('"é"', "1e0", b"\xff\x00")
    service.send(f'{{"topic": "{service.target}", "message": "", "countdown": 0}}', headers=[])
    service.publisher.flush()
    line = json.dumps({"topic": service.target, "message": "from Java", "countdown": 1}).encode()
    produce_lines(service.system.address, service.topic, [b"CALLER_SERVICE:S\t" + line], "parse.headers=true")
    fired = service.fired.take(5)
    by_value = {record.value: record for record in fired}
    assert set(by_value) == {
        b"<message body>",
        b'{"b": 1.10,  "a": [12345678901234567890123]}',
        "é".encode(),
        b"",
        b"from Java",
    }
    sent = service.sent()
    for record in fired:
        asked = sent[record.timer_id]
        assert record.key == asked.key, "as it was, and none where there was none"
        assert record.headers[:-3] == asked.headers
        assert [name for name, _ in record.headers[-3:]] == ["timer-id", "timer-due", "timer-fired"]
        countdown_ms = round(1000 * json.loads(asked.value or b"")["countdown"])
        assert record.due_s == -(-(asked.append_ms + countdown_ms) // 1000), "append time and countdown, rounded up"
        assert 0 <= record.lag_ms <= MAX_LAG_MS


def test_messages_without_a_key_are_spread_over_the_partitions(service: Service) -> None:
    """As the producer of the service spread them; otherwise one partition of T would get all of them."""
    for number in range(200):
        service.ask(str(number), "1")
    service.publisher.flush()
    fired = service.fired.take(200)
    assert {record.key for record in fired} == {None}
    assert min(Counter(record.partition for record in fired).values()) > 10
    assert len({record.partition for record in fired}) == 4


def test_an_id_makes_it_cancellable(service: Service) -> None:
    """With the producers of librdkafka and of Java. The service itself had no cancellation."""
    by_java = [
        {"id": "java-1", "topic": service.target, "message": "first", "countdown": 100},
        {"id": "java-1", "topic": service.target, "message": "second", "countdown": 2},
        {"id": "java-2", "topic": service.target, "message": "never", "countdown": 100},
        {"id": "java-2", "cancel": True},
    ]
    lines = [f"CALLER_SERVICE:S\t{each['id']}\t{json.dumps(each)}".encode() for each in by_java]
    produce_lines(service.system.address, service.topic, lines, "parse.headers=true", "parse.key=true")
    service.ask('"first"', "100", b"order-1", id="order-1")
    service.ask('"second"', "2", b"order-1", id="order-1")
    service.ask('"never"', "2", b"order-2", id="order-2")
    service.send('{"id": "order-2", "cancel": true}', b"order-2")
    service.send('{"id": "order-3", "cancel": true}', b"order-3")
    service.publisher.flush()
    told = {each.id: each.verdict for each in (verdict.decode(each.value or b"") for each in service.verdicts.take(5))}
    assert told == {
        "java-1": "replaced",
        "java-2": "cancelled",
        "order-1": "replaced",
        "order-2": "cancelled",
        "order-3": "unknown",
    }
    fired = {record.timer_id: (record.key, record.value) for record in service.fired.take(2)}
    assert fired == {"java-1": (b"java-1", b"second"), "order-1": (b"order-1", b"second")}


def test_unreadable_countdowns_become_dead_letters_and_are_counted_by_caller(service: Service) -> None:
    good = f'{{"topic": "{service.target}", "message": "m", "countdown": 1, "id": "x"}}'
    wrong = {
        "value-not-json": b"\xff",
        "field-missing": b'{"topic": "T", "message": "m"}',
        "countdown-invalid": b'{"topic": "T", "message": "m", "countdown": -1}',
        "topic-invalid": b'{"topic": "a b", "message": "m", "countdown": 1}',
        "id-not-key": good.encode(),
        "value-missing": None,
    }
    for value in wrong.values():
        service.send(value, b"k", [("a", b"1"), ("CALLER_SERVICE", b"careless")])
    unknown_headers: Headers = [("a", None), ("CALLER_SERVICE", b"S")]
    service.send('{"topic": "nobody-made-this", "message": "m", "countdown": 0}', b"\xff", unknown_headers)
    service.publisher.flush()
    letters = {letter.text("timer-error"): letter for letter in service.system.dead_letters().take(len(wrong) + 1)}
    assert letters.keys() == wrong.keys() | {"topic-unknown"}
    for code, value in wrong.items():
        letter = letters[code]
        assert (letter.key, letter.value, letter.headers[:1]) == (b"k", value, [("a", b"1")])
    unknown = letters["topic-unknown"]
    assert (unknown.key, json.loads(unknown.value or b"")["topic"]) == (b"\xff", "nobody-made-this")
    due_s = int(unknown.text("timer-again"))
    assert -(-service.sent()[unknown.text("timer-source")].append_ms // 1000) == due_s

    (worker,) = service.system.workers

    def counted() -> bool:
        callers = scrape(worker.port).samples
        name = "timers_caller_requests_total"
        rejected = callers.get((name, frozenset({("caller", "careless"), ("outcome", "rejected")})))
        accepted = callers.get((name, frozenset({("caller", "S"), ("outcome", "accepted")})), 0)
        return rejected == len(wrong) and accepted >= 1

    wait_until(counted, "callers are counted")


def test_retried_dead_letters_keep_their_due_second_and_do_not_change_their_id(
    service: Service, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = f"nowhere-{uuid.uuid4().hex[:8]}"
    by_id = Publisher(service.system.address, service.id_topic)
    due_s = due_in(1)
    service.send(f'{{"topic": "{nowhere}", "message": {{"a": 1.10}}, "countdown": 0.5}}', b"\xff", [("a", None)])
    service.send(f'{{"topic": "{nowhere}", "message": "m", "countdown": 0.5, "id": "again-1"}}', b"again-1")
    by_id_headers: Headers = [("b", b"2"), *future_by_id.encode_headers(due_s)]
    sources = [by_id.send_raw(b"again-2", future.encode(nowhere, "k", b"v"), by_id_headers, 1)]
    service.publisher.flush()
    sent = service.sent()
    sources += [source for source, each in sent.items() if nowhere.encode() in (each.value or b"")]
    letters = await_letters(service.system, sources)
    service.ask('"later"', "1000", b"again-1", id="again-1")
    service.publisher.flush()
    later = future_by_id.encode_headers(due_in(1000))
    by_id.send_raw(b"again-2", future.encode(nowhere, "k", b"later"), later, 1)
    service.system.create_topic(nowhere)
    service.system.use(monkeypatch)
    assert main(["dead-letters", "retry", "--topic", nowhere, "--yes"]) == 0
    assert "3 requests published again" in capfd.readouterr().err
    fired = {record.value: record for record in service.system.reader(nowhere).take(3)}
    assert {value: (record.key, record.headers[:-3]) for value, record in fired.items()} == {
        b'{"a": 1.10}': (b"\xff", [("a", None)]),
        b"m": (b"again-1", [("CALLER_SERVICE", b"S")]),
        b"v": (b"k", [("b", b"2")]),
    }
    dues = {int(letters[source].text("timer-again")) for source in sources}
    assert {record.due_s for record in fired.values()} == dues
    assert fired[b"v"].due_s == due_s
    told = [verdict.decode(each.value or b"") for each in service.verdicts.rest()]
    service.send('{"id": "again-1", "cancel": true}', b"again-1")
    service.publisher.flush()
    by_id.send_raw(b"again-2", None, [], 1)
    told += [verdict.decode(each.value or b"") for each in service.verdicts.take(2)]
    said = sorted((each.id, each.verdict) for each in told if each.id.startswith("again"))
    assert said == [
        *(("again-1", "already-fired"), ("again-1", "cancelled")),
        *(("again-2", "already-fired"), ("again-2", "cancelled")),
    ]


DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = {
    f"{page.stem}-{number}": block
    for page in (*sorted(DOCS.glob("coming-from-*.md")), DOCS / "timers-with-an-id.md")
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))
}


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_the_pages_about_migration_run(service: Service, block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service.system.use(monkeypatch)
    topic_admin.create_if_missing(service.system.settings, "jobs", partitions=PARTITIONS)  # the queue of the pages
    names: dict[str, Any] = {}
    exec(block, names)
    if "handle" in names:
        message = SimpleNamespace(topic="messages", partition=0, offset=1, key=b"k", value=b"v", headers=[])
        end = service.system.end(service.system.request_topic)
        with TimersClient() as client:
            names["handle"](client, message)
        assert service.system.end(service.system.request_topic) == end + 1
    service.verdicts.rest()


def test_nothing_is_dropped_after_an_outage(service: Service) -> None:
    """«all keys set will be deleted if not triggered after 15 minutes of the expected trigger point»: here none is,
    however long it takes; and what came meanwhile is on time by its own append time."""
    (worker,) = service.system.workers
    worker.kill()
    for number in range(50):
        service.ask(str(number), "0.5")
    service.publisher.flush()
    over_s = due_in(2)
    wait_until(lambda: time.time() > over_s, "their second is over")
    worker.start().ready()
    fired = service.fired.take(50)
    assert sorted(int(record.value or b"") for record in fired) == list(range(50))
    sent = service.sent()
    assert all(record.due_s == -(-(sent[record.timer_id].append_ms + 500) // 1000) for record in fired)


def test_an_existing_countdown_topic_is_not_changed(broker_address: str, tmp_path: Path) -> None:
    """It has another number of partitions, and producers' timestamps: countdowns begin at these."""
    service = Service(broker_address, tmp_path, message_timestamp_type="CreateTime", retention_ms="86400000")
    try:
        resource = ConfigResource(ResourceType.TOPIC, service.topic)

        def config() -> dict[str, str | None]:
            found = service.system.admin.describe_configs([resource])[resource].result(DEADLINE_S)
            return {name: entry.value for name, entry in found.items()}

        before = config()
        assert before["message.timestamp.type"] == "CreateTime"
        worker = service.system.worker().start().ready()
        assert "countdowns and redeliveries begin at the producers' times" in worker.log
        month_ago_ms = int(time.time() * 1000) - 30 * 86_400_000
        value = f'{{"topic": "{service.target}", "message": "a month", "countdown": 120.5}}'
        service.publisher.producer.produce(service.topic, value.encode(), timestamp=month_ago_ms)
        service.ask('"now"', "1")
        service.publisher.flush()
        fired = {record.value: record for record in service.fired.take(2)}
        assert fired[b"a month"].due_s == -(-(month_ago_ms + 120_500) // 1000)
        assert fired[b"now"].lag_ms >= 0
        assert config() == before
        found = service.system.admin.list_topics(service.topic, timeout=DEADLINE_S).topics[service.topic]
        assert len(found.partitions) == 3 != PARTITIONS
    finally:
        service.system.close()
