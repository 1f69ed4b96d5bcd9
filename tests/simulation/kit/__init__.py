"""The simulated world: brokers in memory (:class:`SimLog`) with a clock (:class:`SimClock`), and a worker
(:class:`SimWorker`) that drives the product's own machines with the steps of a real one in their order, between
injected :class:`Faults`.
"""

from tests.simulation.kit.faults import Crashed, Faults, Violation
from tests.simulation.kit.log import SimClock, SimLog, SimProducer, SimRecord
from tests.simulation.kit.outbox import SimOutbox
from tests.simulation.kit.store import SimStore
from tests.simulation.kit.worker import SimWorker

__all__ = [
    "Crashed",
    "Faults",
    "SimClock",
    "SimLog",
    "SimOutbox",
    "SimProducer",
    "SimRecord",
    "SimStore",
    "SimWorker",
    "Violation",
]
