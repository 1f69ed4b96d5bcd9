"""Classes that each break one decision of the delivery policy; see :mod:`tests.simulation.mutations`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from timers.core.chunk_size import ChunkSize
from timers.core.delivery import Callback, Delivery, DeliveryProblem, RetryDelivery, Rules, ScheduleDelivery
from timers.core.keys import MAX_OFFSET
from timers.core.machine import Machine
from timers.core.progress import Progress
from timers.core.timer import Decoded, Origin, Rejected, Row, Tick, TopicPartition
from timers.testing import SimOutbox
from timers.testing.faults import Faults
from timers.testing.log import SimLog
from timers.testing.outbox import Buffered, SimRoutes


class _AllowsAll:
    """The rules of a worker that allows each target."""

    def __init__(self, rules: Rules) -> None:
        self.next_request = rules.next_request

    def check_topic(self, topic: str) -> None:
        return None


class IgnoresCallbackRules(Delivery):
    """A callback goes to any topic."""

    def _route(self, topic: str) -> int | DeliveryProblem | None:
        rules, self._rules = self._rules, _AllowsAll(self._rules)
        try:
            return super()._route(topic)
        finally:
            self._rules = rules


class AllowsProgressOfOtherApps(IgnoresCallbackRules):
    """A callback goes to any topic that is not this app's own, also to the progress topic of another app."""

    def _route(self, topic: str) -> int | DeliveryProblem | None:
        return super()._route(topic) if topic == "other-progress" else Delivery._route(self, topic)


class SendsToOpenCircuits(Delivery):
    """[I6]: every transaction tries a failing topic, and delays the other timers."""

    def _route(self, topic: str) -> int | DeliveryProblem | None:
        route = super()._route(topic)
        return 1 if isinstance(route, DeliveryProblem) and route.open_s is not None else route


class TakesSilenceForMissing(Delivery):
    """[I6]: a topic does not exist if no broker says that it does."""

    def _route(self, topic: str) -> int | DeliveryProblem | None:
        return super()._route(topic) or DeliveryProblem.unknown(topic)


class DropsTimersOfUnansweredTopics(Delivery):
    """Timers of a topic are lost if no broker says whether it exists."""

    def end_wait(self) -> None:
        self.unanswered = {topic: rows for topic, rows in self.unanswered.items() if self._route(topic) is not None}
        super().end_wait()


class UsesTheTopicOfTheFirst(Delivery):
    """All timers of one second go to the topic of the first."""

    def _deliver(self, due_s: int, rows: Sequence[Row]) -> None:
        self._deliver_to(rows[0][1], due_s, rows)


class DoesNotSplit(Delivery):
    """A topic takes all timers of a second or none."""

    def _split(self, topic: str, due_s: int, rows: Sequence[Row]) -> list[Row]:
        return list(rows)


class DropsTooLarge(Delivery):
    """A topic with a size limit gets the timers that fit; the others are lost."""

    def _split(self, topic: str, due_s: int, rows: Sequence[Row]) -> list[Row]:
        judged = [self._judge(topic, row, self._origin(row, due_s)) for row in rows]
        return [row for row in judged if not isinstance(row, DeliveryProblem)]


class ChecksNoChainedRequest(Delivery):
    """A callback to the request topic itself is sent without a check."""

    def _judge(self, topic: str, row: Row, origin: Origin) -> Row | DeliveryProblem:
        return row if topic == self._settings.request_topic else super()._judge(topic, row, origin)


class DropsTimersOfFailingTopics(Delivery):
    """Timers of a failing topic are lost."""

    def _hold_back(self, due_s: int, rows: Sequence[Row], problem: DeliveryProblem) -> None:
        if isinstance(self, RetryDelivery):
            super()._hold_back(due_s, rows, problem)


class RetriesTooLarge(Delivery):
    """A timer that is too large for the retry topic is written to it."""

    def _retry(self, row: Row, origin: Origin, again_s: int, problem: DeliveryProblem) -> None:
        self._output.retry(row, origin, again_s)


class PostponesWithoutLimit(Delivery):
    """Timers above the catch-up limit are postponed without limit."""

    def _put_off(self, due_s: int, rows: Sequence[Row], again_s: int) -> None:
        for row in rows:
            origin = self._origin(row, due_s)
            self._output.retry(row, origin._replace(attempt=origin.attempt + 1), again_s)


