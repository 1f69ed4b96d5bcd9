"""Questions of queries to machines that are open in tasks only: micro-batches carry them, and their answers."""

import asyncio
import pickle
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from time import sleep
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from tests.harness.constants import Constants
from tests.harness.machines import BY_ID
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.cli.broker.embedded import free_port
from timers.console import kafka_cluster
from timers.console.figures import DO_NOT_FIRE, FIRE
from timers.console.kafka_cluster import FoundGroup, FoundWorker, KafkaCluster
from timers.console.worker_pages import look
from timers.core.listing import NoAnswer
from timers.core.machine import Machine
from timers.core.ports import Lost
from timers.core.progress import Progress
from timers.errors import QueryError
from timers.kafka import topic_admin
from timers.kafka.topics import Cluster
from timers.machines.queries.answers import LocalSource, Lookup
from timers.machines.queries.pages import QueryPages
from timers.machines.queries.reading import Place, Turns
from timers.machines.store.memory import MemoryStore
from timers.process.config.settings import Settings
from timers.process.http.asking import ask
from timers.process.threads import LoopThread, call_in_thread
from timers.spark.engine import query_port
from timers.spark.engine import questions as engine_questions
from timers.spark.engine.bucket import Told
from timers.spark.engine.query_port import PACE, answering
from timers.spark.engine.questions import ANSWERS_S, Answering, Questions
from timers.spark.monitoring import EngineCounts, Monitor
from timers.spark.totals import Total

TP = ("timer-request", 1)
PENDING = attrgetter("pending")
NOTHING: Any = None
MONITOR = Monitor("engine", 1)


def asked_by(wake: Callable[[], Any]) -> Questions:
    """Questions to an engine whose first micro-batch has begun."""
    questions = Questions(wake)
    questions.told()
    return questions


def micro_batch(questions: Questions, machine: Any) -> int:
    """The tasks answer what goes with a micro-batch. Returns the number of questions."""
    asked = Told.decode(Told({}, [], questions.told()).encode()).questions
    questions.note(pickle.loads(pickle.dumps([question.answered(machine) for _, question in asked])))
    return len(asked)


def recovering(machine: Machine) -> None:
    raise NoAnswer("its log is being read again")


def broken(machine: Machine) -> None:
    raise KeyError("a bug")


def damaged(machine: Machine) -> None:
    raise Lost("the store is damaged")


def test_a_question_wakes_the_query_once_and_goes_with_each_micro_batch_until_it_is_answered() -> None:
    woken: list[int] = []
    questions = asked_by(lambda: woken.append(1))
    first, second = (questions.ask(TP, PENDING) for _ in range(2))
    assert len(woken) == 1
    assert [tp for tp, _ in questions.told()] == [TP, TP], "this micro-batch fails"
    assert second.cancel(), "it was not answered in time"
    third = questions.ask(TP, PENDING)
    assert len(woken) == 2
    assert micro_batch(questions, SimpleNamespace(pending=7)) == 2
    assert first.result(0) == third.result(0) == 7
    assert questions.told() == []


def test_an_engine_that_starts_says_so_at_once() -> None:
    questions = Questions(lambda: None)
    with pytest.raises(NoAnswer, match="the engine is starting"):
        questions.ask(TP, PENDING).result(0)
    assert questions.told() == []
    assert not questions.ask(TP, PENDING).done()


def test_an_answer_that_comes_twice_or_late_has_no_effect() -> None:
    questions = asked_by(lambda: None)
    late = questions.ask(TP, PENDING)
    ((_, question),) = questions.told()
    assert late.cancel()
    answers = [question.answered(SimpleNamespace(pending=1))]  # type: ignore[arg-type]
    questions.note(answers)
    asked = questions.ask(TP, PENDING)
    micro_batch(questions, SimpleNamespace(pending=2))
    questions.note(answers)
    assert asked.result(0) == 2


