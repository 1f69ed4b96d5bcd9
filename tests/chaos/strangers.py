"""``python -m tests.chaos.strangers``: a program of another kind joins a group of ours, before or after our members,
while 20 timers or messages a second are due, and goes again. Prints a table: after how many seconds it was red or that
the program was refused, and what was lost, twice or late.

A cell is ``group/kind/order``. Each runs in a process of its own with a system of its own; those that join the group of
a running engine on Spark do so one after another. Exit codes: 0 all promises kept, 1 not.
"""

import argparse
import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NoReturn

from aiokafka.errors import KafkaError

from tests.harness import class_archive, kafka_version
from tests.harness.records import Request
from tests.harness.scrape import get
from tests.harness.spark_job import SparkEngine
from tests.harness.strangers import CLIENT_ID, KINDS, has_kind, named_by_brokers
from tests.harness.system import PARTITIONS, System
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from timers.cli.broker import EmbeddedBroker
from timers.cli.broker.embedded import free_port
from timers.kafka import group_access
from timers.kafka.aiokafka_internals.other_groups import SHARE
from timers.process.config.settings import Settings
from timers.queue import Queue
from timers.wire import topics as names

WORKERS, QUEUE, SPARK = GROUPS = ("workers", "queue", "spark")
FIRST, LATER = ORDERS = ("first", "later")

RATE = 20
"""Timers or messages a second."""

RED_S, BACK_S = 10.0, 15.0
"""So long after the brokers name a stranger our side may say that all is well, and after it has gone a timer may be
late."""

STEADY_S = 5.0
"""Largest lag of a timer while a stranger is refused."""

STAYS_S = 8.0
"""How long a stranger stays after it was named."""

JOIN_S, GONE_S = 60.0, 90.0
"""Deadlines. The brokers remove a member that did not leave after its session timeout, 45 s by default."""

POLL_S = 0.2
WAIT_S = 2
"""From a request to its due second."""

DONE_BELOW = re.compile(r"(\S+): the metadata of the committed offset.*Messages below (\d+) count as done")
"""What a queue says of a partition that comes back from a stranger."""

REFUSED, IDLE, RED = "refused", "no partitions", "red"


class Service:
    """Our members of a group, and what is sent to them.

    Attributes:
        fires_meanwhile: whether it fires while a stranger keeps it out of its group.
        group: its id.
        topic: that a stranger reads.
        sent: id of a timer or message -> when it is due, in epoch seconds.
        fired: the same -> when it fired or was handled.
        deadline_s: for its start.
    """

    group: str
    topic: str
    fires_meanwhile = False
    deadline_s = 2 * DEADLINE_S

    def __init__(self, address: str, directory: Path) -> None:
        self.system = System(address, directory)
        self.settings: Settings = self.system.settings
        self.sent: dict[str, float] = {}
        self.fired: dict[str, list[float]] = {}

    def create(self) -> None:
        """Create the topics."""
        self.system.create_own_topics()

    def start(self) -> None:
        """Start the members, and wait until they could tell that a stranger is there."""
        raise NotImplementedError

    def red(self) -> str:
        """What all members say of a stranger; empty if one says that all is well."""
        raise NotImplementedError

    def unready(self) -> str:
        """Why not all members are ready; empty if they are."""
        raise NotImplementedError

    def send(self) -> None:
        """Send what is due in a fifth of a second."""
        raise NotImplementedError

    def collect(self) -> None:
        """Bring :attr:`fired` up to date."""

    def taken(self) -> set[str]:
        """Ids that count as done because a stranger has committed an offset behind them, as our members say."""
        return set()

    def close(self) -> None:
        """End all."""
        self.system.close()


