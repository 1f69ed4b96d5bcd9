"""Reads up to which second the partitions of an app have fired."""

from __future__ import annotations

from timers.config.settings import Settings
from timers.core.progress import Progress
from timers.core.timer import TopicPartition
from timers.kafka.progress_log import ProgressLog
from timers.kafka.topics import Cluster
from timers.request_formats import enabled_formats
from timers.wire import progress as progress_record
from timers.wire.progress import ANY_LEVEL


def newest_s(settings: Settings, cluster: Cluster) -> int | None:
    """Return the newest second that has fired; None if nothing has. Blocks.

    Raises:
        KafkaException: the brokers do not answer.
        LogMismatch: a record cannot be read.
    """
    seconds = [progress.fired_through[0] for progress in read(settings, cluster).values()]
    return max((second for second in seconds if second >= 0), default=None)


def read(settings: Settings, cluster: Cluster) -> dict[TopicPartition, Progress]:
    """Return the progress of each partition of the app that has one, at any feature level. Blocks.

    Raises:
        KafkaException: the brokers do not answer.
        LogMismatch: a record cannot be read.
    """
    log = ProgressLog(settings, cluster)
    try:
        formats = enabled_formats(settings)
        tps = [(topic, each) for topic in formats for each in range(cluster.partitions.get(topic, 0))]
        return {tp: progress_record.decode(record, ANY_LEVEL)[0] for tp, record in log.read(tps).items()}
    finally:
        log.close()
