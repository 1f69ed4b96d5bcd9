"""``timers settings`` and ``timers formats``: every setting with its value and source, and the request formats."""

from __future__ import annotations

import textwrap

import click

from timers.cli.output import Output, output_option, say
from timers.kafka.request_formats import NATIVE, REQUEST_FORMATS
from timers.process.config.settings import Settings, describe


@click.command()
@output_option()
def settings(output: Output) -> None:
    """Show every setting: environment variable, value, source and reason. Secrets are masked."""
    for setting, value, given in describe(Settings.load(needs_brokers=False)):
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
    settings = Settings.load(needs_brokers=False)
    values = {setting.env: value for setting, value, _ in describe(settings)}
    are_on = set()
    for entry in REQUEST_FORMATS:
        name, topics = entry.request_format.name, list(entry.topics(settings))
        given = {env: values[env] for env in (entry.env, *entry.settings)}
        lines = [f"{name:<16}off  {entry.env} turns it on: {entry.layout}"]
        if topics:
            are_on.add(name)
            more = [*(f"topic {topic}" for topic in topics), *(f"{env}={value}" for env, value in given.items())]
            lines = [f"{name:<16}on   {entry.layout}", *(f"{'':<21}{line}" for line in more)]
        about = {"takes": entry.layout, "setting": entry.env, "settings": given}
        output.show({"format": name, "on": bool(topics), "topics": topics, **about}, *lines)
    if are_on == {NATIVE.name}:
        say(f"only {NATIVE.name} is on, which is always on")
