"""``python -m tests.chaos.logins``: login tokens of a minute end again and again, while a worker, a client, a queue, a
console and the engine on Spark work; three times, no new token comes for a while. Then an audit reads all requests.

Each part has timers, or messages, of its own, twice a second. Exit codes: 0 all promises kept, 1 not, 130 Ctrl-C.
"""

import argparse
import contextlib
import os
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.chaos.program import run_rounds
from tests.harness import kafka_version
from tests.harness.console_process import ConsoleProcess
from tests.harness.oauth import CLIENT, SECRET, SIGNED, OAuthBroker, OAuthServer, oauth_server
from tests.harness.printer import Printer
from tests.harness.queue_calls import PATIENT
from tests.harness.records import Record, Request
from tests.harness.secure import Certificates
from tests.harness.spark_job import SparkEngine, SparkJob
from tests.harness.system import System
from tests.harness.waiting import wait_until
from timers.client import TimersClient
from timers.errors import LeaseLostError, TimersError
from timers.queue import Queue

LIFE_S = 60.0
"""Of each token. A client asks for the next one after 45 s."""
FAILURES, FAILS_S = 3, 30.0
"""How often the server of tokens fails, and for how many seconds: some clients are without a token for a while."""
PAUSE_S = 0.5
DELAYS_S = (1, 2, 5, 20)
LATEST_S = 120.0
"""Seconds after the last request by which all must have arrived."""


class Sent:
    """What a part has sent.

    Attributes:
        sure: key -> earliest moment in epoch seconds at which it may arrive; of those that were acknowledged.
        unsure: the keys of those that failed. They may arrive too.
    """

    def __init__(self, name: str, send: Callable[[str, int], None]) -> None:
        self.name = name
        self.sure: dict[str, float] = {}
        self.unsure: set[str] = set()
        self._send = send

    def run(self, is_over: Callable[[], bool]) -> None:
        """Send until it is over."""
        number = 0
        while not is_over():
            key, delay_s, now_s = f"{self.name}-{number}", DELAYS_S[number % len(DELAYS_S)], time.time()
            try:
                self._send(key, delay_s)
                self.sure[key] = int(now_s) + delay_s
            except (TimersError, OSError):
                self.unsure.add(key)
            number += 1
            time.sleep(PAUSE_S)

    def judge(self, arrived: Counter[str], early: int) -> tuple[str, bool]:
        """What is said of it, and whether nothing was lost, sent twice or sent early."""
        lost = len(self.sure.keys() - arrived.keys())
        strange = len(arrived.keys() - self.sure.keys() - self.unsure)
        twice = sum(count - 1 for count in arrived.values())
        sentence = f"{self.name}: {len(self.sure)} acknowledged, {len(self.unsure)} failed; {lost} lost, {twice} twice"
        return f"{sentence}, {early} early, {strange} strange", not (lost or twice or early or strange)


def _early(sent: Sent, records: Sequence[Record]) -> int:
    return sum(record.append_ms < 1000 * sent.sure.get((record.key or b"").decode(), 0) for record in records)


