"""Timers that repeat: each firing appends the next one to the log, in its own transaction [I37].

A *definition* is a request with an id and a rule, without a due second. The transaction that accepts it appends its
first *occurrence*; the one in which an occurrence is sent or skipped appends the next. An occurrence is an ordinary
request with an id, whose row has the rule in its first headers. So restores, holds, retries and dead letters treat it
as any timer, and only the machine that fires asks what the rule means: the answer is in the log.

An occurrence counts if the latest record of its id is the one that it follows; then it takes its place. So the chain is
a fold of the log. It ends with an occurrence that is marked as the last one.

An occurrence sends one callback at most. If several are due, the next ones follow in records of their own, which are
late, and say up to which one is *owed*.

A *waypoint* is an occurrence that sends nothing: the next due second is far, or its time zone is not known here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias

from timers.core.fired import PAUSE, Hold
from timers.core.ports import Follower, Missed, NextOccurrence, Output, Reason
from timers.core.sums import count_with, fire_alike
from timers.core.timer import Decoded, Definition, DueRows, Headers, Origin, Row, id_bytes

# Names of headers, in the log and in rows.
REPEAT: Final = "timer-repeat"
VERSION: Final = "timer-version"
NOMINAL: Final = "timer-nominal"
WAYPOINT: Final = "timer-waypoint"
OWED: Final = "timer-owed"
LAST: Final = "timer-last"
NEXT: Final = "timer-next"
TARGET: Final = "timer-topic"

CALLBACK_HEADERS = frozenset((VERSION, NOMINAL, NEXT))
"""Headers that a callback of a repeating timer has."""

ON_TIME_S = 10
"""What is due up to so many seconds ago is not late: a drain may take longer than a second, a tick may be lost."""

STALE_S = 60
"""With the catch-up ``none``, what is due up to so many seconds ago is sent."""

MOST_SENT = 100
"""So many late occurrences are caught up at most: the newest ones."""

WAYPOINT_AFTER_S = 30 * 86_400
"""What is due later than this gets a waypoint first, because the rules of time zones change."""

SEARCH_AHEAD_S = 400 * 86_400
"""So many seconds the next occurrence is looked for."""

ZONE_RETRY_S = 60
"""Seconds until a rule is asked again whose time zone is not known here."""


MAX_ZONE = 64
"""So many characters of the name of an unknown zone are shown: any client can write it."""


class ZoneUnknown(Exception):
    """The rules of a time zone are not known here, so what follows an occurrence cannot be told. Its first argument is
    the zone's name."""


class Rule(Protocol):
    """When a timer repeats. Nominal seconds are epoch seconds; the due second follows after :meth:`share_s`."""

    @property
    def catch_up(self) -> str:
        """What is sent of late occurrences: ``latest``, ``all`` or ``none``."""

    @property
    def until_s(self) -> int | None:
        """Last nominal second; None: it has no end."""

    def share_s(self, id: bytes) -> int:
        """Returns the seconds between the nominal and the due second of a timer."""

    def next_nominal(self, after_s: int, limit_s: int) -> int | None:
        """Returns the first nominal second in (``after_s``, ``limit_s``]; None: there is none.

        Raises:
            ZoneUnknown: its time zone is not known here.
        """

    def newest(self, after_s: int, through_s: int, most: int) -> tuple[Sequence[int], int]:
        """Returns the newest nominal seconds in (``after_s``, ``through_s``], ascending, and how many there are in it.

        Raises:
            ZoneUnknown: its time zone is not known here.
        """


class Occurrence(NamedTuple):
    """What the headers of an occurrence's row say."""

    rule: bytes
    version: bytes
    nominal_s: int | None
    """None: it is a waypoint."""
    decided_s: int
    owed_s: int | None
    is_last: bool
    row: Row
    """Its callback, as :attr:`Definition.row`."""


def is_occurrence(row: Row) -> bool:
    """Whether a row is an occurrence of a timer that repeats."""
    headers = row[4]
    return bool(headers) and headers[0][0] == REPEAT  # type: ignore[index]


def target_of(row: Row) -> str:
    """Returns the callback topic of a row. A waypoint has it in its headers."""
    return occurrence_of(row).row[1] if not row[1] and is_occurrence(row) else row[1]


def occurrence_row(callback: Row, own: Mapping[str, bytes | None]) -> Row:
    """Returns the row of an occurrence. Inverse: :func:`occurrence_of`.

    A waypoint has no topic, so no hold holds it.

    Args:
        callback: row of what it sends.
        own: headers of its record.
    """
    offset, topic, key, value, headers, origin = callback
    kept: list[tuple[str, bytes | None]] = [(name, own[name]) for name in _KEPT if name in own]
    if WAYPOINT in own:
        kept.append((TARGET, topic.encode()))
        topic = ""
    return offset, topic, key, value, [*kept, *(headers or ())], origin


