"""What a machine needs from outside. Worker and simulator each bring their own."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from timers.core.keys import OrderKey
from timers.core.operation import Entry, Verdict
from timers.core.progress import Progress, SettingChange
from timers.core.timer import Decoded, Forwarded, Rejected, Row, RowsByDue, Tick


class Lost(Exception):
    """A transaction failed, or its outcome is not known: all of it became visible, or nothing.

    The machine must be dropped and opened again: fencing decides what was left open, and the committed progress says
    what happened. Never a new transaction on a guess [I5].
    """


class Decoder(Protocol):
    """A request format: reads records of one topic. Pure: the same records give the same result at any time."""

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
        """How many timers are stored; of those with an id, also versions that were replaced or cancelled."""

    @property
    def history(self) -> tuple[SettingChange, ...]:
        """Settings under which it was written, as last noted."""

    def note_history(self, history: tuple[SettingChange, ...]) -> None:
        """Remember the settings under which it will be written from now on."""

    @property
    def read_through_s(self) -> int | None:
        """All requests that the log held when this second began are in the store; None: not known yet."""

    def note_read_through(self, second: int) -> None:
        """Remember that."""

    def condemn(self) -> None:
        """It is wrong in ways that reading on does not mend: empty it when it is opened next."""

    def write(self, rows: RowsByDue, applied: int, entries: Mapping[bytes, Entry | None] = ...) -> None:
        """Add rows, write or forget entries of the index and move ``applied``: all of it or nothing."""

    def entries(self, ids: Collection[bytes]) -> dict[bytes, Entry | None]:
        """The entries of some ids in the index; an id may be missing, or have None, if it has none."""

    def entries_after(self, id: bytes, limit: int) -> Sequence[tuple[bytes, Entry]]:
        """The next entries of the index above ``id``, in the order of ids; the latest may not be there yet."""

    def scan(self, after: OrderKey, until_s: int) -> Iterator[tuple[int, list[Row]]]:
        """Groups of rows above ``after`` and due at or before ``until_s``, in key order: (due second, rows)."""

    def waiting(self, after: OrderKey) -> Iterator[tuple[int, list[Row]]]:
        """Like :meth:`scan` without an end, for listings: it may begin inside a group, and does not prepare
        :meth:`delete`."""

    def delete(self, through: OrderKey, count: int) -> None:
        """Forget every row at or below ``through``; ``count`` says how many these are."""

    def oldest_due_s(self) -> int | None:
        """Due second of the first row, None if there is none."""

    def drop_through(self, fired_through: OrderKey, next_offset: int) -> None:
        """On opening, before there is a machine: forget what has fired since this store was written.

        A row at or below ``fired_through`` has fired only if it was accepted, that is if its offset is below
        ``next_offset``. One from there on was accepted here and never committed, then passed over by another owner
        that had not read it: everything from ``next_offset`` on is forgotten, ``applied`` goes back to it, and the
        machine reads it again and fires it late. The index stays as it is, and is then ahead of ``applied``.
        """


class Outbox(Protocol):
    """One transaction at a time: firings, dead letters and progress become visible together or not at all."""

    def begin(self, tick: Tick) -> None:
        """Begin a transaction that says it happened at ``tick``; what was begun and not committed is forgotten."""

    def fire(self, due_s: int, rows: Sequence[Row]) -> None:
        """Add firings of one due second."""

    def postpone(self, due_s: int, rows: Sequence[Row], again_s: int) -> None:
        """Instead of firing rows, ask for them anew, due at ``again_s``; who they are stays as it is.

        Counts as a try: what has none left, or is too large to be moved, is fired.
        """

    def reject(self, rejected: Sequence[Rejected]) -> None:
        """Add dead letters."""

    def answer(self, verdicts: Sequence[Verdict]) -> None:
        """Add verdicts on cancels and updates."""

    def forward(self, forwarded: Sequence[Forwarded]) -> None:
        """Add requests that go cold."""

    def republish(self, rows: Sequence[Row]) -> None:
        """Add versions to the request log as they stand there already: something behind them would erase them."""

    def commit(self, progress: Progress) -> None:
        """Add ``progress`` and make everything visible.

        Raises:
            Lost: the machine must be opened again.
            Fenced: another worker owns the machine.
        """
