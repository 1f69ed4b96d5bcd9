"""Downloads Kafka's jars once and checks them against the lock at each start. All projects of a user share them.

``jgo.toml`` names the packages; ``jgo.lock.toml`` (written by ``make lock``) has their exact versions and hashes. jgo
downloads the files from Maven's central repository, or from that of the user's jgo settings. A jar is moved to
its place only if its hash is right, so an interrupted download cannot leave a broken jar there.
"""

from __future__ import annotations

import hashlib
import os
import queue
import shutil
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from timers.broker.waiting import Waiting, exclusive
from timers.errors import BrokerError

SPEC = Path(__file__).with_name("jgo.toml")
LOCK = Path(__file__).with_name("jgo.lock.toml")

_MAX_CONCURRENT = 6
_ATTEMPTS = 3
_STALL_TIMEOUT_S = 30
_OTHER_DOWNLOAD_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Jar:
    """One jar of the lock."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def filename(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


@cache
def locked() -> tuple[Jar, ...]:
    """Return the jars of the lock, in class path order."""
    entries = tomllib.loads(LOCK.read_text())["dependencies"]
    return tuple(Jar(entry["groupId"], entry["artifactId"], entry["version"], entry["sha256"]) for entry in entries)


def kafka_version() -> str:
    """Return the Kafka version of the lock."""
    return next(jar.version for jar in locked() if jar.artifact.startswith("kafka_"))


def cache_dir() -> Path:
    """Return the directory of the jars: ``$XDG_CACHE_HOME/kafka-timers/jars``, by default below ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kafka-timers" / "jars"


def ensure(out: TextIO | None) -> list[Path]:
    """Return the paths of all jars, and download missing or broken ones. It uses the network only for these.

    Args:
        out: stream for progress messages; None for no messages.

    Raises:
        BrokerError: a jar cannot be downloaded, or does not match the lock.
    """
    directory = cache_dir()
    try:
        if _missing(directory):
            message = "waiting for another download of Kafka's jars"
            with exclusive(directory / ".lock", message, out, timeout_s=_OTHER_DOWNLOAD_TIMEOUT_S):
                _download(_missing(directory), directory, out)
    except OSError as error:
        raise BrokerError(
            f"cannot keep Kafka's jars in {directory}: {error} (XDG_CACHE_HOME names another place)"
        ) from error
    return [directory / jar.filename for jar in locked()]


def _missing(directory: Path) -> list[Jar]:
    return [jar for jar in locked() if _sha256(directory / jar.filename) != jar.sha256]


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None


class _DownloadStopped(Exception):
    """The download was stopped while a jar was still arriving."""


def _download(jars: list[Jar], directory: Path, out: TextIO | None) -> None:
    """Download the jars into the directory, several at once. The caller holds the lock.

    The threads are daemons, so Ctrl-C ends the process at once and does not wait for the slowest request.
    """
    incoming = directory / "incoming"
    shutil.rmtree(incoming, ignore_errors=True)
    stop = threading.Event()
    events: queue.SimpleQueue[int | Jar | BaseException] = queue.SimpleQueue()

    @contextmanager
    def byte_counter(_name: str, _size: int) -> Iterator[Callable[[int], None]]:
        def update(count: int) -> None:
            if stop.is_set():
                raise _DownloadStopped
            events.put(count)

        yield update

    remaining: queue.SimpleQueue[Jar] = queue.SimpleQueue()
    for jar in jars:
        remaining.put(jar)
    context = maven(incoming, byte_counter)

    def download_jars() -> None:
        try:
            while not stop.is_set():
                jar = remaining.get_nowait()
                _fetch(jar, context, directory)
                events.put(jar)
        except queue.Empty:
            return
        except BaseException as error:  # raised again in the waiting thread
            events.put(error)

    for _ in range(min(_MAX_CONCURRENT, len(jars))):
        threading.Thread(target=download_jars, name="kafka-jars", daemon=True).start()
    try:
        _wait_for(len(jars), events, out)
    finally:
        stop.set()
    shutil.rmtree(incoming, ignore_errors=True)


def _wait_for(total: int, events: queue.SimpleQueue[int | Jar | BaseException], out: TextIO | None) -> None:
    """Wait until ``total`` jars have arrived, and show the progress."""
    message = f"downloading Kafka {kafka_version()}, once"
    count, size = 0, 0
    with Waiting(message, out) as waiting:
        while count < total:
            waiting.pause()
            while not events.empty():
                event = events.get()
                if isinstance(event, BaseException):
                    raise event
                count, size = (count + 1, size) if isinstance(event, Jar) else (count, size + event)
            waiting.message = f"{message}: {count} of {total} jars, {size / 1e6:.0f} MB"


def maven(files: Path, progress: Callable[..., Any] | None = None) -> Any:
    """Return jgo's Maven context with the default repository and those of the user's jgo settings."""
    from jgo.config import GlobalSettings
    from jgo.constants import MAVEN_CENTRAL_URL
    from jgo.maven import MavenContext, PythonResolver

    return MavenContext(
        resolver=PythonResolver(progress_callback=progress),
        repo_cache=files,
        remote_repos={"central": MAVEN_CENTRAL_URL, **GlobalSettings.load().repositories},
        timeout=_STALL_TIMEOUT_S,
    )


def _fetch(jar: Jar, context: Any, directory: Path) -> None:
    artifact = context.project(jar.group, jar.artifact).at_version(jar.version).artifact()
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            path = Path(artifact.resolve())
            break
        except (OSError, RuntimeError) as error:  # requests' errors are OSErrors; jgo's "not found" is a RuntimeError
            Path(artifact.cached_path).unlink(missing_ok=True)
            if attempt == _ATTEMPTS:
                raise BrokerError(
                    f"cannot download {jar.filename}: {error} (complete jars are kept: check the network, or set a "
                    "proxy in HTTPS_PROXY or a mirror in jgo's settings, and start again)"
                ) from error
    actual = _sha256(path)
    if actual != jar.sha256:
        raise BrokerError(
            f"{jar.filename} arrived with SHA-256 {actual}, expected {jar.sha256}: it is not the jar of the "
            "lock; try again, or ask the operator of your Maven repository"
        )
    path.replace(directory / jar.filename)
