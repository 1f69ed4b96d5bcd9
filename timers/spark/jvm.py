"""The private parts of PySpark, and the classes of Spark and Hadoop in its JVM, that the jobs use.

No other module uses them (a house test). A new version of Spark may change them: each function says what does not work
without it. ``make test-other-spark`` runs the tests of all of them with other versions of Spark.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import IO, Any

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import JStreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from timers.process.signals import children_ignoring_sigterm

ERRORS = (PySparkException, Py4JError)
"""What a call into the JVM raises."""

NETWORK_ERROR = Py4JNetworkError
"""The JVM does not answer any more."""


def cause_of(error: BaseException) -> str | None:
    """Java's root cause of an error, as one text; None if it has none. Without it, messages are stack traces."""
    if not isinstance(error, Py4JJavaError):
        return None
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return str(cause.toString())


# ---- start ----------------------------------------------------------------------------------------------------------


def spark_home() -> str:
    """The directory of Spark. Without it, jars that Spark has already are downloaded."""
    return str(_find_spark_home())


def launch(conf: SparkConf, log: IO[bytes]) -> Any:
    """Start the JVM. Its output and that of its Python workers go to ``log``; without that, to the terminal.

    It ignores SIGTERM, which a service manager sends to all processes of a service: the job stops between two
    micro-batches, and Java ends with this process, which has the other end of its input.
    """
    with children_ignoring_sigterm():
        return launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]


def connect_to_submitted() -> None:
    """Connect to the JVM that ``spark-submit`` has started: only then its settings are known."""
    SparkContext._ensure_initialized()


def has_session() -> bool:
    """Whether this process has a Spark context. Without it, a job in a notebook would start a second one."""
    return SparkContext._active_spark_context is not None


def look_up_source(spark: SparkSession, source: str) -> None:
    """Raise one of :data:`ERRORS` if Spark has no such data source. Without it, a job fails when it has begun."""
    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().conf()
    jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(source, conf)


# ---- storage --------------------------------------------------------------------------------------------------------


def on_storage(spark: SparkSession, directory: str) -> tuple[Any, Any]:
    """Hadoop's path of a directory, and its file system. Without it, the engine finds no checkpoint of its own."""
    jvm: Any = spark.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path(directory)
    return path, path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())


def exists(spark: SparkSession, url: str) -> bool:
    """Whether there is a file or a directory. Without it, an import reads a ledger that does not exist yet."""
    path, files = on_storage(spark, url)
    return bool(files.exists(path))


def delete(spark: SparkSession, url: str) -> None:
    """Delete a file, if it exists. Without it, each import would look again for what an interrupted one had sent."""
    path, files = on_storage(spark, url)
    files.delete(path, False)


def move(spark: SparkSession, url: str, to: str) -> None:
    """Give a file or a directory another name. Without it, `hold` goes on with a checkpoint that would skip requests.

    Raises:
        OSError: the storage refuses it.
    """
    path, files = on_storage(spark, url)
    if not files.rename(path, on_storage(spark, to)[0]):
        raise OSError(f"{url!r} cannot be renamed to {to!r}")


def write_text(spark: SparkSession, url: str, text: str) -> None:
    """Write a small file. Without it, the mark of a run of an import would be a table, which costs seconds."""
    path, files = on_storage(spark, url)
    stream = files.create(path)
    try:
        stream.write(text.encode())
    finally:
        stream.close()


def read_texts(spark: SparkSession, directory: str) -> list[tuple[str, str | None]]:
    """The name and the text of each file in a directory, None if it does not have its checksum, as after a power loss;
    no file if the directory does not exist, and none that is deleted or renamed meanwhile."""
    path, files = on_storage(spark, directory)
    if not files.exists(path):
        return []
    found = [status.getPath() for status in files.listStatus(path) if status.isFile()]
    jvm: Any = spark.sparkContext._jvm
    texts: list[tuple[str, str | None]] = []
    for each in found:
        stream, text = None, None
        try:
            stream = files.open(each)
            text = jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        except Py4JJavaError as error:
            kind = error.java_exception.getClass().getSimpleName()
            if kind == "FileNotFoundException" and not files.exists(each):  # Java's name of each failure to open
                continue
            if kind != "ChecksumException":
                raise
        finally:
            if stream is not None:
                stream.close()
        texts.append((str(each.getName()), text))
    return texts


