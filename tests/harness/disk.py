"""Full disks: a small file system, if this process may mount one, and a limit for the files of a process. Disks that
stall: a file system in user space whose process is stopped."""

import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

BINDFS = "bindfs"
"""A program of Debian that shows a directory a second time, at another place."""

_CONNECTIONS = Path("/sys/fs/fuse/connections")
"""Where Linux shows what each file system in user space does."""


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
    """A file system in user space (:data:`BINDFS`) at ``path``, over the files that are there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        files = path.with_name(f"{path.name}-files")
        path.mkdir(parents=True, exist_ok=True)
        path.rename(files)
        path.mkdir()
        if not _CONNECTIONS.is_mount():
            subprocess.run(["mount", "-t", "fusectl", "fusectl", _CONNECTIONS], check=True, capture_output=True)
        # A file that is deleted while it is open would else stay in its directory, under another name. Ctrl-C goes to
        # the whole group of processes: those that wait for a stalled disk can end only while its process lives.
        command = [BINDFS, "-f", "-o", "hard_remove", str(files), str(path)]
        self._process = subprocess.Popen(command, start_new_session=True)
        while not path.is_mount():
            assert self._process.poll() is None, f"{BINDFS} has ended"
            time.sleep(0.01)
        self._waiting = _CONNECTIONS / str(os.minor(path.stat().st_dev)) / "waiting"

    def waiting(self) -> int:
        """Returns how many accesses to its files wait now."""
        return int(self._waiting.read_text())

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Let each access to a file of it wait until the end of the block. A process that waits cannot be killed."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self._process.poll() is None:  # else it has unmounted itself
            subprocess.run(["umount", "-l", self._path], check=True, capture_output=True)
            self._process.terminate()
            self._process.wait()


def may_stall() -> bool:
    """Whether this process may mount a :class:`StallingDisk`."""
    return shutil.which(BINDFS) is not None and Path("/dev/fuse").exists() and may_mount()


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
