"""The Faust worker: brings records and ticks to the machines, and what they fire to Kafka.

``service`` is the app. A request passes :mod:`.consumer` (member of the group, and reader of the request logs),
an agent of ``ticks``, :mod:`.machines` (a thread for each), :mod:`timers.core.machine` (decides what to do) and
:mod:`timers.machines.firing` (one transaction). ``ticks`` reads and writes the time. :mod:`timers.machines.queries`,
:mod:`.metrics` and ``health`` answer on the port of ``web``.

Imports point one way, from ``service`` to :mod:`.machines`: ``pyproject.toml`` has the contract.
"""
