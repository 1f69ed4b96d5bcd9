"""``timers``: the group of all commands.

Exit codes of all commands: 0 done, 1 failed, 2 usage or settings, 130 Ctrl-C; some commands have more. A failure is one
sentence on stderr. ``python -X dev -m timers.cli.main ...`` shows the traceback of an unexpected error.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Sequence

import click

from timers import __version__
from timers.cli.lazy import LazyGroup, extra_of_missing_module
from timers.cli.output import INTERRUPTED_EXIT_CODE, flush, say_failure, say_usage
from timers.errors import TimersError
from timers.process.limits import raise_open_files
from timers.process.logs import make_safe

FAILED = 1

_COMMANDS = {
    "schedule": ("timers:schedule", "Schedule one timer, or many from a file, and print their ids."),
    "next": ("repeats:show_next", "Show when a repeating timer would fire next, and what clock changes do to it."),
    "apply": ("apply:apply", "Set the repeating timers of a file, and show first what differs."),
    "cancel": ("timers:cancel", "Cancel a timer with an id, or all of a selection, and print the verdicts."),
    "get": ("timers:get", "Show one timer: whether it waits or has fired."),
    "list": ("timers:list_timers", "List the timers that wait."),
    "watch": ("topics:watch", "Print the callbacks that arrive on a topic."),
    "doctor": (
        "doctor:doctor",
        "Check brokers, login, topics, clocks and workers, and that a timer fires.",
    ),
    "status": ("partitions:status", "Show whether all timers fire, and which worker has which partitions."),
    "topics": ("topics:topics", "Create topics: for callbacks and schedules, or those of the engine."),
    "acls": ("topics:acls", "Show or create the ACLs that a worker, an engine on Spark, a console or a relay needs."),
    "dead-letters": ("dead_letters:dead_letters", "List, show and retry requests that could not be read or sent."),
    "queue": ("queue:queue", "Send, receive and look at the messages of queues."),
    "outbox": ("outbox:outbox", "Send what programs have written in their own database transactions."),
    "targets": ("targets:targets", "Pause and resume the timers of a callback topic; list the paused topics."),
    "formats": ("settings:formats", "Show which request formats are on, their topics, and how to turn on the others."),
    "levels": ("partitions:levels", "Show the feature levels of workers and partitions, and allow a higher one."),
    "snapshots": (
        "snapshots:snapshots",
        "Show the snapshots of partitions: position, size, age, and what of the log they replace.",
    ),
    "log": ("snapshots:log", "Compare the logs of requests with their snapshots."),
    "export": ("pending:export", "Write all that is pending to a file; move it out of the app, if told to."),
    "import-pending": ("pending:import_pending", "Set the timers of an exported file in this app, each once."),
    "clock": ("partitions:clock", "Show up to which second partitions have fired, and take a wrong time back."),
    "run": ("run:run", "Start everything on this machine: broker, worker, console and demo."),
    "spark": ("spark:spark", "Jobs on Spark: audit and more, on this machine or a cluster."),
    "console": ("run:console", "Run the HTTP API and its pages: set, find, change and watch timers."),
    "worker": ("run:worker", "Run the worker: faust -A timers.app worker."),
    "broker": ("broker_commands:broker", "Start, stop and look at the embedded Kafka broker."),
    "settings": ("settings:settings", "Show every setting: variable, value, source and reason."),
}
"""Each command, where it is, and its line in ``--help``."""

_HEADINGS = {
    "Begin": ("run", "doctor", "broker"),
    "Timers": ("schedule", "next", "apply", "list", "get", "cancel", "watch"),
    "Queues": ("queue",),
    "Databases": ("outbox",),
    "When something is wrong": ("status", "dead-letters", "targets", "clock", "log"),
    "Run workers": ("worker", "console", "spark", "settings", "formats"),
    "Set up and move": ("topics", "acls", "levels", "snapshots", "export", "import-pending"),
}


@click.group(
    cls=LazyGroup,
    lazy=_COMMANDS,
    headings=_HEADINGS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Settings are environment variables; `timers settings` lists them. Without TIMERS_BROKERS, or the option "
    "--bootstrap-server of each command, a command uses this folder's broker (`timers run`, `timers broker start`), "
    "and if it never had one, 127.0.0.1:9092. "
    "Exit codes: 0 done, 1 failed, 2 usage or settings, 130 Ctrl-C.",
)
@click.version_option(__version__, "-V", "--version", message="timers %(version)s")
def cli() -> None:
    """Durable, exact timers on Apache Kafka: send a message now, get it back at the second you asked for.

    \b
    Try it:
      timers run                        everything at once; Ctrl-C ends it
    or step by step:
      timers broker start               a Kafka broker on this machine
      timers worker &                   the worker that fires timers
      timers schedule --in 5s --topic hello --create-topic --key k --value 'hi, later'
      timers watch hello --from-beginning
    """


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    make_safe([logging.lastResort])
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the locale may lack a character of a key
    raise_open_files()  # consoles, queues and drivers of Spark have many connections
    try:
        with extra_of_missing_module():
            code = cli.main(args=args, prog_name="timers", standalone_mode=False)
        flush()  # at exit it would be too late to handle a closed pipe
    except TimersError as error:
        return _fail(str(error), error.exit_code)
    except click.ClickException as error:
        say_usage(error)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED_EXIT_CODE
    except BrokenPipeError:
        # The reader (`| head`) has ended. Python must not write to stdout at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        return _fail(f"unexpected {type(error).__name__}: {error}", FAILED)
    return code if isinstance(code, int) else 0


def _fail(sentence: str, code: int) -> int:
    say_failure(sentence)
    return code


if __name__ == "__main__":
    sys.exit(main())
