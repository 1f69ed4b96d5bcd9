"""Interfaces that a machine uses: decoder, store, outbox. The worker and the simulator implement them."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, get_args

from timers.core.keys import OrderKey
from timers.core.limits import ChunkSize
from timers.core.lineage import Lineage
from timers.core.operation import Entry, Verdict
from timers.core.progress import Progress, SettingChange
from timers.core.timer import Decoded, DueRows, Forwarded, Rejected, Row, RowsByDue, Tick


class Lost(Exception):
    """A transaction failed, or its outcome is not known: either all of it became visible, or nothing.

    Drop the machine and open it again. Fencing ends the open transaction, and the committed progress shows the outcome.
    A new transaction must not start before that [I5].
    """


class ReadAgain(Exception):
    """A fetch was not accepted: the log must be read again from ``position`` [I7]."""

    def __init__(self, position: int) -> None:
        super().__init__(f"expected a fetch from offset {position}")
        self.position = position


class TooMuch(Lost):
    """The brokers did not take a transaction, and do not say which of its timers to leave out: send fewer at once.

    Attributes:
        rolled_back: the outbox has rolled the transaction back, and the same machine may begin another one.
    """

    def __init__(self, reason: str, *, rolled_back: bool = False) -> None:
        super().__init__(reason)
        self.rolled_back = rolled_back


class DeliveryFailed(Lost):
    """Some topics do not take records. The next opening of the machine rolls the transaction back.

    Attributes:
        culprits: topic -> what the brokers said.
    """

    def __init__(self, culprits: Mapping[str, BaseException]) -> None:
        super().__init__("; ".join(f"{topic}: {error!r}" for topic, error in culprits.items()))
        self.culprits = culprits


class Unanswered(TooMuch):
    """Some batches, or the group's offsets, had no answer in time. The next opening rolls the transaction back.

    Attributes:
        places: (topic, partition) of which no batch was answered; none if a broker throttled the producer after its
            first batches, because then it has not read the others.
        topics: of these partitions.
    """

    def __init__(self, places: Collection[tuple[str, int]], *, rolled_back: bool = False) -> None:
        self.places = places
        self.topics = {topic for topic, _ in places}
        names = ", ".join(f"{topic}/{partition}" for topic, partition in sorted(places))
        super().__init__(f"no answer in time: {names or 'the last requests'}", rolled_back=rolled_back)


class BatchesRefused(Exception):
    """Brokers refused batches because of records in them, and have answered all other batches.

    Attributes:
        batches: (batch, what the broker said about it).
    """

    def __init__(self, batches: Sequence[tuple[Any, Any]]) -> None:
        super().__init__("; ".join(f"{error.topic}: {error.name} ({error.why})" for _, error in batches))
        self.batches = batches


class Decoder(Protocol):
    """Decodes records of one topic. Pure: the same records give the same result at any time [I4]."""

    def __call__(self, records: Sequence[Any], max_request_bytes: int) -> Decoded: ...


class IndexPage(NamedTuple):
    """Entries that were read from the index in the order of ids."""

    entries: Sequence[tuple[bytes, Entry]]
    """Without the newest ones, if the store keeps these apart."""
    through: bytes | None
    """The id that was read last; None at the end of the index."""


MAX_GROUPS_LEFT_OUT = 32
"""Groups that a store leaves out before its caller learns of it, and may stop."""

Page: TypeAlias = Sequence[tuple[bytes, bytes]]
"""Keys and values of a store that are read together."""


IsHeld: TypeAlias = Callable[[int, str, int, int, int], bool]
"""(Due second, callback topic, lowest offset, highest offset, number of rows) of a whole group of rows with one
callback topic -> whether all of them are held."""


class HeldOf(NamedTuple):
    """Says what is held of rows of one second, which is over."""

    rows: Callable[[int, list[Row]], list[Row]]
    """(Due second, rows) -> those of them that are held."""
    group: IsHeld
    """The same of a whole group."""


class View(Protocol):
    """What a store holds at one moment, while the machine goes on to change it. It is read once, from its begin.

    Close it before its store. One thread at a time uses it, which may be another one than that of the machine.

    Attributes:
        applied: as :attr:`Store.applied` at that moment.
        rows: number of rows in it.
        history: as :attr:`Store.history`.
    """

    @property
    def applied(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def history(self) -> tuple[SettingChange, ...]: ...

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields keys and values of the store in the order of keys: see :mod:`timers.machines.store.layout`.

        Without ``applied`` and the history, and without what counts the writes of one database.

        Raises:
            Lost: the store was damaged, or more or fewer rows were read than it held.
        """

    def close(self) -> None:
        """Release what keeps the moment."""


