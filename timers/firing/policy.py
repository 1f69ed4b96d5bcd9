"""Decides what happens to due timers: send, retry, dead letter, tombstone [I6].

The policy decides once for all rows that go to one topic. It checks single rows only if the topic takes some rows and
refuses others. :class:`Routes` tells which topics exist and what they take; :class:`Output` writes the records. So the
worker and the simulator share this code.

=========================  ==================================  =======================================
the topic                  a timer of a request topic          a timer of the retry topic
=========================  ==================================  =======================================
takes records              is sent                             is sent
fails for some time        goes to the retry topic, attempt 1  goes there again, one attempt more;
                                                               after the last one: dead letter
never takes this record    goes to the retry topic, attempt 0  becomes a dead letter
=========================  ==================================  =======================================

A timer that can never be sent goes to the retry topic too: its dead letter needs its request, which is read from the
log again, and timers of other targets must not wait for this. If a timer is too large for the retry topic, its own
machine writes the dead letter.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

from timers.core.rescue import LOST, LOST_FROM_LOG
from timers.core.schedules import OVERDUE
from timers.core.timer import Origin, Rejected, Row, Tick, key_bytes, origin_of
from timers.wire import headers as h
from timers.wire import topics
from timers.wire.checks import InvalidRequestError, decode_due
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

Callback: TypeAlias = tuple[str, bytes | None, bytes]
"""(source, key, value): identifies a callback among those of its topic in a transaction."""


class DeliveryProblem(NamedTuple):
    """Why a callback cannot be sent now."""

    code: str
    """Error code of the dead letter, if the callback can never be sent."""
    reason: str
    """One sentence."""
    open_s: float | None
    """Seconds from now in which nothing can be sent; None: it never can."""

    @classmethod
    def denied(cls, reason: str) -> DeliveryProblem:
        """Returns the problem of a callback that is not allowed."""
        return cls("topic-denied", reason, None)

    @classmethod
    def unknown(cls, topic: str) -> DeliveryProblem:
        """Returns the problem of a callback whose topic does not exist."""
        return cls("topic-unknown", f"callBackTopic {topic!r} does not exist", None)

    @classmethod
    def unanswered(cls, topic: str) -> DeliveryProblem:
        """Returns the problem of a callback for whose topic the brokers have no answer yet."""
        return cls("target-failing", f"no broker says whether callBackTopic {topic!r} exists", 0.0)

    @classmethod
    def too_large(cls, topic: str, size: int, limit: int) -> DeliveryProblem:
        """Returns the problem of a callback that alone makes a batch of ``size`` bytes."""
        reason = f"the callback makes a batch of {size} bytes, more than the {limit} that fit in {topic!r}"
        return cls("message-too-large", reason, None)


class GivenUp(NamedTuple):
    """A timer that becomes a dead letter instead of a callback."""

    row: Row
    origin: Origin
    code: str
    reason: str


class Routes(Protocol):
    """Facts about callback topics."""

    @property
    def usable(self) -> Mapping[str, int]:
        """Topic that takes records now -> number of partitions. May be incomplete. The hot path reads only this."""

    @property
    def max_message_bytes(self) -> Mapping[str, int]:
        """Topic that has refused a batch as too large -> largest batch that it takes."""

    def route(self, topic: str, *, retried: bool) -> int | DeliveryProblem | None:
        """The number of partitions of ``topic``; or why nothing can be sent there; or None: no broker has said it yet.

        Args:
            topic: a callback topic that :class:`CallbackRules` allow.
            retried: whether the timers come from the retry topic.
        """


class Settings(Protocol):
    """The settings that decide what happens to due timers."""

    @property
    def request_topic(self) -> str: ...
    @property
    def retry_topic(self) -> str: ...
    @property
    def marker_topic(self) -> str: ...
    @property
    def schedule_topics(self) -> Sequence[str]: ...
    @property
    def retry_attempts(self) -> int: ...
    @property
    def canary_topic(self) -> str: ...
    @property
    def max_depth(self) -> int: ...
    @property
    def own_topics(self) -> Iterable[str]: ...
    @property
    def callback_allow(self) -> str: ...
    @property
    def callback_deny(self) -> str: ...


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

    def __init__(self, settings: Settings) -> None:
        self._request_topic = settings.request_topic
        self._canary_topic = settings.canary_topic
        self._max_depth = settings.max_depth
        self._own_topics = frozenset(settings.own_topics)
        self._workers_only = _patterns(topics.WORKERS_ONLY)
        self._allow = _patterns(settings.callback_allow.split(","))
        self._deny = _patterns(settings.callback_deny.split(","))

    def check_topic(self, topic: str) -> DeliveryProblem | None:
        """Return why no callback may go to ``topic``; None if callbacks may."""
        if topic == self._canary_topic:
            return None
        for text, pattern in self._deny.items():
            if pattern.fullmatch(topic):
                return DeliveryProblem.denied(f"callBackTopic {topic!r} is denied by {text!r} of TIMERS_CALLBACK_DENY")
        if topic in self._own_topics:
            if topic == self._request_topic and topic in self._allow:
                return None
            return DeliveryProblem.denied(f"callBackTopic {topic!r} is internal: callbacks may not go there")
        if topic in self._allow:
            return None
        internal = next((text for text, pattern in self._workers_only.items() if pattern.fullmatch(topic)), None)
        if internal is not None:
            return DeliveryProblem.denied(
                f"callBackTopic {topic!r} is internal, as all names of the form {internal!r} are: only its full name "
                f"in TIMERS_CALLBACK_ALLOW allows it. '*,{topic}' allows it beside all others"
            )
        if self._allow and not any(pattern.fullmatch(topic) for pattern in self._allow.values()):
            return DeliveryProblem.denied(f"callBackTopic {topic!r} is not among those of TIMERS_CALLBACK_ALLOW")
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
    return {pattern: re.compile(fnmatch.translate(pattern)) for pattern in texts if pattern}


class Output(Protocol):
    """Writes decisions as records of the open transaction."""

    def send(self, topic: str, partitions: int, due_s: int, rows: Sequence[Row]) -> None:
        """Fire timers of a request topic, or schedules."""

    def send_retried(self, topic: str, partitions: int, rows: Sequence[Row]) -> None:
        """Fire timers of the retry topic."""

    def size(self, row: Row, origin: Origin) -> int:
        """Returns the bytes of a batch that holds only the callback of ``row``."""

    def retry(self, row: Row, origin: Origin, due_s: int) -> int | None:
        """Move a timer to the retry topic, due at ``due_s``.

        Returns:
            None; or the bytes of a batch that holds only this record, if it is too large for the retry topic.
        """

    def give_up(self, given_up: GivenUp) -> None:
        """Write a dead letter with the request as it was sent."""

    def source(self, offset: int) -> str:
        """Return the source of a request of this machine."""

    def reject(self, rejected: Rejected) -> None:
        """Write the dead letter of a request that was rejected on arrival."""

    def end_schedules(self, rows: Sequence[Row]) -> list[Row]:
        """Write a tombstone for each schedule in its own topic, and return the rows as they are sent."""

    def end_schedule(self, rejected: Rejected) -> None:
        """Write the tombstone of a schedule that was rejected."""

    def end_messages(self, rows: Sequence[Row]) -> list[Row]:
        """Write an End marker for each message in the topic of its markers, and return the rows as they are sent."""

    def send_spread(self, topic: str, partitions: int, due_s: int, rows: Sequence[Row]) -> None:
        """Fire timers, spread over the partitions of their topic, whatever their keys are."""


@dataclass(frozen=True)
class PolicySettings:
    """The settings of a machine's policy."""

    request_topic: str
    """Callbacks that go there are requests."""
    retry_topic: str
    retry_attempts: int
    """Attempts to send a timer, after the first failure."""


