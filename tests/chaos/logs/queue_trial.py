"""A cell of a queue: its topic, or its ledger topic, loses its end, while a process of it runs or is down.

Each message in the log must be done once. A message that the log lost, and that waits for another attempt, must be done
later or become a dead letter.
"""

import re
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Collection

from tests.chaos.logs.cells import QUEUE, REQUEST, Cell
from tests.chaos.logs.feed import Feed, number_in
from tests.chaos.logs.judge import RED_WITHIN_S
from tests.chaos.logs.queue_consumer import ACCEPTS, ACKED, OPENED, RED, RETRIED, RETRY_S, UNSETTLED
from tests.chaos.logs.trial import ALIVE, FIRST_LATE, FIRST_LOST, FOLLOWER, LATE, LEADER, Trial
from tests.harness.cluster import APPEND_TIME
from tests.harness.process import Process, clean_environment, python
from tests.harness.records import Record
from tests.harness.system import System
from tests.harness.three_brokers import ThreeBrokers
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.kafka.own_topics import own_topics
from timers.wire import topics

NOW = 0
"""Due second of messages, which have none."""
_AGAIN = FIRST_LATE + 10 * LATE


class QueueTrial(Trial):
    """One cell of a queue. A worker beside it brings its messages back."""

    consumer: Process

    @property
    def topic(self) -> str:
        return self.feed.topic if self.cell.topic == QUEUE else self._ledger

    def close(self) -> None:
        if hasattr(self, "consumer"):
            self.consumer.clean_up()
        super().close()

    # ---- before -------------------------------------------------------------------------------------------------

    def prepare(self, address: str, brokers: ThreeBrokers | None) -> None:
        """Create the topics, and start a worker and the consumer."""
        self._system = system = System(address, self._directory, TIMERS_PARTITIONS="1")
        self.pending_due_s = NOW
        self._queue = f"jobs-{uuid.uuid4().hex[:8]}"
        group = topics.queue_group(self._queue)
        self._ledger = topics.queue_ledger(group)
        self.feed = Feed(system, QUEUE, self._queue)
        if brokers is None:
            system.create_topic(self._queue)
        else:
            for own in own_topics(system.settings):
                brokers.create(own.name, [ALIVE], own.config)
            returns, compacted = topics.queue_returns(group), {"cleanup.policy": "compact", **APPEND_TIME}
            for name, config in ((self._queue, APPEND_TIME), (returns, APPEND_TIME), (self._ledger, compacted)):
                brokers.create(name, [(LEADER, FOLLOWER) if name == self.topic else ALIVE], config)
        self.worker = system.worker().start().ready()
        self.consumer = Process(
            "the consumer",
            python("tests.chaos.logs.queue_consumer", self._queue),
            clean_environment(**system.environment),
            self._directory,
            self._directory / "consumer.log",
        )
        self.consumer.start().wait_for(f"^{OPENED}")

    def publish_first(self) -> None:
        """Send messages that the log keeps, wait until they are settled, and note where the log ends. All of a ledger
        topic is lost, with the key of the queue."""
        self._send(range(self._now + self._waiting))
        self._wait(self.feed.due_s, ACKED, RETRIED)
        self._mark = self._quiet_end() if self.cell.topic == QUEUE else 0

    def publish_lost(self) -> None:
        """Send messages that the log will lose, and wait until they are settled."""
        self._send(range(FIRST_LOST, FIRST_LOST + self._now + self._waiting))
        self._wait(self.feed.due_s, ACKED, RETRIED)

    def stop_worker(self) -> None:
        """End the consumer, which commits what was settled."""
        self.consumer.end()
        self.note_end()
        self._note_fired()

    def _send(self, numbers: range) -> None:
        self.feed.send(dict.fromkeys(numbers, NOW))

    # ---- what the queue does ------------------------------------------------------------------------------------

    def start_worker(self) -> None:
        self.consumer.start()

    def watch(self) -> None:
        """Wait until the queue is red, for 30 s."""
        began = time.monotonic()
        while time.monotonic() < began + RED_WITHIN_S:
            found = re.search(f"^{RED} (.*)", self.consumer.log, re.MULTILINE)
            if found:
                self.facts.red_after_s = time.monotonic() - began
                self.facts.sentence = found[1]
                return
            assert self.consumer.running, f"the consumer ended: {self.consumer.tail()}"
            time.sleep(0.2)

    def accept(self) -> None:
        """If the queue is red, start the consumer again with the acceptance. Wait until all in the log are done, then
        send more messages, which get offsets that others had."""
        facts = self.facts
        if facts.red_after_s is not None:
            self.consumer.end()
            self._note_fired()
            self.consumer.start(**{ACCEPTS: "1"})
        lost = self.feed.acked_at.keys() - facts.in_log - facts.fired_before
        facts.gone = len(lost)
        facts.must_be_red = self.cell.topic == QUEUE and bool(lost)
        self._wait_done(facts.in_log)
        self._send_late(FIRST_LATE)

    def _send_late(self, first: int) -> None:
        late = range(first, first + LATE)
        self._send(late)
        self.facts.in_log |= {*late}
        self._wait_done(late)

    def start_again(self) -> None:
        """Start the consumer without the acceptance: it must not be red again."""
        if self.facts.red_after_s is None:
            return
        self.consumer.end()
        self.consumer.start().wait_for(f"^{OPENED}")
        self._send_late(_AGAIN)
        if not self.consumer.running:
            self.facts.failures.append(f"not green after the acceptance: {self.consumer.tail()[-400:]}")

    def send_letters_again(self) -> None:
        """Put dead letters back, as an operator does. Those of messages that the log holds are right only after the key
        of the queue was lost."""
        letters = self._letters()
        self.facts.letters = letters if self.cell.topic == QUEUE else Counter()
        if not letters:
            return
        environment = clean_environment(**self.system.environment)
        for chosen in (("--all",), ("--code", "unsigned")):
            command = python("timers.cli.main", "queue", "redrive", self._queue, *chosen, "--yes")
            ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=2 * DEADLINE_S)
            said = ran.stderr[-400:].strip()
            self.facts.sent_again = f"{self.facts.sent_again}\n{said}".strip()
            if ran.returncode:
                self.facts.failures.append(f"`timers queue redrive` ended with {ran.returncode}: {said}")
        self._wait_done(letters, letters_count=False)

    def finish(self) -> None:
        """Read what was done. A message that was retried and that the log lost must not be forgotten in silence."""
        facts = self.facts
        facts.fired = self._fired()
        waited = {number for number in self._done(RETRIED) if not facts.fired[number]}
        facts.held = waited - facts.letters.keys() - facts.in_log

    # ---- what was done ------------------------------------------------------------------------------------------

    def _done(self, *what: str) -> Counter[int]:
        """How often each message was settled so."""
        lines = self.consumer.log_path.read_text(errors="replace").splitlines()
        words = (line.split() for line in lines)
        return Counter(int(number) for name, *numbers in filter(None, words) if name in what for number in numbers)

    def _fired(self) -> Counter[int]:
        acked = self._done(ACKED)
        return acked + Counter(self._done(UNSETTLED).keys() - acked.keys())

    def _number(self, letter: Record) -> int | None:
        return number_in(REQUEST, letter.value)

    def _wait(self, numbers: Collection[int], *what: str) -> None:
        wait_until(lambda: {*numbers} <= self._done(*what).keys(), f"{len(numbers)} messages are settled")

    def _wait_done(self, numbers: Collection[int], *, letters_count: bool = True) -> None:
        """Wait until these messages are done, or dead letters; the facts say what is missing."""
        give_up = time.monotonic() + RETRY_S + DEADLINE_S
        while time.monotonic() < give_up:
            done = self._fired().keys()
            if {*numbers} <= done | (self._letters().keys() if letters_count else set()):
                return
            time.sleep(1.0)


def trial_of(cell: Cell) -> type[Trial]:
    """The class of a cell's trial."""
    return QueueTrial if cell.is_about_a_queue else Trial
