"""EmbeddedBroker: a Kafka broker in a directory, which any process can start, find and stop."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import signal
import subprocess
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from timers.cli.broker import jars, process
from timers.cli.broker.process import HOST, cluster_at, is_port_free
from timers.errors import BrokerError
from timers.process import java
from timers.process.config.project import ADDRESS_FILE, PORT_FILE, project_dir
from timers.process.logs import rotate
from timers.process.waiting import TimedWait, exclusive

KAFKA_PORT = 9092
"""The default port of Kafka clients."""

NODE_ID = 1

DATA, META_FILE = "data", "meta.properties"
UNFINISHED = "data.new"
"""The data directory has this name while it is formatted, so an interrupted format is not taken for it."""

_FREE_PORTS = range(20_000, 32_000)
"""Below the range for outgoing connections (from 32768 on Linux, 49152 on macOS). So no client gets the broker's port
during a restart, and a client that retries cannot connect to itself."""

_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": str(NODE_ID),
    "controller.listener.names": "CONTROLLER",
    # Topics are created explicitly, with the configuration that the promises need.
    "auto.create.topics.enable": "false",
    # There is one broker, so there is one replica.
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # The default of 50 partitions each delays the first group and the first transaction.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    # Do not wait for further members of a new group.
    "group.initial.rebalance.delay.ms": "0",
    # After a crash the broker can rejoin only when its former session has expired: by default after 9 s.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # Deleted records leave the disk soon: by default the broker looks every 5 minutes.
    "log.retention.check.interval.ms": "10000",
    # The default of 128 MB is too much for a heap of at most 1 GB.
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
}


def free_port() -> int:
    """Return a free port of 127.0.0.1 outside the range for outgoing connections."""
    for port in random.sample(_FREE_PORTS, 100):
        if is_port_free(port):
            return port
    raise BrokerError(
        f"no free port found on {HOST} between {_FREE_PORTS.start} and {_FREE_PORTS.stop}: "
        "is this process allowed to listen on ports?"
    )


START_TIMEOUT_S = 120.0
"""A start takes 2 s; after a crash with much data, or on a busy machine, it takes longer."""

_KILL_TIMEOUT_S = 10.0

STOP_TIMEOUT_S = 30.0
"""A stop takes 0.3 s. After this time the process is killed; Kafka's log is safe."""

_OTHER_COMMAND_TIMEOUT_S = 1200.0
"""Another start may be downloading jars."""

_SEARCHED_LOG_LINES = 3000
"""Number of lines at the end of the log in which the cause of a failure is searched."""

_OLD_LOGS = 2
"""Number of older logs that are kept; the same as in log4j2.properties."""

_PORT_ATTEMPTS = 3
_PROPERTIES = "server.properties"
_LOG_CONFIG = Path(__file__).with_name("log4j2.properties")


class _PortTaken(BrokerError):
    """Another program took a port after it was found free."""


