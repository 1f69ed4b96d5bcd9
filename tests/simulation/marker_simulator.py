"""Simulated runs with consumers of kafka-mq-go, which write markers. Their oracle follows from the log alone.

The worker, its policy and its machines are the real ones. The oracle reads markers as the redelivery tracker does, with
no code of the index.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from tests.simulation.checkers import Checkers
from tests.simulation.id_oracle import IdOracle, Request, Step
from tests.simulation.kit import SimWorker
from tests.simulation.kit.faults import Violation
from tests.simulation.kit.log import SimRecord
from tests.simulation.kit.worker import SimRunner
from tests.simulation.machine_log import MachineLog
from tests.simulation.simulator import Simulator
from tests.simulation.workload import FAR_S
from timers.core.keys import OrderKey
from timers.core.operation import Entry
from timers.core.progress import Progress
from timers.core.timer import Origin, Row, TopicPartition
from timers.process.config.settings import Settings
from timers.v1.marker_pb2 import Marker
from timers.wire.formats import marker

MARKERS = "markers"
IDS = ("0/1", "0/2", "1/1")


@dataclass
class Tracked:
    """A message that a consumer works on."""

    version: Request
    """The last marker that counts."""
    append_s: int
    message: Marker
    """Its Start."""


@dataclass
class MarkerLog(MachineLog):
    """The markers of one partition. ``requests`` of the base class stays empty."""

    message_topic: str = ""
    records: dict[int, SimRecord] = field(default_factory=dict)

    def fold(self, below: int = 2**63) -> tuple[dict[int, Request], dict[str, Tracked]]:
        """Returns offset -> marker that set a lease or cannot be read, and the messages that are tracked after all
        markers below an offset."""
        versions: dict[int, Request] = {}
        tracked: dict[str, Tracked] = {}
        for offset, record in sorted(self.records.items()):
            if offset >= below:
                break
            read = _parse(record)
            if read is None:
                versions[offset] = Request(record, None, None, record.source, -1, record.source)
                continue
            id = f"{read.message_id.partition}/{read.message_id.offset}"
            before, append_s = tracked.get(id), record.timestamp // 1000
            if read.type == Marker.KEEPALIVE and (before is None or _due_s(before) <= append_s):
                continue
            if before is not None:
                before.version.end = Step((id.encode(), offset, None, 0), record.source, None)
            tracked.pop(id, None)
            if read.type == Marker.END:
                continue
            due_s = -(-(record.timestamp + read.redeliver_after_ms) // 1000)
            message = read if before is None or read.type == Marker.START else before.message
            row: Row = (offset, self.message_topic, message.key, message.value, None, Origin(id, due_s, 0))
            sent = record
            if read.type == Marker.KEEPALIVE:  # its dead letter is a Start with the message
                value = marker.encode_start(id, message.key, message.value, 0)
                sent = SimRecord(record.topic, record.partition, offset, message.key, value, (), record.timestamp, 0)
                sent.seq = record.seq
            versions[offset] = Request(sent, (due_s, offset), row, record.source, -1, id)
            tracked[id] = Tracked(versions[offset], append_s, message)
        return versions, tracked

    def pending(self, progress: Progress, next_offset: int) -> list[OrderKey]:
        """Order keys of the messages whose leases are not over."""
        _, tracked = self.fold(next_offset)
        versions = [each.version for each in tracked.values()]
        return sorted(each.key for each in versions if each.key is not None and not each.has_fired(progress))

    def timers(self) -> list[tuple[int, Request]]:
        return [*self.fold()[0].items()]

    def entries(self, applied: int) -> dict[bytes, Entry | None]:
        _, tracked = self.fold(applied)
        return {
            id.encode(): (_due_s(each), each.version.record.offset, each.append_s, each.message.key, each.message.value)
            for id, each in tracked.items()
        }

    def check_ends(self, app_id: str, outcomes: Callable[[Request], int]) -> None:
        """Check the outcome of each lease, and that the engine writes an End for each message that it delivers."""
        progress, next_offset = self.progress, self.progress.next_offset
        versions, _ = self.fold()
        delivered: Counter[str] = Counter()
        for offset, version in versions.items():
            count = outcomes(version)
            if version.key is None:
                if count != (offset < next_offset):
                    raise Violation(f"{version.name} is no marker, and has {count} dead letters")
                continue
            delivered[version.timer_id] += count
            due = offset < next_offset and version.has_fired(progress)
            ended = version.end is not None and version.end.offset < next_offset
            if count > 1 or (count and not due) or (due and not ended and not count):
                raise Violation(f"{version.name} with key {version.key} has {count} outcomes: {progress}")
        ends = Counter(
            f"{read.message_id.partition}/{read.message_id.offset}"
            for record in self.records.values()
            if record.transaction is not None and record.transaction.transactional_id.startswith(f"{app_id}-")
            for read in [Marker.FromString(record.value or b"")]
        )
        if ends != +delivered:
            raise Violation(f"messages were delivered {dict(+delivered)} times, and ended {dict(ends)} times")


def _due_s(tracked: Tracked) -> int:
    assert tracked.version.key is not None
    return tracked.version.key[0]


def _parse(record: SimRecord) -> Marker | None:
    """The marker of a record that the workload wrote; None if it is none."""
    return None if record.value is None or record.value == b"\xff" else Marker.FromString(record.value)


class MarkerCheckers(Checkers):
    """Also checks markers and the messages that are delivered again."""

    def __init__(self, *arguments: object, **more: object) -> None:
        super().__init__(*arguments, **more)  # type: ignore[arg-type]
        topic = self._settings.message_topic
        self.marker_logs: dict[TopicPartition, MarkerLog] = {}
        for machine, log in self.logs.items():
            if machine[0] == MARKERS:
                oracle = IdOracle(log.cold.first_copy, log.cold.is_cold, has_conditions=False)
                self.marker_logs[machine] = MarkerLog(log.cold, id_oracle=oracle, message_topic=topic)
        self.logs.update(self.marker_logs)

    def _request(self, record: SimRecord, runner: SimRunner | None) -> None:
        log = self.marker_logs.get((record.topic, record.partition))
        if log is None:
            super()._request(record, runner)
            return
        log.changed = True
        log.records[record.offset] = record
        versions, _ = log.fold()
        self._by_source.update({version.name: version for version in versions.values()})
        self.counts["markers"] += 1

    def _check_outcomes(self, machine: TopicPartition, log: MachineLog) -> None:
        super()._check_outcomes(machine, log)
        if isinstance(log, MarkerLog):
            log.check_ends(self._settings.app_id, self._outcomes)

    def check_end(self, until_s: int) -> None:
        """Check that each message whose lease is over was delivered again, or ended."""
        for log in self.marker_logs.values():
            versions, tracked = log.fold()
            for version in versions.values():
                if version.key is None:
                    self.counts["rejected"] += 1
                elif self._outcomes(version) or version.end is None:
                    self.counts["accepted"] += 1
            for id, each in tracked.items():
                if _due_s(each) <= until_s:
                    raise Violation(f"lost: the lease of {id} was over at {_due_s(each)}, and no End follows")
        super().check_end(until_s)


class MarkerSimulator(Simulator):
    """A random run in which consumers of kafka-mq-go write markers."""

    def __init__(self, seed: int, worker: type[SimWorker] = SimWorker) -> None:
        self._marker_random = Random(f"{seed} markers")
        super().__init__(seed, worker=worker)
        random = self._marker_random
        self._workload._kinds += [
            (self.start, random.choice([40, 150])),
            (self.keep_alive, random.choice([40, 150])),
            (self.end, random.choice([10, 40])),
            (self.no_marker, 3),
        ]
        self._focus = random.choice([self._focus, (MARKERS, 0)])

    def _choose_settings(self) -> Settings:
        message_topic = self._marker_random.choice(["orders", "orders", "flaky"])
        return replace(super()._choose_settings(), marker_topic=MARKERS, message_topic=message_topic)

    def _new_checkers(self) -> Checkers:
        return MarkerCheckers(self.log, self._settings, self.machines, has_conditions=self._has_conditions)

    def start(self) -> None:
        """A consumer begins to work on a message."""
        id, after_ms = self._draw()
        self._mark(id, marker.encode_start(id, id.encode(), b"%d" % self.log.seq, after_ms))

    def keep_alive(self) -> None:
        """A consumer still works on a message."""
        id, after_ms = self._draw()
        self._mark(id, marker.encode_keep_alive(id, after_ms))

    def end(self) -> None:
        """A consumer has finished a message."""
        id, _ = self._draw()
        self._mark(id, marker.encode_end(id))

    def no_marker(self) -> None:
        """Another program writes to the markers topic."""
        self._mark("0/1", self._marker_random.choice([None, b"\xff"]))

    def _draw(self) -> tuple[str, int]:
        """Returns a message and a lease in milliseconds, which few runs see the end of."""
        after_ms = self._marker_random.choice([0, 500, 1000, 2000, 3000, 5000, 9000, FAR_S * 1000])
        if after_ms < FAR_S:
            self._workload.latest_due_s = max(self._workload.latest_due_s, self.clock.now_s + after_ms // 1000 + 1)
        return self._marker_random.choice(IDS), after_ms

    def _mark(self, id: str, value: bytes | None) -> None:
        self.log.append(MARKERS, id.encode(), value)
