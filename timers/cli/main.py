"""``timers``: the group that holds every command, and what they have in common.

Exit codes of all commands: 0 done, 1 failed, 2 usage or settings, 130 Ctrl-C; ``cancel`` and ``get`` have more. A
failure is one sentence on stderr; to see the traceback of one that is no :class:`TimersError`, run
``python -X dev -m timers.cli.main ...``.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import click

from timers import __version__
from timers.errors import TimersError

FAILED = 1
INTERRUPTED = 130

_COMMANDS = {
    "schedule": "Schedule one timer and print its id.",
    "cancel": "Cancel a timer that has an id, and say what came of it.",
    "get": "Show one timer: whether it waits or has fired.",
    "list": "List the timers that wait.",
    "watch": "Print the callbacks that arrive on a topic.",
    "dead-letters": "List, show and retry requests that could not be read or sent.",
    "formats": "Show which request formats are on, their topics, and how to turn on the others.",
    "demo": "Schedule timers and show each one fire.",
    "run": "Start everything on this machine: broker, worker and demo.",
    "spark": "Jobs on Spark: audit and more, on this machine or a cluster.",
    "worker": "Run the worker: faust -A timers.app worker.",
    "broker": "Start, stop and look at the embedded Kafka broker.",
    "settings": "Show every setting: variable, value, source and reason.",
}
"""Each command, in the order of ``--help``. It is the object of that name in the module of that name, imported when
it is used: a broker's or a client's libraries would make ``timers --help`` slow."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(importlib.import_module(f"timers.cli.{name}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Settings are environment variables; `timers settings` lists them. Without TIMERS_BROKERS every command "
    "uses this project's running broker (`timers broker start`), else 127.0.0.1:9092. "
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
    """Run one command line and return its exit code.

    Args:
        args: the arguments; those of the process if None.
    """
    try:
        code = cli.main(args=args, prog_name="timers", standalone_mode=False)
        sys.stdout.flush()  # here, where a closed pipe can still be caught
    except TimersError as error:
        return _fail(str(error), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has what it wanted. Nothing more can be said on stdout, not even by Python at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        return _fail(f"unexpected {type(error).__name__}: {error}", FAILED)
    return code if isinstance(code, int) else 0


def _fail(sentence: str, code: int) -> int:
    click.echo(f"{click.style('timers:', fg='red')} {sentence}", err=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
