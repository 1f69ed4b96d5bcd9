"""Drives a member of a queue's group: carries out its commands, and lets receivers of any thread call it.

One thread, the queue's own, uses the consumer and brings the member all events of the brokers. Calls that may wait long
for the transactional producer run in a second thread, and their answers come back as events: brokers answer a member's
requests in turn, so a commit that follows the request to join waits until all members have joined, and the queue's
thread must serve the rebalance meanwhile. No commit runs in a callback of a rebalance, except those that it makes: a
plain commit that the client sends after the callback would have the new generation.

Receivers take and settle messages in their own threads, under the one lock of this package: to hand each call to the
queue's thread and to wait for its answer would cost two changes of threads a message (ADR 41). The lock is held while
the member decides, and never while a command is carried out.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from time import monotonic, sleep
from typing import Any, TypeVar

from confluent_kafka import KafkaException

from timers.client.publish import forked
from timers.errors import QueueError, TimersError
from timers.kafka.lost_brokers import LOST_BROKERS
from timers.process.clock import Clock
from timers.queue.delivery import Delivery, Make, Verdict
from timers.queue.entry import PUT_BACK, Settlement
from timers.queue.member import Member
from timers.queue.metadata import Partition
from timers.queue.port import CommitAnswer, Counters, Job, Outcome, Places, Plan, Port, PortCall, Steps, Terms
from timers.queue.records import Record
from timers.queue.sending import Guard, Guards
from timers.queue.transport import Transport
from timers.wire import topics

_log = logging.getLogger("timers.queue")
_CLOCK = Clock()

_MAX_POLL_INTERVAL_S = 300.0
"""A rebalance waits this many seconds for a member that hangs; another consumer would not shorten this."""

_STUCK_S = 90.0
"""Longer than the longest call to the brokers, which is 30 s."""

_REJOIN_S = 60.0
"""Seconds beyond a session time-out in which a process joins its group again, while the brokers answer. One that does
not may never do so: see :mod:`timers.kafka.lost_brokers`."""

_POLL_S, _ROUND_POLL_S = 0.02, 0.004
"""Longest wait for records; while a commit is under way it is shorter, because answers are noticed after it."""

_JOIN_POLL_S = 0.05
_ASKED_S = 5.0

RUN_LEASES = 10
"""How many times ``lease_s`` a handler of a run may take. Calls of an API that became slow still succeed, and a handler
that hangs is found."""

_BATCH = 500
_RETRY_S = 0.5
_REOPEN_S = 2.0
_DRAIN_S = 15.0
"""How long a process that closes tries to settle."""

_ROUND = (Port.ask_leaders, Port.execute, Port.restore_ledger)
_OWN = {each.__name__ for each in (*_ROUND, Port.answer, Port.complain, Port.end_round, Port.sleep, Port.warn)}
"""Names of commands that are not for the transport."""

_BLOCKING = {each.__name__ for each in (*_ROUND, Port.decide)}
"""Names of commands of a round of commits that may wait long for the producer."""

T = TypeVar("T")
D = TypeVar("D", bound=Delivery)


class Driver:
    """The threads of a queue: that of its consumer, which runs from :meth:`start` until the queue is closed or fails,
    one for its producer, and those of receivers.

    Attributes:
        member: what decides. It is used under the lock.
        lock: held while the member decides.
        failure: why the queue ended.
        strangers: who else is in the group, a sentence; empty: no other program; None: that is not known.
        has_handlers: whether a run calls handlers: then it may be long until its next call of :meth:`receive`.

    Args:
        now_s: the clock of leases, in seconds; by default one that counts the sleep of the machine, because the brokers
            do not sleep.
    """

    def __init__(
        self, terms: Terms, guards: Guards, transport: Transport, now_s: Callable[[], float] = _CLOCK.boot_s
    ) -> None:
        self.terms = terms
        self.has_handlers: Callable[[], bool] = bool
        self.now_s = now_s
        self.member = Member(terms, guards, now_s())
        self.lock = threading.Condition()  # reentrant
        self.closing = False
        self.failure: TimersError | None = None
        self.strangers: str | None = None
        self._guards = guards
        self._session_timeout_s = terms.session_timeout_s
        self._transport = transport
        self._thread: threading.Thread | None = None
        self._receivers = 0
        self._joins_by_s: float | None = None
        self._reader_waits = self._is_left = self._is_cut_off = self._is_over = False
        self._asked_s = self._round_began_s = now_s()
        self._drops = 0  # when it was closed
        self._round: Steps[bool] | None = None
        self._answer: Future[Any] | None = None  # the answer to the command of the round that is carried out
        self._did_settle = False
        self._error: Exception | None = None  # the error of a round that ended in a callback
        self._calls: SimpleQueue[tuple[PortCall, Future[Any]] | None] = SimpleQueue()
        self._second: threading.Thread | None = None

    # ---- receivers -----------------------------------------------------------------------------------------------

    def _at(self) -> float:
        """Tell the member what time it is."""
        now_s = self.member.settler.now_s = self.now_s()
        return now_s

    def receive(self, make: Make[D], limit: int, wait_s: float, leases: int = 1) -> list[D]:
        """Return up to ``limit`` messages; none if none came within ``wait_s``, or the queue is closed.

        Args:
            make: makes a delivery; its last argument is this driver.
            leases: how many times ``lease_s`` the receiver may have them.

        Raises:
            QueueError: the queue ended.
        """
        deadline = monotonic() + wait_s
        with self.lock:
            self._receivers += 1
            try:
                while True:
                    if self.failure is not None:
                        raise self.failure
                    self._at()
                    taken = self.member.take(make, limit, self, leases=leases)
                    if taken and self._reader_waits:
                        self.lock.notify_all()
                    remaining_s = deadline - monotonic()
                    if taken or remaining_s <= 0 or self.closing:
                        return taken
                    if self._is_left:
                        self.lock.notify_all()
                    self.lock.wait(remaining_s)
            finally:
                self._receivers -= 1
                self._asked_s = self.now_s()

    @property
    def is_asked(self) -> bool:
        """Whether a receiver waits for messages, or did so a moment ago."""
        with self.lock:
            return self._receivers > 0 or self.now_s() - self._asked_s < _ASKED_S

    def wait_to_join(self, within_s: float, is_over: Callable[[], bool]) -> None:
        """Wait until the group has given this process its partitions, which takes seconds while others have them.

        Args:
            within_s: seconds to wait, counted from the first call: later calls do not wait as long again.
        """
        with self.lock:
            if self._joins_by_s is None:
                self._joins_by_s = monotonic() + within_s
            while not (self.member.joined or self.failure or self.closing or is_over()):
                if monotonic() >= self._joins_by_s:
                    return
                self.lock.wait(_JOIN_POLL_S)

    def ack(self, delivery: Delivery) -> bool:
        """Note that a message without outputs is done; False if :meth:`settle` must say more. It is the usual case,
        without calls that it does not need."""
        settler = self.member.settler
        with self.lock:
            now_s = settler.now_s = self.now_s()
            is_confirmed = now_s - settler.confirmed_s <= self._session_timeout_s
            return is_confirmed and delivery.acknowledge(now_s, settler.totals)

    def settle(
        self,
        delivery: Delivery,
        how: Settlement,
        end: str,
        guarded: Callable[[Guard, float], bool] | None = None,
        *,
        written: Sequence[Record] = (),
        after_s: float = 0.0,
    ) -> bool:
        """Settle a delivery; False if it is over. It may wait for the next commit, and for the delivery's guard.

        Args:
            end: the outcome that the metrics count, such as ACKED; empty: it is not counted.
            guarded: settles a delivery that has a guard, within these seconds; returns whether it did.
            written: records that are written in the transaction in which the message is done.
            after_s: seconds until its lease ends, or until its next delivery.
        """
        deadline_s = self.now_s() + self._guards.timeout_s
        with self.lock:
            since_s = self._at()
            verdict = self.member.settle(delivery, how, written, after_s)
            if verdict is Verdict.UNSURE:
                self.lock.wait_for(lambda: self._is_sure(delivery, since_s) is not None, self._guards.timeout_s)
                if self._is_sure(delivery, since_s):
                    verdict = self.member.settle(delivery, how, written, after_s)
                elif (verdict := self.member.settle(delivery, PUT_BACK)) is Verdict.COUNTS:
                    return False
            if verdict is Verdict.COUNTS:
                if end:
                    self.member.count(delivery, end)
                return True
        guard, left_s = delivery.guard, max(0.0, deadline_s - self.now_s())
        if verdict is Verdict.OVER or guarded is None or guard is None:
            return False
        delivery.note_wait(deadline_s)
        if not guarded(guard, left_s):
            return False
        self.call(lambda: self.member.count(delivery, end))
        return True

    def _is_sure(self, delivery: Delivery, since_s: float) -> bool | None:
        self._at()
        return self.member.is_sure(delivery, since_s)

    def call(self, decide: Callable[[], T]) -> T:
        """Let the member decide about a delivery."""
        with self.lock:
            self._at()
            decided = decide()
            self.lock.notify_all()  # all: the queue's own thread may wait here, too
            return decided

    @property
    def is_unconfirmed(self) -> bool:
        """Whether a call that settles a message must wait for a commit."""
        with self.lock:
            self._at()
            return self.member.is_unconfirmed

    def wait_for_commit(self) -> Future[None]:
        """Return a future that is done when all earlier calls on messages are committed.

        Raises:
            QueueError: the queue failed.
        """
        future: Future[None] = Future()
        with self.lock:
            if self.failure is not None:
                raise self.failure
            self.member.waiting.append(future)
            if self._is_over or self._is_left:
                self._do(self.member.answer([future]))
        return future

    def counters(self) -> Counters:
        """Return a copy of the counters, with the present state."""
        with self.lock:
            return self.member.counters()

    def stuck(self) -> list[str]:
        """Return why the process should be started again: a sentence, or nothing."""
        if self.failure is not None:
            return [str(self.failure)]
        silent_s, lost_s = self.now_s() - self._round_began_s, self.member.lost_s
        if not self.member.joined or self.closing or self._is_left:
            return []
        if silent_s > _STUCK_S:
            return [f"the thread of the queue {self.terms.name!r} has made no progress for {silent_s:.0f} s"]
        away_s = 0.0 if lost_s is None else self.now_s() - lost_s
        is_let_in = not self.strangers and self._transport.silent_s < _STUCK_S  # else no process would join
        if away_s > self._session_timeout_s + _MAX_POLL_INTERVAL_S + _REJOIN_S and is_let_in:
            return [f"{self._went_on}, {away_s:.0f} s ago, although the brokers answer: start it again"]
        return []

    @property
    def _went_on(self) -> str:
        return f"group {topics.queue_group(self.terms.name)!r} went on without this process"

    def unready(self) -> list[str]:
        """Return why this process does not work on messages now: sentences, or nothing."""
        with self.lock:
            self._at()
            trouble, stalled = self.member.troubles()
        reasons = self.stuck()
        if self.closing:
            reasons.append(f"the queue {self.terms.name!r} is closed")
        elif self.strangers:
            reasons.append(self.strangers)
        elif not self.member.joined:
            reasons.append(f"group {topics.queue_group(self.terms.name)!r} has not given this process partitions yet")
        elif self.member.lost_s is not None:
            reasons.append(f"{self._went_on}, which has not joined again yet")
        elif self._is_left:
            reasons.append(
                "it gave its partitions away, because no handler asked for a message for the time of a lease"
            )
        elif trouble:
            reasons.append(trouble)
        return reasons + stalled

    # ---- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let receivers return, and the queue's thread end."""
        with self.lock:
            if not self.closing:
                self._drops = self.member.settler.drops
            self.closing = self.member.is_ending = True
            self.lock.notify_all()

    def after_fork(self) -> None:
        """End the queue in a process that was forked: its messages are those of the other process."""
        self.lock = threading.Condition()
        self.failure = QueueError(forked("queue"))
        self.member.waiting, self._is_over = [], True
        self.member.leave()

    def end(self) -> None:
        """Note that the queue's thread has ended: no message can be settled any more."""
        with self.lock:
            self._is_over = True
            self.member.leave()
            has_dropped = self.member.settler.has_dropped
            self._do(self.member.answer(self.member.waiting, self.member.not_settled()))
            self.member.settler.has_dropped = has_dropped  # calls that wait later must see the loss, too
            self.lock.notify_all()

    def fail(self, failure: TimersError) -> None:
        """Let all calls raise an error."""
        with self.lock:
            self.failure, self.member.is_ending = failure, True
            self._do(self.member.answer(self.member.waiting, failure))
            self.lock.notify_all()

    # ---- the thread of the queue ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread, unless it was started or the queue is closed."""
        with self.lock:
            if self._thread is None and not self.closing and self.failure is None:
                self._thread = threading.Thread(target=self._run, name=f"queue-{self.terms.name}", daemon=True)
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
                    *(self.terms.name, timeout_s),
                )

    @property
    def lost_last_calls(self) -> bool:
        """After :meth:`close` and :meth:`join`: whether calls on messages may not be committed, which were before."""
        is_alive = self._thread is not None and self._thread.is_alive()
        return is_alive or self.member.settler.drops > self._drops

    def _run(self) -> None:
        try:
            self._open()
            while not self.closing:
                self._work()
                if self._is_abandoned():
                    self._leave()
            self._drain()
        except TimersError as error:
            self._fail(error)
        except KafkaException as error:
            failed = f"the queue {self.terms.name!r} cannot be read"
            self._fail(self._transport.user_error(error, failed))
        except Exception as error:
            _log.exception("the queue %s failed", self.terms.name)
            self._fail(QueueError(f"the queue {self.terms.name!r} failed: {error!r}"))
        finally:
            self._is_cut_off = True
            self.end_round()
            self.end()
            self._calls.put(None)
            self._close_transport()

    def _open(self) -> None:
        self.member.signing = self._transport.open(self._assigned, self._revoked, lambda: self.closing)

    def _work(self) -> None:
        if self._round is None:
            self._round_began_s = self.now_s()
        # Callbacks run in each call of poll; what it returns is of the partitions that they leave.
        if self._needs_messages():
            wait_s = _POLL_S if self._round is None else _ROUND_POLL_S
            self._read(self._transport.poll(_BATCH, 0) or self._transport.poll(1, wait_s))
        else:
            self._read(self._transport.poll(1, 0))
        self._carry_out(self.member.work())
        self._go_on()
        if self.member.wants_control:
            self._carry_out(self.member.control())
            self._transport.check_configs()
            self._check_topics()
            self.strangers = self._transport.check_members()
            if self._transport.must_open_anew:
                self._open_anew()
        if self._round is None:
            with self.lock:
                self._at()
                due = self.member.due_round()
            if due is not None:
                self._begin_round(due)

    def _read(self, polled: list[Any]) -> None:
        self._carry_out(self.member.read(polled))
        self._wake()

    def _needs_messages(self) -> bool:
        """Whether receivers need more messages. If not, wait a moment, or until a commit can begin or go on."""

        def has_work() -> bool:
            may_settle = self.member.wants_commit if self._answer is None else self._answer.done()
            return may_settle or self.member.has_few_messages

        with self.lock:
            if not self.member.needs_messages:
                self._reader_waits = True
                self.lock.wait_for(has_work, _POLL_S if self._round is None else _ROUND_POLL_S)
                self._reader_waits = False
            return self.member.needs_messages

    def _check_topics(self) -> None:
        """Say that partitions were added to an ordered queue. Waits for no broker.

        Raises:
            QueueError: a topic with messages was deleted.
        """
        added = self._transport.check_topics()
        self.member.settler.ledger_is_lost = self._transport.ledger_is_lost
        if added and self.terms.ordered:
            _log.error(
                "topic %s has %d more partitions, so keys have moved: messages that are sent from now on may overtake "
                "earlier ones of their key until these are done",
                *(self.terms.topic, added),
            )

    def _is_abandoned(self) -> bool:
        """Whether messages wait, all leases are over, and no receiver has asked for messages for as long."""
        with self.lock:
            if self._receivers or self.has_handlers() or self.now_s() - self._asked_s <= self.terms.lease_s:
                return False
            ledgers = self.member.settler.ledgers.values()
            return self.member.ready_count > 0 and not any(each.held_count for each in ledgers)

    def _leave(self) -> None:
        """Let other processes have the messages until a receiver of this one asks again."""
        _log.warning(
            "the queue %s gives its partitions to other processes: no handler of this one asked for a message for %g s",
            *(self.terms.name, self.terms.lease_s),
        )
        is_settled = self._settle_last()
        self._transport.close()
        if self.wait_for_receiver(is_settled=is_settled):
            self._open()

    def _open_anew(self) -> None:
        """Make the clients anew, after the consumer has lost all brokers. It can commit nothing: messages of this
        process are delivered again."""
        _log.error("the consumer of the queue %s %s: the queue is opened again", self.terms.name, LOST_BROKERS)
        self._is_cut_off = True
        self.end_round()
        if isinstance(self._error, KafkaException):  # a client that is given up
            self._error = None
        with self.lock:
            self.member.leave()
            self.member.lost_s = self._at()
            self._do(self.member.answer(self.member.waiting, self.member.not_settled()))
        self._close_transport()
        self._is_cut_off = False
        while not self.closing:
            self._round_began_s = self.now_s()  # the time before is no sign of a thread that hangs
            try:
                self._open()
                return
            except (KafkaException, QueueError) as error:
                # Brokers that start again one after the other: the leader of one topic may be away for longer.
                if not isinstance(error, KafkaException) and not isinstance(error.__cause__, KafkaException):
                    raise
                _log.warning("the queue %s is not open yet, and is opened again: %s", self.terms.name, error)
            self._close_transport()
            with self.lock:
                self.lock.wait_for(lambda: self.closing, _REOPEN_S)

    def _close_transport(self) -> None:
        with contextlib.suppress(KafkaException, RuntimeError):
            self._transport.close()

    def wait_for_receiver(self, *, is_settled: bool) -> bool:
        """Drop all ledgers, and wait until a receiver asks for messages; False if the queue is closed.

        Args:
            is_settled: whether all earlier calls on messages are committed.
        """
        with self.lock:
            self._is_left = True
            self.member.leave()
            error = None if is_settled else self.member.not_settled()
            self._do(self.member.answer(self.member.waiting, error))
            self.lock.wait_for(lambda: self._receivers or self.closing)
            # What was before is no sign of a thread that hangs: to open the queue takes seconds.
            self._round_began_s, self.member.lost_s, self._is_left = self.now_s(), None, False
            return not self.closing

    def _fail(self, failure: TimersError) -> None:
        """Let all calls raise the error, and commit that nothing runs: no message is the cause of this end."""
        self.fail(failure)
        with contextlib.suppress(Exception):  # the commits under way may have caused the failure
            self._poll_until_settled()
        try:
            if self.member.settler.ledgers:
                self._settle_last()
        except Exception as error:
            _log.warning("the queue %s ended, and its last calls may not be committed: %s", self.terms.name, error)

    def _drain(self) -> None:
        give_up = monotonic() + _DRAIN_S
        while not self._settle_last(with_copy=True):
            if monotonic() > give_up:
                _log.warning(
                    "the queue %s is closed, and its last calls of ack or retry are not committed", self.terms.name
                )
                return
            self._read(self._transport.poll(1, _RETRY_S))

    # ---- commands ------------------------------------------------------------------------------------------------

    def _assigned(self, partitions: list[Partition]) -> None:
        self.end_round()
        self._carry_out(self.member.assigned(partitions))

    def _revoked(self, partitions: list[Partition], *, lost: bool) -> None:
        self.end_round()
        self._carry_out(self.member.revoked(partitions, lost=lost))

    def _carry_out(self, steps: Steps[T]) -> T:
        """Carry out all commands of the member at once, in this thread."""
        answer: Future[Any] | None = None
        while True:
            try:
                command = self._next(steps, answer)
            except StopIteration as end:
                result: T = end.value
                return result
            answer = self._answered(command)

    def _next(self, steps: Steps[Any], answer: Future[Any] | None) -> PortCall:
        """Return the next command of the member; StopIteration says that there is none."""
        error = None if answer is None else answer.exception()
        with self.lock:
            self._at()
            if answer is None:
                return next(steps)
            return steps.send(answer.result()) if error is None else steps.throw(error)

    def _answered(self, command: PortCall) -> Future[Any]:
        answer: Future[Any] = Future()
        try:
            answer.set_result(self._do(command))
        except Exception as error:
            answer.set_exception(error)
        return answer

    def _begin_round(self, steps: Steps[bool]) -> None:
        self._round_began_s = self.now_s()  # a commit that does not return counts as a long round
        self._round, self._answer = steps, None
        self._go_on()

    def _go_on(self, *, at_once: bool = False) -> None:
        """Go on with the round of commits, until a command of it is not answered yet.

        Args:
            at_once: wait for the answers.

        Raises:
            Exception: the round failed, perhaps in a callback.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error
        while self._round is not None and (self._answer is None or at_once or self._answer.done()):
            try:
                command = self._next(self._round, self._answer)
            except BaseException as end:
                self._round, self._answer, self._did_settle = None, None, False
                self._wake()
                if not isinstance(end, StopIteration):
                    raise
                self._did_settle = bool(end.value)
            else:
                self._answer = self._answered(command) if at_once else self._begin(command)

    def _begin(self, command: PortCall) -> Future[Any]:
        """Begin to carry out a command of the round of commits."""
        if command.name == "execute" and not command.arguments[0].in_transaction:
            return self._transport.begin_commit(*command.arguments)
        if command.name not in _BLOCKING:
            return self._answered(command)
        if self._second is None:
            self._second = threading.Thread(target=self._serve, name=f"queue-{self.terms.name}-commit", daemon=True)
            self._second.start()
        answer: Future[Any] = Future()
        answer.add_done_callback(lambda _: self._wake())
        self._calls.put((command, answer))
        return answer

    def _serve(self) -> None:
        """Carry out commands that may wait long for the producer, in the second thread."""
        while (call := self._calls.get()) is not None:
            command, answer = call
            try:
                answer.set_result(self._do(command))
            except BaseException as error:
                answer.set_exception(error)
            del call, command, answer  # these would keep the last plan while the thread waits

    def _wake(self) -> None:
        with self.lock:
            self.lock.notify_all()

    def _poll_until_settled(self) -> bool:
        """Wait for the end of the round of commits; False if not all was committed."""
        while self._round is not None:
            self._read(self._transport.poll(1, _ROUND_POLL_S))
            self._go_on()
        self._go_on()
        return self._did_settle

    def _settle_last(self, *, with_copy: bool = False) -> bool:
        """Commit what was settled, and that nothing runs."""
        self._poll_until_settled()
        with self.lock:
            self.member.settler.stop(list(self.member.settler.ledgers))
        self._begin_round(self.member.round(with_copy=with_copy))
        return self._poll_until_settled()

    def _do(self, command: PortCall) -> Any:
        """Carry out a command, and return its answer."""
        return getattr(self if command.name in _OWN else self._transport, command.name)(*command.arguments)

    # ---- commands of the member that are for the process ---------------------------------------------------------

    def execute(self, plan: Plan) -> CommitAnswer:
        """Commit, and wait for the outcome."""
        if plan.in_transaction:
            return self._transport.transactions.execute(plan)
        if self._is_cut_off:
            return CommitAnswer(Outcome.REFUSED)  # a commit may take long if the brokers are away
        return self._transport.commit(plan)

    def ask_leaders(self, jobs: Iterable[Job]) -> Places:
        return self._transport.transactions.ask_leaders(jobs)

    def restore_ledger(self) -> None:
        self._transport.restore_ledger(self.member.signing)

    def warn(self, text: str, *arguments: object) -> None:
        _log.warning(text, *arguments)

    def complain(self, text: str, *arguments: object) -> None:
        _log.error(text, *arguments)

    def sleep(self, seconds: float) -> None:
        sleep(seconds)

    def answer(self, callers: Iterable[Future[None]], error: TimersError | None) -> None:
        for caller in callers:
            caller.set_result(None) if error is None else caller.set_exception(error)

    def end_round(self) -> None:
        """Wait for the commits under way, in a callback of a rebalance, or at the end. If they fail, the queue's thread
        says so after the callback: partitions must be given up first."""
        if self._round is not None:
            self._transport.lose_answers()
            try:
                self._go_on(at_once=True)
            except Exception as error:
                self._error = error
