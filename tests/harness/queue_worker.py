"""A process of a queue whose messages say what to do. Each line of its output is an event and the message's value;
that of a start has the attempt and the time in nanoseconds, too.

Messages that begin with ``kill`` end the process as ``kill -9`` does. Those that begin with ``wait`` wait until a file
with their name exists. Those that begin with ``retry`` are retried once, after 2 s. Those that end with ``output`` have
an output.
"""

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from tests.harness.waiting import DEADLINE_S, wait_until
from timers.queue import LeaseLostError, Message, Queue

RETRY_AFTER_S = 2.0


def handle(message: Message, directory: Path, results: str) -> None:
    value = (message.value or b"").decode()
    print(f"started {value} attempt {message.attempt} at {time.time_ns()}", flush=True)
    if value.endswith("output"):
        message.output(results, value)
    if value.startswith("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    if value.startswith("retry") and message.attempt == 1:
        message.retry(after=RETRY_AFTER_S)
        return
    if value.startswith("wait"):
        wait_until((directory / value).exists, "the file", 10 * DEADLINE_S)
    try:
        message.ack()
        print(f"acked {value}", flush=True)
    except LeaseLostError:
        print(f"lost {value}", flush=True)


def set_wall_clock(ahead_s: float) -> None:
    """Let all Python code of this process see another time of day."""
    now_s, now_ns = time.time, time.time_ns
    time.time = lambda: now_s() + ahead_s
    time.time_ns = lambda: now_ns() + int(ahead_s * 1e9)


def main(topic: str, directory: Path, results: str, ahead_s: float, arguments: str) -> None:
    """Handle messages until Ctrl-C.

    Args:
        results: topic of outputs.
        ahead_s: how much the process's clock is ahead.
        arguments: of the queue, as a JSON object.
    """
    set_wall_clock(ahead_s)
    with contextlib.suppress(KeyboardInterrupt), Queue(topic, timeout_s=60, **json.loads(arguments)) as queue:
        print("opened", flush=True)
        while True:
            for message in queue.receive(limit=100):
                handle(message, directory, results)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], float(sys.argv[4]), sys.argv[5])
