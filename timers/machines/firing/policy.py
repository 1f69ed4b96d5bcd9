"""Decides what happens to due timers: send, retry, dead letter, tombstone [I6].

The policy decides once for all rows that go to one topic. It checks single rows only if the topic takes some rows and
refuses others. Its decisions become records of a :class:`timers.machines.firing.transaction.Transaction`. If brokers
refuse some of these, the policy notes their timers, and decides again.

=========================  ==================================  =======================================
the topic                  a timer of a request topic          a timer of the retry topic
=========================  ==================================  =======================================
takes records              is sent                             is sent
fails for some time        goes to the retry topic, attempt 1  goes there again, one attempt more;
                                                               after the last one: dead letter
never takes this record    goes to the retry topic, attempt 0  becomes a dead letter
=========================  ==================================  =======================================

"Never takes" is what a setting, a missing topic or a broker says. With attempt 0 a timer is due at the second of the
tick, so it is late in the retry topic, and its machine decides as soon as it has read it: if it was a broker, it sends
the callback once more.

A timer that can never be sent goes to the retry topic too: its dead letter needs its request, which is read from the
log again, and timers of other targets must not wait for this. If a timer is too large for the retry topic, its own
machine writes the dead letter.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from timers.core.ports import NO_OUTPUT, Deleted, Output
from timers.core.progress import Progress
from timers.core.sums import are_for
from timers.core.timer import DueRows, Origin, Rejected, Row, key_bytes, origin_of
from timers.machines.firing.breaker import DeliveryProblem
from timers.machines.firing.followers import Followers, limit_now
from timers.machines.firing.ports import FiringSettings, GivenUp, Topics
from timers.machines.firing.transaction import Callbacks, Transaction
from timers.wire import headers as h
from timers.wire import topics
from timers.wire.checks import InvalidRequestError, decode_due
from timers.wire.dead_letter import LOST_FROM_LOG, LOST_REASON, OVERDUE
from timers.wire.formats import RequestRecord, schedule
from timers.wire.future import callback_topic

MAX_BACKOFF_S = 300
"""Longest time between two attempts, unless the circuit of the topic stays open longer."""

ROUNDING_S = 2
"""Added to the time until a circuit closes: rounding down and the age of the tick take up to 1 s each."""


WITHOUT_KEY = "without key"
"""Words of a broker that refuses a record because its topic is compacted."""

KEYLESS_S = 300
"""Seconds for which a topic gets no callback without a key after it refused one for this reason. Else each transaction
of a backlog would be refused once and sent again."""


_AGAIN = "the schedule, which must be written again after the tombstone of the version before it,"


class CallbackRules:
    """Decides which callbacks the settings allow, when a timer fires, not when it is accepted: settings change [I4].

    * The canary topic is always allowed: workers of this app request its timers.
    * A topic that is in both lists is denied.
    * The engine's other topics are denied. Exception: the request topic, if its full name is in the list of allowed
      topics. Then a timer may set another timer.
    * A topic with a name that only workers, queues, consoles or Kafka write (:data:`timers.wire.topics.WORKERS_ONLY`),
      of any app, is allowed only if its full name is in the list of allowed topics. A pattern does not count.
    * Any other topic is allowed if a pattern allows it, or if the list of allowed topics is empty.
    """

    def __init__(self, settings: FiringSettings) -> None:
        self._request_topic = settings.request_topic
        self._canary_topic = settings.canary_topic
        self._max_depth = settings.max_depth
        self._own_topics = frozenset(settings.own_topics)
        self._workers_only = _patterns(topics.WORKERS_ONLY)
        self._allow = _patterns(settings.callback_allow)
        self._deny = _patterns(settings.callback_deny)

    def check_topic(self, topic: str) -> DeliveryProblem | None:
        """Return why no callback may go to ``topic``; None if callbacks may."""
        if topic == self._canary_topic:
            return None
        for text, pattern in self._deny.items():
            if pattern.fullmatch(topic):
                return DeliveryProblem.denied(f"callback topic {topic!r} is denied by {text!r} of TIMERS_CALLBACK_DENY")
        if topic in self._own_topics:
            if topic == self._request_topic and topic in self._allow:
                return None
            return DeliveryProblem.denied(f"callback topic {topic!r} is internal: callbacks may not go there")
        if topic in self._allow:
            return None
        internal = next((text for text, pattern in self._workers_only.items() if pattern.fullmatch(topic)), None)
        if internal is not None:
            return DeliveryProblem.denied(
                f"callback topic {topic!r} is internal, as all names of the form {internal!r} are: only its full name "
                f"in TIMERS_CALLBACK_ALLOW allows it. '*,{topic}' allows it beside all others"
            )
        if self._allow and not any(pattern.fullmatch(topic) for pattern in self._allow.values()):
            return DeliveryProblem.denied(f"callback topic {topic!r} is not among those of TIMERS_CALLBACK_ALLOW")
        return None

    def next_request(self, row: Row, due_s: int) -> Row | DeliveryProblem:
        """Return the row of a timer whose callback is a request, with the headers that a request needs.

        It compares the two due seconds, and not the time of firing. So an outage does not end a chain of timers.
        """
        _, _, key, value, headers, _ = row
        try:
            next_due_s = decode_due(key_bytes(key) or b"")
        except InvalidRequestError as error:
            return DeliveryProblem.denied(f"the callback is itself a request, but its {error}")
        if next_due_s <= due_s:
            order = f"due at {next_due_s}, which is not after {due_s}"
            return DeliveryProblem.denied(f"the callback is itself a request, {order}")
        depth = h.depth(headers or ())
        if depth >= self._max_depth:
            limit = f"TIMERS_MAX_DEPTH={self._max_depth} allows no more"
            return DeliveryProblem.denied(f"{depth} timers have set each other, and {limit}")
        kept = [header for header in headers or () if header[0] != h.DEPTH]
        if callback_topic(value) == self._request_topic:  # other receivers may copy headers to their requests
            kept.append((h.DEPTH, b"%d" % (depth + 1)))
        return (*row[:4], kept or None, row[5])


def _patterns(texts: Iterable[str]) -> dict[str, re.Pattern[str]]:
    """Return pattern -> regular expression; ``*`` is any characters. Those of ``fnmatch`` do not backtrack."""
    return {pattern: re.compile(fnmatch.translate(pattern)) for pattern in texts}


class Policy:
    """The policy for timers of a request topic. Implements :class:`timers.core.ports.Outbox`.

    Attributes:
        transaction: gets the records that follow from the decisions.
        begin: begins it.
        chunk: how many timers the next transaction may have.
        callbacks: (topic, number of its partitions, timers by due second) that the transaction sends.
        unanswered: topic -> its timers in this transaction, until a broker says whether it exists.

    Args:
        settings: of the worker.
        known: what brokers answer about topics.
        transaction: of the machine.
    """

    retried: ClassVar[bool] = False

    def __init__(self, settings: FiringSettings, known: Topics, transaction: Transaction) -> None:
        self._settings = settings
        self._topics = known
        self._rules = CallbackRules(settings)
        self.transaction = transaction
        self._followers = Followers(transaction)
        self.begin = transaction.begin
        self.chunk = transaction.chunk
        self.callbacks: list[Callbacks] = []
        self.unanswered: dict[str, list[DueRows]] = {}
        self._refused: dict[str, dict[int, DeliveryProblem]] = {}
        """Topic -> why a broker refused the callback of the request at an offset of this machine."""
        self._keyless: dict[str, tuple[int, DeliveryProblem]] = {}
        """Topic -> (until which second no callback without a key is sent there, why)."""

    @property
    def held_from(self) -> set[int]:
        """As in :class:`timers.core.ports.Outbox`."""
        return self.transaction.held_from

    def read_again(self, offsets: Sequence[int]) -> Mapping[int, RequestRecord | Deleted]:
        """As in :class:`timers.core.ports.Outbox`."""
        return self.transaction.read_again(offsets)

    def commit(self, progress: Progress, output: Output = NO_OUTPUT) -> None:
        """Commit all of it, without the callbacks that brokers refuse: these go to the retry topic."""
        self._refused, self.unanswered = {}, {}
        while True:
            self.decide(output)
            if self.unanswered:
                self.transaction.wait_for(self.unanswered)
                self.end_wait()
            callbacks, self.callbacks = self.callbacks, []  # the batch takes the list, and the next rows get a new one
            refusals = self.transaction.commit(progress, callbacks)
            if refusals is None:
                return
            for topic, error, records in refusals:
                new = [self.refuse(topic, offset, reason) for offset, reason in records]
                if not any(new):  # to leave out these records did not help
                    self._topics.open_circuit(topic, error)

    def decide(self, output: Output) -> None:
        """Decide what happens to all that a machine sends, and add it to the transaction, or to :attr:`callbacks`."""
        self.callbacks = []
        if output.due:
            self._fire(output.due)
        for postponed in output.postponed:
            self._put_off(*postponed)
        if output.rejected:
            self._turn_down(output.rejected)
        for due_s, row in output.lost:
            self.transaction.give_up(GivenUp(row, self._origin(row, due_s), LOST_FROM_LOG, LOST_REASON))
        if output.lost_cancels:
            self.transaction.rescue_cancels(output.lost_cancels)
        if output.forwarded:
            self.transaction.forward(output.forwarded)
        if output.verdicts:
            self.transaction.answer(output.verdicts)
        if output.followers:
            self._followers.follow(output.followers)
        if output.missed:
            self.transaction.tell_missed(output.missed)
        if output.lacking:
            self._followers.lack(output.lacking)
        if output.mended:
            self._followers.mend(output.mended)
        for broken in output.broken:
            self._followers.break_off(*broken)
        if output.republished:
            self._republish(output.republished)

    def refuse(self, topic: str, offset: int | None, reason: str) -> bool:
        """Note until the next transaction that a broker refused the callback of the request at ``offset``.

        Returns:
            False if it is no callback, or was noted before.
        """
        if offset is None:
            return False
        problem = DeliveryProblem("message-refused", reason, None)
        if WITHOUT_KEY in reason:
            self._keyless[topic] = self.transaction.tick.second + KEYLESS_S, problem
        refused = self._refused.setdefault(topic, {})
        return refused.setdefault(offset, problem) is problem

    def end_wait(self) -> None:
        """Decide about the timers in :attr:`unanswered`. A topic without an answer counts as failing.

        If brokers do not answer at once, the timers of these topics go to the retry topic, and the others are sent.
        """
        unanswered, self.unanswered = self.unanswered, {}
        for topic, due in unanswered.items():
            self._send_or_retry(self._route(topic) or DeliveryProblem.unanswered(topic), topic, due)

    def allowed(self, topics: Iterable[str]) -> list[str]:
        """Return those callback topics that the settings allow."""
        return [topic for topic in topics if self._rules.check_topic(topic) is None]

    # ---- decisions ----------------------------------------------------------------------------------------------

    def _fire(self, due: Sequence[DueRows]) -> None:
        """Fire timers. A subclass also writes that each one is over."""
        self._deliver(due)

    def _deliver(self, due: Sequence[DueRows]) -> None:
        first = due[0][1][0][1]
        if are_for(first, due):
            self._deliver_to(first, due)
            return
        by_topic: dict[str, dict[int, list[Row]]] = {}
        for due_s, rows in due:
            for row in rows:
                by_topic.setdefault(row[1], {}).setdefault(due_s, []).append(row)
        for topic, group in by_topic.items():
            self._deliver_to(topic, list(group.items()))

    def _deliver_to(self, topic: str, due: Sequence[DueRows]) -> None:
        route = self._topics.usable.get(topic) or self._route(topic)
        if route is None:
            self.unanswered.setdefault(topic, []).extend(due)
        else:
            self._send_or_retry(route, topic, due)

    def _send_or_retry(self, route: int | DeliveryProblem, topic: str, due: Sequence[DueRows]) -> None:
        if isinstance(route, DeliveryProblem):
            for due_s, rows in due:
                self._to_retry(due_s, rows, route)
            return
        if (
            topic == self._settings.request_topic
            or topic in self._topics.max_message_bytes
            or topic in self._refused
            or topic in self._keyless
        ):
            due = [(due_s, taken) for due_s, rows in due if (taken := self._split(topic, due_s, rows))]
        if due:
            self._send(topic, route, due)

    def _route(self, topic: str) -> int | DeliveryProblem | None:
        return self._rules.check_topic(topic) or self._topics.route(topic, retried=self.retried)

    def _split(self, topic: str, due_s: int, rows: Sequence[Row]) -> list[Row]:
        """Returns the rows that ``topic`` takes, as they are sent, and holds back the others."""
        accepted = []
        for row in rows:
            sent = self._judge(topic, row, self._origin(row, due_s))
            if isinstance(sent, DeliveryProblem):
                self._to_retry(due_s, [row], sent)
            else:
                accepted.append(sent)
        return accepted

    def _judge(self, topic: str, row: Row, origin: Origin) -> Row | DeliveryProblem:
        """Returns a row as it is sent; or why ``topic`` never takes it."""
        sent = self._rules.next_request(row, origin.due_s) if topic == self._settings.request_topic else row
        if isinstance(sent, DeliveryProblem):
            return sent
        if topic in self._refused and (problem := self._refused[topic].get(row[0])) is not None:
            return problem
        if sent[2] is None and topic in self._keyless:
            until_s, problem = self._keyless[topic]
            if self.transaction.tick.second < until_s:
                return problem
            del self._keyless[topic]
        limit = self._topics.max_message_bytes.get(topic)
        if limit is None or (size := self.transaction.size(sent, origin)) <= limit:
            return sent
        return DeliveryProblem.too_large(topic, size, limit)

    # ---- parts of a decision ------------------------------------------------------------------------------------

    def _send(self, topic: str, partitions: int, due: Sequence[DueRows]) -> None:
        self.callbacks.append((topic, partitions, due))

    def _to_retry(self, due_s: int, rows: Sequence[Row], problem: DeliveryProblem) -> None:
        """Move timers to the retry topic, in this transaction: timers of other topics do not wait for them."""
        attempt = 0 if problem.open_s is None else 1
        again_s = self._next_attempt_s(0, problem)
        for row in rows:
            self._retry(row, self._origin(row, due_s)._replace(attempt=attempt), again_s, problem)

    def _next_attempt_s(self, attempts: int, problem: DeliveryProblem) -> int:
        """Returns the second of the next attempt: after the circuit closes, because nothing is sent before."""
        if problem.open_s is None:
            return self.transaction.tick.second
        return self.transaction.tick.second + max(min(1 << attempts, MAX_BACKOFF_S), int(problem.open_s) + ROUNDING_S)

    def _retry(self, row: Row, origin: Origin, again_s: int, problem: DeliveryProblem) -> None:
        size = self.transaction.retry(row, origin, again_s)
        if size is not None:
            reason = f"{problem.reason}; and to be tried again, its {size} bytes would have to fit in "
            self.transaction.give_up(GivenUp(row, origin, problem.code, reason + repr(self._settings.retry_topic)))

    def _republish(self, rows: Sequence[Row]) -> None:
        """Publish schedules again. One that is too large for its topic, because an operator has lowered its limit, is
        over and becomes a dead letter: else the machine would accept nothing any more."""
        transaction, records = self.transaction, [schedule.as_published(row)[:3] for row in rows]
        limit, fitting = limit_now(transaction, records), []
        for row, record in zip(rows, records, strict=True):
            if limit is None or (size := transaction.size_alone(*record)) <= limit:
                fitting.append(row)
                continue
            problem = DeliveryProblem.too_large(transaction.machine[0], size, limit, _AGAIN)
            origin = Origin(*row[5] or ())._replace(source=transaction.source(row[0]))
            transaction.give_up(GivenUp(row, origin, problem.code, problem.reason))
        transaction.republish(fitting)

    def _put_off(self, due_s: int, rows: Sequence[Row], again_s: int) -> None:
        """Move timers to the retry topic, due at ``again_s``, so that receivers do not get a whole backlog at once."""
        not_moved = []
        for row in rows:
            origin = self._origin(row, due_s)
            again = origin._replace(attempt=origin.attempt + 1)
            if again.attempt > self._settings.retry_attempts or self.transaction.retry(row, again, again_s) is not None:
                not_moved.append(row)
        if not_moved:
            self._deliver([(due_s, not_moved)])

    def _turn_down(self, rejected: Sequence[Rejected]) -> None:
        for rejection in rejected:
            self.transaction.reject(rejection)

    def _origin(self, row: Row, due_s: int) -> Origin:
        """Returns the identity of a timer, which it keeps in every topic."""
        return origin_of(row, due_s, self.transaction.source(row[0]))


class RetryPolicy(Policy):
    """The policy for timers of the retry topic, whose rows have an origin with a number of attempts."""

    retried = True

    def _origin(self, row: Row, due_s: int) -> Origin:
        return Origin(*row[5] or ())

    def _send(self, topic: str, partitions: int, due: Sequence[DueRows]) -> None:
        self.transaction.send_retried(topic, partitions, [row for _, rows in due for row in rows])

    def _to_retry(self, due_s: int, rows: Sequence[Row], problem: DeliveryProblem) -> None:
        for row in rows:
            origin = self._origin(row, due_s)
            if problem.open_s is None:
                self.transaction.give_up(GivenUp(row, origin, problem.code, problem.reason))
            elif origin.attempt >= self._settings.retry_attempts:
                reason = f"{problem.reason} ({origin.attempt} tries)"
                self.transaction.give_up(GivenUp(row, origin, problem.code, reason))
            else:
                again_s = self._next_attempt_s(origin.attempt, problem)
                self._retry(row, origin._replace(attempt=origin.attempt + 1), again_s, problem)


class SchedulePolicy(Policy):
    """The policy for schedules: each one gets a tombstone in its own topic, also if it is not sent [I19]."""

    def _fire(self, due: Sequence[DueRows]) -> None:
        self._deliver([(due_s, self.transaction.end_schedules(rows)) for due_s, rows in due])

    def _put_off(self, due_s: int, rows: Sequence[Row], again_s: int) -> None:
        super()._put_off(due_s, self.transaction.end_schedules(rows), again_s)

    def _turn_down(self, rejected: Sequence[Rejected]) -> None:
        """Write dead letters, and a tombstone for each overdue schedule; other records may be no schedules."""
        super()._turn_down(rejected)
        for rejection in rejected:
            if rejection.code == OVERDUE:
                self.transaction.end_schedule(rejection)


class MarkerPolicy(Policy):
    """The policy for messages that markers track: each one gets an End marker, also if it is not sent."""

    def _fire(self, due: Sequence[DueRows]) -> None:
        self._deliver([(due_s, self.transaction.end_messages(rows)) for due_s, rows in due])

    def _put_off(self, due_s: int, rows: Sequence[Row], again_s: int) -> None:
        super()._put_off(due_s, self.transaction.end_messages(rows), again_s)

    def _send(self, topic: str, partitions: int, due: Sequence[DueRows]) -> None:
        # All messages of a queue have the same key: by their keys, one consumer would get all of them.
        self.transaction.send_spread(topic, partitions, due)


def policy_of(settings: FiringSettings, known: Topics, transaction: Transaction) -> Policy:
    """Return the policy of a machine over its transaction."""
    topic, kind = transaction.machine[0], Policy
    if topic == settings.retry_topic:
        kind = RetryPolicy
    elif topic == settings.marker_topic:
        kind = MarkerPolicy
    elif topic in settings.schedule_topics:
        kind = SchedulePolicy
    return kind(settings, known, transaction)
