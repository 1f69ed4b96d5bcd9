"""The timer service as one Spark query: it reads requests and ticks, and sends callbacks and dead letters.

A timer passes through these files: ``accepting`` (requests become timer batches, one for each bucket), ``processor``
(gives a bucket its state in Spark), ``bucket`` (keeps what waits), ``machines`` (decides what fires), ``outboxes``
(sends it). ``query`` connects them. ``docs/adr/0010-the-spark-engine.md`` has the reasons."""
