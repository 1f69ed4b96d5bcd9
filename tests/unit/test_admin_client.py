"""An admin client can be freed in any thread, and is made anew when it has no answers."""

import gc
import threading
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection

from tests.harness.sim_admin import answered
from timers.kafka import admin_client
from timers.kafka.admin_client import FORMER_S, UNANSWERED_S, AdminClient, RenewedAdmin


def test_a_client_that_its_own_thread_frees_is_closed_in_another_one() -> None:
    """Without this rule librdkafka ends the process."""
    closing: Future[int] = Future()

    class Noting(AdminClient):
        itself: Any

        def __exit__(self, *raised: Any) -> None:
            super().__exit__(*raised)
            closing.set_result(threading.get_ident())

    freeing: Future[int] = Future()

    def free(_: object) -> None:
        gc.collect()
        freeing.set_result(threading.get_ident())

    admin = Noting({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    admin.itself = admin  # so that only the collector frees it
    described: Any = admin.describe_topics(TopicCollection(["topic"]), request_timeout=0.2)["topic"]
    gc.disable()  # only the callback collects
    try:
        del admin
        described.add_done_callback(free)
        own = freeing.result(60)
    finally:
        gc.enable()
    assert own != threading.get_ident()
    assert closing.result(60) not in (own, threading.get_ident())


class SimClient:
    """A client whose answers are planned: None is one of the brokers, and a code is an error."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.poll = partial(int, number)
        self.answer: int | None = None

    def list_topics(self) -> object:
        if self.answer is not None:
            raise KafkaException(KafkaError(self.answer))
        return SimpleNamespace()

    def describe_cluster(self) -> Future[object]:
        return answered(self.number if self.answer is None else KafkaException(KafkaError(self.answer)))

    def describe_topics(self) -> dict[str, Future[object]]:
        return {"topic": self.describe_cluster()}


def asked(admin: Any, method: str, answer: int | None) -> None:
    """Ask a question."""
    made[admin.poll()].answer = answer
    try:
        getattr(admin, method)()
    except KafkaException:
        assert method == "list_topics"


made: list[SimClient] = []


@pytest.mark.parametrize("method", ["list_topics", "describe_cluster", "describe_topics"])
@pytest.mark.parametrize(
    ("answer", "is_silent"),
    [
        (KafkaError._TIMED_OUT, True),
        (KafkaError._NOENT, True),  # "no leaders found", which a client says that has no broker
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False),
        (None, False),
    ],
)
def test_a_client_without_an_answer_for_a_time_is_made_anew(
    method: str, answer: int | None, is_silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.clear()

    def make() -> Any:
        made.append(SimClient(len(made)))
        return made[-1]

    now_s = 100.0
    monkeypatch.setattr(admin_client, "monotonic", lambda: now_s)
    admin: Any = RenewedAdmin(make)
    asked(admin, method, KafkaError._TRANSPORT)
    asked(admin, method, None)
    for _ in range(2):  # the time begins with the first question without an answer after the last one with an answer
        now_s += UNANSWERED_S
        asked(admin, method, answer)
    assert admin.poll() == 0
    now_s += 1
    assert admin.poll() == int(is_silent)
    now_s += FORMER_S + 1
    assert admin.poll() == int(is_silent) and admin._former is None


def test_a_client_that_cannot_be_made_is_tried_again_after_the_same_time(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.clear()

    def make() -> Any:
        if len(made) == 1 and now_s < 200.0:
            raise RuntimeError("can't start new thread")
        made.append(SimClient(len(made)))
        return made[-1]

    now_s = 100.0
    monkeypatch.setattr(admin_client, "monotonic", lambda: now_s)
    admin: Any = RenewedAdmin(make)
    asked(admin, "list_topics", KafkaError._TRANSPORT)
    now_s += UNANSWERED_S + 1
    assert [admin.poll(), admin.poll()] == [0, 0]
    assert caplog.text.count("can't start new thread") == 1
    asked(admin, "list_topics", KafkaError._TRANSPORT)
    now_s += UNANSWERED_S + 1
    assert admin.poll() == 1
