"""What programs of chaos do around their rounds: directory and brokers, Ctrl-C, and the end of all processes."""

import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from tests.harness import kafka_version
from tests.harness.process import ROOT, stop_everything
from timers.cli.broker import EmbeddedBroker
from timers.process.signals import on_signals, raise_interrupt

INTERRUPTED = 130


class _Stops(Protocol):
    def stop(self) -> object: ...


_B = TypeVar("_B", bound=_Stops)


def one_broker(directory: Path) -> EmbeddedBroker:
    """Return a broker on a free port, with its data below ``directory``."""
    return EmbeddedBroker(directory / "broker", 0, out=sys.stdout)


def run_rounds(name: str, rounds: Callable[[Path, _B], bool], brokers_in: Callable[[Path], _B], *, keep: bool) -> int:
    """Run ``rounds``, then stop everything. Returns the exit code of the program.

    Logs and data are in a new directory. It is deleted after good rounds only, and else its name is printed: also after
    Ctrl-C, because a round that hangs is ended so.

    Args:
        name: begins the name of the directory.
        rounds: called with the directory and the brokers; returns whether all promises were kept.
        brokers_in: makes the brokers of the rounds, which start them.
        keep: keep the directory of good rounds too.
    """
    directory = ROOT / ".timers" / "chaos" / time.strftime(f"{name}-%Y%m%d-%H%M%S")
    brokers = brokers_in(directory)
    print(f"on Kafka {kafka_version.chosen()}", flush=True)
    are_good = False
    with on_signals((signal.SIGTERM,), raise_interrupt):
        try:
            are_good = rounds(directory, brokers)
            return int(not are_good)
        except KeyboardInterrupt:
            print("chaos: interrupted", flush=True)
            return INTERRUPTED
        finally:
            stop_everything()
            brokers.stop()
            if keep or not are_good:
                print(f"logs: {directory.relative_to(ROOT)}", flush=True)
            else:
                shutil.rmtree(directory, ignore_errors=True)
