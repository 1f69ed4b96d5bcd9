"""``python -m timers.spark JOB``: the jobs. ``spark-submit`` starts this file as a script."""

from __future__ import annotations

import sys
from pathlib import Path

# Python puts the directory of a script first on its path: there, modules have the names of other packages.
if sys.path and Path(sys.path[0] or ".").resolve() == Path(__file__).resolve().parent:
    del sys.path[0]

from timers.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["spark", *sys.argv[1:]]))
