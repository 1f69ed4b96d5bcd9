"""Allowed callback topics, and chained requests."""

import pytest

from timers.core.timer import Origin, Row
from timers.machines.firing.breaker import DeliveryProblem
from timers.machines.firing.policy import CallbackRules
from timers.process.config.settings import Settings
from timers.wire import future, topics
from timers.wire.headers import Header

WORKERS = [
    topics.progress("other"),
    topics.retry("other"),
    topics.console_log("other"),
    topics.retried("other"),
    topics.queue_ledger(topics.queue_group("orders")),
    "other-snapshot-by-id",
    topics.OSCILLATOR,
    "__consumer_offsets",
]
OWN = ["timer-request", "oscillator", "timer-dead-letter", "timers-progress", "timers-timer-retry"]
DUE_S = 1_000


def rules(allow: str = "", deny: str = "", **more: str) -> CallbackRules:
    environ = {"TIMERS_BROKERS": "a:1", "TIMERS_CALLBACK_ALLOW": allow, "TIMERS_CALLBACK_DENY": deny, **more}
    return CallbackRules(Settings.load(environ))


@pytest.mark.parametrize(
    ("allow", "deny", "free", "shut"),
    [
        ("", "", ["orders", "a.b_c-d", "_one", "timer-request-2"], ["__consumer_offsets", "__x", *OWN]),
        ("orders", "", ["orders"], ["orders-1", "my-orders", "ORDERS", *OWN]),
        ("orders-*,b", "", ["orders-", "orders-1", "b"], ["orders", "bb", *OWN]),
        ("a.b", "", ["a.b"], ["axb"]),
        ("*.eu.*", "", ["x.eu.y", ".eu."], ["eu", "xxeuxyx"]),
        ("*", "", ["orders"], ["__x", *OWN]),
        ("", "orders", ["orders-1"], ["orders", *OWN]),
        ("", "*", ["timers-canary"], ["orders", "__x", *OWN]),
        ("orders-*", "orders-old*", ["orders-new"], ["orders-old", "orders-old-1"]),
        ("*,timer-request", "", ["orders", "timer-request"], OWN[1:]),
        ("timer-request", "", ["timer-request"], ["orders", *OWN[1:]]),
        ("timer-*", "", ["timer-x"], OWN),
        ("*,timer-request", "timer-*", ["orders"], OWN),
        ("__audit-*,__all", "", ["__all"], ["__audit-1", "__consumer_offsets", "__al", "orders"]),
        ("_*", "", ["_x"], ["__x"]),
        ("", "", ["progress", "queue.orders-returns", "queue.orders", "ledger", "order-progress-2"], WORKERS),
        ("*", "", ["orders"], WORKERS),
        (",".join(topics.WORKERS_ONLY[:-2]), "", [], [*WORKERS, "orders"]),
        (f"*,{','.join(set(WORKERS) - set(OWN))}", "", ["orders", *(set(WORKERS) - set(OWN))], ["third-progress"]),
        ("order-progress", "*-progress", [], ["order-progress"]),
    ],
)
def test_lists_say_where_callbacks_may_go(allow: str, deny: str, free: list[str], shut: list[str]) -> None:
    judge = rules(allow, deny)
    assert [topic for topic in free if judge.check_topic(topic)] == []
    assert [topic for topic in shut if not judge.check_topic(topic)] == []


def test_matching_a_pattern_takes_little_time_for_any_name() -> None:
    assert rules(deny="*a" * 60 + "*b").check_topic("a" * 249) is None


def test_each_denial_has_a_reason() -> None:
    for judge, topic, why in (
        (rules(deny="or*"), "orders", "is denied by 'or*' of TIMERS_CALLBACK_DENY"),
        (rules(allow="b"), "orders", "is not among those of TIMERS_CALLBACK_ALLOW"),
        (rules(), "timers-progress", "is internal: callbacks may not go there"),
        (
            rules(allow="orders,*-progress"),
            "order-progress",
            "is internal, as all names of the form '*-progress' are: only its full name in TIMERS_CALLBACK_ALLOW "
            "allows it. '*,order-progress' allows it beside all others",
        ),
    ):
        assert judge.check_topic(topic) == DeliveryProblem("topic-denied", f"callback topic {topic!r} {why}", None)


