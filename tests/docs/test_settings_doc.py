"""docs/settings.md is what ``make docs`` writes, and its groups hold each setting once."""

import re

from tests.docs.settings_page import DEFAULTS, GROUPS, PAGE, PAGES, allowed, page
from timers.errors import SettingsError
from timers.process.config.declarations import SETTINGS


def test_each_setting_is_in_one_group() -> None:
    grouped = [field for group in GROUPS for field in group.fields.split()]
    assert sorted(grouped) == sorted(SETTINGS), "give each setting a group in tests/docs/settings_page.py"
    assert DEFAULTS.keys() | PAGES.keys() <= SETTINGS.keys()


def test_the_page_is_what_the_declarations_say() -> None:
    assert PAGE.read_text() == page(), "run `make docs`"


def test_every_setting_has_a_heading_and_its_reason() -> None:
    sections = dict(zip(*[iter(re.split(r"^### (.+)$", page(), flags=re.MULTILINE)[1:])] * 2, strict=True))
    assert sections.keys() == {setting.env for setting in SETTINGS.values()}
    for setting in SETTINGS.values():
        assert setting.why in sections[setting.env]


def test_every_limit_and_choice_is_said() -> None:
    """A setting that refuses a value says which values it takes."""
    said = {setting.env: allowed(setting) for setting in SETTINGS.values()}
    assert said["TIMERS_WEB_PORT"] == "1 to 65,535"
    assert said["TIMERS_QUERIES"] == "off, timers, values"
    assert said["TIMERS_CREATE_TARGET_TOPICS"] == "0, 1"
    assert said["TIMERS_DATA_DIR"] == ""
    for setting in SETTINGS.values():
        try:
            setting.parse(setting.env, "-1")
        except SettingsError as error:
            if "between" in str(error) or "one of" in str(error):
                assert said[setting.env], setting.env
