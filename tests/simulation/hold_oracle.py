"""The oracle for paused and noisy callback topics. It finds what is held from the order of commits alone.

A request is held if its due second was over in a commit before which its target had a hold without an end. It is not
asked which offsets and keys a hold covers: the answers of :meth:`timers.core.progress.Progress.hold_of` are compared
with this, after each commit.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.simulation.id_oracle import Request
from tests.simulation.kit.faults import Violation
from tests.simulation.kit.log import SimRecord
from tests.simulation.kit.worker import SimRunner
from tests.simulation.machine_log import MachineLog
from timers.core import fired
from timers.core.fired import NOISY, PAUSE, Command, Hold, Moment
from timers.core.keys import MAX_OFFSET
from timers.core.levels import HOLDS_LEVEL
from timers.core.progress import Progress
from timers.core.steps import State
from timers.core.timer import CLOCK_STEP_BACK_S, TopicPartition
from timers.wire import headers as h
from timers.wire import topics


@dataclass
class Release:
    """The end of a pause of one target in one machine."""

    hold: Hold
    offsets: set[int]
    """Offsets of the requests that were held then."""
    ended: int
    """Number of others that were replaced or cancelled while they were held: the pace counts them, too."""
    allowed: int = 0
    """So many of them may have been sent by now."""

    def note_time(self, second: int) -> None:
        """Note that a machine sends in a tick second."""
        after_s = second - self.hold.resumed_s + 1
        number = len(self.offsets) + self.ended
        if after_s > 0:
            share = number if after_s >= self.hold.over_s else number * after_s // self.hold.over_s
            self.allowed = max(self.allowed, share)


class HoldChecks:
    """Checks that held timers are sent once, in time, at the right pace, and not while their target is paused.

    Args:
        logs: of the machines.
        app_id: of their app.
        outcomes: returns how many outcomes a request has.

    Attributes:
        commands: all commands, ascending by number.
        targets: machine and callback topic of each hold so far.
        counts: what happened.
    """

    def __init__(
        self, logs: Mapping[TopicPartition, MachineLog], app_id: str, outcomes: Callable[[Request], int]
    ) -> None:
        self._logs = logs
        self._outcomes = outcomes
        self._machines = {topics.transactional_id(app_id, *machine): machine for machine in logs}
        self._held: dict[TopicPartition, set[int]] = {machine: set() for machine in logs}
        self._releases: dict[tuple[TopicPartition, str], Release] = {}
        self._before: dict[TopicPartition, tuple[object, Progress]] = {}
        """Transaction of the last commit of a machine, and the progress before it."""
        self._told: dict[TopicPartition, tuple[SimRunner, int]] = {}
        """The runner of a machine, and the number of the newest command that it has known since its last tick."""
        self._released_s: int | None = None
        self._full: set[TopicPartition] = set()
        """Machines that had no room for another pause since their last tick: it may be taken at the next one."""
        self.commands: Sequence[Command] = ()
        self.targets: set[tuple[TopicPartition, str]] = set()
        self.counts: Counter[str] = Counter()

    # ---- commits ------------------------------------------------------------------------------------------------

    def commit(self, machine: TopicPartition, before: Progress, after: Progress, record: SimRecord) -> None:
        """Note a commit."""
        self._before[machine] = record.transaction, before
        for (name, _), release in self._releases.items():
            if name == machine:  # what is moved or given up has no time of its own
                release.note_time(after.fired_through[0])
        if not (before.holds or after.holds):
            return
        self.targets |= {(machine, hold.target) for hold in after.holds}
        if after.taken < before.taken:
            raise Violation(f"{machine} has taken commands up to {before.taken}, and then up to {after.taken}")
        if sum(hold.reason == PAUSE for hold in after.holds) > fired.MAX_PAUSES:
            raise Violation(f"{machine} has more pauses than there is room for: {after.holds}")
        if _is_full(after):  # also if a hold ends in the same step
            self._full.add(machine)
        held, log = self._held[machine], self._logs[machine]
        of_targets = {hold.target for hold in before.holds if hold.end is None}
        for offset, request in log.timers():
            if request.key is None or request.row is None or request.row[1] not in of_targets:
                continue
            is_new = offset >= before.next_offset or not before.is_past(request.key)
            is_past = is_new and offset < after.next_offset and after.is_past(request.key)
            if is_past and log.cold.is_timer(request, after, after.next_offset):
                held.add(offset)
                self.counts["held"] += 1
        self._check_commands(machine, before, after)

    def _check_commands(self, machine: TopicPartition, before: Progress, after: Progress) -> None:
        """Check that each pause that began, changed or ended did so by a command that was not taken before, or at its
        own end."""
        was, now = ({hold.target: hold for hold in each.holds if hold.is_paused} for each in (before, after))
        noisy = [{hold.target for hold in each.holds if hold.reason == NOISY} for each in (before, after)]
        self.counts["noisy"] += len(noisy[1] - noisy[0])
        for target, hold in now.items():
            known = was.get(target)
            asked = [each for each in self.commands if each.number == hold.number and each.target == target]
            if known is not None and known.number == hold.number:
                continue
            if hold.number <= before.taken or not asked or not asked[0].is_paused:
                raise Violation(f"{machine} has {hold}, after the commands up to {before.taken}")
            self.counts["changed pauses" if known else "pauses"] += 1
        over = {target for target, hold in was.items() if _begun(now.get(target)) != _begun(hold)}
        ended: dict[tuple[object, ...], Hold] = {}
        for hold in before.holds:
            if hold.reason == PAUSE and hold.end is not None:
                ended[hold.target, hold.begin, hold.end] = hold
        for hold in after.holds:
            known = ended.get((hold.target, hold.begin, hold.end))
            if known is None or hold.target in over:
                continue
            if has_other_pace := known.number != hold.number:
                self._check_ended(machine, hold, before, after)
                self.counts["other paces"] += 1
            if has_other_pace or hold.resumed_s < known.resumed_s - CLOCK_STEP_BACK_S:  # it began at a wrong time
                self._releases[machine, hold.target] = self._release(machine, hold)
        for target in over:
            pauses = [each for each in after.holds if each.target == target and each.reason == PAUSE]
            newest = next((each for each in pauses if _begun(each) == _begun(was[target])), None)
            if newest is None:
                raise Violation(f"the pause of {target} for {machine} is gone, and was not ended")
            self._check_ended(machine, newest, before, after)
            self._releases[machine, target] = self._release(machine, newest)
            self.counts["resumes"] += 1

    def _check_ended(self, machine: TopicPartition, hold: Hold, before: Progress, after: Progress) -> None:
        # A pause that found no room, and the commands after it, are not taken: these may have an effect all the same.
        new = {each.target for each in self.commands if each.is_paused and each.number > before.taken}
        newest = self.commands[-1].number if self.commands and _is_full(before, len(new)) else after.taken
        by_command = [
            each.over_s
            for each in self.commands
            if each.target == hold.target and not each.is_paused and before.taken < each.number <= newest
        ]
        by_itself = [hold.over_s] if 0 < hold.until_s <= hold.resumed_s else []
        if hold.over_s not in by_command + by_itself:
            raise Violation(f"{machine} has ended {hold}, after the commands up to {before.taken}")
        # Of a second that waits for its requests, nothing is known yet.
        second = hold.resumed_s if self._released_s is None else min(hold.resumed_s, self._released_s)
        left = [
            request.key
            for offset, request in self._logs[machine].timers()
            if request.row is not None
            and request.row[1] == hold.target
            and request.key is not None
            and offset < after.next_offset
            and request.key[0] <= second
            and not after.is_past(request.key)
            and self._counts(machine, request, after)
        ]
        if left:
            raise Violation(f"{machine} has ended {hold} although {left[0]} is due, which the release would not slow")

    def _release(self, machine: TopicPartition, hold: Hold) -> Release:
        assert hold.end is not None
        offsets, begin, end = self._of_target(machine, hold.target), hold.begin, hold.end
        ended = [
            offset
            for offset, request in self._logs[machine].timers()
            if offset not in offsets
            and request.row is not None
            and request.row[1] == hold.target
            and request.key is not None
            and (request.key > begin.fired_through or offset >= begin.next_offset)
            and request.key <= end.fired_through
            and offset < end.next_offset
            and not self._outcomes(request)
        ]
        return Release(hold, offsets, len(ended))

    def _of_target(self, machine: TopicPartition, target: str) -> set[int]:
        rows = ((offset, request.row) for offset, request in self._logs[machine].timers())
        return {offset for offset, row in rows if offset in self._held[machine] and row and row[1] == target}

    def _counts(self, machine: TopicPartition, request: Request, progress: Progress) -> bool:
        """Whether a request is a timer that was not ended."""
        log, end = self._logs[machine], request.original.end
        if request.refused or request.record.compacted or (end is not None and end.offset < progress.next_offset):
            return False
        return log.cold.is_timer(request, progress, progress.next_offset)

    # ---- what was sent ------------------------------------------------------------------------------------------

    def progress_of(self, record: SimRecord) -> tuple[Progress, Progress | None]:
        """Returns the progress before and after the transaction that wrote a record; None: it has none."""
        assert record.transaction is not None
        machine = self._machines[record.transaction.transactional_id]
        last, before = self._before.get(machine, (None, Progress()))
        return before, self._logs[machine].progress if last is record.transaction else None

    def check_sent(self, record: SimRecord, target: str) -> None:
        """Check that no timer of a paused target was sent, moved or given up."""
        assert record.transaction is not None
        machine = self._machines[record.transaction.transactional_id]
        last, before = self._before.get(machine, (None, Progress()))
        known = [self._logs[machine].progress, *([before] if last is record.transaction else [])]
        for progress in known:
            for hold in progress.holds.by_target.get(target, ()):
                if hold.is_paused:
                    raise Violation(f"sent while paused: {record!r} of {machine} for {target}, with {hold}")
        fired_ms = dict(record.headers).get(h.TIMER_FIRED)
        if fired_ms and (release := self._releases.get((machine, target))) is not None:
            release.note_time(int(fired_ms) // 1000)

    def check_outcomes(self, machine: TopicPartition) -> None:
        """Compare what is held with what the committed progress says."""
        log, held = self._logs[machine], self._held[machine]
        progress = log.progress
        if not (held or progress.holds):
            return
        self.forget_sent(machine)
        for offset, request in log.timers():
            if request.key is None or request.row is None or offset >= progress.next_offset:
                continue
            if not progress.is_past(request.key):
                continue
            hold = progress.hold_of(request.key, request.row[1])
            if (hold is not None) == (offset in held):
                continue
            if self._counts(machine, request, progress):
                what = "is held" if offset in held else "is not held"
                raise Violation(f"{request.record.source} with key {request.key} {what}, and progress says {hold}")
            held.discard(offset)

    def forget_sent(self, machine: TopicPartition) -> None:
        """Note which held requests were sent, moved or given up: they are not part of a release that begins later."""
        held = self._held[machine]
        for offset, request in self._logs[machine].timers() if held else ():
            if offset in held and self._outcomes(request):
                held.discard(offset)
                self.counts["released"] += 1

    # ---- a machine ----------------------------------------------------------------------------------------------

    def note_step(self, runner: SimRunner) -> None:
        """Note what a machine knows before a step."""
        self._released_s = runner.machine.released_s
        if _is_full(runner.machine.progress):
            self._full.add(runner.name)
        elif runner.loop._ticks:
            self._full.discard(runner.name)
        commands = runner.loop.commands if runner.machine.progress.level >= HOLDS_LEVEL else ()
        known = commands[-1].number if commands else 0
        if runner.loop._ticks:
            self._told[runner.name] = runner, known
        elif (told := self._told.get(runner.name)) is not None and told[0] is runner:
            self._told[runner.name] = runner, min(told[1], known)  # it may have read less since

    def sent_after_s(self, request: Request, runner: SimRunner) -> int | None:
        """The second before which a record must have been read that ends a request that was held; None: its own."""
        record = request.record
        if record.offset not in self._held[record.topic, record.partition]:
            return None
        if runner.indexed and runner.machine.released_s is None:
            raise Violation(f"{request.name} was held, and was sent before a second was released")
        return self._released_s

    def check(self, runner: SimRunner) -> None:
        """Check how fast a machine releases, and that it has taken the commands that it knows."""
        machine = runner.machine
        tick = machine._tick
        if tick is None or runner.outbox.is_fenced:
            return
        for (name, target), release in self._releases.items():
            if name == runner.name:
                self._check_pace(name, target, release, tick.second)
        told = self._told.get(runner.name)
        is_done = runner.loop.idle and machine.state is State.ACCEPTING
        if told is None or told[0] is not runner or not is_done:
            return
        released_s = (
            (machine.released_s or 0) if runner.indexed else tick.second
        )  # another owner may have fired further
        if released_s >= tick.second and machine.progress.fired_through >= (tick.second, MAX_OFFSET):
            self._check_taken(runner, told[1], tick.second)
            self._check_released(runner, tick.second)

    def _check_pace(self, name: TopicPartition, target: str, release: Release, second: int) -> None:
        release.note_time(second)
        offsets = release.offsets
        sent = sum(1 for offset, each in self._logs[name].timers() if offset in offsets and self._outcomes(each))
        if sent > release.allowed:
            how = f"{sent} of {len(offsets)} timers for {target} of {name} were sent by {second}"
            raise Violation(f"{how}, not {release.allowed}, after {release.hold}")

    def _check_released(self, runner: SimRunner, second: int) -> None:
        """Check that an idle machine has released all that the pace of a release allows in a second: neither the pace
        nor the barrier of the second is late."""
        progress = runner.machine.progress
        requests = dict(self._logs[runner.name].timers()) if progress.holds else {}
        for target, holds in progress.holds.by_target.items():
            hold = holds[0]
            after_s = second - hold.resumed_s + 1
            if len(holds) > 1 or hold.end is None or after_s <= 0:
                continue
            allowed = hold.rows if after_s >= hold.over_s else hold.rows * after_s // hold.over_s
            left = [
                request
                for request in map(requests.__getitem__, self._of_target(runner.name, target))
                if request.key is not None
                and request.key[0] <= second
                and not self._outcomes(request)
                and self._counts(runner.name, request, progress)
            ]
            if len(left) > hold.rows - allowed:
                how = f"{len(left)} of {hold.rows} timers for {target} of {runner.name} are left in {second}"
                raise Violation(f"{how}, of which {allowed} were to be sent, after {hold}")
            self.counts["paces in time"] += 1

    def _check_taken(self, runner: SimRunner, known: int, second: int) -> None:
        progress = runner.machine.progress
        if known > progress.taken and not (_is_full(progress) or runner.name in self._full):
            raise Violation(f"{runner.name} is idle, knows command {known}, and has taken {progress.taken} only")
        for command in {each.target: each for each in self.commands}.values():
            if command.number <= progress.taken:
                is_paused = any(hold.is_paused for hold in progress.holds.by_target.get(command.target, ()))
                may_be = command.is_paused and not 0 < command.until_s <= second
                if is_paused > may_be or is_paused < (may_be and not command.until_s):
                    raise Violation(f"{runner.name} has the holds {progress.holds} after {command}")

    def check_end(self) -> None:
        """Check that no hold is left after all targets were resumed."""
        for machine, log in self._logs.items():
            if log.progress.holds:
                raise Violation(f"{machine} has holds that do not end: {log.progress.holds}")


def _is_full(progress: Progress, new: int = 0) -> bool:
    """Whether there is no room for another pause, after so many new ones."""
    return sum(hold.reason == PAUSE for hold in progress.holds) + new >= fired.MAX_PAUSES


def _begun(hold: Hold | None) -> tuple[Moment, int] | None:
    """When a pause began. One step may end a pause and begin another one: both may have begun at the same moment."""
    return hold and (hold.begin, hold.since_s)
