"""An app whose timers have ids: sends requests, and reads callbacks and verdicts."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.records import Headers, Publisher
from tests.harness.system import PARTITIONS, System, with_ids
from tests.harness.waiting import DEADLINE_S
from timers.wire import future, verdict
from timers.wire.formats import future_by_id


class Ids:
    """A system whose request format for timers with an id is open."""

    def __init__(self, address: str, directory: Path, **environment: str) -> None:
        self.system = System(address, directory, **with_ids(), **environment)
        self.topic = self.system.settings.id_topic
        self.system.create_own_topics()
        self.target = self.system.target(partitions=2)
        self.fired = self.system.reader(self.target)
        self.verdicts = self.system.reader(self.system.settings.verdict_topic, append_time=False)
        self._publisher = Publisher(address, self.topic)

    def send(self, id: bytes | None, value: bytes | None, headers: Headers) -> None:
        self._publisher.producer.produce(self.topic, value, id, headers=[*headers])
        self._publisher.producer.poll(0)

    def set(self, id: str, due_s: int, value: str, *, target: str = "") -> None:
        request = future.encode(target or self.target, f"key-{id}", value.encode())
        self.send(id.encode(), request, [("a", b"1"), *future_by_id.encode_headers(due_s)])

    def cancel(self, id: str) -> None:
        self.send(id.encode(), None, [])

    def flush(self) -> None:
        self._publisher.flush()

    def told(self, count: int, patience_s: float = DEADLINE_S) -> list[verdict.VerdictMessage]:
        """The next verdicts."""
        records = self.verdicts.take(count, patience_s)
        told = [verdict.decode(record.value or b"") for record in records]
        assert [(record.key or b"").decode() for record in records] == [each.id for each in told]
        assert all(record.text("timer-source").startswith(f"{self.topic}/") for record in records)
        return told

    def wait_past(self, due_s: int) -> None:
        """Wait until all that is due by ``due_s`` has fired: a machine fires in the order of due seconds."""
        fence = self.system.target()
        for partition in range(PARTITIONS):
            headers = future_by_id.encode_headers(due_s)
            value = future.encode(fence, "", b"")
            self._publisher.send_raw(f"fence-{partition}-{fence}".encode(), value, headers, partition)
        self.system.reader(fence).take(PARTITIONS)


@contextmanager
def running_ids(address: str, directory: Path, **environment: str) -> Iterator[Ids]:
    """An app with a quick worker, which runs."""
    ids = Ids(address, directory, **environment)
    try:
        ids.system.worker(quick=True).start().ready()
        yield ids
    finally:
        ids.system.close()
