"""Where Spark finds the data source ``timers``: it imports each top-level package whose name begins with ``pyspark_``.

So this module must be cheap to import, and must not fail: then Spark would know no data source in Python at all.
"""

from timers.spark.frames.data_source import TimersSource as DefaultSource

__all__ = ["DefaultSource"]
