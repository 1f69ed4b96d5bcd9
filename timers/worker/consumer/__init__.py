"""Fetches records of assigned partitions, as batches of Faust's consumer, and finds the owners of the others."""
