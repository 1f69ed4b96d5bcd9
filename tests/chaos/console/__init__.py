"""Chaos for the HTTP API: console, worker and broker are killed after a request was written and before it is answered.

::

    python -m tests.chaos.console --kills 1000

Clients set timers with an ``Idempotency-Key``, move some of them, and send old requests again, for a minute after the
first answer. A reader of the request topic and of the topic of verdicts knows which requests are written and not yet
answered, and kills in that moment. Every few kills the victim is the worker, which may lose its disk, or the broker. At
the end each timer that was answered with 201 must have fired, and none twice.
"""
