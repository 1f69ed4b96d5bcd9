"""The clients of other makes, each in a program of its language: what they are, how they are built and started."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.harness.command_line import need
from tests.harness.process import ROOT, clean_environment
from timers.cli.broker import jars
from timers.process.java import for_broker

HERE = ROOT / "tests" / "foreign"

BUILD = HERE / "build"
"""Programs and packages; not in the repository."""

RUN_S = 120.0


class Client(NamedTuple):
    """A Kafka client, and what its users must write."""

    name: str
    language: str
    options: str
    """With which its places are those of our clients; empty: none are needed."""
    committed: str
    """With which it reads committed records only, as far as it can."""
    is_sender: bool = True
    """Whether it is tried as a sender, too: a framework sends by one of the other clients."""


CLIENTS = (
    Client("kafka-clients", "java", "", "`isolation.level=read_committed`"),
    Client("confluent-kafka", "python", "`partitioner=murmur2_random`", "its default"),
    Client("aiokafka", "python", "", '`isolation_level="read_committed"`'),
    Client("kafka-python", "python", "", '`isolation_level="read_committed"`'),
    Client("faust-streaming", "python", "", '`processing_guarantee="exactly_once"`, in its worker', is_sender=False),
    Client("faststream", "python", "", '`isolation_level="read_committed"`', is_sender=False),
    Client("franz-go", "go", "", "`FetchIsolationLevel(ReadCommitted())`"),
    Client("sarama", "go", "`NewMurmur2Partitioner`", "`Consumer.IsolationLevel = ReadCommitted`"),
    Client("kafka-go", "go", "`Balancer: Murmur2Balancer{}`", "`IsolationLevel: ReadCommitted`"),
    Client("kafkajs", "node", "`Partitioners.DefaultPartitioner`", "its default"),
    Client("@platformatic/kafka", "node", "`partitioner: compatibilityPartitioner`", "`isolationLevel: 1`"),
    Client("krafka", "rust", "", "`isolation_level(ReadCommitted)`"),
    Client("rskafka", "rust", "no partitioner of its own: compute murmur2", "its default"),
)

_TOOLS = {"java": "", "python": "", "go": "go", "node": "node npm", "rust": "cargo"}


def versions() -> dict[str, str]:
    """Client -> the version that is pinned."""
    found = dict(re.findall(r"^\s*(\S+) v(\S+)$", (HERE / "go" / "go.mod").read_text(), re.MULTILINE))
    go = {name.rpartition("/")[2]: version for name, version in found.items()}
    node = json.loads((HERE / "node" / "package.json").read_text())["dependencies"]
    python = dict(re.findall(r"^([\w-]+)\S*==(\S+)", (HERE / "python" / "requirements.txt").read_text(), re.MULTILINE))
    rust = dict(re.findall(r'^(r?s?k\S+) = .*"=([\d.]+)"', (HERE / "rust" / "Cargo.toml").read_text(), re.MULTILINE))
    java = next(jar.version for jar in jars.KAFKA.locked() if jar.artifact == "kafka-clients")
    return {**go, **node, **python, **rust, "kafka-clients": java}


def _ran(*command: str, directory: Path, timeout_s: float = 900.0) -> None:
    subprocess.run(command, cwd=directory, check=True, timeout=timeout_s, stdout=sys.stderr)


def _build_go() -> None:
    _ran("go", "build", "-o", str(BUILD / "go"), ".", directory=HERE / "go")


def _build_node() -> None:
    _ran("npm", "ci", "--no-audit", "--no-fund", "--silent", directory=HERE / "node")


def _build_python() -> None:
    environment = BUILD / "python"
    if not environment.exists():
        _ran(sys.executable, "-m", "venv", str(environment), directory=HERE)
    packages = str(HERE / "python" / "requirements.txt")
    _ran(str(environment / "bin" / "python"), "-m", "pip", "install", "-q", "-r", packages, directory=HERE)


def _build_rust() -> None:
    _ran("cargo", "build", "--locked", "--quiet", "--target-dir", str(BUILD / "rust"), directory=HERE / "rust")


_BUILDING: dict[str, Callable[[], None]] = {
    "go": _build_go,
    "node": _build_node,
    "python": _build_python,
    "rust": _build_rust,
}


def build(language: str) -> None:
    """Build the program of a language, or install its packages, from its lock files."""
    for tool in _TOOLS[language].split():
        need(tool)
    BUILD.mkdir(exist_ok=True)
    if language in _BUILDING:
        _BUILDING[language]()


def _command(client: Client) -> list[str]:
    match client.language:
        case "go":
            return [str(BUILD / "go")]
        case "node":
            return ["node", str(HERE / "node" / "main.js")]
        case "python":
            return [str(BUILD / "python" / "bin" / "python"), str(HERE / "python" / "main.py")]
        case "rust":
            return [str(BUILD / "rust" / "debug" / "foreign")]
    class_path = os.pathsep.join(map(str, jars.KAFKA.ensure(None)))
    return [str(for_broker()), "-XX:TieredStopAtLevel=1", "-cp", class_path, str(HERE / "java" / "Foreign.java")]


def run(client: Client, command: str, address: str, topic: str, *arguments: str) -> list[str]:
    """The lines that the program of a client prints.

    Raises:
        RuntimeError: it fails.
    """
    called = [*_command(client), client.name, command, address, topic, *arguments]
    done = subprocess.run(called, env=clean_environment(), capture_output=True, text=True, timeout=RUN_S)
    if done.returncode:
        raise RuntimeError(f"{client.name} {command}: {done.stderr[-2000:] or done.stdout[-2000:]}")
    return done.stdout.splitlines()