class EmbeddedBroker:
    """A Kafka broker for a project, a test session or a benchmark.

    Its whole state is in its directory, so all objects and processes with this directory use the same broker. It runs
    until :meth:`stop`, even if the process that started it ends. As a context manager it runs during the block.

    Args:
        directory: directory of data, log, address and process id; created if missing.
        port: port on 127.0.0.1, which must be free. None: the last port, else 9092, else any free port. 0: the last
            port, else any free one, for tests: other clients do not find the broker by accident.
        properties: further properties of Kafka; they override the others.
        out: stream for progress messages; None for no messages.

    Attributes:
        log_path: the broker's log of this run. Logs of earlier runs are in the same directory.
    """

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        *,
        out: TextIO | None = None,
    ) -> None:
        self.directory = directory.resolve()
        self.log_path = self.directory / "broker.log"
        self._port = port
        self._properties = dict(properties or {})
        self._out = out
        self._pid_file = self.directory / "pid"
        self._port_file = self.directory / PORT_FILE.name
        self._address_file = self.directory / ADDRESS_FILE.name
        self._child: subprocess.Popen[bytes] | None = None

    @classmethod
    def of_project(cls, port: int | None = None, *, out: TextIO | None = None) -> EmbeddedBroker:
        """Return the broker of the current project, which workers and commands find by themselves."""
        return cls(project_dir() / ADDRESS_FILE.parent, port, out=out)

    def __enter__(self) -> EmbeddedBroker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """Process id of the broker, even if it does not answer yet; None if it does not run."""
        try:
            pid = int(self._pid_file.read_text())
        except (FileNotFoundError, ValueError):
            return None
        if self._child is not None and self._child.pid == pid:
            return pid if self._child.poll() is None else None
        return pid if process.is_broker_of(pid, self.directory) else None

    @property
    def cluster_id(self) -> str | None:
        """The cluster id of the data; None if it has none."""
        try:
            lines = (self.directory / DATA / META_FILE).read_text(encoding="latin-1").splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return next(
            (line.removeprefix("cluster.id=").strip() for line in lines if line.startswith("cluster.id=")), None
        )

    @property
    def address(self) -> str | None:
        """``host:port`` for clients; None if the broker does not run, or does not answer."""
        port, cluster_id = self._last_port(), self.cluster_id
        if self.pid is None or port is None or cluster_id is None or cluster_at(port) != cluster_id:
            return None
        return f"{HOST}:{port}"

    def start(self) -> str:
        """Start the broker if it does not run; return its bootstrap address when it answers.

        Raises:
            BrokerError: it does not start. No process remains, and none remains after Ctrl-C.
        """
        with self._locked():
            pid = self.pid
            if pid is None:
                return self._start_process()
            self._wait_for_answer(pid)
            return self._write_address()

    def stop(self) -> bool:
        """Stop the broker and wait until its process has ended.

        Returns:
            Whether it was running.
        """
        with self._locked():
            return self._stop()

    def reset(self) -> None:
        with self._locked():
            self._stop()
            self._delete_data()

    def kill(self) -> None:
        """Kill the broker and leave all its files, as a crash does: for tests."""
        self._signal(signal.SIGKILL)
        with TimedWait("killing broker", None, timeout_s=_KILL_TIMEOUT_S) as waiting:
            while (pid := self.pid) is not None:
                if waiting.expired:
                    raise BrokerError(f"the broker's process {pid} does not end after SIGKILL: see `ps -p {pid}`")
                waiting.pause()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock, so that one command runs at a time. Raise BrokerError for errors of the system."""
        message = "waiting for another `timers broker` command"
        try:
            with exclusive(
                self.directory / "lock", message, self._out, timeout_s=_OTHER_COMMAND_TIMEOUT_S, error=BrokerError
            ):
                yield
        except OSError as error:
            raise BrokerError(f"the broker's directory {self.directory} cannot be used: {error}") from error

    def _start_process(self) -> str:
        self._remove_run_files()
        class_path = jars.KAFKA.ensure(self._out)
        runtime = java.for_broker()
        rotate(self.log_path, _OLD_LOGS)
        (self.directory / _LOG_CONFIG.name).write_text(_LOG_CONFIG.read_text())

        self._format(runtime, class_path)
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            self._write_properties(_PROPERTIES, self._choose_port(), DATA)
            try:
                self._launch(runtime, class_path)
                break
            except _PortTaken as error:
                if attempt == _PORT_ATTEMPTS:
                    raise BrokerError(f"every port tried was taken before the broker could listen: {error}") from error
        return self._write_address()

    def _choose_port(self) -> int:
        port = self._port
        if port and not is_port_free(port):
            raise BrokerError(
                f"port {port} of {HOST} is taken by another program: stop that, or start the broker without a port and "
                "take the one it finds"
            )
        if not port:
            preferred = self._last_port(), KAFKA_PORT if port is None else None
            port = next((each for each in preferred if each and is_port_free(each)), None) or free_port()
        self._port_file.write_text(f"{port}\n")
        return port

    def _last_port(self) -> int | None:
        try:
            port = int(self._port_file.read_text())
        except (FileNotFoundError, ValueError):
            return None
        return port if 0 < port < 65536 else None

    def _write_properties(self, name: str, port: int, log_dir: str) -> None:
        """Write the properties of a broker that is its own controller, on 127.0.0.1 only."""
        controller_port = free_port()
        properties = {
            **_SETTINGS,
            "controller.quorum.voters": f"{NODE_ID}@{HOST}:{controller_port}",
            "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
            "log.dirs": log_dir,
            **self._properties,
        }
        # Java's Properties reads the escapes of JSON.
        lines = (f"{key}={json.dumps(value)[1:-1]}\n" for key, value in properties.items())
        (self.directory / name).write_text("".join(lines))

    def _format(self, runtime: Path, class_path: list[Path]) -> None:
        """Format the data directory, once: one that exists is left to Kafka, which checks it."""
        if (self.directory / DATA).exists():
            return
        self._delete_data()
        properties = f"{UNFINISHED}.properties"
        self._write_properties(properties, KAFKA_PORT, UNFINISHED)
        arguments = "format", "--cluster-id", self._new_cluster_id(), "--config", properties
        result = process.run(runtime, class_path, self.directory, "kafka.tools.StorageTool", *arguments)
        with self.log_path.open("a") as output:
            output.write(result.stdout)
        (self.directory / properties).unlink()
        if result.returncode != 0:
            reason = process.main_error(result.stdout.splitlines())
            raise BrokerError(f"cannot format {self.directory / DATA} (exit code {result.returncode}): {reason}")
        (self.directory / UNFINISHED).rename(self.directory / DATA)

    def _new_cluster_id(self) -> str:
        """Return a random id: 16 bytes in URL-safe base64. The first character is not "-", which starts an option."""
        random = uuid.uuid4().bytes
        return base64.urlsafe_b64encode(bytes([random[0] & 0x7F]) + random[1:]).decode().rstrip("=")

    def _delete_data(self) -> None:
        for name in (DATA, UNFINISHED):
            if (self.directory / name).exists():
                shutil.rmtree(self.directory / name)

    def _launch(self, runtime: Path, class_path: list[Path]) -> None:
        """Start the broker and wait until it answers. An interruption, also Ctrl-C, leaves no process behind."""
        child = None
        try:
            with process.signals_deferred():
                child = process.spawn(runtime, class_path, self.directory, _PROPERTIES, self.log_path)
                self._pid_file.write_text(f"{child.pid}\n")
            self._child = child
            self._wait_for_answer(child.pid)
        except BaseException:
            with process.signals_deferred():
                if child is not None:
                    child.kill()
                    child.wait()
                self._remove_run_files()
            raise

    def _wait_for_answer(self, pid: int) -> None:
        """Wait until the broker answers with the cluster id of the data, or has ended."""
        with TimedWait("starting broker", self._out, timeout_s=START_TIMEOUT_S) as waiting:
            while self.address is None:
                if self.pid != pid:
                    raise self._start_error()
                if waiting.expired:
                    raise BrokerError(
                        f"the broker (process {pid}) has not answered at {HOST}:{self._last_port()} for "
                        f"{START_TIMEOUT_S:.0f} s; its log says: {self._main_error()}; log: {self.log_path}; "
                        "`timers broker stop` ends it"
                    )
                waiting.pause()

    def _main_error(self) -> str:
        try:
            with self.log_path.open(encoding="utf-8", errors="replace") as file:
                return process.main_error(deque((line.rstrip("\n") for line in file), _SEARCHED_LOG_LINES))
        except FileNotFoundError:
            return process.main_error(())

    def _start_error(self) -> BrokerError:
        reason = self._main_error()
        if "Address already in use" in reason:
            return _PortTaken(reason)
        code = self._child.returncode if self._child is not None else None
        exit_code = f" (exit code {code})" if code is not None else ""
        way_out = "if its data is broken, `timers broker reset` deletes it"
        return BrokerError(f"the broker ended while starting{exit_code}: {reason}; log: {self.log_path}; {way_out}")

    def _write_address(self) -> str:
        address = f"{HOST}:{self._last_port()}"
        if self._port and address != f"{HOST}:{self._port}":
            raise BrokerError(
                f"the broker runs at {address} already, not at port {self._port}: use it there, or stop it first"
            )
        self._address_file.write_text(address + "\n")
        return address

    def _stop(self) -> bool:
        was_running = self._signal(signal.SIGTERM)
        with TimedWait("stopping broker", self._out, timeout_s=STOP_TIMEOUT_S) as waiting:
            while self.pid is not None:
                if waiting.expired:
                    self.kill()
                else:
                    waiting.pause()
        self._remove_run_files()
        return was_running

    def _signal(self, number: signal.Signals) -> bool:
        """Send a signal to the broker, and return whether it runs."""
        pid = self.pid
        if pid is not None:
            try:
                with suppress(ProcessLookupError):  # it has ended just now
                    os.kill(pid, number)
            except PermissionError as error:
                raise BrokerError(
                    f"the broker's process {pid} belongs to another user, who must stop it: {error}"
                ) from error
        return pid is not None

    def _remove_run_files(self) -> None:
        self._address_file.unlink(missing_ok=True)
        self._pid_file.unlink(missing_ok=True)
