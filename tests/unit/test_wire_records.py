"""Dead letters, progress records, and names on the wire."""

import hashlib
from dataclasses import replace

import pytest

from timers.core import levels
from timers.core.keys import MAX_OFFSET, NOTHING_FIRED
from timers.core.lineage import Batch, Lineage, RecordCount
from timers.core.progress import (
    FEATURE_LEVEL,
    HOLE_DUE_S,
    Doubt,
    History,
    NamedSnapshot,
    Progress,
    Rescue,
    SettingChange,
)
from timers.core.timer import CUT_VALUE_BYTES, CutValue, Rejected
from timers.errors import LevelTooHigh, LogMismatch, TimersError
from timers.v1 import progress_pb2
from timers.wire import dead_letter, progress, topics, verdict

TOPIC_ID = b"0123456789abcdef"


def test_a_too_large_dead_letter_is_truncated_to_code_and_source() -> None:
    rejected = Rejected(7, "value-not-a-future", "not one", b"5", bytes(5000), [("a", b"1")])
    whole = dead_letter.encode(rejected, "timer-request/0/7", 10_000)
    assert (whole.key, whole.value, whole.headers[0]) == (b"5", bytes(5000), ("a", b"1"))
    truncated = dead_letter.encode(rejected, "timer-request/0/7", 5000)
    assert (truncated.key, truncated.value) == (None, None)
    assert dict(truncated.headers) == {
        "timer-error": b"value-not-a-future",
        "timer-error-message": b"not one",
        "timer-source": b"timer-request/0/7",
    }


@pytest.mark.parametrize("cut_while_read", [False, True])
@pytest.mark.parametrize("max_bytes", [10_000, 100])
def test_a_value_that_is_too_large_leaves_its_begin_length_and_hash(cut_while_read: bool, max_bytes: int) -> None:
    """The dead letter is the same, whether all of the value was in memory or not."""
    value = bytes(range(256)) * 40
    sha256 = hashlib.sha256(value)
    read = CutValue.of(value[:CUT_VALUE_BYTES], len(value), sha256.digest()) if cut_while_read else value
    rejected = Rejected(7, "value-too-large", "too large", b"5", read, [("a", b"1")])
    letter = dead_letter.encode(rejected, "timer-request/0/7", max_bytes)
    decoded = dead_letter.decode(letter.headers)
    assert decoded is not None
    assert (decoded.code, decoded.source) == ("value-too-large", "timer-request/0/7")
    assert (decoded.value_bytes, decoded.value_sha256) == (len(value), sha256.hexdigest())
    if max_bytes == 100:
        assert (letter.key, letter.value, decoded.headers) == (None, None, [])
    else:
        assert (letter.key, letter.value, decoded.headers) == (b"5", value[:CUT_VALUE_BYTES], [("a", b"1")])


@pytest.mark.parametrize("code", ["value-too-large", "topic-unknown"])
def test_headers_that_a_sender_copied_from_a_dead_letter_do_not_make_his_own_look_cut(code: str) -> None:
    copied = [("timer-value-bytes", b"5000000"), ("timer-value-sha256", b"00")]
    letter = dead_letter.encode(Rejected(7, code, "m", b"5", b"v", [("a", b"1"), *copied, *copied]), "t/0/7", 10_000)
    decoded = dead_letter.decode(letter.headers)
    assert decoded is not None
    assert (letter.value, decoded.headers[0]) == (b"v", ("a", b"1"))
    assert decoded.value_bytes == (1 if code == "value-too-large" else None)


def test_progress_without_firings_differs_from_second_zero() -> None:
    assert progress.decode(progress.encode(Progress(5), TOPIC_ID))[0].fired_through == NOTHING_FIRED
    fired = Progress(5, (0, 0))
    assert progress.decode(progress.encode(fired, TOPIC_ID))[0].fired_through == (0, 0)
    whole = Progress(5, (7, MAX_OFFSET))
    assert progress.decode(progress.encode(whole, TOPIC_ID))[0].fired_through == (7, MAX_OFFSET)


