"""Programs in Go that check what is in deploy/, and which spans are sent: built once, in the version that is named
here, into build/go.

Go compares each module with the public checksum database, so a version is always the same source.
"""

import fcntl
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tests.harness.command_line import need

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "build" / "go"
KUBERNETES = (1, 34)
"""The version of Kubernetes for which Helm renders: a build of its own module would say 1.20."""

_CHARTUTIL, _VERSION = "helm.sh/helm/v3/pkg/chartutil.k8sVersion", "k8s.io/component-base/version.git"
_API_SERVER = ROOT / "tests" / "deploy" / "api_server"
_COLLECTOR = ROOT / "tests" / "harness" / "otel_collector"


class _Tool(NamedTuple):
    module: str | Path
    """The path of a module with the program, or a folder with a module that has it."""
    version: str
    values: Mapping[str, object] = MappingProxyType({})
    """Variables of the program that its own makefile sets, too."""


TOOLS = {
    "helm": _Tool(
        "helm.sh/helm/v3/cmd/helm",
        "v3.22.0",
        {f"{_CHARTUTIL}Major": KUBERNETES[0], f"{_CHARTUTIL}Minor": KUBERNETES[1]},
    ),
    "kubeconform": _Tool("github.com/yannh/kubeconform/cmd/kubeconform", "v0.8.0"),
    "collector": _Tool(_COLLECTOR, "v0.165.0"),
    "kube-apiserver": _Tool(
        _API_SERVER, "v1.36.3", {f"{_VERSION}Version": "v1.36.3", f"{_VERSION}Major": 1, f"{_VERSION}Minor": 36}
    ),
}

BUILD_S = 3600.0
"""The first build of helm compiles the client of Kubernetes: some minutes on two cores. The API server takes longer."""


def tool(name: str) -> Path:
    """The path of a program, built if it is missing. Without Go the test is skipped; with ``CI=true`` it fails."""
    module, version, values = TOOLS[name]
    program = BUILT / version / name
    with _only_one(BUILT):
        if not program.exists():
            go = need("go")
            flags = ["-ldflags", " ".join(f"-X {variable}={value}" for variable, value in values.items())]
            local = isinstance(module, Path)
            command = [go, "build", *flags, "-o", str(program)] if local else [go, "install", *flags]
            done = subprocess.run(
                command if local else [*command, f"{module}@{version}"],
                cwd=module if local else None,
                env={**os.environ, "GOBIN": str(program.parent)},
                capture_output=True,
                text=True,
                timeout=BUILD_S,
            )
            assert done.returncode == 0, f"{name} cannot be built: {done.stderr}"
    return program


class _only_one:
    """Tests of other processes wait while one builds."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = (directory / "lock").open("w")

    def __enter__(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self._file.close()
