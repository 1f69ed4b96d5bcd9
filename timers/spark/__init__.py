"""Timers on Spark: jobs over the same topics as the worker's. Needs ``pip install 'kafka-timers[spark]'`` and Java."""
