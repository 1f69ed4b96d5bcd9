"""What the engine on Spark checks before it starts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import (
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    GroupLoadInProgressError,
    KafkaConnectionError,
    NotCoordinatorForGroupError,
)
from confluent_kafka import KafkaError, KafkaException

pytest.importorskip("pyspark", reason="needs the extra 'spark'")

from timers.config.settings import Settings
from timers.core.levels import CONDITIONS
from timers.core.progress import SEAL, Progress, SettingChange
from timers.errors import SettingsError, TimersError
from timers.kafka.aiokafka_internals import group_access
from timers.kafka.aiokafka_internals.group import DescribedGroup
from timers.spark.engine import start
from timers.spark.engine.checkpoints import Checkpoint
from timers.spark.engine.query import Plan

SETTINGS = Settings(id_topic="")
TOPIC = SETTINGS.request_topic
CLUSTER: Any = SimpleNamespace(partitions={TOPIC: 1}, topic_ids={})


class Log:
    """A progress log whose brokers answer after some failures.

    Attributes:
        checked: positions of the logs that were checked.
    """

    def __init__(self, failures: int = 0, low: int = 0, progress: Progress | None = None) -> None:
        self._left = iter(range(failures))
        self._low = low
        self._progress = progress or Progress()
        self.checked: list[int] = []

    def read(self, machines: Any) -> dict[Any, bytes]:
        if next(self._left, None) is not None:
            raise KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
        return {}

    def check(self, tp: Any, record: bytes | None) -> Progress:
        return self._progress

    def level_of_new_machines(self) -> int:
        return CONDITIONS

    def ends(self, topic: str, partition: int) -> tuple[int, int]:
        return self._low, 100

    def check_start(self, tp: Any, low: int, position: int, progress: Progress) -> None:
        self.checked.append(low)

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a plan over a given log, with a new checkpoint or an existing one."""
    monkeypatch.setattr(start, "POLL_S", 0.0)
    monkeypatch.setattr(start, "_announce", lambda *_: 7)

    def make(log: Log, *, is_new: bool = True) -> Any:
        monkeypatch.setattr(start, "ProgressLog", lambda *_: log)
        monkeypatch.setattr(start, "choose_checkpoint", lambda *_: Checkpoint("path", 2, is_new))
        return start.plan(None, SETTINGS, CLUSTER, "directory", None, 2, 1000)  # type: ignore[arg-type]

    return make


def test_the_engine_waits_for_a_leader_that_changes(plan: Any) -> None:
    made = plan(Log(failures=3))
    assert made == Plan("path", 2, 1000, CLUSTER, {0: 0}, {0: Progress.first(CONDITIONS)}, 7, CONDITIONS)


def test_brokers_that_do_not_answer_raise_one_sentence(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "TIMEOUT_S", 0.0)
    with pytest.raises(
        TimersError, match=r"the progress of 'timer-request' cannot be read from .*: Broker: Not leader"
    ):
        plan(Log(failures=10**6))


def test_a_log_that_is_read_from_its_start_must_be_complete(plan: Any) -> None:
    new, known = Log(low=7), Log(low=7)
    assert plan(new).starts == {0: 7}
    plan(known, is_new=False)
    assert (new.checked, known.checked) == ([7], [])


def test_a_partition_with_cold_timers_needs_workers(plan: Any) -> None:
    with pytest.raises(SettingsError, match=r"timer-request/0 went to the cold tier, and only workers take them back"):
        plan(Log(progress=Progress(10, settings=(SettingChange(SEAL, 0, 1),))))


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"TIMERS_HOT_HORIZON_S": "3600"}, "TIMERS_HOT_HORIZON_S=3600: the engine on Spark has no cold tier"),
        ({}, r"TIMERS_ID_TOPIC='timer-request-by-id': .* if the app has none, set TIMERS_ID_TOPIC= \(empty\)"),
        ({"TIMERS_ID_TOPIC": "", "TIMERS_COUNTDOWN_TOPIC": "delay"}, "timers on delay need a worker"),
    ],
)
def test_settings_that_need_a_worker_are_refused(setting: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        start.check_supported(Settings.load(setting))
    start.check_supported(SETTINGS)


# ---- workers that run ---------------------------------------------------------------------------------------------


def coordinator(monkeypatch: pytest.MonkeyPatch, *answers: int | Exception) -> None:
    """Let the group's coordinator answer with numbers of members, the last one again and again."""
    left = list(answers)

    def describe(settings: Settings) -> DescribedGroup:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return DescribedGroup(0, "Stable", [("", "", "", b"", b"")] * answer)

    monkeypatch.setattr(group_access, "describe", describe)


def group(monkeypatch: pytest.MonkeyPatch, *answers: int | Exception) -> list[str]:
    """Wait until no worker is in the group; returns the lines."""
    coordinator(monkeypatch, *answers)
    monkeypatch.setattr(start, "POLL_S", 0.0)
    lines: list[str] = []
    start.wait_for_workers(SETTINGS, lines.append)
    return lines


def test_the_engine_starts_when_workers_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    assert group(monkeypatch, 0) == []
    assert group(monkeypatch, CoordinatorNotAvailableError()) == []
    assert group(monkeypatch, GroupLoadInProgressError(), NotCoordinatorForGroupError(), 0) == []
    assert group(monkeypatch, 2, 1, 0) == ["waiting until 2 workers of 'timers' have left their group"]


def test_the_engine_does_not_start_while_workers_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "LEAVING_S", -SETTINGS.session_timeout_s)
    with pytest.raises(TimersError, match=r"3 workers of TIMERS_APP_ID='timers' run: stop them first"):
        group(monkeypatch, 3)
    with pytest.raises(TimersError, match=r"the members of the group 'timers' cannot be read"):
        group(monkeypatch, GroupAuthorizationFailedError("timers"))


@pytest.mark.parametrize("answer", [0, TimeoutError(), KafkaConnectionError("no broker")])
def test_the_engine_starts_its_query_again_unless_workers_are_known_to_run(
    monkeypatch: pytest.MonkeyPatch, answer: int | Exception
) -> None:
    coordinator(monkeypatch, answer)
    start.check_no_workers(SETTINGS)


def test_the_engine_ends_when_workers_have_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator(monkeypatch, 2)
    with pytest.raises(TimersError, match=r"^2 workers of TIMERS_APP_ID='timers' have taken over$"):
        start.check_no_workers(SETTINGS)
