"""``python -m tests.chaos.topics``: each own topic is deleted, made anew or changed while a worker, a client, a queue
and a console use it. Prints a table: for each of the four, the seconds until it was well again, and what is red.

A cell runs in a process of its own, with a system of its own. Exit codes: 0 all promises kept, 1 not.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from tests.harness import class_archive, kafka_version
from tests.harness.console_process import ConsoleProcess
from tests.harness.records import Record
from tests.harness.scrape import health, scrape
from tests.harness.system import PARTITIONS, System
from tests.harness.waiting import wait_until
from timers.cli.broker import EmbeddedBroker
from timers.client import TimersClient
from timers.errors import TimersError
from timers.kafka.own_topics import LOG_APPEND_TIME, SNAPSHOT_TOPIC_CONFIG, kept_config, own_topics
from timers.queue import Queue
from timers.wire import topics as names

DELETED, FEWER, MORE, ADDED = CHANGES = ("deleted", "fewer", "more", "added")
MEANINGS = {
    DELETED: "deleted, and made anew by whoever makes it",
    FEWER: "it had three times as many partitions; deleted, and made anew by whoever makes it",
    MORE: "deleted, and at once created by an operator, with three times as many partitions",
    ADDED: "partitions are added, to three times as many",
}

VERDICT, LETTERS, OSCILLATOR, CONSOLE, MARKS, CANARY, LEDGER = HEALING = (
    "verdict",
    "dead-letter",
    "oscillator",
    "console-log",
    "marks",
    "canary",
    "ledger",
)
"""Topics that hold nothing a timer depends on: all are well again within :data:`HEALED_S`."""
HEALED_S = 20.0

REQUEST, BY_ID, RETRY, PROGRESS, SNAPSHOT, COLD, RETURNS = HOLDING = (
    "request",
    "by-id",
    "retry",
    "progress",
    "snapshot",
    "cold",
    "returns",
)
"""Topics that hold what is pending: red within :data:`RED_S`, and the timers of no other topic are late.

