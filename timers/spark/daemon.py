"""Starts Spark's Python workers so that a task costs less CPU, and so that SIGTERM does not end them. Set as
``spark.python.daemon.module``.

PySpark's worker calls ``importlib.invalidate_caches()`` before each task, because packages may have been added. Before
Python 3.12, each package that was imported from ``pyspark.zip`` then reads the directory of that file again: 0.3 s of
CPU a task, more than most tasks need. The archives do not change while a worker runs.

A service manager sends SIGTERM to all processes of a service. The driver handles it: it stops the job between two
micro-batches. Until then the workers must go on. They end when Java closes the input of the daemon.
"""

from __future__ import annotations

import signal
import sys
import zipimport

from timers.process.limits import collect_garbage_seldom


def keep_archives() -> None:
    """Read the directory of a zip archive only once."""
    if sys.version_info < (3, 12):  # later versions read it again only when an import needs it
        zipimport.zipimporter.invalidate_caches = lambda self: None  # type: ignore[method-assign]


if __name__ == "__main__":
    keep_archives()
    collect_garbage_seldom()  # each worker is a fork
    # Blocked, not ignored: PySpark sets handlers of its own, here and in each worker.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    from pyspark import daemon

    daemon.manager()
