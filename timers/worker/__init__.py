"""The Faust worker: how records reach machines, how time reaches them, and how what they fire reaches Kafka.

``service`` is the app. The way of a timer: :mod:`.consumer` (batches from Faust's consumer) -> ``agents``
(timer_request, join, oscillator) -> :mod:`.machines` (a thread for each, and what it takes to open them) ->
:mod:`timers.core.machine` (what to do) -> :mod:`.sending` (one transaction). Time comes by ``ticks``. What is asked of
a worker from outside: :mod:`.queries` and :mod:`.metrics`, on the port of ``web``.

Imports point one way, from the app to what machines send: ``pyproject.toml`` has the contract.
"""