def occurrence_of(row: Row) -> Occurrence:
    """Returns what the row of an occurrence says."""
    offset, topic, key, value, headers, origin = row
    assert headers is not None
    if (
        len(headers) >= _PLAIN
        and headers[1][0] == VERSION
        and headers[2][0] == NOMINAL
        and (len(headers) == _PLAIN or headers[_PLAIN][0] not in _OWN)
    ):  # nearly all
        (_, rule), (_, version), (_, nominal) = headers[:_PLAIN]
        plain: Row = (offset, topic, key, value, headers[_PLAIN:] or None, origin)
        return _new_occurrence((rule or b"", version or b"", int(nominal or 0), 0, None, False, plain))
    own: dict[str, bytes | None] = {}
    for name, content in headers:  # the engine's headers are the first ones, and no later header has such a name
        if name not in _OWN:
            break
        own[name] = content
    kept = headers[len(own) :] or None
    nominal, decided, owed = own.get(NOMINAL), own.get(WAYPOINT), own.get(OWED)
    nominal_s = None if NOMINAL not in own else int(nominal or 0)
    owed_s = None if OWED not in own else int(owed or 0)
    if WAYPOINT in own:
        topic = (own[TARGET] or b"").decode()
    callback: Row = (offset, topic, key, value, kept, origin)
    return Occurrence(
        own[REPEAT] or b"", own[VERSION] or b"", nominal_s, int(decided or 0), owed_s, LAST in own, callback
    )


_KEPT = REPEAT, VERSION, NOMINAL, WAYPOINT, OWED, LAST
_OWN = frozenset((*_KEPT, TARGET))
_new_occurrence, _new_follower = partial(tuple.__new__, Occurrence), partial(tuple.__new__, Follower)
"""The constructors take three times as long."""
_PLAIN = 3
"""An occurrence has at least the first three of them, unless it is a waypoint."""