class DeadLetterAtFirstRetry(Delivery):
    """A timer becomes a dead letter at its first failed retry."""

    def _hold_back(self, due_s: int, rows: Sequence[Row], problem: DeliveryProblem) -> None:
        if isinstance(self, RetryDelivery):
            problem = problem._replace(open_s=None)
        super()._hold_back(due_s, rows, problem)


class CountsNoFirstAttempt(Delivery):
    """A timer of a failing topic is moved to the retry topic, and its first attempt does not count."""

    def _retry(self, row: Row, origin: Origin, again_s: int, problem: DeliveryProblem) -> None:
        first = not isinstance(self, RetryDelivery)
        super()._retry(row, origin._replace(attempt=0) if first else origin, again_s, problem)


class RetriesAtOnce(Delivery):
    """A timer of a failing topic is tried again in the same second."""

    def _again_s(self, attempts: int, problem: DeliveryProblem) -> int:
        return self._tick.second


class RetriesWithoutLimit(Delivery):
    """A retried timer never becomes a dead letter."""

    def _hold_back(self, due_s: int, rows: Sequence[Row], problem: DeliveryProblem) -> None:
        if not isinstance(self, RetryDelivery):
            return super()._hold_back(due_s, rows, problem)
        for row in rows:
            origin = self._origin(row, due_s)
            self._output.retry(row, origin._replace(attempt=origin.attempt + 1), self._tick.second + 1)
        return None


class RetriesWithAnotherSource(Delivery):
    """The source of a retried timer is its record in the retry topic."""

    def _origin(self, row: Row, due_s: int) -> Origin:
        if isinstance(self, RetryDelivery):
            return Origin(self._output.source(row[0]), due_s, 1)
        return super()._origin(row, due_s)


class FiresRetriesAsNewRequests(Delivery):
    """A timer from the retry topic fires as a request of that topic."""

    def _send(self, topic: str, partitions: int, due_s: int, rows: Sequence[Row]) -> None:
        if isinstance(self, RetryDelivery):
            rows = [(*row[:5], None) for row in rows]
            return self._output.send(topic, partitions, due_s, rows)
        return super()._send(topic, partitions, due_s, rows)


class PostponedScheduleGetsNoTombstone(Delivery):
    """A postponed schedule gets no tombstone."""

    def postpone(self, due_s: int, rows: Sequence[Row], again_s: int) -> None:
        self._put_off(due_s, rows, again_s)


class RejectedScheduleGetsNoTombstone(Delivery):
    """A rejected schedule gets no tombstone."""

    def reject(self, rejected: Sequence[Rejected]) -> None:
        if isinstance(self, ScheduleDelivery):
            Delivery.reject(self, rejected)
        else:
            super().reject(rejected)


class EndsRejectedRequests(Delivery):
    """Each rejected record of a schedule topic gets a tombstone, also one that is no schedule."""

    def reject(self, rejected: Sequence[Rejected]) -> None:
        Delivery.reject(self, rejected)
        if isinstance(self, ScheduleDelivery):
            for rejection in rejected:
                self._output.end_schedule(rejection)


class _FixedPartition(SimOutbox):
    """Records for one topic of the engine go to their partition, whether it has a leader or not."""

    topic = ""

    def __init__(self, log: SimLog, settings: Any, machine: TopicPartition, faults: Faults, routes: SimRoutes) -> None:
        super().__init__(log, settings, machine, faults, routes)
        fixed, available = getattr(settings, self.topic), routes.available

        class Facts:
            def __getattr__(self, name: str) -> Any:
                return getattr(routes, name)

            def available(self, topic: str, partition: int) -> int:
                return partition if topic == fixed else available(topic, partition)

        facts: Any = Facts()
        self._outgoing._topics = facts


class RetriesNeedTheirPartition(_FixedPartition):
    """Retries wait until their partition has a leader."""

    topic = "retry_topic"


class DeadLettersNeedTheirPartition(_FixedPartition):
    """Dead letters wait until their partition has a leader."""

    topic = "dead_letter_topic"


