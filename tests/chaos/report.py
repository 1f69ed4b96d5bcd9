"""What a round prints: the figures, and what each fault hit."""

from __future__ import annotations

from collections.abc import Sequence

from tests.chaos.checker import CALM_S, InjectedFault, Verdict


def lines(
    seed: int, verdict: Verdict, faults_injected: Sequence[InjectedFault], failures: Sequence[str], first_s: int
) -> list[str]:
    """One round.

    Args:
        first_s: epoch second from which the faults are timed.
    """
    out = []
    for injected, count in zip(faults_injected, verdict.in_flight, strict=True):
        hit = f"hit: yes ({count:,} due timers in flight)" if count else "hit: no"
        at_s, took_s = injected.at_ms / 1000 - first_s, (injected.over_ms - injected.at_ms) / 1000
        note = f"; {injected.note}" if injected.note else ""
        out.append(f"  {at_s:6.2f} s  {injected.kind} ({injected.victim}), {took_s:.1f} s: {hit}{note}")
    fired = verdict.fired
    out.append(
        f"  seed {seed}: accepted {verdict.accepted:,}, fired {fired.records:,}, lost {fired.lost:,}, "
        f"duplicates {fired.duplicates:,}, early {fired.early:,}, altered {fired.altered:,}"
    )
    out.append(
        f"  worst lag {verdict.worst_lag_ms:,} ms; after the last fault {verdict.worst_after_ms:,} ms; "
        f"overdue {CALM_S} s after it: {verdict.overdue:,}"
    )
    out += [f"  FAILED: {failure}" for failure in failures]
    counts = "counts" if verdict.counts else "does not count: a fault hit nothing in flight"
    out.append(f"  this round {counts}")
    return out
