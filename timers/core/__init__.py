"""The pure core: no clock, no I/O, no logging, no third-party package. All of it runs without Kafka.

In the order in which to read it:

==================  ============================================================================================
**a machine**
``timer``           what goes through: rows (pending timers), decoded requests, fetches, ticks
``keys``            the order key of a row: due second, offset
``ports``           what a machine is given: decoder, store, outbox
``progress``        what each transaction commits, and the history of the settings
``levels``          feature levels: what workers of two versions may do side by side
``machine``         accepts requests, and fires them when their second has begun
``steps``           the states of a machine, and what it may do in each
``loop``            in which order a machine observes time, fires, accepts and commits
``reading``         decodes each record with the settings of its offset
``variant``         which parts a machine has besides: an index, a horizon, a barrier, repeating timers
**firing**
``chunk``           some due timers: which fire, and where the chunk ends
``limits``          how much is done at a time, and the pace of a backlog
``repeating``       timers that repeat: each firing appends the next one
``horizon``         requests that are due far ahead go to the cold tier, and come back
**time**
``ticking``         when the next tick is sent
``clock_guard``     which ticks count
``second_barrier``  a second fires when the log is read up to where it began
**timers with an id**
``operation``       operations of records, entries of the index, verdicts
``index``           the latest version of each id
``only_if``         requests with a condition
**pauses of callback topics**
``fired``           which requests have fired, with holes and holds
``held``            the rows that holds hold, and their release
**loss and damage**
``snapshots``       a copy of a store on a topic, from which a new store begins
``store_validity``  whether a store agrees with its log
``lineage``         which log was read, and where another one parts from it
``rescue``          a log has lost its end: what only the store holds becomes dead letters
``doubts``          a log was compacted: which store is whole
``passed_over``     records that no consumer can read
``mending``         repeating timers whose next occurrence was lost
**for others than machines**
``deals``           which member of the group gets which partitions
``listing``         pages of the pending timers of many partitions
``backoff``         how long to wait after a failure
``counters``        totals for the metrics
``grouping``        cuts sequences into groups of limited size
``sums``            compiled: looks at each of many rows
``printable``       text of others, made safe for a log or a terminal
==================  ============================================================================================
"""
