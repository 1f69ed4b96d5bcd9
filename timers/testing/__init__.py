"""The test kit: timers with a simulated clock, and a simulator with injected faults.

For the tests of your own program: :class:`SimTimers` (see :mod:`timers.testing.sim_timers`). For the tests of the
engine: :class:`Simulator`. It replaces the brokers (:class:`SimLog`), their clock (:class:`SimClock`) and the disks,
drives the worker's own machine with the worker's steps in their order, injects faults, and runs the :class:`Checkers`
after each step.

The product does not import this package.
"""

from timers.testing.checkers import Checkers
from timers.testing.clock import SimClock
from timers.testing.faults import Crashed, Faults
from timers.testing.id_oracle import Violation
from timers.testing.list_outbox import ListOutbox
from timers.testing.log import SimLog, SimProducer, SimRecord
from timers.testing.outbox import SimOutbox
from timers.testing.sim_timers import DeadLetter, Fired, SimTimers
from timers.testing.simulator import SimulationFailed, Simulator
from timers.testing.store import SimDisk, SimStore
from timers.testing.worker import Parts, SimRunner, SimWorker

__all__ = [
    "Checkers",
    "Crashed",
    "DeadLetter",
    "Faults",
    "Fired",
    "ListOutbox",
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
    "SimulationFailed",
    "Simulator",
    "Violation",
]
