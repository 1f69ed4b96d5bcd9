"""``timers spark JOB``: the jobs that run on Spark, by name. Spark itself is imported when a job starts."""

from __future__ import annotations

import click

from timers.cli.lazy import LazyGroup
from timers.errors import SparkError

_JOBS: dict[str, str] = {
    "engine": "Fire timers on Spark, instead of with workers.",
    "audit": "Find out what became of every request, from the topics alone.",
    "import": "Import timers from Parquet, CSV or JSON lines, each once.",
    "hold": "Take timers that are due far ahead from the cold topic into a table.",
    "promote": "Bring back timers whose time is near.",
}
"""Each job and its line in ``--help``."""

_EXTRA = ("pyspark", "py4j", "delta", "pandas", "pyarrow", "matplotlib", "jinja2")


class _Jobs(LazyGroup):
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
    package=__name__,
    lines=_JOBS,
    heading="Jobs",
    modules={"import": "bulk_import"},  # `import` is a keyword of Python
    subcommand_metavar="JOB [OPTIONS]...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Settings are environment variables, the same as the worker's. Needs pip install 'kafka-timers[spark]' and "
    "Java 17 or 21; the first start fetches Spark's connectors (70 MB).",
)
def spark() -> None:
    """Jobs on Spark, over the same topics as the worker: on this machine's cores, or a cluster by --master."""
