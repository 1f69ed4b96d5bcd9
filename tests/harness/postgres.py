"""A PostgreSQL for tests and benchmarks, in a temporary directory. Debian: ``apt-get install postgresql``."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from tests.harness.waiting import wait_until
from timers.cli.broker.embedded import free_port

USER = "postgres"
"""PostgreSQL does not run as root; Debian's package makes this user."""


def programs() -> Path | None:
    """The directory of PostgreSQL's programs; None: there are none."""
    on_path = shutil.which("initdb")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    chosen = Path(on_path).resolve() if on_path else found[-1] if found else None
    return chosen and chosen.parent


def need_programs() -> Path:
    """The directory of its programs. Without it, the test is skipped with a message; with ``CI=true`` it fails."""
    found = programs()
    if found is None:
        message = "NOT TESTED: PostgreSQL is not installed (Debian: apt-get install postgresql)"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return found


class PostgresServer:
    """A server on a port of this machine, with one database and no password.

    Args:
        programs: directory of its programs.
        is_durable: whether each commit waits for the disk. Without it, a commit survives a kill all the same, but not a
            power cut.
        options: settings of the server.
    """

    def __init__(self, programs: Path, *, is_durable: bool = False, **options: str) -> None:
        self._programs = programs
        self._directory = Path(tempfile.mkdtemp(prefix="timers-postgres-"))
        self._as_user: dict[str, Any] = {}
        if os.geteuid() == 0:
            account = pwd.getpwnam(USER)
            os.chown(self._directory, account.pw_uid, account.pw_gid)
            self._as_user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        self.port = free_port()
        self.url = f"postgresql://timers@127.0.0.1:{self.port}/postgres"
        self._options = {"fsync": "on" if is_durable else "off", **options}
        self._process: subprocess.Popen[bytes] | None = None
        self._data = self._directory / "data"
        self._run("initdb", "-D", self._data, "-U", "timers", "--auth=trust", "--encoding=UTF8", "--no-sync")

    def _run(self, program: str, *arguments: object) -> None:
        command = [str(self._programs / program), *map(str, arguments)]
        ran = subprocess.run(command, capture_output=True, cwd=self._directory, check=False, **self._as_user)
        assert ran.returncode == 0, f"{program}: {ran.stderr.decode(errors='replace')[-2000:]}"

    def start(self) -> Self:
        """Start the server, and wait until it takes connections."""
        options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "50",
            **self._options,
        }
        command = [str(self._programs / "postgres"), "-D", str(self._data), "-p", str(self.port)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self._directory, stdout=log, stderr=log, start_new_session=True, **self._as_user
            )
        wait_until(self._answers, "PostgreSQL takes connections")
        return self

    def _answers(self) -> bool:
        import psycopg

        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "log").read_text(errors="replace")[-2000:]
        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def kill(self) -> None:
        """End the server and all its processes without notice."""
        assert self._process is not None
        children: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        for child in children:  # each has a session of its own, and while one is left no other server starts
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self._process.wait()
        psutil.wait_procs(children, 10)
        self._process = None

    def close(self) -> None:
        """End the server, and delete its data."""
        if self._process is not None:
            self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def new_database(self, encoding: str = "UTF8") -> str:
        """Make a database, and return its URL."""
        import psycopg

        name = f"shop_{uuid.uuid4().hex[:8]}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            of = f"ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
            connection.execute(f"CREATE DATABASE {name} {of}".encode())
        return self.url.removesuffix("postgres") + name
