"""Full disks: a small file system, if this process may mount one, and a limit for the files of a process. Disks that
stall: a file system in user space whose process is stopped."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class SmallDisk:
    """A file system in memory, mounted at ``path``."""

    def __init__(self, path: Path, size_mib: int) -> None:
        path.mkdir(parents=True)
        self.path = path
        self._mount(f"size={size_mib}m")

    def _mount(self, options: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.path], check=True, capture_output=True)

    def fill(self) -> None:
        """Write until the disk is full."""
        with (self.path / "filler").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    def make_space(self, size_mib: int) -> None:
        """Make the disk larger."""
        (self.path / "filler").unlink(missing_ok=True)
        self._mount(f"remount,size={size_mib}m")

    def close(self) -> None:
        subprocess.run(["umount", "-l", self.path], check=True, capture_output=True)


@contextmanager
def small_disk(path: Path, size_mib: int) -> Iterator[SmallDisk]:
    """A :class:`SmallDisk` that is mounted during the block."""
    disk = SmallDisk(path, size_mib)
    try:
        yield disk
    finally:
        disk.close()


class StallingDisk:
    """A file system in user space at ``path``, over the files that are there. ``program``: bindfs, of Debian."""

    def __init__(self, path: Path, program: str) -> None:
        self._path = path
        files = path.with_name(f"{path.name}-files")
        path.rename(files)
        path.mkdir()
        self._process = subprocess.Popen([program, "-f", files, path])
        while not path.is_mount():
            assert self._process.poll() is None, f"{program} has ended"
            time.sleep(0.01)

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Let each access to a file of it wait until the end of the block."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        subprocess.run(["umount", "-l", self._path], check=True, capture_output=True)
        self._process.terminate()
        self._process.wait()


def may_mount() -> bool:
    """Whether this process may mount a file system; root in a container often may not."""
    if os.geteuid() != 0:
        return False
    with tempfile.TemporaryDirectory() as directory:
        try:
            SmallDisk(Path(directory) / "probe", 1).close()
        except (OSError, subprocess.CalledProcessError):
            return False
    return True


def limit_files(pid: int, size: int) -> None:
    """Limit all files of process ``pid`` to ``size`` bytes from now on."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))
