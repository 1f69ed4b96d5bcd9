"""One round: send messages, let consumers handle them, inject faults, wait until all messages are done, judge."""

import json
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.chaos.queues.consumer import OPENED, WORKING, open_database
from tests.chaos.queues.judge import Events, Return, Verdict, judge
from tests.chaos.queues.messages import LEASE_S, value_of
from tests.harness.cluster import client_settings
from tests.harness.printer import Printer
from tests.harness.process import Process, clean_environment, python
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.cli.broker import EmbeddedBroker
from timers.errors import TimersError
from timers.kafka.records import headers_of
from timers.process.config.settings import Settings
from timers.queue.inspection import Inspection
from timers.queue.records import ERROR
from timers.wire import headers as h
from timers.wire import topics

PARTITIONS = 8
SESSION_S = 6.0
PAUSE_S = (2.0, 15.0)
DOWN_S = (0.0, 3.0)
BROKER_DOWN_S = (0.0, 5.0)
BETWEEN_S = (3.0, 9.0)
MAX_CONSUMERS = 7
DRAIN_S = 90.0
STILL_S = 120.0
"""A round fails if no message gets done for this many seconds."""

NO_BROKER = "no broker answers at"
"""Part of the sentence with which a consumer ends if no broker answers when it opens the queue."""


@dataclass
class Member:
    """A consumer of the round.

    Attributes:
        back_s: when to start it or to let it go on, by the monotonic clock; None if it is not down.
        is_stopped: it was stopped by SIGSTOP.
    """

    process: Process
    back_s: float | None = None
    is_stopped: bool = False

    def failure(self, broker_back_at: float) -> str:
        """Return why the end of the process is a failure; nothing if a fault of the round explains it.

        Args:
            broker_back_at: epoch time at which the broker answered again after its last kill.
        """
        process, code = self.process, self.process.exit_code()
        if self.back_s is not None and code in (0, -signal.SIGKILL):
            return ""
        said = process.log.splitlines()
        if code == -signal.SIGTERM and OPENED not in said:
            return ""  # it was drained before it could handle signals
        if NO_BROKER in process.tail() and WORKING not in said and process.started_at < broker_back_at:
            return ""  # it was started while the broker was down
        return f"{process.name} ended with {code}: {process.tail()}"


@dataclass
class Outcome:
    """The result of a round."""

    seed: int
    verdict: Verdict
    faults: dict[str, int]
    failures: list[str]
    took_s: float

    @property
    def is_passed(self) -> bool:
        return self.verdict.is_kept and not self.failures


class Returns:
    """Reads the returns topic while the round runs, because the queue deletes what is done."""

    def __init__(self, brokers: str, topic: str) -> None:
        self.found: list[Return] = []
        self._brokers = brokers
        self._topic = topic
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def end(self) -> list[Return]:
        self._is_over.set()
        self._thread.join()
        return self.found

    def _read(self) -> None:
        settings = {**client_settings(self._brokers), "group.id": "returns", "isolation.level": "read_committed"}
        with closing(Consumer({**settings, "enable.auto.commit": False})) as consumer:
            consumer.assign([TopicPartition(self._topic, number, 0) for number in range(PARTITIONS)])
            while True:
                polled = consumer.consume(1000, 0.5)
                for record in polled:
                    if record.error() is None:
                        error = (h.last(headers_of(record), ERROR) or b"").decode()
                        self.found.append(Return(record.timestamp()[1], int(record.value() or b""), error))
                if self._is_over.is_set() and not polled:
                    return


