"""Starts and stops a Spark session: its jars, its master, and its log file."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from timers.errors import SparkError
from timers.process import java
from timers.process.logs import rotate
from timers.spark import jars, jvm

LOCAL = "local[*]"

_SECRETS = "(?i)secret|password|passwd|token|access[.]?key|jaas|ssl[.]keystore"
"""Options and settings that Spark hides in its UI, plans and logs. The pattern is matched with names and values."""

_JARS = "spark.jars"
_NAME = "spark.app.name"
_SCRIPT = "__main__.py"
"""The name that ``spark-submit`` gives to an application without a name."""

_LISTS = (_JARS, "spark.sql.extensions")
"""Settings with lists. Entries of the user are added to those of the project."""

_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.redaction.regex": _SECRETS,
    "spark.sql.redaction.options.regex": f"{_SECRETS}|url",
    # Due days, and times in files without an offset, are UTC, whatever the time zone of the machine is.
    "spark.sql.session.timeZone": "UTC",
    # No limit: with one, Spark 4.0 sums the bytes of the whole batch for each row, most of the cost of a row.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    # A record may claim more memory than Java has. That fails its task, and must not end the process, which is also the
    # driver if the master is local. By default Spark ends the process after an error of memory in a task.
    "spark.executor.killOnFatalError.depth": "0",
    # Other programs read Spark's default for a timestamp as nanoseconds, which end in 2262; due seconds go up to 5138.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Spark's progress bar would overwrite the lines of the command.
    "spark.ui.showConsoleProgress": "false",
}

_NOT_BY_CLUSTER = (
    "spark.speculation",
    "spark.task.maxFailures",
    "spark.sql.session.timeZone",
    "spark.sql.execution.arrow.maxBytesPerBatch",
    "spark.sql.streaming.stateStore.providerClass",
)
"""If the project has a value of these settings, those of ``spark-submit`` do not replace it: a cluster's defaults for
all programs would change due times or ids, or have rows sent twice."""

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

_KEPT_BY_RUNNING_SESSION = ("spark.sql.catalog.spark_catalog", "spark.sql.extensions")
"""Settings that a session which runs already keeps: its platform may have a Delta with other Java names."""

_SPARKS_DEFAULTS = {"spark.speculation": "false", "spark.task.maxFailures": "4"}
"""Values that Spark uses if a context does not name them."""

_SOURCES = ("kafka", "delta")
"""Data sources that the jobs need."""

_STOPPED = "stopped SparkContext"
"""Words of Java if the application has ended, and something uses its context."""

_MAX_SENTENCE = 400

_ADVICE = {
    r"S3A?FileSystem not found|No FileSystem for scheme \"s3": "Spark has no connector for s3a://. docs/spark.md, "
    '"S3, EMR, Databricks", has the option that brings it: --conf spark.jars.packages=...',
    r"Permission denied|Mkdirs failed|AccessControlException|Read-only file system|[nN]ot a directory|"
    "ParentNotDirectoryException": "let this user write there, or name another directory",
    r"Java heap space|OutOfMemoryError|GC overhead limit": "Java has too little memory, by default 1 GB: "
    "--conf spark.driver.memory=4g gives it more; on a cluster also spark.executor.memory",
}
"""Pattern of a failure that users meet -> the way out."""

_OLD_LOGS = 9
"""Number of logs of earlier runs that are kept."""

_ARTIFACTS = Path("artifacts")


@dataclass(frozen=True)
class Launch:
    """How to start Spark."""

    job: str
    """Name of the application in the lists of a cluster."""
    log_path: Path | None
    """Spark's log file. Those of earlier runs get the suffixes .1 to .9. None: this process's error output."""
    master: str | None = None
    """Spark master URL. None: the cores of this machine, or under ``spark-submit`` the master that it was given."""
    conf: tuple[tuple[str, str], ...] = ()
    """Spark settings of the user. They replace those of the project; lists are added to them."""
    defaults: dict[str, str] = field(default_factory=dict)
    """Spark settings of the job; ``conf`` replaces them."""

    @property
    def has_default_memory(self) -> bool:
        """Whether all work is done in one JVM, with Spark's default heap of 1 GB."""
        chosen = self.settings()
        return chosen["spark.master"].startswith("local") and "spark.driver.memory" not in chosen

    def settings(self, jars: Iterable[Path] = (), given: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
        """All settings of Spark.

        Args:
            jars: jars that Spark does not have.
            given: the settings that ``spark-submit`` was given. They replace those of the project, with exceptions.
        """
        chosen = {**_SETTINGS, _JARS: ",".join(jar.as_uri() for jar in jars)}
        master = self.master or given.get("spark.master", LOCAL)
        chosen["spark.master"] = master
        if master.startswith("local"):
            chosen |= _LOCAL_SETTINGS
            if self.log_path is not None:
                # Spark creates this unused directory, by default in the working directory.
                chosen["spark.sql.warehouse.dir"] = (self.log_path.parent.absolute() / "warehouse").as_uri()
        chosen |= self.defaults
        by_cluster = ((name, value) for name, value in given.items() if name not in {*_NOT_BY_CLUSTER} & chosen.keys())
        for name, value in (*by_cluster, *self.conf):
            mine = chosen.get(name, "") if name in _LISTS else ""
            chosen[name] = f"{mine},{value}" if mine and value else mine or value
        if chosen.get(_NAME, _SCRIPT) == _SCRIPT:
            chosen[_NAME] = f"timers-{self.job}"
        return {name: value for name, value in chosen.items() if value}


@contextmanager
def session(launch: Launch) -> Iterator[SparkSession]:
    """A Spark session that is stopped at the end, or the one of this process. Failures in it become one sentence.

    Raises:
        SparkError: Java is missing, Spark did not start, or a job in the session failed.
    """
    try:
        running = running_session()
        if running is not None:
            with _used(running, launch):
                yield running
            return
        spark = start(launch)
        try:
            yield spark
        finally:
            _stop(spark)
    except jvm.ERRORS as error:
        raise SparkError(f"Spark failed: {_reason(error, launch)}{_log_of(launch)}") from error
    except ConnectionRefusedError as error:
        raise SparkError(f"Spark's Java process has ended, or was killed{_log_of(launch)}") from error


@contextmanager
def described(spark: SparkSession, what: str) -> Iterator[None]:
    """Spark's UI shows ``what`` beside the jobs of the block."""
    context: Any = spark.sparkContext
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription(what)
    try:
        yield
    finally:
        context.setLocalProperty("spark.job.description", before)


def _reason(error: Exception, launch: Launch) -> str:
    sentence = sentence_of(error)
    if _STOPPED not in sentence:
        return sentence
    master = launch.settings(given=dict(SparkConf().getAll()))["spark.master"]
    return f"the master {master!r} does not answer, or it has ended the application. Is its URL right?"


def start(launch: Launch) -> SparkSession:
    """Start a session; the caller stops it."""
    on_interrupt = signal.getsignal(signal.SIGINT)
    try:
        spark = _submitted(launch) if is_submitted() else _started(launch)
    finally:
        if threading.current_thread() is threading.main_thread():
            # PySpark replaces the handler with its own, which calls Java in the middle of any other call.
            signal.signal(signal.SIGINT, on_interrupt or signal.SIG_DFL)
    spark.sparkContext.setLogLevel("WARN")
    return spark


def _submitted(launch: Launch) -> SparkSession:
    jvm.connect_to_submitted()
    given = dict(SparkConf().getAll())
    conf = SparkConf(loadDefaults=False).setAll(list(launch.settings(given=given).items()))
    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    try:
        _require_sources(
            spark,
            "start spark-submit with the arguments that `timers spark jars --submit` prints, such as "
            "spark-submit $(timers spark jars --submit) audit",
        )
    except SparkError:
        _stop(spark)
        raise
    return spark


def _started(launch: Launch) -> SparkSession:
    java.check_for_spark()
    needed = jars.jar_set()
    missing = needed.ensure(sys.stderr) if needed.missing(Path(jvm.spark_home()) / "jars") else []
    conf = SparkConf(loadDefaults=False).setAll(list(launch.settings(missing).items()))
    # Local executors use this Python; a cluster has its own.
    if conf.get("spark.master", "").startswith("local"):
        os.environ["PYSPARK_PYTHON"] = sys.executable
    with _log(launch.log_path) as log:
        SparkContext(conf=conf, gateway=_gateway(conf, log, launch))
    return SparkSession.builder.getOrCreate()


def running_session() -> SparkSession | None:
    """The session of this process, which a notebook or a platform has started. Another thread may have done so."""
    if not jvm.has_session():
        return None
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


@contextmanager
def _used(spark: SparkSession, launch: Launch) -> Iterator[None]:
    """Use a session that runs. Inside the block it has the settings of the job.

    Raises:
        SparkError: it lacks a data source, or a setting that cannot be changed now.
    """
    _require_sources(spark, "start Spark with the jars that `timers spark jars` prints")
    context = {**_SPARKS_DEFAULTS, **dict(spark.sparkContext.getConf().getAll())}
    chosen = {**dict(launch.conf), **({"spark.master": launch.master} if launch.master else {})}
    before = {}
    try:
        for name, value in {**_SETTINGS, **launch.defaults, **chosen}.items():
            if name in _KEPT_BY_RUNNING_SESSION:
                continue
            if spark.conf.isModifiable(name):
                before[name] = spark.conf.get(name, None)
                spark.conf.set(name, value)
            elif name in {*_NOT_BY_CLUSTER, *chosen} and context.get(name) != value:
                raise SparkError(
                    f"this process has a Spark session already, without {name}={value}: start it with this"
                )
        yield
    finally:
        restore(spark, before)


def restore(spark: SparkSession, before: Mapping[str, str | None]) -> None:
    """Give settings the values that they had; None: none."""
    for name, earlier in before.items():
        if earlier is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, earlier)