class Delivery:
    """The policy for timers of a request topic.

    Attributes:
        unanswered: topic -> its timers (due second, rows) in this transaction, until a broker says whether it exists.

    Args:
        settings: of the machine.
        routes: facts about topics.
        rules: which callbacks are allowed.
        output: writes the decisions as records.
    """

    retried: ClassVar[bool] = False

    def __init__(self, settings: PolicySettings, routes: Routes, rules: CallbackRules, output: Output) -> None:
        self._settings = settings
        self._routes = routes
        self._rules = rules
        self._output = output
        self._tick = Tick(0)
        self.unanswered: dict[str, list[tuple[int, Sequence[Row]]]] = {}
        self._refused: dict[str, dict[Callback, DeliveryProblem]] = {}
        self._keyless: dict[str, tuple[int, DeliveryProblem]] = {}
        """Topic -> (until which second no callback without a key is sent there, why)."""

    def begin(self, tick: Tick) -> None:
        """Begin a transaction that happens at ``tick``."""
        self._tick = tick
        self.unanswered = {}
        self._refused = {}

    def refuse(self, topic: str, callback: Callback, problem: DeliveryProblem) -> bool:
        """Note until the next transaction that a broker refused one callback; False if it was noted before."""
        if callback[1] is None and WITHOUT_KEY in problem.reason:
            self._keyless[topic] = self._tick.second + KEYLESS_S, problem
        refused = self._refused.setdefault(topic, {})
        return refused.setdefault(callback, problem) is problem

    # ---- calls of the machine -----------------------------------------------------------------------------------

    def fire(self, due_s: int, rows: Sequence[Row]) -> None:
        """Decide what happens to timers of one due second."""
        self._deliver(due_s, rows)

    def postpone(self, due_s: int, rows: Sequence[Row], again_s: int) -> None:
        """Move timers to the retry topic, due at ``again_s``, so that receivers do not get a whole backlog at once.

        It counts as an attempt. A timer that has no attempt left or does not fit there is fired.
        """
        self._put_off(due_s, rows, again_s)

    def reject(self, rejected: Sequence[Rejected]) -> None:
        """Write the dead letters of requests that cannot be accepted."""
        for rejection in rejected:
            self._output.reject(rejection)

    def rescue(self, timers: Sequence[tuple[int, Row]]) -> None:
        """Give up timers, with their due seconds, whose requests the log has lost."""
        for due_s, row in timers:
            self._output.give_up(GivenUp(row, self._origin(row, due_s), LOST_FROM_LOG, LOST))

    def end_wait(self) -> None:
        """Decide about the timers in :attr:`unanswered`. A topic without an answer counts as failing."""
        unanswered, self.unanswered = self.unanswered, {}
        for topic, groups in unanswered.items():
            for due_s, rows in groups:
                self._deliver_by(self._route(topic) or DeliveryProblem.unanswered(topic), topic, due_s, rows)

    # ---- decisions for one topic --------------------------------------------------------------------------------

    def _deliver(self, due_s: int, rows: Sequence[Row]) -> None:
        first = rows[0][1]
        if all(row[1] == first for row in rows):
            self._deliver_to(first, due_s, rows)
            return
        by_topic: dict[str, list[Row]] = {}
        for row in rows:
            by_topic.setdefault(row[1], []).append(row)
        for topic, group in by_topic.items():
            self._deliver_to(topic, due_s, group)

    def _deliver_to(self, topic: str, due_s: int, rows: Sequence[Row]) -> None:
        route = self._routes.usable.get(topic) or self._route(topic)
        if route is None:
            self.unanswered.setdefault(topic, []).append((due_s, rows))
        else:
            self._deliver_by(route, topic, due_s, rows)

    def _deliver_by(self, route: int | DeliveryProblem, topic: str, due_s: int, rows: Sequence[Row]) -> None:
        if isinstance(route, DeliveryProblem):
            self._hold_back(due_s, rows, route)
            return
        if (
            topic == self._settings.request_topic
            or topic in self._routes.max_message_bytes
            or topic in self._refused
            or topic in self._keyless
        ):
            rows = self._split(topic, due_s, rows)
        if rows:
            self._send(topic, route, due_s, rows)

    def _route(self, topic: str) -> int | DeliveryProblem | None:
        return self._rules.check_topic(topic) or self._routes.route(topic, retried=self.retried)

    def _split(self, topic: str, due_s: int, rows: Sequence[Row]) -> list[Row]:
        """Returns the rows that ``topic`` takes, as they are sent, and holds back the others."""
        accepted = []
        for row in rows:
            sent = self._judge(topic, row, self._origin(row, due_s))
            if isinstance(sent, DeliveryProblem):
                self._hold_back(due_s, [row], sent)
            else:
                accepted.append(sent)
        return accepted

    def _judge(self, topic: str, row: Row, origin: Origin) -> Row | DeliveryProblem:
        """Returns a row as it is sent; or why ``topic`` never takes it."""
        sent = self._rules.next_request(row, origin.due_s) if topic == self._settings.request_topic else row
        if isinstance(sent, DeliveryProblem):
            return sent
        if topic in self._refused:
            problem = self._refused[topic].get((origin.request, key_bytes(sent[2]), sent[3]))
            if problem is not None:
                return problem
        if sent[2] is None and topic in self._keyless:
            until_s, problem = self._keyless[topic]
            if self._tick.second < until_s:
                return problem
            del self._keyless[topic]
        limit = self._routes.max_message_bytes.get(topic)
        if limit is None or (size := self._output.size(sent, origin)) <= limit:
            return sent
        return DeliveryProblem.too_large(topic, size, limit)

    # ---- overridden by subclasses -------------------------------------------------------------------------------

    def _origin(self, row: Row, due_s: int) -> Origin:
        """Returns the identity of a timer, which it keeps in every topic."""
        return origin_of(row, due_s, self._output.source(row[0]))

    def _send(self, topic: str, partitions: int, due_s: int, rows: Sequence[Row]) -> None:
        self._output.send(topic, partitions, due_s, rows)

    def _hold_back(self, due_s: int, rows: Sequence[Row], problem: DeliveryProblem) -> None:
        """Move timers to the retry topic, in this transaction: timers of other topics do not wait for them."""
        attempt = 0 if problem.open_s is None else 1
        again_s = self._again_s(0, problem)
        for row in rows:
            self._retry(row, self._origin(row, due_s)._replace(attempt=attempt), again_s, problem)

    # ---- parts of a decision ------------------------------------------------------------------------------------

    def _put_off(self, due_s: int, rows: Sequence[Row], again_s: int) -> None:
        not_moved = []
        for row in rows:
            origin = self._origin(row, due_s)
            again = origin._replace(attempt=origin.attempt + 1)
            if again.attempt > self._settings.retry_attempts or self._output.retry(row, again, again_s) is not None:
                not_moved.append(row)
        if not_moved:
            self._deliver(due_s, not_moved)

    def _again_s(self, attempts: int, problem: DeliveryProblem) -> int:
        """Returns the second of the next attempt: after the circuit closes, because nothing is sent before."""
        if problem.open_s is None:
            return self._tick.second
        return self._tick.second + max(min(1 << attempts, MAX_BACKOFF_S), int(problem.open_s) + ROUNDING_S)

    def _retry(self, row: Row, origin: Origin, again_s: int, problem: DeliveryProblem) -> None:
        size = self._output.retry(row, origin, again_s)
        if size is not None:
            reason = f"{problem.reason}; and to be tried again, its {size} bytes would have to fit in "
            self._output.give_up(GivenUp(row, origin, problem.code, reason + repr(self._settings.retry_topic)))


