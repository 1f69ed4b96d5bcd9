"""Timers that repeat go on after their log has lost the next occurrence [I37]."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.harness.memory_store import MemoryStore
from tests.harness.repeats import MENDED_S, NOW_S, TOPIC, Losing
from timers.core.fired import PAUSE, Hold, Holds, Moment
from timers.core.index import Sweeper
from timers.core.keys import MAX_OFFSET
from timers.core.mending import MOST_ROWS, SEARCH_INTERVAL_S, StandingStill
from timers.core.operation import Entry, defined, repeated
from timers.core.ports import Deleted, Lost, TooMuch
from timers.core.progress import History, Progress
from timers.machines.firing.followers import NO_RULE
from timers.machines.queries import reading
from timers.machines.queries.reading import Place
from timers.testing.sim_timers import SimBatch, SimKafka, SimRecord
from timers.wire import dead_letter
from timers.wire import headers as h


def each_1000_s(passed_s: int) -> Losing:
    """The timer "a", which repeats each 1000 s and was set some seconds ago."""
    sim = Losing()
    sim.define("a", "every=1000")
    sim.advance(passed_s)
    return sim


def own(record: SimRecord) -> dict[str, bytes | None]:
    return h.timer_headers(record.headers)


def noted_ends(sim: Losing) -> dict[tuple[bytes, int], int]:
    still = sim._loops[TOPIC, 0].machine._still
    assert still is not None
    return still._ends


def test_an_occurrence_that_the_log_has_lost_is_appended_again() -> None:
    sim = each_1000_s(2005)
    assert len(sim.log) == 4, "a definition, two occurrences that have fired, and one that waits"
    sim.lose(3)
    assert sim.pending == 0
    assert sim.wait(MENDED_S) == []
    assert sim.pending == 1
    assert sim.wait(1000) == [3000]
    sources = [dict(each.headers)[h.TIMER_SOURCE] for each in sim.fired]
    assert len(set(sources)) == 3
    assert {each.code for each in sim.dead_letters} == set()


def test_a_definition_whose_first_occurrence_is_lost_begins_again() -> None:
    sim = each_1000_s(5)
    sim.lose(1)
    assert sim.wait(1200) == [1000]


@pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
def test_what_had_fired_before_the_loss_does_not_fire_again(catch_up: str) -> None:
    sim = Losing()
    sim.define("a", f"every=10; catch-up={catch_up}")
    sim.advance(2)
    assert sim.wait(300) == [*range(10, 301, 10)]
    sim.lose(5)
    fired = sim.wait(MENDED_S + 10)
    assert fired == sorted(set(fired))
    assert fired[0] > 302
    if catch_up == "all":
        assert fired == [*range(310, fired[-1] + 1, 10)], "all that came due since the loss"


def test_what_waits_or_is_held_is_not_appended_again() -> None:
    sim = Losing()
    sim.define("a", "every=10")
    sim.define("far", "every=100000000")
    sim.define("last", f"every=10; until={NOW_S + 15}")
    sim.advance(5)
    sim.pause("out")
    sim.wait(3 * MENDED_S)
    assert sum(own(each).get(h.TIMER_FOLLOWS) is not None for each in sim.log) == 3
    sim.resume("out")
    assert sim.wait(5) == []
    assert sim.pending == 2


def test_the_occurrence_that_is_appended_twice_counts_once() -> None:
    sim = each_1000_s(5)
    kept = sim.log[1]
    sim.lose(1)
    sim.wait(MENDED_S)
    sim._append(TOPIC, kept.key, kept.value, kept.headers)
    assert sim.wait(2000) == [1000, 2000]


def test_a_timer_whose_record_is_deleted_ends_with_a_dead_letter() -> None:
    sim = Losing()
    sim.define("a", "every=1000")
    sim.define("b", "every=1000")
    sim.advance(5)
    gone = sim.log[0].offset
    read_again = sim._kafka.read_again

    def deleted(sources: object, may_wait: object) -> dict[str, object]:
        found = read_again(sources, may_wait)  # type: ignore[arg-type]
        lost = Deleted(len(sim.log))
        return {source: lost if source == f"{TOPIC}/0/{gone}" else record for source, record in found.items()}

    sim._kafka.read_again = deleted  # type: ignore[assignment,method-assign]
    kept = [each for each in sim.log if own(each).get(h.TIMER_FOLLOWS) is None]
    sim.log[:] = [each._replace(offset=at) for at, each in enumerate(kept)]
    sim.lose(2)
    sim.wait(MENDED_S)
    assert [(each.code, each.source, each.key, each.value) for each in sim.dead_letters] == [
        ("repeat-lost", f"{TOPIC}/0/0", None, None)
    ]
    assert "the timer 'a' has ended" in sim.dead_letters[0].message
    assert sim.wait(1000) == [1000], "the other one goes on"
    assert len(sim.dead_letters) == 1
    ended = [own(each) for each in sim.log if h.TIMER_LAST in own(each)]
    assert [(each[h.TIMER_FOLLOWS], each[h.TIMER_VERSION]) for each in ended] == [(b"0", f"{TOPIC}/0/0".encode())]
    assert sim.define("a", "every=1000").verdict == "already-fired"
    assert len(sim.wait(1001)) == 2, "it goes on"


def test_a_timer_whose_next_occurrence_is_not_readable_yet_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another producer has a transaction open, and the machine was opened again since it appended the occurrence."""
    sim = each_1000_s(5)
    hidden = sim.log[1]
    sim.lose(1)
    end = len(sim.log) + 1
    monkeypatch.setattr(SimKafka, "read_again", lambda kafka, sources, _: dict.fromkeys(sources, Deleted(end)))
    sim.wait(MENDED_S + 5 * SEARCH_INTERVAL_S)
    assert not sim.dead_letters
    assert len(sim.log) == 1
    sim._append(TOPIC, hidden.key, hidden.value, hidden.headers)
    assert noted_ends(sim), "up to where the log must be read"
    assert sim.wait(1000) == [1000], "it was readable at last"
    assert not sim.dead_letters
    assert not noted_ends(sim)


