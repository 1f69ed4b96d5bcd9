"""All that runs a partition, for the worker and the engine on Spark."""
