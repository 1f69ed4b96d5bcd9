"""``timers watch --since``: what has fired, on one topic and on all."""

import json
import time
from typing import Any

import pytest

from tests.harness.system import System, soon
from timers.cli.main import main

pytestmark = pytest.mark.broker


def lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main([*arguments, "-o", "json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_what_has_fired_is_shown_also_of_topics_that_no_option_names(
    here: System, capsys: pytest.CaptureFixture[str]
) -> None:
    before_s = int(time.time())
    orders, mails = here.target(2), here.target()
    sources = {each.source for target in (orders, mails) for each in here.send(*soon(target, 5))}
    for target in (orders, mails):
        here.reader(target).take(5)
    of_all = [line for line in lines(capsys, "watch", "--since", str(before_s)) if line["source"] in sources]
    assert len(of_all) == 10 and {line["topic"] for line in of_all} == {orders, mails}
    assert [line["timestamp_ms"] for line in of_all] == sorted(line["timestamp_ms"] for line in of_all)
    of_one = lines(capsys, "watch", orders, "--since", str(before_s), "--count", "5")
    assert {line["source"] for line in of_one} == {line["source"] for line in of_all if line["topic"] == orders}
    end_s = str(int(time.time()) + 3600)
    assert lines(capsys, "watch", "--since", end_s) == [], "none fired after now"
