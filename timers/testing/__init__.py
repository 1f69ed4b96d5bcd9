"""The test kit, for the tests of your own program, with a simulated clock: timers (:class:`SimTimers`, and
:class:`AsyncSimTimers` for programs with an event loop) and a queue (:class:`SimQueue`). It needs only the
packages of the client.

The product does not import this package.
"""

from timers.testing.sim_queue import Output, SimQueue
from timers.testing.sim_timers import AsyncSimTimers, DeadLetter, Fired, Held, SimClock, SimTimers

__all__ = ["AsyncSimTimers", "DeadLetter", "Fired", "Held", "Output", "SimClock", "SimQueue", "SimTimers"]
