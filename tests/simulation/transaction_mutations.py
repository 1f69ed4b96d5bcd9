"""Broken rules of a transaction: changes of the producer's source. The simulator must find each one."""

from tests.simulation.edits import Change, changed

CHANGES: dict[str, Change] = {
    "an end of version 1 without an answer is sent again": (
        "end(producer, request, committed=True, repeats=False)",
        "end(producer, request, committed=True, repeats=True)",
    ),
    "an end without an answer counts as a commit": (
        "raise errors.RequestTimedOutError('the coordinator did not answer the end of a transaction')",
        "break",
    ),
    "id and epoch stay after an end": ("manager._pid_and_epoch = PidAndEpoch(id, epoch)", "pass"),
    "the id stays after an end": ("PidAndEpoch(id, epoch)", "PidAndEpoch(manager.producer_id, epoch)"),
    "numbers of batches go on after an end": ("manager._sequence_numbers.clear()", "pass"),
    "a busy coordinator fails the machine": ("does is Does.AGAIN", "False"),
    "offsets without an answer count as sent": (
        "{effect_of(code): code for code in codes} or {Does.LOOK: 0}",
        "{effect_of(code): code for code in codes} or {Does.DONE: 0}",
    ),
    "a rollback commits": ("_end(producer, committed=False)", "_end(producer, committed=True)"),
    "a change of the version needs no opening": (
        "road, held_from = self._road, self.held_from",
        "self._road = road = self._present_road; held_from = self.held_from",
    ),
    "offsets that were not taken are sent with the next transaction": (
        "answers.note_offsets(group, began_s, error)",
        "pass",
    ),
    "an end that meets a fence is not sent again": ("answer.error_code not in FENCING", "True"),
    "a rollback goes on after another opening": ("self.opening != (id, epoch + 1)", "False"),
}

MUTATIONS = {rule: changed(change) for rule, change in CHANGES.items()}
