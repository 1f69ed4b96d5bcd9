"""An admin client can be freed in any thread."""

import gc
import threading
from concurrent.futures import Future
from typing import Any

from confluent_kafka import TopicCollection

from timers.kafka.admin_client import AdminClient


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
