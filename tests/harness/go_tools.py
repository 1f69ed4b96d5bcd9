"""Programs in Go that check what is in deploy/: built once, in the version that is named here, into build/go.

Go compares each module with the public checksum database, so a version is always the same source.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

from tests.harness.command_line import need

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "build" / "go"
KUBERNETES = (1, 34)
"""The version of Kubernetes for which Helm renders: a build of its own module would say 1.20."""

_CHARTUTIL = "helm.sh/helm/v3/pkg/chartutil.k8sVersion"
MODULES = {
    "helm": ("helm.sh/helm/v3/cmd/helm", "v3.22.0"),
    "kubeconform": ("github.com/yannh/kubeconform/cmd/kubeconform", "v0.8.0"),
}
FLAGS = {"helm": f"-X {_CHARTUTIL}Major={KUBERNETES[0]} -X {_CHARTUTIL}Minor={KUBERNETES[1]}"}

BUILD_S = 1800.0
"""The first build of helm compiles the client of Kubernetes: some minutes on two cores."""


def tool(name: str) -> Path:
    """The path of a program, built if it is missing. Without Go the test is skipped; with ``CI=true`` it fails."""
    module, version = MODULES[name]
    directory = TOOLS / version
    with _only_one(TOOLS):
        if not (directory / name).exists():
            go = need("go")
            environment = {**os.environ, "GOBIN": str(directory)}
            command = [go, "install", "-ldflags", FLAGS.get(name, ""), f"{module}@{version}"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BUILD_S)
            assert done.returncode == 0, f"{name} cannot be built: {done.stderr}"
    return directory / name


class _only_one:
    """Tests of other processes wait while one builds."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = (directory / "lock").open("w")

    def __enter__(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self._file.close()
