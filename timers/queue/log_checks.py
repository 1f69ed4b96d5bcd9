"""Checks after commits that the logs and topics of a queue still fit what is committed."""

from __future__ import annotations

import logging

from timers.queue.state import State
from timers.queue.transport import Transport
from timers.wire import topics

_log = logging.getLogger("timers.queue")


def check_logs(transport: Transport, state: State) -> None:
    """Say which messages the brokers deleted before they were done, and delete those that are done on the topic of
    returns, which has no retention. Waits for no broker: it looks at the answers to the questions before.

    Raises:
        QueueError: a topic was deleted and created again.
    """
    added = transport.check_topics()
    if added and state.terms.ordered:
        _log.error(
            "topic %s has %d more partitions, so keys have moved: messages that are sent from now on may overtake "
            "earlier ones of their key until these are done",
            *(state.terms.topic, added),
        )
    with state.lock:
        commits, copied = state.settler.commits, state.settler.copied
        held = {each for each, ledger in state.settler.ledgers.items() if ledger.open_count}
    for partition, low in transport.first_offsets(held).items():
        commit = commits.get(partition)
        if commit is not None and low > commit.offset:
            _log.error(
                "%s: messages from %d on are not done, and retention deleted all below %d. They are lost if this "
                "process ends before they are done",
                *(topics.partition_name(*partition), commit.offset, low),
            )
    returned = {each: commit.offset for each, commit in copied.items() if each[0] == state.terms.returns_topic}
    transport.delete_below(returned)
