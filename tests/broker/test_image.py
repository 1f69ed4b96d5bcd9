"""The image: its worker fires a timer that its console sets, and it ends when told to, from its first moment on."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.harness.command_line import need
from tests.harness.process import Process
from tests.harness.system import System
from tests.harness.waiting import wait_until
from timers.cli.broker.embedded import free_port

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "build" / "image"
VERSION = "0+1234abc"
DEBIAN = "bookworm"
PACKAGES = "python3.11,python3-venv,python3.11-venv,python3.11-dev,gcc,libc6-dev,ca-certificates"
BUILD_S = 3000.0
NAME = "localhost/timers"


def needs() -> None:
    """Skip the test where no image can be built; with ``CI=true`` it fails."""
    for program in ("buildah", "debootstrap", "unshare"):
        need(program)
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("NOT TESTED: the image, which only root on Linux can build without a daemon")


class Image:
    """The image of deploy/Dockerfile, built and run on this machine without a daemon and without a registry.

    Its bases come from a registry elsewhere. Here Debian's debootstrap makes one of the same Debian with the same
    Python. buildah builds with `chroot`, and a command runs as process number 1 of a PID namespace of its own, in the
    folder of the image.

    Attributes:
        config: what it says about itself: ``Entrypoint``, ``Cmd``, ``Env``, ``User``.
    """

    def __init__(self) -> None:
        BUILT.mkdir(parents=True, exist_ok=True)
        storage = BUILT / "storage.conf"
        folders = f'graphroot = "{BUILT}/storage"\nrunroot = "{BUILT}/run"\n'
        storage.write_text(f'[storage]\ndriver = "vfs"\n{folders}')
        self._environment = {**os.environ, "CONTAINERS_STORAGE_CONF": str(storage)}
        self._make_base()
        bases = ["--build-arg", "BUILD_BASE=localhost/base", "--build-arg", "RUN_BASE=localhost/base"]
        bases += ["--build-arg", f"VERSION={VERSION}"]
        self._buildah("bud", "--isolation", "chroot", *bases, "-f", "deploy/Dockerfile", "-t", NAME, ".")
        self._container = self._buildah("from", NAME)
        self._root = Path(self._buildah("mount", self._container))
        self.config: dict[str, Any] = json.loads(self._buildah("inspect", "--type", "image", NAME))["OCIv1"]["config"]

    def close(self) -> None:
        """Give up what it was mounted for; the base stays for the next time."""
        self._buildah("rm", self._container)
        self._buildah("rmi", "--prune")  # each image is a whole copy: what a newer one replaces would stay

    def process(self, name: str, command: list[str], directory: Path, **settings: str) -> Process:
        """A command as process number 1 of a container, with the image's variables and ``settings``. Not started."""
        user = self.config["User"]
        variables = dict(each.split("=", 1) for each in self.config["Env"]) | settings
        alone = ["unshare", "--pid", "--fork", f"--mount-proc={self._root}/proc", "--kill-child"]
        as_user = ["chroot", f"--userspec={user}:{user}", str(self._root)]
        directory.mkdir(exist_ok=True)
        return Process(name, [*alone, *as_user, *command], variables, directory, directory / f"{name}.log")

    def started(self, name: str, arguments: list[str], directory: Path, **settings: str) -> Process:
        """A container that runs, by the entry point of the image."""
        return self.process(name, [*self.config["Entrypoint"], *arguments], directory, **settings).start()

    def _make_base(self) -> None:
        if subprocess.run(
            ["buildah", "inspect", "localhost/base"], env=self._environment, capture_output=True
        ).returncode:
            base = BUILT / "base"
            shutil.rmtree(base, ignore_errors=True)
            self._run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", DEBIAN, str(base))
            # As this machine reaches the index of packages: a proxy may have an authority of its own.
            authorities = "etc/ssl/certs/ca-certificates.crt"
            shutil.copy(f"/{authorities}", base / authorities)
            (base / "etc" / "pip.conf").write_text(f"[global]\ncert = /{authorities}\n")
            for program in ("python", "python3"):
                (base / "usr" / "local" / "bin" / program).symlink_to("/usr/bin/python3.11")
            self._run("tar", "-C", str(base), "-cf", str(BUILT / "base.tar"), ".")
            shutil.rmtree(base)
            (BUILT / "Dockerfile.base").write_text("FROM scratch\nADD base.tar /\n")
            self._buildah("bud", "-f", str(BUILT / "Dockerfile.base"), "-t", "localhost/base", str(BUILT))
            (BUILT / "base.tar").unlink()

    def _buildah(self, *arguments: str) -> str:
        return self._run("buildah", *arguments)

    def _run(self, *command: str) -> str:
        done = subprocess.run(command, cwd=ROOT, env=self._environment, capture_output=True, text=True, timeout=BUILD_S)
        assert done.returncode == 0, f"{' '.join(command[:2])}: {(done.stdout + done.stderr)[-3000:]}"
        return done.stdout.strip()


