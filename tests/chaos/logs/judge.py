"""The verdict on one cell: compares callbacks and dead letters with what the log and the store held."""

from collections import Counter
from dataclasses import dataclass, field

RED_WITHIN_S = 30.0


@dataclass
class Facts:
    """What was seen in a cell. Timers are named by their numbers.

    Attributes:
        in_log: the log holds them after the fault, or they were published later.
        held: the log lost them, and the store of the worker held them: they had not fired.
        unsure: the log lost them; whether a store held them is not known.
        gone: how many the log lost that had not fired and that no store holds.
        must_be_red: the log lost timers that the worker had read, and what it knows about its position is left.
        fired_before: fired before the fault.
        fired: committed callbacks in the end.
        letters: dead letters before they were sent again.
        red_after_s: seconds until the partition was red; None: it was not.
        sentence: why it was red.
        may_repeat: had fired before the fault, and a sentence says that they may fire again.
        sent_again: what `timers dead-letters retry` said.
        failures: what else was wrong.
    """

    in_log: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    unsure: set[int] = field(default_factory=set)
    gone: int = 0
    must_be_red: bool = False
    fired_before: set[int] = field(default_factory=set)
    fired: Counter[int] = field(default_factory=Counter)
    letters: Counter[int] = field(default_factory=Counter)
    red_after_s: float | None = None
    sentence: str = ""
    may_repeat: set[int] = field(default_factory=set)
    sent_again: str = ""
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Verdict:
    """The result of a cell."""

    lost: int
    """Timers in the log that did not fire."""
    twice: int
    """Timers that fired more than once."""
    silent: int
    """Timers that only the store held, and that neither fired nor became a dead letter that fires."""
    wrong_letters: int
    """Timers with two dead letters, or with one although the log holds them."""
    failures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not (self.lost or self.twice or self.silent or self.wrong_letters or self.failures)


def judge(facts: Facts) -> Verdict:
    """Judge a cell by the rule: all in the log fire once, or red; after the acceptance nothing acknowledged is lost."""
    fired, letters, failures = facts.fired, facts.letters, list(facts.failures)
    is_red = facts.red_after_s is not None
    if facts.red_after_s is not None and facts.red_after_s > RED_WITHIN_S:
        failures.append(f"red only after {facts.red_after_s:.0f} s")
    if facts.must_be_red and not is_red:
        failures.append("the log lost timers, and nothing says so")
    silent = {number for number in facts.held if not fired[number]}
    if silent and facts.sent_again:
        failures.append(f"`timers dead-letters retry`: {facts.sent_again}")
    wrong = {number for number, count in letters.items() if count > 1 or number in facts.in_log}
    if is_red:
        wrong |= {number for number in facts.held if letters[number] != 1}
    return Verdict(
        lost=sum(not fired[number] for number in facts.in_log),
        twice=sum(count > 1 and number not in facts.may_repeat for number, count in fired.items()),
        silent=len(silent),
        wrong_letters=len(wrong),
        failures=tuple(failures),
    )
