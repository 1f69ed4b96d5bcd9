"""A relay that is killed when it would delete rows that it has sent: ``python -m tests.harness.dying_relay URL``."""

import os
import signal
import sys
import threading
from collections.abc import Sequence

from timers.outbox.databases import Database, database
from timers.outbox.relay import Relay
from timers.process.config.settings import Settings


def dying(rows: Database) -> Database:
    """The same table, whose rows cannot be deleted."""

    def die(_: Sequence[int]) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    rows.delete = die  # type: ignore[assignment, method-assign]
    return rows


if __name__ == "__main__":
    Relay(dying(database(sys.argv[1], "timer_outbox")), Settings.load()).run(threading.Event())
