"""``timers spark import``: import timers from files, each row once."""

from __future__ import annotations

import codecs
import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from timers.cli.output import Output, output_option, say
from timers.cli.reach import check_brokers
from timers.cli.spark import launch, launch_options
from timers.core.printable import quoted, utc_text
from timers.errors import SettingsError
from timers.process.config.settings import Settings
from timers.process.counted import counted

if TYPE_CHECKING:
    from timers.spark.frames.rows import RowFiles
    from timers.spark.frames.timer_columns import RowOptions
    from timers.spark.jobs.bulk_import import Imported

REJECTED = 3
"""Exit code if some rows are not valid timers."""

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,100}")
_ASCII = bytes(range(128)).decode("ascii")
_ESCAPES = (r"\x41\u0041", "\x1b$B!!\x1b(B", "\x1b$)C\x0e!!\x0f", "~{!!~}", "+AGE-", "xn--fa-hia")
"""Texts in ASCII that mean others in encodings with escapes, such as ISO-2022, HZ, UTF-7 and IDNA."""
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Python reads the files: what Java would spend on making its code faster costs more than it brings."""

_FORMATS = {"parquet": "parquet", "csv": "csv", "json": "json", "jsonl": "json", "ndjson": "json"}


def _format(given: str | None, paths: tuple[str, ...]) -> str:
    """The format of files that only Spark can read, by their names."""
    if given is not None:
        return given
    found = {_FORMATS.get(path.lower().removesuffix(".gz").rpartition(".")[2]) for path in paths}
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
    """A local path as a URI, because Spark may use another default file system. Another URI stays as it is."""
    from timers.spark.frames.rows import local_path

    local = local_path(path)
    return path if local is None else local.resolve().as_uri()


def _check_apart(paths: tuple[str, ...], option: str, directory: str) -> None:
    """Check that no path has a directory below it that the import writes: its files would be read as rows."""
    written = _uri(directory)
    for path in paths:
        if f"{written}/".startswith(f"{_uri(path).rstrip('/')}/"):
            raise click.UsageError(
                f"PATH {quoted(path)} contains {option} {quoted(directory)}, to which the import writes: give another "
                f"{option}, or name the files, or in --rejects the directory of one run"
            )


def _files(
    paths: tuple[str, ...], form: str | None, encoding: str, options: RowOptions, ignored: tuple[str, ...], **more: Any
) -> RowFiles:
    """The files, with what their begins say about all rows, as far as no Spark is needed for it."""
    from timers.spark.frames.rows import RowFiles, format_of, local_files, local_path, opened

    if any(local_path(path) is None for path in paths):
        chosen = _format(form, paths)
        return RowFiles(paths, None, chosen, options, _encoding(encoding, chosen), ignored, **more)
    urls = tuple(url for path in paths for url in local_files(path))
    if form is None:
        formats: dict[str, str] = {}
        for url in urls:
            with opened(url) as file:
                formats.setdefault(format_of(file), url)
        if len(formats) > 1:
            found = " and ".join(f"{quoted(url)} ({each})" for each, url in formats.items())
            raise click.UsageError(f"the files have different formats, {found}: import them one after the other")
        (form,) = formats
    whole = tuple(str(Path(local_path(path) or path).absolute()) for path in paths)
    files = RowFiles(
        whole,
        tuple(str(Path(url).absolute()) for url in urls),
        form,
        options,
        _encoding(encoding, form),
        ignored,
        **more,
    )
    files.check()
    return files


@click.command(name="import")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "csv", "json"]),
    help="json: one object in each line.  [default: by how the files begin]",
)
@click.option(
    "--encoding",
    default="utf-8",
    show_default=True,
    help="Encoding of CSV and JSON, such as latin-1 or windows-1252. Values are sent in UTF-8.",
)
@click.option("--topic", metavar="NAME", help="Callback topic of rows that name none.")
@click.option(
    "--zone", metavar="ZONE", help="Time zone of times that have no offset and no zone, such as Europe/Berlin."
)
@click.option(
    "--past",
    type=click.Choice(["refuse", "fire"]),
    default="refuse",
    show_default=True,
    help="Whether a row that is due before now is rejected, or fires at once.",
)
@click.option(
    "--ignore-column",
    "ignored",
    metavar="NAME",
    multiple=True,
    help="Leave out this column, or this field of JSON, which would be refused if it is not known. May be repeated.",
)
@click.option("--name", default="import", show_default=True, help="Name of the import; part of the ids of its rows.")
@click.option(
    "--ledger",
    metavar="URI",
    default="timers-import/ledger",
    show_default=True,
    help="The sent timers. Use the same for all runs that must not send a row twice.",
)
@click.option(
    "--rejects",
    metavar="URI",
    default="timers-import/rejects",
    show_default=True,
    help="Directory for rows that are not valid timers, with file, line and reason, as JSON lines, which can be fixed "
    "and imported: each run with such rows makes a directory in it.",
)
@click.option("--base64", "as_base64", is_flag=True, help="Values are base64.")
@click.option("--dry-run", is_flag=True, help="Send nothing: show the numbers of rows, and what is due in each hour.")
@output_option()
@launch_options
def bulk_import(
    paths: tuple[str, ...],
    form: str | None,
    encoding: str,
    topic: str | None,
    zone: str | None,
    past: str,
    ignored: tuple[str, ...],
    name: str,
    ledger: str,
    rejects: str,
    as_base64: bool,
    dry_run: bool,
    output: Output,
    **options: Any,
) -> int:
    """Import timers from Parquet, CSV or JSON lines: each row once, however often you run it.

    Columns: those of `timers schedule --from-file` (topic, key, value, headers, id, token, delay, at; due is another
    name of at). Rows without an id get one that is computed from their fields. If a run is interrupted, the next run
    sends the missing timers. A column with another name is refused.

    Exit codes: 0 all rows are timers, 3 some rows are not valid timers, 1 failed, 2 usage or settings.

    \b
      timers spark import reminders.csv
      timers spark import --name renewals --ledger s3a://bucket/ledger s3a://bucket/renewals.parquet
    """
    if not _NAME.fullmatch(name):
        raise click.UsageError(f"--name {quoted(name)} is not 1 to 100 letters, digits, '.', '_' or '-'")

    from timers.spark.frames.timer_columns import RowOptions

    row_options = RowOptions(topic, "", name, False, zone, past)
    try:
        row_options.check()
    except SettingsError as error:
        raise click.UsageError(f"--{error}") from None
    _check_apart(paths, "--rejects", rejects)
    _check_apart(paths, "--ledger", ledger)
    files = _files(paths, form, encoding, row_options, ignored, as_base64=as_base64)
    settings = Settings.load()
    # It is unknown what a failed task has sent, so Spark must not retry it. The run fails, and the next run continues.
    once = {"spark.task.maxFailures": "1", "spark.speculation": "false"}
    launched = launch(options, "import", {**once, "spark.driver.extraJavaOptions": _JAVA})
    check_brokers(settings)

    from timers.spark.jobs import bulk_import as job
    from timers.spark.session import session
    from timers.spark.storage import check_shared

    arguments = job.Import(settings, files, name, _uri(ledger), _uri(rejects), dry_run)
    with session(launched) as spark:
        for option, path in [*(("PATH", each) for each in paths), ("--ledger", ledger), ("--rejects", rejects)]:
            check_shared(spark, option, path, always_local=True)
        done = job.run(spark, arguments, time.time_ns(), say)
    _show(done, dry_run, output)
    if done.rejected:
        say(f"not valid: {counted(done.rejected, 'row')}, with the reasons in {done.rejects}")
    return REJECTED if done.rejected else 0


def _show(done: Imported, dry_run: bool, output: Output) -> None:
    fields = {name: value for name, value in asdict(done).items() if name != "hours"}
    if not dry_run:
        output.show(fields)
        return
    if output.as_json:
        output.show({**fields, "hours": [{"hour": hour, "timers": timers} for hour, timers in done.hours]})
    else:
        rows: list[tuple[dict[str, Any], tuple[str, str]]] = [
            ({}, (utc_text(hour), f"{timers:,}")) for hour, timers in done.hours
        ]
        output.table(("HOUR", "TIMERS"), (20, 0), rows)
    first, last = (None if each is None else utc_text(each) for each in (done.first_due_s, done.last_due_s))
    due = f", due from {first} to {last}" if first else ""
    say(f"nothing was sent: {counted(done.sent, 'timer')} would be{due}")