def test_progress_with_a_setting_that_is_no_number_is_refused() -> None:
    message = progress_pb2.Progress(version=levels.FIRST_LEVEL, topic_id=TOPIC_ID, next_offset=5)
    message.settings.add(name="max_request_bytes", from_offset=0, value="many")
    with pytest.raises(LogMismatch, match="holds a setting that is not a number"):
        progress.decode(progress.with_checksum(message))


def test_a_damaged_or_copied_record_is_refused() -> None:
    value = progress.encode(Progress(5, (7, 3)), TOPIC_ID, progress.machine_name("app", "timer-request", 3))
    for index in range(len(value)):
        damaged = bytearray(value)
        damaged[index] ^= 1
        with pytest.raises(TimersError):
            progress.decode(bytes(damaged))
    with pytest.raises(LogMismatch, match="was written by the machine 'app/timer-request/3'"):
        progress.decode(value, machine=progress.machine_name("app", "timer-request", 4))


def test_progress_says_which_log_it_belongs_to() -> None:
    lineage = Lineage(((4, 0), (6, 5)), Batch(5, 6, 123, 2**32 - 1), 7, RecordCount(2, 7, 4, 7))
    known = Progress(
        7,
        (900, 3),
        History(),
        lineage,
        (Rescue(4, 9, (850, 2), b"\xfe"), Rescue(2, 4, NOTHING_FIRED)),
        Doubt(3, "worker-1"),
    )
    assert progress.decode(progress.encode(known, TOPIC_ID)) == (known, TOPIC_ID)


def test_progress_names_snapshots() -> None:
    newest = NamedSnapshot(b"id of the topic.", 2**64 - 1, 50, 58, 40, 9, 7, b"d" * 32)
    for older in (None, newest._replace(number=1, first_offset=0, end_offset=49, applied=30)):
        known = Progress(50, snapshot=newest, older_snapshot=older).with_setting(FEATURE_LEVEL, levels.FIRST_LEVEL)
        assert progress.decode(progress.encode(known, TOPIC_ID)) == (known, TOPIC_ID)


def test_progress_lists_late_changes_in_few_bytes() -> None:
    offsets = range(10**9, 10**9 + 1000 * 300, 300)
    known = Progress(10**9 + 10**6).with_setting(FEATURE_LEVEL, levels.FIRST_LEVEL)
    listed = replace(known, late_changes=tuple(offsets))
    encoded = progress.encode(listed, TOPIC_ID)
    assert progress.decode(encoded, levels.FIRST_LEVEL) == (listed, TOPIC_ID)
    assert len(encoded) - len(progress.encode(known, TOPIC_ID)) < 2 * 1000 + 10


def test_progress_with_half_of_a_hole_is_refused() -> None:
    half = Progress(5, settings=History([SettingChange(HOLE_DUE_S, 5, 7)]))
    with pytest.raises(LogMismatch, match="half of a hole"):
        progress.decode(progress.encode(half, TOPIC_ID))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[" * 10**5,
        b"[]",
        b"{}",
        b'{"id": 1, "verdict": "set", "due": null}',
        b'{"id": "a", "verdict": ["x"], "due": null}',
        b'{"id": "a", "verdict": "gone", "due": null}',
        b'{"id": "a", "verdict": "set", "due": "soon"}',
        b'{"id": "a", "verdict": "set", "due": NaN}',
        b'{"id": "a", "verdict": "set", "due": -1}',
        b'{"id": "a", "verdict": "set", "due": true}',
        b'{"id": "a", "verdict": "set", "due": 5, "version": 7}',
    ],
)
def test_what_no_worker_wrote_is_no_verdict(value: bytes) -> None:
    with pytest.raises(ValueError):
        verdict.decode(value)


def test_progress_of_a_higher_level_is_refused_and_names_the_partition() -> None:
    raised = Progress(5).with_setting(FEATURE_LEVEL, 13)
    record = progress.encode(raised, TOPIC_ID)
    assert progress_pb2.Progress.FromString(record).version == 13, "older versions refuse by this field"
    assert progress.decode(record, supported=13) == (raised, TOPIC_ID)
    assert progress.decode(record, supported=14) == (raised, TOPIC_ID)
    why = "^timer-request/3 was raised to feature level 13, and this version of timers supports 12"
    with pytest.raises(LevelTooHigh, match=why):
        progress.decode(record, supported=12, name="timer-request/3")