class Repeats:
    """Decides what occurrences send, and which ones follow them.

    Args:
        read: returns the rule in a text that the decoder has accepted. It is called often with the same one, and raises
            :class:`ZoneUnknown` for one that cannot be read any more.
        far_s: an occurrence that is due in more seconds than this gets a waypoint first.
    """

    def __init__(self, read: Callable[[bytes], Rule], far_s: int = WAYPOINT_AFTER_S) -> None:
        self._read = read
        self._far_s = far_s

    def fire(
        self,
        due: list[DueRows],
        second: int,
        hold: Hold | None = None,
        begun: Sequence[Definition] = (),
        now_s: int = 0,
    ) -> Output:
        """Returns what is sent when rows fire, and what follows. Each occurrence sends at most one callback.

        Args:
            due: rows that are alive.
            second: the second that fires; of late rows that of ``fired_through``, because what is due later is stored.
            hold: what has held them.
            begun: definitions that count from now on.
            now_s: second of the tick.
        """
        followers: list[Follower] = []
        missed: list[Missed] = []
        for definition in begun:
            self._begin(definition, now_s, followers, missed)
        if count_with(REPEAT, due):
            sent: dict[int, list[Row]] = {}
            plans: dict[_Asked, _Plan] = {}
            for due_s, rows in due:
                known: dict[tuple[bytes, bytes], tuple[Headers, NextOccurrence]] = {}
                left, in_time = 0, sent.setdefault(due_s, [])
                while True:
                    left = fire_alike(rows, left, REPEAT, NOMINAL, _OWN, known, followers, _new_follower, in_time)
                    if left == len(rows):
                        break
                    row = rows[left]
                    left += 1
                    if not is_occurrence(row):
                        in_time.append(row)
                    elif fired := self._fire(row, due_s, second, hold, plans, known, followers, missed):
                        sent.setdefault(fired[0], []).append(fired[1])
            due = sorted((due_s, rows) for due_s, rows in sent.items() if rows)
        lacking = Counter(each.next.lacks for each in followers if each.next.lacks is not None)
        return Output(due, followers=followers, missed=missed, lacking=lacking)

    def _begin(self, definition: Definition, now_s: int, followers: list[Follower], missed: list[Missed]) -> None:
        """Add the first occurrence of a definition; and what is missed, if it has none."""
        row, rule, append_s, _, decided_s = definition
        following, _ = self._next(row, rule, decided_s, max(append_s, now_s))
        followers.append(Follower(row, None, following))
        if following.is_last and following.nominal_s is None:
            missed.append(Missed(_id_of(row), None, row[0], None, None, 0, "never"))

    def go_on(self, decoded: Decoded, offset: int, decided_s: int, second: int) -> Follower | None:
        """Returns what follows a record whose next occurrence the log has lost; None: there is no such record.

        Args:
            decoded: the record, read again.
            offset: of the record.
            decided_s: what was due up to this second was sent or skipped before the loss; -1: it is not known.
            second: as in :meth:`fire`.
        """
        row = next((row for rows in decoded.rows.values() for row in rows if is_occurrence(row)), None)
        version = owed_s = None
        if offset in decoded.definitions:
            callback, rule, _, _, after_s = decoded.definitions[offset]
        elif row is None:
            return None
        else:
            rule, version, nominal_s, waypoint_s, owed_s, _, callback = occurrence_of(row)
            after_s = waypoint_s if nominal_s is None else nominal_s
        with suppress(ZoneUnknown):
            after_s = max(after_s, decided_s - self._read(rule).share_s(id_bytes(_id_of(callback))))
        return Follower(callback, version, self._next(callback, rule, after_s, second, owed_s)[0])

    def _fire(
        self,
        row: Row,
        due_s: int,
        second: int,
        hold: Hold | None,
        plans: dict[_Asked, _Plan],
        known: dict[tuple[bytes, bytes], tuple[Headers, NextOccurrence]],
        followers: list[Follower],
        missed: list[Missed],
    ) -> tuple[int, Row] | None:
        """Add what follows an occurrence, and what is missed. Returns due second and row of what it sends.

        Args:
            plans: of the present call of :meth:`fire`; one is added. So a rule is asked once, and not for each timer.
            known: what :func:`fire_alike` may do with others that are due with it; this is added, if nearly all do so.
        """
        occurrence = occurrence_of(row)
        rule, version, nominal_s, decided_s, owed_s, is_last, callback = occurrence
        if nominal_s is None:
            # An occurrence that became due before the waypoint fired is late: it is held and judged as any other.
            if not is_last:
                followers.append(Follower(callback, version, self._next(callback, rule, decided_s, second)[0]))
            return None
        asked = rule, due_s, nominal_s, owed_s, is_last
        plan = plans.get(asked)
        if plan is None:
            plan = plans[asked] = self._plan(occurrence, nominal_s, due_s - nominal_s, second, hold)
        sent_s, ending, following, skipped = plan
        if sent_s == due_s and following is not None and skipped is None and owed_s is None:
            known[rule, b"%d" % nominal_s] = ending, following
        if following is not None:
            followers.append(_new_follower((callback, version, following)))
        if skipped is not None:
            missed.append(Missed(_id_of(row), version, row[0], *skipped))
        if sent_s is None:
            return None
        offset, topic, key, value, headers, origin = callback
        if sent_s != due_s:
            origin = Origin(_id_of(row), sent_s, 0)
        headers = [*(headers or ()), (VERSION, version), *ending]
        return sent_s, (offset, topic, key, value, headers, origin)

    def _plan(self, occurrence: Occurrence, nominal_s: int, share_s: int, second: int, hold: Hold | None) -> _Plan:
        """Returns what an occurrence sends, and what follows it. It is the same for all that are due with it, and have
        the same rule and nominal second: so they have the same share of the spread, too."""
        try:
            sent_s, decided_s, owed_s, skipped = self._decide(occurrence, nominal_s, second, share_s, hold)
        except ZoneUnknown:
            sent_s, decided_s, owed_s, skipped = nominal_s, nominal_s, None, None
        following, next_s = None, None
        if not occurrence.is_last:
            following, next_s = self._next(occurrence.row, occurrence.rule, decided_s, second, owed_s)
        if sent_s is None:
            return _Plan(None, (), following, skipped)
        ending = [(NOMINAL, b"%d" % sent_s)]
        if next_s is not None:
            ending.append((NEXT, b"%d" % next_s))
        return _Plan(sent_s + share_s, ending, following, skipped)

    def _decide(
        self, occurrence: Occurrence, nominal_s: int, second: int, share_s: int, hold: Hold | None
    ) -> _Decision:
        """Returns what an occurrence sends.

        Args:
            second: the one that fires.
            share_s: seconds from a nominal second to the due one.
            hold: what has held it.
        """
        through_s, is_paused = second - share_s, hold is not None and hold.reason == PAUSE
        if occurrence.owed_s is not None and nominal_s <= occurrence.owed_s and not is_paused:
            return _Decision(nominal_s, nominal_s, occurrence.owed_s, None)
        if through_s <= nominal_s:  # nearly always so: the occurrence fires in its second
            return _Decision(nominal_s, nominal_s, None, None)
        nominals, number = [nominal_s], 1
        rule = self._read(occurrence.rule)
        if not occurrence.is_last:
            later, count = rule.newest(nominal_s, through_s, MOST_SENT + 1)
            nominals, number = [nominal_s, *later], count + 1
        judged_s = through_s if hold is None or is_paused else min(through_s, hold.since_s - share_s)
        wanted, reason = _sent_of(nominals, judged_s, rule.catch_up, is_paused=is_paused)
        skipped = None
        if number > len(wanted):
            skipped = nominal_s, nominals[len(nominals) - len(wanted) - 1], number - len(wanted), reason
        if len(wanted) > 1:
            return _Decision(wanted[0], wanted[0], wanted[-1], skipped)
        return _Decision(wanted[0] if wanted else None, max(nominal_s, through_s), None, skipped)

    def _next(
        self, callback: Row, rule: bytes, after_s: int, second: int, owed_s: int | None = None
    ) -> tuple[NextOccurrence, int | None]:
        """Returns what follows, and the next nominal second; None: it is not known.

        Args:
            callback: of a timer.
            rule: of the timer.
            after_s: nominal second up to which all is decided.
            second: the present one.
            owed_s: what follows is sent up to this nominal second, however late it is.
        """
        look_s = second + SEARCH_AHEAD_S
        try:
            seconds = self._read(rule)
            until_s, nominal_s = seconds.until_s, seconds.next_nominal(after_s, look_s)
            is_last = (
                nominal_s is not None
                and until_s is not None
                and until_s - nominal_s < SEARCH_AHEAD_S
                and seconds.next_nominal(nominal_s, until_s) is None
            )
        except ZoneUnknown as error:
            zone = str(*error.args[:1])[:MAX_ZONE]
            return NextOccurrence(second + ZONE_RETRY_S, None, after_s, None, rule, lacks=zone), None
        if nominal_s is None and until_s is not None and until_s <= look_s:
            return NextOccurrence(second, None, after_s, None, rule, is_last=True), None
        due_s = 0 if nominal_s is None else nominal_s + seconds.share_s(id_bytes(_id_of(callback)))
        if nominal_s is None or due_s - second > self._far_s:
            return NextOccurrence(second + self._far_s, None, after_s, None, rule), nominal_s
        owed_s = owed_s if owed_s is not None and nominal_s <= owed_s else None
        return NextOccurrence(due_s, nominal_s, 0, owed_s, rule, is_last), nominal_s


