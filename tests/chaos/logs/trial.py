"""One cell: a worker and timers of its own, what happens to its log, and what the worker makes of it.

A round calls the steps of several cells side by side, because they share the brokers.
"""

import math
import random
import subprocess
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.chaos.logs import broker_disk
from tests.chaos.logs.cells import (
    CUT_MARKER,
    DISK_RESTORED,
    ELECTION_NEW_OWNER,
    GROWN_EXACT,
    GROWN_PAST,
    GROWN_RUNNING,
    GROWN_SHORT,
    KEPT,
    OLDER_RECORD,
    PARTITION_RESTORED,
    PROGRESS,
    RETRY,
    SCHEDULES,
    WIPED,
    Cell,
)
from tests.chaos.logs.feed import READ_S, Feed, number_in, settings_of
from tests.chaos.logs.judge import RED_WITHIN_S, Facts
from tests.chaos.state import wipe
from tests.harness.process import clean_environment, python
from tests.harness.records import Reader, Record
from tests.harness.scrape import health
from tests.harness.system import System
from tests.harness.three_brokers import ThreeBrokers
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.cli.broker import EmbeddedBroker
from timers.core.progress import WITNESS_S
from timers.kafka.own_topics import own_topics

ALIVE, LEADER, FOLLOWER = 1, 2, 3
"""Brokers of an election: the leader dies, and the follower, which was down, becomes the leader."""

PENDING_S = 60
"""Timers that wait while the log loses its end are due so long after the first ones."""
SLOW_S = 20
"""Progress is lost while timers fire for so long. It must be more than the 5 s that may fire again."""
FIRST_LOST, FIRST_NEW, FIRST_LATE = 1_000, 10_000, 1_000_000
LATE = 20
LAG_S = 3
"""A timer that fired in the last seconds of an owner may have been due so much earlier, on a busy machine."""
STREAM_PER_S = 500
TOGETHER_S = 3.0
"""On a disk that was put back several logs lost their ends. Their partitions are red one after the other."""
LETTERS_S = 5.0
"""A former owner writes dead letters of what only its store held; how many is not known before."""

ACCEPT = "TIMERS_ACCEPT_LOSS"
REPEATS = "have fired since then may fire again"
REPEATS_RECENT = f"fired after this copy, for {WITNESS_S:.0f} s at most, may fire again"
"""What a sentence says if it is not known what has fired."""

COMPACTED = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "CreateTime",
    "segment.ms": "3000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "600000",
}


