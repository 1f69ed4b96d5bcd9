"""``timers spark audit`` of clean systems, and of systems that cannot be judged."""

import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.harness.constants import Constants
from tests.harness.planted import Asked, ProductWriter
from tests.harness.records import Headers
from tests.spark.audit_world import AuditedSystem, World, found, world
from timers.spark.audit import report
from timers.wire.key_partition import partitions_of

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

# ---- clean ----------------------------------------------------------------------------------------------------------


def nothing(world: World) -> None:
    """No request at all."""


def all_formats(world: World) -> None:
    world.good()


def receivers_copies(world: World) -> None:
    """Receivers send what they got to other topics, with all headers, and other records come to the callback topic."""
    asked = world.ask()
    world.writer.fire(asked)
    copy = Asked(**{**vars(asked), "target": world.system.target(message_timestamp_type="CreateTime")})
    other = world.writer.ask(copy.target, world.due_s, world.asked_ms)
    world.writer.fire(other)
    world.writer.fire(copy)
    world.writer.write(world.target, b"key", b"another record", [("timer-id", b"x")], world.asked_ms)


def cancelled_and_replaced(world: World) -> None:
    writer = world.writer
    for name, cancels in (("cancelled", True), ("replaced", False)):
        id = f"{name}-{uuid.uuid4().hex}"
        old = writer.ask_by_id(world.target, id, world.due_s, world.asked_ms)
        if cancels:
            writer.write_verdict(writer.cancel(id, world.asked_ms + 1), old, "cancelled")
        else:
            new = writer.ask_by_id(world.target, id, world.due_s + 60, world.asked_ms + 1)
            writer.write_verdict(new.source, old, "replaced")
            writer.fire(new)


def firings_that_name_no_version(world: World) -> None:
    """Workers at the first feature level write only the id."""
    writer = world.writer
    id = f"order-{uuid.uuid4().hex}"
    for at_ms in (world.asked_ms, (world.due_s + 5) * 1000):
        asked = writer.ask_by_id(world.target, id, world.due_s, at_ms)
        headers = [each for each in writer.callback_headers(asked, at_ms) if each[0] != "timer-source"]
        tick_ms = max(world.due_s * 1000, at_ms)
        writer.write(world.target, asked.key, asked.value, [*headers[:-1], ("timer-fired", b"%d" % tick_ms)], tick_ms)
    writer.write_verdict(asked.source, asked, "already-fired")


def dead_letters(world: World) -> None:
    world.writer.write_dead_letter(world.writer.ask("no-such-topic", world.due_s, world.asked_ms))


def pending_and_late(world: World) -> None:
    world.writer.ask(world.target, int(time.time()) + 600, world.asked_ms)
    late = world.writer.ask(world.target, world.due_s - 86_400, world.asked_ms)
    world.writer.fire(late, world.asked_ms + 30)


def chains(world: World) -> None:
    """A timer whose callback is a request: the engine counts in a header, and the second timer fires too."""
    settings = world.system.settings
    inner = world.writer.future(world.target, "key", b"inner")
    outer = world.writer.ask(
        settings.request_topic,
        world.due_s,
        world.asked_ms,
        key=str(world.due_s + 5),
        value=inner,
        headers=[("a", b"b")],
    )
    headers = [("a", b"b"), ("callback-depth", b"1"), *world.writer.callback_headers(outer, world.due_s * 1000 + 20)]
    source = world.writer.write(
        settings.request_topic, str(world.due_s + 5).encode(), inner, headers, world.due_s * 1000 + 20
    )
    kept: Headers = [("a", b"b"), ("callback-depth", b"1")]
    second = Asked(source, source, world.due_s + 5, world.target, b"key", b"inner", kept, (None, b"", [], 0))
    world.writer.fire(second)


def put_off(world: World) -> None:
    """A timer that was on the retry topic for two hours, because its target failed."""
    settings, due_s = world.system.settings, world.due_s
    asked = world.ask()
    until_s = due_s + 7200
    headers: Headers = [("timer-id", asked.source.encode()), ("timer-due", b"%d" % due_s), ("timer-attempt", b"3")]
    world.system.let_producers_set_times(settings.retry_topic)
    value = world.writer.future(world.target, "key", b"value")
    world.writer.write(settings.retry_topic, b"%d" % until_s, value, headers, due_s * 1000)
    world.writer.fire(asked, until_s * 1000 + 20)


def deleted_callbacks_that_are_not_missed(world: World) -> None:
    fired = world.ask()
    world.writer.fire(fired)
    delete_next_door(world)


def delete_next_door(world: World) -> None:
    """Delete a record of the partition to which no callback goes."""
    (mine,) = partitions_of([b"key"], 2)
    key = next(key for key in (b"%d" % number for number in range(100)) if partitions_of([key], 2) != [mine])
    world.writer.write(world.target, key, b"value", [], world.asked_ms)
    world.system.delete_all(world.target, 1 - mine)


def open_transactions_elsewhere(world: World) -> None:
    world.system.hold_open(world.system.target(), 0)
    world.good()


def canaries_of_long_ago(world: World) -> None:
    canaries = world.system.create_topic(world.system.settings.canary_topic, 1, message_timestamp_type="CreateTime")
    world.writer.fire(world.writer.ask(canaries, world.due_s, world.asked_ms))
    world.system.delete_all(canaries, 0)


