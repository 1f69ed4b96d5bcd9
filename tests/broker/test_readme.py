"""The Python blocks of the README run unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0])
def test_a_block_runs(block: str, broker_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = "readme-requests"
    admin = AdminClient({"bootstrap.servers": broker_address})
    error = admin.create_topics([NewTopic(topic, 4, 1)])[topic].exception()
    assert error is None or "already exists" in str(error)
    monkeypatch.setenv("TIMERS_BROKERS", broker_address)
    monkeypatch.setenv("TIMERS_REQUEST_TOPIC", topic)
    names: dict[str, object] = {}
    exec(block, names)
    if "timer_id" in names:
        assert re.fullmatch(rf"{topic}/\d+/\d+", str(names["timer_id"]))
