"""docs/bad-input.md says what each code means, and of no other."""

import importlib
import re
from pathlib import Path

from timers.console.web.page import meanings
from timers.process.config.settings import Settings, describe
from timers.wire.dead_letter import ACCEPTED_CODES, CODES, RECEIVER_CODES
from timers.wire.repeat import MAX_REPEATING_HEADER_BYTES, MAX_REPEATING_VALUE_BYTES
from timers.worker.metrics import METRICS

DOC = (Path(__file__).parents[2] / "docs" / "bad-input.md").read_text()


def test_every_code_has_a_meaning_and_a_way_out() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (on arrival|when due|after a loss) \| (.+) \| (.+) \|$", DOC, re.MULTILINE)
    assert tuple(code for code, *_ in rows) == CODES
    assert {code for code, judged, *_ in rows if judged != "on arrival"} == ACCEPTED_CODES


def test_the_console_shows_the_meanings_of_this_page() -> None:
    assert set(meanings()) == {*CODES, *RECEIVER_CODES}
    assert meanings()["value-missing"] == (
        "The record has no value (a tombstone). With an id: it also has the header timer-due or timer-topic of a "
        "request, so it is no cancel.",
        "Send the value, which may be empty. A tombstone does not cancel a timer without an id. A cancel with an id "
        "has neither header.",
    )
    assert not re.search(r"`|\]\(", "".join(sentence for meaning in meanings().values() for sentence in meaning))


def test_what_is_judged_on_arrival_is_what_decoding_rejects() -> None:
    files = (Path(__file__).parents[2] / "timers" / "wire").rglob("*.py")
    source = "".join(path.read_text() for path in files)
    decoded = set(re.findall(r'InvalidRequestError\(\s*"([a-z-]+)"', source))
    assert set(re.findall(r"^\| `([a-z-]+)` \| on arrival", DOC, re.MULTILINE)) == decoded


def test_the_limits_of_a_timer_that_repeats_are_those_of_the_code() -> None:
    [meaning] = re.findall(r"^\| `value-too-large` \| (.+) \|$", DOC, re.MULTILINE)
    assert f"{MAX_REPEATING_VALUE_BYTES:,} bytes of value or {MAX_REPEATING_HEADER_BYTES:,} bytes of headers" in meaning


def test_settings_topics_metrics_and_options_exist() -> None:
    settings = Settings.load({"TIMERS_APP_ID": "app"})
    assert set(re.findall(r"`(TIMERS_[A-Z_]+)", DOC)) <= {setting.env for setting, _, _ in describe(settings)}
    assert set(re.findall(r"`(timers_[a-z_]+)`", DOC)) <= {entry.name for entry in METRICS}
    internal = set(re.findall(r"`<app id>-([a-z-]+)`", DOC))
    assert {f"app-{name}" for name in internal} == {settings.retry_topic, settings.retried_topic}
    group = importlib.import_module("timers.cli.dead_letters").dead_letters
    options = {name for command in group.commands.values() for option in command.params for name in option.opts}
    assert set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", DOC)) <= options
