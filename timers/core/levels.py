"""Feature levels: which behaviour a machine may use, so that workers of two versions may run side by side.

A behaviour that an older worker would misread begins at a higher level. A machine is raised to a level in a transaction
of its own. From then on its progress record has that level as its version, which an older worker refuses, and the
settings history says from which offset the level applies, so that a replay reads each offset at its level [I21].

====== ================================================================
level  what it adds
====== ================================================================
1      everything before there were levels
====== ================================================================
"""

FIRST = 1
"""The level of a machine that was never raised."""

SUPPORTED = 1
"""The highest level that this version of the project supports."""