# ---- streaming queries ----------------------------------------------------------------------------------------------


def last_in_table(spark: SparkSession, table: str, query: str) -> int | None:
    """Number of the last micro-batch of a query, by its id, that a Delta table has; None if it has none.

    Delta skips a micro-batch of the query with this number or a smaller one, whatever records it has. Without it,
    `hold` does not see that its checkpoint is older than its table.

    Raises:
        NotImplementedError: this Delta has other classes, as that of a platform may.
    """
    jvm: Any = spark._jvm
    try:
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, table)
        found = log.unsafeVolatileSnapshot().transactions().get(query)
    except (Py4JJavaError, Py4JNetworkError):
        raise
    except (TypeError, Py4JError) as error:  # the class or a method of it is not there
        raise NotImplementedError("this Delta does not say which micro-batches it has") from error
    return int(found.get()) if found.isDefined() else None


def planned_offsets(running: StreamingQuery, number: int) -> list[dict[str, dict[str, int]]]:
    """Topic -> partition -> end of what a query reads in a micro-batch that it runs, for each of its sources.

    Without it, the engine does not know the end of a partition whose last offsets have no records.
    """
    query: Any = running._jsq.streamingQuery()
    sources = query.offsetLog().get(number).get().offsets()
    offsets = [sources.apply(index) for index in range(sources.size())]
    return [json.loads(each.get().json()) for each in offsets if each.isDefined()]


class _Listener:
    """Called by Java, as PySpark's own wrapper, which needs a hundred calls into the JVM for each report."""

    Java = JStreamingQueryListener.Java

    def __init__(self, on_progress: Callable[[Mapping[str, Any]], None], on_idle: Callable[[], None]) -> None:
        self._on_progress, self._on_idle = on_progress, on_idle

    @cached_property
    def _jlistener(self) -> Any:
        # PySpark reads this property after it has started the server through which Java calls Python: not before.
        jvm: Any = SparkContext._jvm
        return jvm.PythonStreamingQueryListenerWrapper(self)

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:
        self._on_progress(json.loads(event.progress().json()))

    def onQueryIdle(self, event: Any) -> None:
        self._on_idle()

    def onQueryTerminated(self, event: Any) -> None:
        """Do nothing: the job sees the end of its query."""


@contextmanager
def listening(
    spark: SparkSession, on_progress: Callable[[Mapping[str, Any]], None], on_idle: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Call ``on_progress`` with the progress reports of all queries of a session, and ``on_idle`` when one has looked
    for records and found none. Without it, each look at ``recentProgress`` costs hundreds of calls into the JVM."""
    listener: Any = _Listener(on_progress, on_idle)
    spark.streams.addListener(listener)
    try:
        yield
    finally:
        spark.streams.removeListener(listener)


# ---- Kafka's client -------------------------------------------------------------------------------------------------


TIMEOUT_S = 30

REFUSED = "the brokers refused the question (it needs the right Describe on the cluster)"


def topic_bytes(spark: SparkSession, config: Mapping[str, str]) -> dict[str, int] | str:
    """Bytes of one replica of each topic, the largest one of each partition; or the reason why they are not known.

    It uses the Kafka client in Spark's JVM, because the Kafka clients for Python do not support this request. Without
    it, the audit shows no sizes.
    """
    jvm: Any = spark._jvm
    clients = jvm.org.apache.kafka.clients.admin.AdminClient
    if not isinstance(clients, JavaClass):
        return "Spark's Java process has no Kafka client under its usual name"
    properties = jvm.java.util.Properties()
    for name, value in config.items():
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
                        key = place.topic(), place.partition()
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
    return by_topic
