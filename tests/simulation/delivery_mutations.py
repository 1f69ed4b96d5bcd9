"""Classes that each break one decision of the delivery policy; see :mod:`tests.simulation.mutations`."""

from collections.abc import Sequence
from typing import Any

from tests.simulation.edits import changed, sending
from tests.simulation.kit.outbox import SimTransactions


class CommitsWithoutRefused(SimTransactions):
    """A transaction is committed although a broker refused some of its records."""

    def send(self, batches: Sequence[Any], offsets: Any) -> list[Any]:
        super().send(batches, offsets)
        return []


class KeepsRefusedTransactions(SimTransactions):
    """A transaction with refused records is not aborted before it is sent again."""

    _kept: Sequence[Any] = ()

    def send(self, batches: Sequence[Any], offsets: Any) -> list[Any]:
        refused = super().send([*self._kept, *batches], offsets)
        bad = [batch for batch, _ in refused]
        self._kept = [each for each in batches if refused and each[2] not in bad]
        return refused


CHANGED = {
    "delivery: rules are ignored": changed(("self._rules.check_topic(topic) or ...", "...")),
    "delivery: topics of other apps' workers are targets": changed(
        (
            "self._rules.check_topic(topic) or ...",
            "(None if topic == 'other-progress' else self._rules.check_topic(topic)) or ...",
        ),
    ),
    "delivery: open circuits are ignored": changed(
        (
            "self._topics.route(topic, retried=self.retried)",
            "1 if isinstance(route := self._topics.route(topic, retried=self.retried), DeliveryProblem) "
            "and route.open_s is not None else route",
        ),
    ),
    "delivery: a topic is missing if no broker says that it exists": changed(
        (
            "self._topics.route(topic, retried=self.retried)",
            "self._topics.route(topic, retried=self.retried) or DeliveryProblem.unknown(topic)",
        ),
    ),
    "delivery: timers of a topic without an answer are dropped": changed(
        (
            "unanswered, self.unanswered = self.unanswered, {}",
            """
unanswered, self.unanswered = self.unanswered, {}
for topic in [*unanswered]:
    if self._topics.route(topic, retried=self.retried) is None:
        del unanswered[topic]
""",
        ),
    ),
    "delivery: all timers go to the topic of the first": changed(("are_for(first, due)", "True")),
    "delivery: no topic is split": changed(
        (
            "topic == self._settings.request_topic or topic in self._topics.max_message_bytes "
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
        (
            "size = self.transaction.retry(row, origin, again_s)",
            "self.transaction.retry(row, origin, again_s); size = None",
        ),
    ),
    "delivery: postponed for ever": changed(
        (
            "again.attempt > self._settings.retry_attempts or self.transaction.retry(row, again, again_s) is not None",
            "self.transaction.retry(row, again, again_s) is False",
        ),
    ),
    "delivery: dead letter at the first failed retry": changed(
        ("origin.attempt >= self._settings.retry_attempts", "True"),
    ),
    "delivery: a first attempt does not count": changed(("0 if problem.open_s is None else 1", "0")),
    "delivery: tried again at once": changed(
        ("self.transaction.tick.second + max(..., ...)", "self.transaction.tick.second")
    ),
    "delivery: tried for ever": changed(
        (
            "self.transaction.give_up(GivenUp(row, origin, problem.code, problem.reason))",
            """
again = origin._replace(attempt=origin.attempt + 1)
self.transaction.retry(row, again, self.transaction.tick.second + 1)
""",
        ),
        ("origin.attempt >= self._settings.retry_attempts", "False"),
        ("again_s = ...(origin.attempt, problem)", "again_s = self.transaction.tick.second + 1"),
    ),
    "delivery: a retried timer has another source": changed(
        ("return Origin(*row[5] or ())", "return Origin(self.transaction.source(row[0]), due_s, 1)"),
    ),
    "[P3] a postponed timer has another source": changed(
        ("return Origin(*row[5] or ())", "return Origin(self.transaction.source(row[0]), due_s, 0)"),
    ),
    "delivery: a retried timer is sent as a new one": changed(
        (
            "self.transaction.send_retried(topic, partitions, ...)",
            "self.transaction.send(topic, partitions, [(at, [(*row[:5], None) for row in rows]) for at, rows in due])",
        ),
    ),
    "delivery: a postponed schedule gets no tombstone": changed(
        ("...(due_s, self.transaction.end_schedules(rows), again_s)", "...(due_s, rows, again_s)"),
    ),
    "delivery: a rejected schedule gets no tombstone": changed(("self.transaction.end_schedule(rejection)", "None")),
    "delivery: a rejected record that is no schedule gets a tombstone": changed(("rejection.code == OVERDUE", "True")),
    "delivery: a refusal is not noted": changed(
        ("self._refused.setdefault(topic, {})", "{}"),
        ("self._keyless[topic] = self.transaction.tick.second + KEYLESS_S, problem", "pass"),
    ),
    "delivery: one callback without a key ends all of its topic": changed(
        ("sent[2] is None and topic in self._keyless", "topic in self._keyless"),
    ),
    "delivery: callbacks without a key are refused again and again": changed(
        ("self._keyless[topic] = self.transaction.tick.second + KEYLESS_S, problem", "pass"),
    ),
    "delivery: refused callbacks are dropped": changed(
        ("...(due_s, [row], sent)", "topic in self._refused or ...(due_s, [row], sent)"),
    ),
    "delivery: shrunk chunks split no fetch": changed(
        ("bool(late or decoded.rejected or decoded.forwarded or decoded.operations)", "False"),
    ),
    "delivery: a part of a fetch counts as the whole": changed(
        ("records = records[count:]", "break"),
        ("records[count].offset if count < len(records) else to_offset", "to_offset"),
    ),
    "delivery: a part of a stored group counts as the whole": changed(
        (
            "...(after, ..., chunk.count)",
            "...(replace(after, fired_through=(through[0], (chunk.rest or [through[1:]])[-1][0])), ..., chunk.count)",
        ),
    ),
    "delivery: retries need the leader of their partition": changed(
        ("self._topics.available(retry_topic, ...)", "..."),
    ),
    "delivery: dead letters need the leader of their partition": changed(
        (
            "...(topic, self._topics.available(topic, partition), key, value, headers, ...)",
            "...(topic, partition, key, value, headers, ...)",
        ),
    ),
    "delivery: cold requests need the leader of their partition": changed(
        ("self._topics.available(topic, self._partition % ...)", "self._partition % ..."),
    ),
    "delivery: verdicts need the leader of their partition": changed(
        ("chosen = self._topics.available(topic, partition)", "chosen = partition"),
    ),
    "delivery: all records beside a refused one are refused": changed(
        ("len(batch.offsets) > 1 and not said.records", "False"),
        ("... or [(0, said.why)]", "... or [(place, said.why) for place in range(len(batch.offsets))]"),
    ),
    "delivery: chunks never shrink": changed(("self._outbox.chunk.failed()", "None")),
    "delivery: shrunk chunks split no stored group": changed(("most < LARGEST_CHUNK", "False")),
    "delivery: a transaction with refused records is committed": sending(CommitsWithoutRefused),
    "delivery: a transaction with refused records is not aborted": sending(KeepsRefusedTransactions),
}
