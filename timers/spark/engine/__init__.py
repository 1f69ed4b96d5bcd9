"""The timer service as one Spark query: it reads requests and ticks, and sends callbacks and dead letters.

``docs/adr/0035-stores-on-the-executors.md`` has the reasons.

In the order in which to read it, with the process of each:

===============  ===============================================================================================
``start``        driver: what is checked and read before a query starts, and where its checkpoint is
``query``        driver: starts the query, plans micro-batches, compares logs, watches
``bucket``       executors: packs requests; runs the machines of a bucket that have something to do
``machines``     executors, and the driver for the retry topic: opens a machine, runs it, closes it
``questions``    both: queries and snapshots of machines that are open for moments
``query_port``   driver: answers ``timers list``, ``timers get`` and the console
``commands``     driver: what operators want of callback topics
``retries``      driver: the machines of the retry topic
``oscillator``   driver: writes ticks
===============  ===============================================================================================

Where state is:

=====================================  ================================  ======================================
what                                   who writes it                     if it is lost
=====================================  ================================  ======================================
progress, in Kafka                     each transaction of a machine     as with workers: docs/operations.md
store, on the executor's disk          a machine that is open            restored from a snapshot, or the log
                                                                         is read from its start
``machines.Known``, in the state of a  the bucket, at the end of each    the query reads the logs from the
bucket, in the checkpoint              micro-batch                       progress on; what a store lacks below
                                                                         that is read as above
``machines.Openings``, in a process:   the first task of the process     made anew: each producer is opened
clients, producers, open circuits                                        again
``bucket.Told``, in the job: ends of   the driver, for each micro-batch  Spark runs the micro-batch again
logs, circuits, commands, questions
=====================================  ================================  ======================================
"""
