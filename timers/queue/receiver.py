"""The thread of a queue: it reads, serves rebalances and begins commits.

A commit runs in a thread of its own, because it may take long: brokers answer a member's requests in turn, so a commit
that follows the request to join waits until all members have joined. Only the queue's thread uses the consumer, and
sends the plain commits that this thread asks for. No commit runs in a callback of a rebalance,
except those that it makes: a plain commit that the client sends after the callback would have the new generation.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from time import monotonic, sleep
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from timers.errors import QueueError, TimersError
from timers.process.threads import call_in_thread
from timers.queue import records
from timers.queue.ledger import Ledger
from timers.queue.new_partitions import NewPartitions, epoch_end, passed
from timers.queue.settling import Job, Partition, Plan
from timers.queue.state import State
from timers.queue.transactions import Outcome
from timers.queue.transport import Transport
from timers.wire import topics
from timers.wire.dead_letter import REJECTED

MAX_READY = 4000
"""Messages that may wait for receivers. Above that, nothing is read until receivers have taken half of them."""

MAX_PAUSED = 2 * MAX_READY
MAX_OPEN_BYTES = 256 * 1024 * 1024
"""Messages that wait, and bytes of all open messages of a process, above which partitions are paused. The client then
drops what it has fetched of them, and the brokers send it again, so this is for receivers that are slow or have ended.
Each partition has an equal part of the bytes, so that one of large messages does not stop the others."""


_log = logging.getLogger("timers.queue")


def check_topics(transport: Transport, state: State) -> None:
    """Say that partitions were added to an ordered queue. Waits for no broker.

    Raises:
        QueueError: a topic with messages was deleted.
    """
    added = transport.check_topics()
    if added and state.terms.ordered:
        _log.error(
            "topic %s has %d more partitions, so keys have moved: messages that are sent from now on may overtake "
            "earlier ones of their key until these are done",
            *(state.terms.topic, added),
        )


def check_logs(transport: Transport, state: State) -> None:
    """Say which messages the brokers deleted before they were done, and delete those that are done on the topic of
    returns, which has no retention. Waits for no broker: it looks at the answers to the questions before."""
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


SETTLE_S = 0.1
"""Time between two commits: after a crash, what was acknowledged in this time is delivered again."""

_POLL_S = 0.02
_BATCH = 500
_CONTROL_BYTES = 8 * 1024 * 1024
"""After this many received bytes, or each 100 ms, it is checked whether partitions must be paused."""

_COPY_S = 60.0
_RETRY_S = 0.5
_SKIP_PAUSE_S = 5.0
_DRAIN_S = 15.0
"""How long a process that closes tries to settle."""

_HAND_OVER_S = 3.0
_HAND_OVER_PAUSE_S = 0.1

_CONFIRMATIONS = 3
"""Commits in a session time-out, at least: they show that the process is a member of the group."""

_LONG_SKIP = 2000
"""More done messages than this are skipped by a seek; fewer are read and dropped."""

_OPEN_AGAIN = "Open the queue again"


class Receiver:
    """Runs in one thread from :meth:`start` until the state is closed or the queue fails."""

    def __init__(self, state: State, transport: Transport) -> None:
        self._state = state
        self._terms = state.terms
        self._transport = transport
        self._committer = Committer(transport, state)
        self._thread: threading.Thread | None = None
        self._paused: set[Partition] = set()
        self._new = NewPartitions(state, transport, self._wait_for_commit)
        self._overtaken: set[Partition] = set()
        self._next_skip = 0.0
        self._fed_bytes = 0
        self._next_settle = self._next_copy = self._next_control = 0.0
        self._settle_pause_s = SETTLE_S
        self._did_settle = True
        self._settling: Future[bool] | None = None
        self._settles_with_copy = False

    def start(self) -> None:
        """Start the thread, unless it was started or the queue is closed."""
        with self._state.lock:
            if self._thread is None and not self._state.closing and self._state.failure is None:
                self._thread = threading.Thread(target=self._run, name=f"queue-{self._terms.name}", daemon=True)
                self._thread.start()

    @property
    def is_started(self) -> bool:
        return self._thread is not None

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread. If the brokers do not answer in time, it is given up."""
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                _log.warning(
                    "the queue %s is closed, and the brokers did not answer within %g s: its last calls of ack or "
                    "retry may not be committed",
                    *(self._terms.name, timeout_s),
                )

    def _run(self) -> None:
        try:
            self._open()
            while not self._state.closing:
                self._work()
                if self._state.is_abandoned():
                    self._leave()
            self._drain()
        except TimersError as error:
            self._fail(error)
        except KafkaException as error:
            failed = f"the queue {self._terms.name!r} cannot be read"
            self._fail(self._transport.user_error(error, failed))
        except Exception as error:
            _log.exception("the queue %s failed", self._terms.name)
            self._fail(QueueError(f"the queue {self._terms.name!r} failed: {error!r}"))
        finally:
            self._wait_for_commit(is_over=True)
            self._state.end()
            with contextlib.suppress(KafkaException, RuntimeError):
                self._transport.close()

    def _work(self) -> None:
        if self._settling is None:
            self._state.round_began_s = self._state.now_s()
        # Callbacks run in each call of poll; what it returns is of the partitions that they leave.
        if self._needs_messages():
            self._feed(self._transport.poll(_BATCH, 0) or self._transport.poll(1, _POLL_S))
        else:
            self._feed(self._transport.poll(1, 0))
        self._paused -= self._new.work()
        if self._overtaken and monotonic() >= self._next_skip:
            self._skip_deleted()
        if self._settling is not None and self._settling.done():
            self._end_settling()
        if monotonic() >= self._next_control or self._fed_bytes > _CONTROL_BYTES:
            self._fed_bytes, self._next_control = 0, monotonic() + SETTLE_S
            self._control()
            self._transport.check_configs()
            check_topics(self._transport, self._state)
            self._state.strangers = self._transport.check_members()
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
        self._new = NewPartitions(self._state, self._transport, self._wait_for_commit)
        self._paused = set()
        if self._state.wait_for_receiver(is_settled=is_settled):
            self._open()

    def _open(self) -> None:
        self._state.signing = self._transport.open(self._assigned, self._revoked, lambda: self._state.closing)

    def _fail(self, failure: TimersError) -> None:
        """Let all calls raise the error, and commit that nothing runs: no message is the cause of this end."""
        self._state.fail(failure)
        try:
            self._poll_until_settled()
            self._settling = None
            if self._state.settler.ledgers:
                self._settle_last()
        except (KafkaException, RuntimeError, TimersError) as error:
            _log.warning("the queue %s ended, and its last calls may not be committed: %s", self._terms.name, error)

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

    def _needs_messages(self) -> bool:
        """Whether receivers need more messages. If not, wait a moment, or until a commit can begin or has ended."""
        state = self._state

        def has_work() -> bool:
            may_settle = self._wants_commit() if self._settling is None else self._settling.done()
            return may_settle or state.ready_count <= MAX_READY // 2

        with state.lock:
            if state.ready_count > MAX_READY:
                state.wait_for_takes(has_work, _POLL_S)
            return state.ready_count <= MAX_READY

    def _control(self) -> None:
        """End leases, and pause partitions whose ledger has no room or whose messages are too large together, and all
        if too many messages wait for receivers."""
        with self._state.lock:
            ledgers = self._state.settler.ledgers
            now_s = self._state.now_s()
            for ledger in ledgers.values():
                self._state.totals.leases_lost += len(ledger.expire(now_s))
                ledger.measure()
            share = self._state.ready_count / MAX_PAUSED
            full = {
                each
                for each, ledger in ledgers.items()
                if ledger.position >= ledger.read_limit or ledger.open_bytes * len(ledgers) > MAX_OPEN_BYTES
            }
            wanted = full | (set(ledgers) if share > 1 else self._paused & ledgers.keys() if share > 0.5 else set())
            self._state.lock.notify_all()
        self._state.note_ends({each: self._transport.end(each) for each in ledgers}, wanted)
        self._transport.pause(wanted - self._paused)
        self._transport.resume((self._paused - wanted) & ledgers.keys())
        self._paused = wanted

    def _feed(self, polled: Iterable[Any]) -> None:
        """Add records to the ledgers."""
        skipped: dict[Partition, int] = {}
        newest: dict[Partition, Any] = {}
        epochs: dict[Partition, int | None] = {}
        with self._state.lock:
            ledgers = self._state.settler.ledgers
            for record in polled:
                partition = record.topic(), record.partition()
                error, ledger = record.error(), ledgers.get(partition)
                if partition in self._new:
                    self._new.note(partition, record)
                elif error is not None:
                    if partition in newest:
                        ledgers[partition].pass_record(passed(newest[partition]))
                    self._note(error, partition, record.offset(), ledger)
                elif ledger is not None:
                    epoch, before = record.leader_epoch(), newest.get(partition)
                    if epoch != epochs.get(partition, epoch) or before is None:
                        if not self._follows(partition, ledger, before, record):
                            continue
                        epochs[partition] = epoch
                        ledger.pass_record(passed(record))  # where its epoch began
                    offset, lane, attempt = record.offset(), None, 1
                    if partition[0] == self._terms.returns_topic:
                        attempt = records.identity(record, self._state.signing).attempt
                    elif self._terms.ordered:
                        lane = record.key()
                    size = records.size_of(record)
                    ledger.read(offset, record, lane, attempt, size)
                    newest[partition] = record
                    self._fed_bytes += size
                    if ledger.position > offset + _LONG_SKIP:
                        skipped[partition] = ledger.position
                    if ledger.position > ledger.read_limit:
                        self._next_control = 0.0
            for partition, record in newest.items():
                ledgers[partition].pass_record(passed(record))
            self._state.lock.notify_all()
        for partition, position in skipped.items():
            self._transport.seek(partition, position)

    def _follows(self, partition: Partition, ledger: Ledger, before: Any, record: Any) -> bool:
        """Whether a record is of the leader epoch of the one before, or the log is known to be that of before. Else the
        log is verified first, and the record is read again."""
        if before is not None:
            ledger.pass_record(passed(before))
        return ledger.follows(passed(record)) or not self._new.verify(partition, ledger, record.offset() + 1)

    def _skip_deleted(self) -> None:
        """Go on with the first messages of logs whose retention has overtaken the reading, as far as their leaders
        answer.

        Raises:
            QueueError: a log ends before the position, so that offsets of received messages come again.
        """
        self._next_skip = monotonic() + _SKIP_PAUSE_S
        for partition, (low, high) in self._transport.bounds(self._overtaken).items():
            self._overtaken.discard(partition)
            ledger = self._state.settler.ledgers.get(partition)
            if ledger is None:
                continue
            name, position = topics.partition_name(*partition), ledger.position
            if position > high:
                raise QueueError(f"{name} ends at {high}, and was read to {position}: the log was cut. {_OPEN_AGAIN}")
            with self._state.lock:
                ledger.pass_holes(low)
            if low > position:
                span = position, low - 1
                _log.error("%s: retention deleted messages from %d to %d before they were received", name, *span)
            self._transport.stop([partition])
            self._transport.start({partition: ledger.place})
            self._paused.discard(partition)

    def _note(self, error: KafkaError, partition: Partition, offset: int, ledger: Ledger | None) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            if ledger is not None:
                ledger.reach_end(offset)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            has_lost = epoch_end(error.str()) is not None
            if ledger is not None and has_lost and self._new.verify(partition, ledger, ledger.position):
                return
            if not self._terms.accept_loss:
                raise QueueError(
                    f"{topics.partition_name(*partition)} cannot be read at its position "
                    f"({error.str()}): retention deleted messages, or the topic was recreated. {_OPEN_AGAIN}"
                )
            self._overtaken.add(partition)
        elif error.fatal():
            raise KafkaException(error)
        elif error.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL:
            self._transport.strangers.note_kept_out()
        else:
            _log.warning("the queue %s: %s", self._terms.name, error.str())

    # ---- settling ------------------------------------------------------------------------------------------------

    def _wants_commit(self) -> bool:
        with self._state.lock:
            return self._did_settle and self._state.settler.wants_commit

    def _begin_settling(self, *, with_copy: bool = False) -> None:
        """Begin to commit all that is to be committed now."""
        if self._state.now_s() - self._state.confirmed_s > self._terms.session_timeout_s / _CONFIRMATIONS:
            self._state.settler.repeat()
        self._state.round_began_s = self._state.now_s()  # a commit that does not return counts as a long round
        # Delays may begin or go on, and the brokers' time is not known, which a transaction tells.
        needs_time = self._terms.ordered and not self._state.brokers_clock.is_known and self._state.settler.ledgers
        is_due = monotonic() >= self._next_copy or self._transport.ledger_is_lost
        self._settles_with_copy = with_copy or bool(needs_time) or is_due
        if self._settles_with_copy:
            self._next_copy = monotonic() + _COPY_S
        name = f"queue-{self._terms.name}-commit"
        self._settling = call_in_thread(name, self._commit, self._settles_with_copy)
        self._settling.add_done_callback(lambda _: self._state.wake())

    def _commit(self, with_copy: bool) -> bool:
        waiting = self._state.waiting()
        done = self._committer.commit_all(with_copy=with_copy)
        if done:
            self._state.committed(waiting)
        return done

    def _poll_until_settled(self) -> None:
        while self._settling is not None and not self._settling.done():
            self._feed(self._transport.poll(1, _POLL_S))

    def _wait_for_commit(self, *, is_over: bool = False) -> None:
        """Wait for the commit under way, in a callback of a rebalance, or at the end: then without more commits."""
        if self._settling is not None:
            self._transport.wait_for(self._settling, is_over=is_over)

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
            elif not self._state.closing and self._state.failure is None:
                check_logs(self._transport, self._state)
        return done

    def _settle_last(self, *, with_copy: bool = False) -> bool:
        """Commit what was settled, and that nothing runs."""
        self._poll_until_settled()
        if self._settling is not None:
            self._end_settling()
        with self._state.lock:
            self._state.settler.stop(list(self._state.settler.ledgers))
        self._begin_settling(with_copy=with_copy)
        self._poll_until_settled()
        return self._end_settling()

    # ---- rebalances ----------------------------------------------------------------------------------------------

    def _assigned(self, partitions: list[Partition]) -> None:
        """Note new partitions. They are loaded outside the callback, where a failed request can be repeated."""
        self._wait_for_commit()
        self._new.add(partitions)
        with self._state.lock:
            self._state.settler.member = self._transport.member()
        if not self._state.joined:
            self._state.joined, self._state.settled_s = True, self._state.now_s()

    def _revoked(self, partitions: list[Partition], *, lost: bool) -> None:
        self._wait_for_commit()
        with self._state.lock:
            self._state.settler.stop(partitions)
        if not lost:
            self._hand_over(partitions)
        with self._state.lock:
            self._state.totals.leases_lost += self._state.settler.revoke(partitions)
            self._state.settler.member = self._transport.member()
        self._paused -= set(partitions)
        self._transport.stop(self._new.forget(partitions))

    def _hand_over(self, partitions: list[Partition]) -> None:
        """Commit what was settled, and guards of what receivers hold.

        The partitions have no other owner until this callback returns, unless the process was silent for so long that
        the group went on without it. Then its generation is over, and the brokers refuse the commit.
        """
        with self._state.lock:
            self._state.settler.member = self._transport.member()
            guards = self._state.guard(partitions)
        try:
            self._committer.commit_all(only_plain=True)
            give_up = monotonic() + _HAND_OVER_S
            while not self._committer.commit_all() and monotonic() < give_up:
                sleep(_HAND_OVER_PAUSE_S)
        finally:  # also if the transport was closed meanwhile: handlers wait for the answer
            for guard in guards:
                guard.decide(is_set=False)


