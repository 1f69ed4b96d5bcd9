"""docs/settings.md says of every setting what the code says, and of nothing else."""

import re
from pathlib import Path

from timers.config import declarations
from timers.config.variables import Setting
from timers.errors import SettingsError

DOC = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
SETTINGS: list[Setting] = list(declarations.SETTINGS.values())


def test_every_setting_has_a_heading_and_no_other() -> None:
    assert re.findall(r"^## (.+)$", DOC, re.MULTILINE) == [setting.env for setting in SETTINGS]


def test_each_reason_is_the_one_in_the_code() -> None:
    sections = dict(zip(*[iter(re.split(r"^## (.+)$", DOC, flags=re.MULTILINE)[1:])] * 2, strict=True))
    for setting in SETTINGS:
        assert setting.why in sections[setting.env]


def test_every_limit_is_said() -> None:
    """A setting that refuses numbers says which it takes."""
    sections = dict(zip(*[iter(re.split(r"^## (.+)$", DOC, flags=re.MULTILINE)[1:])] * 2, strict=True))
    limited = 0
    for setting in SETTINGS:
        try:
            setting.parse(setting.env, "-1")
        except SettingsError as error:
            for low, high in re.findall(r"between (\d+) and (\d+)", str(error)):
                limited += 1
                assert f"; {int(low):,} to {int(high):,}.\n" in sections[setting.env], setting.env
    assert limited > 10
