"""No false alarm: what happens to logs in a healthy cluster stops no partition, and each timer fires once."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import ConsumerGroupTopicPartitions, ElectionType, KafkaException, Producer, TopicPartition

from tests.chaos.logs import broker_disk
from tests.chaos.logs.cells import REQUEST, SCHEDULES
from tests.chaos.logs.feed import Feed, settings_of
from tests.chaos.logs.trial import ACCEPT, COMPACTED
from tests.harness.cluster import client_settings
from tests.harness.printer import Printer
from tests.harness.scrape import health
from tests.harness.system import System
from tests.harness.three_brokers import COORDINATING, ThreeBrokers
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.kafka.own_topics import own_topics

ALIVE, FIRST, SECOND = 1, 2, 3
"""Brokers: two of them lead in turn, and the first one, with the controller, stays."""

PROPERTIES = {
    "offsets.topic.num.partitions": "4",
    "log.cleaner.backoff.ms": "500",
    "broker.session.timeout.ms": "3000",
}

EVERY = 10
"""The worker is started again after so many changes, because it asks most when it opens its partitions."""
TIMERS = 5
"""Timers for each change."""
CLEARED_S = 30.0
"""A partition that waits for a leader may be red for so long."""


@dataclass
class Alarms:
    """What was seen while the logs changed.

    Attributes:
        changes: how many there were.
        sentences: red sentences that ask for an acceptance, with the number of times they were seen.
        longest_red_s: the longest time for which a partition was red for another reason.
    """

    kind: str
    changes: int = 0
    sentences: Counter[str] = field(default_factory=Counter)
    longest_red_s: float = 0.0
    lost: int = 0
    twice: int = 0
    failure: str = ""

    @property
    def passed(self) -> bool:
        return not (self.failure or self.sentences or self.lost or self.twice or self.longest_red_s > CLEARED_S)

    def __str__(self) -> str:
        said = "; ".join(self.sentences) or self.failure
        return (
            f"{'passed' if self.passed else 'FAILED'}  {self.kind:10} {self.changes:,} changes, lost {self.lost}, "
            f"twice {self.twice}, longest red {self.longest_red_s:.0f} s {said}"
        )


class Rig:
    """A system on three brokers whose logs change while its worker runs.

    Args:
        brokers: they run.
        directory: for the worker.
        topic: kind of the topic that gets the timers.
    """

    def __init__(self, brokers: ThreeBrokers, directory: Path, topic: str, partitions: int) -> None:
        self.brokers = brokers
        self.system = System(brokers.address, directory, TIMERS_PARTITIONS=str(partitions), **settings_of(topic))
        self.target = brokers.create(f"target-{self.system.app_id}", [(FIRST, SECOND, ALIVE)])
        for own in own_topics(self.system.settings):
            config = COMPACTED if own.must_exist else own.config
            brokers.create(own.name, [(FIRST, SECOND, ALIVE)] * partitions, config)
        self.feed = Feed(self.system, topic, self.target, partitions)
        self._partitions = partitions
        self._compacted_to: dict[int, int] = {}
        self.worker = self.system.worker().start().ready()
        self._number = 0

    def publish(self) -> None:
        """Publish some timers that are due soon."""
        numbers = range(self._number, self._number + TIMERS * self._partitions)
        self.feed.send(dict.fromkeys(numbers, int(time.time()) + 1))
        self._number = numbers.stop

    def wait_fired(self) -> None:
        """Wait until all timers have fired."""
        wait_until(lambda: len({*self.fired()}) >= self._number, "all timers have fired", 2 * DEADLINE_S)

    def fired(self) -> Counter[int]:
        """How often each timer has fired."""
        return Counter(int(record.value or b"-1") for record in self.feed.records(self.target))

    def restart(self) -> None:
        """Start the worker again."""
        self.worker.stop()
        self.worker.start().ready()

    # ---- changes ------------------------------------------------------------------------------------------------

    def change_leaders(self) -> int:
        """Stop a broker, start it again, and make it the leader again. Returns how often a partition changed its
        leader."""
        return self._bounce(lambda: self.brokers.brokers[FIRST].stop())

    def kill_leader(self) -> int:
        """The same with a broker that is killed."""
        return self._bounce(lambda: self.brokers.kill(FIRST))

    def _bounce(self, end: Callable[[], object]) -> int:
        led = len(self.brokers.led_by(FIRST))
        end()
        self.publish()
        self.brokers.start_again(FIRST)
        admin = self.system.admin

        def leads() -> bool:
            with suppress(KafkaException):
                admin.elect_leaders(ElectionType.PREFERRED, None).result(DEADLINE_S)
            return len(self.brokers.led_by(FIRST)) >= led

        wait_until(leads, f"broker {FIRST} leads again")
        return 2 * led

    def abort(self) -> int:
        """End the log with an aborted transaction."""
        producer = Producer({**client_settings(self.system.address), "transactional.id": f"a-{self.system.app_id}"})
        producer.init_transactions(DEADLINE_S)
        for _ in range(EVERY):
            producer.begin_transaction()
            producer.produce(self.feed.topic, b"x", b"0", 0)
            producer.flush(DEADLINE_S)
            producer.abort_transaction(DEADLINE_S)
        return EVERY

    def delete_fired(self) -> int:
        """Delete the records of timers that have fired, as retention does. Returns in how many partitions."""
        self.wait_fired()
        ends = self.system.cluster.ends(self.feed.topic, committed=True)
        self.system.cluster.delete_records(self.feed.topic, ends)
        return len(ends)

    def compact(self) -> int:
        """Fire schedules, and wait until their leader compacts their topic. Returns in how many partitions it did."""
        self.wait_fired()
        time.sleep(int(COMPACTED["segment.ms"]) / 1000)
        self.publish()  # the first record of a new segment lets the brokers compact the one before

        def compacted() -> dict[int, int]:
            found = broker_disk.compacted_to(self.brokers.brokers[FIRST], self.feed.topic)
            return {tp: offset for tp, offset in found.items() if offset != self._compacted_to.get(tp)}

        new = wait_until(compacted, f"broker {FIRST} compacts {self.feed.topic}")
        self._compacted_to |= new
        return len(new)

    def forget_offsets(self) -> int:
        """Reset the group's offsets, or delete the group as their expiry does; then start the worker again."""
        self.wait_fired()
        self.worker.stop()
        group, admin = self.system.app_id, self.system.admin

        def done() -> bool:
            try:
                if self._number // TIMERS % 2:
                    admin.delete_consumer_groups([group])[group].result(DEADLINE_S)
                else:
                    place = TopicPartition(self.feed.topic, 0, 0)
                    asked = ConsumerGroupTopicPartitions(group, [place])
                    admin.alter_consumer_group_offsets([asked])[group].result(DEADLINE_S)
            except KafkaException:
                return False  # the static member is still in the group
            return True

        wait_until(done, "the group's offsets are changed")
        self.worker.start().ready()
        return 1


