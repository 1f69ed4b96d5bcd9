"""Opening partitions in one Python worker of Spark, without brokers."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("pyarrow", reason="needs the extra 'spark'")

from tests.harness.constants import Constants
from tests.simulation.kit import SimClock, SimLog
from tests.simulation.kit.faults import Faults
from tests.simulation.kit.outbox import SimTopics, outbox_of
from timers.core.index import Swept
from timers.core.progress import Progress
from timers.core.timer import Tick, TopicPartition
from timers.errors import StoreError, StoreInUse
from timers.kafka.topics import Cluster
from timers.machines import opener
from timers.machines.opener import OpenedMachine
from timers.machines.store import opening
from timers.process.config.settings import Settings
from timers.spark.engine import machines as module
from timers.spark.engine.machines import Known, Openings, Places, ProducerOpening

SETTINGS = Settings(id_topic="")
TOPIC = SETTINGS.request_topic
CLUSTER = Cluster("cluster", {TOPIC: b"topic"}, {TOPIC: 3})


class SimProducer:
    """A transactional producer whose openings follow each other."""

    def __init__(self, epoch: int) -> None:
        self.opening = (7, epoch)
        self.is_closed = False

    def renew(self) -> None:
        number, epoch = self.opening
        self.opening = number, epoch + 1

    def close(self) -> None:
        self.is_closed = True


class Offline(Openings):
    """Opens nothing on brokers, and says how each partition was opened."""

    def __init__(self, places: Places) -> None:
        super().__init__(places)
        self.has_store = True
        self.in_use = 0
        producers: Any = {(TOPIC, partition): SimProducer(3) for partition in range(3)}
        outboxes: Any = dict.fromkeys(producers)
        self._producers |= producers
        self._outboxes |= outboxes

    def _opened(self, tp: TopicPartition, made: Any, opening: ProducerOpening) -> Any:
        return made


def open_machine(stores: object, port: Any, tp: TopicPartition, ask: object, *, fences: bool) -> Any:
    """Fences, and says how the machine was opened."""
    assert fences
    openings: Offline = port._openings
    known = port.fence()
    openings.in_use -= 1
    if openings.in_use >= 0:
        raise StoreInUse("another process has it open")
    return SimpleNamespace(how="known" if known is not None and openings.has_store else "read")


def open_known(stores: object, port: Any, tp: TopicPartition, known: object) -> Any:
    return SimpleNamespace(machine=None, how="known") if port._openings.has_store else None


def how(opened: Any) -> str | None:
    """How a partition was opened."""
    return None if opened is None else opened.how


NOW_S = 1_000_000


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Targets", "RequestReader", "LogLineages", "AskLog", "ProducerLoop", "Snapshots"):
        monkeypatch.setattr(module, name, Mock())
    monkeypatch.setattr(opener, "open_machine", open_machine)
    monkeypatch.setattr(opener, "open_known", open_known)


def known(epoch: int, topic_id: bytes = b"topic") -> Known:
    return Known(5, Progress(5), topic_id, ProducerOpening(7, epoch), Swept(), 0, 0, None, ())


@pytest.mark.parametrize(
    ("before", "has_store", "expected"),
    [
        (known(3), True, ("known", False)),
        (None, True, ("read", False)),
        (known(2), True, ("read", True)),
        (known(3), False, ("read", False)),
        (known(3, b"another topic"), True, ("read", False)),
    ],
)
def test_progress_is_read_unless_it_is_known(before: Known | None, has_store: bool, expected: Any) -> None:
    openings = Offline(Places(SETTINGS, CLUSTER, 1))
    openings.has_store = has_store
    assert (how(openings.open((TOPIC, 0), before)), openings.had_others) == expected
    openings.close()


@pytest.mark.parametrize(
    ("before", "has_store", "expected"),
    [(known(1), True, "known"), (known(1), False, None), (known(1, b"another topic"), True, None)],
)
def test_a_machine_that_is_only_read_fences_nobody(before: Known, has_store: bool, expected: Any) -> None:
    """Its store must be the one of the last commit that the bucket knows, whoever has made it."""
    openings = Offline(Places(SETTINGS, CLUSTER, 1))
    openings.has_store = has_store
    openings._producers.clear()  # those of a new process
    assert how(openings.look((TOPIC, 0), before)) == expected
    assert not openings._producers
    openings.close()


def test_a_store_that_another_attempt_has_open_is_waited_for(constants: Constants) -> None:
    openings = Offline(Places(SETTINGS, CLUSTER, 1))
    openings.in_use = 2
    assert how(openings.open((TOPIC, 0), known(3))) == "known"
    openings.has_store = False
    assert how(openings.open((TOPIC, 0), known(4))) == "read", "its owner was fenced once, so what is known stands"
    constants(module, IN_USE_S=-1.0)
    openings.in_use = 1
    assert how(openings.open((TOPIC, 0), None)) == "read", "the time begins when the store is found to be in use"
    openings.in_use = 2
    with pytest.raises(StoreInUse):
        openings.open((TOPIC, 0), None)
    openings.close()


@pytest.mark.parametrize("error", [None, StoreError("the disk is full")])
def test_a_closed_machine_releases_its_store_and_lock(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    """The run failed while a transaction was filled; the next one on this disk waits for the compute lock."""
    log = SimLog(SimClock(NOW_S))
    outboxes: Any = [outbox_of(log, SETTINGS, (TOPIC, 0), Faults(), SimTopics(log)) for _ in range(2)]
    first, second = (each.policy.transaction for each in outboxes)
    second._compute_lock = first._compute_lock
    openings = Offline(Places(SETTINGS, CLUSTER, 1))
    openings._outboxes[TOPIC, 0] = outboxes[0].policy
    store = Mock(**{"close.side_effect": error})
    monkeypatch.setattr(module, "Loop", Mock())
    made = OpenedMachine(Mock(), opening.Opened(Progress(), store, 0))
    opened = Openings._opened(openings, (TOPIC, 0), made, ProducerOpening(7, 3))
    first.begin(Tick(NOW_S * 1000))
    assert first._compute_lock.locked()
    opened.close()
    assert store.close.called and not first._compute_lock.locked()
    second.begin(Tick(NOW_S * 1000))
    openings.close()


def test_a_process_closes_the_producers_of_an_earlier_query() -> None:
    places = Places(SETTINGS, CLUSTER, 1)
    first = Offline.of(places, [], None, ())
    assert Offline.of(Places(SETTINGS, CLUSTER, 1), [], None, ()) is first
    second = Offline.of(Places(SETTINGS, CLUSTER, 2), [], None, ())
    assert second is not first
    assert all(producer.is_closed for producer in first._producers.values())  # type: ignore[attr-defined]
    second.close()
