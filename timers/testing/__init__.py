"""The test kit: timers with a simulated clock, for the tests of your own program: :class:`SimTimers`, and
:class:`AsyncSimTimers` for programs with an event loop. It needs no package besides those of the client.

The product does not import this package.
"""

from timers.testing.sim_kafka import SimClock
from timers.testing.sim_timers import AsyncSimTimers, DeadLetter, Fired, SimTimers

__all__ = ["AsyncSimTimers", "DeadLetter", "Fired", "SimClock", "SimTimers"]
