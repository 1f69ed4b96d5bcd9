"""Benchmarks: one file per question, every figure measured in the run that reports it. See README.md."""
