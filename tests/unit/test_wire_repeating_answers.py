"""What answers say of timers that repeat: their rule, their version, and when the next occurrence is due."""

import base64
from typing import Any

from timers.client.wanted import of_answer
from timers.core.repeating import NOMINAL, REPEAT, VERSION, WAYPOINT, occurrence_row, target_of
from timers.core.timer import Origin, Row
from timers.wire import query as wire
from timers.wire import verdict
from timers.wire.headers import SET

DUE_S = 1_900_000_800
RULE = b"every=86400; from=1700000000"
CALLBACK: Row = (7, "reports", "k", b"v", [("trace", b"1"), (SET, b"billing")], Origin("daily", DUE_S, 0))


def answer(**own: bytes) -> Any:
    headers = {REPEAT: RULE, VERSION: b"timer-request-by-id/0/3", **own}
    row = occurrence_row(CALLBACK, headers)
    assert target_of(row) == "reports"
    return wire.describe(row, DUE_S, "timer-request-by-id", 0, moved=False, with_value=True)


def test_an_occurrence_is_described_by_its_rule_and_what_its_callback_has() -> None:
    said = answer(**{NOMINAL: b"%d" % DUE_S})
    assert (said["repeat"], said["nominal"], said["topic"]) == (RULE.decode(), DUE_S, "reports")
    assert (said["source"], wire.version_of(said)) == ("timer-request-by-id/0/7", "timer-request-by-id/0/3")
    assert said["headers"] == [["trace", "1"], [SET, "billing"]]
    assert base64.b64decode(said["value"]) == b"v"
    parts = of_answer(said)
    assert (parts["repeat.every"], parts["header timers-set"]) == ("86400", '"billing"')


def test_a_waypoint_says_when_its_next_occurrence_is_due() -> None:
    said = answer(**{WAYPOINT: b"1890000000"})
    assert (said["topic"], said["due"]) == ("reports", DUE_S)
    assert said["next"] == said["nominal"] > 1_890_000_000
    assert (said["next"] - 1_700_000_000) % 86_400 == 0


def test_a_rule_that_is_not_known_here_is_shown_as_it_is() -> None:
    said = answer(**{WAYPOINT: b"1890000000", REPEAT: b"cron=0 9 * * *; zone=Mars/Olympus"})
    assert said["repeat"].endswith("Mars/Olympus") and "next" not in said


def test_a_record_about_missed_occurrences_is_no_verdict() -> None:
    value = b'{"id": "daily", "missed": 3, "first": 1, "last": 2, "reason": "late"}'
    assert verdict.missed_of(value, [("timer-version", b"t/0/3")]) == {
        "missed": 3,
        "first": 1,
        "last": 2,
        "reason": "late",
    }
    for wrong in (
        (value, []),
        (value, [("timer-source", b"t/0/3"), ("timer-version", b"")]),
        (b"[", [("timer-version", b"")]),
    ):
        assert verdict.missed_of(*wrong) is None
