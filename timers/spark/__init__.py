"""Jobs on Spark that use the same topics as the worker. They need the extra ``spark`` and Java."""
