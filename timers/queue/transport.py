"""The consumer of a queue: its topics, its group, and plain commits."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from time import monotonic, sleep
from typing import Any, NamedTuple, TypeAlias, TypeVar

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import OffsetSpec

from timers.client.config import Connection
from timers.errors import QueueError, TimersError
from timers.kafka import connection
from timers.kafka.clients import LIBRDKAFKA_LOG, admin_client
from timers.kafka.error_codes import NO_TOPIC, code_of, limit_of
from timers.kafka.lost_brokers import LOST_BROKERS, LostBrokers
from timers.kafka.own_topics import (
    NOTE,
    SMALL_SEGMENTS,
    TRANSACTION_LOG,
    WARNING,
    Effect,
    OwnTopic,
    WrongConfig,
    kept_config,
    log_new,
    transactions_due,
    wrong_configs,
)
from timers.kafka.topic_admin import ask_for_configs, config_of, create_if_missing
from timers.process.threads import call_in_thread
from timers.queue import ledger_log
from timers.queue.metadata import Commit, Partition
from timers.queue.port import CommitAnswer, Outcome, Plan, Stored
from timers.queue.records import Signing, encode_key
from timers.queue.strangers import Strangers
from timers.queue.transactions import Transactions, commit_of, login, offsets
from timers.queue.verification import NO_OFFSET
from timers.wire import topics

ANSWER_S = 15.0
"""An answer that takes longer counts as lost. The brokers answer a member that joins when all others have joined."""

_log = logging.getLogger("timers.queue")

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

_LEADERS_S = 2.0
_GRACE_S = 0.5
"""Time for an answer of the leaders of partitions. The thread of the queue waits for it."""

_FIRST, _END = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]

_Name = TypeVar("_Name")

Asked: TypeAlias = dict[_Name, Future[Any]]
"""What each leader, or a broker about each topic, was asked for."""

_TIMEOUT_S = 10.0
_CLOSE_S = 10.0
"""librdkafka 2.16 does not return from ``close`` while a commit waits for brokers that are away."""

_DOWN_S = 1.5
"""After this time without a broker that takes a connection, a queue is not opened."""

_COMMITTED_TIMEOUT_S = 3.0
"""Short, because this process commits nothing while it waits for the transactions of others."""

_HEARTBEAT_MS = 500
"""A member learns of a rebalance by the answer to a heartbeat. Partitions that move to it wait so long. The client's
default is 3 s."""

_TAG_CHARACTERS = 8

_REOPEN_ADVICE = "open the queue again"

_TOPICS_S = 5.0
"""Seconds between two questions for the ids of the topics. The answer is read with the next question."""

_CONFIGS_S, _FIRST_CONFIGS_S = 15.0, 1.0
"""Seconds between two questions for the configuration of the topics, and between the first two. The answer is read with
the next question."""


class _Request(NamedTuple):
    """What to commit, what became of it, and when its answer counts as lost."""

    offsets: list[TopicPartition]
    outcome: Future[CommitAnswer]
    give_up: float


class PlainCommits:
    """The plain commits of one consumer, all made by the thread that uses it: confluent-kafka lets other threads wait.

    Args:
        group: name in messages.
    """

    def __init__(self, consumer: Consumer, group: str) -> None:
        self._consumer = consumer
        self._group = group
        self._sent: list[_Request] = []

    def commit(self, commits: Mapping[Partition, Commit]) -> CommitAnswer:
        """Commit, and wait for the outcome. A callback in ``consume`` must do so, because no answers come meanwhile."""
        try:
            return self._answer(None, self._consumer.commit(offsets=offsets(commits), asynchronous=False))
        except KafkaException as error:
            return self._failed(error.args[0])

    def begin(self, commits: Mapping[Partition, Commit]) -> Future[CommitAnswer]:
        """Send a commit. The answer comes in ``consume``."""
        request = _Request(offsets(commits), Future(), monotonic() + ANSWER_S)
        try:
            self._consumer.commit(offsets=request.offsets, asynchronous=True)
        except KafkaException as error:
            request.outcome.set_result(self._failed(error.args[0]))
        else:
            self._sent.append(request)
        return request.outcome

    def answer(self, error: KafkaError | None, committed: Sequence[TopicPartition]) -> None:
        """Note an answer. It is the callback ``on_commit`` of the consumer."""
        places = _places(committed)
        for request in self._sent:
            if _places(request.offsets) == places:
                self._sent.remove(request)
                if not request.outcome.done():
                    request.outcome.set_result(self._answer(error, committed))
                return

    def check(self) -> None:
        """Wait no longer for answers that do not come."""
        for request in self._sent:
            if not request.outcome.done() and monotonic() > request.give_up:
                _log.warning("a commit of %s is not answered within %g s", self._group, ANSWER_S)
                request.outcome.set_result(CommitAnswer(Outcome.UNKNOWN))

    def lose_answers(self) -> None:
        """Wait for no answer any more."""
        for request in self._sent:
            if not request.outcome.done():
                request.outcome.set_result(CommitAnswer(Outcome.UNKNOWN))

    def _answer(self, error: KafkaError | None, committed: Iterable[TopicPartition]) -> CommitAnswer:
        if error is not None:
            return self._failed(error)
        errors = [each.error for each in committed if each.error is not None]
        for each in errors[:1]:
            _log.warning("a commit of %s was refused: %s", self._group, limit_of(each.code()) or each)
        return CommitAnswer(Outcome.REFUSED if errors else Outcome.COMMITTED)

    def _failed(self, error: KafkaError) -> CommitAnswer:
        _log.warning("a commit of %s failed: %s", self._group, limit_of(error.code()) or error)
        return CommitAnswer(Outcome.REFUSED if error.code() in _REFUSALS else Outcome.UNKNOWN)


def _places(listed: Iterable[TopicPartition]) -> frozenset[tuple[str, int, int]]:
    return frozenset((each.topic, each.partition, each.offset) for each in listed)


def _answered(asked: Asked[_Name]) -> dict[_Name, Any]:
    """The answers that have come."""
    return {name: future.result() for name, future in asked.items() if future.done() and future.exception() is None}


def _replicas(described: Asked[str]) -> int:
    """The fewest replicas of a partition of these topics; 0 while no answer has come."""
    return min((len(each.replicas) for topic in _answered(described).values() for each in topic.partitions), default=0)


def _list_offsets(admin: Any, partitions: Iterable[Partition], which: OffsetSpec) -> Asked[Partition]:
    asked = {TopicPartition(*each): which for each in partitions}
    futures = admin.list_offsets(asked, request_timeout=_LEADERS_S) if asked else {}
    return {(each.topic, each.partition): future for each, future in futures.items()}


def _offsets(asked: Asked[Partition]) -> dict[Partition, int]:
    """The offsets that have come. librdkafka 2.16 reports a leader that did not answer without an error."""
    found = {each: int(answer.offset) for each, answer in _answered(asked).items()}
    return {each: offset for each, offset in found.items() if offset != OFFSET_INVALID}


class Transport:
    """The clients of one process for one queue. After :meth:`open` only the thread of the queue uses it, and its second
    thread for what may take long: the transactions, :meth:`decide` and :meth:`restore_ledger`. :meth:`committed` has a
    client of its own, which joins no group. Commands of the queue's member are methods of it:
    :class:`timers.queue.port.Port` says what they do.

    Attributes:
        transactions: for commits with records.
        ledger_is_lost: the ledger topic was deleted, or made anew by another one: :meth:`restore_ledger`.
        strangers: members of other programs in the group.

    Args:
        member: part of the transactional id: unique among the processes of the group, and stable over restarts.
    """

    def __init__(self, kafka: Connection, topic: str, group: str, member: str, session_timeout_s: float) -> None:
        self.topic = topic
        self.group = group
        self.returns_topic = topics.queue_returns(group)
        self.ledger_topic = topics.queue_ledger(group)
        self._own = [topic, self.returns_topic, self.ledger_topic]
        self._settings = kafka.settings
        self._member = member
        self._session_timeout_s = session_timeout_s
        self._reports = connection.ErrorReports(kafka.settings)
        self._login: dict[str, Any] = {**login(kafka.settings), **self._reports.callbacks}
        self._admin: Any = None
        self.ledger_is_lost = False
        self._described: Asked[str] = {}
        self._answered_at = monotonic()
        self._lost, self._asking_lost = LostBrokers(), LostBrokers()
        self._next_topics = 0.0
        self._configs: Asked[str] = {}
        self._log_of_transactions: Asked[str] = {}
        self._transactions_asked_at = -math.inf
        self._next_configs = 0.0
        self._wrong_configs: list[WrongConfig] = []
        self._firsts: Asked[Partition] = {}
        self._consumer: Consumer | None = None
        self._asking: Consumer
        self._plain: PlainCommits
        self._logs: dict[str, str] = {}
        self._count = self._seen_count = self._returns_count = 0
        self.transactions = Transactions(kafka, self._reports, group, member, self.ledger_topic)
        self.strangers = Strangers(group)

    # ---- opening -------------------------------------------------------------------------------------------------

    def open(
        self, assigned: Callable[[list[Partition]], None], revoked: Callable[..., None], is_over: Callable[[], bool]
    ) -> Signing:
        """Create the internal topics and join the group. Returns the keys of the queue.

        Args:
            assigned: called in :meth:`poll` with new partitions, which are not read before :meth:`start`.
            revoked: called in :meth:`poll` with lost ones, and ``lost=True`` if another member may own them already.
            is_over: whether to wait for the brokers no longer.

        Raises:
            QueueError: the topic does not exist, or the brokers do not answer.
        """
        self._admin = admin = admin_client(self._settings, self._reports)
        try:
            count = connection.partitions_of(
                admin,
                self._reports,
                self.topic,
                # A process that has been open before waits longer: its brokers may start again.
                is_over=lambda waited_s: (
                    is_over() or (not self._logs and self._reports.are_down and waited_s >= _DOWN_S)
                ),
            )
            self._count = self._seen_count = count
            if not count:
                raise QueueError(
                    f"topic {self.topic!r} does not exist at {self._settings.brokers}: "
                    f"create it with `timers topics create {self.topic}`"
                )
            # To ask first needs fewer rights: brokers refuse to create a topic before they look whether it exists.
            self._returns_count = connection.partitions_of(admin, self._reports, self.returns_topic)
            is_new = not self._returns_count
            if is_new:
                config = kept_config(self._settings)
                create_if_missing(self._settings, self.returns_topic, partitions=count, config=config)
                self._returns_count = count
            if not connection.partitions_of(admin, self._reports, self.ledger_topic):
                self._make_ledger()
            self._logs = self._topic_tags()
            self.transactions.open()
            signing = ledger_log.signing(self._login, self.group, is_new=is_new)
        except KafkaException as error:
            raise self._reports.user_error(error, f"the queue {self.topic!r} cannot be opened", QueueError) from error
        plain: PlainCommits
        self._open_asking()
        self._lost = LostBrokers()
        self._consumer = Consumer(
            {
                **self._group_config,
                **self._lost.properties,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "on_commit": lambda error, committed: plain.answer(error, committed),
                "auto.offset.reset": "error",
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": int(self._session_timeout_s * 1000),
                "heartbeat.interval.ms": _HEARTBEAT_MS,
                "fetch.wait.max.ms": 100,
                "fetch.queue.backoff.ms": 20,
                "queued.max.messages.kbytes": 16_384,
            },
            logger=LIBRDKAFKA_LOG,
        )
        self._plain = plain = PlainCommits(self._consumer, self.group)
        self._consumer.subscribe(
            [self.topic],
            on_assign=partial(self._on_assign, assigned),
            on_revoke=partial(self._on_revoke, partial(revoked, lost=False)),
            on_lost=partial(self._on_revoke, partial(revoked, lost=True)),
        )
        return signing

    def _open_asking(self) -> None:
        self._asking_lost = LostBrokers()
        self._asking = Consumer({**self._group_config, **self._asking_lost.properties}, logger=LIBRDKAFKA_LOG)

    def _make_ledger(self) -> None:
        create_if_missing(
            self._settings, self.ledger_topic, partitions=1, cleanup_policy="compact", config=SMALL_SEGMENTS
        )

    def restore_ledger(self, signing: Signing) -> None:
        """Make the ledger topic anew, and write the keys of the queue there. The next transaction has copies. Blocks.

        Raises:
            KafkaException, TimersError: the brokers do not answer, or refuse.
        """
        self._make_ledger()
        keys = [encode_key(self.group, *each) for each in signing.keys.items()]
        ledger_log.write(self._login, self.group, keys)
        self._logs[self.ledger_topic] = self._topic_tags()[self.ledger_topic]
        self._described, self.ledger_is_lost = {}, False
        _log.error(
            "topic %s was deleted: it is made anew, with the keys and the commits that this process has. Copies of "
            "partitions without an owner, and keys of processes that have ended, are lost",
            self.ledger_topic,
        )

    def _on_revoke(
        self, revoked: Callable[[list[Partition]], None], consumer: Consumer, partitions: list[TopicPartition]
    ) -> None:
        if consumer is self._consumer:  # else the consumer was given up
            self.strangers.look_soon()
            revoked(self._with_returns(partitions))

    def _on_assign(
        self, assigned: Callable[[list[Partition]], None], _: Consumer, partitions: list[TopicPartition]
    ) -> None:
        self.strangers.look_soon()
        assigned(self._with_returns(partitions))
        self.consumer.incremental_assign([])  # without this call the client chooses the offset to read from

    def _with_returns(self, partitions: Iterable[TopicPartition]) -> list[Partition]:
        """Add to partitions of the queue's topic those of the returns topic with the same numbers.

        The group assigns only the queue's topic. If it assigned both topics, one process could get all partitions of
        one topic, and another process all of the other. The returns topic may have more partitions if the queue's topic
        was deleted and created again with fewer.
        """
        numbers = {each.partition for each in partitions}
        returned = (number for number in range(self._returns_count) if number % self._count in numbers)
        return [*((self.topic, each) for each in numbers), *((self.returns_topic, each) for each in returned)]

    def _topic_tags(self) -> dict[str, str]:
        """Return a few characters of each topic's id, which differs from that of a deleted topic of the same name."""
        give_up = monotonic() + _TIMEOUT_S
        while True:
            try:
                asked, until = self._describe(self._own), connection.give_up_at(_TIMEOUT_S)
                return {name: tag_of(connection.answer(future, until)) for name, future in asked.items()}
            except KafkaException as error:  # a broker may not know a new topic yet
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART or monotonic() > give_up:
                    raise
                sleep(0.1)

    def _describe(self, names: list[str]) -> Asked[str]:
        described: Asked[str] = self._admin.describe_topics(TopicCollection(names), request_timeout=_TIMEOUT_S)
        return described

    def check_members(self) -> str | None:
        """Return who else is in the group, as of the last look; see :class:`Strangers`."""
        self.strangers.check(self._admin)
        return self.strangers.sentence

    def check_configs(self) -> None:
        """Ask for the configuration of the topics from time to time, without waiting, and log what is wrong in the
        answers to the question before. A topic whose configuration may not be read is left out."""
        if monotonic() < self._next_configs:
            return
        answers = {name: config_of(self._configs[name]) for name in _answered(self._configs)}
        own = partial(OwnTopic, operations=(), must_last=True)
        retries_end = Effect(WARNING, "so larger retried messages become dead letters")
        topics = [
            own(self.topic, {"cleanup.policy": "delete"}),  # users decide how long messages stay on their topic
            own(self.returns_topic, kept_config(self._settings), needs_all_records=True, too_large=retries_end),
            own(self.ledger_topic, {"cleanup.policy": "compact"}),
        ]
        replicas = _replicas(self._described)
        judged = [(topic, answers[topic.name], replicas) for topic in topics if topic.name in answers]
        if TRANSACTION_LOG.name in answers:
            judged.append((TRANSACTION_LOG, answers[TRANSACTION_LOG.name], _replicas(self._log_of_transactions)))
        found = wrong_configs(self._settings.brokers, judged, 1, kept="messages")
        wrong = [each for each in found if each.severity != NOTE]  # workers report notes, such as a single replica
        log_new(wrong, self._wrong_configs, _log)
        self._wrong_configs = wrong
        self._next_configs = monotonic() + (_CONFIGS_S if self._configs else _FIRST_CONFIGS_S)
        names, self._log_of_transactions = list(self._own), {}
        if transactions_due(monotonic() - self._transactions_asked_at, wrong):
            names.append(TRANSACTION_LOG.name)
            self._log_of_transactions = self._describe([TRANSACTION_LOG.name])
            self._transactions_asked_at = monotonic()
        self._configs = ask_for_configs(self._admin, names, _TIMEOUT_S)

    @property
    def _group_config(self) -> dict[str, Any]:
        return {
            **self._login,
            "group.id": self.group,
            "client.id": f"{self.group}-{self._member}",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",  # committed() then waits for undecided transactions, too
        }

    @property
    def consumer(self) -> Consumer:
        assert self._consumer is not None
        return self._consumer

    def member(self) -> Any:
        return self.consumer.consumer_group_metadata()

    def close(self) -> None:
        """Leave the group. Callbacks of rebalances run in this call, in another thread."""
        try:
            if self._consumer is not None:
                self._leave(self._consumer)
        finally:  # also if a callback fails: its producer would keep its connections, and its transactional id
            self._consumer = self._admin = None
            self._described, self._firsts, self._configs, self._log_of_transactions = {}, {}, {}, {}
            self.transactions.close()

    def _leave(self, consumer: Consumer) -> None:
        self._plain.lose_answers()
        closing = call_in_thread("queue-close", _close, consumer, self._asking)
        wait([closing], _CLOSE_S)
        if closing.done():
            closing.result()
        else:
            text = (
                "the brokers did not confirm within %g s that this process has left %s: other processes get its "
                "partitions when its session has timed out"
            )
            _log.warning(text, _CLOSE_S, self.group)

    # ---- reading -------------------------------------------------------------------------------------------------

    def poll(self, limit: int, wait_s: float) -> list[Any]:
        """Return up to ``limit`` records and ends of partitions. Callbacks of rebalances run in this call."""
        self._plain.check()
        records: list[Any] = self.consumer.consume(limit, wait_s)
        return records

    def start(self, positions: Mapping[Partition, tuple[int, int]]) -> None:
        # If the leader changes, librdkafka asks where the leader epoch ends.
        self.consumer.incremental_assign(
            [TopicPartition(*each, offset, leader_epoch=epoch) for each, (offset, epoch) in positions.items()]
        )

    def ask(self, partition: Partition, epoch: int) -> bool:
        # An event holds the answer, because no log has the offset that is sought.
        try:
            self.consumer.seek(TopicPartition(*partition, NO_OFFSET, leader_epoch=epoch))
        except KafkaException:
            return False
        return True

    def stop(self, partitions: Iterable[Partition]) -> None:
        self.consumer.incremental_unassign([TopicPartition(*each) for each in partitions])

    def pause(self, partitions: Collection[Partition]) -> None:
        if partitions:
            self.consumer.pause([TopicPartition(*each) for each in partitions])

    def resume(self, partitions: Collection[Partition]) -> None:
        if partitions:
            self.consumer.resume([TopicPartition(*each) for each in partitions])

    def seek(self, partition: Partition, offset: int) -> None:
        with contextlib.suppress(KafkaException):
            self.consumer.seek(TopicPartition(*partition, offset))

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, Commit | None]:
        """Return what is committed, once no transaction on it is undecided.

        Raises:
            KafkaException: the brokers do not answer, or a transaction stays undecided.
        """
        asked = [TopicPartition(*each) for each in partitions]
        found = {}
        for each in self._asking.committed(asked, timeout=_COMMITTED_TIMEOUT_S) if asked else ():
            if each.error is not None:
                raise KafkaException(each.error)
            found[each.topic, each.partition] = None if each.offset < 0 else commit_of(each)
        return found

    def bounds(self, partitions: Iterable[Partition]) -> dict[Partition, tuple[int, int]]:
        asked = list(partitions)
        firsts, ends = _list_offsets(self._admin, asked, _FIRST), _list_offsets(self._admin, asked, _END)
        wait([*firsts.values(), *ends.values()], _LEADERS_S + _GRACE_S)
        low, high = _offsets(firsts), _offsets(ends)
        return {each: (low[each], high[each]) for each in low.keys() & high.keys()}

    def first_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        # One request for each partition would block the thread of the queue as long as their leaders are away.
        found = _offsets(self._firsts)
        self._firsts = _list_offsets(self._admin, partitions, _FIRST)
        return found

    def check_topics(self) -> int:
        """Ask for the topics from time to time, without waiting, and look at the answers to the question before; return
        how many partitions were added to the queue's topic since then.

        Raises:
            QueueError: a topic with messages was deleted.
        """
        if monotonic() < self._next_topics:
            return 0
        self._asking.poll(0)  # poll() lets the client report its statistics: nothing else does
        if self._asking_lost.are_all:
            _log.warning("the client that asks for commits of %s %s: it is made anew", self.group, LOST_BROKERS)
            self._open_asking()  # the former one is freed when no call of the second thread uses it
        added = 0
        for name, described in self._described.items():
            error = described.exception() if described.done() else None
            is_missing = isinstance(error, KafkaException) and code_of(error) in NO_TOPIC
            if not is_missing and (not described.done() or error is not None):
                continue
            self._answered_at = monotonic()
            is_other = is_missing or tag_of(described.result()) != self._logs[name]
            if is_other and name == self.ledger_topic:
                self.ledger_is_lost = True
            elif is_missing and name == self.topic:
                raise QueueError(
                    f"topic {name!r} was deleted. Create it with `timers topics create {name}`, and {_REOPEN_ADVICE}"
                )
            elif is_missing:
                raise QueueError(
                    f"topic {name!r} was deleted, and the messages on it. To make it anew, {_REOPEN_ADVICE}"
                )
            elif is_other:
                raise QueueError(f"topic {name!r} was deleted and created again: {_REOPEN_ADVICE}")
            elif name == self.topic:
                count, self._seen_count = self._seen_count, len(described.result().partitions)
                added = self._seen_count - count
        self._described, self._next_topics = self._describe(self._own), monotonic() + _TOPICS_S
        return added

    @property
    def silent_s(self) -> float:
        """Seconds since the brokers have told another client than the one in the group about a topic. Any thread."""
        return monotonic() - self._answered_at

    @property
    def must_open_anew(self) -> bool:
        """Whether the consumer has lost all brokers, and these answer another client: so :meth:`open` may succeed."""
        return self._lost.are_all and self.silent_s < 2 * _TOPICS_S

    def delete_below(self, offsets: Mapping[Partition, int]) -> None:
        if offsets:
            self._admin.delete_records([TopicPartition(*each, offset) for each, offset in offsets.items()])

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {each: self.consumer.get_watermark_offsets(TopicPartition(*each), cached=True)[1] for each in partitions}

    def note_kept_out(self) -> None:
        self.strangers.note_kept_out()

    def load(self, partitions: Iterable[Partition]) -> Stored:
        commits = self.committed(partitions)
        copies = ledger_log.read(self._login, self.group).copies if None in commits.values() else {}
        return Stored(commits, copies, self.bounds(commits), self._logs)

    # ---- committing ----------------------------------------------------------------------------------------------

    def begin_commit(self, plan: Plan) -> Future[CommitAnswer]:
        """Begin a plain commit. The answer comes in :meth:`poll`."""
        return self._plain.begin(plan.commits)

    def lose_answers(self) -> None:
        """Let the answers to plain commits count as lost, in a callback of :meth:`poll`: they cannot come there."""
        self._plain.lose_answers()

    def commit(self, plan: Plan) -> CommitAnswer:
        """Make a plain commit, in a callback of :meth:`poll`."""
        return self._plain.commit(plan.commits)

    def decide(self, plan: Plan) -> dict[Partition, Commit | None]:
        self.transactions.connect()
        return self.committed(plan.commits)

    def user_error(self, error: KafkaException, failed: str) -> TimersError:
        """Return librdkafka's error as a sentence for users."""
        return self._reports.user_error(error, failed, QueueError)


def tag_of(described: Any) -> str:
    """Return a few characters of a topic's id, which differs from that of a deleted topic of the same name."""
    return str(described.topic_id)[:_TAG_CHARACTERS]


def _close(consumer: Consumer, asking: Consumer) -> None:
    """Close the clients of one opening. It may end after the next opening has begun, so it knows only its own."""
    try:
        consumer.close()
    finally:
        asking.close()
