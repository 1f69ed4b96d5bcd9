"""The directory of a worker's data, and of which cluster it is."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from urllib.parse import quote

from timers.errors import SettingsError
from timers.process.config.settings import Settings

logger = logging.getLogger(__name__)

_MAX_CHARACTERS = 100


def make_data_dir(settings: Settings, directory: Path) -> None:
    """Make the directory of this worker's data, unless it exists.

    Raises:
        SettingsError: this process may not.
    """
    try:
        # Stores hold callbacks: other users of the machine must not read them. An existing directory keeps its mode.
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.mkdir(exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"TIMERS_DATA_DIR={str(settings.data_dir)!r} is not a directory in which this process may write "
            f"({error.strerror}: {error.filename}): name one, or give its user the right"
        ) from None


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
