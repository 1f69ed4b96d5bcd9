"""Checks the promises of the design after each step of a simulation.

The oracle computes from the log alone::

    pending = requests with offset < next_offset and key > fired_through

A pending request has no outcome. Each other accepted request has exactly one that readers of committed records see: it
fired, was dead-lettered, or was moved to the retry topic, whose records are requests again. Both are checked for every
request.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from tests.simulation.hold_oracle import HoldChecks
from tests.simulation.id_oracle import Request, Step, has_fired_verdict, is_ended
from tests.simulation.kit.faults import Violation
from tests.simulation.kit.log import SimLog, SimRecord
from tests.simulation.kit.next_level import LEVEL, formats_at, shift_of
from tests.simulation.kit.worker import SimRunner
from tests.simulation.machine_log import NO_WITNESS, MachineLog
from tests.simulation.store_checks import StoreChecks
from tests.simulation.time_checks import TimeChecks
from timers.core.operation import CANCELLED, REPLACED
from timers.core.progress import MAX_REQUEST_BYTES, WITNESS_S, Progress
from timers.core.timer import CUT_VALUE_BYTES, Origin, TopicPartition, id_bytes, id_text, key_bytes
from timers.machines.firing.policy import CallbackRules
from timers.process.config.settings import Settings
from timers.wire import dead_letter, future, topics
from timers.wire import headers as h
from timers.wire import progress as progress_record
from timers.wire import verdict as verdict_record
from timers.wire.checks import InvalidRequestError
from timers.wire.cold import PartitionColdFormat, decode_cold
from timers.wire.dead_letter import OVERDUE
from timers.wire.formats import schedule


def asked_for(key: bytes | None, value: bytes | None, headers: Sequence[h.Header]) -> tuple[object, ...]:
    """What a request asks for. Leading zeros of its key, and unknown fields of its value, are not stored. What was sent
    without protobuf may be written anew with it."""
    name = key if key is None or not key.isdigit() else int(key)
    try:
        topic, callback_key, payload = future.read_callback(value, h.timer_headers(headers), len(value or b""))
    except InvalidRequestError:
        return name, value
    return name, topic, key_bytes(callback_key), payload


class Checkers:
    """Checks the records of a log."""

    def __init__(
        self, log: SimLog, settings: Settings, machines: Iterable[TopicPartition], *, has_conditions: bool = True
    ) -> None:
        self._log = log
        self._settings = settings
        self._rules = CallbackRules(settings)
        self._seen = 0
        self._fired: Counter[str] = Counter()
        self._moved: Counter[tuple[str, int]] = Counter()
        self._given_up: Counter[str] = Counter()
        self._unreadable: Counter[str] = Counter()
        self._by_source: dict[str, Request] = {}
        self._formats = formats_at(settings, LEVEL, has_conditions=has_conditions)
        self.supported: Callable[[], Iterable[int]] = lambda: ()
        """Returns the feature level that each member of the group supports."""
        self.logs = {each: MachineLog.of(self._formats[each[0]]) for each in machines}
        self.times = TimeChecks(log, self.logs, settings.app_id)
        self._seals: dict[str, bytes] = {}
        self.stores = StoreChecks(log, settings, self._formats, self.logs)
        self.holds = HoldChecks(self.logs, settings.app_id, self._outcomes)
        self.counts: Counter[str] = Counter()
        self._settled = 0
        """By how much the forgotten requests tip the balance of :meth:`check_end`."""

    # ---- after every step ---------------------------------------------------------------------------------------

    def check(self, runner: SimRunner | None = None) -> None:
        """Check the new committed records, and the state of a machine.

        Args:
            runner: runs the machine that has just done a step; None: no machine has.
        """
        settings = self._settings
        new = self._log.committed[self._seen :]
        self._seen += len(new)
        for record in new:
            if record.topic in settings.schedule_topics:
                self._schedule(record)
            elif (record.topic, record.partition) in self.logs:
                # A promoted copy of such a callback has this header too, but not as the last one.
                if record.topic == settings.request_topic and h.TIMER_FIRED in dict(record.headers[-1:]):
                    self._chained(record, runner)
                self._request(record, runner)
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
        self._check_state(runner)

    def _check_state(self, runner: SimRunner | None) -> None:
        """Check all that has happened so far, and the store of a machine."""
        for machine, log in self.logs.items():
            if log.changed:
                log.changed = False
                self._check_outcomes(machine, log)
                self._check_witness(machine, log)
                self.holds.check_outcomes(machine)
        if runner is not None:
            self.stores.check(runner)
            self.holds.check(runner)

    def _request(self, record: SimRecord, runner: SimRunner | None) -> None:
        log = self.logs[record.topic, record.partition]
        decode = self._formats[record.topic].decoder(log.level_at(record.offset), False)
        decoded = decode([record], self._settings.max_request_bytes)
        key, row, name, attempt, timer_id = None, None, record.source, -1, record.source
        for due_s, rows in decoded.rows.items():
            key, row = (due_s, record.offset), rows[0]
            if row[5] is not None:
                origin = Origin(*row[5])
                timer_id = origin.timer_id
                if record.topic == self._settings.retry_topic:
                    name, attempt = origin.request, origin.attempt
                    self._check_attempt(name, attempt, due_s, row[1], runner)
                    self.holds.check_sent(record, row[1])
                    self._moved[name, attempt] += 1
                    self.counts["retried"] += 1
                    self.times.check_not_ended(self._by_source[name])
        request = Request(record, key, row, name, attempt, timer_id)
        log.changed = True
        if row is not None and PartitionColdFormat(record.topic, record.partition).is_copy(record):
            self._add_copy(log, request)
            return
        if log.id_oracle is not None and decoded.operations:
            (operation,) = decoded.operations
            log.id_oracle.add(Step(operation, record.source, None if row is None else request, record), log.progress)
            if row is None:
                self.counts["cancels"] += 1
                return
        log.requests[record.offset] = self._by_source[record.source] = request
        self.counts["rejected" if row is None else "accepted"] += 1

    def _check_attempt(self, name: str, attempt: int, due_s: int, topic: str, runner: SimRunner | None) -> None:
        """Check the number of a timer's next attempt, and that the timer waits for it if it may succeed."""
        if attempt > self._settings.retry_attempts:
            raise Violation(f"{name} is tried for the {attempt + 1}th time")
        if attempt and runner is not None and due_s <= runner.tick_s:
            raise Violation(f"{name}, attempt {attempt}, is due at {due_s}, not after {runner.tick_s}")
        log = self._log
        may_refuse = {*log.missing, *log.compacted, *log.max_message_bytes, self._settings.request_topic}
        if not attempt and topic not in may_refuse and not self._rules.check_topic(topic):
            raise Violation(f"{name} was moved to the retry topic, and the failure does not count as an attempt")

    def _schedule(self, record: SimRecord) -> None:
        request_format, settings = self._formats[record.topic], self._settings
        rejecting = request_format.decode_rejecting_overdue if settings.schedule_overdue == "reject" else None
        decoded = (rejecting or request_format.decode)([record], settings.max_request_bytes)
        row, key = None, None
        for due_s, rows in decoded.rows.items():
            row, key = schedule.callback_row(rows[0], record.topic.encode()), (due_s, record.offset)
        request = Request(record, key, row, record.source, -1, record.source)
        log = self.logs[record.topic, record.partition]
        assert log.schedules is not None
        log.changed = True
        transaction = record.transaction
        by_engine = transaction is not None and transaction.transactional_id.startswith(f"{settings.app_id}-")
        if row is not None or decoded.rejected:
            self._by_source[record.source] = request
        if row is not None:
            self.counts["accepted"] += 1
        elif decoded.rejected:
            self.counts["rejected"] += 1
        self.counts["tombstones" if by_engine and row is None else "copies" if by_engine else "schedules"] += 1
        asked = request if row is not None or decoded.rejected else None
        operations = decoded.operations or [(b"", record.offset, None, 0)]
        overdue = OVERDUE in [rejected.code for rejected in decoded.rejected]
        step = Step(operations[0], record.source, asked, fired_version=decoded.fired_versions.get(record.offset))
        log.schedules.add(step, record, by_engine=by_engine, overdue=overdue)

    def _add_copy(self, log: MachineLog, copy: Request) -> None:
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
        copy = decode_cold(record.headers)
        assert copy is not None
        sent = self._by_source[copy.source].record
        if (record.key, record.value, tuple(copy.headers)) != (sent.key, sent.value, sent.headers):
            raise Violation(f"the cold request of {copy.source} differs from the request")
        log = self.logs[sent.topic, sent.partition]
        log.cold.forwarded[sent.offset] = log.cold.forwarded.get(sent.offset, 0) + 1
        log.changed = True
        self._seals[copy.source] = copy.seal
        self.counts["forwarded"] += 1

    def _verdict(self, record: SimRecord) -> None:
        verdict = verdict_record.decode(record.value or b"")
        source = (dict(record.headers)[h.TIMER_SOURCE] or b"").decode()
        topic, partition, _ = source.rsplit("/", 2)
        log = self.logs[topic, int(partition)]
        assert log.id_oracle is not None
        log.id_oracle.add_verdict(source, record.key, verdict)
        log.changed = True
        self.counts[verdict.verdict] += 1

    def _dead_letter(self, record: SimRecord) -> None:
        headers = dict(record.headers)
        source = (headers[h.TIMER_SOURCE] or b"").decode()
        if headers[h.TIMER_ERROR] == dead_letter.BATCH_UNREADABLE.encode():
            self._unreadable[source] += 1
            self.counts["passed over"] += 1
            return
        request = self._by_source.get(source)
        if request is None:
            raise Violation(f"a dead letter for {source}, which no reader of committed records can see")
        sent = request.record
        # After compaction, or when the log was trimmed, the dead letter is rebuilt from the row.
        place = topics.parse_source(source)
        is_deleted = place is not None and place[2] < self._log.start(*place[:2])
        is_rebuilt = sent.compacted or is_deleted
        kept = sent.headers if is_rebuilt else record.headers[: len(sent.headers)]
        value = sent.value
        if value is not None and headers[h.TIMER_ERROR] == dead_letter.VALUE_TOO_LARGE.encode():
            if headers[h.TIMER_VALUE_BYTES] != b"%d" % len(value):
                raise Violation(f"the dead letter of {source} has a wrong length of the value")
            value = value[:CUT_VALUE_BYTES]
        # The next level, which exists only in tests, does not say how it would rebuild the key of such a request.
        key = record.key if sent.compacted and shift_of(sent.headers) else sent.key
        is_same = (record.key, record.value, kept) == (key, value, sent.headers)
        if is_rebuilt and not is_same:
            asked = asked_for(sent.key, value, sent.headers)
            is_same = asked_for(record.key, record.value, record.headers) == asked
        if not is_same:
            raise Violation(f"the dead letter of {source} differs from the request")
        if headers[h.TIMER_ERROR] == b"message-refused" and request.row is not None and request.row[2] is not None:
            raise Violation(f"no broker refused the callback of {source}")
        if headers[h.TIMER_ERROR] == b"topic-unknown" and request.row and request.row[1] not in self._log.missing:
            raise Violation(f"{source} became a dead letter, as if its topic did not exist")
        failing = headers[h.TIMER_ERROR] == b"target-failing" and not self._log.max_message_bytes
        if failing and not self._moved[request.name, self._settings.retry_attempts]:
            raise Violation(f"{source} became a dead letter before its last retry")
        if request.row is not None and headers[h.TIMER_ERROR] != b"promotion-invalid":
            self.holds.check_sent(record, request.row[1])
        self._given_up[source] += 1
        self._note_outcome(source)
        self.counts["dead-lettered"] += 1

    def _firing(self, record: SimRecord, runner: SimRunner | None) -> None:
        headers = dict(record.headers)
        source = id_text(headers.get(h.TIMER_SOURCE) or headers.get(h.TIMER_ID) or b"")
        request = self._by_source.get(source)
        if request is None or request.row is None or request.key is None:
            raise Violation(f"fired {source}, which no reader of committed records can see or which is no timer")
        if self._rules.check_topic(record.topic):
            raise Violation(f"{source} fired to {record.topic}, which is denied")
        due_s = request.key[0]
        _, topic, key, value, asked_headers, _ = request.row
        if topic == self._settings.request_topic:
            asked_headers = [each for each in asked_headers or () if each[0] != h.DEPTH]
            if h.DEPTH in dict(record.headers):
                asked_headers.append((h.DEPTH, b"%d" % (h.depth(request.record.headers) + 1)))
        is_schedule = request.record.topic in self._settings.schedule_topics
        timer_id = (request.record.key or b"") if is_schedule else id_bytes(request.timer_id)
        by_engine = [*h.identity(timer_id, source.encode()), (h.TIMER_DUE, b"%d" % due_s)]
        expected = (topic, key_bytes(key), value, [*(asked_headers or ()), *by_engine])
        if expected != (record.topic, record.key, record.value, list(record.headers[:-1])):
            raise Violation(f"bytes in, bytes out: {source} fired as {record!r}, asked for {expected!r}")
        self.holds.check_sent(record, topic)
        self._fired[request.name] += 1
        if not self._moved[request.name, 0] + self._moved[request.name, 1]:
            self.times.check_not_ended(request, None if runner is None else self.holds.sent_after_s(request, runner))
        if runner is not None:
            self.times.check_early(due_s, int(headers[h.TIMER_FIRED] or 0), record, request, runner)
        self._note_outcome(request.name)
        self.counts["fired"] += 1

    def _chained(self, record: SimRecord, runner: SimRunner | None) -> None:
        """Check a callback that is itself a request: it is due later than its timer, and the chain is not too long."""
        due_s = int(dict(record.headers)[h.TIMER_DUE] or b"")
        if int(record.key or b"") <= due_s:
            raise Violation(f"{record!r} was set by a timer due at {due_s}")
        if h.depth(record.headers) > self._settings.max_depth:
            raise Violation(f"{record!r} is in a chain of too many timers")
        if self._settings.request_topic not in self._settings.callback_allow:
            raise Violation(f"{record!r} was set by a timer, which is not allowed")
        self._firing(record, runner)
        self.counts["chained"] += 1

    def _note_outcome(self, name: str) -> None:
        if self._fired[name] + self._given_up[name] > 1:
            how = f"fired {self._fired[name]} times, given up {self._given_up[name]} times"
            raise Violation(f"twice: {name} was {how}")
        for log in self.logs.values():
            log.changed = True

    def _progress(self, record: SimRecord) -> None:
        if record.transaction is None:  # an older record that another program has written
            return
        machine = topic, partition = progress_record.decode_key(record.key or b"")
        log = self.logs[machine]
        after, _ = progress_record.decode(record.value or b"", LEVEL)
        before = log.progress
        lowered = after.fired_through < before.fired_through and len(after.holes) == len(before.holes)
        if after.next_offset < before.next_offset or lowered:
            raise Violation(f"progress of {topic}/{partition} went back from {before} to {after}")
        if after.next_offset > self._log.last_stable(*machine):
            raise Violation(f"{topic}/{partition} is accepted up to {after.next_offset}, after the last stable offset")
        log.progress = after
        log.changed = True
        self.holds.commit(machine, before, after, record)
        # A repair writes no copy: its hole says what a former copy says.
        log.needs_witness = after != before and after.holes == before.holes
        self._reject_too_large(log, before.next_offset)
        if log.id_oracle is not None:
            log.id_oracle.commit(before, after, self._log.start(*machine))
        if after.level > before.level:
            if min(self.supported(), default=LEVEL) < after.level:
                raise Violation(f"{machine} was raised to level {after.level}, which a worker does not support")
            log.read_again(self._formats[topic].decoder(after.level, False), self._settings.max_request_bytes)
            self.counts["raised"] += 1

    def _check_witness(self, machine: TopicPartition, log: MachineLog) -> None:
        """Check that the group has the newest progress, or the first commit without a copy is some seconds old [I8]."""
        needed, log.needs_witness = log.needs_witness, False
        now_s, seen = self._log.clock.boot_ms / 1000, log.witness
        log.witness = self._log.group_offsets.get((self._settings.app_id, machine), NO_WITNESS)
        found = progress_record.decode_witness(log.witness[1])
        # A copy that is written again may say the same as the one before: it is another object.
        if (found is not None and found[0] == log.progress.witness) or log.witness is not seen:
            log.witnessed_s = now_s
        elif needed and now_s > log.witnessed_s + WITNESS_S + 1:  # a commit is looked at up to one tick later
            raise Violation(f"the group has no copy of the progress of {machine} since {log.witnessed_s} s")

    def _reject_too_large(self, log: MachineLog, from_offset: int) -> None:
        """Note which of the requests that were accepted now exceed the limit at their offset [I4]."""
        progress = log.progress
        for offset in range(from_offset, progress.next_offset):
            request = log.requests.get(offset)
            if request is None or request.row is None or request.row[5] is not None:  # retries and copies are larger
                continue
            limit = progress.setting_at(MAX_REQUEST_BYTES, offset, self._settings.max_request_bytes)
            if len(request.record.value or b"") > limit:
                request.key = request.row = None
                self.counts["accepted"] -= 1
                self.counts["rejected"] += 1

    def _check_damaged(self, machine: TopicPartition, progress: Progress) -> None:
        """Check that each damaged record that is passed over has one dead letter, and that no other was left out."""
        for record in self._log.damaged:
            if (record.topic, record.partition) == machine:
                is_passed = progress.settings.passes_over(record.offset, record.offset + 1)
                if self._unreadable[record.source] != is_passed or (record.offset < progress.next_offset) > is_passed:
                    letters = f"{self._unreadable[record.source]} dead letters"
                    raise Violation(f"{record.source} is damaged, and has {letters}, with {progress}")

    def _check_outcomes(self, machine: TopicPartition, log: MachineLog) -> None:
        """Check that each request has as many outcomes as the committed progress says."""
        progress, next_offset = log.progress, log.progress.next_offset
        self._check_damaged(machine, progress)
        copied, _ = self._log.group_offsets.get((self._settings.app_id, machine), (0, ""))
        if copied > next_offset:
            raise Violation(f"the group's offset of {machine} is {copied}, its progress says {next_offset}")
        if log.id_oracle is not None:
            log.id_oracle.check(progress, self._settings.verdict_retention_s)
        if log.schedules is not None:
            log.schedules.check(progress, self._outcomes)
        for offset, request in log.requests.items():
            if not self._has_own_outcome(log, request):
                continue
            rejected = request.key is None or log.cold.is_refused(request, log.progress)
            finished = offset < next_offset and (rejected or request.has_fired(progress))
            finished = has_fired_verdict(request, next_offset) or (finished and not is_ended(request, next_offset))
            finished = finished and not request.refused
            outcomes = self._outcomes(request)
            if outcomes != finished:
                what = "lost" if finished and not outcomes else "twice" if outcomes > 1 else "before its progress"
                where = f"{request.record.source} with key {request.key}"
                raise Violation(f"{what}: {where} has {outcomes} outcomes, with {progress}")

    def _has_own_outcome(self, log: MachineLog, request: Request) -> bool:
        """Whether a request has outcomes of its own. A cold request and an ignored copy have none."""
        cold, offset, next_offset = log.cold, request.record.offset, log.progress.next_offset
        is_cold = offset < next_offset and cold.is_cold(request, log.progress)
        if cold.forwarded.get(offset, 0) != is_cold:
            raise Violation(f"{request.record.source} was forwarded {cold.forwarded.get(offset, 0)} times")
        if not is_cold:
            return request.copy_of is None or cold.first_copy(request.copy_of, next_offset) is request
        if has_fired_verdict(request, next_offset) and cold.first_copy(request, next_offset) is None:
            raise Violation(f"{request.record.source} has the verdict that it fired, but is cold")
        if self._outcomes(request) and cold.first_copy(request, next_offset) is None:
            raise Violation(f"{request.record.source} has an outcome, but is cold")
        return False

    def _outcomes(self, request: Request) -> int:
        """Number of outcomes. A retry counts as one."""
        retries = 0
        if request.row is not None:
            retries = self._moved[request.name, request.attempt + 1]
            if request.attempt < 0:  # the first retry is attempt 0 if waiting does not help, else 1
                retries = retries or self._moved[request.name, 1]
        return retries or self._fired[request.name] + self._given_up[request.name]

    def check_end(self, until_s: int) -> None:
        """Check that all timers due by ``until_s`` have an outcome."""
        self.check()
        for machine, log in self.logs.items():
            for offset, request in log.requests.items():
                if request.copy_of is not None or request.refused:
                    continue
                due = request.key is None or request.key[0] <= until_s
                if due and not self._outcomes(request) and not is_ended(request, log.progress.next_offset):
                    raise Violation(f"lost: {machine[0]}/{machine[1]}/{offset} with key {request.key} has no outcome")
        accepted, out, pending, ended = self._balance(until_s)
        if accepted != out + pending + ended:
            raise Violation(f"{accepted} accepted, but {out} fired or given up, {pending} pending and {ended} ended")

    def _balance(self, until_s: int) -> tuple[int, int, int, int]:
        """Numbers of requests: accepted, fired or given up, pending, and ended."""
        logs = self.logs.values()
        pending = sum(len(log.pending(log.progress, log.progress.next_offset)) for log in logs)
        pending += sum(log.cold_requests(log.progress) for log in logs)
        accepted, rejected = self.counts["accepted"] - self.counts["retried"] - self._settled, self.counts["rejected"]
        for log in logs:
            for request in log.requests.values():
                if request.forged and log.cold.is_refused(request, log.progress):
                    rejected += 1
                else:
                    accepted += request.forged
                accepted -= request.refused
        out = sum(self._fired.values()) + sum(self._given_up.values()) - rejected
        ended = self.counts[CANCELLED] + self.counts[REPLACED]
        for log in logs:
            if log.schedules is not None:
                waiting, ended_schedules = log.schedules.pending_and_ended(until_s, self._outcomes)
                pending, ended = pending + waiting, ended + ended_schedules
        return accepted, out, pending, ended

    # ---- long runs ------------------------------------------------------------------------------------------------

    def knows(self, source: str) -> bool:
        """Whether a request was not forgotten."""
        return source in self._by_source

    def forget(self, until_s: int) -> int:
        """Forget the requests that are settled: an outcome that one of them gets from now on is one of no request.

        Returns:
            The number of requests that are left.
        """
        names = {name for log in self.logs.values() for name in log.unsettled()}
        for log in self.logs.values():
            names |= log.forget_ids(names, self._settings.verdict_retention_s)
        for log in self.logs.values():
            log.forget(names)
        for counted in (self._fired, self._given_up):
            for name in counted.keys() - names:
                del counted[name]
        for key in [key for key in self._moved if key[0] not in names]:
            del self._moved[key]
        requests = [each for log in self.logs.values() for each in log.all_requests()]
        kept = {each.record.source for each in requests} | {each.original.record.source for each in requests}
        self._by_source = {source: each for source, each in self._by_source.items() if source in kept}
        self._seals = {source: seal for source, seal in self._seals.items() if source in kept}
        self._unreadable.clear()
        self._log.damaged = [
            each
            for each in self._log.damaged
            if not self.logs[each.topic, each.partition].progress.settings.passes_over(each.offset, each.offset + 1)
        ]
        oldest_s = min((each.key[0] for each in requests if each.key is not None), default=until_s)
        self.times.forget(oldest_s)
        self._settled = 0
        accepted, out, pending, ended = self._balance(until_s)
        self._settled = accepted - out - pending - ended
        return len(requests)
