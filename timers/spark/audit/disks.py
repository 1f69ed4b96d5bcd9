"""Asks the brokers how many bytes each topic takes on their disks.

It uses the Kafka client in Spark's JVM, because the Kafka clients for Python do not support this request.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from timers.config.settings import Settings
from timers.kafka import connection

TIMEOUT_S = 30

REFUSED = "the brokers refused the question (it needs the right Describe on the cluster)"


def topic_bytes(spark: SparkSession, settings: Settings, topics: Collection[str]) -> dict[str, int] | str:
    """Bytes of the largest replica of each topic, or the reason why they are not known."""
    jvm: Any = spark._jvm
    clients = jvm.org.apache.kafka.clients.admin.AdminClient
    if not isinstance(clients, JavaClass):
        return "Spark's Java process has no Kafka client under its usual name"
    properties = jvm.java.util.Properties()
    for name, value in connection.java(settings).items():
        properties.setProperty(name, value)
    seconds = jvm.java.util.concurrent.TimeUnit.SECONDS
    sizes: dict[tuple[str, int], int] = {}
    try:
        admin = clients.create(properties)
        try:
            nodes = jvm.java.util.ArrayList(admin.describeCluster().nodes().get(TIMEOUT_S, seconds))
            ids = [node.id() for node in nodes]
            for described in admin.describeLogDirs(ids).allDescriptions().get(TIMEOUT_S, seconds).values():
                for directory in described.values():
                    for place, replica in directory.replicaInfos().items():
                        name = place.topic()
                        if name in topics:
                            key = name, place.partition()
                            sizes[key] = max(sizes.get(key, 0), replica.size())
        finally:
            admin.close(jvm.java.time.Duration.ofSeconds(1))
    except Py4JJavaError as error:
        reason = error.java_exception.getCause() or error.java_exception
        name = reason.getClass().getSimpleName()
        return REFUSED if name == "ClusterAuthorizationException" else f"the brokers did not answer ({name})"
    by_topic: dict[str, int] = defaultdict(int)
    for (topic, _), size in sizes.items():
        by_topic[topic] += size
    return dict(by_topic)