@dataclass
class Round:
    """One round of chaos.

    Args:
        storm_s: time over which the messages are sent and faults happen.
    """

    broker: EmbeddedBroker
    seed: int
    messages: int
    consumers: int
    storm_s: float
    directory: Path
    printer: Printer
    members: list[Member] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    _broker_back_at: float = 0.0

    def run(self) -> Outcome:
        """Run the round, and end all its processes."""
        began_s = time.monotonic()
        self.directory.mkdir(parents=True)
        self._rng = random.Random(self.seed)
        self._system = System(self.broker.start(), self.directory, TIMERS_ID_TOPIC=f"ids-{self.seed}")
        try:
            worker = self._system.worker().start().ready()
            self._settings = Settings.load({**self._system.environment, "TIMERS_WEB_PORT": str(worker.port)})
            verdict = self._run()
        finally:
            for member in self.members:
                member.process.clean_up()
            self._system.close()
        self._system.delete_topics()
        return Outcome(self.seed, verdict, self.faults, self.failures, time.monotonic() - began_s)

    def _run(self) -> Verdict:
        system = self._system
        self._topic, self._results = system.target(PARTITIONS), system.target(PARTITIONS)
        returns_topic = topics.queue_returns(topics.queue_group(self._topic))
        with closing(open_database(self.directory)) as connection, connection:
            connection.execute("CREATE TABLE rows_of_messages (number INTEGER)")
            connection.execute("CREATE TABLE queue_inbox (message VARCHAR(700) PRIMARY KEY)")
        for _ in range(self.consumers):
            self._add()
        self.members[0].process.wait_for(f"^{OPENED}$", 2 * DEADLINE_S)
        wait_until(lambda: returns_topic in system.cluster.topics(), "the topic of returns")
        returns = Returns(system.address, returns_topic)
        sending = threading.Thread(target=self._send)
        sending.start()
        self._storm(sending)
        depth = self._settle()
        found = returns.end()
        with self.printer.doing("judging"):
            return judge(system, self._results, found, self.directory, self.messages, depth)

    def _send(self) -> None:
        producer = Producer({**client_settings(self._system.address), "enable.idempotence": True, "linger.ms": 20})
        began_s = time.monotonic()
        for number in range(self.messages):
            while True:
                try:
                    producer.produce(self._topic, value_of(number), b"k%d" % (number % 1000))
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % 100 == 0:
                producer.poll(0)
                time.sleep(max(0.0, began_s + self.storm_s * number / self.messages - time.monotonic()))
        if producer.flush(300):
            self.failures.append("not all messages could be sent")

    # ---- consumers ----------------------------------------------------------------------------------------------

    def _add(self) -> None:
        name = f"consumer-{len(self.members)}"
        arguments = {"name": self._topic, "lease_s": LEASE_S, "session_timeout_s": SESSION_S, "timeout_s": 60.0}
        command = ["tests.chaos.queues.consumer", self._topic, self._results, name, str(self.directory)]
        environment = clean_environment(**self._system.environment)
        process = Process(
            name, python(*command, json.dumps(arguments)), environment, self.directory, self.directory / f"{name}.log"
        )
        self.members.append(Member(process.start()))

    def _watch(self) -> None:
        """Bring back what is down, and note who ended without a fault."""
        for member in self.members:
            process, now_s = member.process, time.monotonic()
            if member.back_s is not None and now_s < member.back_s:
                continue
            if not process.running:
                self._note_end(member)
                process.clean_up()
                process.start()
            elif member.is_stopped:
                process.send(signal.SIGCONT)
            elif member.back_s is not None:  # it drains
                if now_s > member.back_s + DRAIN_S:
                    self.failures.append(f"{process.name} does not drain: {process.tail()}")
                    process.clean_up()
                continue
            member.back_s, member.is_stopped = None, False

    def _note_end(self, member: Member) -> None:
        if failure := member.failure(self._broker_back_at):
            self.printer.line(f"    {failure}")
            self.failures.append(failure)

    # ---- faults -------------------------------------------------------------------------------------------------

    def _storm(self, sending: threading.Thread) -> None:
        next_s = time.monotonic() + self._rng.uniform(*BETWEEN_S)
        with self.printer.doing("storm", lambda: f"{self.faults}"):
            while sending.is_alive():
                self._watch()
                if time.monotonic() > next_s:
                    self._inject()
                    next_s = time.monotonic() + self._rng.uniform(*BETWEEN_S)
                time.sleep(0.05)
        sending.join()

    def _inject(self) -> None:
        kinds: dict[str, Callable[[Member], None]] = {
            "kill": self._kill,
            "pause": self._pause,
            "drain": self._drain,
            "add": lambda _: self._add(),
            "broker": lambda _: self._restart_broker(),
        }
        weights = [4, 3, 3, 2 * (len(self.members) < MAX_CONSUMERS), 1]
        (kind,) = self._rng.choices(list(kinds), weights)
        victim = self._rng.choice(self.members)
        if victim.back_s is not None or not victim.process.running:
            return
        self.printer.line(f"    {kind} {victim.process.name if kind in ('kill', 'pause', 'drain') else ''}")
        self.faults[kind] = self.faults.get(kind, 0) + 1
        kinds[kind](victim)

    def _kill(self, victim: Member) -> None:
        victim.process.send(signal.SIGKILL)
        victim.back_s = time.monotonic() + self._rng.uniform(*DOWN_S)

    def _pause(self, victim: Member) -> None:
        victim.process.send(signal.SIGSTOP)
        victim.is_stopped, victim.back_s = True, time.monotonic() + self._rng.uniform(*PAUSE_S)

    def _drain(self, victim: Member) -> None:
        victim.process.send(signal.SIGTERM)
        victim.back_s = time.monotonic() + self._rng.uniform(*DOWN_S)

    def _restart_broker(self) -> None:
        self.broker.kill()
        time.sleep(self._rng.uniform(*BROKER_DOWN_S))
        self.broker.start()
        self._broker_back_at = time.time()

    # ---- the end ------------------------------------------------------------------------------------------------

    def _settle(self) -> int:
        """Wait until all messages are done; return how many are not."""
        inspection = Inspection(self._settings)
        left, best_s = [0, self.messages], time.monotonic()
        with self.printer.doing("waiting until all is done", lambda: f"{left[0]:,} open, {left[1]:,} not handled"):
            while time.monotonic() < best_s + STILL_S:
                self._watch()
                with suppress(TimersError):
                    stats = inspection.stats(self._topic, self._topic)
                    now = [
                        stats.depth + (stats.delayed or 0),
                        len(Events.read(self.directory, self.messages).missing()),
                    ]
                    if now < left or now[1] < left[1]:
                        best_s = time.monotonic()
                    left = now
                    if stats.delayed == 0 and left == [0, 0] and all(each.back_s is None for each in self.members):
                        break
                time.sleep(1)
        self._drain_all()
        return self._depth(inspection)

    def _drain_all(self) -> None:
        for member in self.members:
            member.back_s = time.monotonic()
            if member.process.running:
                member.process.send(signal.SIGCONT)
                member.process.send(signal.SIGTERM)
        for member in self.members:
            try:
                member.process.exit_code(DRAIN_S)
            except AssertionError as error:
                self.failures.append(f"{member.process.name} does not drain: {error}")
            else:
                self._note_end(member)

    def _depth(self, inspection: Inspection) -> int:
        """Return how many messages are not done. A busy broker may not answer in time, or not for all partitions."""
        deadline, depth = time.monotonic() + DEADLINE_S, self.messages
        while depth and time.monotonic() < deadline:
            with suppress(TimersError):
                depth = inspection.stats(self._topic, self._topic, with_delayed=False).depth
        return depth
