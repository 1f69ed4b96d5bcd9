"""Members of other programs in the group of a queue.

The brokers give partitions to any program that joins with the group's id and knows the strategy of the queue's
processes, as Java's consumer does; and a consumer of KIP-848 changes the group so that the brokers deal. What such a
program commits counts as done. The shares that librdkafka deals have no user data, so the brokers refuse neither.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from time import monotonic
from typing import Any

from confluent_kafka import KafkaException

from timers.process.threads import call_in_thread

LOOK_S = 5.0
"""Seconds between two looks. After a rebalance there is one at once."""

RUNBOOK = "docs/operations.md#timersqueuegrouptaken"

_ANSWER_S = 10.0
_KEPT_OUT = "a client, or a share group without members, that keeps this process out"

_SHOWN = 3
"""So many of them are named."""

_log = logging.getLogger("timers.queue")


class Strangers:
    """Looks who is in a group, in a thread for each look.

    Each look uses ``list_groups``, which is deprecated, and asks all brokers: admin requests to the coordinator of a
    group can abort the process when it moves (librdkafka's issues 4605 and 5040). Only a group of another kind needs
    one.

    Args:
        group: of the queue. The client ids of its processes begin with it.

    Attributes:
        sentence: who else is in the group; empty: no other program; None: that is not known.
    """

    def __init__(self, group: str) -> None:
        self.sentence: str | None = None
        self._group = group
        self._looking: Future[list[str]] | None = None
        self._next_look = 0.0
        self._kept_out: list[str] = []
        self._names: list[str] = []
        """Those that are in a group of another kind, as far as they were asked for."""

    def look_soon(self) -> None:
        """Look at once: the group has dealt again, so this process is in it."""
        self._names = []  # the members may have gone; the brokers keep the kind of their group
        self._next_look, self._kept_out = 0.0, []

    def check(self, admin: Any) -> None:
        """Begin a look if its time has come, and note how the one before has ended. Waits for no broker."""
        looking = self._looking
        if looking is not None and looking.done():
            self._looking = None
            try:
                self._note(looking.result() or self._kept_out)
            except Exception as error:  # also one that no code expects: a look must not end the queue
                _log.debug("who is in the group %s is not known: %s", self._group, error)
                self.sentence = None
        if self._looking is None and monotonic() >= self._next_look:
            self._next_look = monotonic() + LOOK_S
            self._looking = call_in_thread("queue-members", self._look, admin)

    def note_kept_out(self) -> None:
        """Note that the brokers do not let this process join. They do not list share groups and those of streams."""
        self._kept_out = [_KEPT_OUT]
        self._note(self._kept_out)

    def _note(self, names: list[str]) -> None:
        before, self.sentence = self.sentence, self._sentence(names) if names else ""
        if names and self.sentence != before:
            _log.error("%s", self.sentence)
        elif before and not names:
            _log.info("no other program is in the group %s any more", self._group)

    def _sentence(self, names: list[str]) -> str:
        more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
        return (
            f"another program is in the group {self._group!r}: {', '.join(names[:_SHOWN] + more)}. What it commits "
            f"counts as done. Stop it, or give it another group id ({RUNBOOK})"
        )

    def _look(self, admin: Any) -> list[str]:
        """Name the members that are no processes of the queue.

        Raises:
            KafkaException: the brokers do not answer.
        """
        found = [each for each in admin.list_groups(self._group, timeout=_ANSWER_S) if each.id == self._group]
        if found and found[0].error is not None:
            raise KafkaException(found[0].error)
        if not found or found[0].members or found[0].state != "Dead":
            self._names = []
            return [
                _named(each.client_id, each.client_host)
                for each in (found[0].members if found else ())
                if not self._is_ours(each.client_id)
            ]
        if not self._names:
            described = admin.describe_consumer_groups([self._group], request_timeout=_ANSWER_S)[self._group]
            members = described.result(2 * _ANSWER_S).members
            self._names = [_named(each.client_id, each.host) for each in members if not self._is_ours(each.client_id)]
        return self._names

    def _is_ours(self, client_id: str) -> bool:
        return client_id.startswith(f"{self._group}-")


def _named(client_id: str, host: str) -> str:
    return f"client {client_id!r} at {host.lstrip('/')}"