class ColdRequestsNeedTheirPartition(_FixedPartition):
    """Cold requests wait until their partition has a leader."""

    topic = "cold_topic"


class VerdictsNeedTheirPartition(_FixedPartition):
    """Verdicts wait until their partition has a leader."""

    topic = "verdict_topic"


class NotesNoRefusal(Delivery):
    """A refused record is sent again in the next transaction."""

    def refuse(self, topic: str, callback: Callback, problem: DeliveryProblem) -> bool:
        return False


class RefusesAllWhereOneHadNoKey(Delivery):
    """After a callback without a key was refused, the topic gets no callback."""

    def _judge(self, topic: str, row: Row, origin: Origin) -> Row | DeliveryProblem:
        return self._keyless[topic][1] if topic in self._keyless else super()._judge(topic, row, origin)


class ForgetsWhichTopicsNeedKeys(Delivery):
    """Each transaction sends callbacks without a key to a topic that has refused one."""

    def refuse(self, topic: str, callback: Callback, problem: DeliveryProblem) -> bool:
        is_new = super().refuse(topic, callback, problem)
        self._keyless.clear()
        return is_new


class DropsRefusals(Delivery):
    """Callbacks of a topic that refused a record are lost."""

    def _split(self, topic: str, due_s: int, rows: Sequence[Row]) -> list[Row]:
        if topic not in self._refused:
            return super()._split(topic, due_s, rows)
        judged = [self._judge(topic, row, self._origin(row, due_s)) for row in rows]
        return [row for row in judged if not isinstance(row, DeliveryProblem)]


class CommitsWithoutRefused(SimOutbox):
    """A transaction is committed although a broker refused some of its records."""

    def _send(self, progress: Progress) -> list[Buffered]:
        super()._send(progress)
        return []


class KeepsRefusedTransactions(SimOutbox):
    """A transaction with refused records is not aborted before it is sent again."""

    def _begin_again(self, tick: Tick, records: Any) -> None:
        super()._begin_again(tick, records)
        self._records.added[:0] = self._sent

    def _send(self, progress: Progress) -> list[Buffered]:
        refused = super()._send(progress)
        self._sent = [record for record in self._records.added if record not in refused]
        return refused


class RefusesWholeBatches(SimOutbox):
    """If a broker does not say which record it refuses, all records of the batch become dead letters."""

    def _may_be_another(self, refused: Buffered) -> bool:
        return False

    def _fill_and_send(self, progress: Progress) -> list[Buffered]:
        places = {record[:2] for record in super()._fill_and_send(progress)}
        return [record for record in self._records.added if record[:2] in places]


class NeverShrinks(SimOutbox):
    """After a time-out, the next transaction has as many timers."""

    class _Chunk(ChunkSize):
        def failed(self) -> None:
            return None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.chunk = self._Chunk()


class SplitsNoGroup(SimOutbox):
    """A chunk of one timer has all timers of a stored group."""

    class _Chunk(ChunkSize):
        reduced = False

    def __init__(self, log: SimLog, settings: Any, machine: TopicPartition, faults: Faults, routes: SimRoutes) -> None:
        routes.chunks.setdefault(machine, self._Chunk())
        super().__init__(log, settings, machine, faults, routes)


class SplitsNoFetch(Machine):
    """The output of a fetch is one transaction, also while the brokers are slow."""

    def _may_emit(self, decoded: Decoded) -> bool:
        return False


class AcceptsOnePartOfAFetch(Machine):
    """While the brokers are slow, only the first part of a fetch is read."""

    def _accept_new(self, records: Sequence[Any], to_offset: int) -> None:
        super()._accept_new(records[: self._outbox.chunk.timers], to_offset)


class FiresOnePartOfAGroup(Machine):
    """After a part of a stored group has fired, the whole group counts as fired."""

    def _commit(self, after: Progress, timers: int = 0) -> None:
        due_s, offset = after.fired_through
        if self._outbox.chunk.reduced and offset != MAX_OFFSET and after.fired_through != self.progress.fired_through:
            groups = self._store.scan(self.progress.fired_through, due_s)
            ends = [rows[-1][0] for second, rows in groups if second == due_s and rows[0][0] <= offset]
            after = replace(after, fired_through=(due_s, max(ends)))
        super()._commit(after, timers)
