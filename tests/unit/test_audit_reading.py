"""Which topics of a cluster an audit needs. No Spark is started, and no broker answers."""

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra 'spark'")

from confluent_kafka import KafkaError, KafkaException

from tests.harness.constants import Constants
from tests.harness.sim_admin import SimAdmin
from timers.errors import TimersError
from timers.kafka import topic_offsets
from timers.kafka.topic_offsets import TopicOffsets
from timers.process.config.settings import Settings
from timers.spark.audit.gaps import Scope
from timers.spark.audit.reading import Reading

SETTINGS = Settings.load({"TIMERS_REQUEST_TOPIC": "requests", "TIMERS_ID_TOPIC": ""})


@pytest.mark.parametrize("from_ms", [None, 1000])
def test_a_topic_without_a_leader_matters_only_if_requests_name_it(
    from_ms: int | None, monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    admin = SimAdmin(requests=1, orders=1, strange=1)
    admin.offsets["strange", 0] = KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
    monkeypatch.setattr(topic_offsets, "admin_client", lambda *_: admin)
    constants(topic_offsets, _POLL_S=0.01, _SKIP_S=0.1)
    others = TopicOffsets(SETTINGS, 0.3, skips_leaderless=True)
    none: Any = None
    reading = Reading(none, SETTINGS, Scope(from_ms=from_ms), TopicOffsets(SETTINGS, 0.3), others, none)
    monkeypatch.setattr(reading, "_read", lambda starts, ends: (starts, ends))
    read: Any = reading.outputs(["orders", "nowhere"])
    assert read == ({"orders": {0: 7}}, {"orders": {0: 7}})
    with pytest.raises(TimersError, match=r"^the leader of strange/0 does not answer$"):
        reading.outputs(["orders", "strange"])


def test_a_request_topic_needs_its_leaders(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> None:
    admin = SimAdmin(requests=1, orders=1)
    admin.offsets["requests", 0] = KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
    monkeypatch.setattr(topic_offsets, "admin_client", lambda *_: admin)
    constants(topic_offsets, _POLL_S=0.01, _SKIP_S=0.1)
    none: Any = None
    others = TopicOffsets(SETTINGS, 0.3, skips_leaderless=True)
    with pytest.raises(TimersError, match=r"^the leader of requests/0 does not answer$"):
        Reading(none, SETTINGS, Scope(), TopicOffsets(SETTINGS, 0.3), others, none)