def _id_of(row: Row) -> str:
    """Returns the id of a timer with an id."""
    origin = row[5]
    assert origin is not None
    return origin[0]


_Asked: TypeAlias = tuple[bytes, int, int, int | None, bool]
"""(Rule, due second, nominal second, up to which nominal second it is owed, whether it is the last one)"""


class _Plan(NamedTuple):
    """What occurrences send that are the same in :data:`_Asked`, and what follows them."""

    due_s: int | None
    """Due second of the callback; None: it sends nothing."""
    ending: Headers
    """The last headers of the callback."""
    next: NextOccurrence | None
    """None: none follows."""
    skipped: _Skipped | None


_Skipped: TypeAlias = tuple[int, int, int, Reason]
"""First and last nominal second of what is not sent, their number, and why."""


class _Decision(NamedTuple):
    """What an occurrence sends."""

    sent_s: int | None
    """Nominal second of its callback; None: it sends nothing."""
    decided_s: int
    """Nominal second up to which all is decided."""
    owed_s: int | None
    """Nominal second up to which what follows is sent."""
    skipped: _Skipped | None


def _sent_of(nominals: Sequence[int], judged_s: int, catch_up: str, *, is_paused: bool) -> tuple[Sequence[int], Reason]:
    """Returns those of some nominal seconds that are sent, which are the newest ones; and why the others are not.

    Args:
        nominals: ascending, of occurrences that are due.
        judged_s: nominal second of what is due now; of what a noisy hold has held, of what was due when it began, so
            that nothing is late because of it.
        is_paused: whether a pause has held them.
    """
    limit_s = STALE_S if catch_up == "none" else ON_TIME_S
    in_time = [each for each in nominals if judged_s - each <= limit_s]
    if catch_up == "all" or len(in_time) > MOST_SENT:
        return nominals[-MOST_SENT:], "held" if is_paused else "over-cap"
    if catch_up == "latest":
        return in_time or nominals[-1:], "held" if is_paused else "superseded"
    return in_time, "held" if is_paused else "late"
