"""A worker with short periods.

A user's worker looks for changes of its topics every ten seconds, replaces the snapshot of an idle machine every thirty
seconds, asks who else reads a log ten minutes after it was told, looks after two minutes for timers that stand still,
and fires for up to thirty seconds while it ends. A test would wait for it.
"""

from timers.core import mending, snapshots
from timers.machines import log_trimmer, snapshot_taker
from timers.worker.consumer import log_watch, target_watch
from timers.worker.machines import pool

log_watch.WATCH_S = 1.0
log_watch.GRACE_S = 3.0
target_watch.DIFFERS_S = 2.0
pool.HANDOVER_S = 8.0
snapshots.LEAST_AGE_S = 3
mending.STANDS_S = mending.SEARCH_INTERVAL_S = 2
snapshot_taker.SNAPSHOT_LOOK_S = 1.0
log_trimmer.LEAST_S = 1.0
log_trimmer.AGAIN_S = 5.0
log_trimmer.READERS_S = 1.0

from timers.app import app as app  # noqa: E402
