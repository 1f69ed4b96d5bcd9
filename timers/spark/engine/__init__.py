"""The timer service as one Spark query: requests and ticks in, callbacks out.

The way of a timer, one file a step: ``accepting`` (requests to timer batches, one for each bucket) -> ``processor``
(Spark's state around a bucket) -> ``bucket`` (what waits and what fires; pure) -> ``firing`` (timer batches to
messages) -> ``query`` (the whole as one streaming query). Why it is so: ``docs/adr/0010-the-spark-engine.md``."""