CLEAN = [
    canaries_of_long_ago,
    nothing,
    all_formats,
    receivers_copies,
    cancelled_and_replaced,
    firings_that_name_no_version,
    dead_letters,
    pending_and_late,
    chains,
    put_off,
    deleted_callbacks_that_are_not_missed,
    open_transactions_elsewhere,
]


@pytest.mark.parametrize("write", CLEAN, ids=lambda case: case.__name__)
def test_a_clean_system_stays_clean(
    spark: SparkSession, audited: AuditedSystem, write: Callable[[World], None]
) -> None:
    seen = world(audited, ProductWriter(audited))
    write(seen)
    findings = found(spark, seen)
    assert findings.verdict == "clean", list(report.lines(findings))
    canaries = [each.records for each in findings.unplaced if each.what == "canaries"]
    assert canaries == ([1] if write is canaries_of_long_ago else [])


# ---- undecided ------------------------------------------------------------------------------------------------------


def place_of_the_callback(world: World) -> tuple[str, int]:
    return world.target, partitions_of([b"key"], 2)[0]


def misspelt_request_topic(world: World) -> dict[str, Any]:
    return {"changes": {"request_topic": "timer-requets"}}


def misspelt_id_topic(world: World) -> dict[str, Any]:
    return {"changes": {"id_topic": "timer-request-by-ids"}}


def misspelt_callback_topic(world: World) -> dict[str, Any]:
    return {"callback_topics": (f"{world.target}s",)}


def callback_topic_of_no_request(world: World) -> dict[str, Any]:
    """It exists, but another one was meant."""
    return {"callback_topics": (world.system.target(),)}


def open_request(world: World) -> dict[str, Any]:
    world.system.hold_open(world.system.request_topic, 1)
    return {}


def open_callback(world: World) -> dict[str, Any]:
    world.ask()
    world.system.hold_open(*place_of_the_callback(world))
    return {}


def deleted_callback(world: World) -> dict[str, Any]:
    asked = world.ask()
    world.writer.fire(asked)
    world.system.delete_all(*place_of_the_callback(world))
    return {}


def compacted_callbacks(world: World) -> dict[str, Any]:
    world.target = world.system.target(message_timestamp_type="CreateTime", cleanup_policy="compact")
    world.ask()
    return {}


def deleted_callback_topic(world: World) -> dict[str, Any]:
    world.writer.fire(world.ask())
    world.system.delete_topic(world.target)
    return {}


def deleted_dead_letters(world: World) -> dict[str, Any]:
    asked = world.ask()
    world.writer.write_dead_letter(asked)
    settings = world.system.settings
    count = len(world.system.cluster.partitions(settings.dead_letter_topic))
    world.system.delete_all(settings.dead_letter_topic, partitions_of([asked.record[0] or b""], count)[0])
    return {}


def open_dead_letter(world: World) -> dict[str, Any]:
    asked = world.ask()
    settings = world.system.settings
    count = len(world.system.cluster.partitions(settings.dead_letter_topic))
    partition = partitions_of([asked.record[0] or b""], count)[0]
    world.system.hold_open(settings.dead_letter_topic, partition)
    return {}


def deleted_requests(world: World) -> dict[str, Any]:
    asked = world.ask()
    world.writer.fire(asked)
    topic, partition, _ = asked.source.split("/")
    world.system.delete_all(topic, int(partition))
    return {}


UNDECIDED: dict[Callable[[World], dict[str, Any]], str] = {
    misspelt_request_topic: "no-such-topic",
    misspelt_id_topic: "no-such-topic",
    misspelt_callback_topic: "no-such-topic",
    callback_topic_of_no_request: "no-such-topic",
    open_request: "open-transaction",
    open_callback: "open-transaction",
    deleted_callback: "records-deleted",
    compacted_callbacks: "records-deleted",
    deleted_callback_topic: "no-such-topic",
    deleted_dead_letters: "dead-letters-not-visible",
    open_dead_letter: "dead-letters-not-visible",
    deleted_requests: "records-deleted",
}


@pytest.mark.parametrize("write", UNDECIDED, ids=lambda case: case.__name__)
def test_what_is_not_visible_is_undecided(
    spark: SparkSession,
    audited: AuditedSystem,
    write: Callable[[World], dict[str, Any]],
    constants: Constants,
) -> None:
    constants("timers.spark.audit.reading", SETTLING_S=1.0)
    seen = world(audited, ProductWriter(audited))
    seen.good()
    more = write(seen)
    changes = more.pop("changes", {})
    seen.system.settings = replace(seen.system.settings, **changes)
    findings = found(spark, seen, **more)
    codes = {*findings.undecided, *(each.code for each in findings.gaps)}
    assert (findings.verdict, codes) == ("undecided", {UNDECIDED[write]}), list(report.lines(findings))


def test_a_lost_timer_is_a_fault_beside_what_is_undecided(spark: SparkSession, audited: AuditedSystem) -> None:
    """Records are deleted in the partition of one timer, and not in that of the other."""
    seen = world(audited, ProductWriter(audited))
    lost = seen.ask()
    delete_next_door(seen)
    (mine,) = partitions_of([b"key"], 2)
    key = next(key for key in map(str, range(100)) if partitions_of([key.encode()], 2) != [mine])
    gone = seen.ask(key=key)
    findings = found(spark, seen)
    assert findings.verdict == "faulty"
    assert [row["timer_id"] for row in findings.listed["lost"]] == [lost.source]
    assert [row["timer_id"] for row in findings.undecided_listed["records-deleted"]] == [gone.source]
