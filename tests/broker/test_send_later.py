"""kafka-scheduler's users move here: ``sendLater(byte[] key, byte[] value, String topic, Instant when)``, and retries.

Sentences in «» are its README's.
"""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, Message

from tests.harness.java_producer import future_line, produce_lines
from tests.harness.letters import await_letters
from tests.harness.records import Request
from tests.harness.system import MAX_LAG_MS, System
from tests.harness.waiting import DEADLINE_S, due_in
from timers.cli.main import main
from timers.client import AsyncTimersClient, Backoff, TimerRequest, TimersClient
from timers.kafka.request_formats import NATIVE
from timers.wire.formats import RequestRecord
from timers.wire.headers import Header
from timers.wire.key_partition import partitions_of

pytestmark = pytest.mark.broker


def test_send_later_works_from_seconds_to_years_ahead(here: System) -> None:
    """«schedule a retry in 5 seconds», «push notification today at 5 PM», «start business process in 30 days from now»,
    «delete PII in 2 years»: each waits for its second, and «only when a certain deadline is reached, message should be
    sent to destination topic»."""
    target = here.target()
    now = datetime.now(UTC)
    five_pm = now.replace(hour=17, minute=0, second=0, microsecond=0) + timedelta(days=1)
    later: dict[str, tuple[datetime | timedelta | float, int | None]] = {
        "business": (timedelta(days=30), None),
        "pii": (now + timedelta(days=730), int((now + timedelta(days=730)).timestamp()) + 1),
        "push": (five_pm, int(five_pm.timestamp())),
        "epoch": (1893456000, 1893456000),
    }
    soon_s = due_in(2)
    with TimersClient() as client:
        ids = {name: client.send_later(name, b"later", target, when) for name, (when, _) in later.items()}
        client.send_later(b"\xff\x00", b"\x00value", target, soon_s, headers={"a": b"1"})
        client.send_later(None, "no key", target, datetime.fromtimestamp(soon_s, UTC))
        client.send_later("at once", b"", target, 10**9)

    async def asynchronously() -> None:
        async with AsyncTimersClient() as client:
            await client.send_later(b"async", b"v", target, timedelta(milliseconds=1))

    asyncio.run(asynchronously())
    reader = here.reader(target)
    fired = {record.key: record for record in reader.take(4)}
    assert fired.keys() == {b"\xff\x00", None, b"at once", b"async"}
    assert (fired[b"\xff\x00"].value, fired[b"\xff\x00"].headers[0]) == (b"\x00value", ("a", b"1"))
    assert fired[None].value == b"no key"
    for key in (b"\xff\x00", None):
        assert fired[key].due_s == soon_s
        assert 0 <= fired[key].lag_ms <= MAX_LAG_MS
    requests = {f"{each.topic}/{each.partition}/{each.offset}": each for each in here.reader(here.request_topic).rest()}
    for name, timer_id in ids.items():
        asked = requests[timer_id]
        read = NATIVE.read(RequestRecord(asked.offset, asked.key, asked.value, asked.headers, asked.append_ms))
        ((due_s, (row,)),) = read.rows.items()
        assert row[1:4] == (target, name, b"later")
        wanted = later[name][1]
        assert due_s == wanted if wanted else 0 <= due_s - 30 * 86_400 - asked.append_ms // 1000 <= 2
    here.wait_past(soon_s + 1)
    assert reader.rest() == []


def test_callbacks_of_one_key_keep_their_order_if_the_client_is_asked_for_it(here: System) -> None:
    """60 callbacks of one key in one second had three inversions, because the requests were spread over partitions."""
    target, due_s = here.target(partitions=3), due_in(4)
    with TimersClient(keep_order=True) as client:
        first = [client.schedule(target, "k", b"%d" % number, at=due_s) for number in range(10)]
        rest = (TimerRequest(target, b"k", b"%d" % number, at=due_s) for number in range(10, 60))
        ids = [*first, *client.schedule_many(rest), client.schedule(target, "k", b"earlier", at=due_s - 1)]
    assert len({id.rpartition("/")[0] for id in ids}) == 1
    fired = here.reader(target).take(61)
    assert [record.value for record in fired] == [b"earlier", *(b"%d" % number for number in range(60))]


