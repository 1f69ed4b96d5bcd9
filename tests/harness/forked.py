"""Runs ``python -m MODULE`` in a fork of a process that has imported the worker: no start spends a second on imports.

The standard library's fork server makes the forks, one server for each process of the tests.
"""

import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path

_IMPORTED = ("tests.harness.forked", "faust.cli.worker", "timers.worker.service", "timers.cli.main")

_context = get_context("forkserver")
_context.set_forkserver_preload(list(_IMPORTED))


def preload(*modules: str) -> None:
    """Import more modules in the fork server. Call it before the first fork."""
    _context.set_forkserver_preload([*_IMPORTED, *modules])


def fits(command: Sequence[str]) -> bool:
    """Whether a command can run in a fork. Variables that Python or its libraries read at their import do not count."""
    return list(command[:2]) == [sys.executable, "-m"]


class Forked:
    """A fork that runs a module; it has what :class:`tests.harness.process.Process` uses of :class:`subprocess.Popen`.

    Args:
        command: ``[sys.executable, "-m", module, *arguments]``.
        environment: all its variables.
        cwd: its working directory.
        log_path: the file to which its output is appended.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], cwd: Path, log_path: Path) -> None:
        arguments = (list(command[2:]), dict(environment), cwd, log_path)
        self._process = _context.Process(target=_run, args=arguments, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code; that of a killed process is the negative number of the signal."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("a fork", timeout or 0)
        return self.returncode

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def _run(arguments: list[str], environment: Mapping[str, str], cwd: Path, log_path: Path) -> None:
    """Become what a shell would have started, and run the module."""
    os.setsid()
    with log_path.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    module, *sys.argv[1:] = arguments
    if module == "faust":  # its module has no specification, in which Python looks for the main module of a package
        module = "faust.__main__"
    runpy.run_module(module, run_name="__main__", alter_sys=True)