_PAUSE_S = 0.5
_MAX_PAUSE_S = 10.0
_REFUSED = "its retry, its dead letter or an output is refused by the brokers"
_TOO_LARGE = KafkaError.MSG_SIZE_TOO_LARGE
_DENIED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
_HELD_S, _MAX_HELD_S = 30.0, 600.0
"""A dead letter that the brokers refuse waits so long until it is tried again."""


class Committer:
    """Commits what a settler plans, and repeats it until it is committed. One thread at a time uses it.

    After a refused transaction it makes plain commits only, for a growing pause, so that a request topic without a
    leader does not delay acknowledgements. The lock of the state is not held while the brokers are asked.
    """

    def __init__(self, transport: Transport, state: State) -> None:
        self._transport = transport
        self._state = state
        self._settler = state.settler
        self._lock = state.lock
        self._next_transaction = 0.0
        self._pause_s = _PAUSE_S
        self._held: dict[Job, tuple[float, float]] = {}
        """Job whose dead letter is refused -> until when it waits, by the monotonic clock, and for how many seconds."""

    def commit_all(self, *, with_copy: bool = False, only_plain: bool = False) -> bool:
        """Commit all that is to be committed now; False if something of it was not.

        Args:
            with_copy: commit in a transaction, which also writes copies of the commits.
            only_plain: commit acknowledgements only.
        """
        if self._transport.ledger_is_lost and not only_plain:
            self._restore_ledger()
        while True:
            if self._settler.unknown is not None and not self._resolve():
                return False
            may_transact = not only_plain and monotonic() >= self._next_transaction and self._ask_leaders(with_copy)
            with self._lock:
                planned_s = self._state.now_s()
                waiting = self._postpone() if may_transact else set()
                jobs = len(self._settler.jobs)
                plan = self._settler.plan(
                    in_transaction=with_copy and may_transact, with_jobs=may_transact, waiting=waiting
                )
                is_full = self._settler.is_full
            if plan is None:
                return not jobs and not is_full
            outcome = self._execute(plan)
            if outcome is not Outcome.COMMITTED:
                return False
            self._state.confirm(planned_s)
            if len(plan.jobs) == jobs - len(waiting) or not may_transact:
                return len(plan.jobs) == jobs and not is_full

    def _restore_ledger(self) -> None:
        try:
            self._transport.restore_ledger(self._state.signing)
        except (KafkaException, TimersError) as error:
            _log.warning("topic %s is not made anew yet: %s", self._transport.ledger_topic, error)
            return
        with self._lock:
            self._settler.forget_copies()
        self._next_transaction, self._pause_s = 0.0, _PAUSE_S

    def _ask_leaders(self, with_copy: bool) -> bool:
        """Ask the leaders that a transaction needs, if there will be one; False if it cannot begin."""
        with self._lock:
            jobs = list(self._settler.jobs)
            copies = with_copy and bool(self._settler.ledgers)
        try:
            if jobs or copies:
                places = self._transport.transactions.places
                places.ask_leaders(jobs)
                with self._lock:
                    self._replace_refused(dict.fromkeys(places.denied(jobs), _DENIED))
            return True
        except KafkaException as error:
            _log.warning("a transaction of %s waits: %s", self._transport.group, error.args[0])
            self._pause()
            return False

    def _postpone(self) -> set[Job]:
        """Return the jobs that wait for a leader. Guards do not wait: their partition has a new owner soon."""
        places = self._transport.transactions.places
        waiting = set() if places.are_complete else {job for job in self._settler.jobs if not places.has_place(job)}
        for job in [job for job in waiting if job.records[0].kind is records.Kind.GUARD]:
            self._settler.jobs.remove(job)
            waiting.discard(job)
        self._held = {job: self._held[job] for job in self._settler.jobs if job in self._held}
        return waiting | {job for job, (until, _) in self._held.items() if monotonic() < until}

    def _pause(self) -> None:
        """Begin no transaction for a growing time."""
        self._next_transaction = monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)

    def _execute(self, plan: Plan) -> Outcome:
        began_s = self._state.now_s()
        outcome = self._transport.execute(plan)
        with self._lock:
            if plan.in_transaction and (append_ms := self._transport.transactions.append_ms):
                self._state.brokers_clock.note(append_ms / 1000, began_s, self._state.now_s())
            if outcome is Outcome.COMMITTED:
                self._settler.succeed(plan)
            elif outcome is Outcome.REFUSED:
                self._settler.fail(plan)
            else:
                self._settler.lose_answer(plan)
            self._replace_refused(self._transport.transactions.take_refused())
        if outcome is not Outcome.COMMITTED and plan.in_transaction:
            self._pause()
        elif plan.in_transaction:
            self._pause_s, self._next_transaction = _PAUSE_S, 0.0
        return outcome

    def _replace_refused(self, refused: Mapping[Job, KafkaError]) -> None:
        """Give up records that the brokers refuse: a dead letter of their message takes their place, without its value
        if it is too large. If it is refused for another reason, its message stays open, and no other one waits for it.
        The caller holds the lock."""
        for job, error in refused.items():
            record, reason = job.records[0], f"{_REFUSED}: {error.str()}"
            if record.kind is records.Kind.GUARD:
                self._settler.jobs.remove(job)
            elif record.kind is records.Kind.LETTER and (record.value is None or error.code() != _TOO_LARGE):
                self._hold(job, record, error)
            elif record.kind is records.Kind.LETTER or job.letter is None:
                job.records = [records.truncated_letter(record, reason)]
            else:
                self._state.totals.dead[REJECTED] += 1
                job.records = [job.letter(REJECTED, reason)]

    def _hold(self, job: Job, record: records.Record, error: KafkaError) -> None:
        _, waited_s = self._held.get(job, (0.0, _HELD_S / 2))
        held_s = min(2 * waited_s, _MAX_HELD_S)
        self._held[job] = monotonic() + held_s, held_s
        _log.error(
            "the brokers refuse the dead letter of %s on topic %r (%s): the message stays open, and the dead letter is "
            "tried again in %g s. Look at the configuration of the topic: message.timestamp.type=LogAppendTime and "
            "cleanup.policy=delete are right",
            *(record.source, self._transport.transactions.places.topic_of(record), error.str(), held_s),
        )

    def _resolve(self) -> bool:
        plan = self._settler.unknown
        assert plan is not None
        try:
            self._transport.transactions.connect()
            committed = self._transport.committed(plan.commits)
        except KafkaException as error:
            _log.warning("%s waits for the outcome of a transaction: %s", self._transport.group, error.args[0])
            return False
        with self._lock:
            self._settler.resolve(committed)
        return True