class Timers(Service):
    """What fires timers."""

    def create(self) -> None:
        super().create()
        self.target = self.system.target()
        self._reader = self.system.reader(self.target)
        self.topic = self.system.request_topic

    def send(self) -> None:
        due_s = due_in(WAIT_S)
        for each in self.system.send(*(Request(self.target, due_s, f"key-{number}") for number in range(RATE // 5))):
            self.sent[each.source] = float(due_s)

    def collect(self) -> None:
        for record in self._reader.rest():
            self.fired.setdefault(record.timer_id, []).append(record.append_ms / 1000)

    def _pages(self) -> list[tuple[int, str]]:
        """Status and text of each member's page of health."""
        raise NotImplementedError

    def red(self) -> str:
        pages = self._pages()
        named = [body for status, body in pages if status != 200 and f"client '{CLIENT_ID}" in body]
        kept = [body for status, body in pages if status != 200 and "is a share group" in body]
        return (named or kept)[0] if len(named) + len(kept) == len(pages) else ""

    def unready(self) -> str:
        return "; ".join(body for status, body in self._pages() if status != 200)


class Workers(Timers):
    """Two workers."""

    def __init__(self, address: str, directory: Path) -> None:
        super().__init__(address, directory)
        self.group = self.system.app_id

    def start(self) -> None:
        started = [self.system.worker().start() for _ in range(2)]
        for each in started:
            each.wait_for(r"TimersWorker\]: Ready", self.deadline_s)

    def _pages(self) -> list[tuple[int, str]]:
        return [get(each.port, "/health/ready") for each in self.system.workers]


class Engine(Timers):
    """The engine on Spark. Its group says only that it runs."""

    fires_meanwhile = True
    deadline_s = 400.0

    def __init__(self, address: str, directory: Path) -> None:
        super().__init__(address, directory)
        self.group = names.engine_id(self.system.app_id)
        self._port = free_port()
        place = directory / "engine"
        self._engine = SparkEngine(place, self.system.environment, "--metrics-port", str(self._port))

    def start(self) -> None:
        self._engine.start().wait_for("metrics at http://", self.deadline_s)

    def _pages(self) -> list[tuple[int, str]]:
        with contextlib.suppress(OSError):
            return [get(self._port, "/health/ready")]
        return [(0, "no answer")]

    def close(self) -> None:
        self._engine.clean_up()
        super().close()


class Jobs(Service):
    """Two processes of a queue, as far as a group knows: two members."""

    def __init__(self, address: str, directory: Path) -> None:
        super().__init__(address, directory)
        os.environ.update(self.system.environment)
        self._ended = threading.Event()
        self._sources: dict[str, Request] = {}
        self._done_below: dict[str, int] = {}
        handler = logging.Handler()
        handler.emit = self._note  # type: ignore[method-assign]
        logging.getLogger("timers.queue").addHandler(handler)
        self._queues: list[Queue] = []
        self._threads: list[threading.Thread] = []

    def create(self) -> None:
        self.topic = self.system.target(PARTITIONS)
        self.group = names.queue_group(self.topic)
        self._sender = self.system.publisher()
        self._sender.topic = self.topic

    def start(self) -> None:
        for number in range(2):
            queue = Queue(self.topic, member=f"m{number}", lease_s=30, session_timeout_s=6, timeout_s=20)
            self._queues.append(queue)
            self._threads.append(threading.Thread(target=self._handle, args=[queue], daemon=True))
            self._threads[-1].start()

    def _handle(self, queue: Queue) -> None:
        while not self._ended.is_set():
            for message in queue.receive(50, wait_s=0.2):
                self.fired.setdefault((message.value or b"").decode(), []).append(time.time())
                message.ack()

    def _note(self, record: logging.LogRecord) -> None:
        if found := DONE_BELOW.search(record.getMessage()):
            partition, offset = found[1], int(found[2])
            self._done_below[partition] = max(offset, self._done_below.get(partition, 0))

    def taken(self) -> set[str]:
        places = {id: each.source.rpartition("/") for id, each in self._sources.items()}
        return {id for id, (partition, _, offset) in places.items() if int(offset) < self._done_below.get(partition, 0)}

    def red(self) -> str:
        said = [str(each.unready()) for each in self._queues]
        kept = f"client '{CLIENT_ID}", "share group without members"
        return said[0] if all(any(each in why for each in kept) for why in said) else ""

    def unready(self) -> str:
        return "; ".join(f"{each.unready()}" for each in self._queues if each.unready())

    def send(self) -> None:
        now_s = time.time()
        for number in range(len(self.sent), len(self.sent) + RATE // 5):
            self._sources[f"m-{number}"] = self._sender.queue_raw(None, b"m-%d" % number, [], number % PARTITIONS)
            self.sent[f"m-{number}"] = now_s
        self._sender.flush()

    def close(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
        for queue in self._queues:
            queue.close()
        super().close()


SERVICES: dict[str, Callable[[str, Path], Service]] = {WORKERS: Workers, QUEUE: Jobs, SPARK: Engine}


@dataclass
class Row:
    """What one cell has shown.

    Attributes:
        outcome: how the stranger fared.
        red_s: from when the brokers named it and our members had started, until all of them were red.
        gone_s: from its end until the brokers did not name it.
        well_s: from then on until all members were ready.
        lag_s: largest lag of what was due while it was there, as far as it fired then.
        last_late_s: largest lag of what fired after it had gone, counted from then on.
        taken: messages that count as done because it has committed an offset behind them.
    """

    cell: str
    outcome: str = ""
    said: str = ""
    red_s: float = 0.0
    gone_s: float = 0.0
    well_s: float = 0.0
    sent: int = 0
    lost: int = 0
    twice: int = 0
    early: int = 0
    taken: int = 0
    lag_s: float = 0.0
    last_late_s: float = 0.0
    failed: str = ""
    broken: list[str] = field(default_factory=list)

    def judge(self) -> None:
        """Note which promises were broken."""
        limits = {
            "lost": self.lost,
            "twice": self.twice,
            "early": self.early,
            f"not red within {RED_S:.0f} s": self.red_s > RED_S,
            f"late by more than {BACK_S:.0f} s": self.last_late_s > BACK_S,
            "late though it was refused": self.outcome != RED and self.lag_s > STEADY_S,
            self.failed: self.failed,
        }
        self.broken = [name for name, is_broken in limits.items() if is_broken]

    def line(self) -> str:
        """The row of the table."""
        how = f"red after {self.red_s:.1f} s" if self.outcome == RED else self.outcome
        parts = (
            how,
            f"gone {self.gone_s:.1f} s after its end, ready {self.well_s:.1f} s later",
            f"sent {self.sent} lost {self.lost} twice {self.twice} early {self.early}",
            *([f"done by it {self.taken}"] if self.taken else []),
            f"lag {self.lag_s:.1f} s meanwhile, {self.last_late_s:.1f} s afterwards",
            self.said[:220],
            *([f"BROKEN: {', '.join(self.broken)}"] if self.broken else []),
        )
        return f"{self.cell}: {' | '.join(parts)}"


class Visit:
    """A stranger joins the group of a service, and goes.

    Args:
        is_killed: end it with SIGKILL, so that it does not leave.
    """

    def __init__(self, service: Service, cell: str, directory: Path, *, is_killed: bool) -> None:
        _, self._kind, self._order = cell.split("/")
        self._service = service
        self._directory = directory
        self._is_killed = is_killed
        self._before = set(service.sent)
        self._ended = threading.Event()
        self._sender = threading.Thread(target=self._send, daemon=True)
        self._joined_at = self._named_at = 0.0
        self._stranger: Any = None
        self.row = Row(cell)

    def run(self) -> Row:
        """The row of the table."""
        try:
            self._run()
        except Exception as error:
            self.row.failed = f"{type(error).__name__}: {error}"
        finally:
            self._ended.set()
            if self._stranger is not None:
                self._stranger.end()
        self.row.judge()
        return self.row

    def _run(self) -> None:
        service = self._service
        if self._order == FIRST:
            service.create()
            self._join()
            wait_until(self._is_named, f"{self._kind} is in the group", JOIN_S)
            service.start()
            self._named_at = time.time()
            self._sender.start()
        else:
            self._sender.start()
            wait_until(self._fires, "it fires", service.deadline_s)
            self._join()
        self._watch()
        if service.fires_meanwhile or self._order == LATER:
            wait_until(self._fires, "it fires on", service.deadline_s)
        gone_at = self._end()
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not service.unready(), "all are ready", 2 * DEADLINE_S)
        assert not (why := service.unready()), why
        self.row.well_s = time.time() - gone_at
        time.sleep(2 * WAIT_S)
        self._ended.set()
        self._sender.join()
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self._missing(), "all have fired", DEADLINE_S)
        self._count(gone_at)

    def _send(self) -> None:
        next_at = time.monotonic()
        while not self._ended.wait(max(0.0, next_at - time.monotonic())):
            next_at += 1 / 5
            self._service.send()

    def _join(self) -> None:
        service = self._service
        joins = KINDS[self._kind].join
        self._joined_at = time.time()
        self._stranger = joins(self._directory, service.system.address, service.group, service.topic)

    def _is_named(self) -> bool:
        try:
            return bool(named_by_brokers(self._service.settings, self._service.group))
        except KafkaError:
            return False  # asked again

    def _fires(self) -> bool:
        """Whether it fires in time, as of the last two seconds."""
        service, since = self._service, time.time() - 2
        service.collect()
        lags = [at - service.sent[id] for id, ats in list(service.fired.items()) for at in ats if at > since]
        return len(lags) > RATE and max(lags) < STEADY_S

    def _watch(self) -> None:
        """Wait until it is known how the stranger fares."""
        row, service = self.row, self._service
        began = time.time()
        while not row.outcome:
            named, said, now = self._is_named(), service.red(), time.time()
            if named and not self._named_at:
                self._named_at = now
            if said and self._named_at:
                row.outcome, row.said, row.red_s = RED, said, now - self._named_at
            elif not self._named_at and (errors := self._stranger.errors):
                row.outcome, row.said = REFUSED, errors[0]
            elif self._named_at and now > self._named_at + 2 * RED_S:
                row.outcome = IDLE
            assert now < began + JOIN_S, f"it did not join, and was not refused: {self._stranger.errors}"
            time.sleep(POLL_S)
        until = time.monotonic() + STAYS_S
        while time.monotonic() < until:
            if service.red() and row.outcome != RED:
                row.outcome, row.said, row.red_s = RED, service.red(), time.time() - self._named_at
            time.sleep(POLL_S)

    def _end(self) -> float:
        """End the stranger, and return when the brokers named it no more."""
        service = self._service
        asked_at = time.time()
        if self._is_killed:
            self._stranger.kill()
        else:
            self._stranger.end()
        ended_at = time.time()
        wait_until(lambda: not self._is_named(), "the brokers remove it", GONE_S)
        if group_access.describe(service.settings, service.group).kind == SHARE:  # the way on that the sentence names
            service.system.admin.delete_consumer_groups([service.group])[service.group].result(DEADLINE_S)
        gone_at = time.time()
        self.row.gone_s = max(0.0, gone_at - ended_at)
        return gone_at if self.row.outcome == RED else asked_at

    def _missing(self) -> set[str]:
        self._service.collect()
        ids = self._service.sent.keys() - self._before
        return ids - self._service.fired.keys() - self._service.taken()

    def _count(self, gone_at: float) -> None:
        row, service = self.row, self._service
        missing = self._missing()
        ids = service.sent.keys() - self._before
        fired = {id: service.fired[id] for id in ids & service.fired.keys()}
        late = [(min(ats), service.sent[id]) for id, ats in fired.items()]
        row.sent, row.lost = len(ids), len(missing)
        row.taken = len(ids) - len(fired) - row.lost
        row.twice = sum(len(ats) > 1 for ats in fired.values())
        row.early = sum(at < due for at, due in late)
        row.lag_s = max((at - due for at, due in late if at < gone_at and due > self._joined_at), default=0.0)
        row.last_late_s = max((at - max(due, gone_at) for at, due in late if at >= gone_at), default=0.0)


class Runner:
    """Runs cells in processes of their own.

    Args:
        out: a file to which the rows are added.

    Attributes:
        place: directory of their files.
        more: options of their processes.
    """

    def __init__(self, out: Path | None) -> None:
        self.place = ""
        self.more: list[str] = []
        self._out = out
        self._running: set[subprocess.Popen[str]] = set()

    def end(self, *_: object) -> NoReturn:
        """End the processes and this one."""
        for each in self._running:
            each.terminate()
        sys.exit(1)

    def run(self, cells: list[str]) -> list[Row]:
        """Run cells in one process, print their rows as they come, and return them."""
        command = [sys.executable, "-m", "tests.chaos.strangers", "--cells", ",".join(cells), *self.more]
        environment = {**os.environ, "TMPDIR": self.place}
        rows: list[Row] = []
        with (
            tempfile.TemporaryFile("w+", dir=self.place) as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process,
        ):
            self._running.add(process)
            assert process.stdout is not None
            for text in process.stdout:
                if text.startswith("{"):
                    rows.append(Row(**json.loads(text)))
                    self._note(rows[-1])
            self._running.discard(process)
            errors.seek(0)
            why = errors.read()[-1000:]
        for each in cells[len(rows) :]:
            rows.append(Row(each, failed=why, broken=[f"it ended: {why}"]))
            self._note(rows[-1])
        return rows

    def _note(self, row: Row) -> None:
        print(row.line(), flush=True)
        if self._out is not None:
            with self._out.open("a") as file:
                file.write(json.dumps({"kafka": kafka_version.chosen(), **asdict(row)}) + "\n")


def main() -> int:
    """Run the cells, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.strangers", description=__doc__)
    parser.add_argument("--only", default="*", help="cells, such as 'workers/*/first,queue/share/*'")
    parser.add_argument("--kill", action="store_true", help="end the programs of Java with SIGKILL")
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--times", type=int, default=1, help="how often each cell runs")
    parser.add_argument("--cells", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="a file to which the rows are added, as JSON")
    kafka_version.add_option(parser)
    options = parser.parse_args()
    runner = Runner(options.out)
    signal.signal(signal.SIGTERM, runner.end)  # else brokers, workers and Java programs would stay
    if options.cells:
        _run_cells(options.address, options.cells.split(","), is_killed=options.kill)
        os._exit(0)
    cells = [f"{group}/{kind}/{order}" for group in GROUPS for order in ORDERS for kind in KINDS if has_kind(kind)]
    cells = [cell for cell in cells if any(fnmatchcase(cell, each) for each in options.only.split(","))]
    if options.kill:
        cells = [cell for cell in cells if "librdkafka" not in cell]
    beside_engine = [cell for cell in cells if fnmatchcase(cell, f"{SPARK}/*/{LATER}")]
    parts = [[cell] for cell in cells if cell not in beside_engine] + [beside_engine] * bool(beside_engine)
    parts *= options.times
    os.environ.setdefault("KAFKA_OPTS", class_archive.options())
    with (
        tempfile.TemporaryDirectory(prefix="strangers-") as place,
        EmbeddedBroker(Path(place) / "broker", port=0) as broker,
    ):
        runner.place = place
        runner.more = ["--address", broker.start(), "--kafka", kafka_version.chosen(), *["--kill"] * options.kill]
        with ThreadPoolExecutor(options.at_once) as pool:
            rows = [row for found in pool.map(runner.run, parts) for row in found]
    return int(any(row.broken for row in rows))


def _run_cells(address: str, cells: list[str], *, is_killed: bool) -> None:
    """Run cells of one service, one after another, and print a row of JSON for each."""
    directory = Path(tempfile.mkdtemp(prefix="cell-"))
    service = SERVICES[cells[0].partition("/")[0]](address, directory)
    try:
        if cells[0].endswith(LATER):
            service.create()
            service.start()
        for number, cell in enumerate(cells):
            place = directory / str(number)
            place.mkdir()
            print(json.dumps(asdict(Visit(service, cell, place, is_killed=is_killed).run())), flush=True)
    finally:
        service.close()


if __name__ == "__main__":
    sys.exit(main())