@pytest.mark.parametrize(("question", "why"), [(recovering, "read again"), (broken, "cannot read it")])
def test_the_driver_learns_why_there_is_no_answer(question: Callable[[Machine], None], why: str) -> None:
    questions = asked_by(lambda: None)
    asked: Future[None] = questions.ask(TP, question)
    micro_batch(questions, None)
    with pytest.raises(NoAnswer, match=why):
        asked.result(0)


def test_a_store_that_a_question_finds_damaged_is_opened_again() -> None:
    questions = asked_by(lambda: None)
    questions.ask(TP, damaged)
    with pytest.raises(Lost):
        micro_batch(questions, None)


def test_questions_to_a_bucket_that_take_long_go_with_the_next_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timers that are due next wait for the answers of all its machines."""
    now_s = [100.0]
    monkeypatch.setattr(engine_questions, "monotonic", lambda: now_s[0])

    def asked(number: int, takes_s: float) -> Any:
        def answered(_: object) -> tuple[int, None, None]:
            now_s[0] += takes_s
            return number, None, None

        return SimpleNamespace(answered=answered)

    def numbers(*machines: Any) -> list[list[int]]:
        answering = Answering()
        return [[number for number, *_ in answering.answers(each, NOTHING)] for each in machines]

    short, long = ANSWERS_S / 10, ANSWERS_S + 0.1
    assert numbers([asked(1, short), asked(2, short)], [asked(3, short)]) == [[1, 2], [3]]
    assert numbers([asked(1, short), asked(2, long), asked(3, short)], [asked(4, short)]) == [[1, 2], []]
    assert numbers([], [asked(1, 5.0)], [asked(2, short)]) == [[], [1], []], "one at least"


async def test_an_id_that_is_not_found_in_time_gets_its_sentence() -> None:
    """A page may wait longer: it is read in several micro-batches."""
    source = LocalSource(
        SimpleNamespace(ask=lambda _: Future[None]()),
        Place(*TP, moved=False),
        BY_ID,
        request_reader=NOTHING,
        turns=Turns(lambda: None),
        pace=PACE._replace(look_up_s=0.01, answer_s=600.0),
    )
    with pytest.raises(NoAnswer, match="it has been busy for 0 s"):
        await source.find(Lookup("id-1", None, with_value=False))


# ---- the port -------------------------------------------------------------------------------------------------------

SETTINGS = Settings(id_topic="")
CLUSTER: Any = Cluster("cluster", {}, {TP[0]: 2, SETTINGS.retry_topic: 1})


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("of the test")
    yield thread
    thread.close()


def machine_with_a_timer() -> Any:
    store = MemoryStore()
    store.write({2_000_000_000: [(5, "orders", "k", b"", None, None)]}, 6)
    machine: Any = SimpleNamespace(_store=store, _index=None, recovering=False, progress=Progress())
    machine.waiting = lambda *arguments: Machine.waiting(machine, *arguments)
    return machine


def openings_on(loop: LoopThread, runners: Mapping[tuple[str, int], Any] = MappingProxyType({})) -> Any:
    """Openings of the driver, with a loop and machines."""
    return SimpleNamespace(parts=SimpleNamespace(producers=loop), snapshots=SimpleNamespace(runners=runners))


def test_the_driver_answers_the_paths_of_a_worker_as_soon_as_its_port_is_free(loop: LoopThread) -> None:
    questions = asked_by(lambda: None)
    driver: Any = SimpleNamespace(questions=questions, openings=openings_on(loop))
    said: list[str] = []
    stop = threading.Event()
    machine = machine_with_a_timer()

    def run() -> None:
        while not stop.is_set():
            micro_batch(questions, machine)
            sleep(0.01)

    port = free_port()
    with socket.create_server(("127.0.0.1", port)) as other:
        settings = replace(SETTINGS, web_port=port)
        query = threading.Thread(target=run)
        query.start()
        try:
            with answering(settings, CLUSTER, driver, MONITOR, said.append):
                wait_until(lambda: bool(said), "the port is said to be in use")
                assert said[0].startswith(f"queries are answered when TIMERS_WEB_PORT={port}")
                other.close()

                def listed() -> Any:
                    try:
                        return ask(settings, "/timers", {"limit": "10"}, "cluster")
                    except QueryError:
                        return None

                wait_until(lambda: listed() is not None, "the port answers")
                answer = listed()
        finally:
            stop.set()
            query.join()
    assert len(said) == 1
    assert {(each["due"], each["topic"]) for each in answer["timers"]} == {(2_000_000_000, "orders")}
    assert answer["missing"] == [{"partition": f"{SETTINGS.retry_topic}/0", "reason": "the engine is opening it"}]


async def test_the_console_reads_the_driver_as_one_worker(loop: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without workers it would say that no timer fires."""
    retry, monitor = (SETTINGS.retry_topic, 0), Monitor("engine", 1, lambda: 1000.0)
    monitor.engine = EngineCounts(waiting_in_driver=lambda: {retry: (1, None)})
    monitor.needs_ticks()
    runner = SimpleNamespace(machine=SimpleNamespace(pending=1))
    driver: Any = SimpleNamespace(questions=asked_by(lambda: None), openings=openings_on(loop, {retry: runner}))
    settings = replace(SETTINGS, web_port=free_port())
    found = FoundWorker("timers-engine", settings.query_url, [retry, (TP[0], 0), TP], may_be_asked=True)
    monkeypatch.setattr(kafka_cluster, "find_group", lambda _: FoundGroup([found]))
    monkeypatch.setattr(topic_admin, "cluster_id", lambda _: "cluster")
    cluster = KafkaCluster(settings)

    async def once(timers: str) -> Any:
        """What the console says; at first nothing listens, and on a busy machine an answer may come too late."""
        async with asyncio.timeout(DEADLINE_S):
            while (said := await look(cluster))["state"]["timers"] != timers:
                await asyncio.sleep(0.01)
        return said

    try:
        with answering(settings, CLUSTER, driver, monitor, print):
            said = await once(DO_NOT_FIRE)
            assert "the job has not read its topics yet" in said["state"]["why"]
            monitor.engine.add(Total({"fired": 3}, {TP: (6, None)}, True, {}, []))
            monitor.ended(9, 0.5)
            monitor.ticked(1_800_000_000_000)
            said = await once(FIRE)
    finally:
        await cluster.close()
    assert said["state"] == {"timers": FIRE, "why": ""}
    (worker,) = said["workers"]
    assert (worker["pending"], worker["fired"], worker["dead_letters"]) == (7, 3, {})