@contextmanager
def having(spark: SparkSession, settings: Mapping[str, object]) -> Iterator[None]:
    """Inside the block, a session has these settings."""
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, str(value))
        yield
    finally:
        restore(spark, before)


def _require_sources(spark: SparkSession, advice: str) -> None:
    """Check that Spark has the jars: they cannot be added to a Java process that runs."""
    for source in _SOURCES:
        try:
            jvm.look_up_source(spark, source)
        except jvm.ERRORS as error:
            raise SparkError(f"Spark has no data source {source!r} ({sentence_of(error)}): {advice}") from error


def _gateway(conf: SparkConf, log: IO[bytes], launch: Launch) -> Any:
    """Start the JVM. Its output and that of its Python workers go to ``log``."""
    try:
        return jvm.launch(conf, log)
    except PySparkException:
        text = launch.log_path.read_text(errors="replace") if launch.log_path else ""
        reason = java.cause(text) or (
            "a package of spark.jars.packages could not be resolved: is Maven's registry reachable from here?"
            if "unresolved dependency" in text or "UNRESOLVED DEPENDENCIES" in text
            else "its Java process ended at once"
        )
        raise SparkError(f"Spark did not start: {reason}{_log_of(launch)}") from None


@contextmanager
def _log(path: Path | None) -> Iterator[IO[bytes]]:
    """The log of this run; those of earlier runs are renamed."""
    if path is None:
        yield sys.stderr.buffer
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        rotate(path, _OLD_LOGS)
        log = path.open("wb")
    except OSError as error:
        reason = error.strerror or error
        raise SparkError(f"Spark's log {path} cannot be written ({reason}): --log-file names another file") from None
    with log:
        yield log


