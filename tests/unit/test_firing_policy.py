"""Each decision of the delivery policy for a due timer, depending on the state of its topic."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from timers.core.limits import ChunkSize
from timers.core.ports import Output
from timers.core.progress import Progress
from timers.core.timer import DueRows, Origin, Rejected, Row, Tick
from timers.machines.firing.breaker import DeliveryProblem
from timers.machines.firing.policy import (
    KEYLESS_S,
    CallbackRules,
    MarkerPolicy,
    Policy,
    RetryPolicy,
    SchedulePolicy,
)
from timers.machines.firing.transaction import Callbacks
from timers.process.config.settings import Settings

NOW_S, DUE_S = 1_000, 990
SETTINGS = Settings(request_topic="requests", retry_attempts=2)
FAILING = DeliveryProblem("target-failing", "it fails", 30.9)
UNKNOWN = DeliveryProblem("topic-unknown", "it does not exist", None)


class SimTopics:
    """Fixed routes; it keeps the queried topics."""

    usable: Mapping[str, int] = {"fast": 4}

    def __init__(self, limits: Mapping[str, int], **routes: int | DeliveryProblem | None) -> None:
        self.max_message_bytes = limits
        self.routes = routes
        self.asked: list[tuple[str, bool]] = []

    def route(self, topic: str, *, retried: bool) -> int | DeliveryProblem | None:
        self.asked.append((topic, retried))
        return self.routes[topic]


class SimRules(CallbackRules):
    def __init__(self) -> None: ...

    def check_topic(self, topic: str) -> DeliveryProblem | None:
        return DeliveryProblem.denied("not allowed") if topic == "denied" else None

    def next_request(self, row: Row, due_s: int) -> Row | DeliveryProblem:
        if row[3] == b"too soon":
            return DeliveryProblem("topic-denied", f"after {due_s}", None)
        return (*row[:4], [("depth", b"1")], row[5])


class Written:
    """The decisions of the policy, in order."""

    def __init__(self, retry_limit: int = 10**6) -> None:
        self.chunk = ChunkSize()
        self.did: list[tuple[Any, ...]] = []
        self.retry_limit = retry_limit

    def begin(self, tick: Tick) -> None:
        self.tick = tick

    def source(self, offset: int) -> str:
        return f"requests/3/{offset}"

    def commit(self, progress: Progress, callbacks: Sequence[Callbacks]) -> None:
        for topic, partitions, due in callbacks:
            self.did += [("send", topic, partitions, due_s, [row[0] for row in rows]) for due_s, rows in due]

    def send_retried(self, topic: str, partitions: int, rows: Sequence[Row]) -> None:
        self.did.append(("send retried", topic, partitions, [row[0] for row in rows]))

    def size(self, row: Row, origin: Origin) -> int:
        return len(row[3])

    def retry(self, row: Row, origin: Origin, due_s: int) -> int | None:
        if len(row[3]) > self.retry_limit:
            return len(row[3])
        self.did.append(("retry", row[0], origin.timer_id, origin.attempt, due_s))
        return None

    def give_up(self, given_up: Any) -> None:
        self.did.append(("give up", given_up.row[0], given_up.origin.timer_id, given_up.code, given_up.reason))

    def reject(self, rejected: Rejected) -> None:
        self.did.append(("reject", rejected.offset))

    def end_schedules(self, rows: Sequence[Row]) -> list[Row]:
        self.did.append(("end", [row[0] for row in rows]))
        return list(rows)

    def end_schedule(self, rejected: Rejected) -> None:
        self.did.append(("end", [rejected.offset]))

    def end_messages(self, rows: Sequence[Row]) -> list[Row]:
        self.did.append(("end messages", [row[0] for row in rows]))
        return [(row[0], "failing" if row[1] == "failing" else "fast", *row[2:]) for row in rows]

    def send_spread(self, topic: str, partitions: int, due: Sequence[DueRows]) -> None:
        self.did += [("send spread", topic, partitions, due_s, [row[0] for row in rows]) for due_s, rows in due]


def policy(
    variant: type[Policy],
    written: Written,
    limits: Mapping[str, int] | None = None,
    **routes: int | DeliveryProblem | None,
) -> Policy:
    return made_with(variant, SETTINGS, SimTopics(limits or {}, **routes), written)


def made_with(variant: type[Policy], settings: Settings, known: Any, written: Any) -> Policy:
    made = variant(settings, known, written)
    made._rules = SimRules()
    made.begin(Tick(NOW_S * 1000 + 700))
    return made


def sent(made: Policy, output: Output) -> None:
    """Send what a policy decides, but keep what brokers have refused before."""
    made.decide(output)
    made.transaction.commit(Progress(), made.callbacks)


def row(offset: int, topic: str = "fast", value: bytes = b"", origin: Origin | None = None) -> Row:
    return (offset, topic, "key", value, None, origin)


def retried(offset: int, topic: str, attempt: int, value: bytes = b"") -> Row:
    return row(offset, topic, value, Origin(f"requests/3/{offset}", DUE_S, attempt))


def test_timers_of_a_usable_topic_are_sent_together_without_a_route_query() -> None:
    written = Written()
    made = policy(Policy, written, slow=2)
    sent(made, Output([(DUE_S, [row(1), row(2)])]))
    sent(made, Output([(DUE_S, [row(3), row(4, "slow"), row(5)])]))
    assert written.did == [
        ("send", "fast", 4, DUE_S, [1, 2]),
        ("send", "fast", 4, DUE_S, [3, 5]),
        ("send", "slow", 2, DUE_S, [4]),
    ]
    assert made._topics.asked == [("slow", False)]  # type: ignore[attr-defined]


def test_timers_of_a_topic_wait_for_an_answer_about_it_and_without_one_they_are_tried_again() -> None:
    written = Written()
    made = policy(Policy, written, new=None, silent=None)
    sent(made, Output([(DUE_S, [row(1), row(2, "new"), row(3, "silent")])]))
    assert written.did == [("send", "fast", 4, DUE_S, [1])] and {*made.unanswered} == {"new", "silent"}
    made._topics.routes["new"] = 3  # type: ignore[attr-defined]
    made.end_wait()
    assert written.did[1:] == [("retry", 3, "requests/3/3", 1, NOW_S + 2)]
    assert made.callbacks[1:] == [("new", 3, [(DUE_S, [row(2, "new")])])]
    assert not made.unanswered


@pytest.mark.parametrize(
    ("topic", "problem", "expected"),
    [
        ("failing", FAILING, ("retry", 1, "requests/3/1", 1, NOW_S + 32)),
        ("failing", FAILING._replace(open_s=0.0), ("retry", 1, "requests/3/1", 1, NOW_S + 2)),
        ("unknown", UNKNOWN, ("retry", 1, "requests/3/1", 0, NOW_S)),
        ("denied", 4, ("retry", 1, "requests/3/1", 0, NOW_S)),
    ],
)
def test_a_timer_that_cannot_be_sent_goes_to_the_retry_topic(
    topic: str, problem: int | DeliveryProblem, expected: tuple[Any, ...]
) -> None:
    written = Written()
    sent(policy(Policy, written, None, **{topic: problem}), Output([(DUE_S, [row(1, topic), row(2)])]))
    assert written.did == [expected, ("send", "fast", 4, DUE_S, [2])]


def test_a_timer_too_large_for_the_retry_topic_becomes_a_dead_letter_at_once() -> None:
    written = Written(retry_limit=3)
    sent(
        policy(Policy, written, unknown=UNKNOWN),
        Output([(DUE_S, [row(1, "unknown", b"1234"), row(2, "unknown", b"123")])]),
    )
    reason = f"it does not exist; and to be tried again, its 4 bytes would have to fit in {SETTINGS.retry_topic!r}"
    assert written.did == [
        ("give up", 1, "requests/3/1", "topic-unknown", reason),
        ("retry", 2, "requests/3/2", 0, NOW_S),
    ]


def test_a_topic_with_a_limit_gets_the_timers_that_fit() -> None:
    written = Written()
    sent(policy(Policy, written, {"fast": 3}), Output([(DUE_S, [row(1, value=b"123"), row(2, value=b"1234"), row(3)])]))
    assert written.did == [("retry", 2, "requests/3/2", 0, NOW_S), ("send", "fast", 4, DUE_S, [1, 3])]
    written = Written()
    sent(policy(Policy, written, {"fast": 3}), Output([(DUE_S, [row(2, value=b"1234")])]))
    assert written.did == [("retry", 2, "requests/3/2", 0, NOW_S)]


def test_a_callback_that_is_a_request_follows_the_rules() -> None:
    written = Written()
    sent(policy(Policy, written, requests=4), Output([(DUE_S, [row(1, "requests", b"too soon"), row(2, "requests")])]))
    assert written.did == [("retry", 1, "requests/3/1", 0, NOW_S), ("send", "requests", 4, DUE_S, [2])]


def test_the_number_of_retries_is_limited() -> None:
    written = Written()
    made = policy(RetryPolicy, written, failing=FAILING._replace(open_s=0.0), unknown=UNKNOWN)
    rows = [retried(0, "failing", 0), retried(1, "failing", 1), retried(2, "failing", 2), retried(3, "unknown", 0)]
    sent(made, Output([(NOW_S, rows)]))
    assert written.did == [
        ("retry", 0, "requests/3/0", 1, NOW_S + 2),
        ("retry", 1, "requests/3/1", 2, NOW_S + 2),
        ("give up", 2, "requests/3/2", "target-failing", "it fails (2 tries)"),
        ("give up", 3, "requests/3/3", "topic-unknown", "it does not exist"),
    ]
    assert made._topics.asked == [("failing", True), ("unknown", True)]  # type: ignore[attr-defined]


def test_the_time_between_attempts_doubles_up_to_a_limit() -> None:
    again = []
    for attempt in range(12):
        written = Written()
        settings = Settings(request_topic="requests", retry_attempts=99)
        made = made_with(RetryPolicy, settings, SimTopics({}, f=FAILING._replace(open_s=0.0)), written)
        sent(made, Output([(NOW_S, [retried(1, "f", attempt)])]))
        again.append(written.did[0][-1] - NOW_S)
    assert again == [2, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]


def test_retried_timers_of_one_topic_are_sent_together() -> None:
    written = Written()
    made = policy(RetryPolicy, written, {"fast": 3}, unknown=UNKNOWN)
    rows = [retried(1, "fast", 1), retried(2, "unknown", 1), retried(3, "fast", 2), retried(4, "fast", 1, b"1234")]
    sent(made, Output([(NOW_S, rows)]))
    assert written.did == [
        (
            "give up",
            4,
            "requests/3/4",
            "message-too-large",
            "the callback makes a batch of 4 bytes, more than the 3 that fit in 'fast'",
        ),
        ("send retried", "fast", 4, [1, 3]),
        ("give up", 2, "requests/3/2", "topic-unknown", "it does not exist"),
    ]


def test_a_postponed_timer_uses_an_attempt_and_is_fired_when_none_is_left() -> None:
    written = Written(retry_limit=3)
    sent(policy(Policy, written), Output(postponed=[(DUE_S, [row(1), row(2, value=b"1234")], NOW_S + 5)]))
    assert written.did == [("retry", 1, "requests/3/1", 1, NOW_S + 5), ("send", "fast", 4, DUE_S, [2])]
    written = Written()
    sent(
        policy(RetryPolicy, written),
        Output(postponed=[(NOW_S, [retried(1, "fast", 1), retried(2, "fast", 2)], NOW_S + 5)]),
    )
    assert written.did == [("retry", 1, "requests/3/1", 2, NOW_S + 5), ("send retried", "fast", 4, [2])]


def test_each_outcome_of_a_schedule_writes_a_tombstone() -> None:
    schedule = row(1, origin=Origin("id", DUE_S, 0))
    written = Written()
    sent(policy(SchedulePolicy, written), Output([(DUE_S, [schedule])]))
    assert written.did == [("end", [1]), ("send", "fast", 4, DUE_S, [1])]
    written = Written()
    sent(policy(SchedulePolicy, written), Output(postponed=[(DUE_S, [schedule], NOW_S + 5)]))
    assert written.did == [("end", [1]), ("retry", 1, "id", 1, NOW_S + 5)]


def test_each_outcome_of_a_message_writes_an_end_marker() -> None:
    origin = Origin("0/7", DUE_S, 0)
    written = Written()
    made = policy(MarkerPolicy, written, failing=FAILING)
    sent(made, Output([(DUE_S, [row(1, "former", origin=origin), row(2, "former", origin=origin)])]))
    sent(made, Output([(DUE_S, [row(3, "failing", origin=origin)])]))
    sent(made, Output(postponed=[(DUE_S, [row(4, "former", origin=origin)], NOW_S + 5)]))
    assert written.did == [
        ("end messages", [1, 2]),
        ("send spread", "fast", 4, DUE_S, [1, 2]),
        ("end messages", [3]),
        ("retry", 3, "0/7", 1, NOW_S + 32),
        ("end messages", [4]),
        ("retry", 4, "0/7", 1, NOW_S + 5),
    ]


@pytest.mark.parametrize(("variant", "ended"), [(Policy, []), (SchedulePolicy, [("end", [2])])])
def test_only_overdue_rejected_schedules_get_a_tombstone(variant: type[Policy], ended: list[tuple[Any, ...]]) -> None:
    written = Written()
    rejected = [Rejected(offset, code, "", b"k", b"", ()) for offset, code in ((1, "due-missing"), (2, "overdue"))]
    sent(policy(variant, written), Output(rejected=rejected))
    assert written.did == [("reject", 1), ("reject", 2), *ended]


def test_a_refused_callback_is_held_back_alone_until_the_next_transaction() -> None:
    written = Written()
    made = policy(Policy, written)
    rows = [row(1, value=b"v"), row(2, value=b"v"), row(3, value=b"v")]
    assert made.refuse("fast", 2, "no key")
    assert not made.refuse("fast", 2, "again")
    assert not made.refuse("fast", None, "it is no callback")
    sent(made, Output([(DUE_S, rows)]))
    assert written.did == [("retry", 2, "requests/3/2", 0, NOW_S), ("send", "fast", 4, DUE_S, [1, 3])]
    made.commit(Progress(), Output([(DUE_S, rows)]))
    assert written.did[2:] == [("send", "fast", 4, DUE_S, [1, 2, 3])]


def test_a_refused_callback_of_the_retry_topic_becomes_a_dead_letter() -> None:
    written = Written()
    made = policy(RetryPolicy, written)
    assert made.refuse("fast", 2, "no key")
    sent(made, Output([(NOW_S, [retried(1, "fast", 0), retried(2, "fast", 0)])]))
    assert written.did == [
        ("give up", 2, "requests/3/2", "message-refused", "no key"),
        ("send retried", "fast", 4, [1]),
    ]


def test_a_topic_that_refused_a_callback_without_a_key_gets_none_for_some_time() -> None:
    written = Written()
    made = policy(Policy, written)
    made.refuse("fast", 1, "rejected by the interceptor")
    made.commit(Progress(), Output([(DUE_S, [keyless(1), row(2)])]))
    assert written.did == [("send", "fast", 4, DUE_S, [1, 2])], "this reason says nothing of other callbacks"
    written.did.clear()
    made.refuse("fast", 1, "a compacted topic takes no record without key")
    made.commit(Progress(), Output([(DUE_S, [keyless(3), row(4)])]))
    assert written.did == [("retry", 3, "requests/3/3", 0, NOW_S), ("send", "fast", 4, DUE_S, [4])]
    written.did.clear()
    made.begin(Tick((NOW_S + KEYLESS_S) * 1000))
    made.commit(Progress(), Output([(DUE_S, [keyless(5), row(6)])]))
    assert written.did == [("send", "fast", 4, DUE_S, [5, 6])], "it may not be compacted any more"


def keyless(offset: int) -> Row:
    return (offset, "fast", None, b"", None, None)
