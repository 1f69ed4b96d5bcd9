"""What several test files need, by what it is for.

A fake that stands for brokers or Kafka's clients is called ``Sim...``. The simulated log and workers are in
``tests/simulation/kit``.

===================  ============================================================================
**programs that tests start**
``next_level_app``   the worker of ``next_level``
``quick_app``        a worker with short periods
``stopping_app``     a worker that stops itself once, in a transaction
``poisoned_worker``  a worker that fails at some records, while a file exists
``queue_consumer``   a consumer of a queue, which waits to be killed
``queue_worker``     a process of a queue whose messages say what to do
``dying_relay``      a relay that is killed when it would delete rows
``forked_clients``   clients and queues in a process and in its fork
``traced_chain``     a program with OpenTelemetry
``traced_receiver``  its receiver
**an app on a broker**
``system``           the timer system of a test: names, topics, targets, workers, readers
``ids``              a system whose timers have ids
``schedules``        a system with schedules of kafka-message-scheduler
``worker``           its workers
``console_process``  its console
``records``          writes requests, and reads what is committed
``letters``          waits for dead letters
``queue_calls``      what tests with queues call, and a message without a queue
``cluster``          topics and offsets, through the admin client
``scrape``           reads ``/metrics`` and ``/health``
``red_partitions``   which partitions are red, and why
``race``             changes timers while they fire
``discarding``       a transaction whose record batches are discarded
``publication``      publishes as fast as one client can
``callbacks``        reads millions of callbacks
``judge``            which callbacks are lost, duplicate, early or altered
**brokers**
``brokers``          several brokers of one cluster
``three_brokers``    three, of which some may be down
``broker_clock``     brokers whose clocks are wrong
``secure``           a broker with TLS, passwords and ACLs
``logins``           settings with which a user logs in there
``oauth``            a broker that takes tokens, and their server
``acls``             rights of workers and operators
``quotas``           quotas of clients
``kafka_version``    the version of Kafka
``class_archive``    lets brokers start with half the CPU time
``bad_network``      a proxy that cuts, delays and is silent
``late_requests``    a network that delivers requests of transactions late
``no_brokers``       a network that lets clients of librdkafka lose all brokers
``raw_batches``      record batches that no usual client writes
``strangers``        consumers of other programs that join a group
``java_consumer``    Kafka's Java tools
``java_producer``    Kafka's console producer
``disk``             full disks, and stalled ones
``postgres``         a PostgreSQL
**the engine on Spark**
``spark_query``      its query in the process of a test
``spark_job``        Spark commands as processes
``spark_cluster``    a standalone cluster
``past_timers``      timers of the past, and what an engine wrote of them
``planted``          faults for the audit to find
**without brokers**
``machines``         one machine over a simulated log, driven by hand
``list_outbox``      its outbox, which keeps its output in lists
``memory_store``     a store of which snapshots can be taken
``snapshots``        records of snapshots
``held``             machines whose targets may be paused or noisy
``repeats``          timers that repeat, whose log may lose its end
``next_level``       a version of the project that does not exist
``store_damage``     damages files of a store, and counts the firings
``queue_state``      a queue's process: what receivers get, and what their calls do
``queue_thread``     the thread of a queue over a simulated transport
``queue_handlers``   handlers of queues
``sim_admin``        an admin client with planned answers
``sim_consumer``     a consumer with planned answers
``sim_group``        the coordinator of a consumer group
``one_leader``       what simulated leaders share
``round_trips``      counts round trips of simulated brokers
``sim_console``      a console over a cluster in memory
``console_pages``    what such a console shows
``console_users``    its users
``oidc_issuer``      an issuer of OpenID Connect
``contract``         random requests from an OpenAPI document, and the check of answers
``half_open``        connections that have sent a part of a request
``cron_reference``   the seconds of a cron line by brute force
``unsafe_text``      text that would change the direction of a page
**processes and the machine**
``process``          child processes
``forked``           a program in a fork, which starts faster
``forks``            forks of the process of the tests
``command_line``     ``timers`` commands in the process of a test
``command_walk``     each command, over topics with unsafe text
``example_programs``  the examples in other languages
``go_tools``         programs in Go that check what is in deploy/
``chromium``         the browser
``compiled``         modules as Python and as machine code
``lowest_versions``  the lowest version of each package
``clock``            a clock that a test sets
``constants``        sets constants of modules
``waiting``          waits with a deadline
``printer``          prints progress
``usage``            CPU seconds and memory of processes
``cpu_seconds``      where the CPU time of a test run goes
===================  ============================================================================
"""
