"""Broken rules of a queue: edits of the product's source. The simulator must find each one."""

from tests.simulation.edits import changed

_RETURNED = "Saved(first, tuple(done), *counts, self.lineage, self.cuts)"
_CUT = "below._replace(lineage=lineage, cuts=(*kept, (at, number)))"

MUTATIONS = {
    "1 a transaction after a commit without an answer": changed(("self._plain_unanswered = True", "pass")),
    "1 a commit without an answer counts": changed(("self.lose_answer(plan)", "self.succeed(plan)")),
    "2 other commits while the outcome is unknown": changed(("self.unknown = plan", "self._plain_unanswered = True")),
    "2 an unknown outcome counts as committed": changed(
        ("any(committed[partition] == plan.commits[partition] for partition in decided)", "True")
    ),
    "2 an unknown outcome counts as aborted": changed(
        ("any(committed[partition] == plan.commits[partition] for partition in decided)", "False")
    ),
    "3 a bound message is done in plain commits": changed(
        (
            "without = {entry.offset for entry in finished}",
            "without = {entry.offset for entry in [*finished, *(e for e in self._open.values() if e.state == BOUND)]}",
        )
    ),
    "4 the newest generation": changed(
        (
            "may_transact = not only_plain and (yield from self._ask_leaders(with_copy))",
            "self.member = yield do(Port.member)\n"
            "may_transact = not only_plain and (yield from self._ask_leaders(with_copy))",
        )
    ),
    "4 ledgers survive a rebalance": changed(
        ("self.settler.totals.leases_lost += self.settler.revoke(partitions)", "pass")
    ),
    "5 loaded before transactions are decided": changed(is_stable=False),
    "memory moves before the commit": changed(
        (
            "is_full = self.is_full",
            "is_full = self.is_full\nfor job in plan.jobs if plan else ():\n    job.ledger.finish(job.entry)",
        )
    ),
    "the ledger before the commit of its offset": changed(
        ("began_s = self.now_s", "began_s = self.now_s\nself.succeed(plan)")
    ),
    "a refused commit counts": changed(("self.fail(plan)", "self.succeed(plan)")),
    "jobs of a failed transaction are forgotten": changed(
        ("self.fail(plan)", "self.jobs = [job for job in self.jobs if job not in plan.jobs]\nself.fail(plan)")
    ),
    "the position is committed": changed((_RETURNED, "Saved(self.position)")),
    "a restart forgets what is done": changed(("self._done_ahead = deque(saved.done)", "self._done_ahead = deque()")),
    "a former receiver acknowledges": changed(
        ("self.delivery != delivery or self.state in (BOUND, OVER)", "self.state in (BOUND, OVER)")
    ),
    "a call counts after the message is settled": changed(("entry.delivery += how is not EXPIRED", "pass")),
    "a waiting message is overtaken": changed(
        (
            "self.changes += changes",
            "self.changes += changes\nif entry.state == WAITING and len(self._lanes.get(entry.lane, ())) > 1:\n"
            "    self._get_ready(self._lanes[entry.lane][1])",
        )
    ),
    "no lanes": changed(("lane = record.key()", "lane = None")),
    "deliveries outlive their partition": changed(("owned.ledger.drop()", "pass")),
    "what a receiver is told does not count is done": changed(
        (
            "self._ledger.settle(self._entry, self._delivery, EXTEND_LEASE, max(self._entry.until_s, until_s))",
            "self._ledger.settle(self._entry, self._delivery, EXTEND_LEASE._replace(state=4, has_run=True))",
        )
    ),
    "a restart forgets attempts": changed(("{**attempts, **later}", "{}")),
    "a restart forgets delays": changed((_RETURNED, f"{_RETURNED}._replace(waits={{}})")),
    "delays end by the clock of another process": changed(
        ("self._most_ahead_s = append_s + _RESOLUTION_S - sent_s", "self._most_ahead_s = 0.0"),
        ("self._least_ahead_s = append_s - reported_s", "self._least_ahead_s = 0.0"),
    ),
    "a guarded message is acknowledged without a verdict": changed(
        (
            "self.leave(timeout_s) and self._client.cancel(self.id, left_s(deadline))",
            "self.leave(timeout_s) and (self._client.cancel(self.id, left_s(deadline)) or True)",
        )
    ),
    "a guard is set before its transaction": changed(
        ("delivery.guard = guard", "delivery.guard = guard\nself._guards.set_at_once(guard, delivery, timer)")
    ),
    "a guard is extended": changed(
        (
            "return is_set and not was_over",
            "if is_set and not was_over:\n    self._client.extend(self.id)\nreturn is_set and not was_over",
        )
    ),
    "ordered messages have guards": changed(
        ("self._guards.are_possible and not self.terms.ordered", "self._guards.are_possible")
    ),
    "a return that is not signed is delivered": changed(
        ("'' if self._entry.returned is None else self._entry.returned.doubt", "''")
    ),
    "signatures are not compared": changed(("hmac.compare_digest(..., signature)", "True")),
    "a signature counts for another message": changed(
        ("framed((self._queue, *parts))", "framed((self._queue, *parts[-2:]))")
    ),
    "two first starts sign with two keys": changed(
        ("self._number = next(iter(self.keys))", "self._number = [*self.keys][-1]")
    ),
    "only the newest key counts": changed(("self.keys = dict(keys)", "self.keys = dict([[*keys.items()][-1]])")),
    "T4 no log is verified": changed(
        ("verification if loaded.saved.lineage.epochs and not verification.is_over else None", "None")
    ),
    "T4 the last record is not read again": changed(
        (
            "self._reads = self._lineage.batch is not None and self._last >= loaded.low",
            "self._reads = False",
        ),
        restores=True,
    ),
    "T4 a log parts at the last record": changed(
        ("(self.loaded.low, -1) if is_unknown else (at, epoch)", "(self._last, -1)")
    ),
    "T4 each leader is followed": changed(("is_same or epoch == self._verified or not self.lineage.epochs", "True")),
    "T4 markers that were passed stay passed": changed(
        ("self.position = min(self.position, self.lineage.end)", "pass"), is_idle=True
    ),
    "T4 nothing is known below a cut": changed(
        (
            "lineage = below.lineage",
            "lineage = below.lineage if below.lineage.batch else below.lineage._replace(epochs=())",
        )
    ),
    "T4 the epoch below a cut is known only if it ends there": changed(
        ("newest if goes_on and exact < 0 else exact", "exact"),
        (
            "epoch < 0 or (at <= epochs[0][1] and (is_inside or len(epochs) >= MAX_EPOCHS))",
            "at <= epochs[0][1] and (is_inside or len(epochs) >= MAX_EPOCHS)",
        ),
        ("read_to > high and not saved.lineage.epochs", "saved.offset > high and not saved.lineage.epochs"),
        ("found = self._parted_of_old_disks()", "pass"),
    ),
    "T4 a log of old disks is compared as one of a leader": changed(("found = self._parted_of_old_disks()", "pass")),
    "T10 what was done above a cut stays done": changed((_CUT, f"{_CUT}._replace(offset=self.offset, done=self.done)")),
    "T10 a loss counts as a crash": changed(
        ("saved._replace(start=NO_START)", "saved._replace(start=self.saved.start)")
    ),
    "T10 sources without the number of the cut": changed((_CUT, "below._replace(lineage=lineage, cuts=self.cuts)")),
    "T10 deliveries above a cut go on": changed(
        (
            "yield from self._part(partition, ledger, parted)",
            "ledger.verify()\nyield do(Port.start, {partition: ledger.place})",
        )
    ),
    "T10 loaded again while a commit is under way": changed(("yield do(Port.end_round)", "yield from ()")),
    "T10 loaded again before a commit without an answer": changed(
        ("yield from self._settler.commit_soon()", "yield from ()")
    ),
    "a guarded message has outputs": changed(
        (
            "not delivery.has_outputs and (guard := self._protect(delivery)) is not None",
            "(guard := self._protect(delivery)) is not None",
        )
    ),
    "starts 1 allowed before the commit": changed(
        ("is_full = self.is_full", "is_full = self.is_full\nif plan is not None:\n    self._allow(plan)")
    ),
    "starts 1 allowed after a refused commit": changed(("self.fail(plan)", "self.fail(plan)\nself._allow(plan)")),
    "starts 1 allowed after a commit without an answer": changed(
        ("self.lose_answer(plan)", "self.lose_answer(plan)\nself._allow(plan)")
    ),
    "starts 1 more is started than a commit says": changed(
        ("self._horizon = start.end", "self._horizon = start.end + 2")
    ),
    "starts 1 allowed again without a commit": changed(("ledger.starts.forbid()", "pass")),
    "starts 1 no suspects": changed(
        ("self.suspects_end = int(min(max(suspects_end, start.end), log_end))", "self.suspects_end = 0")
    ),
    "starts 2 neighbours are blamed": changed(
        (
            "self._crashes = dict(saved.crashes)",
            "suspects = range(saved.start.first, self.starts.suspects_end)\n"
            "self._crashes = {each: saved.crashes.get(each, 0) + 1 for each in suspects if saved.is_open(each)}",
        )
    ),
    "starts 2 the first one of a group is blamed": changed(
        ("start.first if start.group == 1 else None", "start.first if start.group else None")
    ),
    "starts 2 crashes are forgotten": changed(
        ("crashes = {offset: entry.crashes for offset, entry in counted if entry.crashes}", "crashes = {}")
    ),
    "starts 3 a group begins while others run": changed(
        ("ledger.new_count or ledger.starts.has_group", "ledger.starts.has_group")
    ),
    "starts 3 a message that did not run alone is blamed": changed(
        ("max(size, LEAST_SHARED_GROUP if running else 1)", "size")
    ),
    "starts 3 what runs beside a group is no suspect": changed(
        (
            "NO_START if ledger.starts.is_stopped or partition not in running else Start(0, running[partition][1])",
            "NO_START",
        )
    ),
    "starts 4 a partition that was given up has suspects": changed(("self.settler.stop(partitions)", "pass")),
    "starts 4 what runs on in a partition that was given up is a suspect": changed(
        ("ledger.starts.is_stopped or partition not in running", "partition not in running")
    ),
}
"""Rule -> what breaks it. The numbers are those of :mod:`timers.queue.settling`, and after the word starts those of
:mod:`timers.queue.starts`."""
