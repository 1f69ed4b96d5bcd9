"""``timers spark import``: import timers from files, each row once."""

from __future__ import annotations

import codecs
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from timers.cli.output import Output, output_option, say
from timers.cli.reach import check_brokers
from timers.cli.spark import launch, launch_options
from timers.core.printable import quoted
from timers.process.config.settings import Settings
from timers.process.counted import counted

REJECTED = 3
"""Exit code if some rows are not valid timers."""

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,100}")
_ASCII = bytes(range(128)).decode("ascii")
_ESCAPES = (r"\x41\u0041", "\x1b$B!!\x1b(B", "\x1b$)C\x0e!!\x0f", "~{!!~}", "+AGE-", "xn--fa-hia")
"""Texts in ASCII that mean others in encodings with escapes, such as ISO-2022, HZ, UTF-7 and IDNA."""
_FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}


def _format(given: str | None, paths: tuple[str, ...]) -> str:
    if given is not None:
        return given
    found = {_FORMATS.get(Path(path).suffix.lower()) for path in paths}
    form = found.pop() if len(found) == 1 else None
    if form is None:
        raise click.UsageError(f"the names of {', '.join(paths)} do not show one format: give --format")
    return form


def _encoding(name: str, file_format: str) -> str:
    """Python's name of an encoding in which the marks of CSV and JSON are the bytes of ASCII."""
    advice = "expected is utf-8, latin-1, windows-1252 or another one that extends ASCII"
    try:
        found = codecs.lookup(name).name.removesuffix("-sig")  # the reader passes over the mark of a file
        extends_ascii = all(text.encode("ascii").decode(found) == text for text in (*_ESCAPES, _ASCII))
    except (LookupError, UnicodeError):
        extends_ascii = False
    if not extends_ascii:
        convert = f"or convert the files first, such as with `iconv -f {name} -t UTF-8 FILE`"
        raise click.UsageError(f"--encoding {quoted(name)} cannot be read: {advice}; {convert}")
    if file_format == "parquet" and found != "utf-8":
        raise click.UsageError(f"--encoding {quoted(name)} is for CSV and JSON: texts in Parquet are UTF-8")
    return found


def _uri(path: str) -> str:
    """A local path as a URI, because Spark may use another default file system. A URI stays as it is."""
    from timers.spark.storage import is_uri

    return path if is_uri(path) else Path(path).resolve().as_uri()


@click.command(name="import")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "csv", "json"]),
    help="json: one object in each line.  [default: by the names of the files]",
)
@click.option(
    "--encoding",
    default="utf-8",
    show_default=True,
    help="Encoding of CSV and JSON, such as latin-1 or windows-1252. Values are sent in UTF-8.",
)
@click.option(
    "--ignore-column",
    "ignored",
    metavar="NAME",
    multiple=True,
    help="Leave out this column, or this field of JSON, which would be refused if it is not known. May be repeated.",
)
@click.option("--name", default="import", show_default=True, help="Name of the import; part of each id.")
@click.option(
    "--ledger",
    metavar="URI",
    default="timers-import/ledger",
    show_default=True,
    help="Delta tables of the sent timers. Use the same for all runs that must not send a row twice.",
)
@click.option(
    "--rejects",
    metavar="URI",
    default="timers-import/rejects",
    show_default=True,
    help="Directory for rows that are not valid timers, with file and reason, as JSON lines; of the last run only.",
)
@click.option("--base64", "as_base64", is_flag=True, help="Values are base64.")
@output_option()
@launch_options
def bulk_import(
    paths: tuple[str, ...],
    form: str | None,
    encoding: str,
    ignored: tuple[str, ...],
    name: str,
    ledger: str,
    rejects: str,
    as_base64: bool,
    output: Output,
    **options: Any,
) -> int:
    """Import timers from Parquet, CSV or JSON lines: each row once, however often you run it.

    Columns: due (epoch seconds, RFC 3339 with an offset, or a timestamp), topic, key, value, headers (a JSON object or
    a list of pairs; in Parquet also a map). Timers are written to the topic of TIMERS_ID_TOPIC, with ids computed from
    their rows. If a run is interrupted, the next run sends the missing timers. A column with another name is refused.

    Exit codes: 0 all rows are timers, 3 some rows are not valid timers, 1 failed, 2 usage or settings.

    \b
      timers spark import reminders.csv
      timers spark import --name renewals --ledger s3a://bucket/ledger s3a://bucket/renewals.parquet
    """
    if not _NAME.fullmatch(name):
        raise click.UsageError(f"--name {quoted(name)} is not 1 to 100 letters, digits, '.', '_' or '-'")
    file_format = _format(form, paths)
    encoding = _encoding(encoding, file_format)
    settings = Settings.load()
    # It is unknown what a failed task has sent, so Spark must not retry it. The run fails, and the next run continues.
    launched = launch(options, "import", {"spark.task.maxFailures": "1", "spark.speculation": "false"})
    check_brokers(settings)

    from timers.spark.jobs import bulk_import as job
    from timers.spark.rows import RowFiles
    from timers.spark.session import session
    from timers.spark.storage import check_shared

    files = RowFiles(tuple(map(_uri, paths)), file_format, encoding, ignored)
    arguments = job.Import(settings, files, name, _uri(ledger), _uri(rejects), as_base64=as_base64)
    with session(launched) as spark:
        for option, path in [*(("PATH", each) for each in paths), ("--ledger", ledger), ("--rejects", rejects)]:
            check_shared(spark, option, path, always_local=True)
        done = job.run(spark, arguments, say)
    output.show(asdict(done))
    if done.rejected:
        say(f"not valid: {counted(done.rejected, 'row')}, with the reasons in {rejects}")
    return REJECTED if done.rejected else 0