@pytest.mark.parametrize("version", [levels.FIRST_LEVEL, 12, 14])
def test_progress_whose_version_is_not_its_level_is_refused(version: int) -> None:
    message = progress_pb2.Progress.FromString(progress.encode(Progress(5).with_setting(FEATURE_LEVEL, 13), TOPIC_ID))
    message.version = version
    with pytest.raises(LogMismatch, match=f"has version {version}, but its settings say feature level 13"):
        progress.decode(progress.with_checksum(message), supported=14)


@pytest.mark.parametrize("version", [0, 3, 4, 8])
def test_progress_of_a_version_that_was_never_released_is_refused_with_the_way_out(version: int) -> None:
    message = progress_pb2.Progress(version=version, topic_id=TOPIC_ID, next_offset=5)
    why = f"^the progress record of timer-request/3 has version {version}, which no .* commit aa3045c5 .* --raise 9`"
    with pytest.raises(LogMismatch, match=why):
        progress.decode(progress.with_checksum(message), name="timer-request/3")


def test_a_level_stays_although_the_log_lost_the_records_since_it_was_raised() -> None:
    raised = Progress(50).with_setting(FEATURE_LEVEL, 11)
    assert Progress(20, settings=raised.settings).level == 11
    assert [raised.setting_at(FEATURE_LEVEL, offset, levels.FIRST_LEVEL) for offset in (49, 50)] == [
        levels.FIRST_LEVEL,
        11,
    ]


def test_the_apps_with_snapshots_of_a_topic_are_told_from_names_of_topics() -> None:
    own, other = topics.snapshots("billing", "orders"), topics.snapshots("eu-billing", "orders")
    names = [own, other, topics.snapshots("billing", "orders-by-id"), "orders", topics.progress("billing")]
    assert topics.apps_with_snapshots("orders", names) == ["billing", "eu-billing"]


def test_the_allowed_level_is_a_record_that_older_versions_can_read() -> None:
    assert progress.decode_number(progress.ALLOWED_LEVEL, progress.encode_number(progress.ALLOWED_LEVEL, 7)) == 7
    assert progress_pb2.Progress.FromString(progress.encode_number(progress.ALLOWED_LEVEL, 7)).version == 4
    assert not topics.is_legal(progress.APP_KEY.decode().split("/")[0]), "no partition has this key"


def test_the_run_of_the_engine_is_a_record_of_its_own() -> None:
    run = 2**63 - 1
    assert progress.decode_number(progress.ENGINE_RUN, progress.encode_number(progress.ENGINE_RUN, run)) == run
    assert not topics.is_legal(progress.ENGINE_KEY.decode().split("/")[0]), "no partition has this key"


@pytest.mark.parametrize("value", [b"\xff\xff", b"hello"])
def test_other_bytes_are_refused_as_progress(value: bytes) -> None:
    with pytest.raises(LogMismatch, match="cannot be read"):
        progress.decode(value)


def test_a_settings_history_has_a_value_for_each_offset() -> None:
    first = Progress(10).with_setting("a", 1)
    assert first.with_setting("a", 1) is first
    later = Progress(20, settings=first.settings).with_setting("b", 7).with_setting("a", 2)
    assert later.settings == (SettingChange("a", 10, 1), SettingChange("b", 20, 7), SettingChange("a", 20, 2))
    assert [later.setting_at("a", offset, 99) for offset in (9, 10, 19, 20, 1000)] == [99, 1, 1, 2, 2]
    assert later.boundaries(0, 100) == [10, 20]
    assert later.boundaries(10, 20) == []


def test_names_on_the_wire() -> None:
    """These names are formats: a change needs a new version."""
    assert progress.encode_key("timer-request", 3) == b"timer-request/3"
    assert progress.decode_key(b"timer-request/3") == ("timer-request", 3)
    assert topics.source("timer-request", 3, 42) == "timer-request/3/42"
    assert topics.progress("app") == "app-progress"
    assert topics.retry("app") == "app-timer-retry"
    assert topics.transactional_id("app", "timer-request", 3) == "app-timer-request-3"
    assert (topics.REQUEST, topics.OSCILLATOR, topics.DEAD_LETTER) == (
        "timer-request",
        "oscillator",
        "timer-dead-letter",
    )
