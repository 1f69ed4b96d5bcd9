"""The metrics of a worker: which there are, where each is read, and how Prometheus gets them."""
