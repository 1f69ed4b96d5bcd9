"""The thread of a queue: it reads, serves rebalances and commits."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable
from time import monotonic
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from timers.errors import QueueError, TimersError
from timers.queue import records
from timers.queue.committing import Committer
from timers.queue.ledger import Ledger
from timers.queue.loading import load
from timers.queue.settling import Partition
from timers.queue.state import State
from timers.queue.transport import Transport

SETTLE_S = 0.1
"""Time between two commits: after a crash, what was acknowledged in this time is delivered again."""

_POLL_S = 0.02
_BATCH = 500
_MOST_READY = 4000
_MOST_READY_BYTES = 64 * 1024 * 1024
"""Messages and their bytes that may wait for receivers; above that, partitions are paused."""

_CONTROL_BYTES = 8 * 1024 * 1024
"""After so many bytes it is checked whether to pause, also before the next commit."""

_COPY_S = 60.0
_RETRY_S = 0.5
_DRAIN_S = 15.0
"""How long a process that closes tries to settle."""

_LONG_SKIP = 2000
"""Done messages that are skipped by a seek instead of by reading them."""

_log = logging.getLogger("timers.queue")


class Receiver:
    """Runs in one thread from :meth:`start` until the state is closed or the queue fails."""

    def __init__(self, state: State, transport: Transport) -> None:
        self._state = state
        self._terms = state.terms
        self._transport = transport
        self._committer = Committer(transport, state)
        self._thread: threading.Thread | None = None
        self._paused: set[Partition] = set()
        self._fed_bytes = 0
        self._next_settle = self._next_copy = 0.0

    def start(self) -> None:
        """Start the thread, unless it was started or the queue is closed."""
        with self._state.lock:
            if self._thread is None and not self._state.closing:
                self._thread = threading.Thread(target=self._run, name=f"queue-{self._terms.name}", daemon=True)
                self._thread.start()

    @property
    def is_started(self) -> bool:
        return self._thread is not None

    def join(self) -> None:
        """Wait for the end of the thread."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._transport.open(self._assigned, self._revoked)
            while not self._state.closing:
                self._feed(self._transport.poll(_BATCH, _POLL_S))
                if monotonic() >= self._next_settle:
                    self._settle()
                    self._control_reading()
                elif self._fed_bytes > _CONTROL_BYTES:
                    self._control_reading()
            self._drain()
        except TimersError as error:
            self._state.fail(error)
        except KafkaException as error:
            failed = f"the queue {self._terms.name!r} cannot be read"
            self._state.fail(self._transport.user_error(error, failed))
        except Exception as error:
            _log.exception("the queue %s failed", self._terms.name)
            self._state.fail(QueueError(f"the queue {self._terms.name!r} failed: {error!r}"))
        finally:
            self._state.end()
            with contextlib.suppress(KafkaException, RuntimeError):
                self._transport.close()

    def _drain(self) -> None:
        give_up = monotonic() + _DRAIN_S
        while not self._settle(with_copy=True):
            if monotonic() > give_up:
                _log.warning(
                    "the queue %s is closed, and its last calls of ack or retry are not committed", self._terms.name
                )
                return
            self._feed(self._transport.poll(1, _RETRY_S))

    # ---- reading -------------------------------------------------------------------------------------------------

    def _feed(self, polled: Iterable[Any]) -> None:
        """Add records to the ledgers."""
        seeks: list[TopicPartition] = []
        with self._state.lock:
            ledgers = self._state.settler.ledgers
            for record in polled:
                error = record.error()
                ledger = ledgers.get((record.topic(), record.partition()))
                if error is not None:
                    self._note(error, record, ledger)
                elif ledger is not None:
                    offset, returned = record.offset(), record.topic() == self._terms.returns_topic
                    lane = record.key() if self._terms.ordered and not returned else None
                    attempt = records.identity(record, returned=True).attempt if returned else 1
                    ledger.read(offset, record, lane, attempt)
                    self._fed_bytes += len(record)
                    if ledger.position > offset + _LONG_SKIP:
                        seeks.append(TopicPartition(record.topic(), record.partition(), ledger.position))
            self._state.lock.notify_all()
        for each in seeks[-1:]:
            self._transport.consumer.seek(each)

    def _note(self, error: KafkaError, record: Any, ledger: Ledger | None) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            if ledger is not None:
                ledger.pass_holes(record.offset())
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise QueueError(
                f"{record.topic()}/{record.partition()} cannot be read at its position "
                f"({error.str()}): retention deleted messages, or the topic was recreated. Open the queue again"
            )
        elif error.fatal():
            raise KafkaException(error)
        else:
            _log.warning("the queue %s: %s", self._terms.name, error.str())

    def _control_reading(self) -> None:
        """Pause partitions whose ledger has no room, or all if too many messages wait for receivers."""
        with self._state.lock:
            ledgers = self._state.settler.ledgers
            now_s = monotonic()
            share = 0.0
            self._fed_bytes = 0
            for ledger in ledgers.values():
                self._state.totals.leases_lost += len(ledger.expire(now_s))
                ledger.measure()
                ready_bytes = sum(map(len, ledger.ready_items()))
                share += ledger.ready_count / _MOST_READY + ready_bytes / _MOST_READY_BYTES
            full = {each for each, ledger in ledgers.items() if ledger.position >= ledger.read_limit}
            wanted = full | (set(ledgers) if share > 1 else self._paused & ledgers.keys() if share > 0.5 else set())
            self._state.lock.notify_all()
        pause, resume = wanted - self._paused, (self._paused - wanted) & ledgers.keys()
        if pause:
            self._transport.consumer.pause([TopicPartition(*each) for each in pause])
        if resume:
            self._transport.consumer.resume([TopicPartition(*each) for each in resume])
        self._paused = wanted

    # ---- settling ------------------------------------------------------------------------------------------------

    def _settle(self, *, with_copy: bool = False) -> bool:
        now_s = monotonic()
        with_copy = with_copy or now_s >= self._next_copy
        waiting = self._state.waiting()
        done = self._committer.commit_all(with_copy=with_copy)
        self._next_settle = monotonic() + (SETTLE_S if done else _RETRY_S)
        if not done:
            return False
        self._state.committed(waiting)
        if with_copy:
            self._next_copy = now_s + _COPY_S
        return True

    # ---- rebalances ----------------------------------------------------------------------------------------------

    def _assigned(self, partitions: list[TopicPartition]) -> None:
        names = [(each.topic, each.partition) for each in partitions]
        loaded = load(self._transport, names, accept_loss=self._terms.accept_loss)
        with self._state.lock:
            for partition, ledger, commit in loaded:
                self._state.settler.assign(partition, ledger, self._transport.log_tag(partition[0]), commit)
            self._state.settler.join(self._transport.member())
        starts = [TopicPartition(*partition, ledger.position) for partition, ledger, _ in loaded]
        self._transport.consumer.incremental_assign(starts)

    def _revoked(self, partitions: list[TopicPartition], *, lost: bool) -> None:
        if not lost:
            # The settler's generation is over by now, so the brokers would refuse a transaction.
            self._committer.commit_all(only_plain=True)
        names = [(each.topic, each.partition) for each in partitions]
        with self._state.lock:
            self._state.totals.leases_lost += self._state.settler.revoke(names)
            self._state.settler.join(self._transport.member())
        self._paused -= set(names)
        self._transport.consumer.incremental_unassign(partitions)
