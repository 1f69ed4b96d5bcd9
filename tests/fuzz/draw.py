"""Choices made by bytes: a fuzzer changes the bytes, and with them what is built from them.

Hypothesis would make the same choices at a few hundred inputs a second; this makes tens of thousands, and atheris can
steer it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

_T = TypeVar("_T")


class Draw:
    """Reads ``data`` from its start; where it ends, every choice is the first one, and every blob is empty."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        """The next bytes, as many as are left."""
        piece = self._data[self._at : self._at + count]
        self._at += count
        return piece

    def number(self, most: int) -> int:
        """0 to ``most``."""
        width = (most.bit_length() + 7) // 8
        return int.from_bytes(self.take(width), "little") % (most + 1)

    def pick(self, choices: Sequence[_T]) -> _T:
        """One of them."""
        return choices[self.number(len(choices) - 1)]

    def blob(self, most: int) -> bytes:
        """Any bytes."""
        return self.take(self.number(most))

    def text(self, most: int) -> str:
        """Any text that UTF-8 can carry."""
        return self.blob(most).decode(errors="replace")

    def many(self, most: int, draw: Callable[[Draw], _T]) -> list[_T]:
        """Up to ``most`` of them."""
        return [draw(self) for _ in range(self.number(most))]

    def damaged(self, sound: bytes) -> bytes:
        """Sound bytes with a few of them changed, left out, repeated or put in."""
        data = bytearray(sound)
        for _ in range(self.number(4)):
            at = self.number(len(data))
            kind = self.pick(["set", "cut", "drop", "repeat", "insert"])
            if kind == "set":
                data[at : at + 1] = bytes([self.number(255)])
            elif kind == "cut":
                del data[at:]
            elif kind == "drop":
                del data[at : at + self.number(8)]
            elif kind == "repeat":
                data[at:at] = data[at : at + self.number(8)]
            else:
                data[at:at] = self.blob(6)
        return bytes(data)
