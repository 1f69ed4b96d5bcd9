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
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from timers.broker.waiting import exclusive
from timers.errors import BrokerError

SPEC = Path(__file__).with_name("jgo.toml")
LOCK = Path(__file__).with_name("jgo.lock.toml")

_MAX_CONCURRENT = 6
_ATTEMPTS = 3
_STALL_TIMEOUT_S = 30
_OTHER_DOWNLOAD_TIMEOUT_S = 900.0
_REPORT_EVERY_S = 2.0


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
        with _Progress(len(jars), out) as progress:
            while progress.jars < len(jars):
                event = events.get()
                if isinstance(event, BaseException):
                    raise event
                progress.add(event)
    finally:
        stop.set()
    shutil.rmtree(incoming, ignore_errors=True)


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


class _Progress:
    """Shows the progress of the download: a bar on a terminal, else plain lines; nothing without ``out``."""

    def __init__(self, total: int, out: TextIO | None) -> None:
        self.jars = 0
        self._bytes = 0
        self._total = total
        self._out = out
        self._bar: Any = None
        self._reported_at = time.monotonic()

    def __enter__(self) -> _Progress:
        message = f"downloading Kafka {kafka_version()}, once"
        if self._out is not None and self._out.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=self._total, desc=message, unit="jar", file=self._out, dynamic_ncols=True)
        elif self._out is not None:
            print(f"{message} (jars: {self._total}) ...", file=self._out, flush=True)
        return self

    def add(self, event: int | Jar) -> None:
        """Count a complete jar, or the bytes of a part of one."""
        is_jar = isinstance(event, Jar)
        if isinstance(event, Jar):
            self.jars += 1
        else:
            self._bytes += event
        megabytes = f"{self._bytes / 1e6:.0f} MB"
        if self._bar is not None:
            self._bar.set_postfix_str(megabytes, refresh=False)
            self._bar.update(1 if is_jar else 0)
        elif self._out is not None:
            now = time.monotonic()
            if now - self._reported_at >= _REPORT_EVERY_S or self.jars == self._total:
                self._reported_at = now
                print(f"  {self.jars} of {self._total} jars, {megabytes}", file=self._out, flush=True)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
