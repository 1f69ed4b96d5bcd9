"""What programs of chaos do around their rounds: Ctrl-C, the end of all processes, and what is kept on disk."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tests.harness.process import ROOT, stop_everything


class _Stops(Protocol):
    def stop(self) -> object: ...


def run_rounds(rounds: Callable[[], bool], directory: Path, brokers: _Stops, *, keep: bool) -> int:
    """Run ``rounds`` and stop everything. Returns the exit code of the program.

    Args:
        rounds: returns whether all promises were kept.
        directory: of logs and data. It is deleted after good rounds and after Ctrl-C.
        brokers: used by the rounds.
        keep: never delete the directory.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    is_needed = True
    try:
        are_good = rounds()
        is_needed = not are_good
        return int(not are_good)
    except KeyboardInterrupt:
        print("chaos: interrupted", flush=True)
        is_needed = False
        return 130
    finally:
        stop_everything()
        brokers.stop()
        if keep or is_needed:
            print(f"logs: {directory.relative_to(ROOT)}", flush=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)
