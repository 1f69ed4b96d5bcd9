"""A process of a queue whose messages say what to do. Each line of its output is an event and the message's value.

Messages that begin with ``kill`` end the process as ``kill -9`` does. Those that begin with ``wait`` wait until a file
with their name exists. Those that end with ``output`` have an output.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from tests.harness.waiting import DEADLINE_S, wait_until
from timers.queue import LeaseLostError, Message, Queue


def handle(message: Message, directory: Path, results: str) -> None:
    value = (message.value or b"").decode()
    print(f"started {value} attempt {message.attempt}", flush=True)
    if value.startswith("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    if value.startswith("wait"):
        wait_until((directory / value).exists, "the file", 10 * DEADLINE_S)
    try:
        if value.endswith("output"):
            message.output(results, value)
        message.ack()
        print(f"acked {value}", flush=True)
    except LeaseLostError:
        print(f"lost {value}", flush=True)


def main(topic: str, directory: Path, results: str, arguments: str) -> None:
    """Handle messages until Ctrl-C.

    Args:
        results: topic of outputs.
        arguments: of the queue, as a JSON object.
    """
    with contextlib.suppress(KeyboardInterrupt), Queue(topic, timeout_s=60, **json.loads(arguments)) as queue:
        print("opened", flush=True)
        while True:
            for message in queue.receive(limit=100):
                handle(message, directory, results)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4])
