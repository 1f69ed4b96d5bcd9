"""Chaos: a seeded plan injects faults into real workers, their stores and real brokers while many timers fire.

::

    python -m tests.chaos --seed 7 --rounds 2

Each round has topics, workers and disks of its own. It counts if each fault had an effect, and hit timers in flight
unless none wait for it. At its end a receiver reads the target topic, and the callbacks are compared with the requests
that the brokers acknowledged. There are three brokers if one of the faults is a partition without a leader, else one.
"""
