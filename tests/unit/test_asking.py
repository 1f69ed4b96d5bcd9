"""Answers to questions about timers have a limit, since any member of the group names the address that is asked."""

from __future__ import annotations

import pytest

from timers import asking


class SimBody:
    """Content of ``left`` bytes, given in pieces."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.given = 0

    async def read(self, n: int) -> bytes:
        piece = bytes(min(n, 7, self.left))
        self.left -= len(piece)
        self.given += len(piece)
        return piece


async def test_an_answer_is_read_up_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MAX_ANSWER_BYTES", 100)
    assert await asking.read_answer(SimBody(100)) == bytes(100)
    endless = SimBody(10**9)
    with pytest.raises(ValueError, match="longer than 100 bytes"):
        await asking.read_answer(endless)
    assert endless.given == 101
