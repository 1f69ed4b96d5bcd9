"""The pages for those who come from elsewhere: their messages are read, and what they name is there."""

import json
import re
from pathlib import Path

import pytest

from timers.cli.main import _COMMANDS
from timers.process.config.settings import Settings, describe
from timers.wire.formats import RequestRecord, countdown

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.glob("coming-from-*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    for heading in ("What to change", "What is different, and why|What else is different, and why", "How to go back"):
        assert re.search(rf"^## ({heading})$", text, re.MULTILINE), heading
    assert set(re.findall(r"TIMERS_[A-Z_]+", text)) <= {setting.env for setting, _, _ in describe(Settings())}
    assert set(re.findall(r"`timers ([a-z-]+)", text)) <= _COMMANDS.keys()
    for link in re.findall(r"\]\((?!https:)([^)#]+)", text):
        assert (DOCS / link).exists(), link
    assert f"({page.relative_to(DOCS.parent)})" in (DOCS.parent / "README.md").read_text()


def test_messages_of_a_delay_service_are_read_as_they_stand() -> None:
    blocks = re.findall(
        r"^```json\n(.*?)^```", (DOCS / "coming-from-a-redis-delay-service.md").read_text(), re.M | re.S
    )
    assert len(blocks) == 3
    for block in blocks:
        id = json.loads(block).get("id")
        decoded = countdown.decode([RequestRecord(1, id and id.encode(), block.encode(), [], 5)], 10**6)
        assert not decoded.rejected
        assert decoded.rows or decoded.operations
