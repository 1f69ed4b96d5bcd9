"""A process as a member of the group of a queue: what it does with each event. Pure: no I/O, no clock and no lock.

Events come in: partitions are given or taken away, records are read, time passes, a receiver takes a message or settles
it. What is to be done goes out: a call of a receiver is answered at once; all other events are generators that yield
commands, as :mod:`timers.queue.port` says. Its driver, the threads of a process or a simulation, carries these out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException

from timers.errors import InvalidTimerError, QueueError, TimersError
from timers.kafka.error_codes import UNREADABLE
from timers.queue import records
from timers.queue.delivery import ACKED, RETRIED, D, Delivery, Make, Verdict
from timers.queue.entry import BIND, PUT_BACK, Settlement
from timers.queue.ledger import Ledger, passed, wants_commit
from timers.queue.metadata import Partition, way_on
from timers.queue.port import Counters, Port, PortCall, Steps, Terms, do
from timers.queue.records import Signing
from timers.queue.sending import Guard, Guards
from timers.queue.settling import NewPartitions, Settler
from timers.queue.starts import MAX_CRASHES
from timers.queue.verification import epoch_end
from timers.wire import topics
from timers.wire.dead_letter import ATTEMPTS_EXHAUSTED, CRASHED, UNSIGNED
from timers.wire.headers import Header

MAX_READY = 4000
"""Messages that may wait for receivers. Above that, nothing is read until receivers have taken half of them."""

MAX_PAUSED = 2 * MAX_READY
MAX_OPEN_BYTES = 256 * 1024 * 1024
"""Messages that wait, and bytes of all open messages of a process, above which partitions are paused. The client then
drops what it has fetched of them, and the brokers send it again, so this is for receivers that are slow or have ended.
Each partition has an equal part of the bytes, so that one of large messages does not stop the others."""

COMMIT_INTERVAL_S = 0.1
"""Time between two commits: after a crash, what was acknowledged in this time is delivered again."""

_CONTROL_BYTES = 8 * 1024 * 1024
"""After this many received bytes, or each 100 ms, it is checked whether partitions must be paused."""

_COPY_S = 60.0
_RETRY_S = 0.5
_SKIP_PAUSE_S = 5.0

_CONFIRMATIONS = 3
"""Commits in a session time-out, at least: they show that the process is a member of the group."""

_LONG_SKIP = 2000
"""More done messages than this are skipped by a seek; fewer are read and dropped."""

_STALLED_S = 10.0
"""Longer than a transaction of a producer should be open, or a partition without a leader."""

_UNSETTLED_S = 10.0
"""Longer than a transaction whose process was killed holds back its partitions."""

_OPEN_AGAIN = "Open the queue again"


class _Unreadable(NamedTuple):
    """A search for the end of a record batch that librdkafka cannot read. It does not say where the batch ends, and
    reads it again at each of its offsets. So each step is twice as long as the one before; then it is halved.

    Attributes:
        position: where the partition stands.
        failed: the last offset that is known to be in the batch.
        asked: the offset at which it is read now.
        batch: the offset that the error of the batch has. Another one is of a later batch.
        good: the lowest one that is known to be behind the batch; 0: none is.
    """

    position: int
    failed: int
    asked: int
    batch: int
    good: int = 0


class Member:
    """A member of a queue's group: its ledgers, its deliveries, its commits, and the partitions that it takes over.

    Args:
        now_s: time of the first event.

    Attributes:
        settler: its ledgers and commits, and the time of the present event.
        signing: the keys of the queue. They are set before it delivers.
        waiting: callers that wait until all earlier calls on messages are committed.
        joined: whether the group has given this process its partitions, which may be none.
        lost_s: when the group went on without this process, until it has joined again; None: it has not.
        new: its partitions that are not delivered yet.
        is_ending: no copies are looked after any more.
        settled_s: when the last round ended after which nothing was left to commit.
    """

    def __init__(self, terms: Terms, guards: Guards, now_s: float) -> None:
        self.terms = terms
        self.settler = Settler(topics.queue_group(terms.name), now_s)
        self.signing: Signing
        self.waiting: list[Any] = []
        self.joined = self.is_ending = False
        self.lost_s: float | None = None
        self.settled_s = now_s
        self._guards = guards
        self._turn = 0
        self._fed_bytes = 0
        self._next_settle = self._next_copy = self._next_control = self._next_skip = now_s
        self._settle_pause_s = COMMIT_INTERVAL_S
        self._did_settle = True
        self._ends: Mapping[Partition, int] = {}
        self._stalls: dict[Partition, tuple[int, float]] = {}
        self.leave()

    def leave(self) -> None:
        """Note that the process is in no group: it has no partitions."""
        self.settler.revoke(list(self.settler.ledgers))
        self.new = NewPartitions(self.settler, self.terms)
        self._paused: set[Partition] = set()
        self._overtaken: set[Partition] = set()
        self._unreadable: dict[Partition, _Unreadable] = {}

    # ---- receivers -----------------------------------------------------------------------------------------------

    @property
    def is_unconfirmed(self) -> bool:
        """Whether other processes may own the partitions, because the brokers have accepted no commit for longer than
        the session time-out.

        A process that was stopped, by SIGSTOP for example, works on before its thread hears of the rebalance.
        """
        return self.settler.now_s - self.settler.confirmed_s > self.terms.session_timeout_s

    @property
    def ready_count(self) -> int:
        """How many messages wait for receivers."""
        return sum(ledger.starts.ready_count for ledger in self.settler.ledgers.values())

    @property
    def needs_messages(self) -> bool:
        """Whether more messages may be read for receivers."""
        return self.ready_count <= MAX_READY

    @property
    def has_few_messages(self) -> bool:
        """Whether it is time to read more, if too many had been read."""
        return self.ready_count <= MAX_READY // 2

    def take(self, make: Make[D], limit: int, *more: Any, leases: int = 1) -> list[D]:
        """Deliver up to ``limit`` messages of all partitions: the same number from each, or fewer if a partition has
        fewer.

        Args:
            more: arguments of ``make`` after those of a delivery.
            leases: how many times the time of a lease a receiver may have them.
        """
        taken: list[D] = []
        if self.is_unconfirmed:
            return taken
        now_s, most = self.settler.now_s, self.terms.backoff.retries + 1
        until_s = now_s + leases * self.terms.lease_s
        partitions = list(self.settler.ledgers.items())
        self._turn = (self._turn + 1) % max(1, len(partitions))
        waiting = [*partitions[self._turn :], *partitions[: self._turn]]
        while len(taken) < limit:
            waiting = [each for each in waiting if each[1].starts.may_start]
            if not waiting:
                break
            share = max(1, (limit - len(taken)) // len(waiting))
            for partition, ledger in waiting[: limit - len(taken)]:
                for _ in range(share):
                    entry = ledger.take(until_s, now_s + self.terms.lease_s)
                    if entry is None:
                        break
                    delivery = make(partition, ledger, entry, now_s, *more)
                    is_usual = entry.returned is None and entry.attempt <= most and not entry.crashes
                    if is_usual or not self._is_given_up(delivery):
                        taken.append(delivery)
        self.settler.totals.received += len(taken)
        return taken

    def _is_given_up(self, delivery: Delivery) -> bool:
        """Whether a message became a dead letter instead of a delivery."""
        if delivery.doubt:
            # It counts as a message of its own: its headers, which name another message, are not believed.
            code, reason = UNSIGNED, f"the queue {self.terms.name!r} did not send it back: {delivery.doubt}"
        elif delivery.crashes >= MAX_CRASHES or delivery.attempt > self.terms.backoff.retries + 1:
            code, reason = self.last_words(delivery, "the lease of the last attempt ended")
        else:
            return False
        self.settle(delivery, BIND, [self.letter(delivery, code, reason)])
        self.count(delivery, code)
        return True

    def last_words(self, delivery: Delivery, error: str) -> tuple[str, str]:
        """Return code and reason of the dead letter of a message that is not tried again; empty if it is."""
        if delivery.crashes >= MAX_CRASHES:
            times = f"{delivery.crashes} times while it ran alone"
            return CRASHED, f"its process in the queue {self.terms.name!r} ended {times}"
        if delivery.attempt > self.terms.backoff.retries:
            reason = f"the queue {self.terms.name!r} gave it up in attempt {delivery.attempt}"
            return ATTEMPTS_EXHAUSTED, f"{reason}: {error}" if error else reason
        return "", ""

    def settle(
        self, delivery: Delivery, how: Settlement, written: Sequence[records.Record] = (), after_s: float = 0.0
    ) -> Verdict:
        """Settle a delivery. With records to be written it is bound to their transaction.

        Args:
            after_s: seconds until its lease ends, or until its next delivery.
        """
        if self.is_unconfirmed and how is not PUT_BACK and self._may_wait(delivery, how):
            return Verdict.UNSURE
        if not delivery.end(BIND if written else how, self.settler.now_s + after_s):
            return Verdict.OVER if delivery.guard is None else Verdict.GUARDED
        if written:
            self.settler.jobs.append(delivery.job(written, letter=partial(self.letter, delivery)))
        return Verdict.COUNTS

    def put_back(self, delivery: Delivery) -> None:
        """Let a message be delivered again at once. If its lease is over, it has used an attempt, and waits."""
        self.settler.totals.leases_lost += delivery.expire(self.settler.now_s, self.terms.pause_s)
        self.settle(delivery, PUT_BACK)

    def count(self, delivery: Delivery, end: str) -> None:
        """Count a call that settled a delivery: ``acked``, ``retried``, or the code of its dead letter."""
        totals = self.settler.totals
        totals.handling_s += delivery.held_s(self.settler.now_s)
        if end == ACKED:
            totals.acked += 1
        elif end == RETRIED:
            totals.retried += 1
        else:
            totals.dead[end] += 1

    def note_crash(self, delivery: Delivery) -> int:
        """Count that the process of a message's handler ended; return how often that happened."""
        self.settler.totals.crashes += 1
        return delivery.note_crash()

    def _may_wait(self, delivery: Delivery, how: Settlement) -> bool:
        """Let a lease last while a call waits for a commit. Before that the ledger is not changed: what it says is done
        would be committed later, although the caller is told that its call does not count. Late calls wait, too."""
        return delivery.lasts(how, self.settler.now_s + self._guards.timeout_s)

    def is_sure(self, delivery: Delivery, since_s: float) -> bool | None:
        """Whether a delivery counts that was unsure at a time: True if a commit was accepted that was planned later;
        False if its partition is lost; None if that is not known yet."""
        if self.settler.confirmed_s >= since_s and not self.is_unconfirmed:
            return True
        return None if self.settler.owns(*delivery.place) else False

    def later(self, delivery: Delivery, after_s: float, error: str, context: Sequence[Header] = ()) -> records.Record:
        """Return the timer that delivers a message again. ``context``: headers of the trace context of its handler.

        Raises:
            InvalidTimerError: the message is too large for a request.
        """
        return records.later(delivery.content, self.signing, after_s, error, self.terms.max_request_bytes, context)

    def letter(self, delivery: Delivery, code: str, reason: str, context: Sequence[Header] = ()) -> records.Record:
        """Return the dead letter of a message. ``context``: as in :meth:`later`."""
        return records.letter(delivery.content, self.signing, code, reason, self.terms.max_request_bytes, context)

    def protect(self, partitions: Iterable[Partition]) -> list[Guard]:
        """Set guards for the messages that receivers hold, and return them. They need a commit.

        A message with outputs has none, an ordered one neither, nor one that is too large for a request.
        """
        guards: list[Guard] = []
        for partition in partitions if self._guards.are_possible and not self.terms.ordered else ():
            ledger = self.settler.ledgers.get(partition)
            for delivery in ledger.holders() if ledger is not None else ():
                if not delivery.has_outputs and (guard := self._protect(delivery)) is not None:
                    guards.append(guard)
        return guards

    def _protect(self, delivery: Delivery) -> Guard | None:
        guard, left_s = self._guards.new(delivery.source), delivery.left_s(self.settler.now_s)
        try:
            timer = self.later(delivery, left_s, "the partition moved, and then the lease ended")
        except InvalidTimerError:
            return None
        timer = timer._replace(kind=records.Kind.GUARD, key=guard.id.encode())
        delivery.end(BIND)
        self.settler.jobs.append(delivery.job([timer], guard.decide))
        delivery.guard = guard
        return guard

    # ---- rebalances ----------------------------------------------------------------------------------------------

    def assigned(self, partitions: list[Partition]) -> Steps[None]:
        """Take new partitions, in a callback of a rebalance. They are loaded outside it, where a failed request can be
        repeated."""
        self.new.add(partitions)
        self.settler.member = yield do(Port.member)
        self.lost_s = None
        if not self.joined:
            self.joined, self.settled_s = True, self.settler.now_s

    def revoked(self, partitions: list[Partition], *, lost: bool) -> Steps[None]:
        """Give up partitions, in a callback of a rebalance. No commit is under way.

        Args:
            lost: whether another member may own them already.
        """
        self.settler.stop(partitions)
        if lost:
            self.lost_s = self.settler.now_s
        else:
            yield from self._hand_over(partitions)
        self.settler.totals.leases_lost += self.settler.revoke(partitions)
        self.settler.member = yield do(Port.member)
        self._paused -= set(partitions)
        self._unreadable = {each: found for each, found in self._unreadable.items() if each not in partitions}
        yield do(Port.stop, self.new.forget(partitions))

    def _hand_over(self, partitions: list[Partition]) -> Steps[None]:
        """Commit what was settled, and guards of what receivers hold.

        The partitions have no other owner until this callback returns, unless the process was silent for so long that
        the group went on without it. Then its generation is over, and the brokers refuse the commit.
        """
        self.settler.member = yield do(Port.member)
        guards = self.protect(partitions)
        try:
            yield from self.settler.commit(only_plain=True)
            yield from self.settler.commit_soon()
        finally:  # also if the consumer was closed meanwhile: handlers wait for the answer
            for guard in guards:
                guard.decide(is_set=False)

    # ---- reading -------------------------------------------------------------------------------------------------

    def read(self, polled: Iterable[Any]) -> Steps[None]:
        """Add records to the ledgers, and note events of partitions."""
        skipped: dict[Partition, int] = {}
        newest: dict[Partition, Any] = {}
        epochs: dict[Partition, int | None] = {}
        sought: set[Partition] = set()
        ledgers = self.settler.ledgers
        for record in polled:
            partition = record.topic(), record.partition()
            error, ledger = record.error(), ledgers.get(partition)
            if partition in sought:
                continue
            if self._unreadable and partition in self._unreadable and ledger is not None:
                is_read = error is None or error.code() == KafkaError._PARTITION_EOF
                if is_read and (yield from self._narrows(partition, ledger)):
                    sought.add(partition)
                    continue
            if partition in self.new:
                self.new.note(partition, record)
            elif error is not None:
                if partition in newest:
                    ledgers[partition].pass_record(passed(newest[partition]))
                found = self._unreadable.get(partition)
                yield from self._note(error, partition, record.offset(), ledger)
                # The next events belong to the former reading position.
                if self._unreadable.get(partition) is not found:
                    sought.add(partition)
            elif ledger is not None:
                epoch, before = record.leader_epoch(), newest.get(partition)
                if epoch != epochs.get(partition, epoch) or before is None:
                    if not self._follows(partition, ledger, before, record):
                        continue
                    epochs[partition] = epoch
                    ledger.pass_record(passed(record))  # where its epoch began
                offset, lane, returned = record.offset(), None, None
                if partition[0] == self.terms.returns_topic:
                    returned = records.identity(record, self.signing, ledger.cuts)
                elif self.terms.ordered:
                    lane = record.key()
                size = records.size_of(record)
                kind, time_ms = record.timestamp()
                is_brokers = kind == TIMESTAMP_LOG_APPEND_TIME
                came_ms = ledger.came_ms(time_ms, self.settler.now_s, is_brokers=is_brokers)
                ledger.read(offset, record, lane, 1 if returned is None else returned.attempt, size, returned, came_ms)
                newest[partition] = record
                self._fed_bytes += size
                if ledger.position > offset + _LONG_SKIP:
                    skipped[partition] = ledger.position
                if ledger.position > ledger.read_limit:
                    self._next_control = self.settler.now_s
        for partition, record in newest.items():
            ledgers[partition].pass_record(passed(record))
        for partition, position in skipped.items():
            yield do(Port.seek, partition, position)

    def _follows(self, partition: Partition, ledger: Ledger, before: Any, record: Any) -> bool:
        """Whether a record is of the leader epoch of the one before, or the log is known to be that of before. Else the
        log is verified first, and the record is read again."""
        if before is not None:
            ledger.pass_record(passed(before))
        return ledger.follows(passed(record)) or not self.new.begin_verification(partition, ledger, record.offset() + 1)

    def _note(self, error: KafkaError, partition: Partition, offset: int, ledger: Ledger | None) -> Steps[None]:
        if error.code() == KafkaError._PARTITION_EOF:
            if ledger is not None:
                ledger.reach_end(offset)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            has_lost = epoch_end(error.str()) is not None
            if ledger is not None and has_lost and self.new.begin_verification(partition, ledger, ledger.position):
                return
            name = topics.partition_name(*partition)
            if self.terms.accepts_loss(name):
                self._overtaken.add(partition)
                return
            deleted = "retention deleted messages, or the topic was recreated"
            reason = f"{name} cannot be read at its position ({error.str()}): {deleted}. {way_on(name)}"
            yield from self._refuse(partition, reason)
        elif error.code() in UNREADABLE and ledger is not None:
            yield from self._pass_unreadable(error, partition, offset, ledger)
        elif error.fatal():
            raise KafkaException(error)
        elif error.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL:
            yield do(Port.note_kept_out)
        else:
            yield do(Port.warn, "the queue %s: %s", self.terms.name, error.str())

    def _pass_unreadable(self, error: KafkaError, partition: Partition, offset: int, ledger: Ledger) -> Steps[None]:
        """Look for the next message behind a record batch that librdkafka cannot read, if the loss is accepted."""
        name, position = topics.partition_name(*partition), ledger.position
        what = f"{name}: the record batch at offset {offset} cannot be read ({error.str()})"
        if not self.terms.accepts_loss(name):
            yield from self._refuse(partition, f"{what}. {way_on(name)}")
            return
        found = self._unreadable.get(partition)
        if found is None or found.position != position:
            yield do(Port.complain, "%s, and is passed over", what)
            found = _Unreadable(position, position, position, offset)
        failed = found.asked
        if offset > found.batch:
            behind = min(offset, found.asked)
            if behind - found.failed > 1:  # messages may lie between the two batches
                failed, found = found.failed, found._replace(good=behind)
            else:
                failed, found = max(offset, found.asked), found._replace(batch=offset, good=0)
        if found.good:
            asked = max(failed + 1, (failed + found.good) // 2)
        else:
            ends: Mapping[Partition, int] = yield do(Port.ends, [partition])
            asked, end = 2 * failed - position + 1, ends.get(partition, 0)
            asked = min(asked, end) if end > position else failed + 1
        yield from self._look_at(partition, ledger, found._replace(failed=failed, asked=asked))

    def _look_at(self, partition: Partition, ledger: Ledger, found: _Unreadable) -> Steps[None]:
        """Read from the next place on. A seek may fail, and then what was read meanwhile would be missing."""
        self._unreadable[partition] = found
        yield do(Port.stop, [partition])
        yield do(Port.start, {partition: (found.asked, ledger.place[1])})
        self._paused.discard(partition)

    def _narrows(self, partition: Partition, ledger: Ledger) -> Steps[bool]:
        """Note that the log can be read from the last place on. Returns whether an earlier one is looked at."""
        found = self._unreadable.pop(partition)
        if found.position != ledger.position:
            return False
        if found.asked - found.failed > 1:
            asked = (found.failed + found.asked) // 2
            yield from self._look_at(partition, ledger, found._replace(good=found.asked, asked=asked))
            return True
        name = topics.partition_name(*partition)
        text = "%s: the messages from %d to %d cannot be read, and are passed over"
        yield do(Port.complain, text, name, found.position, found.asked - 1)
        return False

    def _refuse(self, partition: Partition, reason: str) -> Steps[None]:
        if partition not in self.new.refused:
            yield do(Port.stop, [partition])
            self._paused.discard(partition)
            yield from self.new.refuse(partition, reason)

    # ---- time ----------------------------------------------------------------------------------------------------

    def work(self) -> Steps[None]:
        """Do what is due: take new partitions, skip what is deleted."""
        self._paused -= yield from self.new.work()
        if self._overtaken and self.settler.now_s >= self._next_skip:
            yield from self._skip_deleted()

    def _skip_deleted(self) -> Steps[None]:
        """Go on with the first messages of logs whose retention has overtaken the reading, as far as their leaders
        answer.
        """
        self._next_skip = self.settler.now_s + _SKIP_PAUSE_S
        bounds: Mapping[Partition, tuple[int, int]] = yield do(Port.bounds, sorted(self._overtaken))
        for partition, (low, high) in bounds.items():
            self._overtaken.discard(partition)
            ledger = self.settler.ledgers.get(partition)
            if ledger is None or partition in self.new:
                continue  # when its log is verified, it is read from another position on
            name, position = topics.partition_name(*partition), ledger.position
            if position > high:
                # Offsets of received messages come again, and no leader epoch shows from where on.
                raise QueueError(f"{name} ends at {high}, and was read to {position}: the log was cut. {_OPEN_AGAIN}")
            ledger.pass_holes(low)
            if low > position:
                text = "%s: retention deleted messages from %d to %d before they were received"
                yield do(Port.complain, text, name, position, low - 1)
            yield do(Port.stop, [partition])
            yield do(Port.start, {partition: ledger.place})
            self._paused.discard(partition)

    @property
    def wants_control(self) -> bool:
        """Whether it is time for :meth:`control`."""
        return self.settler.now_s >= self._next_control or self._fed_bytes > _CONTROL_BYTES

    def control(self) -> Steps[None]:
        """End leases, and pause partitions whose ledger has no room or whose messages are too large together, and all
        if too many messages wait for receivers."""
        now_s, ledgers = self.settler.now_s, self.settler.ledgers
        self._fed_bytes, self._next_control = 0, now_s + COMMIT_INTERVAL_S
        for ledger in ledgers.values():
            self.settler.totals.leases_lost += ledger.expire(now_s, self.terms.pause_s)
            ledger.measure()
        share = self.ready_count / MAX_PAUSED
        full = {
            each
            for each, ledger in ledgers.items()
            if ledger.position >= ledger.read_limit or ledger.open_bytes * len(ledgers) > MAX_OPEN_BYTES
        }
        wanted = full | (set(ledgers) if share > 1 else self._paused & ledgers.keys() if share > 0.5 else set())
        self._note_ends((yield do(Port.ends, list(ledgers))), wanted)
        yield do(Port.pause, wanted - self._paused)
        yield do(Port.resume, (self._paused - wanted) & ledgers.keys())
        self._paused = wanted

    def _note_ends(self, ends: Mapping[Partition, int], paused: Collection[Partition]) -> None:
        """Note the ends of the logs, and since when partitions have records that cannot be read."""
        self._ends = ends
        stalls = {}
        for partition, ledger in self.settler.ledgers.items():
            if ledger.position < ends.get(partition, 0) and partition not in paused:
                position, since_s = self._stalls.get(partition, (-1, 0.0))
                is_same = position == ledger.position
                stalls[partition] = ledger.position, since_s if is_same else self.settler.now_s
        self._stalls = stalls

    # ---- commits -------------------------------------------------------------------------------------------------

    @property
    def wants_commit(self) -> bool:
        """Whether ready messages wait for a commit, and the last one has not failed."""
        return self._did_settle and wants_commit(self.settler.ledgers)

    def due_round(self) -> Steps[bool] | None:
        """Return :meth:`round` if it is time for it."""
        return self.round() if self.settler.now_s >= self._next_settle or self.wants_commit else None

    def round(self, *, with_copy: bool = False) -> Steps[bool]:
        """Commit all that is to be committed now; False if something of it was not."""
        settler = self.settler
        if settler.now_s - settler.confirmed_s > self.terms.session_timeout_s / _CONFIRMATIONS:
            settler.repeat()
        # Delays may begin or go on, and the brokers' time is not known, which a transaction with a copy tells.
        delays = (self.terms.ordered or ledger.undated for ledger in settler.ledgers.values())
        if needs_time := not settler.clock.is_known and any(delays):
            settler.forget_copies()
        with_copy = with_copy or needs_time or settler.now_s >= self._next_copy or settler.ledger_is_lost
        if with_copy:
            self._next_copy = settler.now_s + _COPY_S
        callers = list(self.waiting)
        done = yield from settler.commit(with_copy=with_copy)
        # The first failure is repeated soon: a commit that meets a rebalance is refused once.
        is_first = done or self._did_settle
        self._settle_pause_s = COMMIT_INTERVAL_S if is_first else min(2 * self._settle_pause_s, _RETRY_S)
        self._next_settle = settler.now_s + self._settle_pause_s
        self._did_settle = done
        if done:
            self.settled_s = settler.now_s
            yield self.answer(callers)
        if with_copy and not done:
            self._next_copy = settler.now_s
        elif with_copy and not self.is_ending:
            yield from self._check_logs()
        return done

    def _check_logs(self) -> Steps[None]:
        """Say which messages the brokers deleted before they were done, and delete those that are done on the topic of
        returns, which has no retention."""
        commits, copied = self.settler.commits, self.settler.copied
        held = {each for each, ledger in self.settler.ledgers.items() if ledger.open_count}
        firsts: Mapping[Partition, int] = yield do(Port.first_offsets, held)
        for partition, low in firsts.items():
            commit = commits.get(partition)
            if commit is not None and low > commit.offset:
                text = (
                    "%s: messages from %d on are not done, and retention deleted all below %d. They are lost if this "
                    "process ends before they are done"
                )
                yield do(Port.complain, text, topics.partition_name(*partition), commit.offset, low)
        returned = {each: copy.offset for each, copy in copied.items() if each[0] == self.terms.returns_topic}
        yield do(Port.delete_below, returned)

    def answer(self, callers: list[Any], error: TimersError | None = None) -> PortCall:
        """Tell callers that what was settled before their calls is committed, unless something of it was dropped."""
        if error is None and self.settler.has_dropped:
            error = self.not_settled()
        if callers:
            self.settler.has_dropped = False
        self.waiting = [each for each in self.waiting if each not in callers]
        return do(Port.answer, callers, error)

    def not_settled(self) -> QueueError:
        """Return the error of calls that were not committed."""
        return QueueError(
            f"the queue {self.terms.name!r} lost partitions before all earlier calls on their messages were committed: "
            "these messages are delivered again"
        )

    # ---- what is seen of it --------------------------------------------------------------------------------------

    def counters(self) -> Counters:
        """Return a copy of the counters, with the present state."""
        owned = self.settler.ledgers
        ledgers, totals = owned.values(), self.settler.totals
        oldest = [came_ms for ledger in ledgers if (came_ms := ledger.oldest_ms)]
        return replace(
            totals,
            dead=copy(totals.dead),
            in_flight=sum(ledger.held_count for ledger in ledgers),
            ready=self.ready_count,
            depth=sum(ledger.undone_count(self._ends.get(each, 0)) for each, ledger in owned.items()),
            oldest_ms=min(oldest, default=None),
            partitions=len(ledgers),
            suspects=sum(ledger.suspect_count for ledger in ledgers),
            stopped=len(self.new.refused),
            ledger_bytes=self.settler.metadata_bytes(),
        )

    def troubles(self) -> tuple[str, list[str]]:
        """Return why new partitions are not delivered, or what was settled is not committed; and which partitions are
        not read on."""
        why, now_s = "", self.settler.now_s
        if self.new.load_error:
            why = f"partitions cannot be loaded ({self.new.load_error}): is a transaction open for long?"
        elif len(self.new):
            why = f"partitions are being loaded: {len(self.new)} to go"
        elif (unsettled_s := now_s - self.settled_s) > _UNSETTLED_S:
            why = f"not all that was settled could be committed for {unsettled_s:.0f} s"
        stalled = [
            f"{topics.partition_name(*partition)} could not be read from {position} on for {now_s - since_s:.0f} s: "
            "a producer's transaction is open, the partition's leader is away, or a record batch cannot be read"
            for partition, (position, since_s) in self._stalls.items()
            if now_s - since_s > _STALLED_S
        ]
        is_read = any(topic == self.terms.topic for topic, _ in self.settler.ledgers)
        refused = [] if is_read else self.new.refused.values()  # else its metric and alert say it
        return why, [*refused, *stalled]
