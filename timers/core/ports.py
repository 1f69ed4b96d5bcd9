"""What a machine needs from outside. Worker and simulator each bring their own."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from timers.core.keys import OrderKey
from timers.core.progress import Progress
from timers.core.timer import Decoded, Rejected, Row, RowsByDue, Tick


class Aborted(Exception):
    """The transaction was rolled back: nothing it held is visible, the same chunk may be tried again."""


class Decoder(Protocol):
    """A door: reads records of one topic. Pure: the same records give the same result at any time."""

    def __call__(self, records: Sequence[Any], max_request_bytes: int) -> Decoded: ...


class Store(Protocol):
    """Timers of one machine in key order. A cache of the log: losing it costs a replay, never a timer.

    Rows come back in the groups they were written in, so a scan hands out lists that share a due second.
    """

    @property
    def applied(self) -> int:
        """Everything below this offset is in the store, as far as it was pending."""

    @property
    def pending(self) -> int:
        """How many timers are stored."""

    def write(self, rows: RowsByDue, applied: int) -> None:
        """Add rows and move ``applied``, both or neither."""

    def scan(self, after: OrderKey, until_s: int) -> Iterator[tuple[int, list[Row]]]:
        """Groups of rows above ``after`` and due at or before ``until_s``, in key order: (due second, rows)."""

    def delete(self, through: OrderKey, count: int) -> None:
        """Forget every row at or below ``through``; ``count`` says how many these are."""

    def oldest_due_s(self) -> int | None:
        """Due second of the first row, None if there is none."""


class Outbox(Protocol):
    """One transaction at a time: firings, dead letters and progress become visible together or not at all."""

    def begin(self) -> None:
        """Open a transaction; nothing may be open."""

    def fire(self, due_s: int, rows: Sequence[Row], tick: Tick) -> bool:
        """Add firings. True: take no more into this transaction."""

    def reject(self, rejected: Sequence[Rejected]) -> None:
        """Add dead letters."""

    def commit(self, progress: Progress) -> None:
        """Add ``progress`` and make everything visible.

        Raises:
            Aborted: nothing became visible; state is as before.
        """
