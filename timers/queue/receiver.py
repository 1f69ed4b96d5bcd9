"""The thread of a queue: it reads, serves rebalances and begins commits.

A commit runs in a thread of its own, because it may take long: brokers answer a member's requests in turn, so a commit
that follows the request to join waits until all members have joined. No commit runs in a callback of a rebalance,
except those that it makes: a plain commit that the client sends after the callback would have the new generation.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable
from concurrent.futures import Future, wait
from time import monotonic, sleep
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from timers.errors import QueueError, TimersError
from timers.queue import records
from timers.queue.committing import Committer
from timers.queue.ledger import Ledger
from timers.queue.loading import load
from timers.queue.settling import Partition
from timers.queue.state import State
from timers.queue.threads import call_in_thread
from timers.queue.transport import Transport
from timers.wire import topics

SETTLE_S = 0.1
"""Time between two commits: after a crash, what was acknowledged in this time is delivered again."""

_POLL_S = 0.02
_BATCH = 500
_MAX_READY = 4000
_MAX_READY_BYTES = 64 * 1024 * 1024
"""Messages and their bytes that may wait for receivers; above that, partitions are paused."""

_CONTROL_BYTES = 8 * 1024 * 1024
"""After this many received bytes, or each 100 ms, it is checked whether partitions must be paused."""

_COPY_S = 60.0
_RETRY_S = 0.5
_MAX_LOAD_PAUSE_S = 5.0
_DRAIN_S = 15.0
"""How long a process that closes tries to settle."""

_HAND_OVER_S = 3.0
_HAND_OVER_PAUSE_S = 0.1

_CONFIRMATIONS = 3
"""Commits in a session time-out, at least: they show that the process is a member of the group."""

_LONG_SKIP = 2000
"""More done messages than this are skipped by a seek; fewer are read and dropped."""

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
        self._not_loaded: set[Partition] = set()
        self._next_load = 0.0
        self._load_pause_s = _RETRY_S
        self._fed_bytes = 0
        self._next_settle = self._next_copy = self._next_control = 0.0
        self._settle_pause_s = SETTLE_S
        self._did_settle = True
        self._settling: Future[bool] | None = None
        self._settles_with_copy = False

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
                self._work()
                if self._state.is_abandoned():
                    self._leave()
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
            self._wait_for_commit()
            self._state.end()
            with contextlib.suppress(KafkaException, RuntimeError):
                self._transport.close()

    def _work(self) -> None:
        if self._settling is None:
            self._state.round_began_s = self._state.now_s()
        # Callbacks run in each call of poll; what it returns is of the partitions that they leave.
        self._feed(self._transport.poll(1, _POLL_S))
        self._feed(self._transport.poll(_BATCH, 0))
        if self._not_loaded and monotonic() >= self._next_load:
            self._load()
        if self._settling is not None and self._settling.done():
            self._end_settling()
        if monotonic() >= self._next_control or self._fed_bytes > _CONTROL_BYTES:
            self._control_reading()
        if self._settling is None and (monotonic() >= self._next_settle or self._wants_commit()):
            self._begin_settling()

    def _leave(self) -> None:
        """Let other processes have the messages until a receiver of this one asks again."""
        _log.warning(
            "the queue %s gives its partitions to other processes: no handler of this one asked for a message for %g s",
            *(self._terms.name, self._terms.lease_s),
        )
        is_settled = self._settle_last()
        self._transport.close()
        self._not_loaded.clear()
        self._paused.clear()
        if self._state.wait_for_receiver(is_settled=is_settled):
            self._transport.open(self._assigned, self._revoked)

    def _drain(self) -> None:
        give_up = monotonic() + _DRAIN_S
        while not self._settle_last(with_copy=True):
            if monotonic() > give_up:
                _log.warning(
                    "the queue %s is closed, and its last calls of ack or retry are not committed", self._terms.name
                )
                return
            self._feed(self._transport.poll(1, _RETRY_S))

    # ---- reading -------------------------------------------------------------------------------------------------

    def _feed(self, polled: Iterable[Any]) -> None:
        """Add records to the ledgers."""
        skipped: dict[Partition, int] = {}
        with self._state.lock:
            ledgers = self._state.settler.ledgers
            for record in polled:
                partition = record.topic(), record.partition()
                error, ledger = record.error(), ledgers.get(partition)
                if error is not None:
                    self._note(error, record, ledger)
                elif ledger is not None:
                    offset, lane, attempt = record.offset(), None, 1
                    if partition[0] == self._terms.returns_topic:
                        attempt = records.identity(record, returned=True).attempt
                    elif self._terms.ordered:
                        lane = record.key()
                    ledger.read(offset, record, lane, attempt)
                    self._fed_bytes += len(record)
                    if ledger.position > offset + _LONG_SKIP:
                        skipped[partition] = ledger.position
            self._state.lock.notify_all()
        for partition, position in skipped.items():
            self._transport.seek(partition, position)

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
            now_s = self._state.now_s()
            share = 0.0
            self._fed_bytes, self._next_control = 0, monotonic() + SETTLE_S
            for ledger in ledgers.values():
                self._state.totals.leases_lost += len(ledger.expire(now_s))
                ledger.measure()
                ready_bytes = sum(map(len, ledger.ready_items()))
                share += ledger.ready_count / _MAX_READY + ready_bytes / _MAX_READY_BYTES
            full = {each for each, ledger in ledgers.items() if ledger.position >= ledger.read_limit}
            wanted = full | (set(ledgers) if share > 1 else self._paused & ledgers.keys() if share > 0.5 else set())
            self._state.lock.notify_all()
        self._state.note_ends({each: self._transport.end(each) for each in ledgers}, wanted)
        self._transport.pause(wanted - self._paused)
        self._transport.resume((self._paused - wanted) & ledgers.keys())
        self._paused = wanted

    # ---- settling ------------------------------------------------------------------------------------------------

    def _wants_commit(self) -> bool:
        with self._state.lock:
            return self._did_settle and self._state.settler.wants_commit

    def _begin_settling(self, *, with_copy: bool = False) -> None:
        """Begin to commit all that is to be committed now."""
        if self._state.now_s() - self._state.confirmed_s > self._terms.session_timeout_s / _CONFIRMATIONS:
            self._state.settler.repeat()
        self._state.round_began_s = self._state.now_s()  # a commit that does not return counts as a long round
        self._settles_with_copy = with_copy or monotonic() >= self._next_copy
        if self._settles_with_copy:
            self._next_copy = monotonic() + _COPY_S
        name = f"queue-{self._terms.name}-commit"
        self._settling = call_in_thread(name, self._commit, self._settles_with_copy)

    def _commit(self, with_copy: bool) -> bool:
        waiting = self._state.waiting()
        done = self._committer.commit_all(with_copy=with_copy)
        if done:
            self._state.committed(waiting)
        return done

    def _wait_for_commit(self) -> None:
        if self._settling is not None:
            wait([self._settling])

    def _end_settling(self) -> bool:
        """Note how the commit under way ended; False if not all was committed."""
        settling, self._settling = self._settling, None
        assert settling is not None
        done = settling.result()
        # The first failure is repeated soon: a commit that meets a rebalance is refused once.
        self._settle_pause_s = SETTLE_S if done or self._did_settle else min(2 * self._settle_pause_s, _RETRY_S)
        self._next_settle = monotonic() + self._settle_pause_s
        self._did_settle = done
        if done:
            self._state.settled_s = self._state.now_s()
        if self._settles_with_copy:
            if not done:
                self._next_copy = 0.0
            elif not self._state.closing:
                self._check_logs()
        return done

    def _settle_last(self, *, with_copy: bool = False) -> bool:
        """Commit what was settled, and that nothing runs."""
        if self._settling is not None:
            self._end_settling()
        with self._state.lock:
            self._state.settler.stop(list(self._state.settler.ledgers))
        self._begin_settling(with_copy=with_copy)
        return self._end_settling()

    def _check_logs(self) -> None:
        """Say which messages the brokers deleted before they were done, and delete those that are done on the topic of
        returns, which has no retention.

        Raises:
            QueueError: a topic was deleted and created again.
        """
        added = self._transport.check_topics()
        if added and self._terms.ordered:
            _log.error(
                "topic %s has %d more partitions, so keys have moved: messages that are sent from now on may overtake "
                "earlier ones of their key until these are done",
                *(self._terms.topic, added),
            )
        with self._state.lock:
            commits, copied = self._state.settler.commits, self._state.settler.copied
            held = {each for each, ledger in self._state.settler.ledgers.items() if ledger.open_count}
        for partition, commit in commits.items():
            low = self._transport.first_offset(partition) if partition in held else 0
            if low > commit.offset:
                _log.error(
                    "%s: messages from %d on are not done, and retention deleted all below %d. They are lost if this "
                    "process ends before they are done",
                    *(topics.partition_name(*partition), commit.offset, low),
                )
        returned = {each: commit.offset for each, commit in copied.items() if each[0] == self._terms.returns_topic}
        self._transport.delete_below(returned)

    # ---- rebalances ----------------------------------------------------------------------------------------------

    def _assigned(self, partitions: list[Partition]) -> None:
        """Note new partitions. They are loaded outside the callback, where a failed request can be repeated."""
        self._wait_for_commit()
        self._not_loaded |= set(partitions)
        self._next_load, self._load_pause_s = 0.0, _RETRY_S
        with self._state.lock:
            self._state.settler.join(self._transport.member())
        if not self._state.joined:
            self._state.joined, self._state.settled_s = True, self._state.now_s()

    def _load(self) -> None:
        try:
            loaded = load(self._transport, self._not_loaded, accept_loss=self._terms.accept_loss)
        except KafkaException as error:
            _log.warning("the queue %s loads its partitions later: %s", self._terms.name, error.args[0])
            self._state.load_error = error.args[0].str()
            self._next_load = monotonic() + self._load_pause_s
            self._load_pause_s = min(2 * self._load_pause_s, _MAX_LOAD_PAUSE_S)
            return
        with self._state.lock:
            self._state.totals.crashes += sum(ledger.crash_count for _, ledger, _ in loaded)
            for partition, ledger, commit in loaded:
                self._state.settler.assign(partition, ledger, self._transport.log_tag(partition[0]), commit)
        self._transport.start({partition: ledger.position for partition, ledger, _ in loaded})
        self._not_loaded.clear()
        self._state.load_error = ""

    def _revoked(self, partitions: list[Partition], *, lost: bool) -> None:
        self._wait_for_commit()
        with self._state.lock:
            self._state.settler.stop(partitions)
        if not lost:
            self._hand_over(partitions)
        with self._state.lock:
            self._state.totals.leases_lost += self._state.settler.revoke(partitions)
            self._state.settler.join(self._transport.member())
        self._paused -= set(partitions)
        self._transport.stop(set(partitions) - self._not_loaded)
        self._not_loaded -= set(partitions)

    def _hand_over(self, partitions: list[Partition]) -> None:
        """Commit what was settled, and guards of what receivers hold.

        The partitions have no other owner until this callback returns, unless the process was silent for so long that
        the group went on without it. Then its generation is over, and the brokers refuse the commit.
        """
        with self._state.lock:
            self._state.settler.join(self._transport.member())
            guards = self._state.guard(partitions)
        self._committer.commit_all(only_plain=True)
        give_up = monotonic() + _HAND_OVER_S
        while not self._committer.commit_all() and monotonic() < give_up:
            sleep(_HAND_OVER_PAUSE_S)
        for guard in guards:
            guard.give_up()
