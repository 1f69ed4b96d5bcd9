"""``timers spark audit``: the outcome of each request, as a page, as tables and as an exit code."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from timers.cli.output import Output, output_option, say
from timers.cli.reach import check_brokers
from timers.cli.spark import launch, launch_options, written
from timers.client.times import parse_duration, parse_moment
from timers.core.printable import quoted
from timers.process.config.settings import Settings
from timers.process.config.variables import topic_patterns

if TYPE_CHECKING:
    from timers.spark.audit.findings import Findings
    from timers.spark.audit.outcomes import Moment

_OBJECTIVE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)%:([0-9]{1,9})ms")
_RANGE = re.compile(r"(?P<topic>[^/]+)/(?P<partition>[0-9]{1,9}):(?P<low>[0-9]{1,18})-(?P<high>[0-9]{0,18})")
_NO_END = 10**18


def _ranges(texts: tuple[str, ...]) -> dict[str, dict[int, range]]:
    ranges: dict[str, dict[int, range]] = {}
    for text in texts:
        found = _RANGE.fullmatch(text)
        if found is None:
            raise click.UsageError(
                f"--range {quoted(text)} is not TOPIC/PARTITION:FROM-TO, such as timer-request/0:100-5000"
            )
        high = int(found["high"]) if found["high"] else _NO_END
        ranges.setdefault(found["topic"], {})[int(found["partition"])] = range(int(found["low"]), high)
    return ranges


def _objective(text: str) -> tuple[Decimal, int]:
    """The percentage and the time in ms."""
    found = _OBJECTIVE.fullmatch(text)
    if found is None or Decimal(found[1]) > 100:
        raise click.UsageError(f"--objective {quoted(text)} is not SHARE:TIME, such as 99.9%:100ms")
    return Decimal(found[1]), int(found[2])


def _moment(settings: Settings, grace_s: int, max_lag_s: int) -> Moment:
    """The time to which the audit refers, by the brokers' clock, and what counts as a fault."""
    from timers.kafka.topic_offsets import TopicOffsets
    from timers.spark.audit.outcomes import Moment
    from timers.spark.jobs import audit as job

    own_ms, topics = int(time.time() * 1000), TopicOffsets(settings)
    newest = partial(topics.newest_append_ms, settings.oscillator_topic)
    as_of_ms, doubt = job.brokers_now(own_ms, newest, settings.max_clock_leap_s, time.sleep)
    if doubt:
        say(f"the time is not known: {doubt}")
    elif abs(own_ms - as_of_ms) > job.FRESH_MS:
        seconds = (as_of_ms - own_ms) / 1000
        say(f"the brokers' clock differs from this machine's by {seconds:+,.0f} s: it counts")
    return Moment(as_of_ms, grace_s, max_lag_s, doubt=doubt)


def _write_reports(
    directory: Path, day: date, findings: Findings, settings: Settings, kind: str, *, is_whole: bool
) -> Path:
    """Write the page and the JSON, and return the page's path.

    Args:
        kind: what was audited, ``day`` or ``topics``: a trend is of one kind.
        is_whole: no option has left timers out, so that they are those of the day, too, beside those of other days.
    """
    from timers.spark.audit import report

    name, said = day.isoformat(), json.dumps({"kind": kind, **report.as_json(findings)}, indent=2)
    dated = sorted(directory.glob("????-??-??.json"))[-report.MAX_TREND_DAYS :]
    kept = {each.name: each.read_text("utf-8", "replace") for each in dated}
    if is_whole:
        kept[f"{name}.json"] = said
    html = report.page(findings, settings, report.days(kept, kind))
    for stem in (name, "report") if is_whole else ("report",):
        _replace(directory / f"{stem}.json", said)
        _replace(directory / f"{stem}.html", html)
    return directory / "report.html"


