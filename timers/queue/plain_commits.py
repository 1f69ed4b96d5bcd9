"""Plain commits, which a thread asks for, and which the thread of the consumer makes.

confluent-kafka lets one thread at a time use a consumer: others wait. ``consume`` runs the callbacks of rebalances, and
these wait for the commit under way. So if a thread called ``commit`` itself, each of the two could wait for the other;
and reading would pause until the brokers have answered.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import get_ident
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from timers.queue.settling import Commit, Partition
from timers.queue.transactions import Outcome, offsets

ANSWER_S = 15.0
"""An answer that takes longer counts as lost. The brokers answer a member that joins when all others have joined."""

_log = logging.getLogger("timers.queue")


class _Request(NamedTuple):
    """What to commit, and what became of it."""

    offsets: list[TopicPartition]
    outcome: Future[Outcome]


class PlainCommits:
    """The plain commits of one consumer. The thread that makes this object is that of the consumer.

    Args:
        group: name in messages.
    """

    def __init__(self, consumer: Consumer, group: str) -> None:
        self._consumer = consumer
        self._group = group
        self._thread = get_ident()
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()
        self._sent: list[_Request] = []

    def commit(self, commits: Mapping[Partition, Commit]) -> Outcome:
        """Commit, and return the outcome. In another thread than the consumer's: when that one has served it."""
        if get_ident() == self._thread:
            return self._commit(offsets(commits))
        request = _Request(offsets(commits), Future())
        self._requests.put(request)
        try:
            return request.outcome.result(ANSWER_S)
        except TimeoutError:
            _log.warning("a commit of %s is not answered within %g s", self._group, ANSWER_S)
            return Outcome.REFUSED if request.outcome.cancel() else Outcome.UNKNOWN

    # ---- in the thread of the consumer ---------------------------------------------------------------------------

    def move(self) -> None:
        """Note that this thread uses the consumer from now on, and no other one."""
        self._thread = get_ident()

    def send(self) -> None:
        """Send the commits that other threads asked for. Call it before ``consume``, which gets the answers."""
        while (request := self._next()) is not None:
            try:
                self._consumer.commit(offsets=request.offsets, asynchronous=True)
            except KafkaException as error:
                request.outcome.set_result(self._failed(error.args[0]))
            else:
                self._sent.append(request)

    def answer(self, error: KafkaError | None, committed: Sequence[TopicPartition]) -> None:
        """Note an answer. It is the callback ``on_commit`` of the consumer."""
        places = _places(committed)
        for request in self._sent:
            if _places(request.offsets) == places:
                self._sent.remove(request)
                if not request.outcome.done():
                    request.outcome.set_result(self._outcome(error, committed))
                return

    def wait_for(self, call: Future[Any], *, is_over: bool = False) -> None:
        """Wait for a call of another thread that may ask for commits. ``consume`` may be running: then the answers to
        earlier commits cannot come, and count as lost.

        Args:
            is_over: refuse the commits. They may take long if the brokers are away.
        """
        self.lose_answers()
        call.add_done_callback(lambda _: self._requests.put(None))
        while not call.done():
            request = self._requests.get()
            if request is not None and request.outcome.set_running_or_notify_cancel():
                request.outcome.set_result(Outcome.REFUSED if is_over else self._commit(request.offsets))

    def lose_answers(self) -> None:
        """Wait for no answer any more."""
        for request in self._sent:
            if not request.outcome.done():
                request.outcome.set_result(Outcome.UNKNOWN)

    def _next(self) -> _Request | None:
        """Return the next request that is not given up, if there is one."""
        while True:
            try:
                request = self._requests.get_nowait()
            except Empty:
                return None
            if request is not None and request.outcome.set_running_or_notify_cancel():
                return request

    def _commit(self, asked: list[TopicPartition]) -> Outcome:
        try:
            return self._outcome(None, self._consumer.commit(offsets=asked, asynchronous=False))
        except KafkaException as error:
            return self._failed(error.args[0])

    def _outcome(self, error: KafkaError | None, committed: Iterable[TopicPartition]) -> Outcome:
        if error is not None:
            return self._failed(error)
        errors = [each.error for each in committed if each.error is not None]
        for each in errors[:1]:
            _log.warning("a commit of %s was refused: %s", self._group, each)
        return Outcome.REFUSED if errors else Outcome.COMMITTED

    def _failed(self, error: KafkaError) -> Outcome:
        _log.warning("a commit of %s failed: %s", self._group, error)
        return Outcome.REFUSED if error.code() in _REFUSALS else Outcome.UNKNOWN


def _places(listed: Iterable[TopicPartition]) -> frozenset[tuple[str, int, int]]:
    return frozenset((each.topic, each.partition, each.offset) for each in listed)


_REFUSALS = frozenset(
    {
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.OFFSET_METADATA_TOO_LARGE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""Answers with which the brokers refuse a commit. After any other error it may have been committed."""
