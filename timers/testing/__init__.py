"""The test kit: timers with a simulated clock.

For the tests of your own program: :class:`SimTimers` (see :mod:`timers.testing.sim_timers`). It is made of simulated
brokers (:class:`SimLog`) with a clock (:class:`SimClock`), and of a worker (:class:`SimWorker`) that drives the
product's own machines with the steps of a real one in their order. The simulator of the engine's own tests
(``tests/simulation``) uses the same parts, and injects :class:`Faults`.

The product does not import this package.
"""

from timers.testing.faults import Crashed, Faults, Violation
from timers.testing.log import SimClock, SimLog, SimProducer, SimRecord
from timers.testing.outbox import SimOutbox
from timers.testing.sim_timers import DeadLetter, Fired, SimTimers
from timers.testing.store import SimDisk, SimStore
from timers.testing.worker import Parts, SimRunner, SimWorker

__all__ = [
    "Crashed",
    "DeadLetter",
    "Faults",
    "Fired",
    "Parts",
    "SimClock",
    "SimDisk",
    "SimLog",
    "SimOutbox",
    "SimProducer",
    "SimRecord",
    "SimRunner",
    "SimStore",
    "SimTimers",
    "SimWorker",
    "Violation",
]
