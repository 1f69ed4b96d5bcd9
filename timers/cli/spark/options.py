"""What all jobs on Spark are told alike: where to run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from timers.config.project import project_dir

if TYPE_CHECKING:
    from timers.spark.session import Launch


def launch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say where Spark runs: arguments ``master``, ``conf`` and ``log_file`` of :func:`launch_of`."""
    for option in reversed(
        [
            click.option(
                "--master",
                metavar="URL",
                help="Spark master, such as spark://host:7077 or k8s://...  [default: local[*], all cores of this "
                "machine; under spark-submit, what that was given]",
            ),
            click.option(
                "--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark's own; may be repeated."
            ),
            click.option(
                "--log-file",
                type=click.Path(dir_okay=False, path_type=Path),
                metavar="FILE",
                help="Where Spark's own log goes.  [default: .timers/spark/JOB.log]",
            ),
        ]
    ):
        command = option(command)
    return command


def launch_of(
    job: str,
    master: str | None,
    conf: tuple[str, ...],
    log_file: Path | None,
    defaults: Mapping[str, str] | None = None,
) -> Launch:
    """How to start Spark for ``job``, from the options of :func:`launch_options`; says that it is about to.

    Args:
        job: its name.
        master: of the options.
        conf: of the options.
        log_file: of the options.
        defaults: settings that the job prefers.
    """
    from timers.spark.session import Launch

    pairs = []
    for each in conf:
        name, equals, value = each.partition("=")
        if not name.startswith("spark.") or not equals:
            raise click.UsageError(f"--conf {each!r} is no setting of Spark's: spark.NAME=VALUE")
        pairs.append((name, value))
    path = log_file or project_dir() / "spark" / f"{job}.log"
    # It takes ten seconds, and the first time the packages come over the network.
    click.echo(f"starting Spark; its log: {path}", err=True)
    return Launch(job, path, master, tuple(pairs), dict(defaults or {}))


def tables_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Option that says where the tables of the cold tier are: argument ``tables``."""
    return click.option(
        "--tables",
        metavar="URI",
        help="Directory of the cold tier's tables, which all executors can read and write.  [default: .timers/cold]",
    )(command)


@contextmanager
def told_to_stop() -> Iterator[threading.Event]:
    """Set by SIGTERM and Ctrl-C: a job ends when it is at a good place."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
