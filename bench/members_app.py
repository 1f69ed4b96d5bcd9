"""A worker that notes when each of its machines opens, gets a tick, and is closed. For :mod:`bench.members` only.

It appends a line of JSON for each to the file ``ticks`` in its data directory: ``[machine, what, epoch seconds]``; each
machine that is opened has another number.
"""

import functools
import json
import os
from itertools import count
from pathlib import Path
from time import time
from typing import Any

from timers.worker.machines.runner import Runner

FILE = "ticks"
OPENED, TICK, CLOSED = "opened", "tick", "closed"

_path = Path(os.environ["TIMERS_DATA_DIR"]) / FILE
_path.parent.mkdir(parents=True, exist_ok=True)
_file = _path.open("a", buffering=1)  # until the process ends
_numbers = count()
_machines: dict[Runner, str] = {}


def _note(runner: Runner, what: str) -> None:
    if not getattr(runner, "_reads_ahead", False):  # its owner fires meanwhile
        if runner not in _machines:
            _machines[runner] = f"{runner.name} {os.getpid()} {next(_numbers)}"
        _file.write(json.dumps([_machines[runner], what, time()]) + "\n")  # any thread: a line is one call


def _noting(name: str, before: str = "", after: str = "") -> None:
    method = getattr(Runner, name)

    @functools.wraps(method)
    def noted(self: Runner, *arguments: Any) -> Any:
        if before:
            _note(self, before)
        try:
            return method(self, *arguments)
        finally:
            if after:
                _note(self, after)

    setattr(Runner, name, noted)


_noting("start", before=OPENED)
_noting("tick", before=TICK)
_noting("stop", before=CLOSED)
_noting("_run", after=CLOSED)

from timers.app import app as app  # noqa: E402
