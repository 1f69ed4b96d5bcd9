"""Chaos of logs: each log that decides when a timer fires loses its end, or comes back from an old copy.

::

    python -m tests.chaos.logs --only 'request/*,*/grown-past/kept' --seed 7
    python -m tests.chaos.logs alarms --changes 1000
    python -m tests.chaos.logs freeze

The first command runs cells of a table, topic × fault × store. In each cell every timer in the log must fire once, or
the partition must be red within 30 s. After ``TIMERS_ACCEPT_LOSS`` each timer in the log must have fired once, and each
one that only the store holds must be one dead letter, which fires once after ``timers dead-letters retry``. A queue has
no store: each message in its log must be done once, and one that waits for another attempt must not be forgotten. The
second command does what happens to logs in a healthy cluster: no partition may stop. The third freezes one of three
brokers and measures which timers wait for it.
"""
