"""Feature levels: which behaviour a machine may use, so that workers of two versions may run side by side.

A behaviour that an older worker would misread begins at a higher level. A machine is raised to a level in a transaction
of its own. From then on its progress record has that level as its version, which an older worker refuses, and the
settings history says from which offset the level applies, so that a replay reads each offset at its level [I21].

The first level is 9: versions that were never released used 1 to 8.
"""

from collections.abc import Iterable, Mapping

FIRST_LEVEL = 9
"""The lowest level of a machine."""

TRIMMED_LEVELS = (6, 8)
"""Former levels. A machine that had one of them has a log that may begin late, also after it was raised; from
:data:`FIRST_LEVEL` on, :data:`timers.core.progress.LOG_TRIMMED` says so."""

HOLDS_LEVEL = 10
"""From this level on, progress may have holds [I33], and a machine takes the commands about targets."""

REPEATS_LEVEL = 11
"""From this level on, a request with an id and a rule is a timer that repeats [I37]. The callback of a ``Future`` does
not get the headers of a schema registry (:data:`timers.wire.headers.SCHEMA_IDS`), which describe the ``Future``."""

SUPPORTED = REPEATS_LEVEL
"""The highest level that this version of the project supports."""

RAISED_TO_LEVEL = REPEATS_LEVEL
"""The highest level to which workers raise partitions, if the operator allows it. New ones begin at it."""


def level_to_raise_to(allowed: int, supported: Iterable[int]) -> int:
    """Returns the level that machines may be raised to.

    Args:
        allowed: level that the operator allows.
        supported: level that each member of the group supports.
    """
    return min((allowed, *supported))


def able_members(supported: Mapping[str, int], raised: int) -> list[str]:
    """Returns the members of the group that may own partitions: those that support the level of the app.

    If there are none: all members, because each one then says that it does not support the level.

    Args:
        supported: member -> the level that it supports.
        raised: highest level that a machine was raised to.
    """
    return [member for member, level in supported.items() if level >= raised] or list(supported)
