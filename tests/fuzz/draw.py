"""Makes choices from bytes, so that a fuzzer that changes the bytes changes the test data.

Hypothesis makes a few hundred inputs a second; this makes tens of thousands, and atheris can guide it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

_T = TypeVar("_T")


class Draw:
    """Reads ``data`` from its start. After its end each choice is the first one and each blob is empty."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes, or fewer at the end."""
        piece = self._data[self._at : self._at + count]
        self._at += count
        return piece

    def number(self, most: int) -> int:
        """A number from 0 to ``most``."""
        width = (most.bit_length() + 7) // 8
        return int.from_bytes(self.take(width), "little") % (most + 1)

    def pick(self, choices: Sequence[_T]) -> _T:
        """One of ``choices``."""
        return choices[self.number(len(choices) - 1)]

    def blob(self, most: int) -> bytes:
        """Up to ``most`` bytes."""
        return self.take(self.number(most))

    def text(self, most: int) -> str:
        """A text of up to ``most`` bytes."""
        return self.blob(most).decode(errors="replace")

    def many(self, most: int, draw: Callable[[Draw], _T]) -> list[_T]:
        """Up to ``most`` values of ``draw``."""
        return [draw(self) for _ in range(self.number(most))]

    def damaged(self, sound: bytes) -> bytes:
        """``sound`` with some bytes changed, removed, repeated or inserted."""
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
