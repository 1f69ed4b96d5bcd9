"""docs/settings.md says of every setting what the code says, and of nothing else."""

import re
from dataclasses import fields
from pathlib import Path

from timers.settings import Settings
from timers.variables import Setting

DOC = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
SETTINGS: list[Setting] = [entry.metadata["setting"] for entry in fields(Settings)]


def test_every_setting_has_a_heading_and_no_other() -> None:
    assert re.findall(r"^## (.+)$", DOC, re.MULTILINE) == [setting.env for setting in SETTINGS]


def test_each_reason_is_the_one_in_the_code() -> None:
    sections = dict(zip(*[iter(re.split(r"^## (.+)$", DOC, flags=re.MULTILINE)[1:])] * 2, strict=True))
    for setting in SETTINGS:
        assert setting.why in sections[setting.env]
