"""Every engine answers the same requests and ticks with the same callbacks and dead letters."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import cases, stories
from tests.conformance.cases import CASES, ON_A_BROKER, Callback, Case, Phase
from tests.conformance.drivers import Engine, Outcome, RealEngine, Sent, SimulatedEngine, faust_engine, spark_engine
from tests.conformance.stories import BY_ID, NATIVE, STORIES, Moment, Story
from tests.harness.system import PARTITIONS
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.errors import QueryError
from timers.wire import cold, future, topics, verdict
from timers.wire.query import COUNT_PATH, FIND_PATH, LIST_PATH

ENGINES = {
    "simulator": (),
    "faust": (pytest.mark.broker,),
    "spark": (pytest.mark.spark,),
}

MOST_LIVES = 3


@dataclass
class Life:
    """One run of an engine, with all requests and outcomes."""

    engine: Engine
    start_s: dict[Phase, int]
    sent: dict[str, Sent]
    outcomes: dict[str, list[Outcome]]
    """Source of a request -> its outcomes. Those of stories are in the other attributes."""
    stories: dict[str, Story]
    written: dict[str, list[str]]
    """Name of a story -> sources of its records."""
    fired: dict[str, list[Outcome]]
    """With their dead letters."""
    verdicts: dict[str, list[Outcome]]


@pytest.fixture(scope="module", params=[pytest.param(name, marks=marks) for name, marks in ENGINES.items()])
def life(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    """The engine runs, is down, and starts again; ticks are missed, repeated, forged and old."""
    for _ in range(MOST_LIVES):
        engine = _engine(request.param, request, tmp_path_factory.mktemp(request.param))
        try:
            if (life := _live(engine)) is not None:
                yield life
                return
        finally:
            engine.close()
    pytest.fail(f"{MOST_LIVES} times the engine took too long to stop: what was sent meanwhile was past")


def _live(engine: Engine) -> Life | None:
    """Returns None if the machine was too slow, or paused: what was sent while the engine was away came too late."""
    simulated = isinstance(engine, SimulatedEngine)
    life = Life(engine, {}, {}, {}, STORIES if simulated else {**STORIES, **stories.ON_A_BROKER}, {}, {}, {})
    mine = CASES if simulated else {**CASES, **ON_A_BROKER}

    def send(phase: Phase) -> None:
        life.start_s[phase] = start_s = engine.now_s()
        batch = {
            name: Sent(
                case.key(start_s),
                case.value(lambda topic: engine.names.get(topic, topic)),
                case.headers,
                partition=0 if simulated else number % PARTITIONS,
            )
            for number, (name, case) in enumerate(mine.items())
            if case.phase is phase
        }
        chapters = {name: _chapter(life, name, phase) for name in life.stories}
        engine.send([*batch.values(), *(each for chapter in chapters.values() for each in chapter)])
        life.sent.update(batch)
        for name, chapter in chapters.items():
            life.written.setdefault(name, []).extend(each.source for each in chapter)

    engine.start()
    send(Phase.UP)
    for key in (b"%d" % (engine.now_s() + 100_000), b"0", b"not a number"):  # the key of a tick has no effect
        engine.tick(key)
        engine.tick(key)
    engine.pass_s(cases.UP_S)
    engine.leave()
    engine.mend()
    send(Phase.AWAY)
    if engine.now_s() >= life.start_s[Phase.UP] + stories.HORIZON_S - 1:
        return None
    engine.pass_s(cases.AWAY_S)
    engine.start()
    send(Phase.BACK)
    copies = [_copy(each) for each in engine.cold(sum(story.is_cold for story in life.stories.values()))]
    engine.send([*copies, *copies])
    for outcome in engine.outcomes(partial(_are_all, life)):
        name = (outcome.key or b"").decode(errors="replace")
        if outcome.topic == engine.names["verdict"]:
            life.verdicts.setdefault(name, []).append(outcome)
        elif name in life.stories:
            life.fired.setdefault(name, []).append(outcome)
        else:
            life.outcomes.setdefault(outcome.source, []).append(outcome)
    return life


def _chapter(life: Life, name: str, phase: Phase) -> list[Sent]:
    """The records of a story in a phase."""
    names, number = life.engine.names, list(life.stories).index(name)
    at = Moment(name, number, life.start_s[phase], lambda topic: names.get(topic, topic), life.written.get(name, ()))
    partition = 0 if isinstance(life.engine, SimulatedEngine) else number % 2
    return [
        Sent(key, value, tuple(headers), partition, topic=each.format)
        for each in life.stories[name].records
        if each.phase is phase
        for key, value, headers in [each.make(at)]
    ]


def _copy(record: Outcome) -> Sent:
    """The promoted copy of a cold request."""
    told = cold.decode_cold(record.headers)
    place = told and topics.parse_source(told.source)
    assert told is not None and place is not None
    return Sent(record.key, record.value, tuple(cold.encode_promoted(told)), place[1], topic=place[0])


def _are_all(life: Life, outcomes: list[Outcome]) -> bool:
    """Whether each request has an outcome, and each story what it waits for."""
    sources = {each.source for each in outcomes}
    keys = Counter(each.key for each in outcomes)
    return {each.source for each in life.sent.values()} <= sources and all(
        keys[name.encode()] >= len([*story.verdicts, *story.letters]) + (story.fires is not None)
        for name, story in life.stories.items()
    )


def _engine(name: str, request: pytest.FixtureRequest, directory: Path) -> Engine:
    if name == "simulator":
        return SimulatedEngine()
    address = request.getfixturevalue("broker_address")
    if name == "faust":
        return faust_engine(address, directory)
    return spark_engine(address, directory, request.getfixturevalue("spark"))


@pytest.mark.parametrize("name", [*CASES, *ON_A_BROKER])
def test_each_request_has_its_outcome_exactly_once(life: Life, name: str) -> None:
    if name in ON_A_BROKER and isinstance(life.engine, SimulatedEngine):
        assert name not in life.sent  # the simulated broker does not check sizes
        return
    case = {**CASES, **ON_A_BROKER}[name]
    sent = life.sent[name]
    outcomes = life.outcomes.get(sent.source, [])
    assert len(outcomes) == 1, f"{sent.source} has {outcomes}"
    (outcome,) = outcomes
    if isinstance(case.becomes, Callback):
        _check_callback(life, case, case.becomes, sent, outcome)
    else:
        assert outcome.topic == life.engine.names["dead-letter"]
        cut = case.becomes.code == "value-too-large"
        assert (outcome.key, outcome.value) == (sent.key, sent.value[:4096] if cut and sent.value else sent.value)
        assert outcome.headers[: len(sent.headers)] == list(sent.headers)
        assert [header for header, _ in outcome.headers[len(sent.headers) :]] == [
            *(["timer-value-bytes", "timer-value-sha256"] if cut else []),
            "timer-error",
            "timer-error-message",
            "timer-source",
        ]
        assert outcome.text("timer-error") == case.becomes.code
        assert case.becomes.said in outcome.text("timer-error-message")


def _check_callback(life: Life, case: Case, wanted: Callback, sent: Sent, outcome: Outcome) -> None:
    assert case.due_s is not None
    due_s = case.due_s + (0 if case.epoch else life.start_s[case.phase])
    assert outcome.topic == life.engine.names.get(cases.TARGET, cases.TARGET)
    assert (outcome.key, outcome.value) == (wanted.key, wanted.value)
    *kept, timer_id, due, fired = outcome.headers
    assert kept == list(wanted.headers)
    assert timer_id == ("timer-id", sent.source.encode())
    assert due == ("timer-due", b"%d" % due_s)
    assert fired[0] == "timer-fired"
    assert due_s * 1000 <= int(fired[1] or b"") <= outcome.append_ms


@pytest.mark.parametrize("name", [*STORIES, *stories.ON_A_BROKER])
def test_each_story_ends_as_it_must(life: Life, name: str) -> None:
    if name not in life.stories:
        assert isinstance(life.engine, SimulatedEngine)  # all targets of the simulated broker take records
        return
    story, engine = life.stories[name], life.engine
    told = [verdict.decode(each.value or b"") for each in life.verdicts.get(name, [])]
    assert [(each.id, each.verdict) for each in told] == [(name, each) for each in story.verdicts]
    assert all(each.text("timer-source") in life.written[name] for each in life.verdicts.get(name, []))
    outcomes, dead_letters = life.fired.get(name, []), engine.names["dead-letter"]
    letters = [each for each in outcomes if each.topic == dead_letters]
    assert [each.text("timer-error") for each in letters] == list(story.letters)
    assert all(each.source in life.written[name] for each in letters)
    fired = [each for each in outcomes if each.topic != dead_letters]
    assert [each.value for each in fired] == ([] if story.fires is None else [story.fires])
    for each in fired:
        assert each.topic == engine.names.get(story.target, story.target)
        due_s, fired_ms = int(each.text("timer-due")), int(each.text("timer-fired"))
        assert story.due_s is None or due_s == life.start_s[story.phase] + story.due_s
        assert due_s * 1000 <= fired_ms <= each.append_ms


def test_the_engine_on_spark_names_snapshots(life: Life) -> None:
    """The others have larger limits."""
    engine = life.engine
    if isinstance(engine, RealEngine) and engine.system.settings.snapshot_records < 100:
        wait_until(lambda: engine.snapshots() > 0, "the progress of a partition names a snapshot")


def test_queries_are_answered(life: Life) -> None:
    """The simulator has no port. What is due soon may fire before it is listed: then it is sent again."""
    if not isinstance(engine := life.engine, RealEngine):
        return
    value = future.encode(engine.names[cases.TARGET], "key", b"value")
    due_s = 0

    def send(after_s: int, name: str) -> Sent:
        nonlocal due_s
        due_s = engine.now_s() + after_s
        headers = (("timer-due", b"%d" % due_s),)
        by_id = [Sent(b"%s-%d" % (name.encode(), number), value, headers, topic=BY_ID) for number in range(3)]
        engine.send([native := Sent(b"%d" % due_s, value, (), topic=NATIVE), *by_id])
        return native

    def listed() -> bool:
        if engine.now_s() > due_s - stories.HORIZON_S // 2:
            send(stories.HORIZON_S - 1, "asked")
        page = engine.query(LIST_PATH, prefix="asked-", limit="2", **{"from": str(due_s)})
        counts = engine.query(COUNT_PATH, by="60", **{"from": str(due_s)})["timers"]
        ids = [each["id"] for each in page["timers"]]
        return (ids, sum(each["timers"] for each in counts)) == (["asked-0", "asked-1"], 4) and bool(page["next"])

    wait_until(listed, "all are listed and counted", 2 * DEADLINE_S)
    native = send(3600, "cold")

    def found(id: str) -> Any:
        with suppress(QueryError):  # an engine that is busy ends a look-up after two seconds
            return engine.query(FIND_PATH, id=id)["timers"]
        return []

    for id in ("cold-1", native.source):
        timers = wait_until(partial(found, id), "it is found", 4 * DEADLINE_S)
        assert [(each["state"], each["due"]) for each in timers] == [("cold", due_s)]


def test_there_is_no_outcome_without_a_request(life: Life) -> None:
    assert life.outcomes.keys() == {each.source for each in life.sent.values()}


def test_the_sentences_of_dead_letters_are_the_same_in_every_engine(life: Life) -> None:
    """The simulator uses the worker's functions; all engines must write the same sentences for the same records."""
    twin = SimulatedEngine()
    letters = {name: case for name, case in CASES.items() if not isinstance(case.becomes, Callback)}
    again = {name: Sent(life.sent[name].key, life.sent[name].value, life.sent[name].headers) for name in letters}
    if not isinstance(life.engine, SimulatedEngine):
        internal = {life.engine.names["dead-letter"], life.engine.names["request"]}
        again = {
            name: each
            for name, each in again.items()
            if not any(topic.encode() in (each.value or b"") for topic in internal)
        }
    twin.clock.now_ms = life.start_s[Phase.UP] * 1000
    order = list(again)
    random.Random(7).shuffle(order)
    twin.send([again[name] for name in order])
    said = {
        outcome.text("timer-source"): outcome.text("timer-error-message") for outcome in twin.outcomes(lambda _: True)
    }
    for name in order:
        (outcome,) = life.outcomes[life.sent[name].source]
        assert outcome.text("timer-error-message") == said[again[name].source], name