That its returns are gone is said by a queue, not by a worker."""
RED_S = 30.0

CONFIGS: dict[str, str] = {
    "retention.ms": "86400000",
    "retention.bytes": "1000000000",
    "cleanup.policy": "compact,delete",
    "message.timestamp.type": "CreateTime",
    "max.message.bytes": "20000",
    "compression.type": "gzip",
    "min.insync.replicas": "2",
    "segment.bytes": "1048576",
    "segment.ms": "60000",
    "delete.retention.ms": "1000",
    "message.timestamp.before.max.ms": "100000",
    "flush.messages": "1",
    "unclean.leader.election.enable": "true",
    "index.interval.bytes": "1024",
}
"""Settings that users set, and a value that may hurt."""

ALL, PARTS = "all", 3
"""Stands for all topics: they get one setting after the other, in this many cells."""

CONFIG_S = 12.0
"""Seconds for which all topics have a setting."""

WATCHED_S = 45.0
SETTLED_S = 6.0
LATE_MS = 5_000
"""A timer of a topic that was not touched is late if its lag is larger."""

ATTEMPT_S = 8.0

COLUMNS = ("fires", "ids", "client", "console", "sends", "queue", "canary")
"""Drivers that the table shows."""

ACCEPTED = re.compile(r"TIMERS_ACCEPT_LOSS=([^ ,;]+)")
"""The way on that a sentence names."""


@dataclass
class Driver:
    """Does one thing again and again, in a thread.

    Attributes:
        failures: (begin, end, sentence) of each attempt that failed, in monotonic seconds.
        successes: how many did not.
    """

    name: str
    attempt: Callable[[int], str]
    """Gets the number of the attempt; returns why it failed, or an empty text."""
    period_s: float = 0.5
    failures: list[tuple[float, float, str]] = field(default_factory=list)
    successes: list[float] = field(default_factory=list)

    def run(self, ended: threading.Event) -> None:
        for number in count():
            if ended.wait(self.period_s):
                return
            began = time.monotonic()
            try:
                why = self.attempt(number)
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
            if why:
                self.failures.append((began, time.monotonic(), why))
            else:
                self.successes.append(time.monotonic())

    def wait(self, count: int) -> None:
        """Wait for successes."""
        wait_until(lambda: len(self.successes) >= count or len(self.failures) > 6, f"{self.name} has begun", 60)
        assert len(self.successes) >= count, f"{self.name}: {self.failures[-2:]}"

    def failed(self, since: float, until: float) -> str:
        """What failed between two moments, and how often."""
        found = [why for began, ended, why in self.failures if ended > since and began < until]
        return f"{len(found)}: {found[-1][:200]}" if found else ""

    def cell(self, changed_at: float, ended_at: float) -> tuple[str, float]:
        """What the table shows, and the seconds until it was well again."""
        later = [each for each in self.failures if each[1] > changed_at]
        if not later:
            return ("ok" if any(at > changed_at for at in self.successes) else "nothing"), 0.0
        well = [at for at in self.successes if at > later[-1][1]]
        took_s = (later[-1][1] if well else ended_at) - changed_at
        return f"{took_s:.0f} s{'' if well else ' NOT WELL'} ({later[-1][2][:160]})", took_s if well else 1e9


class Cell:
    """One topic and one change, with a system of its own."""

    queue: Queue

    def __init__(self, address: str, directory: Path, kind: str, change: str) -> None:
        self.kind, self.change = kind, change
        name = uuid.uuid4().hex[:6]
        self.system = System(
            address,
            directory,
            TIMERS_ID_TOPIC=f"by-id-{name}",
            TIMERS_VERDICT_TOPIC=f"verdict-{name}",
            TIMERS_COLD_TOPIC=f"cold-{name}",
            TIMERS_CANARY_INTERVAL_S="3",
            TIMERS_SNAPSHOT_RECORDS="10" if kind in (SNAPSHOT, ALL) else "1000000",
            TIMERS_HOT_HORIZON_S="7200",
            TIMERS_PARTITIONS=str(PARTITIONS),
            TIMERS_LOG_KEEP_S="never",
        )
        os.environ.update(self.system.environment)
        self.settings = self.system.settings
        self.jobs = self.system.create_topic(f"jobs-{name}", 2)
        self.targets = {each: self.system.target() for each in ("plain", "ids", "client", "console")}
        group = names.queue_group(self.jobs)
        settings = self.settings
        self.topics = {
            VERDICT: settings.verdict_topic,
            LETTERS: settings.dead_letter_topic,
            OSCILLATOR: settings.oscillator_topic,
            CONSOLE: settings.console_log_topic,
            MARKS: settings.retried_topic,
            CANARY: settings.canary_topic,
            LEDGER: names.queue_ledger(group),
            RETURNS: names.queue_returns(group),
            REQUEST: settings.request_topic,
            BY_ID: settings.id_topic,
            RETRY: settings.retry_topic,
            PROGRESS: settings.progress_topic,
            COLD: settings.cold_topic,
            SNAPSHOT: names.snapshots(settings.app_id, settings.request_topic),
        }
        self.topic = self.topics.get(kind, "")
        self.count = {CONSOLE: 1, MARKS: 1, LEDGER: 1, RETURNS: 2}.get(kind, PARTITIONS)
        self.acked: dict[bytes, float] = {}
        """Value of a timer without an id -> when it was acknowledged, by the wall clock. A topic that is made anew
        gives its sources once more."""
        self.acked_letters = 0
        self.ids: dict[str, float] = {}
        self.sent: set[str] = set()
        self.handled: dict[str, int] = {}
        self.red: list[tuple[float, str]] = []
        self.queue_ends: list[tuple[float, str]] = []

    # ---- the topic ----------------------------------------------------------------------------------------------

    def config_of(self, kind: str) -> dict[str, str]:
        """With which an operator makes a topic."""
        own = {each.name: each.config for each in own_topics(self.settings)}
        if self.topics[kind] in own:
            return own[self.topics[kind]]
        append = {"message.timestamp.type": LOG_APPEND_TIME}
        return {
            CONSOLE: append,
            MARKS: {"cleanup.policy": "compact", **append},
            LEDGER: {"cleanup.policy": "compact", **append},
            RETURNS: {**kept_config(self.settings), **append},
            SNAPSHOT: {**SNAPSHOT_TOPIC_CONFIG},
        }[kind]

    def do(self) -> None:
        """Make the change."""
        if self.change == ADDED:
            asked = self.system.admin.create_partitions([NewPartitions(self.topic, 3 * self.count)])
            asked[self.topic].result(20)
        elif self.change in CONFIGS:
            self.system.configure(self.topic, **{self.change.replace(".", "_"): CONFIGS[self.change]})
        elif self.change == MORE:
            self.system.cluster.create_anew(self.topic, 3 * self.count, self.config_of(self.kind))
        else:
            self.system.delete_topic(self.topic)

    def try_configs(self, drivers: dict[str, Driver]) -> dict[str, Any]:
        """Give all topics one setting after the other. Returns for each what the drivers and the health pages said."""
        found = {}
        wait_until(lambda: {*self.topics.values()} <= {*self.system.cluster.topics()}, "all topics are there")
        for name, value in [*CONFIGS.items()][int(self.change) :: PARTS]:
            self.red.clear()
            began_at = time.monotonic()
            for topic in self.topics.values():
                self.system.configure(topic, **{name.replace(".", "_"): value})
            time.sleep(CONFIG_S)
            _, page = health(self.worker.port, "partitions")
            warnings = [*page["warnings"]]
            for topic in self.topics.values():
                self.remove(topic, name)
            ended_at = time.monotonic()
            sentences = sorted({each for _, each in self.red})
            time.sleep(CONFIG_S / 2)
            _, page = health(self.worker.port, "partitions")
            failed = {each.name: each.failed(began_at, ended_at) for each in drivers.values()}
            found[f"{name}={value}"] = {
                "failed": {each: why for each, why in failed.items() if why},
                "red": sentences,
                "warnings": warnings,
                "left": [*page["red"].values()],
            }
        return found

    def remove(self, topic: str, name: str) -> None:
        """Take a setting back, to what the topic was created with or the default of the brokers."""
        kind = next(kind for kind, each in self.topics.items() if each == topic)
        before = self.config_of(kind).get(name)
        if before is not None:
            self.system.configure(topic, **{name.replace(".", "_"): before})
            return
        entry = ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        self.system.admin.incremental_alter_configs([resource])[resource].result(20)

    # ---- what the drivers do ------------------------------------------------------------------------------------

    def plain(self, number: int) -> str:
        """A timer without an id; now and then one for a topic that does not exist, and a cold one."""
        self.client.schedule(self.targets["plain"], "k", b"%d" % number, delay=2, timeout_s=ATTEMPT_S)
        self.acked[b"%d" % number] = time.time()
        # A missing topic lets the worker list all topics, which would hide that it knows old ones.
        if number % 4 == 1 and (self.kind in (LETTERS, MARKS) or not self.acked_letters):
            self.acked_letters += 1
            self.client.schedule(f"missing-{self.system.app_id}", "k", b"letter", delay=1, timeout_s=ATTEMPT_S)
        if number % 4 == 3:
            self.client.schedule(self.targets["plain"], "k", b"cold", delay=90_000, timeout_s=ATTEMPT_S)
        return ""

    def with_id(self, number: int) -> str:
        """A timer with an id that fires."""
        id = f"fires-{number}"
        self.client.schedule(self.targets["ids"], "k", b"%d" % number, delay=2, id=id, timeout_s=ATTEMPT_S)
        self.ids[id] = time.time()
        return ""

    def verdicts(self, number: int) -> str:
        """A client's cancel, and updates of a timer that is there and of one that is not."""
        id, there = f"far-{number}", self.targets["client"]
        self.client.schedule(there, "k", b"far", delay=3600, id=id, timeout_s=ATTEMPT_S)
        found = [
            self.client.update(id, there, "k", b"new", delay=3600, timeout_s=ATTEMPT_S).verdict,
            self.client.cancel(id, timeout_s=ATTEMPT_S).verdict,
            self.client.update(id + "-none", there, "k", b"", delay=3600, timeout_s=ATTEMPT_S).verdict,
        ]
        return "" if found == ["replaced", "cancelled", "unknown"] else f"WRONG verdicts {found}"

    def console_calls(self, number: int) -> str:
        """A change by the console, and a retry of dead letters."""
        path = f"/v1/timer?id=console-{number}&wait={ATTEMPT_S:.0f}"
        body = {"topic": self.targets["console"], "key": "k", "value": "v", "delay": "1h"}
        for method, sent, wanted in (("PUT", body, 201), ("DELETE", None, 200)):
            status, answer = self.console.ask(method, path, sent)
            if status != wanted:
                return f"{method} {status} {answer.get('detail') or answer}"
        if number % 3 == 2:
            asked: dict[str, Any] = {"codes": ["topic-unknown"], "until": int(time.time())}
            status, answer = self.console.ask("POST", "/v1/dead-letters/retry", asked)
            if status == 200 and answer.get("confirm"):
                status, answer = self.console.ask(
                    "POST", "/v1/dead-letters/retry", {**asked, "confirm": answer["confirm"]}
                )
            if status != 200:
                return f"retry {status} {answer.get('detail') or answer}"
        return ""

    def send_message(self, number: int) -> str:
        value = f"{'retry' if number % 3 == 1 else 'reject' if number % 7 == 2 else 'ack'}-{number}"
        self.queue.send(value)
        self.sent.add(value)
        return ""

    def handle(self, _: int) -> str:
        """Take messages for a while; an attempt fails if the queue does, or if no message came."""
        until, seen = time.monotonic() + ATTEMPT_S, 0
        while time.monotonic() < until and seen < 4:
            try:
                messages = self.queue.receive(10, wait_s=1)
            except TimersError as error:
                self.queue_ends.append((time.monotonic(), str(error)))
                with contextlib.suppress(TimersError):
                    self.queue.close()
                self.queue = self.open_queue()  # the way on that its sentence names
                return f"QUEUE ENDED: {error}"
            for message in messages:
                value = (message.value or b"").decode()
                if value.startswith("retry") and message.attempt == 1:
                    message.retry(after=1)
                elif value.startswith("reject"):
                    message.reject("rejected")
                    self.handled[value] = self.handled.get(value, 0) + 1
                else:
                    message.ack()
                    self.handled[value] = self.handled.get(value, 0) + 1
                seen += 1
        return "" if seen else "no message came"

    def canaries(self, _: int) -> str:
        """A canary came back within 12 s, by the worker's metric."""
        age_s = max(scrape(self.worker.port).by("timers_canary_age_seconds", "partition").values(), default=0.0)
        return "" if age_s < 12 else f"the oldest canary is {age_s:.0f} s old"

    def watch_health(self, _: int) -> str:
        _, page = health(self.worker.port, "ready")
        _, partitions = health(self.worker.port, "partitions")
        sentences = [*page.get("reasons", ()), *partitions.get("red", {}).values()]
        for each in sentences:
            self.red.append((time.monotonic(), each))
        return ""

    def open_queue(self) -> Queue:
        return Queue(self.jobs, lease_s=30, session_timeout_s=6, timeout_s=20)

    # ---- the run ------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Run the cell, and return its row."""
        if self.change == FEWER:
            self.system.cluster.create(self.topic, 3 * self.count, self.config_of(self.kind))
        if self.kind == PROGRESS:  # its partitions are chosen by those of the requests
            config = {name.replace(".", "_"): value for name, value in own_topics(self.settings)[0].config.items()}
            self.system.create_topic(self.settings.request_topic, 3 * PARTITIONS, **config)
        self.worker = self.system.worker().start().ready()
        console = {**self.system.environment, "TIMERS_WORKER_URL": f"http://127.0.0.1:{self.worker.port}"}
        directory = self.worker.data_dir.parent.with_name("console")
        self.console = ConsoleProcess(directory, {**console, "TIMERS_CONSOLE_WRITE": "1"}, forked=True).start()
        self.client = TimersClient(timeout_s=ATTEMPT_S)
        self.queue = self.open_queue()
        drivers = {
            "fires": Driver("fires", self.plain),
            "ids": Driver("ids", self.with_id),
            "client": Driver("client", self.verdicts),
            "console": Driver("console", self.console_calls, 1.0),
            "sends": Driver("sends", self.send_message),
            "queue": Driver("queue", self.handle, 0.0),
            "canary": Driver("canary", self.canaries),
            "health": Driver("health", self.watch_health),
        }
        ended = threading.Event()
        threads = [threading.Thread(target=each.run, args=[ended], daemon=True) for each in drivers.values()]
        try:
            self.console.wait_for(r"console: http://")
            for thread in threads:
                thread.start()
            for each in drivers.values():
                each.wait(4 if each.name == "console" else 1)
            time.sleep(SETTLED_S)
            self.red.clear()
            changed_at = time.monotonic()
            if self.kind == ALL:
                return {"cell": f"{ALL}/{self.change}", "configs": self.try_configs(drivers)}
            self.do()
            changed_s = time.time()  # what was acknowledged before may have been in the former topic
            time.sleep(WATCHED_S)
            ended_at = time.monotonic()
            way_on = self.take_way_on(drivers)
            ended.set()
            for thread in threads:
                thread.join(30)
            return {**self.row(drivers, changed_at, changed_s, ended_at), "way_on": way_on}
        finally:
            ended.set()
            with contextlib.suppress(Exception):
                self.queue.close()
            with contextlib.suppress(Exception):
                self.client.close(1)
            self.console.end(5)
            for worker in self.system.workers:
                worker.clean_up()

    def take_way_on(self, drivers: dict[str, Driver]) -> str:
        """If partitions stay red, start the worker as their sentences say. Returns what became of it."""
        _, page = health(self.worker.port, "partitions")
        named = sorted({name for each in page["red"].values() for name in ACCEPTED.findall(each)})
        if not named:
            return f"red: {[*page['red'].values()][:1]}" if page["red"] else ""
        self.worker.stop()
        self.worker.start(TIMERS_ACCEPT_LOSS=",".join(named)).ready()
        began_at = time.monotonic()
        time.sleep(15)
        well = [each.name for each in drivers.values() if each.successes and each.successes[-1] > began_at + 5]
        _, page = health(self.worker.port, "partitions")
        return f"accepted the loss of {len(named)}: well are {', '.join(well)}; red {[*page['red'].values()][:1]}"

    def row(self, drivers: dict[str, Driver], changed_at: float, changed_s: float, ended_at: float) -> dict[str, Any]:
        fired: dict[bytes, list[Record]] = {}
        end = time.monotonic() + 20
        reader = self.system.reader(self.targets["plain"])
        while set(self.acked) - fired.keys() and time.monotonic() < end:
            for record in reader.rest():
                fired.setdefault(record.value or b"", []).append(record)
            time.sleep(0.5)
        ids: dict[str, int] = {}
        worst_id = 0
        reader = self.system.reader(self.targets["ids"])
        end = time.monotonic() + 10
        while self.ids.keys() - ids.keys() and time.monotonic() < end:
            for record in reader.rest():
                ids[record.timer_id] = ids.get(record.timer_id, 0) + 1
                worst_id = max(worst_id, record.lag_ms)
            time.sleep(0.5)
        while self.sent - self.handled.keys() and time.monotonic() < end + 15:
            Driver("queue", self.handle).attempt(0)
        cells = {name: each.cell(changed_at, ended_at) for name, each in drivers.items()}
        lags = {value: each[0].lag_ms for value, each in fired.items() if value in self.acked}
        unfired = set(self.acked) - fired.keys()
        unfired_ids = self.ids.keys() - ids.keys()
        worst = max((lag for value, lag in lags.items() if self.acked[value] >= changed_s - 2), default=0)
        health_red = [(at, sentence) for at, sentence in self.red if at >= changed_at]
        named = [(at - changed_at, sentence) for at, sentence in health_red if self.topic in sentence]
        any_red = named or [(at - changed_at, sentence) for at, sentence in health_red]
        lines = self.worker.log.splitlines()
        said = [line for line in lines if self.topic in line and ("WARN" in line or "ERROR" in line)]
        return {
            "cell": f"{self.kind}/{self.change}",
            **{name: cell for name, cell in cells.items() if name != "health"},
            "lost": sum(self.acked[each] > changed_s for each in unfired),
            "gone": sum(self.acked[each] <= changed_s for each in unfired),
            "twice": sum(len(each) > 1 for each in fired.values()),
            "lost_ids": sum(self.ids[each] > changed_s for each in unfired_ids),
            "gone_ids": sum(self.ids[each] <= changed_s for each in unfired_ids),
            "twice_ids": sum(each > 1 for each in ids.values()),
            "lost_messages": len(self.sent - self.handled.keys()),
            "twice_messages": sum(each > 1 for each in self.handled.values()),
            "worst_lag_ms": worst,
            "worst_id_lag_ms": worst_id,
            "red": any_red[0] if any_red else None,
            "red_until": any_red[-1][0] if any_red else None,
            "said": said[-1][-400:] if said else "",
            "queue_ends": [sentence for _, sentence in self.queue_ends],
            "log": str(self.worker.log_path),
        }


