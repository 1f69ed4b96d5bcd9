"""Reads up to which second the partitions of an app have fired, and takes this time back after a wrong clock."""

from __future__ import annotations

from contextlib import closing

from timers.config.settings import Settings
from timers.core.progress import Progress
from timers.core.timer import TopicPartition
from timers.kafka.clients import librdkafka, max_message_bytes
from timers.kafka.progress_log import ProgressLog, progress_partition
from timers.kafka.topics import Cluster
from timers.kafka.transactions import Record, TransactionalWriter
from timers.request_formats import enabled_formats
from timers.wire import progress as progress_record
from timers.wire import topics
from timers.wire.progress import ANY_LEVEL


def newest_s(settings: Settings, cluster: Cluster) -> int | None:
    """Return the newest second that has fired; None if nothing has. Blocks.

    Raises:
        KafkaException: the brokers do not answer.
        LogMismatch: a record cannot be read.
    """
    seconds = [progress.fired_s for progress in read(settings, cluster).values()]
    return max((second for second in seconds if second is not None), default=None)


def read(settings: Settings, cluster: Cluster) -> dict[TopicPartition, Progress]:
    """Return the progress of each partition of the app that has one, at any feature level. Blocks.

    Raises:
        KafkaException: the brokers do not answer.
        LogMismatch: a record cannot be read.
    """
    formats = enabled_formats(settings)
    tps = [(topic, each) for topic in formats for each in range(cluster.partitions.get(topic, 0))]
    with closing(ProgressLog(settings, cluster)) as log:
        return {
            tp: progress_record.decode(record, ANY_LEVEL, topics.partition_name(*tp))[0]
            for tp, record in log.read(tps, after_fence=False).items()
        }


def take_back(settings: Settings, cluster: Cluster, tp: TopicPartition) -> None:
    """Forget up to which second a partition has fired, and keep which timers have fired [I24]. Blocks.

    The group gets no second witness: without this record the partition is as before, and the command can be repeated.

    Raises:
        KafkaException: the brokers do not answer, or refuse.
        LogMismatch: the record cannot be read, is not the newest one, or has a feature level that this version does
            not support.
    """
    # The machine's own id: a worker that still runs is fenced, and its open transaction is aborted before the read.
    transactional_id = topics.transactional_id(settings.app_id, *tp)
    writer = TransactionalWriter(librdkafka(settings), transactional_id, max_message_bytes(settings))
    with closing(ProgressLog(settings, cluster)) as log:
        progress = log.check(tp, log.read([tp]).get(tp))
    machine = progress_record.machine_name(settings.app_id, *tp)
    value = progress_record.encode(progress.without_time(), cluster.topic_ids[tp[0]], machine)
    partition = progress_partition(tp, cluster, settings)
    with writer.transaction() as send:
        send([Record(settings.progress_topic, partition, progress_record.encode_key(*tp), value, [])])
