"""Queues with an acknowledgement for each message, on a Kafka topic and a consumer group.

::

    from timers.queue import Queue

    with Queue("orders") as queue:
        queue.send(b"order 17", key="customer-4")
        for message in queue.receive(100):
            message.ack()

docs/queues.md has the guarantees and the limits. The rest of this page is for readers of the source.

The way of a message, and the thread of each step. A member's generators yield commands, such as ``do(Port.load, ...)``;
``Driver._do`` calls the method of this name, of the driver or of ``Transport``.

1. ``NewPartitions.work`` (``settling``): a partition that the group has given is loaded, and its log verified. Queue's
2. ``Member.read``: records go into the ledger. Queue's
3. ``Member.take``: a receiver gets messages. Receiver's
4. ``Delivery.acknowledge``, ``Member.settle``: the receiver settles them in the ledger. Receiver's
5. ``Member.due_round``: a round of commits begins. Queue's
6. ``Settler.plan``: what is committed: plainly, or with jobs in a transaction. Queue's
7. ``Transport.begin_commit``: a plain commit. Queue's
8. ``Driver.execute``, ``Transactions.execute``: a transaction. The second one, which may wait for the producer
9. ``Settler.succeed``: what was committed is done. Queue's

In the order in which to read it:

================  ==============================================================================================
**for users**
``queue``         ``Queue``
``message``       ``Message``, and the calls that settle it
``aio``           the same for programs with an event loop
``running``       runs handlers, in threads or child processes
``sending``       sends messages, and guards of deliveries
``inspection``    what the groups of queues have committed, read from outside
``monitoring``    metrics and health of one process
**decides**       pure
``port``          commands and answers between a member and its driver
``member``        a process in the group: what it does with each event
``delivery``      one delivery, and how it may end
``entry``         an open message in a ledger
``ledger``        the messages of a partition: done, held, ready
``starts``        which messages may be started, so that one that kills its process is found
``settling``      what is committed next, and what its outcome means; new partitions
``verification``  whether a log is the one that was read before
``metadata``      what is done, as text in the committed offset
``records``       headers, timers of retries, dead letters
**does**          threads, network
``driver``        the threads, and the lock; carries commands out
``transport``     the consumer, and plain commits
``transactions``  the transactional producer
``ledger_log``    the ledger topic: copies of commits, and the keys that sign retries
``strangers``     other programs in the group
================  ==============================================================================================
"""

from timers.client import Backoff
from timers.client.tokens import SqlInbox
from timers.errors import LeaseLostError, QueueError
from timers.queue.aio import AsyncMessage, AsyncQueue
from timers.queue.message import Message
from timers.queue.port import Counters
from timers.queue.queue import Queue

__all__ = [
    "AsyncMessage",
    "AsyncQueue",
    "Backoff",
    "Counters",
    "LeaseLostError",
    "Message",
    "Queue",
    "QueueError",
    "SqlInbox",
]
