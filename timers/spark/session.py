"""One Spark session: which packages, which master, and where all that Spark says by the way goes: into a file."""

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
"""What Spark resolves at its start, the first time from Maven's registry: the Kafka connector and Delta tables."""

LOCAL = "local[*]"

_SECRETS = "(?i)secret|password|passwd|token|access[.]?key|jaas|ssl[.]keystore"
"""What Spark must not show of options and settings in UI, plans and logs. Matched with names and with values."""

_SETTINGS = {
    "spark.jars.packages": ",".join(PACKAGES),
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.redaction.regex": _SECRETS,
    "spark.sql.redaction.options.regex": f"{_SECRETS}|url",
    # Due seconds and days of tables are UTC, whatever machine runs this.
    "spark.sql.session.timeZone": "UTC",
    # The command says how far it is; Spark's bar would be drawn over that.
    "spark.ui.showConsoleProgress": "false",
}

_LOCAL_SETTINGS = {
    # Nobody else connects to a driver that is its own cluster: no name of the host to resolve, no port of a UI to find.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    # Tables of a laptop are small: Spark's 200 tasks for each shuffle cost more than the work.
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 2)),
    # So are their logs, which Delta reads in 50 tasks, and their directories, which it lists in up to 10,000.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(2 * (os.cpu_count() or 2)),
}

_MAX_SENTENCE = 400

_ARTIFACTS = Path("artifacts")


@dataclass(frozen=True)
class Launch:
    """How to start Spark."""

    job: str
    """Name of the application, as clusters list it."""
    log_path: Path
    """Where Spark's log goes; begun anew."""
    master: str | None = None
    """Spark master URL. None: this machine's cores; under ``spark-submit``, what that was given."""
    conf: tuple[tuple[str, str], ...] = ()
    """Settings of Spark's own, over ours."""
    defaults: dict[str, str] = field(default_factory=dict)
    """Settings that the job prefers; ``conf`` goes over them."""

    def settings(self) -> dict[str, str]:
        """All settings of the session."""
        chosen = dict(_SETTINGS)
        master = self.master if self.master is not None or _submitted() else LOCAL
        if master is not None:
            chosen["spark.master"] = master
            if master.startswith("local"):
                chosen |= _LOCAL_SETTINGS
                # Unused, and made all the same: not in the directory that somebody works in.
                chosen["spark.sql.warehouse.dir"] = (self.log_path.parent.absolute() / "warehouse").as_uri()
        return {**chosen, "spark.app.name": f"timers-{self.job}", **self.defaults, **dict(self.conf)}


@contextmanager
def session(launch: Launch) -> Iterator[SparkSession]:
    """A Spark session, stopped at the end. What fails in it ends as one sentence.

    Raises:
        SparkError: Java is missing, Spark did not start, or it could not do what was asked in the session.
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
    """A session that the caller stops.

    Raises:
        SparkError: Java is missing, or Spark did not start.
    """
    conf = SparkConf(loadDefaults=False).setAll(list(launch.settings().items()))
    if _submitted():
        spark = SparkSession.builder.config(conf=conf).getOrCreate()
    else:
        java.require()
        # Executors on this machine run the Python that we run; a cluster has its own.
        if conf.get("spark.master", "").startswith("local"):
            os.environ["PYSPARK_PYTHON"] = sys.executable
        launch.log_path.parent.mkdir(parents=True, exist_ok=True)
        with launch.log_path.open("wb") as log:
            SparkContext(conf=conf, gateway=_gateway(conf, log, launch.log_path))
        spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    return spark


def _gateway(conf: SparkConf, log: IO[bytes], log_path: Path) -> Any:
    """The JVM, whose words, and those of its Python workers, go to ``log``: resolving packages alone says 80 lines."""
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
    with contextlib.suppress(Py4JNetworkError, OSError):  # the JVM died, which somebody has said by now
        spark.stop()
    # Spark 4.0 keeps what a session is sent in the working directory, and leaves the empty directories behind.
    with contextlib.suppress(OSError):
        for left in [*_ARTIFACTS.iterdir(), _ARTIFACTS]:
            left.rmdir()


def _submitted() -> bool:
    """Whether ``spark-submit`` started us, so that a JVM with its settings is there."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def sentence_of(error: PySparkException | Py4JError) -> str:
    """What went wrong at the bottom, in one line and without Java's stack."""
    text = str(error)
    if isinstance(error, Py4JJavaError):
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        text = str(cause.toString())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # A failure in Python code comes as its traceback, of which the last line says what it was.
    failed = next((line for line in reversed(lines) if text.lstrip().startswith("Traceback")), None)
    return (failed or (lines[0] if lines else type(error).__name__))[:_MAX_SENTENCE]
