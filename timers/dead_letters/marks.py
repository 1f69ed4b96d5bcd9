"""Which dead letters were retried: the marks that were read so far, so that the next reading can go on."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping

from timers.dead_letters.letters import Letter
from timers.kafka.topic_offsets import PRODUCERS_CLOCKS_MS
from timers.wire import topics
from timers.wire.dead_letter import Mark

_NAME_BYTES = 16


class Marks:
    """The newest marks of retried dead letters.

    One thread adds marks at a time; any may look them up meanwhile.

    Args:
        most: marks that are kept, the newest ones; None: all. A mark takes about 400 bytes.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.is_whole = False
        """Whether the last reading came to the end of the topic."""
        self._next: dict[int, int] = {}
        self._kept: OrderedDict[bytes, tuple[str, int]] = OrderedDict()
        self._forgotten_ms: int | None = None

    def next_offset(self, partition: int) -> int:
        """The offset from which a partition must be read."""
        return self._next.get(partition, 0)

    def is_before(self, ends: Mapping[int, int]) -> bool:
        """Whether the topic can be the one that was read: none of its logs ends before what was read."""
        return all(self.next_offset(partition) <= end for partition, end in ends.items())

    def add(self, partition: int, offset: int, mark: Mark, written_ms: int) -> None:
        """Note the next mark of a partition."""
        self._next[partition] = offset + 1
        if topics.parse_source(mark.letter) is None:  # another program wrote it
            return
        name = _name(mark.letter, mark.source)
        self._kept[name] = mark.timer_id, written_ms
        self._kept.move_to_end(name)
        if self.most is not None and len(self._kept) > self.most:
            oldest = next(iter(self._kept))
            # Before it goes: who does not find it then sees that it may have been there.
            self._forgotten_ms = max(self._forgotten_ms or 0, self._kept[oldest][1])
            del self._kept[oldest]

    def of(self, letter: Letter) -> Mark | None:
        """The mark of a dead letter; None if there is none among those that were read and are kept."""
        found = self._kept.get(_name(*letter.mark_key))
        return None if found is None else Mark(*letter.mark_key, found[0])

    def may_be_forgotten(self, letter: Letter) -> bool:
        """Whether a mark of this dead letter may have been read, but not kept."""
        return self._forgotten_ms is not None and letter.timestamp_ms <= self._forgotten_ms + PRODUCERS_CLOCKS_MS


def _name(letter: str, source: str) -> bytes:
    # Both are bytes of other programs and may be long.
    return hashlib.blake2b(f"{letter}\0{source}".encode(errors="surrogatepass"), digest_size=_NAME_BYTES).digest()
