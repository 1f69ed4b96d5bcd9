"""``timers console`` as a process, started as a user starts it."""

import json
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.harness.process import Process, clean_environment, python
from tests.harness.system import System
from timers.cli.broker.embedded import free_port


class ConsoleProcess(Process):
    """``timers console`` as a user starts it.

    Args:
        base_path: of its URL, if a proxy gives it one; an empty one gives it a URL without a path, and None none.
        forked: start it in a fork; a user starts the command.
    """

    def __init__(
        self, directory: Path, environment: dict[str, str], base_path: str | None = None, *, forked: bool = False
    ) -> None:
        directory.mkdir(parents=True)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}{base_path or ''}"
        variables = clean_environment(**{**environment, "TIMERS_CONSOLE_PORT": str(self.port)})
        if base_path is not None:
            variables["TIMERS_CONSOLE_URL"] = self.url
        command = python("timers.cli.main", "console")
        super().__init__("the console", command, variables, directory, directory / "log", forked=forked)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        data = None if body is None else json.dumps(body).encode()
        headers |= {"Content-Type": "application/json"} if data else {}
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def stream(self, path: str, **headers: str) -> Iterator[dict[str, str]]:
        """The server-sent events of a stream, as fields."""
        request = urllib.request.Request(f"{self.url}{path}", headers=headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            fields: dict[str, str] = {}
            for line in response:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name:
                    fields[name] = value
                elif fields:
                    yield fields
                    fields = {}

    def stop(self) -> None:
        """Stop it as an operator does."""
        self.send(signal.SIGTERM)
        assert self.exit_code() == 0, self.tail()


@contextmanager
def worker_and_console(
    system: System, directory: Path, base_path: str | None = None, **settings: str
) -> Iterator[tuple[System, ConsoleProcess]]:
    """A worker of a system, and a console that may write. At the end the system is closed."""
    worker = system.worker()
    own = {"TIMERS_WORKER_URL": f"http://127.0.0.1:{worker.port}", "TIMERS_CONSOLE_WRITE": "1", **settings}
    console = ConsoleProcess(directory / "console", system.environment | own, base_path)
    try:
        worker.start()
        console.start().wait_for(rf"console: {re.escape(console.url)} \(reads and writes\)")
        worker.ready()
        yield system, console
        console.stop()
    finally:
        console.end()
        system.close()
