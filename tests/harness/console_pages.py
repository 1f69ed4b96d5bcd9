"""What a console shows in tests: a cluster in memory, answers of workers, dead letters; and how its pages are read."""

import time
from typing import Any

from tests.harness.sim_console import SimCluster
from timers.client.request import TimerRequest
from timers.console.web.site import MENU
from timers.core.timer import Rejected
from timers.offline.dead_letters.letters import Letter
from timers.offline.fired import CallbackRecord, PastFirings
from timers.wire import dead_letter, future
from timers.wire.formats import RequestRecord
from timers.wire.topics import DEAD_LETTER

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&{{ 7*7 }}"
HTML = {"Accept": "text/html"}
PART = {"HX-Request": "true"}
READY = b'{"ready": true, "reasons": [], "stopped": {}, "pending": 7, "tick_age_s": 0.1}'
LAGS = b"""# TYPE timers_lag_seconds histogram
timers_lag_seconds_bucket{way="waited",le="0.01"} 50.0
timers_lag_seconds_bucket{way="waited",le="0.1"} 100.0
timers_lag_seconds_bucket{way="waited",le="+Inf"} 100.0
"""
IDS = {"TIMERS_ID_TOPIC": "sim-requests", "TIMERS_QUERIES": "values"}
SCREENS = (*(path for path, *_ in MENU), "/timers/new", "/runbook?name=clocks")
"""The screens that need no timer."""


ANSWERS: dict[str, Any] = {
    "id": "w1",
    "ready": True,
    "pending": 0,
    "tick_age_s": 0.4,
    "firing": ["t/0"],
    "request_partitions": {"t": 2},
}
LOST: dict[str, Any] = {"id": "w2", "ready": None, "why": "no answer", "assigned": {"t": [1]}}


def letter(offset: int, code: str, target: str) -> Letter:
    """A dead letter of a request for a callback to ``target``."""
    value = future.encode(target, "k", b"secret")
    source = f"timer-request/1/{offset + 100}"
    record = dead_letter.encode(Rejected(offset, code, "a sentence", b"1", value, ()), source, 10_000)
    decoded = dead_letter.decode(record.headers)
    assert decoded is not None
    return Letter(DEAD_LETTER, 0, offset, offset * 1000, RequestRecord(offset, b"1", value, [], 0), decoded)


def lagging_ms(number: int) -> int:
    return (1_900_000_000 + number) * 1000 + number


def due(number: int) -> list[tuple[str, bytes | None]]:
    return [("timer-due", b"%d" % (1_900_000_000 + number)), ("timer-id", b"<%d>" % number)]


def cluster_with(*ids: str, topic: str = "timeouts") -> SimCluster:
    """A cluster with a ready worker, an unknown one, and these timers."""
    cluster = SimCluster()
    cluster.pages = {
        "/health/ready": (200, READY),
        "/health/partitions": (200, b'{"red": {}, "firing": ["t/0", "t/1"]}'),
        "/metrics": (200, LAGS),
    }
    cluster.topic_names = {topic}
    newest = [CallbackRecord(topic, 0, number, lagging_ms(number), b"<k>", None, due(number)) for number in range(50)]
    cluster.past = PastFirings(newest[::-1], {})
    for id in ids:
        cluster.timers[id] = TimerRequest(topic, id, id.encode(), int(time.time()) + 900, None, [], None, id)
    return cluster


async def text_of(client: Any, path: str, status: int = 200, **more: Any) -> str:
    """The HTML of a page."""
    async with client.get(path, **{"headers": HTML, **more}) as response:
        text: str = await response.text()
        assert response.status == status, text
        assert response.content_type == "text/html"
        policy = response.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'self';") and "unsafe" not in policy
        return text
