"""Checks of times in a simulation: no timer fires too early, or although it was ended before its due second began."""

from collections.abc import Collection

from tests.simulation.id_oracle import Request
from tests.simulation.kit.faults import Violation
from tests.simulation.kit.log import SimLog, SimRecord
from tests.simulation.kit.worker import SimRunner
from timers.core.timer import TopicPartition


class TimeChecks:
    """Compares callbacks with the seconds that the brokers' clock showed.

    Attributes:
        steps_back: ``seq`` of the log at each backward step of the brokers' clock.
        early_limit_s: seconds by which timers may fire early: twice the limit of a leap for each time that a broker's
            clock went ahead in steps below the limit.
    """

    def __init__(self, log: SimLog, machines: Collection[TopicPartition], app_id: str) -> None:
        self._log = log
        self._own = f"{app_id}-"
        self._machines = machines
        self._ticks: list[tuple[int, dict[TopicPartition, int]]] = []
        self.steps_back: list[int] = []
        self.early_limit_s = 0

    def note_tick(self, second: int) -> None:
        """Note where the logs end for committed readers at the begin of a second. What stands behind a transaction of
        the machines themselves is in time: only others' may delay a cancel [I17]."""
        ends = {machine: self._log.last_stable(*machine, without=self._own) for machine in self._machines}
        self._ticks.append((second, ends))

    def forget(self, oldest_s: int) -> None:
        """Forget where the logs ended before a second, since no older timer is pending. Late requests come after it."""
        count = next((at for at, (second, _) in enumerate(self._ticks) if second >= oldest_s), len(self._ticks))
        if count > 1:
            newest_s = max(second for second, _ in self._ticks[:count])
            self._ticks[:count] = [(newest_s, self._ticks[count - 1][1])]
        del self.steps_back[:-1]

    def check_not_ended(self, request: Request, released_s: int | None = None) -> None:
        """Check that a timer was not ended before its due second began; if it was held, before a later second."""
        if request.key is None or request.end is None:
            return
        before_s = max(request.key[0], released_s or 0)
        ends = next((ends for second, ends in self._ticks if second >= before_s), None)
        machine = request.record.topic, request.record.partition
        if ends is not None and request.end.offset < ends[machine]:
            raise Violation(f"{request.name} fired, although {request.end.source} ended it before its second began")

    def check_early(self, due_s: int, fired_ms: int, record: SimRecord, request: Request, runner: SimRunner) -> None:
        """Check that a timer did not fire before its due second, by the brokers' clock.

        After a backward step of that clock, requests made since may fire at most two seconds early [I10].
        """
        if fired_ms // 1000 < due_s - 2:
            raise Violation(f"early: {request.name}, due {due_s}, fired by a tick of {fired_ms} ms")
        since = max((seq for seq in self.steps_back if seq < record.seq), default=-1)
        if since < 0:
            if record.timestamp_ms < (due_s - self.early_limit_s) * 1000:
                raise Violation(f"early: {request.name}, due {due_s}, appended at {record.timestamp_ms} ms")
            return
        if request.record.seq > since:
            observed = max((tick.second for seq, tick in runner.observed if seq > since), default=None)
            if observed is not None and due_s > observed + 2:
                raise Violation(f"early: {request.name}, due {due_s}, fired when the clock showed {observed} again")