class Store(Protocol):
    """The timers of one machine in key order. A cache of the log: if it is lost, the log is read again.

    Rows are returned in the groups in which they were written: lists of rows of one due second.
    """

    @property
    def applied(self) -> int:
        """Offset below which all pending requests are in the store."""

    @property
    def pending(self) -> int:
        """Number of stored timers; of timers with an id, also versions that were replaced or cancelled."""

    @property
    def history(self) -> tuple[SettingChange, ...]:
        """The last stored settings history."""

    def note_history(self, history: tuple[SettingChange, ...]) -> None:
        """Store the settings history under which later writes are decided."""

    @property
    def read_through_s(self) -> int | None:
        """Read-through time: all records that the log held when this second began are in the store; None: not known."""

    def note_read_through(self, second: int) -> None:
        """Store ``second`` as the read-through time."""

    def condemn(self) -> None:
        """Mark the store as unusable: the next opening begins with an empty store."""

    def protect(self, *, on: bool) -> None:
        """Let what the store holds survive a crash of the process: the log may lack it [I29]. Off: the last writes need
        not survive."""

    @property
    def lineage(self) -> Lineage:
        """Which log was read up to ``applied``."""

    def write(
        self,
        rows: RowsByDue,
        applied: int,
        entries: Mapping[bytes, Entry | None] = ...,
        lineage: Lineage | None = None,
        held: RowsByDue = ...,
    ) -> None:
        """Add rows, write or remove (None) entries of the index, and set ``applied``: all or nothing.

        Args:
            lineage: of ``applied``; None: as before.
            held: rows in groups of their own.
        """

    def entries(self, ids: Collection[bytes]) -> dict[bytes, Entry | None]:
        """Returns the index entries of some ids. An id without an entry is absent or has None."""

    def entries_after(self, id: bytes, limit: int) -> IndexPage:
        """Returns those of the next ``limit`` entries of the index above ``id`` that are not among the newest."""

    def newest_entries(self) -> Sequence[tuple[bytes, Entry]]:
        """Returns the entries that :meth:`entries_after` leaves out, and some of timers that repeat."""

    def cancels_from(self, offset: int, after: bytes = ...) -> Iterator[tuple[bytes, int]]:
        """Yields (id, offset) of the entries whose latest operation is a cancel at or after ``offset``, in the order of
        ids, above the id ``after`` if one is given."""

    def scan(self, after: OrderKey, until_s: int, passes: IsHeld | None = None) -> Iterator[DueRows]:
        """Yields rows above ``after`` and due at or before ``until_s``, in key order.

        Args:
            passes: says which groups with one callback topic are passed over: they are not yielded, and not deleted by
                :meth:`delete`. A store need not ask it of each group.
        """

    def waiting(self, after: OrderKey, sought: Sequence[bytes] = ()) -> Iterator[tuple[OrderKey, Sequence[Row]]]:
        """Yields (key, rows) above ``after``, for listings: it may begin inside a group.

        All rows at or below the key have been yielded. :meth:`delete` works only after :meth:`scan`.

        Args:
            sought: texts in UTF-8 that stand in each row that the caller wants, such as the callback topic. Rows
                without them may be left out, so that they need not be decoded; an empty list says now and then how far
                the store was read.
        """

    def held(self, first: OrderKey, through: OrderKey, target: str) -> Iterator[tuple[OrderKey, list[Row]]]:
        """Yields (key of its first row, rows) of the whole groups with rows of a callback topic that begin in
        [``first``, ``through``], in key order.

        Rows may be empty: no more than :data:`MAX_GROUPS_LEFT_OUT` groups are left out before the key of the
            last one is returned.
        """

    def replace(self, groups: Sequence[tuple[DueRows, list[Row]]]) -> None:
        """Replace whole groups by some of their rows. What is not left is deleted."""

    def row(self, key: OrderKey) -> Row | None:
        """Returns the row with a key; None: there is none."""

    def delete(self, through: OrderKey, count: int, rest: Sequence[Row] = (), kept: Sequence[DueRows] = ()) -> None:
        """Delete the groups at or below ``through`` that the last :meth:`scan` has yielded.

        Args:
            count: number of deleted rows.
            rest: rows above ``through`` of the last group that was scanned, if only a part of this group is deleted.
            kept: rows of these groups that are not deleted, in their order, for each group that has some.
        """

    def oldest_due_s(self, after: OrderKey = ...) -> int | None:
        """Returns the due second of the first row above ``after``; None: there is none."""

    def drop_through(
        self, fired_through: OrderKey, next_offset: int, held_of: HeldOf | None = None, *, indexed: bool = False
    ) -> bool:
        """Delete the rows that have fired since the store was written. Call on opening, before a machine is made.

        A row at or below ``fired_through`` has fired only if its offset is below ``next_offset``. A row with a higher
        offset was accepted here without a commit, and another owner moved ``fired_through`` past it without reading it.
        In this case all rows from ``next_offset`` on are deleted, and ``applied`` becomes ``next_offset``: the machine
        reads these requests again and fires the late ones. The index is not changed; it is then ahead of ``applied``.

        Args:
            held_of: says which rows at or below ``fired_through`` have not fired; None: no row is held. Such rows are
                in groups of their own then.
            indexed: the store is of no use if its index would be ahead of ``applied``: then nothing is deleted.

        Returns:
            False: it would be.
        """