def test_an_engine_that_ends_does_not_wait_for_answers(loop: LoopThread, constants: Constants) -> None:
    constants(query_port, PACE=PACE._replace(answer_s=600.0))
    asked, ended = threading.Event(), threading.Event()
    driver: Any = SimpleNamespace(questions=asked_by(asked.set), openings=openings_on(loop))
    settings = replace(SETTINGS, web_port=free_port())

    def query() -> None:
        while not asked.is_set():
            with suppress(QueryError):
                ask(settings, "/timers", {"limit": "10"}, "cluster")

    def run() -> None:
        with answering(settings, CLUSTER, driver, MONITOR, lambda _: None):
            assert asked.wait(60)
        ended.set()

    threads = [threading.Thread(target=each, daemon=True) for each in (query, run)]
    for thread in threads:
        thread.start()
    wait_until(ended.is_set, "the engine has ended", 30)
    for thread in threads:
        thread.join()


def test_an_engine_ends_although_its_port_does_not(
    loop: LoopThread, monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    constants(query_port, END_S=0.05)
    monkeypatch.setattr(QueryPages, "close", lambda _: asyncio.Event().wait())
    driver: Any = SimpleNamespace(questions=asked_by(lambda: None), openings=openings_on(loop))

    def run() -> None:
        with answering(replace(SETTINGS, web_port=0), CLUSTER, driver, MONITOR, lambda _: None):
            pass

    call_in_thread("engine", run).result(DEADLINE_S)