def _replace(path: Path, text: str) -> None:
    """Write a file, of which a reader sees the whole text, or that of before."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def _check_history(table: str | None, day: datetime | None, has_scope: bool) -> None:
    if table is None and day is not None:
        raise click.UsageError("--day is of an audit from tables: name them with --history")
    if table is not None and has_scope:
        raise click.UsageError("--history has all timers of a day: leave out --from, --to, --range and --cold-table")


@click.command()
@click.option(
    "--from",
    "from_",
    metavar="WHEN",
    help="Requests accepted at or after this time: 2h for two hours ago, or 2030-01-31T12:00:00Z.",
)
@click.option("--to", metavar="WHEN", help="Requests accepted before this time.")
@click.option(
    "--range",
    "ranges",
    multiple=True,
    metavar="TOPIC/PARTITION:FROM-TO",
    help="Of this topic only requests at these offsets; TO is exclusive or empty. May be repeated.",
)
@click.option(
    "--callback-topic",
    "callback_topics",
    multiple=True,
    metavar="TOPIC",
    help="Only timers of this callback topic; * matches any text. May be repeated.",
)
@click.option(
    "--grace", default="5s", show_default=True, help="Timers that are overdue by at most this time count as pending."
)
@click.option(
    "--max-lag",
    default="1h",
    show_default=True,
    help="A timer that fires later than this after its due second is a fault.",
)
@click.option(
    "--objective",
    metavar="SHARE:TIME",
    default="99.9%:100ms",
    show_default=True,
    help="What share of the timers of each callback topic is to fire within a time, in ms. The report says whether it "
    "is met; it is no fault if not.",
)
@click.option(
    "--output",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("timers-audit"),
    show_default=True,
    help="Directory for report.html, report.json, those of each day (2030-01-31.html, ...), and the tables.",
)
@click.option("--tables", metavar="URI", help="Another directory for the tables: a path that all executors can write.")
@click.option(
    "--cold-table",
    "cold_table",
    metavar="URI",
    help="Directory of the cold tier's tables (--tables of `hold` and `promote`): timers in it count as cold.",
)
@click.option(
    "--history",
    "history_table",
    metavar="URI",
    help="Audit one due day from these tables of `timers spark history`, which are brought up to the topics first.",
)
@click.option(
    "--day",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="YYYY-MM-DD",
    help="The due day (UTC), with --history.  [default: yesterday]",
)
@click.option("--format", "table_format", type=click.Choice(["delta", "parquet"]), default="delta", show_default=True)
@output_option("-o")
@launch_options
def audit(
    from_: str | None,
    to: str | None,
    ranges: tuple[str, ...],
    callback_topics: tuple[str, ...],
    grace: str,
    max_lag: str,
    objective: str,
    directory: Path,
    tables: str | None,
    cold_table: str | None,
    history_table: str | None,
    day: datetime | None,
    table_format: str,
    output: Output,
    **options: Any,
) -> int:
    """Find the outcome of each request, from the topics alone.

    Requests = fired + dead-lettered + cancelled + replaced + refused + pending + cold + undecided + lost. The audit
    does not use an engine's store or progress. It lists faulty timers by timer-id, lags by minute and callback
    topic, and pending timers by due second.

    Exit codes: 0 clean, 3 faulty: a timer is lost, duplicate, early, revoked, unasked, altered, slow or older than its
    request, 4 undecided: no fault was found, but not all records that could show one are visible, 1 failed, 2 usage or
    settings.

    \b
      timers spark audit
      timers spark audit --from 1d --callback-topic 'order-*' -o json
      timers spark audit --master spark://host:7077 --tables s3a://bucket/audits
      timers spark audit --history s3a://bucket/history --day 2030-01-31
    """
    now_s = time.time()
    _check_history(history_table, day, bool(from_ or to or ranges or cold_table))
    settings = Settings.load()
    # Python gets the values of whole batches of records: by default 10,000, which may be large.
    launched = launch(options, "audit", {"spark.sql.execution.arrow.maxRecordsPerBatch": "2000"})
    check_brokers(settings)
    grace_s, max_lag_s, wanted = parse_duration(grace), parse_duration(max_lag), _objective(objective)

    from timers.spark.audit import report
    from timers.spark.audit.findings import Objective
    from timers.spark.audit.gaps import Scope
    from timers.spark.cold import ColdTables
    from timers.spark.jobs import audit as job
    from timers.spark.jobs import day_audit
    from timers.spark.session import session
    from timers.spark.storage import check_shared

    from_s = None if from_ is None else parse_moment(from_, now_s)
    to_s = None if to is None else parse_moment(to, now_s)
    scope = Scope(None if from_s is None else from_s * 1000, None if to_s is None else to_s * 1000, _ranges(ranges))
    with written("--output", directory):
        directory.mkdir(parents=True, exist_ok=True)
    patterns = tuple(one for each in callback_topics for one in topic_patterns("--callback-topic", each))
    tables_uri = tables or (directory / "tables").resolve().as_uri()
    with session(launched) as spark:
        check_shared(spark, "--tables", tables or str(directory / "tables"), always_local=tables is None)
        # Set after the start of Spark, so that the audit includes timers that became due meanwhile.
        moment = _moment(settings, grace_s, max_lag_s)
        cold = None if cold_table is None else ColdTables(cold_table)
        arguments = job.Audit(settings, scope, moment, patterns, tables_uri, table_format, cold, Objective(*wanted))
        audited = datetime.fromtimestamp(moment.as_of_ms / 1000, UTC).date()
        if history_table is None:
            findings = job.run(spark, arguments, say)
        else:
            audited = audited - timedelta(days=1) if day is None else day.date()
            findings = day_audit.run(spark, arguments, history_table, audited, say)
    with written("--output", directory):
        kind = "topics" if history_table is None else "day"
        is_whole = not (from_ or to or ranges or callback_topics)
        path = _write_reports(directory, audited, findings, settings, kind, is_whole=is_whole)
    output.show(report.as_json(findings), *report.lines(findings))
    say(f"report: {path}")
    return report.EXIT_CODES[findings.verdict]
