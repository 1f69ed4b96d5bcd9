"""Chaos: a seeded plan kills, stops and starts real workers and a real broker while many timers fire.

::

    python -m tests.chaos --seed 7 --rounds 2

Each round has topics, workers and disks of its own. At its end a receiver reads the target topic, and the callbacks are
compared with the requests that the broker acknowledged.
"""