def test_renamed_topics_of_the_engine_are_denied() -> None:
    judge = rules(TIMERS_APP_ID="mine", TIMERS_REQUEST_TOPIC="wishes", TIMERS_DEAD_LETTER_TOPIC="lost")
    assert judge.check_topic("lost") and judge.check_topic("mine-timer-retry") and judge.check_topic("wishes")
    assert judge.check_topic("timer-dead-letter") is None and judge.check_topic("timer-request") is None


def following(
    key: str = "1001", value: bytes = b"", headers: list[Header] | None = None, depth: int = 3
) -> Row | DeliveryProblem:
    """The row of the request that a timer due at :data:`DUE_S` sends as its callback; or why it is not sent."""
    origin = Origin("timer-request/0/1", DUE_S, 2)
    row: Row = (7, "timer-request", key, value, headers, origin)
    judge = rules("*,timer-request", TIMERS_MAX_DEPTH=str(depth))
    after = judge.next_request(row, DUE_S)
    if isinstance(after, DeliveryProblem):
        assert (after.code, after.open_s) == ("topic-denied", None)
        return after
    assert (*after[:4], after[5]) == (*row[:4], row[5])
    return after


@pytest.mark.parametrize(
    ("key", "expected_text"),
    [
        ("1000", "due at 1000, which is not after 1000"),
        ("7", "due at 7"),
        ("", "the callback is itself a request, but its key '' is not an epoch second"),
        ("tomorrow", "its key 'tomorrow'"),
        ("-1", "negative"),
        ("1700000000000", "in seconds it is 1700000000"),
        ("１００１", "ASCII"),
    ],
)
def test_a_chained_request_must_be_due_later(key: str, expected_text: str) -> None:
    problem = following(key)
    assert isinstance(problem, DeliveryProblem) and expected_text in problem.reason
    assert not isinstance(following("1001"), DeliveryProblem)
    assert not isinstance(following("99999999999"), DeliveryProblem)


@pytest.mark.parametrize(
    ("headers", "count"),
    [
        (None, b"1"),
        ([("callback-depth", b"2")], b"3"),
        ([("callback-depth", b"9"), ("callback-depth", b"1")], b"2"),
        ([("callback-depth", b"2"), ("callback-depth", None)], b"1"),
        ([("callback-depth", b"-3")], b"1"),
        ([("callback-depth", b"1" * 10)], b"1"),
        ([("callback-depth", "３".encode())], b"1"),
        ([("Callback-Depth", b"3")], b"1"),
    ],
)
def test_a_chained_request_counts_its_depth(headers: list[Header] | None, count: bytes) -> None:
    other_headers: list[Header] = [("a", b"1"), ("a", None)]
    kept = [*other_headers, *((name, value) for name, value in headers or () if name != "callback-depth")]
    chained_request = future.encode("timer-request", "1002", b"")
    after = following("1001", chained_request, [*other_headers, *(headers or ())])
    assert not isinstance(after, DeliveryProblem)
    assert after[4] == [*kept, ("callback-depth", count)]
    # The last callback has no depth header, so that its receiver does not copy it.
    for last in (future.encode("orders", "k", b""), b"", b"\xff\xff"):
        after = following("1001", last, [*other_headers, *(headers or ())])
        assert not isinstance(after, DeliveryProblem)
        assert after[4] == kept


def test_the_length_of_a_chain_is_limited() -> None:
    for depth in (b"3", b"4", b"999999999"):
        problem = following(headers=[("callback-depth", depth)])
        assert isinstance(problem, DeliveryProblem)
        assert "timers have set each other, and TIMERS_MAX_DEPTH=3 allows" in problem.reason
    assert not isinstance(following(headers=[("callback-depth", b"3")], depth=4), DeliveryProblem)
