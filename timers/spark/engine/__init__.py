"""The timer service as one Spark query: it reads requests and ticks, and sends callbacks and dead letters.

A timer passes through these files: ``bucket`` (a row for many requests; which machines run) and ``machines`` (opens a
machine, runs it and closes it). ``query`` plans the micro-batches, and ``questions`` reach machines while they are
open. ``docs/adr/0035-stores-on-the-executors.md`` has the reasons."""
