"""The test kit: timers with a simulated clock, for the tests of your own program: :class:`SimTimers`.

The product does not import this package.
"""

from timers.testing.sim_kafka import SimClock
from timers.testing.sim_timers import DeadLetter, Fired, SimTimers

__all__ = ["DeadLetter", "Fired", "SimClock", "SimTimers"]
