"""One retry of dead letters: decides which requests are published again, then publishes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from time import monotonic, sleep
from typing import NamedTuple, TypeAlias

from confluent_kafka import KafkaException

from timers.core import levels
from timers.core.grouping import groups
from timers.errors import (
    AccessError,
    NameTakenError,
    PublishError,
    RetryRefusedError,
    UnacknowledgedError,
)
from timers.kafka import connection, topic_admin
from timers.kafka.brokers_time import BrokersTime
from timers.kafka.clients import admin_client, max_message_bytes
from timers.kafka.error_codes import FENCED, NOT_ALLOWED, UNREACHABLE, code_of
from timers.kafka.records import Record, TransactionalWriter
from timers.kafka.request_formats import REQUEST_FORMATS
from timers.kafka.topic_admin import UNKNOWN_TOPIC_RETRY_S
from timers.offline.dead_letters.letters import Letter, LetterFilter, LetterLog, Marks, Span
from timers.process.config.settings import Settings
from timers.wire import dead_letter, topics
from timers.wire import headers as h
from timers.wire.dead_letter import LEVEL_TOO_LOW, LOST_FROM_LOG, NAMED_ONLY_CODES, OVERHEAD_BYTES, Mark
from timers.wire.formats import RequestRecord, future_by_id
from timers.wire.headers import Header

MAX_REQUESTS = 500
MAX_BYTES = 4 * 1024 * 1024
"""Limits of one transaction: readers of the request topics wait for its end."""

NEW_TOPIC_S = UNKNOWN_TOPIC_RETRY_S + 0.5
"""Seconds after which workers know a topic that was created: so long they remember that it did not exist, and brokers
learn of it. A timer that fires earlier would become a dead letter again."""

_FORGOTTEN = (
    "which may have been retried before: `timers dead-letters retry` reads all marks",
    "it may have been published again before: this process keeps only the newest marks of retries. The command "
    "`timers dead-letters retry` reads all of them",
)

LetterAndRequest: TypeAlias = tuple[Letter, RequestRecord]
"""A dead letter and its request."""


@dataclass
class Preview:
    """The dead letters that a :class:`Retry` has read."""

    requests: int = 0
    """Number of requests to publish."""
    overdue: int = 0
    """Number of those requests that are overdue and fire at once."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason -> number of letters that are not retried."""


@dataclass
class Retry:
    """A retry of the dead letters that match a filter.

    Args:
        spans: the offsets to read, each partition once, or those of named letters.
        marks: which letters were retried before.
        now_s: epoch second by which requests are overdue.
        is_over: whether reading must end now. It ends after one more record at the earliest.

    Attributes:
        rest: the offsets that :meth:`preview` or :meth:`publish` has not read; empty after the whole of the spans.
        seen: what it has read.

    Raises:
        TimersError: no broker answers, or the topic of dead letters does not exist. The methods raise it too.
    """

    settings: Settings
    log: LetterLog
    letter_filter: LetterFilter
    spans: Sequence[Span]
    marks: Marks
    now_s: float
    _: KW_ONLY
    force: bool
    is_over: Callable[[], bool] = lambda: False
    rest: list[Span] = field(init=False)
    seen: Preview = field(init=False)

    def __post_init__(self) -> None:
        self._begun = monotonic()
        self.rest, self.seen = list(self.spans), Preview()

    def preview(self) -> Preview:
        """Count what :meth:`publish` would publish.

        Raises:
            RetryRefusedError: a named letter does not exist, or its request cannot be published.
            TimersError: the brokers do not answer.
        """
        missing = set(self.letter_filter.names)
        for letter, decision in self._decisions():
            missing.difference_update(letter.mark_key)
            if decision.request is None and self.letter_filter.names:
                raise RetryRefusedError(
                    f"{letter.position} cannot be retried, so nothing is retried: {decision.reason}"
                )
        if missing:
            raise not_found_error(missing, self.settings)
        return self.seen

    def publish(self, retrier: Retrier) -> Iterator[tuple[Letter, str]]:
        """Publish the requests in transactions. Yields each letter and its request's new source after the commit."""
        chosen = ((letter, made.request) for letter, made in self._decisions() if made.request is not None)
        for group in groups(chosen, _size, MAX_REQUESTS, MAX_BYTES):
            if any(letter.decoded.code == "topic-unknown" for letter, _ in group):
                sleep(max(0.0, self._begun + NEW_TOPIC_S - monotonic()))
            for (letter, _), source in zip(group, retrier.publish(group), strict=True):
                yield letter, source

    def _decisions(self) -> Iterator[tuple[Letter, Decision]]:
        """Each letter of the filter, and whether its request is published; counts them."""
        self.rest, self.seen = list(self.spans), Preview()
        for partition, offset, letter in self.log.scan(self.letter_filter, self.spans):
            while self.rest[0].partition != partition:
                del self.rest[0]
            self.rest[0] = self.rest[0]._replace(start=offset + 1)
            if letter is not None:
                decision = self._decide(letter)
                if decision.request is None:
                    self.seen.left_out[decision.kind] += 1
                else:
                    self.seen.requests += 1
                    due_s = letter.summary.due_s
                    self.seen.overdue += due_s is not None and due_s <= self.now_s
                yield letter, decision
            if self.is_over():
                return
        self.rest = []

    def _decide(self, letter: Letter) -> Decision:
        mark = self.marks.of(letter)
        if mark is None and not self.force and self.marks.may_be_forgotten(letter):
            return Decision(None, *_FORGOTTEN)
        level = self.log.allowed_level if letter.decoded.code == LEVEL_TOO_LOW else levels.SUPPORTED
        made = decide(letter, self.log.original(letter), mark, self.settings.max_request_bytes, self.force, level)
        code, chosen = letter.decoded.code, self.letter_filter
        if made.request is not None and code in NAMED_ONLY_CODES and not (chosen.names or code in chosen.codes):
            return Decision(None, f"{code}: only if its code or its position is given")
        if made.request is None or not made.request.headers or h.last(made.request.headers, h.TIMER_SEAL) is not None:
            return made  # a seal covers all headers
        return made._replace(request=made.request._replace(headers=h.renewed(made.request.headers)))


