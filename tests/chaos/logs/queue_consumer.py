"""The consumer of a queue whose log loses its end. It prints what it did when it is committed.

Lines: ``opened``, ``retried <number> ...``, ``acked <number> ...``, and if the queue stops, ``unsettled <number> ...``
(acked, and perhaps committed) and ``red <sentence>``.
"""

import contextlib
import logging
import os
import signal
import sys

from tests.harness.queue_calls import PATIENT
from timers.errors import QueueError
from timers.queue import Backoff, LeaseLostError, Message, Queue

OPENED, RETRIED, ACKED, UNSETTLED, RED = "opened", "retried", "acked", "unsettled", "red"
ACCEPTS = "CONSUMER_ACCEPTS_LOSS"
"""Environment variable: whether the queue goes on after a loss."""

WAY_OUT = "accept_loss="
"""What the sentence of a red queue says."""

RETRY_S = 45.0
"""A tenth of the messages is retried after so long: while the log loses its end they wait."""


def is_retried(number: int) -> bool:
    """Its first attempt is retried."""
    return number % 10 == 0


def _settle(message: Message, settled: dict[str, list[int]]) -> None:
    number = int(message.value or b"")
    with contextlib.suppress(LeaseLostError):  # the log lost it: the call does not count
        if is_retried(number) and message.attempt == 1:
            message.retry(after=RETRY_S)
            settled[RETRIED].append(number)
        else:
            message.ack()
            settled[ACKED].append(number)


def main(topic: str) -> int:
    """Handle messages until SIGTERM, or until the queue is red."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    is_accepted = os.environ.get(ACCEPTS) == "1"
    with Queue(topic, member="consumer", backoff=Backoff(retries=50), accept_loss=is_accepted, **PATIENT) as queue:
        signal.signal(signal.SIGTERM, lambda *_: queue.stop())
        print(OPENED, flush=True)
        while not queue.stopping:
            settled: dict[str, list[int]] = {RETRIED: [], ACKED: []}
            try:
                for message in queue.receive(200, wait_s=0.3):
                    _settle(message, settled)
                queue.settle()
            except QueueError as error:
                if WAY_OUT in str(error):
                    print(UNSETTLED, *settled[ACKED], flush=True)
                    print(RED, error, flush=True)
                    return 1
                print("failed", error, flush=True)
                continue
            for what, numbers in settled.items():
                if numbers:
                    print(what, *numbers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