class _Run:
    """One run of all parts."""

    def __init__(self, broker: OAuthBroker, server: OAuthServer, directory: Path, ca: Path, printer: Printer) -> None:
        self._server, self._directory, self._printer = server, directory, printer
        login = {
            "TIMERS_BROKERS": broker.address_of(SIGNED),
            "TIMERS_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
            "TIMERS_SASL_MECHANISM": "OAUTHBEARER",
            "TIMERS_SASL_TOKEN_URL": f"{server.url}/token",
            "TIMERS_SASL_TOKEN_CA_FILE": str(ca),
            "TIMERS_SASL_USERNAME": CLIENT,
            "TIMERS_SASL_PASSWORD": SECRET,
            "TIMERS_CONSOLE_WRITE": "1",
        }
        self._system, self._on_spark = (System(broker.address, directory / name) for name in ("workers", "spark"))
        for system in (self._system, self._on_spark):
            system.create_own_topics()
            system.environment |= login
        self._targets = [self._system.target() for _ in range(2)]
        self._spark_target, self._jobs = self._on_spark.target(), self._system.target(2)
        worker = self._worker = self._system.worker()
        asking = {**self._system.environment, "TIMERS_WORKER_URL": f"http://127.0.0.1:{worker.port}"}
        self._console = ConsoleProcess(directory / "console", asking)
        self._engine = SparkEngine(directory / "engine", self._on_spark.environment)

    def run(self, minutes: float) -> bool:
        """Start all, send for some minutes, and judge."""
        with self._printer.doing("starting a worker, a console and the engine on Spark"):
            for process in (self._worker, self._console, self._engine):
                process.start()
            self._worker.ready()
            self._engine.ready()
            wait_until(lambda: self._console_is_ready(), "the console is ready", 60)
        os.environ.update(self._system.environment)
        done: Counter[str] = Counter()
        until = time.monotonic() + minutes * 60
        is_over = partial(_is_over, until)
        with TimersClient(timeout_s=10) as client, Queue(self._jobs, **PATIENT) as queue:
            client_target, console_target = self._targets
            parts = [
                Sent("client", lambda key, delay_s: _set(client, client_target, key, delay_s)),
                Sent("console", lambda key, delay_s: self._post(console_target, key, delay_s)),
                Sent("queue", lambda key, _: _send(queue, key)),
                Sent("spark", self._send_to_spark),
            ]
            threads = [threading.Thread(target=part.run, args=(is_over,)) for part in parts]
            threads.append(threading.Thread(target=self._fail, args=(minutes,)))
            for thread in threads:
                thread.start()
            with self._printer.doing(f"sending for {minutes:g} min"):
                while not is_over():
                    _handle(queue, done)
                for thread in threads:
                    thread.join()
            with self._printer.doing("waiting for the last ones"):
                give_up = time.monotonic() + LATEST_S
                while parts[2].sure.keys() - done.keys() and time.monotonic() < give_up:
                    _handle(queue, done)
            queue.settle()
        return self._judge(parts, done)

    def _judge(self, parts: Sequence[Sent], done: Counter[str]) -> bool:
        is_kept = True
        for part, topic in zip(parts, (*self._targets, None, self._spark_target), strict=True):
            arrived, early = done, 0
            if topic is not None:
                reader = self._system.reader(topic)
                with contextlib.suppress(AssertionError):  # what is missing is counted below
                    records = reader.take(len(part.sure), LATEST_S)
                records = [*self._system.reader(topic).rest()]
                arrived, early = Counter((record.key or b"").decode() for record in records), _early(part, records)
            sentence, is_good = part.judge(arrived, early)
            self._printer.line(f"  {sentence}")
            is_kept &= is_good
        failed = sum(status != 200 for _, status in self._server.asked)
        self._printer.line(f"  {len(self._server.asked)} tokens were asked for, {failed} times in vain")
        with self._printer.doing("an audit of all requests, with a token too"):
            # It ends with 1 if one is lost.
            SparkJob(self._directory / "audit", self._system.environment, "audit").run()
        self._worker.stop()
        self._console.stop()
        logs = {"worker": self._worker.log, "console": self._console.log, "engine": self._engine.log}
        for name, log in logs.items():
            if any(text in log for text in (SECRET, *self._server.given)):
                self._printer.line(f"  the log of the {name} has a secret")
                is_kept = False
        return is_kept and failed >= FAILURES

    def _fail(self, minutes: float) -> None:
        for _ in range(FAILURES):
            time.sleep(minutes * 60 / (FAILURES + 1) - FAILS_S)
            self._server.fails = True
            time.sleep(FAILS_S)
            self._server.fails = False

    def _console_is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self._console.ask("GET", "/v1/health/ready")[0] == 200)
        return False

    def _post(self, target: str, key: str, delay_s: int) -> None:
        body = {"topic": target, "key": key, "value": "", "delay": f"{delay_s}s"}
        status, answer = self._console.ask("POST", "/v1/timers", body)
        if status != 201:
            raise OSError(f"{status}: {answer}")

    def _send_to_spark(self, key: str, delay_s: int) -> None:
        self._on_spark.send(Request(self._spark_target, int(time.time()) + delay_s, key))

    def close(self) -> None:
        """End all."""
        self._engine.end()
        self._console.clean_up()
        for system in (self._system, self._on_spark):
            system.close()


def _is_over(until: float) -> bool:
    return time.monotonic() > until


def _set(client: TimersClient, target: str, key: str, delay_s: int) -> None:
    client.schedule(target, key, b"", delay=delay_s)


def _send(queue: Queue, key: str) -> None:
    queue.send(key.encode())


def _handle(queue: Queue, done: Counter[str]) -> None:
    """Acknowledge some messages."""
    with contextlib.suppress(TimersError):
        for message in queue.receive(20, wait_s=1):
            with contextlib.suppress(LeaseLostError):
                message.ack()
                done[(message.value or b"").decode()] += 1


class _Brokers:
    """A broker with tokens, and the servers that give them and their keys."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        certificates = Certificates.make(directory / "certificates")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificates.issue("127.0.0.1"))
        self.ca = certificates.ca
        self._stack = contextlib.ExitStack()
        keys = self._stack.enter_context(oauth_server())
        self.server = self._stack.enter_context(oauth_server(context))
        self.server.key, self.server.life_s = keys.key, LIFE_S
        self.broker = self._stack.enter_context(OAuthBroker(directory / "oauth", keys))

    def stop(self) -> None:
        self._stack.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Run it and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.logins", description="Let login tokens end.")
    parser.add_argument("--minutes", type=float, default=15, help="of sending (15)")
    parser.add_argument("--keep", action="store_true", help="keep logs and data of a good run too")
    kafka_version.add_option(parser)
    options = parser.parse_args(argv)
    return run_rounds("logins", partial(_run, options.minutes), _Brokers, keep=options.keep)


def _run(minutes: float, directory: Path, brokers: _Brokers) -> bool:
    run = _Run(brokers.broker, brokers.server, directory / "run", brokers.ca, Printer())
    try:
        return run.run(minutes)
    finally:
        run.close()


if __name__ == "__main__":
    sys.exit(main())
