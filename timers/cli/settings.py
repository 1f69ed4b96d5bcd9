"""``timers settings`` and ``timers formats``: every setting with its value and source, and the request formats."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping
from typing import Any

import click

from timers.cli.output import Output, output_option, say
from timers.cli.reach import check_brokers
from timers.config.settings import Settings, describe
from timers.errors import TimersError
from timers.request_formats import NATIVE, REQUEST_FORMATS


@click.command()
@output_option()
def settings(output: Output) -> None:
    """Show every setting: environment variable, value, source and reason. Secrets are masked."""
    for setting, value, given in describe(Settings.load()):
        source = "environment" if given else "default"
        unit = f"; {setting.unit}" if setting.unit else ""
        why = textwrap.wrap(setting.why, 100, initial_indent="    ", subsequent_indent="    ")
        row = {"variable": setting.env, "value": value, "unit": setting.unit, "source": source, "why": setting.why}
        output.show(row, f"{setting.env}={value}   ({source}{unit})", *why, bold=True)


@click.command()
@output_option()
def formats(output: Output) -> None:
    """Show which request formats are on, their topics and settings, and which setting turns on the others.

    A request format is how producers write their requests. The command shows its own settings: run it with those of
    the workers.
    """
    settings = Settings.load()
    topics = {topic for entry in REQUEST_FORMATS for topic in entry.topics(settings)}
    try:
        check_brokers(settings)
        partitions = _partitions(settings, topics)
    except TimersError as error:  # only the numbers of partitions come from the brokers
        say(f"{error} (partitions are not shown)")
        partitions = {}
    shown = _describe(settings, partitions)
    for each in shown:
        output.show(each, *_lines(each))
    if not any(each["on"] for each in shown if each["format"] != NATIVE.name):
        say(f"only {NATIVE.name} is on, which is always on")


def _describe(settings: Settings, partitions: Mapping[str, int | None]) -> list[dict[str, Any]]:
    values = {setting.env: value for setting, value, _ in describe(settings)}
    return [
        {
            "format": entry.request_format.name,
            "on": bool(topics),
            "topics": [{"topic": topic, "partitions": partitions.get(topic)} for topic in topics],
            "takes": entry.layout,
            "setting": entry.env,
            "settings": {env: values[env] for env in (entry.env, *entry.settings)},
        }
        for entry in REQUEST_FORMATS
        for topics in [entry.topics(settings)]
    ]


def _lines(shown: Mapping[str, Any]) -> list[str]:
    if not shown["on"]:
        return [f"{shown['format']:<16}off  {shown['setting']} turns it on: {shown['takes']}"]
    lines = [f"{shown['format']:<16}on   {shown['takes']}"]
    for each in shown["topics"]:
        count = each["partitions"]
        count_text = "not there yet" if count == 0 else "1 partition" if count == 1 else f"{count} partitions"
        lines.append(f"{'':<21}topic {each['topic']}" + ("" if count is None else f": {count_text}"))
    lines += [f"{'':<21}{env}={value}" for env, value in shown["settings"].items()]
    return lines


def _partitions(settings: Settings, topics: Collection[str]) -> dict[str, int | None]:
    """Number of partitions of each topic; 0 if it does not exist, None if it may not be described.

    Raises:
        TimersError: no broker answers or accepts the login.
    """
    from confluent_kafka import KafkaException  # not at the top: `--help` needs no librdkafka

    from timers.kafka import connection
    from timers.kafka.clients import admin_client
    from timers.kafka.error_codes import UNREACHABLE, code_of

    reports = connection.ErrorReports(settings)
    admin = admin_client(settings, reports)
    found: dict[str, int | None] = {}
    for topic in topics:
        try:
            found[topic] = connection.partitions_of(admin, reports, topic)
        except KafkaException as error:
            if code_of(error) in UNREACHABLE:
                raise reports.user_error(error, "the list of topics cannot be read") from error
            found[topic] = None
    return found
