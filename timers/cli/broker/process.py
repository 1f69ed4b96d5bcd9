"""Starts, recognizes and asks the broker's process, and reads its log."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaException

from timers.errors import BrokerError
from timers.kafka.admin_client import AdminClient
from timers.process import java
from timers.process.signals import END_SIGNALS, on_signals

HOST = "127.0.0.1"


def cluster_at(port: int, *, timeout_s: float = 1.0) -> str | None:
    """Return the cluster id of the broker at ``127.0.0.1:port``; None if no broker is ready there."""
    try:
        socket.create_connection((HOST, port), timeout_s).close()  # librdkafka would wait for a port that nothing has
    except OSError:
        return None
    # Its log would tell of each refused connection.
    client = AdminClient({"bootstrap.servers": f"{HOST}:{port}", "reconnect.backoff.max.ms": 100, "log_level": 0})
    try:
        found = client.list_topics(timeout=timeout_s)
    except KafkaException:
        return None
    return found.cluster_id if found.brokers else None


def is_port_free(port: int) -> bool:
    """Return whether a broker can listen on ``127.0.0.1:port`` now."""
    with socket.socket() as listener:
        # Java sets this too: a port in TIME_WAIT counts as free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
    # macOS allows this bind although another program listens on all addresses, whose clients it would take.
    try:
        socket.create_connection((HOST, port), timeout=0.5).close()
    except OSError:
        return True
    return False


_LOG_LINE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:.]+ (?P<level>[A-Z]+) +(?P<text>.*)")
_EXCEPTION = re.compile(r'(?:Caused by: |Exception in thread "[^"]*" )?(?P<text>[\w.$]+(?:Exception|Error)\b.*)')
_IGNORED = re.compile(r"\s|WARNING: |\.\.\. [0-9]+ more")


def main_error(lines: Iterable[str]) -> str:
    """Return the line that best explains why Kafka ended: the cause of the last error, or else the last line of text.

    Java prints the outermost exception first and its cause last. Lines about the shutdown after it are ignored. A cause
    that Java does not name is given in words of ours.
    """
    text = ""
    rank = 0
    for line in lines:
        log_line = _LOG_LINE.match(line)
        exception = _EXCEPTION.match(line)
        if log_line:
            line_rank = 2 if log_line["level"] in ("ERROR", "FATAL") else 1
            line_text = log_line["text"]
        elif exception:
            line_rank, line_text = 2, exception["text"]
        elif line.startswith("Error"):
            line_rank, line_text = 2, line
        elif not line or _IGNORED.match(line):
            continue
        else:
            line_rank, line_text = 1, line
        if line_rank >= rank:
            rank, text = line_rank, line_text
    return java.cause(text) or text or "its log is empty"


_JVM = (
    "-Xms256m",
    "-Xmx1g",
    # The garbage collector and its settings are those of Kafka's start script.
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:ErrorFile=java_error_%p.log",
    "-Djava.awt.headless=true",
    "-Dlog4j2.configurationFile=log4j2.properties",
)

_TOOL_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dlog4j2.configurationFile=log4j2.properties")
"""Options for a fast start of a tool that runs for a second."""

_TOOL_TIMEOUT_S = 120.0


def _directory_option(directory: Path) -> str:
    return f"-Dtimers.broker={directory}"


def _user_options() -> list[str]:
    """Return the Java options of ``KAFKA_OPTS``, as in Kafka's start script; they override the others."""
    options = os.environ.get("KAFKA_OPTS", "")
    try:
        return shlex.split(options)
    except ValueError as error:
        raise BrokerError(f"KAFKA_OPTS={options!r} cannot be split into options for Java: {error}") from None


def _environment(jars: list[Path]) -> dict[str, str]:
    """Return this environment with the class path and the locale C.UTF-8.

    The class path is not on the command line, because it has fifty paths. With this locale errors of the system are in
    English, and Java can open files whose names are not ASCII.
    """
    return {**os.environ, "CLASSPATH": os.pathsep.join(map(str, jars)), "LC_ALL": "C.UTF-8"}


def run(
    java: Path, jars: list[Path], directory: Path, main_class: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's tools in ``directory``; ``stdout`` of the result has its whole output.

    Raises:
        BrokerError: ``KAFKA_OPTS`` cannot be read, or the tool does not end.
    """
    try:
        return subprocess.run(
            [java, *_TOOL_JVM, *_user_options(), main_class, *arguments],
            cwd=directory,
            env=_environment(jars),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_TOOL_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise BrokerError(f"{main_class} did not end within {_TOOL_TIMEOUT_S:.0f} s: try again") from None


def spawn(java: Path, jars: list[Path], directory: Path, properties_file: str, log: Path) -> subprocess.Popen[bytes]:
    """Start a broker in ``directory``, in its own session, so that Ctrl-C in a shell does not reach it.

    The output of Java goes to the end of the log.

    Raises:
        BrokerError: ``KAFKA_OPTS`` cannot be read.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            [java, *_JVM, *_user_options(), _directory_option(directory), "kafka.Kafka", properties_file],
            cwd=directory,
            env=_environment(jars),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def is_broker_of(pid: int, directory: Path) -> bool:
    """Return whether the process runs and is the broker of ``directory``."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return os.fsencode(_directory_option(directory)) in arguments
    except OSError:
        if Path("/proc/self/cmdline").exists():
            return False
    result = subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, check=False)
    return os.fsencode(f" {_directory_option(directory)} ") in result.stdout


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Delay Ctrl-C, SIGTERM and SIGHUP until the block ends, so that no started process is lost.

    Python delivers signals to the main thread only, so other threads need no delay.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    try:
        with on_signals(END_SIGNALS, lambda number, _frame: arrived.append(number)):
            yield
    finally:
        for number in arrived:
            signal.raise_signal(number)
