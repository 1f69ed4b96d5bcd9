"""The delays that docs/incidents.md gives for retries of a queue follow from the default ``Backoff``."""

import re

from tests.docs.markdown import ROOT
from timers.client import Backoff
from timers.errors import TargetError, TimersError

TEXT = " ".join((ROOT / "docs" / "incidents.md").read_text().split())


def after_s(retries: int, chance: float) -> float:
    return sum(Backoff().delay_s(each, chance) for each in range(1, retries + 1))


def test_the_last_retry_comes_when_the_page_says() -> None:
    said = re.search("the tenth retry comes ([0-9]+) to ([0-9]+) minutes", TEXT)
    assert said is not None and Backoff().retries == 10
    assert said.groups() == tuple(f"{after_s(10, chance) / 60:.0f}" for chance in (1, 0))


def test_a_refused_command_ends_with_the_exit_code_that_the_page_says() -> None:
    assert TargetError.exit_code == 2 and "a sentence, with exit code 2 or, for the last one, 1" in TEXT
    assert f"given at the same time` (exit code {TimersError.exit_code})" in TEXT


def test_so_many_retries_last_for_a_day() -> None:
    said = re.search("`--retries ([0-9]+)` for at least a day: each further retry adds ([0-9]+) to 60 minutes", TEXT)
    assert said is not None
    retries = int(said[1])
    assert after_s(retries - 1, 1) < 86_400 <= after_s(retries, 1)
    assert Backoff().delay_s(retries, 1) == int(said[2]) * 60