def web_port() -> dict[str, str]:
    """Settings of a web port of this machine, whose network the container shares."""
    return {"TIMERS_WEB_PORT": str(free_port()), "TIMERS_WEB_BIND": "127.0.0.1"}


pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(4000)]

END_S = 5.0


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    needs()
    made = Image()
    yield made
    made.close()


def first(process: Process) -> int:
    """The id of process number 1 of the container."""

    def children() -> list[int]:
        return [child.pid for child in psutil.Process(process.pid).children()]

    return wait_until(children, "the container has a process")[0]


def ends(process: Process, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while process.running and time.monotonic() < deadline:
        time.sleep(0.02)
    return not process.running


def takes_signals(pid: int) -> bool:
    """Whether process number 1 is the init, and takes signals: it asks for them before it starts its program."""
    init = psutil.Process(pid)
    return bool(init.name() == "tini" and init.children())


SLEEP = ["sleep", "600"]
"""A program that does not handle SIGTERM, as Python in its first two seconds."""


def test_a_container_ends_at_once_also_before_its_program_handles_signals(image: Image, tmp_path: Path) -> None:
    *init, program = image.config["Entrypoint"]
    assert program == "timers"
    process = image.process("init", [*init, *SLEEP], tmp_path).start()
    number_one = first(process)
    wait_until(partial(takes_signals, number_one), "the init runs")
    os.kill(number_one, signal.SIGTERM)
    assert ends(process, END_S), process.tail()


def test_the_image_says_which_version_it_is(image: Image, tmp_path: Path) -> None:
    process = image.process("version", ["timers", "--version"], tmp_path).start()
    assert ends(process, 60.0) and f"timers {VERSION}" in process.tail()


def test_without_init_the_signal_would_be_lost(image: Image, tmp_path: Path) -> None:
    process = image.process("bare", SLEEP, tmp_path).start()
    os.kill(first(process), signal.SIGTERM)
    try:
        assert not ends(process, 1.5)
    finally:
        process.clean_up()


def test_worker_and_console_of_the_image_fire_a_timer(system: System, image: Image, tmp_path: Path) -> None:
    settings = {name: value for name, value in system.environment.items() if name.startswith("TIMERS_")}
    settings |= {"TIMERS_DATA_DIR": "/var/lib/timers", **web_port()}
    port = str(free_port())
    target = system.target()
    worker = image.started("worker", ["worker"], tmp_path, **settings)
    worker_url = f"http://127.0.0.1:{settings['TIMERS_WEB_PORT']}"
    more = {"TIMERS_CONSOLE_PORT": port, "TIMERS_WORKER_URL": worker_url, "TIMERS_CONSOLE_WRITE": "1"}
    console = image.started("console", ["console"], tmp_path, **settings, **more)
    try:
        wait_until(lambda: answers(f"{worker_url}/health/ready"), "the worker is ready")
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/v1/health/ready"), "the console is ready")
        body = f'{{"topic": "{target}", "key": "k", "value": "of the image", "delay": 1}}'.encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/timers", body, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status in (200, 201, 202)
        (fired,) = system.reader(target).take(1)
        assert (fired.key, fired.value) == (b"k", b"of the image") and fired.lag_ms >= 0
        for process in (worker, console):
            os.kill(first(process), signal.SIGTERM)
        assert ends(console, END_S) and ends(worker, 60), worker.tail()
        assert "not compiled" not in worker.log
    finally:
        worker.clean_up()
        console.clean_up()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.HTTPError):
        return False
