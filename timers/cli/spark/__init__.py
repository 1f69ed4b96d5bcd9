"""``timers spark JOB``: the jobs that run on Spark. Spark is imported only when a job starts."""

from __future__ import annotations

import click

from timers.cli.lazy import LazyGroup, extra_of_missing_module

_JOBS = {
    "engine": ("jobs:engine", "Fire timers on Spark instead of with workers."),
    "audit": ("audit:audit", "Find the outcome of each request, from the topics alone."),
    "pending": ("jobs:pending", "Show what is pending, as a table and as a forecast by hour."),
    "import": ("bulk_import:bulk_import", "Import timers from Parquet, CSV or JSON lines, each row once."),
    "hold": ("jobs:hold", "Move timers that are due far ahead from the cold topic into a table."),
    "promote": ("jobs:promote", "Write cold timers back to their topics before they are due."),
    "jars": ("jobs:jars", "Print the jars that spark-submit and images need."),
}
"""Each job, where it is, and its line in ``--help``."""


class _Jobs(LazyGroup):
    def invoke(self, ctx: click.Context) -> object:
        with extra_of_missing_module("spark"):
            return super().invoke(ctx)


@click.group(
    cls=_Jobs,
    package=__name__,
    lazy=_JOBS,
    heading="Jobs",
    subcommand_metavar="JOB [OPTIONS]...",
    epilog="Settings are the worker's environment variables. Needs the extra `spark` (docs/install.md) and Java 17 or "
    "21. The first start downloads Spark's connectors (17 MB).",
)
def spark() -> None:
    """Jobs on Spark that use the same topics as the worker, on this machine or on a cluster (--master)."""
