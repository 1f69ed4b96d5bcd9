"""``timers spark jars``: the jars that the jobs need besides Spark's own."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click

from timers.cli.output import Output, output_option
from timers.cli.spark.options import written


@click.command()
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="Copy the jars to this directory, such as the directory jars of Spark in an image.",
)
@click.option("--submit", is_flag=True, help="Print arguments for spark-submit: the jars, and the file that it starts.")
@output_option()
def jars(into: Path | None, submit: bool, output: Output) -> None:
    """Download the jars that the jobs need besides Spark's own, and print their paths.

    They are the Kafka connector and Delta for the installed version of pyspark, with exact versions and checked hashes.
    `timers spark JOB` needs no such preparation; spark-submit and images do.

    \b
      spark-submit --master spark://host:7077 $(timers spark jars --submit) audit
      timers spark jars --into /opt/spark/jars
    """
    from timers.spark import __main__ as script
    from timers.spark.jars import jar_set

    paths = jar_set().ensure(sys.stderr)
    if into is not None:
        with written("--into", into):
            into.mkdir(parents=True, exist_ok=True)
            paths = [Path(shutil.copy(path, into)) for path in paths]
    listed = ",".join(map(str, paths))
    fields = {"jars": list(map(str, paths)), "script": script.__file__}
    output.show(fields, f"--jars {listed} {script.__file__}" if submit else listed)
