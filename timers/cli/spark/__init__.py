"""``timers spark JOB``: the jobs that run on Spark, by name. Spark itself is imported when a job starts."""

from __future__ import annotations

import importlib

import click

from timers.errors import SparkError

_JOBS: dict[str, str] = {
    "engine": "Fire timers on Spark, instead of with workers.",
    "audit": "Find out what became of every request, from the topics alone.",
    "import": "Import timers from Parquet, CSV or JSON lines, each once.",
    "hold": "Take timers that are due far ahead from the cold topic into a table.",
    "promote": "Bring back timers whose time is near.",
}
"""Each job, in the order of ``--help``: the command of that name in the module of that name here."""

_MODULES = {"import": "bulk_import"}
"""Where that name cannot be: it means something to Python."""

_EXTRA = ("pyspark", "py4j", "delta", "pandas", "pyarrow", "matplotlib", "jinja2")


class _Jobs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_JOBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _JOBS:
            return None
        name = _MODULES.get(cmd_name, cmd_name.replace("-", "_"))
        command: click.Command = getattr(importlib.import_module(f"{__name__}.{name}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Jobs"):
            formatter.write_dl(list(_JOBS.items()))

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in _EXTRA:
                raise
            raise SparkError(
                f"the package {error.name} is missing, which jobs on Spark need: pip install 'kafka-timers[spark]'"
            ) from None


@click.group(
    cls=_Jobs,
    subcommand_metavar="JOB [OPTIONS]...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Settings are environment variables, the same as the worker's. Needs pip install 'kafka-timers[spark]' and "
    "Java 17 or 21; the first start fetches Spark's connectors (70 MB).",
)
def spark() -> None:
    """Jobs on Spark, over the same topics as the worker: on this machine's cores, or a cluster by --master."""
