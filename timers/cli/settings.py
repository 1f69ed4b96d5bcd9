"""``timers settings``: shows every setting with its value and source."""

from __future__ import annotations

import json
import textwrap

import click

from timers.config.settings import Settings, describe
from timers.config.variables import Setting


@click.command()
@click.option("--markdown", "form", flag_value="markdown", help="As a table for a document.")
@click.option("--json", "form", flag_value="json", help="As JSON.")
def settings(form: str | None) -> None:
    """Show every setting: environment variable, value, source and reason. Secrets are masked."""
    rows = describe(Settings.load())
    if form == "json":
        click.echo(json.dumps([_row(*row) for row in rows], indent=2))
    elif form == "markdown":
        click.echo("| variable | value | unit | source | why |\n|---|---|---|---|---|")
        for row in rows:
            cells = (str(cell).replace("|", "\\|") for cell in _row(*row).values())
            click.echo("| " + " | ".join(cells) + " |")
    else:
        for setting, value, given in rows:
            source = "environment" if given else "default"
            unit = f" {setting.unit}" if setting.unit else ""
            click.echo(f"{click.style(setting.env, bold=True)}={value}   ({source}{unit and ';' + unit})")
            click.echo(textwrap.indent(textwrap.fill(setting.why, 96), "    "))


def _row(setting: Setting, value: str, given: bool) -> dict[str, str]:
    source = "environment" if given else "default"
    return {"variable": setting.env, "value": value, "unit": setting.unit, "source": source, "why": setting.why}
