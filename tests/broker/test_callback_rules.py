"""Allowed and denied callback topics, and timers that set timers."""

import math
import time
from collections.abc import Iterator

import pytest

from tests.harness.letters import await_letters
from tests.harness.records import Headers, Request
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S, due_in
from timers.wire import future, headers, topics

pytestmark = pytest.mark.broker

MAX_DEPTH = 2


@pytest.fixture(scope="module")
def chained(broker_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A system with a running worker, where timers may set timers."""
    system = System(
        broker_address,
        tmp_path_factory.mktemp("chained"),
        TIMERS_CALLBACK_DENY="target-denied-*",
        TIMERS_MAX_DEPTH=str(MAX_DEPTH),
    )
    system.environment["TIMERS_CALLBACK_ALLOW"] = f"target-*,{system.request_topic}"
    try:
        system.worker().start().ready()
        yield system
    finally:
        system.close()


def setting(system: System, due_s: int, inner: Request, headers: Headers | None = None) -> Request:
    """A timer whose callback asks for another one."""
    return Request(system.request_topic, due_s, str(inner.due_s), inner.wire_value, headers or [])


def test_a_timer_may_set_a_timer_up_to_the_configured_depth(chained: System) -> None:
    target, due_s = chained.target(), due_in(2)
    last = Request(target, due_s + 2, "last", b"value")
    sent: Headers = [("trace", b"1"), ("timer-id", b"forged"), ("trace", None)]
    chain = setting(chained, due_s, setting(chained, due_s + 1, last), headers=sent)
    third = setting(chained, due_s + 2, Request(target, due_s + 60))
    too_deep = setting(chained, due_s, setting(chained, due_s + 1, third), headers=sent)
    past = setting(chained, due_s, Request(target, due_s), headers=sent)
    at_no_time = Request(chained.request_topic, due_s, "soon", future.encode(target, "", b""))
    chained.send(chain, too_deep, past, at_no_time)

    (fired,) = chained.reader(target).take(1)
    assert (fired.key, fired.value, fired.due_s) == (b"last", b"value", last.due_s)
    assert fired.lag_ms >= 0
    assert [each for each in fired.headers if not each[0].startswith("timer-")] == [("trace", b"1"), ("trace", None)]

    requests = chained.reader(chained.request_topic).take(8)  # four, and two more that each of the first two made
    by_source = {topics.source(record.topic, record.partition, record.offset): record for record in requests}
    assert fired.timer_id in by_source, "it is the last request's, not the first one's"
    assert sorted(headers.depth(record.headers) for record in requests) == [0, 0, 0, 0, 0, 1, 1, 2]
    (refused,) = [source for source, record in by_source.items() if headers.depth(record.headers) == MAX_DEPTH]
    assert by_source[refused].value == third.wire_value
    letters = await_letters(chained, {refused, past.source, at_no_time.source})
    for source, said in (
        (refused, f"TIMERS_MAX_DEPTH={MAX_DEPTH} allows no more"),
        (past.source, f"due at {due_s}, which is not after {due_s}"),
        (at_no_time.source, "its key 'soon' is not an epoch second"),
    ):
        letter, request = letters[source], by_source[source]
        assert (letter.text("timer-error"), letter.key, letter.value) == ("topic-denied", request.key, request.value)
        assert said in letter.text("timer-error-message")
        assert letter.headers[: len(request.headers)] == request.headers
    assert not chained.reader(chained.request_topic).rest()[8:]


def test_allow_and_deny_lists_are_checked_when_a_timer_fires(chained: System) -> None:
    denied, allowed = chained.create_topic(f"target-denied-{chained.app_id}"), chained.target()
    unlisted = chained.create_topic(f"un{allowed}")
    due_s = due_in(1)
    by_deny, by_allow = chained.send(Request(denied, due_s), Request(unlisted, due_s))
    letters = await_letters(chained, {by_deny.source, by_allow.source})
    for source, said in (
        (by_deny.source, "is denied by 'target-denied-*'"),
        (by_allow.source, "is not among those of TIMERS_CALLBACK_ALLOW"),
    ):
        assert letters[source].text("timer-error") == "topic-denied"
        assert said in letters[source].text("timer-error-message")
    # It is accepted while its topic is denied, and fires when its topic is allowed.
    (worker,) = chained.workers
    later_s = due_in(4 + math.ceil(4 * worker.ready_s))
    waiting, fine = chained.send(Request(denied, later_s, partition=0), Request(allowed, due_in(1), partition=0))
    assert chained.reader(allowed).take(1)[0].timer_id == fine.source
    worker.stop()
    worker.start(TIMERS_CALLBACK_DENY="").ready()
    left_s = max(0.0, later_s - time.time())  # the second start may have been much quicker than the first one
    assert chained.reader(denied).take(1, left_s + DEADLINE_S)[0].timer_id == waiting.source


def test_no_callback_is_written_where_only_workers_write(running: System) -> None:
    """Of this app and of another one, without lists: each is a dead letter, which says how to allow it."""
    settings, due_s, other = running.settings, due_in(2), f"other-{running.app_id}"
    foreign = {pattern: pattern.replace("*", other) for pattern in topics.WORKERS_ONLY if "*" in pattern}
    for topic in foreign.values():
        running.create_topic(topic)
    own = [settings.progress_topic, settings.retry_topic, settings.oscillator_topic]
    forged = {
        topic: running.send(*(Request(topic, due_s, "key", b"forged") for _ in range(20)))
        for topic in [*foreign.values(), *own]
    }
    letters = await_letters(running, {each.source for sent in forged.values() for each in sent})
    assert {letters[each.source].text("timer-error") for sent in forged.values() for each in sent} == {"topic-denied"}
    for pattern, topic in foreign.items():
        assert {letters[each.source].text("timer-error-message") for each in forged[topic]} == {
            f"callback topic {topic!r} is internal, as all names of the form {pattern!r} are: only its full name in "
            f"TIMERS_CALLBACK_ALLOW allows it. '*,{topic}' allows it beside all others"
        }
        assert running.end(topic) == 0
    for topic in own:
        assert b"forged" not in {record.value for record in running.reader(topic, append_time=False).rest()}