class SnapshotStore(Store, Protocol):
    """A store from which snapshots are taken, and which may be restored from one (:mod:`timers.core.snapshots`)."""

    def view(self) -> View:
        """Returns a view of the store as it is now."""

    def restore(self, pages: Iterable[Page], applied: int, history: tuple[SettingChange, ...]) -> None:
        """Fill an empty store with the keys and values of a view, in the order of keys.

        If ``pages`` raises, the store is not whole.
        """


Reason: TypeAlias = Literal["late", "superseded", "over-cap", "held", "never"]
"""Why occurrences were not sent."""
MISSED_REASONS: tuple[Reason, ...] = get_args(Reason)


class NextOccurrence(NamedTuple):
    """What follows an occurrence. Timers with one rule that fire in one second share it."""

    due_s: int
    nominal_s: int | None
    """None: it is a waypoint."""
    decided_s: int
    """Of a waypoint: what is due up to this nominal second was sent or skipped before."""
    owed_s: int | None
    """It is sent, and those that follow up to this nominal second, however late they are."""
    rule: bytes
    is_last: bool = False
    lacks: str | None = None
    """The time zone that is not known here."""


class Follower(NamedTuple):
    """An occurrence to append."""

    row: Row
    """Callback of the timer, as :attr:`timers.core.timer.Definition.row`; its offset is that of the record that it
    follows."""
    version: bytes | None
    """Source of the definition; None: this is the record that it follows."""
    next: NextOccurrence

    @property
    def id(self) -> str:
        """Id of the timer."""
        origin = self.row[5]
        assert origin is not None
        return origin[0]


class Missed(NamedTuple):
    """Occurrences that are not sent."""

    id: str
    version: bytes | None
    """Source of the definition; None: at ``offset``."""
    offset: int
    """Of the occurrence, or the definition, with which this was decided."""
    first_s: int | None
    """Nominal second of the first one; None if it is not known."""
    last_s: int | None
    number: int
    reason: Reason


class Output(NamedTuple):
    """What one transaction of a machine sends, beside its progress."""

    due: Sequence[DueRows] = ()
    """Timers that fire."""
    postponed: Sequence[tuple[int, Sequence[Row], int]] = ()
    """(Due second, rows, second of the next attempt): they go to the retry topic, and keep their ``timer-id``. This is
    an attempt. A timer without an attempt left, or too large for the retry topic, fires now."""
    rejected: Sequence[Rejected] = ()
    """Requests that become dead letters."""
    lost: Sequence[tuple[int, Row]] = ()
    """(Due second, row) that the log has lost [I28]: dead letters too, unless the log still has the request."""
    lost_cancels: Sequence[tuple[bytes, int]] = ()
    """(Id, offset) of cancels that the log has lost."""
    forwarded: Sequence[Forwarded] = ()
    """Requests that go cold."""
    verdicts: Sequence[Verdict] = ()
    """On cancels and replacements."""
    followers: Sequence[Follower] = ()
    """Occurrences to append to the request log [I37]."""
    missed: Sequence[Missed] = ()
    """Occurrences that are not sent."""
    lacking: Mapping[str, int] = MappingProxyType({})
    """Zone that is not known here -> timers that repeat of which the next occurrence is not known."""
    mended: Sequence[Follower] = ()
    """The same, of timers that stood still: the log has lost what was appended before."""
    broken: Sequence[tuple[bytes, int, int]] = ()
    """(Id, offset of the latest record, offset of the definition) of timers that repeat and cannot go on, because the
    log has lost what is needed: each becomes a dead letter, and a last occurrence follows that record."""
    republished: Sequence[Row] = ()
    """Versions that are appended to the request log again: a tombstone after them would end them [I19]."""


NO_OUTPUT = Output()


class Deleted(NamedTuple):
    """The log does not have a record any more."""

    end: int
    """Offset after the last record of the log, also of transactions that are open."""


class Outbox(Protocol):
    """Sends one transaction at a time: either all its records become visible, with the progress, or none."""

    @property
    def chunk(self) -> ChunkSize:
        """How many timers the next transaction may have; the same object for all machines of a partition."""

    @property
    def begin(self) -> Callable[[Tick], None]:
        """Begins a transaction with the time of a tick; drops one that was begun and not committed."""

    @property
    def held_from(self) -> set[int]:
        """The first offset of each transaction in the machine's own log, also of those that were rolled back. Its
        user removes an offset when it has learnt an end of the log above it."""

    def read_again(self, offsets: Sequence[int]) -> Mapping[int, Any]:
        """Returns records of the machine's log by their offsets, or :class:`Deleted`. One that cannot be read now is
        absent. Blocks; not between :attr:`begin` and :meth:`commit`.

        Raises:
            Lost: the brokers do not answer.
        """

    def commit(self, progress: Progress, output: Output = NO_OUTPUT) -> None:
        """Send ``output`` and ``progress``, make them visible, and tell :attr:`chunk` how long it took.

        Raises:
            TooMuch: the next transaction must have fewer timers.
            Lost: the machine must be opened again.
            Fenced: another worker owns the machine.
        """
