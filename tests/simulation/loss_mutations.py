"""Mutations of the rules for logs that lose their end [I28]: each breaks one rule, and a simulated run must find it."""

from tests.simulation.edits import changed
from tests.simulation.kit.worker import SimWorker
from tests.simulation.life_mutations import TRIED_AGAIN


class ComparesNotAgain(SimWorker):
    """A running worker does not compare its logs: what has grown to exactly a position sends no batch."""

    def compare_logs(self) -> None:
        for runner in self.runners.values():
            if (leader := runner.loop.untrusted_leader) is not None:
                runner.machine.trust(leader)


ANSWERED = "parted, batch = next_question(lineage, ends), lineage.batch"
ACCEPTED = "progress = accept(progress, cut)"
REPLACE = "__import__('dataclasses').replace"

MUTATIONS = {
    "T1 nothing is compared": changed((ANSWERED, f"return None; {ANSWERED}")),
    "T1 no batch is compared": changed(("present == batch", "True")),
    # The other log may have more records of an older one.
    "T1 the newest epoch only": changed(
        (ANSWERED, f"{ANSWERED}; parted = Parted(ends[lineage.epochs[-1][0]].end) if parted else parted"),
    ),
    "T1 markers do not count": changed(
        (
            "self._passed = fetched.passed",
            "offsets = {each.offset for each in fetched.records}; "
            "self._passed = [each for each in fetched.passed if each[1].base_offset in offsets]",
        ),
    ),
    "[I8] a machine that must not run is tried again": changed(TRIED_AGAIN),
    "T2 no question at an opening": changed(("answers = self.ask.compare(self.tp, lineages)", "pass")),
    "T2 no question while it runs": changed(worker=ComparesNotAgain),
    "T2 each leader is trusted": changed(("None if is_known else leader", "None")),
    "T6 the store is ignored": changed(
        ("answers = self.ask.compare(self.tp, lineages)", "answers = self.ask.compare(self.tp, lineages)[0], None")
    ),
    "T6 a store takes back what another owner accepted": changed(
        ("return Cut(found, only_in_store=cut is None)", "return Cut(found)"),
    ),
    "T7 no cut in the history": changed(
        (ACCEPTED, f"before = progress; {ACCEPTED}; progress = {REPLACE}(progress, settings=before.settings)")
    ),
    "T7 reading goes on from the old position": changed(
        (
            ACCEPTED,
            f"at = min(progress.next_offset, log_end); {ACCEPTED}; progress = {REPLACE}(progress, next_offset=at)",
        )
    ),
    "T8 the store is emptied first": changed((ACCEPTED, f"{ACCEPTED}; store.empty()")),
    "T8 no cursor": changed(
        (
            "rescues = self.progress.rescues[-self.rescue_count :]",
            "rescues = [each._replace(through=b'') for each in self.progress.rescues[-self.rescue_count :]]",
        ),
    ),
    "T8 a second loss begins anew": changed(
        ("is_below = bool(self.rescues) and end <= self.rescues[-1].from_offset", "is_below = False"),
    ),
    "[I33] what was held is not rescued": changed(("Holds(rescue.holds).of(key, target, holes) is not None", "False")),
    "T9 sources without the number of the cut": changed(("self._cuts = cuts", "self._cuts = ()")),
}
