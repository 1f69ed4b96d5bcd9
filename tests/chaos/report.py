"""The lines that a round prints: its figures, and what each fault hit."""

from collections.abc import Sequence

from tests.chaos.checker import InjectedFault, Verdict


def lines(
    seed: int, verdict: Verdict, injected_faults: Sequence[InjectedFault], failures: Sequence[str], first_s: int
) -> list[str]:
    """Return the report of one round.

    Args:
        first_s: first due second; times of faults are seconds from it.
    """
    out = []
    for injected, count in zip(injected_faults, verdict.in_flight, strict=True):
        hit = f"hit: yes ({count:,} due timers in flight)" if count else "hit: no"
        at_s, took_s = injected.at_ms / 1000 - first_s, (injected.over_ms - injected.at_ms) / 1000
        note = f"; {injected.note}" if injected.note else ""
        note += "" if injected.seen else "; NO EFFECT SEEN"
        out.append(f"  {at_s:6.2f} s  {injected.kind} ({injected.victim}), {took_s:.1f} s: {hit}{note}")
    out.append(
        f"  faults {len(injected_faults)}: hit timers in flight {sum(map(bool, verdict.in_flight))}, "
        f"effect seen {len(injected_faults) - verdict.unseen}"
    )
    fired = verdict.fired
    out.append(
        f"  seed {seed}: accepted {verdict.accepted:,}, fired {fired.records:,}, lost {fired.lost:,}, "
        f"duplicates {fired.duplicates:,}, early {fired.early:,}, altered {fired.altered:,}"
    )
    out.append(
        f"  worst lag {verdict.worst_lag_ms:,} ms; after the last fault {verdict.worst_after_faults_ms:,} ms; "
        f"overdue {verdict.limit_s:.0f} s after it: {verdict.overdue:,}"
    )
    out += [f"  FAILED: {failure}" for failure in failures]
    counts = "counts" if verdict.counts else "does not count: a fault hit no timer in flight, or had no effect"
    out.append(f"  this round {counts}")
    return out
