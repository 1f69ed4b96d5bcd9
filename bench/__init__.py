"""Benchmarks, one file for each question. A report has only figures of one run. See README.md."""