def broken(row: dict[str, Any]) -> list[str]:
    """Which promises a cell has broken."""
    if "failed" in row:
        return [row["failed"]]
    if "configs" in row:
        return [
            f"red after {name} was taken back: {found['left']}"
            for name, found in row["configs"].items()
            if found["left"]
        ]
    kind, _, change = row["cell"].partition("/")
    counted = ["lost", "lost_ids", "lost_messages"]
    if kind != PROGRESS:  # who accepts that it is lost accepts that timers fire twice
        counted += ["twice", "twice_ids"]
    found = [f"{row[name]} {name}" for name in counted if row[name]]
    if change in CONFIGS:
        return found
    if kind in HEALING:
        slow = [name for name in COLUMNS if row[name][1] > HEALED_S]
        return found + [f"{name} not well after {HEALED_S:.0f} s" for name in slow]
    if change != ADDED and kind != RETURNS and not (row["red"] and row["red"][0] <= RED_S):
        found.append(f"not red after {RED_S:.0f} s")
    lags = {"worst_lag_ms": (REQUEST, PROGRESS), "worst_id_lag_ms": (BY_ID, PROGRESS)}
    found += [f"{name} {row[name]}" for name, own in lags.items() if kind not in own and row[name] > LATE_MS]
    return found


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    if "configs" in row:
        return "\n".join(f"{name}: {json.dumps(found)}" for name, found in row["configs"].items())
    if "failed" in row:
        return f"FAILED {row['cell']}: {row['failed']}"
    shown = " | ".join(f"{name}: {row[name][0]}" for name in COLUMNS)
    lags = f"lag {row['worst_lag_ms']}/{row['worst_id_lag_ms']} ms"
    gone = f" (gone with the topic {row['gone']}/{row['gone_ids']})" if row["gone"] + row["gone_ids"] else ""
    counts = (
        f"lost {row['lost']}/{row['lost_ids']}/{row['lost_messages']}{gone} twice {row['twice']}/{row['twice_ids']}"
    )
    red = f"red after {row['red'][0]:.0f} s until {row['red_until']:.0f} s: {row['red'][1]}" if row["red"] else "green"
    way_on = f" | {row['way_on']}" if row["way_on"] else ""
    return f"{row['cell']}: {shown} | {counts}/{row['twice_messages']} {lags} | {red}{way_on} | {row['said'][-250:]}"


