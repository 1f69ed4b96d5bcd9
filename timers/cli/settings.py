"""``timers settings``: shows every setting with its value and source."""

from __future__ import annotations

import textwrap

import click

from timers.cli.output import Output, output_option
from timers.config.settings import Settings, describe
from timers.config.variables import Setting


@click.command()
@click.option("--markdown", "form", flag_value="markdown", help="As a table for a document.")
@output_option()
def settings(form: str | None, output: Output) -> None:
    """Show every setting: environment variable, value, source and reason. Secrets are masked."""
    rows = describe(Settings.load())
    if form == "markdown":
        Output().show({}, "| variable | value | unit | source | why |", "|---|---|---|---|---|")
        for row in rows:
            cells = (str(cell).replace("|", "\\|") for cell in _row(*row).values())
            Output().show({}, "| " + " | ".join(cells) + " |")
    else:
        for setting, value, given in rows:
            source = "environment" if given else "default"
            unit = f" {setting.unit}" if setting.unit else ""
            head = f"{setting.env}={value}   ({source}{unit and ';' + unit})"
            why = textwrap.wrap(setting.why, 100, initial_indent="    ", subsequent_indent="    ")
            output.show(_row(setting, value, given), head, *why, bold=True)


def _row(setting: Setting, value: str, given: bool) -> dict[str, str]:
    source = "environment" if given else "default"
    return {"variable": setting.env, "value": value, "unit": setting.unit, "source": source, "why": setting.why}
