"""Starts and stops a Spark session: its packages, its master, and its log file."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from timers.errors import SparkError
from timers.spark import java

PACKAGES = ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0", "io.delta:delta-spark_2.13:4.0.0")
"""The Kafka connector and Delta. Spark downloads them from Maven's registry at its first start."""

LOCAL = "local[*]"

_SECRETS = "(?i)secret|password|passwd|token|access[.]?key|jaas|ssl[.]keystore"
"""Options and settings that Spark hides in its UI, plans and logs. The pattern is matched with names and values."""

_SETTINGS = {
    "spark.jars.packages": ",".join(PACKAGES),
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.redaction.regex": _SECRETS,
    "spark.sql.redaction.options.regex": f"{_SECRETS}|url",
    # Due days are UTC, whatever the time zone of the machine is.
    "spark.sql.session.timeZone": "UTC",
    # Spark's progress bar would overwrite the lines of the command.
    "spark.ui.showConsoleProgress": "false",
}

_LOCAL_SETTINGS = {
    # No other machine connects to a local driver: no host name to resolve, no port for a UI.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    # Local tables are small: Spark's default of 200 tasks for each shuffle costs more than the work.
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 2)),
    # By default Delta reads a log in 50 tasks and lists directories in up to 10,000 tasks.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(2 * (os.cpu_count() or 2)),
    "spark.python.daemon.module": "timers.spark.daemon",
}

_MAX_SENTENCE = 400

_ARTIFACTS = Path("artifacts")


@dataclass(frozen=True)
class Launch:
    """How to start Spark."""

    job: str
    """Name of the application in the lists of a cluster."""
    log_path: Path
    """Spark's log file; an existing one is overwritten."""
    master: str | None = None
    """Spark master URL. None: the cores of this machine, or under ``spark-submit`` the master that it was given."""
    conf: tuple[tuple[str, str], ...] = ()
    """Spark settings of the user; they replace those of the project."""
    defaults: dict[str, str] = field(default_factory=dict)
    """Spark settings of the job; ``conf`` replaces them."""

    def settings(self) -> dict[str, str]:
        chosen = dict(_SETTINGS)
        master = self.master if self.master is not None or _submitted() else LOCAL
        if master is not None:
            chosen["spark.master"] = master
            if master.startswith("local"):
                chosen |= _LOCAL_SETTINGS
                # Spark creates this unused directory, by default in the working directory.
                chosen["spark.sql.warehouse.dir"] = (self.log_path.parent.absolute() / "warehouse").as_uri()
        return {**chosen, "spark.app.name": f"timers-{self.job}", **self.defaults, **dict(self.conf)}


@contextmanager
def session(launch: Launch) -> Iterator[SparkSession]:
    """A Spark session that is stopped at the end. Failures in it become one sentence.

    Raises:
        SparkError: Java is missing, Spark did not start, or a job in the session failed.
    """
    try:
        spark = start(launch)
        try:
            yield spark
        finally:
            _stop(spark)
    except (PySparkException, Py4JError) as error:
        raise SparkError(f"Spark failed: {sentence_of(error)} (its log: {launch.log_path})") from error


def start(launch: Launch) -> SparkSession:
    """Start a session; the caller stops it."""
    conf = SparkConf(loadDefaults=False).setAll(list(launch.settings().items()))
    if _submitted():
        spark = SparkSession.builder.config(conf=conf).getOrCreate()
    else:
        java.require()
        # Local executors use this Python; a cluster has its own.
        if conf.get("spark.master", "").startswith("local"):
            os.environ["PYSPARK_PYTHON"] = sys.executable
        launch.log_path.parent.mkdir(parents=True, exist_ok=True)
        with launch.log_path.open("wb") as log:
            SparkContext(conf=conf, gateway=_gateway(conf, log, launch.log_path))
        spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    return spark


def _gateway(conf: SparkConf, log: IO[bytes], log_path: Path) -> Any:
    """Start the JVM. Its output and that of its Python workers go to ``log``: resolving packages prints 80 lines."""
    try:
        return launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
    except PySparkException:
        text = log_path.read_text(errors="replace")
        reason = (
            f"a package of {', '.join(PACKAGES)} could not be resolved: is Maven's registry reachable from here?"
            if "unresolved dependency" in text or "UNRESOLVED DEPENDENCIES" in text
            else "its Java process ended at once"
        )
        raise SparkError(f"Spark did not start: {reason} (its log: {log_path})") from None


def _stop(spark: SparkSession) -> None:
    with contextlib.suppress(Py4JNetworkError, OSError):  # the JVM died, which was reported before
        spark.stop()
    # Spark 4.0 creates directories for artifacts in the working directory and does not delete them.
    with contextlib.suppress(OSError):
        for left in [*_ARTIFACTS.iterdir(), _ARTIFACTS]:
            left.rmdir()


def _submitted() -> bool:
    """Whether ``spark-submit`` started this process, so that a JVM with its settings exists."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def sentence_of(error: PySparkException | Py4JError) -> str:
    """The root cause of a failure in one line, without Java's stack trace."""
    text = str(error)
    if isinstance(error, Py4JJavaError):
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        text = str(cause.toString())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # A failure in Python code is a traceback; its last line has the reason.
    failed = next((line for line in reversed(lines) if text.lstrip().startswith("Traceback")), None)
    return (failed or (lines[0] if lines else type(error).__name__))[:_MAX_SENTENCE]
