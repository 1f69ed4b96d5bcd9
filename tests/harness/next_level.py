"""A version of the project that does not exist: it supports one feature level more.

At that level a request may have the header ``shift``: it is due so many seconds later. At the levels before, the header
is an ordinary one. A worker that read such requests at another level would fire them at another second.

    python -m tests.harness.next_level levels        # the command line of this version
    faust -A tests.harness.next_level_app worker     # its worker
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from timers import request_formats
from timers.core import levels
from timers.core.timer import Decoded, Row
from timers.wire import future
from timers.wire.formats import RequestFormat

LEVEL = 2
SHIFT = "shift"


def shift_of(headers: Any) -> int:
    """Seconds by which a request is due later at :data:`LEVEL`."""
    return next((int(value) for name, value in headers or () if name == SHIFT), 0)


def decode(records: Sequence[Any], max_request_bytes: int) -> Decoded:
    """Decode requests at :data:`LEVEL`."""
    decoded = future.decode(records, max_request_bytes)
    rows: dict[int, list[Row]] = {}
    for due_s, group in decoded.rows.items():
        for row in group:
            rows.setdefault(due_s + shift_of(row[4]), []).append(row)
    decoded.rows = {due_s: sorted(group, key=lambda row: row[0]) for due_s, group in rows.items()}
    return decoded


def with_next_level(request_format: RequestFormat) -> RequestFormat:
    """The native request format of this version."""
    return request_format._replace(decode_from_level={LEVEL: decode})


def install() -> None:
    """Make this process run the next version."""
    levels.SUPPORTED = LEVEL
    native, *others = request_formats.REQUEST_FORMATS
    request_formats.NATIVE = with_next_level(request_formats.NATIVE)
    request_formats.REQUEST_FORMATS = (native._replace(request_format=request_formats.NATIVE), *others)


if __name__ == "__main__":
    install()
    from timers.cli.main import main

    raise SystemExit(main(sys.argv[1:]))
