"""A worker that looks for changes of its topics each second, and soon creates those that were deleted.

A user's worker takes ten and fifteen seconds, for which a test would wait.
"""

from timers.worker.consumer import log_watch

log_watch.WATCH_S = 1.0
log_watch.GRACE_S = 3.0

from timers.app import app as app  # noqa: E402