def _log_of(launch: Launch) -> str:
    return f" (its log: {launch.log_path})" if launch.log_path else ""


def _stop(spark: SparkSession) -> None:
    with contextlib.suppress(jvm.NETWORK_ERROR, OSError):  # the JVM died, which was reported before
        spark.stop()
    # Spark 4.0 creates directories for artifacts in the working directory and does not delete them.
    with contextlib.suppress(OSError):
        for left in [*_ARTIFACTS.iterdir(), _ARTIFACTS]:
            left.rmdir()


def is_submitted() -> bool:
    """Whether ``spark-submit`` started this process, so that a JVM with its settings exists."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def has_log() -> bool:
    """Whether Spark writes its log where the program that started it chose."""
    return is_submitted() or running_session() is not None


def sentence_of(error: Exception) -> str:
    """The root cause of a failure in one line, without Java's stack trace."""
    text = jvm.cause_of(error) or str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # A failure in Python code is a traceback; its last line has the reason.
    failed = next((line for line in reversed(lines) if text.lstrip().startswith("Traceback")), None)
    sentence = failed or (lines[0] if lines else type(error).__name__)
    if cause := java.cause(text):
        return cause
    advice = next((f": {way_out}" for pattern, way_out in _ADVICE.items() if re.search(pattern, text)), "")
    return sentence[:_MAX_SENTENCE] + advice
