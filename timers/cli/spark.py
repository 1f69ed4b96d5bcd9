"""``timers spark JOB``: the jobs that run on Spark, and their options. Spark is imported only when a job starts."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from timers.cli.lazy import LazyGroup, extra_of_missing_module
from timers.cli.output import say, say_metrics
from timers.core.printable import quoted
from timers.errors import SettingsError
from timers.process.config.project import project_dir
from timers.process.signals import on_signals, raise_interrupt

if TYPE_CHECKING:
    from timers.spark.monitoring import Monitor
    from timers.spark.session import Launch

_JOBS = {
    "engine": ("spark_jobs:engine", "Fire timers on Spark instead of with workers."),
    "audit": ("spark_audit:audit", "Find the outcome of each request, from the topics alone."),
    "history": ("spark_history:history", "Keep what became of each timer in tables, longer than the topics do."),
    "pending": ("spark_jobs:pending", "Show what is pending, as a table and as a forecast by hour."),
    "import": ("spark_import:bulk_import", "Import timers from Parquet, CSV or JSON lines, each row once."),
    "hold": ("spark_jobs:hold", "Move timers that are due far ahead from the cold topic into a table."),
    "promote": ("spark_jobs:promote", "Write cold timers back to their topics before they are due."),
    "jars": ("spark_jobs:jars", "Print the jars that spark-submit and images need."),
}
"""Each job, where it is, and its line in ``--help``."""


class _Jobs(LazyGroup):
    def invoke(self, ctx: click.Context) -> object:
        with extra_of_missing_module("spark"):
            return super().invoke(ctx)


@click.group(
    cls=_Jobs,
    lazy=_JOBS,
    heading="Jobs",
    subcommand_metavar="JOB [OPTIONS]...",
    epilog="Settings are the worker's environment variables. Needs the extra `spark` (docs/install.md) and Java 17 or "
    "21. The first start downloads Spark's connectors (17 MB).",
)
def spark() -> None:
    """Jobs on Spark that use the same topics as the worker, on this machine or on a cluster (--master)."""


_ERROR_OUTPUT = Path("-")


def launch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say where Spark runs, which :func:`launch` reads."""
    master = click.option(
        "--master",
        metavar="URL",
        help="Spark master, such as spark://host:7077 or k8s://...  [default: local[*], all cores of this machine; "
        "under spark-submit, the master that it was given]",
    )
    conf = click.option(
        "--conf",
        multiple=True,
        metavar="KEY=VALUE",
        help="A Spark setting; may be repeated. Jars, packages and extensions are added to those of the job.",
    )
    log_file = click.option(
        "--log-file",
        type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
        metavar="FILE",
        help="Spark's log file; the logs of nine earlier runs are kept. -: the error output.  [default: "
        ".timers/spark/JOB.log; under spark-submit, its own log]",
    )
    return master(conf(log_file(command)))


def launch(options: Mapping[str, Any], job: str, defaults: Mapping[str, str] | None = None) -> Launch:
    """The launch of a job.

    Args:
        options: of the command, with those of :func:`launch_options`.
        defaults: settings of Spark that ``--conf`` may replace.
    """
    from timers.spark.session import Launch, has_log

    log_file, pairs = options["log_file"], []
    for each in options["conf"]:
        name, equals, value = each.partition("=")
        if not name.startswith("spark.") or not equals:
            raise click.UsageError(f"--conf {quoted(each)} is not a setting of Spark: write spark.NAME=VALUE")
        pairs.append((name, value))
    path = None
    if log_file != _ERROR_OUTPUT and not has_log():
        path = log_file or project_dir() / "spark" / f"{job}.log"
    made = Launch(job, path, options["master"], tuple(pairs), dict(defaults or {}))
    # The start takes 10 s; the first one also downloads jars.
    memory = " with 1 GB for Java (--conf spark.driver.memory=4g gives it more)" if made.has_default_memory else ""
    say("starting Spark" if path is None else f"starting Spark{memory}; its log: {path}")
    return made


@contextmanager
def monitored(options: Mapping[str, Any], job: str, every_s: float, *, once: bool = False) -> Iterator[Monitor]:
    """A monitor for a job with a micro-batch every ``every_s``, and its pages if the command has a port for them."""
    from timers.spark.monitoring import Monitor, served

    monitor, port, host = Monitor(job, every_s), options["metrics_port"], options["metrics_host"]
    monitor.has_end = once
    if port is None:
        yield monitor
        return
    with served(monitor, port, host) as chosen:
        say_metrics(host, chosen)
        yield monitor


@contextmanager
def written(option: str, path: Path) -> Iterator[None]:
    """Raise one sentence if a file or a directory cannot be written in the block."""
    try:
        yield
    except OSError as error:
        raise SettingsError(
            f"{option} {quoted(str(path))} cannot be written ({error.strerror or error}): let this user write there, "
            "or choose another place"
        ) from None


@contextmanager
def stop_event() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set. A job checks it between two steps, of which Spark's start may take minutes:
    a second signal ends the command as Ctrl-C does."""
    stop = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise_interrupt(number, frame)
        stop.set()
        os.write(2, b"stopping after the present step; a second signal ends this at once\n")

    with on_signals((signal.SIGTERM, signal.SIGINT), end):
        yield stop
