"""``timers formats``, and the table of request formats that the worker uses too."""

import json

import pytest

from timers.cli.main import main
from timers.kafka.request_formats import NATIVE, REQUEST_FORMATS, enabled_formats
from timers.process.config.settings import Settings, describe


def test_the_table_names_existing_settings() -> None:
    envs = {setting.env for setting, _, _ in describe(Settings())}
    for kind in REQUEST_FORMATS:
        assert {kind.env, *kind.settings} <= envs
    assert len({kind.request_format.name for kind in REQUEST_FORMATS}) == len(REQUEST_FORMATS)


def test_a_request_format_is_enabled_by_its_topic() -> None:
    settings = Settings.load({"TIMERS_ID_TOPIC": "by-id", "TIMERS_COUNTDOWN_TOPIC": "delay"})
    names = {topic: request_format.name for topic, request_format in enabled_formats(settings).items()}
    assert names == {
        "timer-request": "future",
        "timers-timer-retry": "retry",
        "by-id": "future-by-id",
        "delay": "countdown",
    }
    assert list(enabled_formats(Settings())) == ["timer-request", "timers-timer-retry", "timer-request-by-id"]
    assert list(enabled_formats(Settings(id_topic=""))) == ["timer-request", "timers-timer-retry"]


def test_formats_without_an_enabled_format(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMERS_ID_TOPIC", "")
    assert main(["formats"]) == 0
    out, err = capsys.readouterr()
    assert "only future is on" in err
    for kind in REQUEST_FORMATS:
        assert f"{kind.env} turns it on" in out or kind.request_format is NATIVE


def test_formats_shows_enabled_formats(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMERS_COUNTDOWN_TOPIC", "delay")
    monkeypatch.setenv("TIMERS_VERDICT_RETENTION_S", "60")
    assert main(["formats", "-o", "json"]) == 0
    shown = {
        request_format["format"]: request_format
        for request_format in map(json.loads, capsys.readouterr().out.splitlines())
    }
    assert [name for name, request_format in shown.items() if request_format["on"]] == [
        "future",
        "future-by-id",
        "countdown",
    ]
    assert shown["countdown"]["topics"] == ["delay"]
    assert shown["countdown"]["settings"] == {
        "TIMERS_COUNTDOWN_TOPIC": "delay",
        "TIMERS_VERDICT_TOPIC": "timer-verdict",
        "TIMERS_VERDICT_RETENTION_S": "60",
    }
    assert main(["formats"]) == 0
    out = capsys.readouterr().out
    assert "topic delay" in out and "TIMERS_VERDICT_RETENTION_S=60" in out and "none on" not in out


def test_a_countdown_may_have_no_id_and_a_late_copy_keeps_none() -> None:
    """So lists must decode the timers of these topics before they look for a text that a source may have."""
    assert {each.request_format.name for each in REQUEST_FORMATS if each.request_format.all_have_ids} == {
        "schedule",
        "marker",
    }
