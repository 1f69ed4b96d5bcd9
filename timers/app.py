"""The worker: ``faust -A timers.app worker -l info``, or ``timers worker``."""

import sys

from timers.core.printable import printable
from timers.errors import TimersError
from timers.process.config.settings import Settings
from timers.worker.library_versions import check_library_versions

try:
    check_library_versions()
    from timers.worker.service import TimersApp

    app = TimersApp(Settings.load())
except TimersError as error:
    print(f"timers: {printable(str(error))}", file=sys.stderr)
    raise SystemExit(error.exit_code) from None
