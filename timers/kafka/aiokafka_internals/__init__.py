"""The only modules of this package that may use private parts of aiokafka.

:mod:`timers.worker.library_versions` checks at start that the installed aiokafka is a version that these modules
support. In the order in which to read them, with what each replaces and when it may go:

======================  ========================================================================================
**connections**
``sessions``            replaces ``AIOKafkaConnection``: a connection logs in again before its session ends. May go
                        when aiokafka does so (KIP-368).
``metadata``            replaces requests of metadata and look-ups of coordinators: they create no topics, and do not
                        wait for one silent broker. May go when aiokafka has an option for the first, and asks the
                        next broker.
``leader_client``       new: asks the leader of each partition for offsets and raw batches, without a consumer.
``broker_answers``      new: when each broker answered last, so that no transaction begins with a silent one [I25].
**reading**
``fetch``               replaces ``PartitionRecords`` and ``FetchResult`` of the consumer: records without a copy, in
                        pieces of bounded size. May go when aiokafka's fetcher bounds what a batch unpacks to.
``batch_pieces``        new: unpacks a batch in pieces, and reads all that Java's consumer reads.
``record_starts``       compiled: whether aiokafka's parser reads records as Java's does.
**producing**           machines use all of these; the worker's :mod:`timers.machines.firing.producer` is above them
``producer_loop``       new: one event loop in a thread of its own, for the producers of all machines.
``record_batch``        replaces ``create_batch``: a batch that a thread fills before the event loop gets it.
``callback_batch``      compiled: the same for callbacks, in a fifth of the time.
``produce``             replaces the sender's way of a transaction: fewer wake-ups (ADR 3), and it tells why brokers do
                        not take a batch. Version 1 of transactions.
``version_two``         the same for version 2 (KIP-890), which aiokafka's sender does not speak.
``transaction_errors``  what follows from each error code of both versions.
``refusals``            new: which records of a batch a broker refuses. May go when aiokafka reads that (KIP-467).
**groups**
``group_member``        replaces ``GroupCoordinator``: a member keeps its partitions until the next deal, and its
                        heartbeats have its name. May go when aiokafka's member does both.
``group``               what the members of a group say and have.
``requests``            requests that aiokafka lacks. Each may go when aiokafka has it.
``other_groups``        the same, for groups of KIP-848, of Kafka Streams and of share consumers.
**questions of operators**
``log_readers``         new: which groups have an offset in a topic.
``open_transactions``   new: which transactions are open for long.
======================  ========================================================================================
"""
