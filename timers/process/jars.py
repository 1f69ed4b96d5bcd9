"""Downloads jars once and checks them against a lock at each start. All projects of a user share them.

A spec names the packages; its lock (written by ``make lock``) has their exact versions and hashes. jgo downloads the
files from Maven's central repository, or from that of the user's jgo settings. A jar is moved to its place only if its
hash is right, so an interrupted download cannot leave a broken jar there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from timers.errors import SettingsError, TimersError
from timers.process.threads import BoundedThreads
from timers.process.waiting import TimedWait, exclusive

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


def cache_dir() -> Path:
    """Return the directory of the jars: ``$XDG_CACHE_HOME/kafka-timers/jars``, by default below ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "kafka-timers" / "jars"
    except RuntimeError:
        raise SettingsError(
            "this process has no home directory, in whose .cache the jars are kept: set HOME, or XDG_CACHE_HOME to the "
            "directory for the jars"
        ) from None


class _DownloadStopped(Exception):
    """The download was stopped while a jar was still arriving."""


@dataclass(frozen=True)
class JarSet:
    """The jars of a lock.

    Attributes:
        name: what they are, for messages.
        spec: names the packages.
    """

    name: str
    spec: Path
    error: type[TimersError]

    @property
    def lock(self) -> Path:
        """Exact versions and hashes of the packages, and of those that they need."""
        return self.spec.with_suffix(".lock.toml")

    def locked(self) -> tuple[Jar, ...]:
        """Return the jars of the lock, in class path order."""
        entries = tomllib.loads(self.lock.read_text())["dependencies"]
        return tuple(Jar(entry["groupId"], entry["artifactId"], entry["version"], entry["sha256"]) for entry in entries)

    def ensure(self, out: TextIO | None) -> list[Path]:
        """Return the paths of all jars, and download missing or broken ones. It uses the network only for these.

        Args:
            out: stream for progress messages; None for no messages.

        Raises:
            error: a jar cannot be downloaded, or does not match the lock.
        """
        directory = cache_dir()
        try:
            if self.missing(directory):
                message = f"waiting for another download of {self.name}"
                timeout_s, lock = _OTHER_DOWNLOAD_TIMEOUT_S, directory / ".lock"
                with exclusive(lock, message, out, timeout_s=timeout_s, error=self.error):
                    self._download(self.missing(directory), directory, out)
        except OSError as error:
            raise self.error(
                f"cannot keep {self.name} in {directory}: {error} (XDG_CACHE_HOME names another place)"
            ) from error
        return [directory / jar.filename for jar in self.locked()]

    def relock(self) -> str:
        """Resolve the packages and write the lock: only versions and hashes. Returns a sentence about it.

        ``jgo lock`` would also download a Java 11 to sort jars into modules, which a class path does not need.
        """
        from jgo.env import EnvironmentBuilder, EnvironmentSpec, LockFile

        with tempfile.TemporaryDirectory() as scratch:
            context = maven(Path(scratch))
            builder = EnvironmentBuilder(context=context, cache_dir=Path(scratch))
            wanted = builder.spec_to_dependencies(EnvironmentSpec.load(self.spec))
            inputs, transitive = context.resolver.resolve(wanted)
            needed = [*inputs, *(dep for dep in transitive if dep.scope in ("compile", "runtime"))]
            LockFile.from_resolved_dependencies(needed).save(self.lock)
        return f"{self.lock.name}: {len(needed)} jars"

    def missing(self, directory: Path) -> list[Jar]:
        """Return the jars that a directory does not have with the hashes of the lock."""
        return [jar for jar in self.locked() if _sha256(directory / jar.filename) != jar.sha256]

    def _download(self, jars: list[Jar], directory: Path, out: TextIO | None) -> None:
        """Download the jars into the directory, several at once, and show the progress. The caller holds the lock.

        The threads are daemons, so Ctrl-C ends the process at once and does not wait for the slowest request.
        """
        incoming = directory / "incoming"
        shutil.rmtree(incoming, ignore_errors=True)
        stop = threading.Event()
        arrived_bytes: list[int] = []

        @contextmanager
        def byte_counter(_name: str, _size: int) -> Iterator[Callable[[int], None]]:
            def update(count: int) -> None:
                if stop.is_set():
                    raise _DownloadStopped
                arrived_bytes.append(count)

            yield update

        threads, context = BoundedThreads("kafka-jars", _MAX_CONCURRENT), maven(incoming, byte_counter)
        calls = [threads.call(self._fetch, jar, context, directory) for jar in jars]
        message = f"downloading {self.name}, once"
        try:
            with TimedWait(message, out) as waiting:
                while len(done := [call for call in calls if call.done()]) < len(calls):
                    for call in done:
                        call.result()
                    waiting.message = f"{message}: {len(done)} of {len(jars)} jars, {sum(arrived_bytes) / 1e6:.0f} MB"
                    waiting.pause()
            for call in calls:
                call.result()
        finally:
            stop.set()
            for call in calls:
                call.cancel()
        shutil.rmtree(incoming, ignore_errors=True)

    def _fetch(self, jar: Jar, context: Any, directory: Path) -> None:
        artifact = context.project(jar.group, jar.artifact).at_version(jar.version).artifact()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                path = Path(artifact.resolve())
                break
            except (OSError, RuntimeError) as error:  # those of requests; jgo's "not found"
                Path(artifact.cached_path).unlink(missing_ok=True)
                if attempt == _ATTEMPTS:
                    raise self.error(
                        f"cannot download {jar.filename}: {error} (complete jars are kept: check the network, or set a "
                        "proxy in HTTPS_PROXY or a mirror in jgo's settings, and start again)"
                    ) from error
        actual = _sha256(path)
        if actual != jar.sha256:
            raise self.error(
                f"{jar.filename} arrived with SHA-256 {actual}, expected {jar.sha256}: it is not the jar of the "
                "lock; try again, or ask the operator of your Maven repository"
            )
        path.replace(directory / jar.filename)


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None


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
