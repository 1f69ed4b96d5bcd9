"""A version of the project that does not exist: it supports the feature level of ``tests.simulation.kit.next_level``.

python -m tests.harness.next_level levels        # its command line
faust -A tests.harness.next_level_app worker     # its worker
"""

import sys

from tests.simulation.kit.next_level import LEVEL, with_next_level
from timers.core import levels
from timers.kafka import request_formats


def install() -> None:
    """Make this process run the next version."""
    levels.SUPPORTED = levels.RAISED_TO_LEVEL = LEVEL
    native, *others = request_formats.REQUEST_FORMATS
    request_formats.NATIVE = with_next_level(request_formats.NATIVE)
    request_formats.REQUEST_FORMATS = (native._replace(request_format=request_formats.NATIVE), *others)  # type: ignore[assignment]


if __name__ == "__main__":
    install()
    from timers.cli.main import main

    raise SystemExit(main(sys.argv[1:]))
