"""Changes and classes that each break one rule of holds [I33] to [I36]. The simulator must find each one."""

from tests.simulation.edits import Mutation, changed
from tests.simulation.machine_mutations import WithoutConditions
from tests.simulation.pauses import PausingWorker
from timers.core.keys import MAX_OFFSET


class PlainWorker(PausingWorker, WithoutConditions):
    """In runs in which timers with an id have no conditions."""


def paused(*changes: tuple[str, str], worker: type[PausingWorker] = PausingWorker) -> Mutation:
    return changed(*changes, worker=worker)


HELD = "key <= self.released or self.begin.had_passed(key, holes)"
COMMITTED = "...(after, ..., release.number)"
ENDED = "None if is_over else after"
KNOWN = "command.number <= self.taken"
SPLIT = "Split(dict(free), waiting, dict(held))"
TOGETHER = "{**waiting, **{due_s: [*rows, *waiting.get(due_s, ())] for due_s, rows in held}}"

CHANGED = {
    "[I33] a hold has no begin": paused((HELD, "key <= self.released")),
    "[I33] a hold has no end": paused(("self.end is None or self.end.had_passed(key, holes)", "True")),
    "[I33] what was released is held again": paused((HELD, "self.begin.had_passed(key, holes)")),
    "[I33] late timers of a paused target fire": paused(("not (progress.holds and late)", "True")),
    "[I33] a replay drops what is held": paused(
        (
            "self._store.write(waiting, to_offset, {**entries, **copy_entries}, lineage, held)",
            "self._store.write(waiting, to_offset, {**entries, **copy_entries}, lineage)",
        ),
    ),
    "[I33] an opening deletes what is held": paused(
        (
            "store.drop_through(progress.fired_through, progress.next_offset, held_of, indexed=indexed)",
            "store.drop_through(progress.fired_through, progress.next_offset, indexed=indexed)",
        ),
    ),
    "[I33] an opening deletes what is held in a hole": paused(
        (
            "store.drop_through(hole.through, hole.before_offset, held_of)",
            "store.drop_through(hole.through, hole.before_offset)",
        ),
    ),
    "[I33] a pause is taken twice": paused((KNOWN, f"not command.is_paused and {KNOWN}")),
    "[I33] an older command is taken": paused((KNOWN, "command.number == self.taken")),
    "[I33] more pauses than there is room for": paused(
        ("sum(hold.reason == PAUSE for hold in self) >= MAX_PAUSES", "False"),
    ),
    "[I33] a changed pause keeps its former end": paused(
        (
            "hold._replace(number=command.number, until_s=until_s, over_s=over_s)",
            "hold._replace(number=command.number)",
        ),
    ),
    "[I33] a pause goes on after its end": paused(("holds if is_drained else ()", "()")),
    "[I33] commands wait for a second that is released at once": paused(
        ("self._may_take and self.machine.is_drained", "self._may_take"),
    ),
    "[I33] a verdict says that a held timer has fired": paused(
        ("None if row is None else progress.hold_of(key, row[1])", "None"),
    ),
    "[I33] the id of a held timer is forgotten": paused(
        ("not (progress.holds and progress.holds.may_hold(key, progress.holes))", "True"), worker=PlainWorker
    ),
    "[I34] a chunk deletes what is held": paused(
        (
            "self._store.delete(after.fired_through, chunk.count, chunk.rest, chunk.kept)",
            f"self._store.drop_through(after.fired_through, {MAX_OFFSET})",
        ),
    ),
    "[I34] what is held and what waits are one group": paused((SPLIT, f"Split(dict(free), {TOGETHER}, {{}})")),
    "[I35] a paused target is released": paused(
        ("hold.target not in paused and hold.quota(second) != 0", "hold.quota(second) != 0"),
    ),
    "[I35] released before the barrier": paused(
        (
            "hold = None if second is None else self.held.next_in_turn(self.progress, second)",
            "second = tick.second; hold = self.held.next_in_turn(self.progress, second)",
        ),
    ),
    "[I35] what was released is not committed with it": paused(
        (
            COMMITTED,
            "...(self.progress, ..., release.number), setattr(self, 'progress', after)",
        ),
    ),
    "[I35] a release has no pace": paused(("quota = hold.quota(second)", "quota = None")),
    "[I35] a release is a second late": paused(
        ("self.held.next_in_turn(self.progress, second)", "self.held.next_in_turn(self.progress, second - 1)"),
    ),
    "[I35] the pace of a release begins a second late": paused(
        ("second - self.resumed_s + 1", "second - self.resumed_s"),
    ),
    "[I35] a pause ends before all that is due is held": paused(
        (
            "self.progress.with_commands(commands, self._tick.second, rows_of, is_drained=self.is_drained)",
            "self.progress.with_commands(commands, self._tick.second, rows_of, is_drained=True)",
        ),
    ),
    "[I35] a hold ends while it holds timers": paused((ENDED, "None")),
    "[I35] a hold that holds nothing goes on": paused((ENDED, "after")),
    "[I35] after a wrong time held timers are early": paused(
        ("min(past_through(progress), (second, MAX_OFFSET))", "past_through(progress)"),
    ),
    "[I33] a pause that got an end which is over goes on": paused(
        (
            "not is_over(command.until_s, second) or holds.pauses(command.target)",
            "not is_over(command.until_s, second)",
        ),
    ),
    "[I36] a noisy hold begins before the chunk": paused(
        (
            "with_noisy(after, noisy, ...)",
            "after.with_holds(with_noisy(self.progress, noisy, ...).holds)",
        ),
    ),
}
