"""The image of deploy/Dockerfile, built and run on this machine without a daemon and without a registry.

Its bases come from a registry elsewhere. Here Debian's debootstrap makes one of the same Debian with the same Python.
buildah builds with `chroot`, and a command runs as process number 1 of a PID namespace of its own, in the folder of the
image.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness.command_line import need
from tests.harness.process import Process
from timers.cli.broker.embedded import free_port

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "build" / "image"
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
    """The built image.

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