def _size(pair: LetterAndRequest) -> int:
    _, request = pair
    return len(request.key or b"") + len(request.value or b"")


def not_found_error(names: set[str], settings: Settings) -> RetryRefusedError:
    """The error for names without a dead letter."""
    listed = ", ".join(sorted(names))
    return RetryRefusedError(
        f"{listed}: no such dead letter in {settings.dead_letter_topic!r} (retention may have taken it)"
    )


class Decision(NamedTuple):
    """Whether the request of a dead letter is published again."""

    request: RequestRecord | None
    """The request to publish, or None."""
    kind: str = ""
    """Why requests are not published, as a heading for many letters."""
    reason: str = ""
    """Why this request is not published, as a sentence."""


def decide(
    letter: Letter,
    request: RequestRecord | None,
    mark: Mark | None,
    max_request_bytes: int,
    force: bool,
    level: int = levels.SUPPORTED,
) -> Decision:
    """Decide whether the request of a dead letter may be published again.

    Args:
        request: the request in the letter, or for a truncated dead letter the one at its source; None if it is gone.
        force: also publish requests that were published before, would be rejected again, or change an id.
        level: the feature level at which workers will read it.
    """
    request_format = letter.request_format
    if request_format is None:  # a forged source may name any topic
        reason = "it does not come from a topic of requests that is set (`timers formats` shows them)"
        return Decision(None, "not from a topic of requests", reason)
    if mark is not None and not force:
        return Decision(None, "retried before", f"it was published again before, as {mark.timer_id}")
    if letter.decoded.code == dead_letter.BATCH_UNREADABLE:
        return Decision(
            None, "batches that cannot be read", "it is no request: let its sender publish the requests again"
        )
    if request is None and letter.is_cut:
        reason = (
            f"it has only the first {len(letter.request.value or b'')} of {letter.decoded.value_bytes} bytes of its "
            f"value, and its request is no longer in its topic or larger than TIMERS_MAX_REQUEST_BYTES="
            f"{max_request_bytes}; raise that setting, or let its sender publish it again"
        )
        return Decision(None, "with only a part of the value", reason)
    if request is None and letter.is_of_receiver:
        reason = (
            "it does not contain its message, because that is too large for a dead letter, or the brokers refused its "
            f"retry or an output; the message is at {letter.decoded.source} as long as retention keeps it"
        )
        return Decision(None, "truncated dead letters of receivers", reason)
    if request is None:
        reason = "it does not contain its request, which is no longer in its topic"
        return Decision(None, "truncated dead letters whose request is gone", reason)
    decoded = request_format.decoder(level, rejects_overdue=False)([request], max_request_bytes)
    if decoded.rejected and not force:
        rejected = decoded.rejected[0]
        return Decision(None, "bound to be rejected again", f"it would be rejected again: {rejected.message}")
    # Of what a log has lost, nothing newer is known: the operator who retries it has accepted the loss.
    # A timer that repeats and has ended may have been set again.
    force = force or letter.decoded.code == LOST_FROM_LOG
    if request_format.topic_is_compacted and not force:
        reason = "in a compacted topic it would replace a newer request with its id; its sender can publish it again"
        return Decision(None, "with an id", reason)
    if not request_format.copy_needs_timer_again or not (decoded.rows or decoded.operations):
        return Decision(request)
    if decoded.rows and letter.decoded.code in dead_letter.ACCEPTED_CODES:
        told_s = h.number(h.last(letter.decoded.headers, h.TIMER_AGAIN))
        due_s = next(iter(decoded.rows)) if told_s is None else told_s
        return Decision(request._replace(headers=_with_due_second(request.headers or (), due_s)))
    if decoded.operations and not force:
        reason = "it has an id, and would replace a newer request with that id; its sender can publish it again"
        return Decision(None, "with an id", reason)
    return Decision(request)


