"""The worker: ``faust -A timers.app worker -l info``, or ``timers worker``."""

import sys

from timers.config.settings import Settings
from timers.errors import SettingsError
from timers.worker.service import TimersApp

try:
    app = TimersApp(Settings.load())
except SettingsError as error:
    print(f"timers: {error}", file=sys.stderr)
    raise SystemExit(error.exit_code) from None
