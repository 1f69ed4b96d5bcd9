"""One round: start everything, let clients work, kill, wait until all timers have fired, judge."""

import random
import re
import shutil
import signal
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from tests.chaos.console.clients import Client
from tests.chaos.console.killer import REQUEST, VERDICT, Killer
from tests.chaos.console.ledger import Ledger
from tests.harness.console_process import ConsoleProcess
from tests.harness.printer import Printer
from tests.harness.records import Reader
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.cli.broker import EmbeddedBroker

CONSOLES = 4
CLIENTS = 8

WORKER, EMPTY_DISK, BROKER, CONSOLE = "worker", "worker with its disk", "broker", "console"
OTHERS = (WORKER, EMPTY_DISK, BROKER)
EVERY = 25
MAX_PASSED = 3
"""So many requests at most are not hit before a kill, so that timers get ahead."""

_SETTLING_S = 6 * DEADLINE_S


@dataclass
class Outcome:
    """The result of a round.

    Attributes:
        kills: victim -> how often it was killed.
        hits: kills that came after the record of a request and before its answer.
        promised: timers that a client was told are set.
        lost: promised ones that did not fire.
        doubled: timers that fired more than once.
        split: timers with two ids in the answers to one key.
        letters: dead letters.
    """

    kills: Counter[str]
    hits: int
    timers: int
    promised: int
    lost: list[int]
    doubled: list[int]
    split: list[int]
    letters: int
    wrong: list[str]
    answers: Counter[str]
    took_s: float = 0.0

    @property
    def is_passed(self) -> bool:
        return not (self.lost or self.doubled or self.split or self.letters or self.wrong)


@dataclass
class Round:
    """One round of chaos.

    Args:
        wanted: hits after which it ends.
        longest_s: seconds after which it ends with fewer hits.
        every: each so many kills, the victim is one of :data:`OTHERS`, in turn; all other kills hit consoles.
    """

    broker: EmbeddedBroker
    seed: int
    wanted: int
    directory: Path
    printer: Printer
    longest_s: float = 600.0
    every: int = EVERY
    kills: Counter[str] = field(default_factory=Counter)

    def run(self) -> Outcome:
        """Run the round, and end all its processes."""
        began_s = monotonic()
        self._random = random.Random(self.seed)
        self._ledger = Ledger()
        names = {"TIMERS_ID_TOPIC": f"ids-{self.seed}", "TIMERS_VERDICT_TOPIC": f"verdicts-{self.seed}"}
        self._system = System(self.broker.start(), self.directory, **names)
        self._worker = self._system.worker(forked=True).start().ready()
        self._consoles = [self._new_console(number) for number in range(CONSOLES)]
        try:
            for each in self._consoles:
                each.start().wait_for("console: ")
            outcome = self._run()
        finally:
            for each in self._consoles:
                each.clean_up()
            self._system.close()
        self._system.delete_topics()
        outcome.took_s = monotonic() - began_s
        return outcome

    def _new_console(self, number: int) -> ConsoleProcess:
        more = {
            "TIMERS_CONSOLE_WRITE": "1",
            "TIMERS_CONSOLE_RATE_PER_S": "100000",
            "TIMERS_WORKER_URL": f"http://127.0.0.1:{self._worker.port}",
        }
        directory = self.directory / f"console-{number}"
        return ConsoleProcess(directory, {**self._system.environment, **more}, forked=True)

    def _run(self) -> Outcome:
        target = self._system.target()
        reader = self._system.reader(target)
        killer = Killer(self._system.settings, self._ledger)
        is_over = threading.Event()
        clients = [
            Client(self._ledger, self._consoles, target, self.seed + number, is_over) for number in range(CLIENTS)
        ]
        with self.printer.doing("killing", self._progress):
            end_s = monotonic() + self.longest_s
            while len(self._ledger.hits) < self.wanted and monotonic() < end_s and not self._ledger.wrong:
                self._kill_one(killer)
        is_over.set()
        with self.printer.doing("waiting for the clients", self._progress):
            for client in clients:
                client.join()
        killer.end()
        with self.printer.doing("waiting until all have fired"):
            fired = self._settle(reader, target)
        return self._judge(fired)

    def _progress(self) -> str:
        return f"{len(self._ledger.hits):,} hits, {len(self._ledger.timers):,} timers, {dict(self.kills)}"

    # ---- kills --------------------------------------------------------------------------------------------------

    def _kill_one(self, killer: Killer) -> None:
        number = self.kills.total()
        kind = OTHERS[number // self.every % len(OTHERS)] if number % self.every == self.every - 1 else CONSOLE
        victims: list[int] = []

        def kill(console: int) -> None:
            victims.append(console)
            self._ledger.note_kill(number, console if kind == CONSOLE else None)
            if kind == CONSOLE:
                self._consoles[console].send(signal.SIGKILL)
            elif kind == BROKER:
                self.broker.kill()
            else:
                self._worker.send(signal.SIGKILL)

        record, others = self._random.choice((REQUEST, VERDICT)), self._random.randint(0, MAX_PASSED)
        if not killer.kill_after(record, others, kill, 2 * DEADLINE_S):
            self._ledger.note_wrong(f"no request was written within {2 * DEADLINE_S:g} s")
            return
        self.kills[kind] += 1
        self._bring_back(kind, victims[0])

    def _bring_back(self, kind: str, console: int) -> None:
        if kind == CONSOLE:
            self._consoles[console].clean_up()
            self._consoles[console].start()
        elif kind == BROKER:
            self.broker.start()
        else:
            self._worker.clean_up()
            if kind == EMPTY_DISK:
                shutil.rmtree(self._worker.data_dir)
            self._worker.start().ready()

    # ---- the end ------------------------------------------------------------------------------------------------

    def _settle(self, reader: Reader, target: str) -> Counter[int]:
        """Wait until no timer is pending; return how often each has fired."""

        def nothing_waits() -> bool:
            status, page = self._consoles[0].ask("GET", f"/v1/timers?topic={target}")
            return status == 200 and page["complete"] and not page["timers"] and page["next"] is None

        wait_until(lambda: self._consoles[0].ask("GET", "/v1/health/ready")[1]["reasons"] == [], "the console is ready")
        wait_until(nothing_waits, "no timer is pending", _SETTLING_S)
        numbers = (re.fullmatch(rb"n=(\d+);", record.value or b"") for record in reader.rest())
        return Counter(int(found[1]) for found in numbers if found)

    def _judge(self, fired: Counter[int]) -> Outcome:
        timers = self._ledger.timers
        promised = {each.number for each in timers if each.answered_s is not None}
        return Outcome(
            kills=self.kills,
            hits=len(self._ledger.hits),
            timers=len(timers),
            promised=len(promised),
            lost=sorted(promised - fired.keys()),
            doubled=sorted(number for number, count in fired.items() if count > 1),
            split=[each.number for each in timers if len(each.ids) > 1],
            letters=len(self._system.dead_letters().rest()),
            wrong=self._ledger.wrong,
            answers=self._ledger.answers,
        )
