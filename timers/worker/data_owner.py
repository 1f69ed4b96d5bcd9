"""Notes in a worker's data directory which cluster its stores come from, and warns when it is another one.

Each store checks its own origin and is rebuilt if that is another log. A user who mixed up clusters would only see that
the worker reads all requests again; this says why, once.
"""

from __future__ import annotations

import contextlib
import logging
from urllib.parse import quote

from timers.config.settings import Settings

logger = logging.getLogger(__name__)

_MAX_CHARACTERS = 100


def note_cluster(settings: Settings, cluster_id: str) -> None:
    """Write the cluster's id into the data directory, and log a warning if another one is there.

    A disk that fails to write is reported by the stores.
    """
    path = settings.data_dir / f"worker-{settings.worker_id}" / f"cluster-of-{quote(settings.app_id, safe='')}"
    with contextlib.suppress(OSError):
        former = path.read_text(errors="replace")[:_MAX_CHARACTERS] if path.exists() else cluster_id
        if former != cluster_id:
            logger.warning(
                "the data in %s are of the Kafka cluster %r, and TIMERS_BROKERS=%s is the cluster %r: the stores are "
                "emptied and read again from its request logs. If this cluster is wrong, correct TIMERS_BROKERS; to "
                "use both, give each its own TIMERS_DATA_DIR",
                path.parent,
                former,
                settings.brokers,
                cluster_id,
            )
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(cluster_id)