def test_a_timer_ends_once_all_is_read_that_the_log_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy topic the log is never read to its present end."""
    sim = each_1000_s(5)
    sim.lose(1)
    ahead = lambda kafka, sources, may_wait: dict.fromkeys(sources, Deleted(len(sim.log) + 1))  # noqa: E731
    monkeypatch.setattr(SimKafka, "read_again", ahead)
    sim.wait(MENDED_S)
    assert not sim.dead_letters
    for _ in range(SEARCH_INTERVAL_S // 10 + 1):
        sim._append(TOPIC, b"c", b"x", [(h.TIMER_TOPIC, b"out"), (h.TIMER_DUE, b"%d" % (NOW_S + 10**6))])
        sim.wait(10)
    assert len(sim.dead_letters) == 1
    assert not noted_ends(sim)


def test_the_end_of_a_timer_does_not_count_behind_its_next_occurrence() -> None:
    sim = each_1000_s(5)
    end = [(h.TIMER_DUE, b"%d" % (NOW_S + 5)), (h.TIMER_REPEAT, NO_RULE), (h.TIMER_FOLLOWS, b"0")]
    end += [(h.TIMER_VERSION, f"{TOPIC}/0/0".encode()), (h.TIMER_WAYPOINT, b"%d" % (NOW_S + 5)), (h.TIMER_LAST, b"1")]
    sim._append(TOPIC, b"a", b"", [(h.TIMER_TOPIC, TOPIC.encode()), *end])
    assert sim.wait(2000) == [1000, 2000]
    assert not sim.dead_letters


def test_a_timer_whose_next_occurrence_is_too_large_ends_alone() -> None:
    sim = Losing()
    rule = "every=10; catch-up=all"
    source = sim._append(TOPIC, b"large", b"x" * 60_000, [(h.TIMER_TOPIC, b"out"), (h.TIMER_REPEAT, rule.encode())])
    sim.define("small", "every=10")
    sim._kafka.max_message_bytes = {TOPIC: 20_000}  # type: ignore[misc]
    assert [each.timer_id for each in sim.advance(25)] == ["large", "small", "small"]
    (letter,) = sim.dead_letters
    assert (letter.code, letter.source, letter.key, letter.value) == ("repeat-lost", source, b"large", b"x" * 60_000)
    assert "Raise max.message.bytes" in letter.message
    (record,) = [each for each in sim._kafka.records if each.topic == sim._settings.dead_letter_topic]
    decoded = dead_letter.decode(record.headers)
    assert decoded is not None
    sim._kafka.max_message_bytes = {}  # type: ignore[misc]
    sim._append(TOPIC, record.key, record.value, decoded.headers)
    assert [each.timer_id for each in sim.advance(10)] == ["small", "large"]
    sim.wait(3 * MENDED_S)
    assert len(sim.dead_letters) == 1


def test_a_limit_that_was_raised_is_asked_for_before_a_timer_ends() -> None:
    sim = Losing()
    sim._append(TOPIC, b"large", b"x" * 60_000, [(h.TIMER_TOPIC, b"out"), (h.TIMER_REPEAT, b"every=10")])
    sim._kafka.max_message_bytes = {TOPIC: 20_000}  # type: ignore[misc]
    sim._kafka.limit_now = lambda topic: 1_000_000  # type: ignore[method-assign]
    assert len(sim.advance(30)) == 3
    assert not sim.dead_letters


def test_what_was_moved_to_another_app_is_not_appended_here() -> None:
    sim = each_1000_s(1005)
    sim.lose(3, lambda progress: progress.moved(7))
    assert sim.pending == 0
    before = len(sim.log)
    sim.advance(1000)
    sim.wait(2 * MENDED_S)
    assert len(sim.log) == before
    assert not sim.dead_letters


def test_what_was_moved_to_another_app_counts_as_fired_here() -> None:
    sim = Losing()
    sim.define("a", "every=1000")
    sim.define("b", "every=1000")
    sim.advance(5)
    sim.lose(4, lambda progress: progress.moved(7))
    sim.advance(5)
    machine = next(each for each in sim._machines() if each.find(b"a") is not None)
    found = reading.find_by_id(machine, Place(TOPIC, 0, moved=False, hidden_topic="canary"), "a", with_value=False)
    assert found is not None
    assert found["state"] == "fired"
    version = f"{TOPIC}/0/0"
    assert sim.cancel("a", if_source=version).verdict == "too-late"
    assert sim.cancel("a").verdict == "already-fired"
    assert sim.define("b", "every=1000").verdict == "already-fired", "it begins again here"
    sim.restart(lose_disk=True)
    assert sim.wait(1001) == [1010]


def test_a_cut_says_which_seconds_had_fired_as_a_whole() -> None:
    part, whole = Progress(60, (100, 57)).shortened(50), Progress(60, (100, MAX_OFFSET)).shortened(50)
    fired, pending, above = (90, 40), (110, 40), (90, 50)
    assert [part.fired_before_cut(each) for each in (fired, pending, above)] == [99, -1, -1]
    assert [whole.fired_before_cut(each) for each in (fired, pending, above)] == [100, -1, -1]
    again = replace(whole, fired_through=(200, MAX_OFFSET)).shortened(45)
    assert [again.fired_before_cut(each) for each in (fired, pending)] == [100, 200], "the first that may have been it"


def test_a_hold_of_another_target_says_nothing_about_what_fired_while_it_lasted() -> None:
    hold = Hold("other", PAUSE, 1, Moment(30, (95, MAX_OFFSET), 0), 95)
    cut = Progress(60, (100, MAX_OFFSET), holds=Holds((hold,))).shortened(50)
    assert cut.fired_before_cut((97, 40)) == 100, "its target is not held"
    assert cut.fired_before_cut((90, 40)) == 95, "it may be"


def test_what_is_rolled_back_is_appended_again_in_the_next_second(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = each_1000_s(5)
    sim.lose(1)
    transact, refused = SimKafka.transact, list[int]()

    def refusing(kafka: SimKafka, batches: Sequence[tuple[str, int, SimBatch]], offsets: Any) -> bool:
        if not refused and any(topic == TOPIC for topic, _, _ in batches):
            refused.append(len(batches))
            raise TooMuch("a broker does not say which record it refuses", rolled_back=True)
        return transact(kafka, batches, offsets)

    monkeypatch.setattr(SimKafka, "transact", refusing)
    while not refused:
        sim.wait(1)
    assert len(sim.log) == 1
    sim.wait(1)
    assert len(sim.log) == 2


@pytest.mark.parametrize("silence", ["raises", "leaves it out"])
def test_what_cannot_be_read_now_is_looked_at_a_minute_later(monkeypatch: pytest.MonkeyPatch, silence: str) -> None:
    sim = each_1000_s(5)
    sim.lose(1)
    read_again, asked = SimKafka.read_again, list[int]()

    def silent(kafka: SimKafka, sources: Iterable[str], may_wait: Any) -> Any:
        asked.append(1)
        if len(asked) > 1:
            return read_again(kafka, sources, may_wait)
        monkeypatch.setattr(StandingStill, "_note", lambda *_: False)  # among a million timers, no look finds it soon
        if silence == "raises":
            raise Lost("its leader does not answer")
        return {}

    monkeypatch.setattr(SimKafka, "read_again", silent)
    while not asked:
        sim.wait(1)
    sim.wait(SEARCH_INTERVAL_S + 1)
    assert len(sim.log) == 2


def test_nothing_is_appended_while_another_producer_holds_back_what_has_been(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = each_1000_s(5)
    sim.lose(1)
    with monkeypatch.context() as held_back:
        held_back.setattr(SimKafka, "held_from", property(lambda kafka: {10**9}))
        sim.wait(2 * MENDED_S)
        assert len(sim.log) == 1
    sim.wait(2 * MENDED_S)
    assert len(sim.log) == 2


def test_a_record_that_this_version_cannot_read_ends_nothing() -> None:
    sim = each_1000_s(5)
    sim.lose(1)
    broken = sim.log[0]._replace(headers=((h.TIMER_REPEAT, b"each=full moon"), (h.TIMER_TOPIC, b"out")))
    sim.log[0], whole = broken, sim.log[0]
    sim.wait(2 * MENDED_S)
    assert len(sim.log) == 1
    assert not sim.dead_letters
    sim.log[0] = whole
    sim.wait(2 * MENDED_S)
    assert len(sim.log) == 2


def test_what_was_lost_before_it_was_read_is_appended_again() -> None:
    """The progress does not know of it, so there is no cut."""
    sim = each_1000_s(1005)

    def without_cut(progress: Progress) -> Progress:
        return replace(progress, settings=History(each for each in progress.settings if "cut" not in each.name))

    sim.lose(2, without_cut)
    assert sim.wait(MENDED_S + 1000) == [2000]


class NewestStore(MemoryStore):
    """A store whose entries are all in the journal."""

    def newest_entries(self) -> list[tuple[bytes, Entry]]:
        return [(id, entry) for id, entry in self._entries.items() if entry is not None]


def test_very_many_that_stand_still_are_found_within_seconds() -> None:
    store, number = NewestStore(), 5 * MOST_ROWS
    entries = {b"%d" % n: repeated(NOW_S, n, NOW_S, defined(n, NOW_S, b""), is_last=False) for n in range(number)}
    store.write({}, number, dict(entries))
    sweeper, progress = Sweeper(store), Progress(number, (NOW_S + 500, MAX_OFFSET))
    still = StandingStill(store, sweeper, None, None)  # type: ignore[arg-type]  # they are asked for nothing
    for second in range(6):
        still.look((), progress, NOW_S + 500 + second)
    assert len({id for id, _, _ in sweeper.swept.suspects}) == number
    assert sweeper.swept.look_s == NOW_S + 505 + SEARCH_INTERVAL_S, (
        "they are looked for every second only while there are more"
    )