class RetryDelivery(Delivery):
    """The policy for timers of the retry topic, whose rows have an origin with a number of attempts."""

    retried = True

    def _origin(self, row: Row, due_s: int) -> Origin:
        return Origin(*row[5] or ())

    def _send(self, topic: str, partitions: int, due_s: int, rows: Sequence[Row]) -> None:
        self._output.send_retried(topic, partitions, rows)

    def _hold_back(self, due_s: int, rows: Sequence[Row], problem: DeliveryProblem) -> None:
        for row in rows:
            origin = self._origin(row, due_s)
            if problem.open_s is None:
                self._output.give_up(GivenUp(row, origin, problem.code, problem.reason))
            elif origin.attempt >= self._settings.retry_attempts:
                reason = f"{problem.reason} ({origin.attempt} tries)"
                self._output.give_up(GivenUp(row, origin, problem.code, reason))
            else:
                again_s = self._again_s(origin.attempt, problem)
                self._retry(row, origin._replace(attempt=origin.attempt + 1), again_s, problem)


class ScheduleDelivery(Delivery):
    """The policy for schedules: each one gets a tombstone in its own topic, also if it is not sent [I19]."""

    def fire(self, due_s: int, rows: Sequence[Row]) -> None:
        """Write tombstones, and decide what happens to the schedules."""
        self._deliver(due_s, self._output.end_schedules(rows))

    def postpone(self, due_s: int, rows: Sequence[Row], again_s: int) -> None:
        """Write tombstones, and move the schedules to the retry topic."""
        self._put_off(due_s, self._output.end_schedules(rows), again_s)

    def reject(self, rejected: Sequence[Rejected]) -> None:
        """Write dead letters, and a tombstone for each overdue schedule; other records may be no schedules."""
        super().reject(rejected)
        for rejection in rejected:
            if rejection.code == OVERDUE:
                self._output.end_schedule(rejection)


class MarkerDelivery(Delivery):
    """The policy for messages that markers track: each one gets an End marker, also if it is not sent."""

    def fire(self, due_s: int, rows: Sequence[Row]) -> None:
        """Write End markers, and decide what happens to the messages."""
        self._deliver(due_s, self._output.end_messages(rows))

    def postpone(self, due_s: int, rows: Sequence[Row], again_s: int) -> None:
        """Write End markers, and move the messages to the retry topic."""
        self._put_off(due_s, self._output.end_messages(rows), again_s)

    def _send(self, topic: str, partitions: int, due_s: int, rows: Sequence[Row]) -> None:
        # All messages of a queue have the same key: by their keys, one consumer would get all of them.
        self._output.send_spread(topic, partitions, due_s, rows)


def policy_of(settings: Settings, topic: str) -> type[Delivery]:
    """Return the delivery policy for timers of a request topic."""
    if topic == settings.retry_topic:
        return RetryDelivery
    if topic == settings.marker_topic:
        return MarkerDelivery
    return ScheduleDelivery if topic in settings.schedule_topics else Delivery
