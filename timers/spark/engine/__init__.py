"""The timer service as one Spark query: it reads requests and ticks, and sends callbacks and dead letters.

A timer passes through these files: ``packing`` (a row for many requests), ``processor`` (gives a bucket its state in
Spark), ``bucket`` (decides which machines run), ``machines`` (runs one), ``openings`` (opens its store and producer).
``query`` connects them. ``docs/adr/0035-stores-on-the-executors.md`` has the reasons."""
