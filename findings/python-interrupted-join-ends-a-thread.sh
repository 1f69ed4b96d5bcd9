#!/usr/bin/env bash
# threading.Thread.join(): one that Ctrl-C interrupts counts its thread as ended, although the thread runs on.
#
# One would expect that is_alive() says whether the thread runs, and that a further join() waits for its end. Up to Python 3.12
# the code of join() cannot tell whether it has got the thread's lock when a signal handler raises. It finds the lock locked, by
# the thread itself, and takes this for its own. So it releases the lock and notes that the thread has ended: is_alive() is
# False, and join() returns at once. A program that ends its work after Ctrl-C, and waits for its threads, does not wait.
#
# Seen with Python 3.11.7 and 3.12.1. Python 3.13.0, whose threads are in C, is right.
# Prints: "after Ctrl-C: is_alive() is False, join() has waited: False, the thread runs: True".
# What it means for us: Queue.run waits for a stop by sleeping, and joins its threads only after it (timers/queue/queue.py).
# Needs Python 3.11 or 3.12 as python3, or as PYTHON=....
set -euo pipefail
seen=$("${PYTHON:-python3}" - <<'PROGRAM'
import os
import signal
import sys
import threading
import time
import traceback

ends, has_ended = threading.Event(), threading.Event()


def work():
    ends.wait()
    has_ended.set()


def interrupt():
    while "join" not in {frame.name for frame in traceback.extract_stack(sys._current_frames()[main])}:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)


main = threading.get_ident()
thread = threading.Thread(target=work)
thread.start()
threading.Thread(target=interrupt).start()
try:
    while True:
        thread.join(60)
except KeyboardInterrupt:
    alive = thread.is_alive()
    began = time.monotonic()
    thread.join(1)
    waited, runs = time.monotonic() - began >= 1, not has_ended.is_set()
    print(f"after Ctrl-C: is_alive() is {alive}, join() has waited: {waited}, the thread runs: {runs}")
ends.set()
PROGRAM
)
expected="after Ctrl-C: is_alive() is False, join() has waited: False, the thread runs: True"
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
