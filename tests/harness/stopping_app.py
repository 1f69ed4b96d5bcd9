"""A worker that stops itself once, in a transaction.

A signal from outside meets a fast worker between two transactions, however often a test tries.
``STOPS_AT``: the topic of the callbacks.
``STOPS``: ``sent``, when they are delivered and not committed, or ``sending``, before they are sent.
"""

import os
import signal
from typing import Any

from timers.kafka.aiokafka_internals import produce

_deliver = produce.deliver_in_time
_waits = True


async def _deliver_and_stop(producer: Any, batches: Any, road: Any) -> None:
    _stop("sending", batches)
    await _deliver(producer, batches, road)
    _stop("sent", batches)


def _stop(when: str, batches: Any) -> None:
    global _waits
    if _waits and when == os.environ["STOPS"] and any(topic == os.environ["STOPS_AT"] for topic, _ in batches):
        _waits = False
        os.kill(os.getpid(), signal.SIGSTOP)


produce.deliver_in_time = _deliver_and_stop

from timers.app import app as app  # noqa: E402
