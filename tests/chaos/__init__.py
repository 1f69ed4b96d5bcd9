"""Chaos: real workers on a real broker in a storm of timers, while a seeded plan kills, stops and starts them.

::

    python -m tests.chaos --seed 7 --rounds 2

Each round has topics, workers and disks of its own. When it is over, the target topic is read from outside and compared
with what the broker acknowledged to the producer.
"""
