"""Classes that each break one branch of :class:`timers.core.loop.Loop`. The simulator must find each one."""

from __future__ import annotations

from timers.core.loop import Loop, Outcome
from timers.core.timer import Fetched


class FiresNothingAtATick(Loop):
    """A tick is observed, but the drain does not begin."""

    def _observe(self) -> None:
        firing = self._firing
        super()._observe()
        self._firing = firing


class StopsAfterOneChunk(Loop):
    """After one chunk the other due timers wait for the next tick."""

    def step(self, *, idle_too_long: bool = False) -> Outcome:
        self._observe()
        firing = self._firing
        outcome = super().step(idle_too_long=idle_too_long)
        self._firing = self._firing and not firing
        return outcome


class FiresNothingAfterAcceptance(Loop):
    """After the end of a replay or of the barrier, due timers wait for the next tick."""

    def _accept(self, fetched: Fetched) -> int | None:
        firing = self._firing
        read_again_from = super()._accept(fetched)
        self._firing = firing
        return read_again_from


class FiresNothingAfterAReplay(Loop):
    """After the end of a replay, due timers wait for the next tick."""

    def _accept(self, fetched: Fetched) -> int | None:
        recovering, firing = self.machine.recovering, self._firing
        read_again_from = super()._accept(fetched)
        if recovering:
            self._firing = firing
        return read_again_from


class FiresNothingAfterTheBarrier(Loop):
    """After the barrier has released a second, due timers wait for the next tick."""

    def _accept(self, fetched: Fetched) -> int | None:
        recovering, firing = self.machine.recovering, self._firing
        read_again_from = super()._accept(fetched)
        if not recovering:
            self._firing = firing
        return read_again_from


class CommitsNoIdleSeconds(Loop):
    """Progress is not committed if only time has passed."""

    def _commit(self, idle_too_long: bool) -> bool:
        return super()._commit(False)


class ReadsOnAfterAGap(Loop):
    """[I7]: the consumer does not read a lost fetch again."""

    def step(self, *, idle_too_long: bool = False) -> Outcome:
        return super().step(idle_too_long=idle_too_long)._replace(read_again_from=None)


class AcceptsAtAnyTime(Loop):
    """[I10]: fetches are accepted although the broker's clock is behind ``fired_through``."""

    def _may_accept(self) -> bool:
        return bool(self.fetches)


class CommitsNoProgress(Loop):
    """Progress is committed only with firings."""

    def _commit(self, idle_too_long: bool) -> bool:
        self._commit_due = False
        return False
