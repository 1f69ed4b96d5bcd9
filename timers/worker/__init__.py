"""The Faust worker: how records reach machines, how time reaches them, and how what they fire reaches Kafka.

The way of a timer, one file a step: ``transport`` (batches from Faust's consumer) -> ``agents`` (timer_request, join,
oscillator) -> ``runner`` (the thread that owns a machine) -> :mod:`timers.core.machine` (what to do) -> ``outbox``
(one transaction).
"""
