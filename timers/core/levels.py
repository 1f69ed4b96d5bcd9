"""Feature levels: which behaviour a machine may use, so that workers of two versions may run side by side.

A behaviour that an older worker would misread begins at a higher level. A machine is raised to a level in a transaction
of its own. From then on its progress record has that level as its version, which an older worker refuses, and the
settings history says from which offset the level applies, so that a replay reads each offset at its level [I21].

The first level is 4: versions that were never released used 1 to 3.
"""

from collections.abc import Iterable, Mapping

FIRST = 4
"""The level of a machine that was never raised."""

SNAPSHOTS = 5
"""From this level on, progress may name snapshots (:mod:`timers.core.snapshots`)."""

TRIMMING = 6
"""From this level on, the log of a machine may begin late: what no pending timer needs is deleted [I31]. A machine is
raised to it only after its log and its snapshots were compared (:mod:`timers.machines.verifying`)."""

BY_HEADERS = 7
"""From this level on, a request with the header ``timer-topic`` is one without protobuf: its value is the payload. The
log of a machine at this level is whole: it was not compared yet, or is new."""

BY_HEADERS_TRIMMED = 8
"""The same for a machine whose log may begin late, as at :data:`TRIMMING`."""

READABLE_LATE = 9
"""From this level on, the settings history itself says whether the log of a machine may begin late
(:data:`timers.core.progress.LOG_TRIMMED`), so that a later level needs no second number. A null value with headers of
requests is no cancel any more (:mod:`timers.wire.formats.future_by_id`). A request with a condition is refused if
the version that it names has fired (:mod:`timers.core.only_if`)."""

HOLDS = 10
"""From this level on, progress may have holds [I33], and a machine takes the commands about targets."""

REPEATS = 11
"""From this level on, a request with an id and a rule is a timer that repeats [I37]. The callback of a ``Future`` does
not get the headers of a schema registry (:data:`timers.wire.headers.SCHEMA_IDS`), which describe the ``Future``."""

SUPPORTED = REPEATS
"""The highest level that this version of the project supports."""

RAISED_TO = REPEATS
"""The highest level to which workers raise partitions, if the operator allows it. New ones begin at it."""


def level_to_raise_to(allowed: int, supported: Iterable[int]) -> int:
    """Returns the level that machines may be raised to.

    Args:
        allowed: level that the operator allows.
        supported: level that each member of the group supports.
    """
    return min((allowed, *supported))


def allows_trimming(level: int) -> bool:
    """Returns whether logs may begin late where an operator allows this level."""
    return level == TRIMMING or level >= BY_HEADERS_TRIMMED


def says_trimmed(level: int) -> bool:
    """Returns whether the level itself says that the log of a machine may begin late."""
    return level in (TRIMMING, BY_HEADERS_TRIMMED)


def wanted(level: int, permitted: int, *, is_verified: bool) -> int:
    """Returns the level that a machine should have.

    Args:
        level: the one that it has.
        permitted: as :func:`level_to_raise_to` says.
        is_verified: whether its log and its snapshots were compared, and agree.
    """
    highest = min(permitted, RAISED_TO)
    if is_verified or says_trimmed(level):
        return TRIMMING if highest == BY_HEADERS else highest
    return {TRIMMING: SNAPSHOTS, BY_HEADERS_TRIMMED: BY_HEADERS}.get(highest, highest)


def able_members(supported: Mapping[str, int], raised: int) -> list[str]:
    """Returns the members of the group that may own partitions: those that support the level of the app.

    If there are none: all members, because each one then says that it does not support the level.

    Args:
        supported: member -> the level that it supports.
        raised: highest level that a machine was raised to.
    """
    return [member for member, level in supported.items() if level >= raised] or list(supported)