def test_a_java_producer_sends_later(here: System) -> None:
    """As the page for users of kafka-scheduler shows: the key of the callback is in a header and may be any bytes."""
    target = here.target(partitions=7)
    due_s = due_in(2)
    line = b"timer-key:java-key,a:1\t%d\t" % due_s + future_line(Request(target, due_s, "", b"from Java"))
    options = ("parse.headers=true", "headers.delimiter=\t", "headers.separator=,", "headers.key.separator=:")
    produce_lines(here.address, here.request_topic, [line], *options, "parse.key=true", "key.separator=\t")
    (fired,) = here.reader(target).take(1)
    assert (fired.key, fired.value, fired.due_s) == (b"java-key", b"from Java", due_s)
    assert fired.partition == partitions_of([b"java-key"], 7)[0]
    assert fired.headers[:-3] == [("a", b"1")]
    assert fired.lag_ms >= 0  # how late it is depends on the start of the JVM


def headers_of(message: Message) -> list[Header]:
    """The headers, as a consumer receives them. The annotation of confluent-kafka allows all that a producer takes."""
    return cast("list[Header]", message.headers() or [])


def test_a_failing_message_is_retried_and_given_up_at_last(here: System, capfd: pytest.CaptureFixture[str]) -> None:
    target = here.target()
    publisher = here.publisher()
    publisher.producer.produce(target, b"order", b"\xff", headers=[("trace", b"1"), ("null", None)])
    publisher.flush()
    consumer = Consumer(
        {"bootstrap.servers": here.address, "group.id": f"of-{target}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([target])

    def receive() -> Message:
        message = consumer.poll(DEADLINE_S)
        assert message is not None and message.error() is None
        assert (message.key(), message.value()) == (b"\xff", b"order")
        return message

    def attempt(message: Message) -> bytes | None:
        return dict(headers_of(message)).get("retry-attempt")

    backoff = Backoff(first_s=0.2, factor=2, retries=2, jitter=0.5)
    with TimersClient() as client:
        first = receive()
        assert attempt(first) is None
        assert client.retry_later(first, backoff=backoff) is not None
        second = receive()
        assert attempt(second) == b"1"
        assert client.retry_later(second, backoff=backoff) is not None
        third = receive()
        assert attempt(third) == b"2"
        assert [name for name, _ in headers_of(third)].count("retry-attempt") == 1
        assert headers_of(third)[:2] == [("trace", b"1"), ("null", None)]
        source = (dict(headers_of(third))["timer-id"] or b"").decode()
        assert client.retry_later(third, backoff=backoff) is None
    letter = await_letters(here, {source})[source]
    assert letter.text("timer-error") == "retries-exhausted"
    assert main(["dead-letters", "list", "--code", "retries-exhausted", "--topic", target, "-o", "json"]) == 0
    assert json.loads(capfd.readouterr().out)["topic"] == target
    assert main(["dead-letters", "retry", "--topic", target, "--yes"]) == 0
    anew = receive()
    assert attempt(anew) is None, "its tries begin anew"
    assert headers_of(anew)[:2] == [("trace", b"1"), ("null", None)]
    consumer.close()


async def test_retry_later_accepts_messages_of_aiokafka(here: System) -> None:
    target = here.target()
    async with (
        AsyncTimersClient() as client,
        AIOKafkaConsumer(
            target, bootstrap_servers=here.address, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer,
    ):
        await client.schedule(target, "k", b"v", delay=0, headers={"a": b"1"})
        first = await asyncio.wait_for(consumer.getone(), DEADLINE_S)
        await client.retry_later(first, backoff=Backoff(first_s=0))
        again = await asyncio.wait_for(consumer.getone(), DEADLINE_S)
        assert (again.key, again.value) == (b"k", b"v")
        assert again.headers[:2] == (("a", b"1"), ("retry-attempt", b"1"))
        mine = here.create_topic(f"dlq-of-{target}")
        assert await client.retry_later(again, 3, backoff=Backoff(retries=2), dead_letter_topic=mine) is None
    (letter,) = here.reader(mine).take(1)
    assert letter.text("timer-error") == "retries-exhausted"
