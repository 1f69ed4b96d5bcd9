"""The ledger of a queue's partition and its metadata, over generated messages and decisions."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.queue_state import at_once
from tests.harness.queue_thread import record
from tests.property.unicode_text import texts
from timers.core.lineage import Lineage
from timers.core.progress import Cuts
from timers.queue import metadata
from timers.queue.entry import BIND, DONE, PUT_BACK, RETRY, Entry
from timers.queue.ledger import Ledger, passed
from timers.queue.metadata import (
    MAX_METADATA_BYTES,
    NO_START,
    BrokersClock,
    ForeignMetadataError,
    OtherVersionError,
    Saved,
    Start,
    decode,
    encode,
    worst_parts,
)

LOG = "log-name"
ALL = Start(0, 10**9)

pairs = st.tuples(st.integers(1, 40) | st.integers(1, 10**7), st.integers(1, 40) | st.integers(1, 10**7))


def ascending(most: int, count: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, most), max_size=count, unique=True).map(sorted)


@st.composite
def lineages(draw: st.DrawFn) -> Lineage:
    end, time_ms = draw(st.integers(0, 2**62)), draw(st.none() | st.integers(-(2**62), 2**62) | st.integers(-2, 2**41))
    epochs = draw(st.tuples(ascending(2**31, 8), ascending(2**62, 8)))
    batch = passed(record(("jobs", 0), end - 1, 0, time_ms))[1] if end and time_ms is not None else None
    return Lineage(tuple(zip(*epochs, strict=False)), batch, end) if end else Lineage()


@st.composite
def cuts(draw: st.DrawFn, offset: int) -> Cuts:
    """What may be committed with an offset: of the cuts below it, only the last one is kept."""
    drawn = tuple(zip(*draw(st.tuples(ascending(2**62, 3), ascending(10**6, 3))), strict=False))
    return (*[each for each in drawn if each[0] <= offset][-1:], *(each for each in drawn if each[0] > offset))


@st.composite
def saved_states(draw: st.DrawFn) -> Saved:
    offset = draw(st.integers(0, 2**62))
    end, done = offset, []
    for opened, finished in draw(st.lists(pairs, max_size=30)):
        done.append((end + opened, end + opened + finished))
        end = done[-1][1]
    counts = st.dictionaries(st.integers(offset, offset + 10**6), st.integers(1, 10**6), max_size=20)
    first, size, group = draw(st.tuples(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 10**6)))
    start = draw(st.sampled_from([NO_START, Start(offset + first, offset + first + size, group)]))
    suspects_end = draw(st.just(0) | st.integers(offset + 1, offset + 10**6))
    waits = draw(st.dictionaries(st.integers(offset, offset + 10**6), st.integers(1, 2**40), max_size=20))
    kept = draw(counts), start, suspects_end, draw(counts), waits, draw(lineages()), draw(cuts(offset))
    return Saved(offset, tuple(done), *kept)


@given(saved_states())
def test_metadata_says_what_was_saved(saved: Saved) -> None:
    text = encode(saved, LOG, 10**6)
    assert text is not None and text.isascii() and "\0" not in text
    assert decode(text, LOG, saved.offset) == saved


@given(saved_states(), st.integers(1, 400))
def test_metadata_keeps_its_limit_and_loses_only_attempts_and_waits(saved: Saved, most: int) -> None:
    text = encode(saved, LOG, most)
    if text is None:
        assert len(encode(saved._replace(attempts={}, crashes={}, waits={}), LOG, 10**6) or "") > most
    else:
        assert len(text) <= most
        found = decode(text, LOG, saved.offset)
        for kept in (saved, saved._replace(waits={}), saved._replace(attempts={}, crashes={}, waits={})):
            if len(encode(kept, LOG, 10**6) or "") <= most:
                assert found == kept
                break


@given(texts(60) | st.text("q3.AZaz09-_", max_size=60).map("q3.log-name.7.{}".format))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        saved = decode(text, LOG, 7)
    except (ForeignMetadataError, OtherVersionError):
        return
    assert saved.offset == 7


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "empty"),
        ("an application's own", "not written by a queue"),
        ("q3.log-name.8........", "this is log log-name at 7"),
        ("q3.another1.7........", "written for log another1"),
        ("q3.log-name.7..A......", "pairs"),
        ("q3.log-name.7..AB.....", "not written"),
        ("q3.log-name.7..AB......", "pairs of numbers above 0"),
        ("q3.log-name.7..g......", "no end"),
        ("q3.log-name.7.." + 40 * "g" + "......", "64 bits"),
        ("q3.log-name.7...\u00e9.....", "no digit"),
        ("q3.log-name.7.....A...", "four numbers"),
        ("q3.log-name.7......A..", "pairs"),
        ("q3.log-name.7.......A.", "pairs"),
        ("q3.log-name.7.........", "not written"),
        ("q3.log-name.7.......", "not written"),
        ("q3.log-name.7........AB", "pairs"),
        ("q3.log-name.7.BB.......", "lineage"),
        ("q3.log-name.7.BBBB.......", "lineage"),
        ("q3.log-name.7.BBCCB.......", "lineage"),
        ("q3.log-name.7.ABA.......", "lineage"),
    ],
)
def test_foreign_metadata_is_refused_with_a_reason(text: str, error: str) -> None:
    with pytest.raises(ForeignMetadataError, match=error):
        decode(text, LOG, 7)


@pytest.mark.parametrize("text", ["q1.log-name.7......", "q2.log-name.7.......", "q4.anything"])
def test_metadata_of_another_version_is_not_foreign(text: str) -> None:
    with pytest.raises(OtherVersionError, match="and this is version 3"):
        decode(text, LOG, 7)


def test_sizes_that_the_documents_name() -> None:
    one_open = Saved(10**9, ((10**9 + 1, 10**9 + 10_000_000),))
    assert len(encode(one_open, LOG) or "") <= 36
    every_second = Saved(0, tuple((each, each + 1) for each in range(1, 24_000, 2)))
    assert encode(every_second, LOG) is not None


def plain_bits(runs: list[tuple[int, int]]) -> str:
    """Six bits in a digit, the lowest first, without regard to the time that it takes."""
    bits = [bit for opened, done in runs for bit in [0] * opened + [1] * done]
    sixes = [bits[index : index + 6] for index in range(0, len(bits), 6)]
    return "".join(metadata._DIGITS[sum(bit << at for at, bit in enumerate(six))] for six in sixes)


small_runs = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), max_size=30)


@given(small_runs)
def test_bits_are_written_as_one_by_one(runs: list[tuple[int, int]]) -> None:
    assert metadata._encode_bits(runs) == plain_bits(runs)


@given(small_runs)
def test_no_other_layout_is_shorter(runs: list[tuple[int, int]]) -> None:
    """Compared with all layouts."""
    parts = [(metadata.run_size(*each), sum(each)) for each in runs]

    def characters(first: int, last: int) -> int:
        as_runs = sum(size for size, _ in parts) - sum(size for size, _ in parts[first:last])
        return as_runs - (-sum(offsets for _, offsets in parts[first:last]) // 6)

    count = len(runs)
    found = metadata.layout(parts)
    best = min(characters(first, last) for first in range(count + 1) for last in range(first, count + 1))
    assert characters(found.first, found.last) == found.characters == best
    assert found.characters_before_bits == min(characters(first, count) for first in range(count + 1))


@given(st.lists(st.tuples(st.integers(1, 12) | st.integers(1, 3000), st.integers(1, 40)), max_size=12), st.integers(0))
def test_the_estimate_of_the_longest_metadata_is_enough_for_all_subsets(gaps: list[tuple[int, int]], seed: int) -> None:
    """Runs of open messages are estimated together; compared with the metadata of some of their subsets."""
    rng = random.Random(seed)
    opened: list[int] = []
    position = 0
    for count, gap in gaps:
        opened += range(position, position + count)
        position += count + gap
    parts = worst_parts(opened, position)
    assert len(parts) == len(gaps)
    worst = metadata.layout(parts).characters
    shares = [1.0, 0.9, 0.5, 0.1]
    subsets = [[each for each in opened if rng.random() < share] for share in shares]
    for kept in (*subsets, opened[::2], opened[1::2], opened[:1], opened[-1:]):
        ends = [*kept, position]
        done = [(before + 1, after) for before, after in pairwise(ends) if after - before > 1] if kept else []
        text = encode(Saved(kept[0] if kept else position, tuple(done)), LOG, 10**6)
        assert text is not None
        fields = len(encode(Saved(position), LOG) or "")
        assert len(text) - fields <= worst + 3, "the parts with and without bits meet twice"


@given(st.lists(st.integers(0, 400), unique=True).map(sorted))
def test_runs_of_open_messages_are_found(opened: list[int]) -> None:
    """Compared with a look at each message."""
    runs: list[list[int]] = []
    for offset in opened:
        if runs and runs[-1][-1] == offset - 1:
            runs[-1].append(offset)
        else:
            runs.append([offset])
    offsets = [end - first for first, end in pairwise([*(each[0] for each in runs), 401])]
    assert [each for _, each in worst_parts(opened, 401)] == offsets


@pytest.mark.slow
def test_a_limit_counts_until_it_is_reached_and_then_follows_what_is_done() -> None:
    ledger = Ledger(Saved(0))
    ledger.starts.allow(ALL)
    stuck = None
    for _ in range(400):
        ledger.measure()
        for offset in range(ledger.position, min(ledger.read_limit, ledger.position + 1000)):
            ledger.read(offset, None)
        stuck = stuck or ledger.take(0)
        while (entry := ledger.take(0)) is not None:
            assert ledger.settle(entry, entry.delivery, DONE)
    assert ledger.position == 400_000, "one open message does not stop the reading"
    assert ledger.open_count == 1


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
                assert ledger.settle(entry, entry.delivery, DONE)
            else:
                held.append(entry)
        for entry in held:
            ledger.settle(entry, entry.delivery, PUT_BACK)
        text = encode(ledger.saved(), LOG)
        assert text is not None and len(text) <= MAX_METADATA_BYTES


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
            ledger.expire(now_s, at_once)
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
            if step == "ack" and ledger.settle(entry, delivery, DONE):
                done.add(entry.offset)
            elif step == "bind" and ledger.settle(entry, delivery, BIND):
                bound.append(entry)
            elif step == "wait":
                ledger.settle(entry, delivery, RETRY, now_s + number)
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
    assert ledger.settle(first, first.delivery, RETRY, 20)
    assert (ledger.expire(19, at_once), ledger.take(9)) == (1, other)
    assert ledger.expire(20, at_once) == 1
    again = ledger.take(40)
    assert again is not None and (again.offset, again.attempt) == (0, 2)
    assert (ledger.take(40), other.attempt) == (other, 3)
    assert ledger.settle(again, again.delivery, DONE)
    last = ledger.take(40)
    assert last is not None and last.offset == 2


OWN_S = st.floats(-1e6, 1e6)
SPAN_S = st.floats(0, 100)


@given(OWN_S, OWN_S, SPAN_S, SPAN_S, SPAN_S, SPAN_S, st.floats(0.1, 1e5))
def test_a_delay_is_not_shorter_in_the_next_process_whatever_the_clocks_say(
    first_ahead_s: float,
    next_ahead_s: float,
    sent_s: float,
    written_s: float,
    moved_s: float,
    loaded_s: float,
    delay_s: float,
) -> None:
    """All times but those of the two processes are the brokers' time."""
    epoch_s, append_s = 1.7e9, 1.7e9 + sent_s
    clock = BrokersClock()
    clock.note(append_s, epoch_s + first_ahead_s, append_s + written_s + first_ahead_s)
    called_s = append_s + written_s
    ledger = Ledger(Saved(0), clock=clock)
    ledger.starts.allow(ALL)
    for offset in range(2):
        ledger.read(offset, None, b"key")
    entry = ledger.take(0)
    assert entry is not None and ledger.settle(entry, entry.delivery, RETRY, called_s + first_ahead_s + delay_s)
    text = encode(ledger.saved(), LOG)
    again = BrokersClock()
    ledger = Ledger(decode(text or "", LOG, 0), clock=again)
    ledger.starts.allow(ALL)
    for offset in range(2):
        ledger.read(offset, None, b"key")
    now_s = called_s + moved_s
    assert not ledger.expire(now_s + delay_s + next_ahead_s, at_once) and ledger.take(0) is None, (
        "the brokers' time is not known"
    )
    assert ledger.saved().waits == decode(text or "", LOG, 0).waits
    again.note(now_s, now_s + next_ahead_s, now_s + loaded_s + next_ahead_s)
    end_s = called_s + delay_s
    ledger.expire(end_s - 0.01 + next_ahead_s, at_once)
    assert ledger.take(0) is None, "too early"
    ledger.expire(end_s + sent_s + written_s + loaded_s + 2 + next_ahead_s, at_once)
    found = ledger.take(0)
    assert found is not None and (found.offset, found.attempt, ledger.saved().waits) == (0, 2, {})
    assert ledger.take(0) is None, "its lane waited with it"