KINDS: dict[str, tuple[str, Callable[[Rig], int]]] = {
    "leaders": (REQUEST, Rig.change_leaders),
    "kills": (REQUEST, Rig.kill_leader),
    "aborted": (REQUEST, Rig.abort),
    "retention": (REQUEST, Rig.delete_fired),
    "compaction": (SCHEDULES, Rig.compact),
    "offsets": (REQUEST, Rig.forget_offsets),
}
"""Kind of change -> topic of the timers, and what does it."""

MANY = {"leaders": 8, "kills": 8, "retention": 25, "compaction": 25}
"""Partitions of the systems in which one step changes all of them."""

SLOW = {"offsets": 20}
"""Of this kind, whose changes take seconds, so many times fewer are done."""


def run(brokers: ThreeBrokers, directory: Path, kinds: list[str], changes: int, printer: Printer) -> list[Alarms]:
    """Do ``changes`` changes of each kind."""
    brokers.start()
    for topic, config in COORDINATING.items():
        brokers.create(topic, [(SECOND, ALIVE, FIRST)] * 4, config)
    found = []
    for kind in kinds:
        found.append(_run_kind(brokers, directory / kind, kind, changes, printer))
        printer.line(f"  {found[-1]}")
    return found


def _run_kind(brokers: ThreeBrokers, directory: Path, kind: str, changes: int, printer: Printer) -> Alarms:
    topic, change = KINDS[kind]
    alarms, changes = Alarms(kind), max(1, changes // SLOW.get(kind, 1))
    rig: Rig | None = None
    with ExitStack() as stack:
        stack.enter_context(printer.doing(kind, lambda: f"{alarms.changes:,} of {changes:,} changes"))
        try:
            rig = Rig(brokers, directory, topic, MANY.get(kind, 1))
            stack.callback(rig.system.close)
            stack.enter_context(_watching(rig, alarms))
            rounds = 0
            while alarms.changes < changes:
                rig.publish()
                alarms.changes += change(rig)
                rounds += 1
                if rounds % EVERY == 0:
                    rig.restart()
            rig.restart()
            rig.wait_fired()
        except (AssertionError, KafkaException) as error:
            alarms.failure = str(error)
        if rig is not None:
            counts = rig.fired()
            alarms.lost = sum(not counts[number] for number in rig.feed.due_s)
            alarms.twice = sum(count > 1 for count in counts.values())
            rig.system.delete_topics()
    return alarms


@contextmanager
def _watching(rig: Rig, alarms: Alarms) -> Iterator[None]:
    """Look at the page of the partitions twice a second during the block."""
    stop = threading.Event()

    def watch() -> None:
        since: dict[str, float] = {}
        while not stop.wait(0.5):
            red: dict[str, str] = {}
            with suppress(OSError, ValueError):  # it starts or ends just now
                red = health(rig.worker.port, "partitions")[1]["red"]
            alarms.sentences.update(why for why in red.values() if ACCEPT in why)
            since = {name: since.get(name, time.monotonic()) for name in red}
            alarms.longest_red_s = max([alarms.longest_red_s, *(time.monotonic() - at for at in since.values())])

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
