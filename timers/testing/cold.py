"""The cold tier in memory: it holds cold requests and promotes them, with all faults that the contract allows.

It may crash between writing a copy and noting it, and write a copy early, late or again. ``docs/cold-tier.md`` says
what it must not do: no second copy later than the retention after the due second, or after the first copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from timers.config.settings import Settings
from timers.core.horizon import is_far
from timers.core.operation import Entry
from timers.core.progress import HOT_HORIZON, SEAL, Progress
from timers.core.timer import TopicPartition
from timers.testing.id_oracle import Request
from timers.testing.log import SimLog, SimProducer, SimRecord
from timers.wire import cold, topics
from timers.wire.formats import RequestFormat


@dataclass
class Held:
    """One cold request."""

    record: SimRecord
    told: cold.Cold
    promoted: bool = False
    """As far as it was noted."""
    first_copy_s: int | None = None
    """Append second of the first copy."""


class SimCold:
    """Holds and promotes.

    Args:
        log: the cluster.
        settings: of the app.
        random: the only source of chance.
    """

    def __init__(self, log: SimLog, settings: Settings, random: Random) -> None:
        self._log = log
        self._settings = settings
        self._random = random
        self._held: dict[str, Held] = {}
        self._read_to = [0] * log.partitions

    def hold(self) -> str:
        """Take in what is on the cold topic."""
        for partition in range(self._log.partitions):
            fetched = self._log.fetch(self._settings.cold_topic, partition, self._read_to[partition])
            self._read_to[partition] = fetched.to_offset
            for record in fetched.records:
                told = cold.decode_cold(record.headers)
                assert told is not None and told.source not in self._held, f"{record!r} is cold twice, or nothing"
                self._held[told.source] = Held(record, told)
        return f"{len(self._held)} held"

    def promote(self, lead_s: int) -> str:
        """Write back some of what is due within ``lead_s``; not everything goes well."""
        near = [each for each in self._held.values() if each.told.due_s <= self._log.clock.now_s + lead_s]
        due = [each for each in near if not each.promoted or self._random.random() < 0.2]
        chosen = [each for each in due if self._may_write(each)][: self._random.choice([1, 3, 20])]
        outcome = self._random.choice(["noted", "noted", "not committed", "not noted"])
        self._write(chosen, outcome)
        return f"{len(chosen)} {outcome}"

    def promote_all(self, until_s: int) -> None:
        """Write back all that is due by then."""
        self.hold()
        due = [each for each in self._held.values() if not each.promoted and each.told.due_s <= until_s]
        self._write([each for each in due if self._may_write(each)], "noted")

    def is_due(self, machine: TopicPartition, now_s: int) -> bool:
        """Whether something of a machine's is due and was not promoted."""
        self.hold()
        return any(
            not held.promoted and held.told.due_s <= now_s and self._may_write(held)
            for held in self._held.values()
            if (topics.parse_source(held.told.source) or ("", 0, 0))[:2] == machine
        )

    def _may_write(self, held: Held) -> bool:
        """Whether one more copy may be written. A first one always may."""
        topic, partition, _ = topics.parse_source(held.told.source) or ("", 0, 0)
        if held.first_copy_s is None or topic == self._settings.id_topic:
            return True
        records = self._log.fetch(topic, partition, 0, committed=False).records
        newest_s: int = max([self._log.clock.now_s, *(record.timestamp // 1000 for record in records)])
        return newest_s <= max(held.told.due_s, held.first_copy_s) + self._settings.verdict_retention_s

    def _write(self, chosen: list[Held], outcome: str) -> None:
        producer = SimProducer(self._log, "promoter")
        producer.init_transactions()
        producer.begin()
        for held in chosen:
            topic, partition, _ = topics.parse_source(held.told.source) or ("", 0, 0)
            headers = cold.encode_promoted(held.told)
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
    """The oracle: what of one machine's log is cold, and which copy of it counts, from the log and the settings."""

    request_format: RequestFormat
    copies: dict[int, list[Request]] = field(default_factory=dict)
    """Offset of a request -> its copies, in the order of the log."""
    forwarded: dict[int, int] = field(default_factory=dict)
    """Offset of a request -> how often it was sent away."""

    def is_cold(self, request: Request, progress: Progress) -> bool:
        """Whether a request must be sent away."""
        if not self.request_format.allows_cold_tier or request.key is None or request.copy_of is not None:
            return False
        horizon_s = progress.setting_at(HOT_HORIZON, request.record.offset, 0)
        return is_far(request.key[0], request.record.timestamp // 1000, horizon_s)

    def is_refused(self, request: Request, progress: Progress) -> bool:
        """Whether a request poses as a copy, and is found out."""
        return request.forged and progress.setting_at(SEAL, request.record.offset, 0) > 0

    def counting(self, original: Request, below: int) -> Request | None:
        """The copy that counts; None if there is none below that offset."""
        copies = self.copies.get(original.record.offset)
        if not copies:
            return None
        first = min(copies, key=lambda copy: copy.record.offset)
        in_time = original.end is None or first.record.offset < original.end.offset
        return first if in_time and first.record.offset < below else None

    def counts(self, request: Request, progress: Progress, below: int) -> bool:
        """Whether a request is a timer of its own log that waits or has fired."""
        if request.copy_of is not None:
            return self.counting(request.copy_of, below) is request
        return not self.is_cold(request, progress) and not self.is_refused(request, progress)

    def entry(self, original: Request, below: int) -> Entry | None:
        """What the index holds of a version that has come back."""
        copy = self.counting(original, below)
        if copy is None or copy.key is None:
            return None
        due_s, offset = copy.key
        return due_s, offset, max(due_s, copy.record.timestamp // 1000)
