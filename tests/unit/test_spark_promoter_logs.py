"""What `timers spark promote` reads of the request logs when it starts again."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra 'spark'")

from confluent_kafka import KafkaError, KafkaException

from timers.core.ports import Lost
from timers.core.progress import PASSED_OVER, History, Progress, SettingChange
from timers.errors import LogMismatch, NameTakenError
from timers.process.config.settings import Settings
from timers.spark.jobs import promote

DENIED = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "not allowed"))


@pytest.mark.parametrize("error", [DENIED, Lost("the topic was deleted"), LogMismatch("a record is damaged")])
def test_promotion_starts_without_a_right_to_read_the_progress(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> Any:
        raise error

    monkeypatch.setattr(promote, "existing_topics", lambda *_: None)
    monkeypatch.setattr(promote, "read_all", fail)
    spark: Any = None
    assert promote.Logs(spark, Settings())._passed_over() == {}
    assert "what workers have passed over in the request logs is not known" in caplog.text


def test_promotion_leaves_out_what_workers_have_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Progress(20, settings=History([SettingChange(PASSED_OVER, 3, 9)]))
    monkeypatch.setattr(promote, "existing_topics", lambda *_: None)
    monkeypatch.setattr(promote, "read_all", lambda *_: {("t", 0): progress})
    spark: Any = None
    assert promote.Logs(spark, Settings())._passed_over() == {("t", 0): progress.settings.passed_over}
    assert progress.settings.passed_over


class Group:
    """The group in which promoters note their newest batch and run, and the transactional id that they open.

    Attributes:
        noted: the newest batch and run.
        steps: what was done, in this order.
        meanwhile: what other promoters do while the id is opened, one each time.
        answers: whether the group has a coordinator.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.noted = "first", ""
        self.steps: list[str] = []
        self.meanwhile: list[Callable[[], None]] = []
        self.answers = True
        monkeypatch.setattr(promote, "_noted", self._read)
        monkeypatch.setattr(promote, "note_offsets", self._note)
        monkeypatch.setattr(promote, "TransactionalWriter", self._open)
        monkeypatch.setattr(promote.Logs, "ends", lambda _: {})

    def _read(self, config: Any, group: str, topic: str, timeout_s: float) -> tuple[str, str]:
        self.steps.append("ask")
        if not self.answers:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return self.noted

    def _note(self, config: Any, group: str, places: list[Any], timeout_s: float) -> None:
        self.steps.append("note")
        batch, _, run = places[0].metadata.partition(" ")
        self.noted = batch, run

    def _open(self, *_: Any) -> Any:
        self.steps.append("open")
        if self.meanwhile:
            self.meanwhile.pop(0)()

    def promoter(self) -> promote.Logs:
        spark: Any = None
        return promote.Logs(spark, Settings())


def test_a_former_promoter_that_had_looked_before_takes_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks who is the newest, and notes its next batch afterwards."""
    group = Group(monkeypatch)
    former, newer = group.promoter(), group.promoter()
    former.take_over()
    group.meanwhile = [lambda: former._note("second")]
    newer.take_over()
    assert group.noted == ("second", newer._run)
    newer.port()()
    with pytest.raises(NameTakenError):
        former.port()()


def test_a_promoter_that_others_follow_again_and_again_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(monkeypatch)
    promoter = group.promoter()

    def follow() -> None:
        group.noted = "other", "another run"

    group.meanwhile = [follow] * 3
    with pytest.raises(NameTakenError):
        promoter.take_over()
    assert group.noted == ("other", "another run")


@pytest.mark.parametrize(("answers", "steps"), [(True, ["ask", "open", "ask"]), (False, ["ask", "open"])])
def test_a_group_without_a_coordinator_is_asked_once_for_each_writer(
    answers: bool, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round that writes waits for the answer."""
    group = Group(monkeypatch)
    group.answers = answers
    group.promoter().port()()
    assert group.steps == steps
