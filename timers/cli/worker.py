"""``timers worker``: runs a worker through Faust's command line."""

from __future__ import annotations

import os
import sys

import click

from timers.cli.lazy import require
from timers.cli.reach import say_brokers
from timers.config.settings import Settings
from timers.worker.port import check_port


def faust_command(options: tuple[str, ...], settings: Settings) -> list[str]:
    """The Faust command line of a worker, with this project's defaults for options that are missing."""
    quiet = ["--quiet"] if settings.log_format == "json" else []  # else Faust prints the names of signals
    command = [sys.executable, "-m", "timers.worker", "-A", "timers.app", *quiet, "worker"]
    if not _has_option(options, "--loglevel", "-l"):
        command += ["-l", "info"]
    if not _has_option(options, "--web-port", "-p"):
        command += ["--web-port", str(settings.web_port)]
    return [*command, *options]


def _has_option(options: tuple[str, ...], long: str, short: str) -> bool:
    return any(option == long or option.startswith((f"{long}=", short)) for option in options)


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.argument("options", metavar="[FAUST WORKER OPTIONS]...", nargs=-1, type=click.UNPROCESSED)
def worker(options: tuple[str, ...]) -> None:
    """Run the worker, which fires timers: faust -A timers.app worker -l info.

    Options go to Faust as they are (`faust worker --help` lists them). Ctrl-C or SIGTERM stops it cleanly. More workers
    share the load; on one machine each needs its own TIMERS_WEB_PORT.
    """
    require("worker")
    settings = Settings.load()  # also here: an error is one sentence, without Faust's traceback
    say_brokers(settings)
    if not _has_option(options, "--web-port", "-p"):
        check_port(settings)
    command = faust_command(options, settings)
    sys.stdout.flush()
    os.execv(command[0], command)
