"""What must hold after every step, whatever went wrong.

The oracle is the sentence the whole design hangs on, worked out here from the log alone, in the plainest way::

    pending = requests with offset < next_offset and key > fired_through

So by the newest committed progress each request either has exactly one outcome visible to readers of committed records
(fired, dead-lettered, or moved to the retry topic, whose records are requests again) or none. Both are checked, for
every request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from timers.config.settings import Settings
from timers.core.keys import NEVER
from timers.core.operation import ANY_VERSION, CANCELLED, REPLACED
from timers.core.schedules import OVERDUE
from timers.core.timer import Origin, TopicPartition, id_bytes, id_text, key_bytes
from timers.request_formats import enabled_formats
from timers.testing.cold import ColdLog
from timers.testing.id_oracle import IdOracle, Request, Step, Violation, is_ended, is_told_fired
from timers.testing.log import SimLog, SimRecord
from timers.testing.machine_log import MachineLog
from timers.testing.schedules import ScheduleLog
from timers.testing.store_checks import StoreChecks
from timers.testing.worker import SimRunner
from timers.wire import headers as h
from timers.wire import progress as progress_record
from timers.wire import verdict as verdict_record
from timers.wire.callback_rules import CallbackRules
from timers.wire.cold import PartitionFormat, decode_cold
from timers.wire.formats import schedule


class Checkers:
    """Watches a log.

    Args:
        log: the cluster.
        settings: of the app.
        machines: that exist.
    """

    def __init__(self, log: SimLog, settings: Settings, machines: Iterable[TopicPartition]) -> None:
        self._log = log
        self._settings = settings
        self._rules = CallbackRules(settings)
        self._seen = 0
        self._fired: Counter[str] = Counter()
        self._moved: Counter[tuple[str, int]] = Counter()
        self._given_up: Counter[str] = Counter()
        self._by_source: dict[str, Request] = {}
        self._by_content: dict[tuple[str, bytes], Request] = {}
        """Timers with an id, by it and the callback's value: all versions have the same name."""
        self._formats = enabled_formats(settings)
        self._ticks: list[tuple[int, dict[TopicPartition, int]]] = []
        self.steps_back: list[int] = []
        """``seq`` of the log at each backward step of the brokers' clock."""
        self.logs = {machine: MachineLog(ColdLog(self._formats[machine[0]])) for machine in machines}
        self._seals: dict[str, bytes] = {}
        for machine, requests in self.logs.items():
            if self._formats[machine[0]].topic_is_compacted:
                requests.schedules = ScheduleLog()
            elif self._formats[machine[0]].has_ids:
                requests.id_oracle = IdOracle()
        self.stores = StoreChecks(log, settings, self._formats, self.logs)
        self.counts: Counter[str] = Counter()

    def note_tick(self, second: int) -> None:
        """A second began, and this is what every log held for committed readers."""
        self._ticks.append((second, {machine: self._log.last_stable(*machine) for machine in self.logs}))

    # ---- after every step ---------------------------------------------------------------------------------------

    def check(self, runner: SimRunner | None = None) -> None:
        """Ask everything.

        Args:
            runner: what has just made a step, if something has.

        Raises:
            Violation: a promise is broken.
        """
        settings = self._settings
        new = self._log.committed[self._seen :]
        self._seen += len(new)
        for record in new:
            if record.topic in settings.schedule_topics:
                self._schedule(record)
            elif (record.topic, record.partition) in self.logs:
                if record.topic == settings.request_topic and h.TIMER_FIRED in dict(record.headers):
                    self._set_by_a_timer(record, runner)
                self._request(record)
            elif record.topic == settings.dead_letter_topic:
                self._dead_letter(record)
            elif record.topic == settings.progress_topic:
                self._progress(record)
            elif record.topic == settings.verdict_topic:
                self._verdict(record)
            elif record.topic == settings.cold_topic:
                self._forwarded(record)
            elif record.topic != settings.oscillator_topic:
                self._firing(record, runner)
        for machine, log in self.logs.items():
            if log.changed:
                log.changed = False
                self._exactly_once(machine, log)
        if runner is not None:
            self.stores.hold(runner)

    def _request(self, record: SimRecord) -> None:
        decoded = self._formats[record.topic].decode([record], self._settings.max_request_bytes)
        key, row, name, attempt, timer_id = None, None, record.source, -1, record.source
        for due_s, rows in decoded.rows.items():
            key, row = (due_s, record.offset), rows[0]
            if row[5] is not None:
                origin = Origin(*row[5])
                timer_id = origin.timer_id
                if record.topic == self._settings.retry_topic:
                    name, attempt = origin.request, origin.attempt
                    if attempt > self._settings.retry_attempts:
                        raise Violation(f"{name} is tried for the {attempt + 1}th time")
                    self._moved[name, attempt] += 1
                    self.counts["retried"] += 1
                    self._heard(self._by_source[name])
        request = Request(record, key, row, name, attempt, timer_id)
        log = self.logs[record.topic, record.partition]
        log.changed = True
        if row is not None and PartitionFormat(record.topic, record.partition).has_returned(record):
            self._returned(log, request)
            return
        if log.id_oracle is not None and decoded.operations:
            (operation,) = decoded.operations
            log.id_oracle.add(Step(operation, record.source, None if row is None else request))
            if row is None:
                self.counts["cancels"] += 1
                return
            self._by_content[timer_id, row[3]] = request
        log.requests[record.offset] = self._by_source[record.source] = request
        self.counts["rejected" if row is None else "accepted"] += 1

    def _schedule(self, record: SimRecord) -> None:
        request_format, settings = self._formats[record.topic], self._settings
        rejecting = request_format.decode_rejecting_overdue if settings.schedule_overdue == "reject" else None
        decoded = (rejecting or request_format.decode)([record], settings.max_request_bytes)
        row, key = None, None
        for due_s, rows in decoded.rows.items():
            row, key = schedule.fired(rows[0], record.topic.encode()), (due_s, record.offset)
        request = Request(record, key, row, record.source, -1, record.source)
        log = self.logs[record.topic, record.partition]
        assert log.schedules is not None
        log.changed = True
        transaction = record.transaction
        ours = transaction is not None and transaction.transactional_id.startswith(f"{settings.app_id}-")
        if row is not None or decoded.rejected:
            self._by_source[record.source] = request
        if row is not None:
            self._by_content[id_text(record.key or b""), row[3]] = request
            self.counts["accepted"] += 1
        elif decoded.rejected:
            self.counts["rejected"] += 1
        self.counts["tombstones" if ours and row is None else "copies" if ours else "schedules"] += 1
        asked = request if row is not None or decoded.rejected else None
        operations = decoded.operations or [(b"", record.offset, None, ANY_VERSION)]
        overdue = OVERDUE in [rejected.code for rejected in decoded.rejected]
        log.schedules.add(Step(operations[0], record.source, asked), record, ours=ours, overdue=overdue)

    def _returned(self, log: MachineLog, copy: Request) -> None:
        """A record that says it brings a cold request back."""
        (_, named), (_, proof) = copy.record.headers[-2:]
        source = (named or b"").decode()
        log.requests[copy.record.offset] = copy
        if source in self._seals and self._seals[source] == proof:
            copy.copy_of = self._by_source[source]
            copy.name = source
            log.cold.copies.setdefault(copy.copy_of.record.offset, []).append(copy)
            self.counts["promoted"] += 1
        else:
            copy.forged = True
            self._by_source[copy.record.source] = copy

    def _forwarded(self, record: SimRecord) -> None:
        told = decode_cold(record.headers)
        assert told is not None
        sent = self._by_source[told.source].record
        if (record.key, record.value, tuple(told.headers)) != (sent.key, sent.value, sent.headers):
            raise Violation(f"what went cold of {told.source} is not what was sent")
        log = self.logs[sent.topic, sent.partition]
        log.cold.forwarded[sent.offset] = log.cold.forwarded.get(sent.offset, 0) + 1
        log.changed = True
        self._seals[told.source] = told.seal
        self.counts["forwarded"] += 1

    def _verdict(self, record: SimRecord) -> None:
        told = verdict_record.decode(record.value or b"")
        source = (dict(record.headers)[h.TIMER_SOURCE] or b"").decode()
        topic, partition, _ = source.rsplit("/", 2)
        log = self.logs[topic, int(partition)]
        assert log.id_oracle is not None
        log.id_oracle.tell(source, record.key, told)
        log.changed = True
        self.counts[told.verdict] += 1

    def _heard(self, request: Request) -> None:
        """What came before its second began is heard before it comes out."""
        if request.key is None or request.end is None:
            return
        ends = next((ends for second, ends in self._ticks if second >= request.key[0]), None)
        machine = request.record.topic, request.record.partition
        if ends is not None and request.end.offset < ends[machine]:
            raise Violation(f"{request.name} came out, though {request.end.source} ended it before its second began")

    def _dead_letter(self, record: SimRecord) -> None:
        headers = dict(record.headers)
        source = (headers[h.TIMER_SOURCE] or b"").decode()
        request = self._by_source.get(source)
        if request is None:
            raise Violation(f"a dead letter for {source}, which no reader of committed records can see")
        sent = request.record
        kept = record.headers[: len(sent.headers)]
        if sent.compacted:  # then it was written anew
            kept = sent.headers
        if (record.key, record.value, kept) != (sent.key, sent.value, sent.headers):
            raise Violation(f"the dead letter of {source} is not what was sent")
        failing = headers[h.TIMER_ERROR] == b"target-failing" and not self._log.max_message_bytes
        if failing and not self._moved[request.name, self._settings.retry_attempts]:
            raise Violation(f"{source} was given up before its last try")
        self._given_up[source] += 1
        self._came_out(source)
        self.counts["dead-lettered"] += 1

    def _firing(self, record: SimRecord, runner: SimRunner | None) -> None:
        headers = dict(record.headers)
        timer_id = id_text(headers.get(h.TIMER_ID) or b"")
        request = self._by_source.get(timer_id) or self._by_content.get((timer_id, record.value or b""))
        if request is None or request.row is None or request.key is None:
            raise Violation(f"fired {timer_id}, which no reader of committed records can see or which is no timer")
        if self._rules.denied(record.topic):
            raise Violation(f"{timer_id} fired to {record.topic}, which is denied")
        due_s = request.key[0]
        _, topic, key, value, asked_headers, _ = request.row
        if topic == self._settings.request_topic:
            asked_headers = [each for each in asked_headers or () if each[0] != h.DEPTH]
            if h.DEPTH in dict(record.headers):
                asked_headers.append((h.DEPTH, b"%d" % (h.depth(request.record.headers) + 1)))
        ours = [(h.TIMER_ID, id_bytes(timer_id)), (h.TIMER_DUE, str(due_s).encode())]
        want = (topic, key_bytes(key), value, [*(asked_headers or ()), *ours])
        if want != (record.topic, record.key, record.value, list(record.headers[:-1])):
            raise Violation(f"bytes in, bytes out: {timer_id} fired as {record!r}, asked for {want!r}")
        self._fired[request.name] += 1
        if not self._moved[request.name, 0] + self._moved[request.name, 1]:
            self._heard(request)
        if runner is not None:
            self._not_early(due_s, int(headers[h.TIMER_FIRED] or 0), record, request, runner)
        self._came_out(request.name)
        self.counts["fired"] += 1

    def _set_by_a_timer(self, record: SimRecord, runner: SimRunner | None) -> None:
        """A request that is a firing too. It lies ahead, and not too many came before it."""
        due_s = int(dict(record.headers)[h.TIMER_DUE] or b"")
        if int(record.key or b"") <= due_s:
            raise Violation(f"{record!r} was set by a timer due at {due_s}")
        if h.depth(record.headers) > self._settings.max_depth:
            raise Violation(f"{record!r} was set by too many timers, one after the other")
        if self._settings.request_topic not in self._settings.callback_allow:
            raise Violation(f"{record!r} was set by a timer, which is not allowed")
        self._firing(record, runner)
        self.counts["chained"] += 1

    def _came_out(self, name: str) -> None:
        if self._fired[name] + self._given_up[name] > 1:
            how = f"fired {self._fired[name]} times, given up {self._given_up[name]} times"
            raise Violation(f"twice: {name} was {how}")
        for log in self.logs.values():
            log.changed = True

    def _not_early(self, due_s: int, fired_ms: int, record: SimRecord, request: Request, runner: SimRunner) -> None:
        """By the brokers' clock, and within what [I10] tolerates when that goes back.

        Without backward steps the firing's own append time decides. After one, a machine that has heard of it may fire
        at most two seconds ahead what was asked for since.
        """
        if fired_ms // 1000 < due_s - 2:
            raise Violation(f"early: {request.name}, due {due_s}, fired by a tick of {fired_ms} ms")
        since = max((seq for seq in self.steps_back if seq < record.seq), default=-1)
        if since < 0:
            if record.timestamp_ms < due_s * 1000:
                raise Violation(f"early: {request.name}, due {due_s}, appended at {record.timestamp_ms} ms")
            return
        if request.record.seq > since:
            heard = max((tick.second for seq, tick in runner.observed if seq > since), default=None)
            if heard is not None and due_s > heard + 2:
                raise Violation(f"early: {request.name}, due {due_s}, fired when the clock showed {heard} again")

    def _progress(self, record: SimRecord) -> None:
        topic, _, partition = (record.key or b"").decode().rpartition("/")
        machine = (topic, int(partition))
        log = self.logs[machine]
        after, _ = progress_record.decode(record.value or b"")
        before = log.progress
        if after.next_offset < before.next_offset or after.fired_through < before.fired_through:
            raise Violation(f"progress of {topic}/{partition} went back from {before} to {after}")
        if after.next_offset > self._log.last_stable(*machine):
            raise Violation(f"{topic}/{partition} is accepted up to {after.next_offset}, further than can be read")
        log.progress = after
        log.changed = True

    def _exactly_once(self, machine: TopicPartition, log: MachineLog) -> None:
        """Each request has the outcomes that the committed progress says, no more and no fewer."""
        next_offset, fired_through = log.progress.next_offset, log.progress.fired_through
        copied = self._log.group_offsets.get((self._settings.app_id, machine), 0)
        if copied != next_offset:
            raise Violation(f"the group's offset of {machine} is {copied}, its progress says {next_offset}")
        if log.id_oracle is not None:
            log.id_oracle.check(next_offset, fired_through, self._settings.verdict_retention_s)
        if log.schedules is not None:
            log.schedules.check(next_offset, fired_through, self._outcomes)
        for offset, request in log.requests.items():
            if not self._is_where_it_belongs(log, request):
                continue
            refused = request.key is None or log.cold.is_refused(request, log.progress)
            over = offset < next_offset and (refused or (request.key or NEVER) <= fired_through)
            over = is_told_fired(request, next_offset) or (over and not is_ended(request, next_offset))
            outcomes = self._outcomes(request)
            if outcomes != over:
                what = "lost" if over and not outcomes else "twice" if outcomes > 1 else "before its progress"
                raise Violation(
                    f"{what}: {machine[0]}/{machine[1]}/{offset} with key {request.key} has {outcomes} outcomes, "
                    f"though next_offset={next_offset} and fired_through={fired_through}"
                )

    def _is_where_it_belongs(self, log: MachineLog, request: Request) -> bool:
        """Whether a request has outcomes of its own; else it is cold, or a copy that changes nothing."""
        cold, offset, next_offset = log.cold, request.record.offset, log.progress.next_offset
        is_cold = offset < next_offset and cold.is_cold(request, log.progress)
        if cold.forwarded.get(offset, 0) != is_cold:
            raise Violation(f"{request.record.source} was sent away {cold.forwarded.get(offset, 0)} times")
        if not is_cold:
            return request.copy_of is None or cold.counting(request.copy_of, next_offset) is request
        if is_told_fired(request, next_offset) and cold.counting(request, next_offset) is None:
            raise Violation(f"{request.record.source} is said to have fired, and is cold")
        if self._outcomes(request) and cold.counting(request, next_offset) is None:
            raise Violation(f"{request.record.source} came out, and is cold")
        return False

    def _outcomes(self, request: Request) -> int:
        """How many there are: each retry stands for what becomes of it."""
        moved = 0
        if request.row is not None:
            moved = self._moved[request.name, request.attempt + 1]
            if request.attempt < 0:  # a first move is attempt 0 if there is no use in trying, else 1
                moved = moved or self._moved[request.name, 1]
        return moved or self._fired[request.name] + self._given_up[request.name]

    def check_end(self, until_s: int) -> None:
        """Everything that came due by ``until_s`` has an outcome: accepted = fired + dead-lettered + pending.

        Raises:
            Violation: something was left behind.
        """
        self.check()
        for machine, log in self.logs.items():
            for offset, request in log.requests.items():
                if request.copy_of is not None:
                    continue
                due = request.key is None or request.key[0] <= until_s
                if due and not self._outcomes(request) and not is_ended(request, log.progress.next_offset):
                    raise Violation(f"lost: {machine[0]}/{machine[1]}/{offset} with key {request.key} never came out")
        pending = sum(
            len(log.pending(log.progress, log.progress.next_offset)) + log.away(log.progress)
            for log in self.logs.values()
        )
        for log in self.logs.values():
            for request in log.requests.values():
                if request.forged:
                    refused = log.cold.is_refused(request, log.progress)
                    self.counts["rejected" if refused else "accepted"] += 1
        accepted = self.counts["accepted"] - self.counts["retried"]
        out = sum(self._fired.values()) + sum(self._given_up.values()) - self.counts["rejected"]
        ended = self.counts[CANCELLED] + self.counts[REPLACED]
        for log in self.logs.values():
            if log.schedules is not None:
                waiting, over = log.schedules.left(until_s, self._outcomes)
                pending, ended = pending + waiting, ended + over
        if accepted != out + pending + ended:
            raise Violation(f"{accepted} accepted, but {out} fired or given up, {pending} pending and {ended} ended")
