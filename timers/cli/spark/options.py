"""Options of all jobs on Spark."""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from timers.cli.signals import handled
from timers.config.project import project_dir

if TYPE_CHECKING:
    from timers.spark.session import Launch

LaunchOf: TypeAlias = Callable[..., "Launch"]
"""Called with the name of the job, and settings of Spark that ``--conf`` may replace."""


def launch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say where Spark runs. The command gets one argument, ``launch_of``: see :func:`launch`."""

    @functools.wraps(command)
    def with_launch(
        *arguments: Any, master: str | None, conf: tuple[str, ...], log_file: Path | None, **options: Any
    ) -> Any:
        return command(*arguments, launch_of=functools.partial(launch, master, conf, log_file), **options)

    for option in reversed(
        [
            click.option(
                "--master",
                metavar="URL",
                help="Spark master, such as spark://host:7077 or k8s://...  [default: local[*], all cores of this "
                "machine; under spark-submit, the master that it was given]",
            ),
            click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting; may be repeated."),
            click.option(
                "--log-file",
                type=click.Path(dir_okay=False, path_type=Path),
                metavar="FILE",
                help="Spark's log file.  [default: .timers/spark/JOB.log]",
            ),
        ]
    ):
        with_launch = option(with_launch)
    return with_launch


def launch(
    master: str | None,
    conf: tuple[str, ...],
    log_file: Path | None,
    job: str,
    defaults: Mapping[str, str] | None = None,
) -> Launch:
    """How to start Spark. Prints that it starts.

    Args:
        master: Spark master.
        conf: settings of Spark as ``NAME=VALUE``.
        log_file: file of Spark's log.
        job: name of the job.
        defaults: settings of Spark that ``conf`` may replace.
    """
    from timers.spark.session import Launch

    pairs = []
    for each in conf:
        name, equals, value = each.partition("=")
        if not name.startswith("spark.") or not equals:
            raise click.UsageError(f"--conf {each!r} is not a setting of Spark: write spark.NAME=VALUE")
        pairs.append((name, value))
    path = log_file or project_dir() / "spark" / f"{job}.log"
    # The start takes 10 s; the first one also downloads packages.
    click.echo(f"starting Spark; its log: {path}", err=True)
    return Launch(job, path, master, tuple(pairs), dict(defaults or {}))


def tables_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Option for the directory of the cold tier's tables: argument ``tables``."""
    return click.option(
        "--tables",
        metavar="URI",
        help="Directory of the cold tier's tables, which all executors can read and write.  [default: .timers/cold]",
    )(command)


@contextmanager
def told_to_stop() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set. A job checks it between two steps."""
    stop = threading.Event()
    with handled((signal.SIGTERM, signal.SIGINT), lambda *_: stop.set()):
        yield stop
