"""Spark's Python workers, without what makes each task dear: ``spark.python.daemon.module``.

PySpark's worker calls ``importlib.invalidate_caches()`` before every task, for packages that may have been added.
Before Python 3.12 each package that was imported from ``pyspark.zip`` then reads the directory of that file again: 0.3
seconds of CPU a task, which is more than most tasks need themselves. Archives do not change while a worker lives.
"""

from __future__ import annotations

import sys
import zipimport


def keep_archives() -> None:
    """Have zip archives read once."""
    if sys.version_info < (3, 12):  # from there on they are read again only when something is looked for
        zipimport.zipimporter.invalidate_caches = lambda self: None  # type: ignore[method-assign]


if __name__ == "__main__":
    keep_archives()
    from pyspark import daemon

    daemon.manager()  # type: ignore[no-untyped-call]
