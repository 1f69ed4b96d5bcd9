"""The cold tier in memory: it holds cold requests and promotes them, with all faults that the contract allows.

It may crash between writing a copy and noting it, and it may write a copy early, late or again. But it writes no second
copy later than the retention after the due second or after the first copy (``docs/cold-tier.md``).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tests.simulation.id_oracle import Request
from tests.simulation.kit.log import SimLog, SimProducer, SimRecord
from timers.core.horizon import is_far
from timers.core.keys import OrderKey
from timers.core.progress import COLD_SEAL, HOT_HORIZON, Progress
from timers.core.timer import TopicPartition
from timers.process.config.settings import Settings
from timers.wire import cold, topics
from timers.wire.formats import RequestFormat


@dataclass
class HeldRequest:
    record: SimRecord
    decoded: cold.Cold
    promoted: bool = False
    """Whether a promotion was noted; a copy may exist without this note."""
    first_copy_s: int | None = None
    """Append second of the first copy."""


class SimCold:
    """Holds and promotes cold requests."""

    def __init__(self, log: SimLog, settings: Settings, random: Random) -> None:
        self._log = log
        self._settings = settings
        self._random = random
        self._held: dict[str, HeldRequest] = {}
        self._read_to = [0] * log.partitions

    def hold(self) -> str:
        """Read the new records of the cold topic."""
        for partition in range(self._log.partitions):
            fetched = self._log.fetch(self._settings.cold_topic, partition, self._read_to[partition])
            self._read_to[partition] = fetched.to_offset
            for record in fetched.records:
                decoded = cold.decode_cold(record.headers)
                assert decoded is not None and decoded.source not in self._held, f"{record!r} is cold twice or not cold"
                self._held[decoded.source] = HeldRequest(record, decoded)
        return f"{len(self._held)} held"

    def promote(self, lead_s: int) -> str:
        """Promote some requests that are due within ``lead_s``; the commit or the note may be lost."""
        near = [each for each in self._held.values() if each.decoded.due_s <= self._log.clock.now_s + lead_s]
        due = [each for each in near if not each.promoted or self._random.random() < 0.2]
        chosen = [each for each in due if self._may_write(each)][: self._random.choice([1, 3, 20])]
        outcome = self._random.choice(["noted", "noted", "not committed", "not noted"])
        self._write(chosen, outcome)
        return f"{len(chosen)} {outcome}"

    def promote_all(self, until_s: int) -> None:
        """Promote all requests that are due by ``until_s``."""
        self.hold()
        due = [each for each in self._held.values() if not each.promoted and each.decoded.due_s <= until_s]
        self._write([each for each in due if self._may_write(each)], "noted")

    def next_due_s(self, now_s: int) -> int:
        """The next second after ``now_s`` at which a request that was not promoted is due; far ahead without any."""
        due = [each.decoded.due_s for each in self._held.values() if not each.promoted]
        return min((each for each in due if each > now_s), default=now_s + 10**9)

    def is_due(self, machine: TopicPartition, now_s: int) -> bool:
        """Whether a request of a machine is due and was not promoted."""
        self.hold()
        return any(
            not held.promoted and held.decoded.due_s <= now_s and self._may_write(held)
            for held in self._held.values()
            if (topics.parse_source(held.decoded.source) or ("", 0, 0))[:2] == machine
        )

    def forget(self, is_known: Callable[[str], bool]) -> None:
        """Forget the requests that the checkers have forgotten, and so never promote them again."""
        self._held = {source: held for source, held in self._held.items() if is_known(source)}

    def _may_write(self, held: HeldRequest) -> bool:
        topic, partition, _ = topics.parse_source(held.decoded.source) or ("", 0, 0)
        if held.first_copy_s is None or topic == self._settings.id_topic:
            return True
        records = self._log.fetch(topic, partition, 0, committed=False).records
        newest_s: int = max([self._log.clock.now_s, *(record.timestamp // 1000 for record in records)])
        return newest_s <= max(held.decoded.due_s, held.first_copy_s) + self._settings.verdict_retention_s

    def _write(self, chosen: list[HeldRequest], outcome: str) -> None:
        producer = SimProducer(self._log, "promoter")
        producer.init_transactions()
        producer.begin()
        for held in chosen:
            topic, partition, _ = topics.parse_source(held.decoded.source) or ("", 0, 0)
            headers = cold.encode_promoted(held.decoded)
            producer.produce(topic, held.record.key, held.record.value, headers, partition)
        if outcome == "not committed":
            producer.init_transactions()
            return
        producer.commit()
        for held in chosen:
            if held.first_copy_s is None:
                held.first_copy_s = self._log.clock.now_s
            held.promoted = held.promoted or outcome == "noted"


@dataclass
class ColdLog:
    """The oracle for cold requests: which requests of one log are cold, and which copy of each one is its timer."""

    request_format: RequestFormat
    copies: dict[int, list[Request]] = field(default_factory=dict)
    """Offset of a request -> its copies, in the order of the log."""
    forwarded: dict[int, int] = field(default_factory=dict)
    """Offset of a request -> how often it was forwarded to the cold topic."""

    def is_cold(self, request: Request, progress: Progress) -> bool:
        """Whether a request must be forwarded to the cold topic."""
        if request.key is None or request.copy_of is not None or request.refused:
            return False
        return self.has_cold(request.key, request.record.timestamp // 1000, progress)

    def has_cold(self, key: OrderKey, append_s: int, progress: Progress) -> bool:
        """Whether a version with this key is cold."""
        due_s, offset = key
        horizon_s = progress.setting_at(HOT_HORIZON, offset, 0)
        return self.request_format.allows_cold_tier and is_far(due_s, append_s, horizon_s)

    def is_refused(self, request: Request, progress: Progress) -> bool:
        """Whether a request is a forged copy and must be rejected."""
        return request.forged and progress.setting_at(COLD_SEAL, request.record.offset, 0) > 0

    def first_copy(self, original: Request, below: int) -> Request | None:
        """The first copy below an offset, if it comes before the end of its version; else None."""
        copies = self.copies.get(original.record.offset)
        if not copies:
            return None
        first = min(copies, key=lambda copy: copy.record.offset)
        in_time = original.end is None or first.record.offset < original.end.offset
        return first if in_time and first.record.offset < below else None

    def is_timer(self, request: Request, progress: Progress, below: int) -> bool:
        """Whether a request is a timer of its own log: not cold, not forged, not a later copy."""
        if request.copy_of is not None:
            return self.first_copy(request.copy_of, below) is request
        return not self.is_cold(request, progress) and not self.is_refused(request, progress)