def main() -> int:
    """Run the cells, each in a process, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.topics", description=__doc__)
    parser.add_argument("--only", default="*/deleted,*/fewer,*/more,*/added", help="cells, such as 'verdict/*'")
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="a file to which the rows are added, as JSON")
    kafka_version.add_option(parser)
    options = parser.parse_args()
    if options.cell:
        kind, _, change = options.cell.partition("/")
        directory = Path(tempfile.mkdtemp(prefix="topics-"))
        try:
            row = Cell(options.address, directory, kind, change).run()
        except BaseException as error:
            row = {"cell": options.cell, "failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(row), flush=True)
        os._exit(0)
    cells = [f"{kind}/{change}" for kind in (*HEALING, *HOLDING) for change in (*CHANGES, *CONFIGS)]
    cells += [f"{ALL}/{part}" for part in range(PARTS)]
    cells = [cell for cell in cells if any(fnmatchcase(cell, each) for each in options.only.split(","))]
    os.environ.setdefault("KAFKA_OPTS", class_archive.options())

    def run(cell: str, address: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "tests.chaos.topics", "--cell", cell, "--address", address]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        last = done.stdout.strip().splitlines()[-1:]
        row: dict[str, Any] = json.loads(last[0]) if last else {"cell": cell, "failed": done.stderr[-400:]}
        print(line(row), *(f"BROKEN {row['cell']}: {each}" for each in broken(row)), sep="\n", flush=True)
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps({"kafka": kafka_version.chosen(), **row}) + "\n")
        return row

    with (
        tempfile.TemporaryDirectory(prefix="topics-broker-") as place,
        EmbeddedBroker(Path(place) / "broker", port=0) as broker,
    ):
        address = broker.start()
        with ThreadPoolExecutor(options.at_once) as pool:
            rows = list(pool.map(lambda cell: run(cell, address), cells))
    return int(any(map(broken, rows)))


if __name__ == "__main__":
    sys.exit(main())
