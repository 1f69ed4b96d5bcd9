"""Jobs on Spark that use the same topics as the worker. They need ``pip install 'kafka-timers[spark]'`` and Java."""