def _with_due_second(headers: Sequence[Header], due_s: int) -> list[Header]:
    """Headers that keep the due second of the callback that was not sent when it was due."""
    added: list[Header] = [] if h.last(headers, h.TIMER_AGAIN) is not None else [(h.TIMER_AGAIN, b"%d" % due_s)]
    return [*future_by_id.of_callback(headers, due_s), *added]


class Retrier:
    """Writes to the request topics and to the topic of marks.

    Opening it stops any other retrier of the same app and aborts its open transaction. The requests that
    the other one has committed are marked, so that none is published twice.

    Raises:
        TimersError: no broker answers or accepts the login, or there is no request topic; so does :meth:`publish`.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._reports = connection.ErrorReports(settings)
        self._admin = admin_client(settings, self._reports)
        with self._explained():
            self._partitions = {settings.request_topic: self._partitions_of(settings.request_topic)}
            if not topic_admin.exists(settings, settings.retried_topic):
                topic_admin.create_if_missing(settings, settings.retried_topic, partitions=1, cleanup_policy="compact")
            self._writer = TransactionalWriter(
                {**connection.librdkafka(settings), **self._reports.callbacks},
                topics.retrier_id(settings.app_id),
                max_message_bytes(settings) + OVERHEAD_BYTES,  # a mark has two sources and a long key
                BrokersTime.of(settings).record_ms,  # with CreateTime: this machine's clock may be wrong
            )

    def _partitions_of(self, topic: str) -> int:
        count = connection.partitions_of(self._admin, self._reports, topic)
        if not count:
            raise PublishError(
                f"topic {topic!r} does not exist at {self._settings.brokers}: start a worker (or the engine on Spark), "
                "which creates it"
            )
        return count

    def publish(self, letters: Sequence[tuple[Letter, RequestRecord]]) -> list[str]:
        """Publish requests to the partitions that they came from, all or none.

        Raises:
            UnacknowledgedError: no broker has answered, or the login was refused meanwhile: they may be published.
        """
        with self._explained():
            requests = [
                Record(*self._source_partition(letter), request.key, request.value, request.headers or ())
                for letter, request in letters
            ]
        with self._explained(UnacknowledgedError), self._writer.transaction() as send:
            sources = send(requests)
            marks = [
                dead_letter.encode_mark(Mark(letter.position, letter.decoded.source, source))
                for (letter, _), source in zip(letters, sources, strict=True)
            ]
            send([Record(self._settings.retried_topic, 0, *mark) for mark in marks])
        return sources

    def _source_partition(self, letter: Letter) -> tuple[str, int]:
        """The topic and partition that a request came from, so that its order in the partition is kept.

        A receiver's request was in no topic before; it goes to the topic of requests.
        """
        place = topics.parse_source(letter.decoded.source)
        if letter.is_of_receiver:
            place = (self._settings.request_topic, *(place or ("", 0, 0))[1:])
        assert place is not None and letter.request_format is not None, "decide() returns only such letters"
        topic, partition, _ = place
        if topic not in self._partitions:
            self._partitions[topic] = self._partitions_of(topic)
        return topic, partition % self._partitions[topic]

    @contextmanager
    def _explained(self, unanswered: type[PublishError] = PublishError) -> Iterator[None]:
        """Errors of the client in the block become sentences.

        Args:
            unanswered: class of the error if no broker has answered.
        """
        settings = self._settings
        try:
            yield
        except KafkaException as error:
            if code_of(error) in FENCED:
                raise NameTakenError(
                    f"another `timers dead-letters retry` of TIMERS_APP_ID={settings.app_id!r} has begun since: this "
                    "one stops"
                ) from error
            if code_of(error) in NOT_ALLOWED:
                request_topics = ", ".join(repr(topic) for entry in REQUEST_FORMATS for topic in entry.topics(settings))
                raise AccessError(
                    f"{connection.principal(settings)} may not do that at {settings.brokers} "
                    f"({error.args[0].str()}): it takes Write on topics {request_topics} and "
                    f"{settings.retried_topic!r} and on transactional id {topics.retrier_id(settings.app_id)!r}"
                ) from error
            kind = unanswered if code_of(error) in UNREACHABLE else PublishError
            with self._reports.explained(f"the brokers at {settings.brokers} refuse the requests", kind):
                raise
