"""What `timers spark promote` reads of the request logs when it starts again."""

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra 'spark'")

from confluent_kafka import KafkaError, KafkaException

from timers.core.ports import Lost
from timers.core.progress import PASSED_OVER, History, Progress, SettingChange
from timers.errors import LogMismatch
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
