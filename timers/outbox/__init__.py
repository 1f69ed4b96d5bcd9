"""The relay of the outbox, ``timers outbox run``: it sends the rows that :mod:`timers.client.outbox` has written."""
