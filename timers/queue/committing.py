"""Carries out the plans of a process, and repeats them until they are committed."""

from __future__ import annotations

import logging
from time import monotonic

from confluent_kafka import KafkaException

from timers.queue import records
from timers.queue.settling import Job, Plan
from timers.queue.state import State
from timers.queue.transactions import Outcome
from timers.queue.transport import Transport
from timers.wire.dead_letter import REJECTED

_PAUSE_S = 0.5
_MAX_PAUSE_S = 10.0
_TOO_LARGE = "its retry, its dead letter or an output is refused by the brokers, such as a record that is too large"
_log = logging.getLogger("timers.queue")


class Committer:
    """Commits what a settler plans. After a refused transaction it makes plain commits only, for a growing pause, so
    that a request topic without a leader does not delay acknowledgements. The lock of the state is not held while the
    brokers are asked. One thread at a time uses it.
    """

    def __init__(self, transport: Transport, state: State) -> None:
        self._transport = transport
        self._state = state
        self._settler = state.settler
        self._lock = state.lock
        self._next_transaction = 0.0
        self._pause_s = _PAUSE_S

    def commit_all(self, *, with_copy: bool = False, only_plain: bool = False) -> bool:
        """Commit all that is to be committed now; False if something of it was not.

        Args:
            with_copy: commit in a transaction, which also writes copies of the commits.
            only_plain: commit acknowledgements only.
        """
        while True:
            if self._settler.unknown is not None and not self._resolve():
                return False
            may_transact = not only_plain and monotonic() >= self._next_transaction and self._ask_leaders(with_copy)
            with self._lock:
                self._replace_refused()
                planned_s = self._state.now_s()
                waiting = self._postpone() if may_transact else set()
                jobs = self._settler.job_count
                plan = self._settler.plan(
                    in_transaction=with_copy and may_transact, with_jobs=may_transact, waiting=waiting
                )
                is_full = bool(self._settler.full)
            if plan is None:
                return not jobs and not is_full
            outcome = self._execute(plan)
            if outcome is not Outcome.COMMITTED:
                return False
            self._state.confirm(planned_s)
            if len(plan.jobs) == jobs - len(waiting) or not may_transact:
                return len(plan.jobs) == jobs and not is_full

    def _ask_leaders(self, with_copy: bool) -> bool:
        """Ask the leaders that a transaction needs, if there will be one; False if it cannot begin."""
        with self._lock:
            jobs = list(self._settler.jobs)
            copies = with_copy and bool(self._settler.ledgers)
        try:
            if jobs or copies:
                self._transport.transactions.ask_leaders(jobs)
            return True
        except KafkaException as error:
            _log.warning("a transaction of %s waits: %s", self._transport.group, error.args[0])
            self._pause()
            return False

    def _postpone(self) -> set[Job]:
        """Return the jobs that wait for a leader. Guards do not wait: their partition has a new owner soon."""
        waiting = self._transport.transactions.without_place(self._settler.jobs)
        for job in [job for job in waiting if isinstance(job.records[0], records.Guarding)]:
            self._settler.discard(job)
            waiting.discard(job)
        return waiting

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
            self._replace_refused()
        if outcome is not Outcome.COMMITTED and plan.in_transaction:
            self._pause()
        elif plan.in_transaction:
            self._pause_s, self._next_transaction = _PAUSE_S, 0.0
        return outcome

    def _replace_refused(self) -> None:
        """Give up records that the brokers refuse: a dead letter of their message takes their place. The caller holds
        the lock."""
        for job in self._transport.transactions.take_refused():
            if isinstance(job.records[0], records.Guarding):
                self._settler.discard(job)
            elif isinstance(job.records[0], records.Letter) or job.letter is None:
                job.records = [records.truncated_letter(job.records[0], _TOO_LARGE)]
            else:
                self._state.totals.dead[REJECTED] += 1
                job.records = [job.letter(REJECTED, _TOO_LARGE)]

    def _resolve(self) -> bool:
        plan = self._settler.unknown
        assert plan is not None
        try:
            self._transport.transactions.end_unknown()
            committed = self._transport.committed(plan.commits)
        except KafkaException as error:
            _log.warning("%s waits for the outcome of a transaction: %s", self._transport.group, error.args[0])
            return False
        with self._lock:
            self._settler.resolve(committed)
        return True
