"""The worker of :mod:`tests.harness.next_level`."""

from tests.harness import next_level

next_level.install()

from timers.app import app as app  # noqa: E402
