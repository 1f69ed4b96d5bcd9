"""The ledger of a queue's partition and its metadata, over generated messages and decisions."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timers.queue.ledger import Entry, Ledger
from timers.queue.metadata import MAX_BYTES, ForeignMetadataError, NewerMetadataError, Saved, decode, encode
from timers.queue.starts import NOTHING, Start

LOG = "log-name"
ALL = Start(0, 10**9)

pairs = st.tuples(st.integers(1, 40) | st.integers(1, 10**7), st.integers(1, 40) | st.integers(1, 10**7))


@st.composite
def saved_states(draw: st.DrawFn) -> Saved:
    offset = draw(st.integers(0, 2**62))
    end, done = offset, []
    for opened, finished in draw(st.lists(pairs, max_size=30)):
        done.append((end + opened, end + opened + finished))
        end = done[-1][1]
    counts = st.dictionaries(st.integers(offset, offset + 10**6), st.integers(1, 10**6), max_size=20)
    first, size, group = draw(st.tuples(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 10**6)))
    start = draw(st.sampled_from([NOTHING, Start(offset + first, offset + first + size, group)]))
    suspects_end = draw(st.just(0) | st.integers(offset + 1, offset + 10**6))
    return Saved(offset, tuple(done), draw(counts), start, suspects_end, draw(counts))


@given(saved_states())
def test_metadata_says_what_was_saved(saved: Saved) -> None:
    text = encode(saved, LOG, 10**6)
    assert text is not None and text.isascii() and "\0" not in text
    assert decode(text, LOG, saved.offset) == saved


@given(saved_states(), st.integers(1, 400))
def test_metadata_keeps_its_limit_and_loses_only_attempts(saved: Saved, most: int) -> None:
    text = encode(saved, LOG, most)
    if text is None:
        assert len(encode(saved._replace(attempts={}, crashes={}), LOG, 10**6) or "") > most
    else:
        assert len(text) <= most
        assert decode(text, LOG, saved.offset)._replace(attempts={}, crashes={}) == saved._replace(
            attempts={}, crashes={}
        )


@given(st.text(max_size=60) | st.text("q1.AZaz09-_", max_size=60).map("q1.log-name.7.{}".format))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        saved = decode(text, LOG, 7)
    except (ForeignMetadataError, NewerMetadataError):
        return
    assert saved.offset == 7


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "empty"),
        ("an application's own", "not written by a queue"),
        ("q1.log-name.8......", "this is log log-name at 7"),
        ("q1.another1.7......", "written for log another1"),
        ("q1.log-name.7.A.....", "pairs"),
        ("q1.log-name.7.AB....", "not written"),
        ("q1.log-name.7.AB.....", "pairs of numbers above 0"),
        ("q1.log-name.7.g.....", "no end"),
        ("q1.log-name.7." + 40 * "g" + ".....", "64 bits"),
        ("q1.log-name.7..\u00e9....", "no digit"),
        ("q1.log-name.7....A..", "four numbers"),
        ("q1.log-name.7.....A.", "pairs"),
        ("q1.log-name.7......A", "pairs"),
    ],
)
def test_foreign_metadata_is_refused_with_a_reason(text: str, error: str) -> None:
    with pytest.raises(ForeignMetadataError, match=error):
        decode(text, LOG, 7)


def test_metadata_of_a_newer_version_is_not_foreign() -> None:
    with pytest.raises(NewerMetadataError, match="upgrade"):
        decode("q2.anything", LOG, 7)


def test_sizes_that_the_documents_name() -> None:
    one_open = Saved(10**9, ((10**9 + 1, 10**9 + 10_000_000),))
    assert len(encode(one_open, LOG) or "") <= 34
    every_second = Saved(0, tuple((each, each + 1) for each in range(1, 24_000, 2)))
    assert encode(every_second, LOG) is not None


@pytest.mark.parametrize("seed", range(12))
def test_the_metadata_fits_whatever_is_done_first(seed: int) -> None:
    rng, ledger, end = random.Random(seed), Ledger(Saved(0)), 0
    ledger.starts.allow(ALL)
    for _ in range(25):
        ledger.measure()
        most = min(ledger.read_limit, end + rng.choice([1, 10, 500, 2500]))
        while end < most:
            ledger.read(end, None)
            end += rng.choice([1, 1, 1, 2])
        if rng.random() < 0.05:
            end += 10**6
            ledger.pass_holes(end)
        held, share = [], rng.choice([0.1, 0.5, 0.9, 1])
        while (entry := ledger.take(0)) is not None:
            if rng.random() < share:
                assert ledger.ack(entry, entry.delivery)
            else:
                held.append(entry)
        for entry in held:
            ledger.put_back(entry, entry.delivery)
        text = encode(ledger.saved(), LOG)
        assert text is not None and len(text) <= MAX_BYTES


@given(
    st.lists(st.integers(0, 30), unique=True, max_size=20).map(sorted),
    st.lists(st.tuples(st.sampled_from(["ack", "bind", "finish", "wait", "expire", "restart"]), st.integers(0, 9))),
)
def test_a_restarted_ledger_delivers_what_is_not_done(offsets: list[int], steps: list[tuple[str, int]]) -> None:
    """Compared with a set. A restart reads all messages again, by what the last commit says."""
    done: set[int] = set()
    ledger = Ledger(Saved(0))
    ledger.starts.allow(ALL)
    for offset in offsets:
        ledger.read(offset, offset)
    held: list[tuple[Entry, int]] = []
    bound: list[Entry] = []
    now_s = 0.0
    for step, number in steps:
        while (taken := ledger.take(now_s + 5)) is not None:
            assert taken.offset not in done
            held.append((taken, taken.delivery))
        if step == "expire":
            now_s += number
            ledger.expire(now_s)
        elif step == "restart":
            saved = decode(encode(ledger.saved(), LOG) or "", LOG, ledger.saved().offset)
            ledger.drop()
            ledger, held, bound = Ledger(saved), [], []
            ledger.starts.allow(ALL)
            added = {offset for offset in offsets if ledger.read(offset, offset)}
            assert added == set(offsets) - done
        elif step == "finish" and bound:
            entry = bound.pop()
            ledger.finish(entry)
            done.add(entry.offset)
        elif held:
            entry, delivery = held.pop(number % len(held))
            if step == "ack" and ledger.ack(entry, delivery):
                done.add(entry.offset)
            elif step == "bind" and ledger.bind(entry, delivery):
                bound.append(entry)
            elif step == "wait":
                ledger.wait(entry, delivery, now_s + number)
    position = ledger.saved()
    ranges = [(0, position.offset), *position.done]
    assert {each for each in offsets if any(first <= each < end for first, end in ranges)} == done


def test_messages_of_a_lane_are_delivered_one_after_the_other() -> None:
    ledger = Ledger(Saved(0))
    ledger.starts.allow(ALL)
    for offset, lane in enumerate([b"a", b"b", b"a", b"a"]):
        ledger.read(offset, None, lane)
    first, other = ledger.take(9), ledger.take(9)
    assert first is not None and other is not None
    assert (first.offset, other.offset, ledger.take(9)) == (0, 1, None)
    assert ledger.wait(first, first.delivery, 20)
    assert (ledger.expire(19), ledger.take(9)) == ([other], other)
    assert ledger.expire(20) == [other]
    again = ledger.take(40)
    assert again is not None and (again.offset, again.attempt) == (0, 2)
    assert (ledger.take(40), other.attempt) == (other, 3)
    assert ledger.ack(again, again.delivery)
    last = ledger.take(40)
    assert last is not None and last.offset == 2