class Trial:
    """One cell of the table.

    Args:
        cell: what happens.
        directory: for the worker's log and data.
        seed: chooses how many timers there are.

    Attributes:
        failure: why a step could not be done; later steps are left out.
        facts: what was seen.
    """

    def __init__(self, cell: Cell, directory: Path, seed: int) -> None:
        chosen = random.Random(f"{seed} {cell}")
        self.cell = cell
        self.facts = Facts()
        self.failure = ""
        self._directory = directory
        self._now, self._waiting = chosen.randint(30, 60), chosen.randint(60, 120)
        self._system: System | None = None
        self._names: list[str] = []
        self._copy = directory / "copy"
        self._mark = -1
        self._older = b""
        self._newest_fired: float = math.inf

    @property
    def system(self) -> System:
        assert self._system is not None
        return self._system

    @property
    def topic(self) -> str:
        """The topic whose log loses its end."""
        return self.system.settings.progress_topic if self.cell.topic == PROGRESS else self.feed.topic

    @property
    def machine(self) -> str:
        """Name of the partition whose timers are counted."""
        return f"{self.feed.topic}/0"

    def close(self) -> None:
        """End the worker."""
        if self._system is not None:
            self._system.close()

    # ---- before -------------------------------------------------------------------------------------------------

    def prepare(self, address: str, brokers: ThreeBrokers | None) -> None:
        """Create the topics and start the worker."""
        self._system = System(address, self._directory, TIMERS_PARTITIONS="1", **settings_of(self.cell.topic))
        target = f"target-{self.system.app_id}"
        self.feed = Feed(self.system, self.cell.topic, target)
        self.target = target
        if brokers is None:
            self.system.create_topic(target)
            if self.cell.topic == SCHEDULES:
                self.system.create_topic(self.topic, 1, **COMPACTED)
        else:
            brokers.create(target, [ALIVE])
            for own in own_topics(self.system.settings):
                config = COMPACTED if own.must_exist else own.config
                brokers.create(own.name, [(LEADER, FOLLOWER) if own.name == self.topic else ALIVE], config)
        self.worker = self.system.worker().start().ready()

    def publish_first(self) -> None:
        """Publish timers that the log keeps, wait until those fire that are due now, and note where the log ends."""
        now_s = int(time.time()) + 2
        self.pending_due_s = now_s + PENDING_S
        soon = range(self._now)
        spread_s = SLOW_S if self.cell.is_about_progress else 1
        waiting = range(self._now, self._now + self._waiting)
        self.feed.send(
            {
                **{number: now_s + number * spread_s // self._now for number in soon},
                **dict.fromkeys(waiting, self.pending_due_s),
            }
        )
        self._wait_fired(range(self._now // 4) if self.cell.is_about_progress else soon)
        self._mark = self._quiet_end()
        self._older = self._progress_record() if self.cell.is_about_progress else b""

    def publish_lost(self) -> None:
        """Publish timers that the log will lose, and wait until the worker holds them. All that are due now fire."""
        now_s = int(time.time()) + 2
        soon = range(FIRST_LOST, FIRST_LOST + self._now)
        waiting = range(soon.stop, soon.stop + self._waiting)
        self.feed.send({**dict.fromkeys(soon, now_s), **dict.fromkeys(waiting, self.pending_due_s)})
        self._wait_fired([number for number, due_s in self.feed.due_s.items() if due_s < self.pending_due_s])
        if self.cell.fault == CUT_MARKER:
            self._mark = self._quiet_end() - 1
        expected = 2 * self._waiting

        def holds_all() -> bool:
            return bool(health(self.worker.port, "ready")[1]["pending"] == expected)

        wait_until(holds_all, f"the worker holds {expected} timers")

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Publish 500 timers a second, of which half are due at once."""

        def due_of(number: int) -> int:
            return int(time.time()) + 1 if number % 2 else self.pending_due_s

        with self.feed.stream(FIRST_LOST, STREAM_PER_S, due_of):
            yield

    def note_end(self) -> None:
        """Note where the log ends, before it loses its end."""
        self._old_end = self._end()

    def stop_worker(self) -> None:
        """End the worker, note what has fired, and delete its data if the cell says so."""
        self.note_end()
        if self.cell.is_about_progress or self.cell.store == KEPT:
            # What a killed worker fired in its last 5 s may fire again, and what only its memory held is lost with it.
            self.worker.end()
        else:
            self.worker.kill()
        self._note_fired()
        if self.cell.store == WIPED:
            wipe(self.worker.data_dir)

    def note_leader_dies(self) -> None:
        """Note the newest timer that has fired. Whether the worker has read what comes after it is not known."""
        self._newest_fired = max(self._fired(), default=-1)

    def change_owner(self) -> None:
        """Kill the worker, and start another one with an empty disk."""
        self.former = self.worker
        self.worker.kill()
        self._note_fired()
        self.worker = self.system.worker()

    # ---- what happens -------------------------------------------------------------------------------------------

    def copy(self, broker: EmbeddedBroker) -> None:
        """Copy the partition's directory; the broker does not run."""
        if self.cell.fault == PARTITION_RESTORED:
            broker_disk.copy(broker_disk.partition_directory(broker, self.topic, 0), self._copy)

    def damage(self, broker: EmbeddedBroker) -> None:
        """Let the log lose its end; the broker does not run."""
        place = broker_disk.partition_directory(broker, self.topic, 0)
        if self.cell.fault == PARTITION_RESTORED:
            broker_disk.put_back(self._copy, place)
        elif self.cell.fault not in (DISK_RESTORED, OLDER_RECORD):
            assert broker_disk.cut(place, self._mark), "the cut took nothing"
        broker_disk.forget_clean_stop(broker)

    def grow(self) -> None:
        """Write new records before a worker looks, and note which timers the log holds then."""
        key, end = f"{self.feed.topic}/0", self._end()
        if self.cell.fault == OLDER_RECORD:
            self.feed.send_foreign(self.system.settings.progress_topic, 1, key.encode(), self._older)
        else:
            assert end < self._old_end, f"the log ends at {end}, as before"
        gone = self._old_end - end
        count = {GROWN_SHORT: gone // 2, GROWN_EXACT: gone, GROWN_PAST: gone + 40, GROWN_RUNNING: gone + 40}.get(
            self.cell.fault, 0
        )
        if count and self.topic != self.feed.topic:
            self.feed.send_foreign(self.topic, count, b"no-such-topic/0", self._older)
        elif count:
            now_s, records = int(time.time()) + 2, count - (self.cell.topic == RETRY)  # and a marker
            numbers = range(FIRST_NEW, FIRST_NEW + records)
            self.feed.send({number: self.pending_due_s if number % 2 else now_s for number in numbers})
        if self.cell.fault == GROWN_EXACT:
            end = self._quiet_end()  # a marker comes some time after its transaction has ended
            assert end == self._old_end, f"the log ends at {end}, not at {self._old_end} as before"
        self.note_log()

    def note_log(self) -> None:
        """Note which timers the log holds."""
        is_undecided = self.cell.fault == CUT_MARKER and self.cell.topic != PROGRESS
        self.facts.in_log = self._before_marker() if is_undecided else self.feed.in_log()

    def _before_marker(self) -> set[int]:
        """What is in a log whose last transaction has no marker: it may count or not, once the worker is red."""
        return {number for number in self.feed.due_s if number < FIRST_LOST}

    # ---- what the worker does -----------------------------------------------------------------------------------

    def start_worker(self) -> None:
        self.worker.start()

    def watch(self) -> None:
        """Wait until the partition is red with a way out, for 30 s from the first answer of its page."""
        began = answered = time.monotonic()
        is_up = False
        while time.monotonic() < answered + RED_WITHIN_S:
            assert self.worker.running, f"the worker ended: {' '.join(self.worker.sentences) or self.worker.tail()}"
            red = self._red()
            if red is None:
                assert is_up or time.monotonic() < began + 2 * DEADLINE_S, "the worker has no page"
                answered = answered if is_up else time.monotonic()
            else:
                is_up = True
                named = {name: why for name, why in red.items() if ACCEPT in why}
                if self.machine in named:
                    self._names = sorted(named)
                    self.facts.red_after_s = time.monotonic() - answered
                    self.facts.sentence = named[self.machine]
                    return
            time.sleep(0.2)
        red = self._red() or {}
        if red:
            self.facts.failures.append(f"red without a way out: {red}")

    def _red(self) -> dict[str, str] | None:
        """Sentences of red partitions by name; None: the page does not answer."""
        try:
            red: dict[str, str] = health(self.worker.port, "partitions")[1]["red"]
        except (OSError, ValueError):
            return None
        return red

    def accept(self) -> None:
        """If the partition is red, start the worker again with the acceptance. Wait until all in the log has fired,
        then publish more timers, which get offsets that others had."""
        facts = self.facts
        if facts.red_after_s is not None:
            time.sleep(TOGETHER_S)
            names = {*self._names, *(name for name, why in (self._red() or {}).items() if ACCEPT in why)}
            self.worker.end()
            self._note_fired()
            self.worker.start(**{ACCEPT: ",".join(sorted(names))})
        self._note_lost()
        self._wait_fired(facts.in_log, fails=False)
        late = range(FIRST_LATE, FIRST_LATE + LATE)
        self.feed.send(dict.fromkeys(late, int(time.time()) + 2))
        facts.in_log |= {*late}
        self._wait_fired(late, fails=False)
        said = facts.sentence + self.worker.log
        if REPEATS in said:
            facts.may_repeat = {*facts.fired_before}
        elif REPEATS_RECENT in said and self.cell.fault == ELECTION_NEW_OWNER:
            due_s = {number: self.feed.due_s[number] for number in facts.fired_before}
            first_s = max(due_s.values(), default=0) - WITNESS_S - LAG_S
            facts.may_repeat = {number for number, each in due_s.items() if each >= first_s}

    def _note_lost(self) -> None:
        """Note which acknowledged timers the log lost, and who holds them."""
        facts, feed = self.facts, self.feed
        lost = feed.acked_at.keys() - facts.in_log - facts.fired_before
        facts.unsure = set()
        if self.cell.fault == CUT_MARKER or (self.cell.fault == ELECTION_NEW_OWNER and self.cell.store == KEPT):
            facts.unsure = lost
        elif self.cell.store == KEPT:
            facts.unsure = {number for number in lost if number > self._newest_fired}
            facts.held = lost - facts.unsure
        facts.must_be_red = bool(lost) and (self.cell.fault, self.cell.store) != (DISK_RESTORED, WIPED)
        facts.gone = len(lost) - len(facts.held) - len(facts.unsure)

    def start_again(self) -> None:
        """Start the worker without the acceptance: it must not be red again. In a cell with a new owner whose store is
        kept, the former owner comes back with its old store."""
        if self.facts.red_after_s is None:
            return
        self.worker.end()
        if self.cell.fault == ELECTION_NEW_OWNER and self.cell.store == KEPT:
            self.worker = self.former
        self.worker.start()
        red: dict[str, str] | None = None

        def is_green() -> bool:
            nonlocal red
            red = self._red()
            return red == {} and self.machine in health(self.worker.port, "partitions")[1]["owned"]

        try:
            wait_until(is_green, "green again", RED_WITHIN_S + DEADLINE_S)
        except AssertionError:
            self.facts.failures.append(f"not green after the acceptance: {red}")

    def send_letters_again(self) -> None:
        """Count the dead letters, and send them again as an operator does."""
        facts = self.facts
        if facts.red_after_s is not None and facts.held:
            give_up = time.monotonic() + DEADLINE_S
            while not facts.held <= self._letters().keys() and time.monotonic() < give_up:
                time.sleep(1.0)
        facts.letters = self._letters()
        while facts.unsure and (later := self._letters_after(LETTERS_S)) != facts.letters:
            facts.letters = later
        if facts.letters:
            environment = clean_environment(**self.system.environment)
            command = python("timers.cli.main", "dead-letters", "retry", "--all", "--yes")
            ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=2 * DEADLINE_S)
            facts.sent_again = ran.stderr[-400:].strip()
            if ran.returncode:
                facts.failures.append(f"`timers dead-letters retry` ended with {ran.returncode}: {facts.sent_again}")
            self._wait_fired(facts.held, fails=False)

    def finish(self) -> None:
        """Read all callbacks."""
        self.facts.fired = self._fired()

    # ---- what was written ---------------------------------------------------------------------------------------

    def _end(self) -> int:
        return self.system.cluster.ends(self.topic)[0]

    def _quiet_end(self) -> int:
        """The end of the log at a moment without open transactions."""
        cluster = self.system.cluster

        def look() -> int | None:
            end = cluster.ends(self.topic)[0]
            return end if cluster.ends(self.topic, committed=True)[0] == end else None

        return wait_until(look, f"no transaction is open on {self.topic}")

    def _progress_record(self) -> bytes:
        key = self.machine.encode()
        records = self.feed.records(self.system.settings.progress_topic)
        return next(record.value or b"" for record in reversed(records) if record.key == key)

    def _fired(self) -> Counter[int]:
        """How often each timer has fired."""
        return Counter(int(record.value or b"-1") for record in self.feed.records(self.target))

    def _note_fired(self) -> None:
        """Note what has fired so far; a disk that was put back does not show all of it any more."""
        self.facts.fired_before |= {*self._fired()}

    def _letters(self) -> Counter[int]:
        """How often each timer is a dead letter."""
        letters = self.feed.records(self.system.settings.dead_letter_topic)
        return Counter(number for letter in letters if (number := self._number(letter)) is not None)

    def _letters_after(self, seconds: float) -> Counter[int]:
        time.sleep(seconds)
        return self._letters()

    def _number(self, letter: Record) -> int | None:
        return number_in(self.feed.kind, letter.value)

    def _wait_fired(self, numbers: Collection[int], *, fails: bool = True) -> None:
        """Wait until these timers have fired; without ``fails`` go on also if they do not."""
        missing = {*numbers}
        last_s = max((self.feed.due_s[number] for number in missing), default=0)
        give_up = max(time.time(), last_s) + DEADLINE_S
        with closing(Reader(self.system.address, self.target)) as reader:
            while missing:
                missing -= {int(record.value or b"-1") for record in reader.rest(READ_S)}
                if missing and time.time() > give_up:
                    assert not fails, f"{len(missing)} timers have not fired {DEADLINE_S:.0f} s after their due second"
                    break
                time.sleep(0.3)
