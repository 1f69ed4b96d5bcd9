"""What several unit tests share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.harness.queue_thread import Opened


@pytest.fixture
def queue() -> Iterator[Opened]:
    """The thread of a queue over a simulated transport. A file may have another fixture of this name."""
    from tests.harness.queue_thread import Opened  # not at the top: most unit tests need no queue

    opened = Opened()
    yield opened
    opened.close()
