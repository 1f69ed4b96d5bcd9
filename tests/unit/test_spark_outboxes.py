"""The outboxes of one Python worker of Spark, without brokers."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the extra 'spark'")

from timers.config.settings import Settings
from timers.core.progress import Progress
from timers.kafka.topics import Cluster
from timers.spark.engine import outboxes as module
from timers.spark.engine.machines import Known, Producer
from timers.spark.engine.outboxes import Outboxes, Places

SETTINGS = Settings(id_topic="")
CLUSTER = Cluster("cluster", {SETTINGS.request_topic: b"topic"}, {SETTINGS.request_topic: 3})


class SimLoop:
    """A loop of producers that is not there."""

    def close(self) -> None:
        """Nothing runs."""


@pytest.fixture(autouse=True)
def without_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ProducerLoop", SimLoop)


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


class Offline(Outboxes):
    """Reads the progress of a list instead of the brokers."""

    def __init__(self, places: Places) -> None:
        super().__init__(places)
        self.read: list[int] = []
        producers: Any = {partition: SimProducer(3) for partition in range(3)}
        self._producers |= producers

    def _read(self, partitions: Any) -> dict[int, Progress]:
        self.read += sorted(partitions)
        return dict.fromkeys(partitions, Progress(99))

    def _opened(self, partition: int, progress: Progress) -> Any:
        return progress


def known(epoch: int) -> Known:
    return Known(5, Progress(5), b"topic", Producer(7, epoch), 0)


def test_progress_is_read_if_others_may_have_committed() -> None:
    outboxes = Offline(Places(SETTINGS, CLUSTER, 1))
    opened: Any = outboxes.open({0: known(3), 1: None})
    assert opened == {0: Progress(5), 1: Progress(99)}
    assert (outboxes.read, outboxes.had_others) == ([1], False)
    opened = outboxes.open({2: known(2)})
    assert (opened, outboxes.had_others) == ({2: Progress(99)}, True)
    outboxes.adopt([])
    assert not outboxes.had_others
    outboxes.close()


def test_a_process_closes_the_outboxes_of_an_earlier_query() -> None:
    places = Places(SETTINGS, CLUSTER, 1)
    first = Offline.of(places)
    assert Offline.of(Places(SETTINGS, CLUSTER, 1)) is first
    second = Offline.of(Places(SETTINGS, CLUSTER, 2))
    assert second is not first
    assert all(producer.is_closed for producer in first._producers.values())  # type: ignore[attr-defined]
    second.close()
