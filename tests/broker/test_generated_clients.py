"""Clients that a generator makes of the OpenAPI document: they compile, and set, find, move and cancel a timer."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.foreign.clients import BUILD, HERE
from tests.harness.command_line import need
from tests.harness.console_process import ConsoleProcess
from tests.harness.process import clean_environment
from tests.harness.system import System, with_ids
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(900)]

PROGRAMS = HERE / "generated"


def ran(*command: str, directory: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=directory, env=clean_environment(**environment), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture
def arguments(broker_address: str, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """URL of a console with a worker, whose document is in openapi.json, and a callback topic."""
    system = System(broker_address, tmp_path / "system", **with_ids())
    worker = system.worker()
    more = {"TIMERS_CONSOLE_WRITE": "1", "TIMERS_WORKER_URL": f"http://127.0.0.1:{worker.port}"}
    console = ConsoleProcess(tmp_path / "console", system.environment | more, forked=True)
    try:
        worker.start()
        console.start().wait_for("console: ")
        worker.ready()
        wait_until(lambda: console.ask("GET", "/v1/health/ready")[1]["reasons"] == [], "brokers and worker answer")
        (tmp_path / "openapi.json").write_text(json.dumps(console.ask("GET", "/v1/openapi.json")[1]))
        yield console.url, system.target()
    finally:
        console.end()
        system.close()


def test_a_client_of_openapi_python_client(arguments: tuple[str, str], tmp_path: Path) -> None:
    environment = BUILD / "generated"
    if not environment.exists():
        ran(sys.executable, "-m", "venv", str(environment), directory=HERE)
    python = str(environment / "bin" / "python")
    ran(python, "-m", "pip", "install", "-q", "-r", str(PROGRAMS / "requirements.txt"), directory=HERE)
    generate = ("generate", "--path", "openapi.json", "--output-path", "client")
    said = ran(python, "-m", "openapi_python_client", *generate, directory=tmp_path)
    assert "WARNING" not in said and "Unable" not in said, said  # it leaves out what it cannot express
    program = str(PROGRAMS / "program.py")
    # The generator's own code is not strict.
    ran(python, "-m", "mypy", "--strict", "--follow-imports=silent", program, directory=tmp_path / "client")
    said = ran(python, program, *arguments, directory=tmp_path, PYTHONPATH=str(tmp_path / "client"))
    assert said == "done\n"


def test_a_client_of_openapi_typescript(arguments: tuple[str, str], tmp_path: Path) -> None:
    for tool in ("npm", "node"):
        need(tool)
    directory = tmp_path / "client"
    shutil.copytree(PROGRAMS, directory, ignore=shutil.ignore_patterns("node_modules"))
    ran("npm", "ci", "--no-audit", "--no-fund", "--silent", directory=directory)
    ran("npx", "openapi-typescript", str(tmp_path / "openapi.json"), "-o", "api.d.ts", directory=directory)
    ran("npx", "tsc", "-p", ".", directory=directory)
    assert ran("node", "program.js", *arguments, directory=directory) == "done\n"
