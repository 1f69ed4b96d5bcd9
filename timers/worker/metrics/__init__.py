"""The metrics of a worker: their declarations, their values, and their form for Prometheus."""
