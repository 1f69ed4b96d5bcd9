"""Chaos for queues: consumers are killed, stopped, drained and added, and the broker is killed, while they work.

::

    python -m tests.chaos.queues --seed 7 --messages 100000

Each message has a number, which says what its handler does: fail once, raise what would end a process, reject, write
an output to Kafka, insert a row by an :class:`SqlInbox`, or only acknowledge. Handlers run in batches of the consumer's
own thread, in threads, in tasks and in child processes, by the number of the consumer. At the end each message must
have been handled, no retry may have come early, and each output and each row must be there once.
"""
