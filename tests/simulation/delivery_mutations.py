"""Classes that each break one decision of the delivery policy; see :mod:`tests.simulation.mutations`."""

from __future__ import annotations

from typing import Any

from tests.simulation.edits import changed
from timers.core.chunk_size import ChunkSize
from timers.core.progress import Progress
from timers.core.timer import Tick, TopicPartition
from timers.testing import SimOutbox
from timers.testing.faults import Faults
from timers.testing.log import SimLog
from timers.testing.outbox import Buffered, SimRoutes


class _FixedPartition(SimOutbox):
    """Records for one topic of the engine go to their partition, whether it has a leader or not."""

    topic = ""

    def __init__(self, log: SimLog, settings: Any, machine: TopicPartition, faults: Faults, routes: SimRoutes) -> None:
        fixed, available = getattr(settings, self.topic), routes.available

        class Facts:
            def __getattr__(self, name: str) -> Any:
                return getattr(routes, name)

            def available(self, topic: str, partition: int) -> int:
                return partition if topic == fixed else available(topic, partition)

        facts: Any = Facts()
        super().__init__(log, settings, machine, faults, facts)


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


class CommitsWithoutRefused(SimOutbox):
    """A transaction is committed although a broker refused some of its records."""

    def _produce(self, progress: Progress) -> list[Buffered]:
        super()._produce(progress)
        return []


class KeepsRefusedTransactions(SimOutbox):
    """A transaction with refused records is not aborted before it is sent again."""

    def refill(self, tick: Tick, records: Any) -> None:
        super().refill(tick, records)
        self._records.added[:0] = self._sent

    def _produce(self, progress: Progress) -> list[Buffered]:
        refused = super()._produce(progress)
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


CHANGED = {
    "delivery: rules are ignored": changed(("self._rules.check_topic(topic)", "None")),
    "delivery: topics of other apps' workers are targets": changed(
        ("self._rules.check_topic(topic)", "None if topic == 'other-progress' else self._rules.check_topic(topic)"),
    ),
    "delivery: open circuits are ignored": changed(
        (
            "self._routes.route(topic, retried=self.retried)",
            "1 if isinstance(route := self._routes.route(topic, retried=self.retried), DeliveryProblem) "
            "and route.open_s is not None else route",
        ),
    ),
    "delivery: a topic is missing if no broker says that it exists": changed(
        (
            "self._routes.route(topic, retried=self.retried)",
            "self._routes.route(topic, retried=self.retried) or DeliveryProblem.unknown(topic)",
        ),
    ),
    "delivery: timers of a topic without an answer are dropped": changed(
        (
            "unanswered, self.unanswered = self.unanswered, {}",
            """
unanswered, self.unanswered = self.unanswered, {}
for topic in [*unanswered]:
    if self._routes.route(topic, retried=self.retried) is None:
        del unanswered[topic]
""",
        ),
    ),
    "delivery: all timers go to the topic of the first": changed(("all(row[1] == first for row in rows)", "True")),
    "delivery: no topic is split": changed(
        (
            "topic == self._settings.request_topic or topic in self._routes.max_message_bytes "
            "or topic in self._refused or topic in self._keyless",
            "False",
        ),
    ),
    "delivery: too large timers are dropped": changed(("...(due_s, [row], sent)", "None")),
    "delivery: callbacks to the request topic are not checked": changed(
        ("self._rules.next_request(row, origin.due_s) if ... else row", "row"),
    ),
    "delivery: timers of a failing topic are dropped": changed(
        ("attempt = 0 if problem.open_s is None else 1", "return"),
    ),
    "delivery: too large timers are retried": changed(
        ("size = self._output.retry(row, origin, again_s)", "self._output.retry(row, origin, again_s); size = None"),
    ),
    "delivery: postponed for ever": changed(
        (
            "again.attempt > self._settings.retry_attempts or self._output.retry(row, again, again_s) is not None",
            "self._output.retry(row, again, again_s) is False",
        ),
    ),
    "delivery: dead letter at the first failed retry": changed(
        ("origin.attempt >= self._settings.retry_attempts", "True"),
    ),
    "delivery: a first attempt does not count": changed(("0 if problem.open_s is None else 1", "0")),
    "delivery: tried again at once": changed(("self._tick.second + max(..., ...)", "self._tick.second")),
    "delivery: tried for ever": changed(
        (
            "self._output.give_up(GivenUp(row, origin, problem.code, problem.reason))",
            "self._output.retry(row, origin._replace(attempt=origin.attempt + 1), self._tick.second + 1)",
        ),
        ("origin.attempt >= self._settings.retry_attempts", "False"),
        ("again_s = ...(origin.attempt, problem)", "again_s = self._tick.second + 1"),
    ),
    "delivery: a retried timer has another source": changed(
        ("return Origin(*row[5] or ())", "return Origin(self._output.source(row[0]), due_s, 1)"),
    ),
    "[P3] a postponed timer has another source": changed(
        ("return Origin(*row[5] or ())", "return Origin(self._output.source(row[0]), due_s, 0)"),
    ),
    "delivery: a retried timer is sent as a new one": changed(
        (
            "self._output.send_retried(topic, partitions, rows)",
            "self._output.send(topic, partitions, due_s, [(*row[:5], None) for row in rows])",
        ),
    ),
    "delivery: a postponed schedule gets no tombstone": changed(
        ("...(due_s, self._output.end_schedules(rows), again_s)", "...(due_s, rows, again_s)"),
    ),
    "delivery: a rejected schedule gets no tombstone": changed(("self._output.end_schedule(rejection)", "None")),
    "delivery: a rejected record that is no schedule gets a tombstone": changed(("rejection.code == OVERDUE", "True")),
    "delivery: a refusal is not noted": changed(
        ("self._refused.setdefault(topic, {})", "{}"),
        ("refused.setdefault(callback, problem) is problem", "False"),
    ),
    "delivery: one callback without a key ends all of its topic": changed(
        ("sent[2] is None and topic in self._keyless", "topic in self._keyless"),
    ),
    "delivery: callbacks without a key are refused again and again": changed(
        ("self._keyless[topic] = self._tick.second + KEYLESS_S, problem", "pass"),
    ),
    "delivery: refused callbacks are dropped": changed(
        ("...(due_s, [row], sent)", "topic in self._refused or ...(due_s, [row], sent)"),
    ),
    "delivery: shrunk chunks split no fetch": changed(
        ("bool(late or decoded.rejected or decoded.forwarded or decoded.operations)", "False"),
    ),
    "delivery: a part of a fetch counts as the whole": changed(
        ("range(0, len(records), max_records)", "range(1)"),
        (
            "records[start + max_records].offset if start + max_records < len(records) else to_offset",
            "to_offset",
        ),
    ),
    "delivery: a part of a stored group counts as the whole": changed(
        (
            "...(after, count)",
            "...(replace(after, fired_through=(due_s, rest[-1][0])) if rest else after, count)",
        ),
    ),
}
