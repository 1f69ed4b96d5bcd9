"""The audit: finds the outcome of each request from the topics alone. Only ``scope`` and ``reading`` ask the brokers.

The steps: ``evidence`` (what receivers saw), ``outcomes`` (what was requested, and compares both), ``figures`` (sums),
``report``.
"""
